//! A writer: metadata and infos are collected, then the header is written, then the tensors' bytes in a stream.
//!
//! It holds the header and no data, so a file of any size can be written through a small buffer. What it writes, the
//! reader of this crate accepts.

use std::io::{self, Write};

use crate::error::{Error, ErrorKind, Result, quote};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, is_sound_alignment};
use crate::types::TensorType;
use crate::value::ValueType;

/// A value that can stand alone or in an array. Text and byte slices are strings.
pub trait Element {
    /// Its type in the file.
    const TYPE: ValueType;

    /// Appends the value as it stands in the file.
    fn encode(&self, out: &mut Vec<u8>);
}

fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

impl Element for u8 {
    const TYPE: ValueType = ValueType::U8;
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
}

impl Element for i8 {
    const TYPE: ValueType = ValueType::I8;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for u16 {
    const TYPE: ValueType = ValueType::U16;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for i16 {
    const TYPE: ValueType = ValueType::I16;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for u32 {
    const TYPE: ValueType = ValueType::U32;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for i32 {
    const TYPE: ValueType = ValueType::I32;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for f32 {
    const TYPE: ValueType = ValueType::F32;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for u64 {
    const TYPE: ValueType = ValueType::U64;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for i64 {
    const TYPE: ValueType = ValueType::I64;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for f64 {
    const TYPE: ValueType = ValueType::F64;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
}

impl Element for bool {
    const TYPE: ValueType = ValueType::Bool;
    fn encode(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl Element for &str {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.as_bytes(), out);
    }
}

impl Element for String {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.as_bytes(), out);
    }
}

impl Element for &[u8] {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self, out);
    }
}

impl Element for Vec<u8> {
    const TYPE: ValueType = ValueType::String;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self, out);
    }
}

/// A GGUF file in the making: keys and tensors in the order in which they are added.
///
/// ```
/// use sluice_gguf::{Header, Limits, TensorType, Writer};
///
/// let mut file = Writer::new();
/// file.key("general.architecture", "llama").array("x.sizes", &[1u32, 2, 3]);
/// file.tensor("a", TensorType::F32, &[2, 1]).tensor("b", TensorType::Q8_0, &[32]);
/// let mut data = file.begin(Vec::new())?;
/// data.tensor("a", &[0; 8])?;
/// data.write(&[1; 30])?; // a tensor may come in pieces
/// data.write(&[2; 4])?;
/// let bytes = data.finish()?;
/// assert_eq!(Header::parse(&bytes, &Limits::default())?.tensors()[1].name, "b");
/// # Ok::<(), sluice_gguf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Writer {
    version: u32,
    alignment: u64,
    keys: Vec<String>,
    metadata: Vec<u8>,
    tensors: Vec<Planned>,
}

#[derive(Clone, Debug)]
struct Planned {
    name: String,
    ty: TensorType,
    dims: Vec<u64>,
}

impl Planned {
    /// Bytes of data; `None` if the shape is none that a file may have.
    fn len(&self) -> Option<u64> {
        let (first, rest) = self.dims.split_first().filter(|(_, rest)| rest.len() < 4)?;
        let sound = self.dims.iter().all(|&d| d != 0) && first.is_multiple_of(self.ty.block_len());
        let blocks = rest.iter().try_fold(first / self.ty.block_len(), |n, &d| n.checked_mul(d));
        blocks.filter(|_| sound)?.checked_mul(self.ty.block_bytes())
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// An empty file, version 3, alignment 32.
    pub fn new() -> Self {
        Self { version: 3, alignment: DEFAULT_ALIGNMENT, keys: vec![], metadata: vec![], tensors: vec![] }
    }

    /// The version to write: 2 or 3 (checked by [`begin`](Self::begin)).
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// The alignment of tensors in bytes, a power of two or a multiple of 8 (checked by [`begin`](Self::begin)); also
    /// adds the key `general.alignment`. Call it at most once.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = alignment.into();
        self.key(ALIGNMENT_KEY, alignment)
    }

