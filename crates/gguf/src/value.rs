//! Metadata values: their types, the scalars and strings that are kept, and arrays, of which only the place is kept.

use std::fmt;

use crate::error::{Error, ErrorKind, Result, escape};
use crate::limits::Limits;
use crate::read::Cursor;

/// The type of a metadata value or array element, with the specification's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this id, as it stands in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// The id in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Lower-case name: `"u32"`, `"string"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays, which vary.
    pub fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Whether it is an integer of any width and sign.
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String | Self::Array)
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An array that stays in the file: what is in it, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// Type of the elements; [`ValueType::Array`] where arrays are nested.
    pub element: ValueType,
    /// Number of elements.
    pub len: u64,
    /// Offset of the first element in the file, in bytes.
    pub offset: u64,
    /// Bytes that the elements take.
    pub bytes: u64,
}

/// A metadata value. `Display` is safe for a terminal: strings are escaped, arrays shown as their type and length.
/// `Debug` shows strings as text, quoted and escaped as Rust has it.
#[derive(Clone, PartialEq)]
#[allow(missing_docs)] // the names say it
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// The bytes as they stand in the file; nothing makes writers use UTF-8.
    String(Box<[u8]>),
    Array(ArrayInfo),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type of this value.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type; `None` for other types. `i128` holds all of them.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// The value of any numeric type, if `f64` holds it exactly.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            // Beyond 2^53 not every integer is an f64; no real number among the keys is anywhere near.
            _ => self.integer().filter(|v| v.unsigned_abs() <= 1 << 53).map(|v| v as f64),
        }
    }

    /// The bytes of a string; `None` for other types.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Decodes a scalar of a fixed size. `bytes` has that size.
    pub(crate) fn decode(ty: ValueType, bytes: &[u8]) -> Option<Self> {
        Some(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => match bytes {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                _ => return None,
            },
            ValueType::String | ValueType::Array => return None,
        })
    }

    /// Reads the value of `key` (quoted, for errors). `memory` is what may still be kept, in bytes.
    pub(crate) fn read(
        cursor: &mut Cursor<'_>,
        key: &str,
        limits: &Limits,
        memory: &mut u64,
    ) -> Result<Self> {
        let ty = read_type(cursor, key, "value")?;
        match ty {
            ValueType::Array => Ok(Self::Array(walk_array(cursor, key, limits, 1)?)),
            ValueType::String => {
                let len = cursor.u64(format_args!("length of the value of key {key}"))?;
                cursor.want(len, format_args!("value of key {key}"))?;
                charge(memory, len, key, limits)?;
                let bytes = cursor.take_owned(len as usize, format_args!("value of key {key}"))?;
                Ok(Self::String(bytes))
            }
            _ => {
                let at = cursor.pos();
                let size = ty.fixed_bytes().unwrap_or(0) as usize;
                let bytes = cursor.take(size, format_args!("value of key {key}"))?;
                Self::decode(ty, bytes).ok_or_else(|| bad_bool(key, bytes[0]).at(at))
            }
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(bytes) => f.debug_tuple("String").field(&String::from_utf8_lossy(bytes)).finish(),
            Self::Array(array) => f.debug_tuple("Array").field(array).finish(),
            // The types have the variants' names.
            scalar => write!(f, "{:?}({scalar})", scalar.ty()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(bytes) => escape(bytes).fmt(f),
            Self::Array(a) => write!(f, "[{} {}]", a.len, a.element),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

/// Takes `bytes` from what may be kept in memory.
pub(crate) fn charge(memory: &mut u64, bytes: u64, key: &str, limits: &Limits) -> Result<()> {
    *memory = memory.checked_sub(bytes).ok_or_else(|| {
        let max = limits.metadata_bytes;
        let why = format!(
            "key {key}: {bytes} bytes more than fit in {max} for all metadata (Limits::metadata_bytes)"
        );
        Error::new(ErrorKind::Limit, why)
    })?;
    Ok(())
}

fn bad_bool(key: &str, byte: u8) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("key {key}: a bool is 0 or 1, found {byte}; the file is damaged"),
    )
}

fn read_type(cursor: &mut Cursor<'_>, key: &str, of: &str) -> Result<ValueType> {
    let at = cursor.pos();
    let id = cursor.u32(format_args!("{of} type of key {key}"))?;
    ValueType::from_id(id).ok_or_else(|| {
        let why = format!(
            "key {key}: unknown {of} type {id}, wanted 0 to 12; the file is damaged, or newer than this reader"
        );
        Error::new(ErrorKind::Malformed, why).at(at)
    })
}

/// Checks one array from its element type to its last byte, and leaves the cursor behind it.
fn walk_array(cursor: &mut Cursor<'_>, key: &str, limits: &Limits, depth: u32) -> Result<ArrayInfo> {
    if depth > limits.array_depth {
        let why =
            format!("key {key}: arrays nested more than {} deep (Limits::array_depth)", limits.array_depth);
        return Err(Error::new(ErrorKind::Limit, why).at(cursor.pos()));
    }
    let element = read_type(cursor, key, "array element")?;
    let len = cursor.u64(format_args!("array length of key {key}"))?;
    // The smallest string is its length, the smallest array a type and a length: this bounds the loops below.
    let smallest = element.fixed_bytes().unwrap_or(if element == ValueType::String { 8 } else { 12 });
    let offset = cursor.pos();
    let bytes = len.checked_mul(smallest).ok_or_else(|| {
        let why = format!(
            "key {key}: array length {len} × {smallest} bytes overflows, past the end of file; it is damaged"
        );
        Error::new(ErrorKind::Malformed, why).at(offset)
    })?;
    cursor.want(bytes, format_args!("array of {len} × {element}, key {key}"))?;
    match element {
        ValueType::String => {
            for i in 0..len {
                let n = cursor.u64(format_args!("length of string {i} of {len}, key {key}"))?;
                if n > limits.metadata_bytes {
                    cursor.want(n, format_args!("string {i} of {len}, key {key}"))?;
                    let why =
                        format!("key {key}: string {i} has {n} bytes, more than Limits::metadata_bytes");
                    return Err(Error::new(ErrorKind::Limit, why).at(cursor.pos()));
                }
                cursor.skip(n, format_args!("string {i} of {len}, key {key}"))?;
            }
        }
        ValueType::Array => {
            for _ in 0..len {
                walk_array(cursor, key, limits, depth + 1)?;
            }
        }
        ValueType::Bool => {
            while cursor.pos() < offset + len {
                let at = cursor.pos();
                let piece = (offset + len - at).min(4096) as usize; // a page at a time, to see many at once
                let flags = cursor.take(piece, format_args!("array of key {key}"))?;
                if let Some(i) = flags.iter().position(|&flag| flag > 1) {
                    return Err(bad_bool(key, flags[i]).at(at + i as u64));
                }
            }
        }
        _ => cursor.skip(bytes, format_args!("array of key {key}"))?,
    }
    Ok(ArrayInfo { element, len, offset, bytes: cursor.pos() - offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_know_their_ids() {
        for id in 0..13 {
            assert_eq!(ValueType::from_id(id).unwrap().id(), id);
        }
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::from_id(u32::MAX), None);
    }

    #[test]
    fn numbers_are_exact_or_absent() {
        assert_eq!(Value::U64(u64::MAX).integer(), Some(u64::MAX.into()));
        assert_eq!(Value::I8(-3).number(), Some(-3.0));
        assert_eq!(Value::U64(1 << 53).number(), Some((1u64 << 53) as f64));
        assert_eq!(Value::U64((1 << 53) + 1).number(), None);
        assert_eq!(Value::F32(0.5).integer(), None);
        assert_eq!(Value::Bool(true).number(), None);
    }

    #[test]
    fn debug_shows_text_as_text() {
        let show = |value: Value| format!("{value:?}");
        assert_eq!(
            show(Value::String(b"a\n\"\x1b\xff".as_slice().into())),
            "String(\"a\\n\\\"\\u{1b}\u{fffd}\")"
        );
        assert_eq!(show(Value::U32(7)), "U32(7)");
        let array = ArrayInfo { element: ValueType::F32, len: 3, offset: 8, bytes: 12 };
        assert_eq!(show(Value::Array(array)), format!("Array({array:?})"));
    }

    #[test]
    fn display_is_one_safe_line() {
        assert_eq!(Value::String(b"a\n\x1b[2Jb".as_slice().into()).to_string(), "a\\n\\u{1b}[2Jb");
        let array = ArrayInfo { element: ValueType::String, len: 3, offset: 0, bytes: 30 };
        assert_eq!(Value::Array(array).to_string(), "[3 string]");
        assert_eq!(Value::F32(1e-5).to_string(), "0.00001");
    }
}
