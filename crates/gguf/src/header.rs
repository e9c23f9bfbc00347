//! One file's header, from its magic to its last tensor info.

use std::fs::{self, File};
use std::path::Path;

use crate::arrays::{Floats, Ints, Scalars, Strings};
use crate::error::{Error, ErrorKind, Result};
use crate::foreign;
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::read::{Cursor, Source};
use crate::tensor::{self, Data, RawInfo, TensorInfo};
use crate::value::{ArrayInfo, ValueType};

/// Where `general.alignment` is absent: the specification's default.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// What every metadata entry begins with, the length of its key. A whole entry takes 14 bytes or more, but then the error
/// would speak of the count where the length is what is wrong.
const SMALLEST_ENTRY: u64 = 8;
/// The smallest tensor info: a name length, no name and no dimensions (refused later), a type, an offset.
const SMALLEST_INFO: u64 = 8 + 4 + 4 + 8;

/// One parsed and checked file. A sharded model has several, of which [`Gguf`](crate::Gguf) makes one.
#[derive(Clone, Debug)]
pub struct Header {
    version: u32,
    alignment: u64,
    data_start: u64,
    file_len: u64,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Header {
    /// Parses and checks the header of `source`; reads nothing of the tensors' data.
    ///
    /// # Errors
    /// `Io` from the source; `Unsupported` for other formats, versions and tensor types; `Truncated` where the file ends
    /// before what it declares; `Malformed` where it contradicts the format or itself; `Limit` beyond `limits`.
    pub fn parse(source: &dyn Source, limits: &Limits) -> Result<Self> {
        let file_len = source.byte_len().map_err(|e| Error::io("cannot tell the size", e))?;
        let mut cursor = Cursor::new(source, file_len, 0, limits.header_bytes);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64(format_args!("tensor count: too short for a header"))?;
        let key_count = cursor.u64(format_args!("metadata count: too short for a header"))?;
        check_count("tensor count", tensor_count, SMALLEST_INFO, &cursor)?;
        check_count("metadata count", key_count, SMALLEST_ENTRY, &cursor)?;
        check_limit("tensor count", tensor_count, limits.tensors, "tensors")?;
        check_limit("metadata count", key_count, limits.keys, "keys")?;

        let metadata = Metadata::read(&mut cursor, key_count, limits)?;
        let alignment = read_alignment(&metadata, limits)?;
        check_count("tensor count", tensor_count, SMALLEST_INFO, &cursor)?;
        let mut raw = Vec::new();
        for i in 0..tensor_count {
            raw.push(RawInfo::read(&mut cursor, i, tensor_count, limits)?);
        }
        let behind = Cursor::new(source, file_len, cursor.pos(), limits.header_bytes);
        refuse_uncounted(behind, tensor_count, alignment, limits)?;
        // Not past the end of u64: the position is a file's, the alignment at most `limits.alignment`.
        let data_start = cursor.pos().checked_next_multiple_of(alignment).ok_or_else(|| {
            let why = format!("{ALIGNMENT_KEY} {alignment}: the data would start past the end of file");
            Error::new(ErrorKind::Malformed, why)
        })?;
        let tensors = tensor::check(raw, Data { start: data_start, alignment, file_len })?;
        Ok(Self { version, alignment, data_start, file_len, metadata, tensors })
    }

    /// Of the format: 2 or 3, which share a layout.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Of the tensors' offsets, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Offset of the data section in bytes. Without tensors it may lie past the end of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of this file, in the order of their infos; `file` is 0.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Streams an array of strings from `source`, the one that was parsed. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of strings.
    pub fn strings<'a>(&self, source: &'a dyn Source, key: &str) -> Result<Option<Strings<'a>>> {
        let array = self.metadata.array_of(key, "an array of strings", |a| a.element == ValueType::String)?;
        Ok(array.map(|array| Strings::new(source, array, key, self.path())))
    }

    /// Streams an array of numbers or bools from `source`, the one that was parsed, as they stand there. `None` if the
    /// key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no such array.
    pub fn scalars<'a>(&self, source: &'a dyn Source, key: &str) -> Result<Option<Scalars<'a>>> {
        let fits = |a: ArrayInfo| a.element.fixed_bytes().is_some();
        let array = self.metadata.array_of(key, "an array of numbers or bools", fits)?;
        Ok(array.map(|array| Scalars::new(source, array, key, self.path())))
    }

    /// Streams an array of integers of any width from `source`, the one that was parsed. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of integers.
    pub fn ints<'a>(&self, source: &'a dyn Source, key: &str) -> Result<Option<Ints<'a>>> {
        let array = self.metadata.array_of(key, "an array of integers", |a| a.element.is_integer())?;
        Ok(array.map(|array| Ints::new(source, array, key, self.path())))
    }

    /// Streams an array of numbers (`f32`, `f64`, integers) from `source`, the one that was parsed. `None` if the key is
    /// absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of numbers.
    pub fn floats<'a>(&self, source: &'a dyn Source, key: &str) -> Result<Option<Floats<'a>>> {
        let fits =
            |a: ArrayInfo| a.element.is_integer() || matches!(a.element, ValueType::F32 | ValueType::F64);
        let array = self.metadata.array_of(key, "an array of numbers", fits)?;
        Ok(array.map(|array| Floats::new(source, array, key, self.path())))
    }

    fn path(&self) -> Option<&Path> {
        self.metadata.path()
    }
}