    /// Adds a key with a single value, stored as the value's own type.
    pub fn key<T: Element>(&mut self, key: &str, value: T) -> &mut Self {
        self.begin_key(key, T::TYPE);
        value.encode(&mut self.metadata);
        self
    }

    /// Adds a key with an array; the elements' type is kept when it is empty.
    pub fn array<T: Element>(&mut self, key: &str, values: &[T]) -> &mut Self {
        self.begin_key(key, ValueType::Array);
        self.metadata.extend(T::TYPE.id().to_le_bytes());
        self.metadata.extend((values.len() as u64).to_le_bytes());
        for value in values {
            value.encode(&mut self.metadata);
        }
        self
    }

    /// Adds a key with an array whose elements come one by one, so that a vocabulary need not lie in memory twice.
    pub fn array_from<T: Element>(&mut self, key: &str, values: impl IntoIterator<Item = T>) -> &mut Self {
        self.begin_key(key, ValueType::Array);
        self.metadata.extend(T::TYPE.id().to_le_bytes());
        let at = self.metadata.len();
        self.metadata.extend([0; 8]);
        let mut count = 0u64;
        for value in values {
            value.encode(&mut self.metadata);
            count += 1;
        }
        self.metadata[at..at + 8].copy_from_slice(&count.to_le_bytes());
        self
    }

    fn begin_key(&mut self, key: &str, ty: ValueType) {
        self.keys.push(key.into());
        encode_string(key.as_bytes(), &mut self.metadata);
        self.metadata.extend(ty.id().to_le_bytes());
    }

    /// Adds a tensor; its data follow in this order. The first dimension is the contiguous one. Name and shape are checked
    /// by [`begin`](Self::begin).
    pub fn tensor(&mut self, name: &str, ty: TensorType, dims: &[u64]) -> &mut Self {
        self.tensors.push(Planned { name: name.into(), ty, dims: dims.into() });
        self
    }

    /// Writes the header to `out` and gives what takes the data. `out` is written to in pieces as they come: wrap files in
    /// a `BufWriter`.
    ///
    /// # Errors
    /// `Malformed` if version, alignment, a key, a name or a shape is not one that a file may have, or appears twice; `Io`
    /// from `out`.
    pub fn begin<W: Write>(&self, mut out: W) -> Result<TensorWriter<W>> {
        let (infos, tensors) = self.plan()?;
        let mut head = MAGIC.to_vec();
        head.extend(self.version.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.keys.len() as u64).to_le_bytes());
        let mut len = 0;
        for part in [&head, &self.metadata, &infos] {
            out.write_all(part).map_err(cannot_write)?;
            len += part.len() as u64;
        }
        let mut data = TensorWriter { out, tensors, current: 0, written: 0, alignment: self.alignment };
        if !data.tensors.is_empty() {
            data.pad(len)?;
        }
        Ok(data)
    }

    /// The encoded infos, and name and length of each tensor; everything checked.
    fn plan(&self) -> Result<(Vec<u8>, Vec<Expected>)> {
        let refuse = |why: String| Error::new(ErrorKind::Malformed, why);
        if !matches!(self.version, 2 | 3) {
            return Err(refuse(format!("cannot write version {}, only 2 and 3", self.version)));
        }
        if !is_sound_alignment(self.alignment) {
            return Err(refuse(format!(
                "alignment {}: wanted a power of two or a multiple of 8",
                self.alignment
            )));
        }
        if let Some(key) = self.keys.iter().find(|k| k.is_empty() || k.len() > u16::MAX.into()) {
            return Err(refuse(format!("key {}: wanted 1 to 65535 bytes", quote(key.as_bytes()))));
        }
        if let Some(key) = twice(self.keys.iter()) {
            return Err(refuse(format!("duplicate key {}", quote(key.as_bytes()))));
        }
        if let Some(name) = twice(self.tensors.iter().map(|t| &t.name)) {
            return Err(refuse(format!("duplicate tensor {}", quote(name.as_bytes()))));
        }
        let (mut infos, mut tensors, mut offset) = (Vec::new(), Vec::new(), 0u64);
        for tensor in &self.tensors {
            let Planned { name, ty, dims } = tensor;
            let wrong = || {
                let quoted = quote(name.as_bytes());
                refuse(format!(
                    "tensor {quoted}, {ty} {dims:?}: no name, shape and size that a file may have"
                ))
            };
            if name.is_empty() || name.len() > 64 || ty.is_removed() {
                return Err(wrong());
            }
            let len = tensor.len().ok_or_else(wrong)?;
            encode_string(name.as_bytes(), &mut infos);
            infos.extend((dims.len() as u32).to_le_bytes());
            infos.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            infos.extend(ty.id().to_le_bytes());
            infos.extend(offset.to_le_bytes());
            let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(self.alignment));
            offset = end.ok_or_else(wrong)?;
            tensors.push((name.clone(), len));
        }
        Ok((infos, tensors))
    }

    /// The length of the finished file in bytes.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), but for `Io`.
    pub fn file_len(&self) -> Result<u64> {
        let (infos, tensors) = self.plan()?;
        let header = (24 + self.metadata.len() + infos.len()) as u64;
        // `plan` has added up the same numbers; what the header adds can only matter for sizes that no disk has.
        Ok(tensors.iter().fold(header, |at, (_, len)| {
            (at.next_multiple_of(self.alignment) + len).next_multiple_of(self.alignment)
        }))
    }
}

