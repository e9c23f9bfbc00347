//! One model: a file, or all the shards of a set, opened together.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::arrays::{Floats, Ints, Scalars, Strings};
use crate::error::{Error, ErrorKind, Result};
use crate::header::{Header, open_file};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::split;
use crate::tensor::{self, TensorInfo};
use crate::value::{ArrayInfo, Value};

/// An opened model. Metadata are those of the first file, which is the only one of a set that has any to speak of.
///
/// The files stay open: arrays are read from them, and a file that is replaced on disk meanwhile does no harm.
#[derive(Debug)]
pub struct Gguf {
    paths: Vec<PathBuf>,
    files: Vec<File>,
    first: Header,
    tensors: Vec<TensorInfo>,
    by_name: Vec<u32>,
    file_bytes: u64,
}

impl Gguf {
    /// Opens `path`, and with it the other shards if it is the first of a set, within the default [`Limits`].
    ///
    /// # Errors
    /// As [`Header::parse`], for each file; `Missing` where a shard is not there; `Malformed` where the shards do not
    /// belong together, or `path` is not the first of them.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// As [`open`](Self::open), within other limits.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, limits: &Limits) -> Result<Self> {
        let (file, mut first) = open_file(path, limits)?;
        let mut tensors = std::mem::take(&mut first.tensors);
        let mut model = Self {
            paths: vec![path.into()],
            files: vec![file],
            file_bytes: first.file_len(),
            tensors: vec![],
            by_name: vec![],
            first,
        };
        if let Some(set) = split::first_of(path, &model.first.metadata, limits)? {
            for no in 1..set.count {
                let (path, file, header) = set.open_shard(no, limits)?;
                model.file_bytes = model.file_bytes.saturating_add(header.file_len());
                model.paths.push(path);
                model.files.push(file);
                tensors.extend(header.tensors.into_iter().map(|mut tensor| {
                    tensor.file = no as usize;
                    tensor
                }));
            }
            set.check_total(tensors.len())?;
        }
        model.by_name = tensor::by_name(&tensors).map_err(|(a, b)| {
            let (a, b) = (&tensors[a], &tensors[b]);
            let other = crate::escape(model.paths[a.file].as_os_str().as_encoded_bytes()).to_string();
            let why = format!("duplicate tensor {}: shard {other} has it too", tensor::name(b));
            Error::new(ErrorKind::Malformed, why).in_file(Some(&model.paths[b.file]))
        })?;
        model.tensors = tensors;
        Ok(model)
    }

    /// The files, by [`TensorInfo::file`]: the path given first, then the other shards in order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The opened files, in the order of [`paths`](Self::paths).
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Format version of the first file: 2 or 3.
    pub fn version(&self) -> u32 {
        self.first.version()
    }

    /// Alignment of tensor offsets in the first file, in bytes. Every file has its own; offsets in [`TensorInfo`] are
    /// absolute, so nobody needs it to find a tensor.
    pub fn alignment(&self) -> u64 {
        self.first.alignment()
    }

    /// Tensors of all files, file by file in the order of their infos (which need not be that of their bytes).
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found =
            self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    /// All of the metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.first.metadata
    }

    /// Keys and values, in file order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata().iter()
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata().get(key)
    }

    /// As [`Metadata::uint`].
    ///
    /// # Errors
    /// `WrongType` if the value is negative or no integer.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.metadata().uint(key)
    }

    /// As [`Metadata::int`].
    ///
    /// # Errors
    /// `WrongType` if the value is over `i64::MAX` or no integer.
    pub fn int(&self, key: &str) -> Result<Option<i64>> {
        self.metadata().int(key)
    }

    /// As [`Metadata::float`].
    ///
    /// # Errors
    /// `WrongType` if the value is no number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.metadata().float(key)
    }

    /// As [`Metadata::bool`].
    ///
    /// # Errors
    /// `WrongType` if the value is not a bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.metadata().bool(key)
    }

    /// As [`Metadata::str`].
    ///
    /// # Errors
    /// `WrongType` if the value is no string.
    pub fn str(&self, key: &str) -> Result<Option<Cow<'_, str>>> {
        self.metadata().str(key)
    }

    /// As [`Metadata::array`].
    ///
    /// # Errors
    /// `WrongType` if the value is no array.
    pub fn array(&self, key: &str) -> Result<Option<ArrayInfo>> {
        self.metadata().array(key)
    }

    /// Streams an array of strings from the file. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>> {
        self.first.strings(&self.files[0], key)
    }

    /// Streams an array of numbers or bools from the file, as they stand there. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no such array.
    pub fn scalars(&self, key: &str) -> Result<Option<Scalars<'_>>> {
        self.first.scalars(&self.files[0], key)
    }

    /// Streams an array of integers of any width from the file. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of integers.
    pub fn ints(&self, key: &str) -> Result<Option<Ints<'_>>> {
        self.first.ints(&self.files[0], key)
    }

    /// Streams an array of numbers from the file. `None` if the key is absent.
    ///
    /// # Errors
    /// `WrongType` if the value is no array of numbers.
    pub fn floats(&self, key: &str) -> Result<Option<Floats<'_>>> {
        self.first.floats(&self.files[0], key)
    }
}