/// Refuses a file that goes on with an info beyond the count: the data would seem to start there, and every tensor would
/// be read from the wrong place without a sign of it.
fn refuse_uncounted(mut behind: Cursor<'_>, count: u64, alignment: u64, limits: &Limits) -> Result<()> {
    let at = behind.pos();
    match RawInfo::read(&mut behind, count, count, limits) {
        Ok(next) if next.is_plausible(alignment) => {
            let why = format!(
                "tensor count {count} is too small: the info of tensor {} follows; the file is damaged, convert the \
                 model again",
                next.quoted_name()
            );
            Err(Error::new(ErrorKind::Malformed, why).at(at))
        }
        // Padding, data or the end of the file, as it should be.
        _ => Ok(()),
    }
}

/// Reads magic and version; recognises what is no GGUF, or not one of ours.
fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let left = cursor.left();
    if left == 0 {
        return Err(Error::new(ErrorKind::Truncated, "empty file: 0 bytes, not a GGUF; download it again"));
    }
    let head = cursor.take(left.min(foreign::SNIFF_BYTES as u64) as usize, format_args!("magic"))?;
    let Some(rest) = head.strip_prefix(MAGIC) else {
        return Err(foreign::describe(head));
    };
    let Some(&version) = rest.first_chunk() else {
        let why = format!(
            "too short for a GGUF: {left} bytes, 24 wanted; the file is truncated, download it again"
        );
        return Err(Error::new(ErrorKind::Truncated, why));
    };
    let version = u32::from_le_bytes(version);
    // What was only looked at is read again: a header longer than that is the rule.
    cursor.rewind(8);
    match version {
        2 | 3 => Ok(version),
        1 => Err(refuse("GGUF version 1, wanted 2 or 3: convert the model again with a current tool")),
        // The upper half of a version is not in use; in a big-endian file it holds the number.
        _ if version & 0xffff == 0 && version != 0 => Err(refuse(&format!(
            "a big-endian GGUF (version {}), wanted little-endian: convert it to little-endian",
            version.swap_bytes()
        ))),
        0 => Err(refuse("GGUF version 0, wanted 2 or 3: the file is damaged")),
        _ => Err(refuse(&format!(
            "GGUF version {version}, wanted 2 or 3: the file is newer than this reader, or damaged"
        ))),
    }
}

fn refuse(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, why).at(MAGIC.len() as u64)
}

/// A count that cannot be true is refused before anything is reserved for it.
fn check_count(what: &str, count: u64, smallest: u64, cursor: &Cursor<'_>) -> Result<()> {
    let most = cursor.file_left() / smallest;
    if count <= most {
        return Ok(());
    }
    let why = format!(
        "{what} {count}, but the {} bytes up to the end of file hold at most {most}: the file is truncated or damaged, \
         download it again",
        cursor.file_left()
    );
    Err(Error::new(ErrorKind::Truncated, why).at(cursor.pos()))
}

fn check_limit(what: &str, count: u64, max: u64, field: &str) -> Result<()> {
    if count <= max {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Limit, format!("{what} {count}, at most {max} are allowed (Limits::{field})")))
}

/// The specification wants a multiple of 8, common readers a power of two. Nothing here depends on either, so both pass.
pub(crate) fn is_sound_alignment(alignment: u64) -> bool {
    alignment.is_power_of_two() || (alignment != 0 && alignment.is_multiple_of(8))
}

fn read_alignment(metadata: &Metadata, limits: &Limits) -> Result<u64> {
    let alignment = metadata.uint(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if is_sound_alignment(alignment) && alignment <= limits.alignment {
        return Ok(alignment);
    }
    let max = limits.alignment;
    let why =
        format!("{ALIGNMENT_KEY} is {alignment}, wanted a power of two or a multiple of 8, at most {max}");
    Err(Error::new(ErrorKind::Malformed, why))
}

/// Opens and parses one file. Every error names it.
pub(crate) fn open_file(path: &Path, limits: &Limits) -> Result<(File, Header)> {
    let open = || {
        // Asked before it is opened: opening a pipe without a writer would wait for ever.
        let kind = fs::metadata(path).map_err(|e| Error::io("cannot open", e))?;
        if kind.is_dir() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "is a directory, wanted a .gguf file: name the file in it",
            ));
        }
        if !kind.is_file() {
            let why = "is no regular file (a pipe or device?): the weights are read by offset, so save it as a file first";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let file = File::open(path).map_err(|e| Error::io("cannot open", e))?;
        let mut header = Header::parse(&file, limits)?;
        header.metadata.path = Some(path.to_path_buf());
        Ok((file, header))
    };
    open().map_err(|e| e.in_file(Some(path)))
}
