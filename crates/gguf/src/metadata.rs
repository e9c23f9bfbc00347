//! The metadata of one file: keys in file order, looked up by binary search, read through typed getters.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, quote};
use crate::limits::Limits;
use crate::read::Cursor;
use crate::value::{ArrayInfo, Value, charge};

/// Keys with their values. Getters give `Ok(None)` where the key is absent, and an error that names the key, the wanted
/// and the found type where it is there but cannot be what was asked for.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(Box<str>, Value)>,
    /// Indices into `entries`, by ascending key.
    by_key: Vec<u32>,
    /// For errors of the getters.
    pub(crate) path: Option<PathBuf>,
}

/// What an entry costs besides its text: the tuple, its index, and two allocations rounded up.
const ENTRY_BYTES: u64 = 96;

impl Metadata {
    /// Reads `count` entries. The caller has compared `count` with the bytes left and with the limit.
    pub(crate) fn read(cursor: &mut Cursor<'_>, count: u64, limits: &Limits) -> Result<Self> {
        let mut memory = limits.metadata_bytes;
        let mut entries = Vec::new();
        for i in 0..count {
            let at = cursor.pos();
            let len = cursor.u64(format_args!("key length of metadata entry {i} of {count}"))?;
            if len == 0 {
                let why = format!("metadata entry {i} of {count} has an empty key; the file is damaged");
                return Err(Error::new(ErrorKind::Malformed, why).at(at));
            }
            cursor.want(len, format_args!("key length of metadata entry {i} of {count}"))?;
            if len > limits.key_bytes {
                let max = limits.key_bytes;
                let why = format!(
                    "key of metadata entry {i} is too long: length {len} bytes, at most {max} are allowed"
                );
                return Err(Error::new(ErrorKind::Malformed, why).at(at));
            }
            let bytes = cursor.take(len as usize, format_args!("key of metadata entry {i} of {count}"))?;
            let quoted = quote(bytes);
            let key: Box<str> = str::from_utf8(bytes).map(Into::into).map_err(|_| {
                let why = format!("key {quoted} of metadata entry {i} is not UTF-8; the file is damaged");
                Error::new(ErrorKind::Malformed, why).at(at)
            })?;
            charge(&mut memory, ENTRY_BYTES + len, &quoted, limits)?;
            let value = Value::read(cursor, &quoted, limits, &mut memory)?;
            entries.push((key, value));
        }
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        for pair in by_key.windows(2) {
            let (key, value) = &entries[pair[0].min(pair[1]) as usize];
            let (again, other) = &entries[pair[0].max(pair[1]) as usize];
            if key == again {
                let why = format!(
                    "duplicate key {}: {} and {}; readers would disagree about which counts, so convert the model again",
                    quote(key.as_bytes()),
                    brief(value),
                    brief(other)
                );
                return Err(Error::new(ErrorKind::Malformed, why));
            }
        }
        Ok(Self { entries, by_key, path: None })
    }

    /// Keys and values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.by_key.binary_search_by(|&i| (*self.entries[i as usize].0).cmp(key)).ok()?;
        Some(&self.entries[self.by_key[found] as usize].1)
    }

    /// A count or an id, stored in any integer type.
    ///
    /// # Errors
    /// `WrongType` if it is negative or no integer.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an unsigned integer", |v| v.integer()?.try_into().ok())
    }

    /// A signed number, stored in any integer type.
    ///
    /// # Errors
    /// `WrongType` if it is over `i64::MAX` or no integer.
    pub fn int(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", |v| v.integer()?.try_into().ok())
    }

    /// A number: `f32`, `f64`, or an integer that `f64` holds exactly (some writers store 10000.0 as 10000). It may be
    /// infinite or NaN.
    ///
    /// # Errors
    /// `WrongType` if it is no number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::number)
    }

    /// A flag.
    ///
    /// # Errors
    /// `WrongType` if it is not a bool; integers are not taken for one.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| if let Value::Bool(b) = v { Some(*b) } else { None })
    }

    /// A string, with U+FFFD for what is not UTF-8. Not escaped: use [`escape`](crate::escape) or `Value`'s `Display`
    /// before it is shown.
    ///
    /// # Errors
    /// `WrongType` if it is no string.
    pub fn str(&self, key: &str) -> Result<Option<Cow<'_, str>>> {
        Ok(self.bytes(key)?.map(String::from_utf8_lossy))
    }

    /// The bytes of a string as they stand in the file.
    ///
    /// # Errors
    /// `WrongType` if it is no string.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>> {
        self.typed(key, "a string", Value::bytes)
    }

    /// Type, length and place of an array.
    ///
    /// # Errors
    /// `WrongType` if it is no array.
    pub fn array(&self, key: &str) -> Result<Option<ArrayInfo>> {
        self.array_of(key, "an array", |_| true)
    }

    pub(crate) fn array_of(
        &self,
        key: &str,
        want: &str,
        fits: impl Fn(ArrayInfo) -> bool,
    ) -> Result<Option<ArrayInfo>> {
        self.typed(key, want, |v| if let Value::Array(a) = v { Some(*a).filter(|a| fits(*a)) } else { None })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| {
            let why = format!("key {}: wanted {want}, found {}", quote(key.as_bytes()), brief(value));
            Error::new(ErrorKind::WrongType, why).in_file(self.path())
        })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// Longest value quoted in an error line.
const BRIEF_CHARS: usize = 40;

/// A value for an error line: its type, and itself where it is short.
fn brief(value: &Value) -> String {
    match value {
        Value::String(bytes) => format!("string \"{}\"", crate::escape(bytes).at_most(BRIEF_CHARS)),
        Value::Array(a) => format!("array of {} × {}", a.len, a.element),
        _ => format!("{} {value}", value.ty()),
    }
}