fn twice<'a>(names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn cannot_write(error: io::Error) -> Error {
    Error::io("cannot write", error)
}

/// Name and bytes of a tensor.
type Expected = (String, u64);

/// Takes the tensors' bytes in the order of their infos, and adds the padding between them.
#[derive(Debug)]
pub struct TensorWriter<W> {
    out: W,
    tensors: Vec<Expected>,
    /// Index of the tensor that the next byte belongs to.
    current: usize,
    /// Bytes of it that are written.
    written: u64,
    alignment: u64,
}

impl<W: Write> TensorWriter<W> {
    /// The tensor that the next byte belongs to, and how many bytes of it are to come. `None` when all are written.
    pub fn expected(&self) -> Option<(&str, u64)> {
        self.tensors.get(self.current).map(|(name, len)| (name.as_str(), len - self.written))
    }

    /// Writes a whole tensor. The name guards against writing them in another order.
    ///
    /// # Errors
    /// `Malformed` if another tensor is expected or another number of bytes; `Io` from the output.
    pub fn tensor(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.expected() != Some((name, bytes.len() as u64)) {
            return Err(self.unexpected(format!(
                "{} bytes of tensor {}",
                bytes.len(),
                quote(name.as_bytes())
            )));
        }
        self.write(bytes)
    }

    /// Writes the next bytes of the expected tensor: all of it, or a piece.
    ///
    /// # Errors
    /// `Malformed` if there are more bytes than it still wants; `Io` from the output.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let n = bytes.len() as u64;
        let Some(left) = self.expected().map(|(_, left)| left).filter(|&left| n <= left) else {
            return Err(self.unexpected(format!("{n} bytes")));
        };
        self.out.write_all(bytes).map_err(cannot_write)?;
        self.written += n;
        if n == left {
            self.pad(self.written)?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Checks that all tensors are written, flushes, and gives the output back.
    ///
    /// # Errors
    /// `Malformed` if bytes are missing; `Io` from the output.
    pub fn finish(mut self) -> Result<W> {
        if self.current < self.tensors.len() {
            return Err(self.unexpected("the end".into()));
        }
        self.out.flush().map_err(cannot_write)?;
        Ok(self.out)
    }

    fn unexpected(&self, found: String) -> Error {
        let wanted = match self.expected() {
            Some((name, left)) => format!("{left} bytes of tensor {}", quote(name.as_bytes())),
            None => "the end".into(),
        };
        Error::new(ErrorKind::Malformed, format!("writing: wanted {wanted}, got {found}"))
    }

    /// Zeros from `len` to the next multiple of the alignment.
    fn pad(&mut self, len: u64) -> Result<()> {
        let zeros = len.next_multiple_of(self.alignment) - len;
        io::copy(&mut io::Read::take(io::repeat(0), zeros), &mut self.out).map_err(cannot_write)?;
        Ok(())
    }
}
