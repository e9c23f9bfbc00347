//! The weights of a model by number: which matrices there are, what a forward pass may ask of them, and the
//! small vectors that every layer keeps.

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sluice_gguf::{Gguf, TensorInfo};
use sluice_kernels::{Acts, Format, Isa, QuantRows, dequantise};
use sluice_loader::{ByteRange, FileIndex};

use crate::config::MOST;
use crate::error::{Error, Result};

/// Number of a matrix in a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// What a forward pass asks for: products with matrices that share their input. It does not say where the
/// bytes are, so the same pass runs over streamed weights, and once over a recorder to learn its order.
pub trait Weights {
    /// `ys[i]` (rows of matrix i × tokens) becomes the product of matrix `group[i]` with `x` (tokens × cols).
    ///
    /// # Errors
    /// When bytes cannot be read, or the pass was interrupted.
    ///
    /// # Panics
    /// When a shape does not fit: shapes were checked when the table was made.
    fn matmul(&mut self, group: &[WeightId], x: &mut Acts, ys: &mut [&mut [f32]]) -> Result<()>;
}

/// A matrix in the file: `rows` rows of `cols` weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Tensor name, for messages.
    pub name: String,
    /// How its rows are stored.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bytes of one row.
    pub row_bytes: usize,
    file: FileIndex,
    offset: u64,
}

impl Matrix {
    /// A matrix of `rows` × `cols` whose first row is at `offset` of file number `file`.
    ///
    /// # Panics
    /// When `cols` is no whole number of blocks; the header's check has seen to that.
    pub(crate) fn new(name: &str, format: Format, rows: usize, cols: usize, file: u16, offset: u64) -> Self {
        let row_bytes = format.row_bytes(cols).expect("whole blocks");
        Self { name: name.to_owned(), format, rows, cols, row_bytes, file: FileIndex(file), offset }
    }

    /// Where the bytes of these rows are.
    ///
    /// # Panics
    /// When `rows` goes past the end.
    pub fn bytes_of(&self, rows: Range<usize>) -> ByteRange {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.name);
        ByteRange {
            file: self.file,
            offset: self.offset + (rows.start * self.row_bytes) as u64,
            len: rows.len() * self.row_bytes,
        }
    }
}

/// All matrices of a model; a [`WeightId`] is an index into it.
#[derive(Clone, Debug, Default)]
pub struct Table {
    matrices: Vec<Matrix>,
}

impl Table {
    #[cfg(test)]
    pub(crate) fn new(matrices: Vec<Matrix>) -> Self {
        Self { matrices }
    }

    /// The matrix of this number.
    ///
    /// # Panics
    /// When the number is of another table.
    pub fn get(&self, id: WeightId) -> &Matrix {
        &self.matrices[id.0 as usize]
    }

    /// All matrices, in the order they were found.
    pub fn all(&self) -> impl Iterator<Item = (WeightId, &Matrix)> {
        self.matrices.iter().enumerate().map(|(i, m)| (WeightId(i as u32), m))
    }
}

/// Finds tensors by name, checks their shapes, and collects all that is wrong with their types, so that one
/// message can name every tensor that stands in the way.
pub(crate) struct Finder<'a> {
    gguf: &'a Gguf,
    isa: Isa,
    table: Table,
    used: HashSet<&'a str>,
    unsupported: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(gguf: &'a Gguf, isa: Isa) -> Self {
        Self {
            gguf,
            isa,
            table: Table::default(),
            used: HashSet::new(),
            unsupported: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn path(&self) -> &'a Path {
        &self.gguf.paths()[0]
    }

    /// Rows of a matrix found before.
    pub(crate) fn rows(&self, id: WeightId) -> usize {
        self.table.get(id).rows
    }

    /// True when the file has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn find(&mut self, name: &str, wanted: &str) -> Result<&'a TensorInfo> {
        let Some(info) = self.gguf.tensor(name) else {
            return Err(Error::tensor(self.path(), format!("tensor {name} is missing; wanted {wanted}")));
        };
        self.used.insert(&info.name);
        Ok(info)
    }

    /// A matrix of `rows` × `cols`; `rows` None takes what the file has.
    pub(crate) fn matrix(&mut self, name: &str, rows: Option<usize>, cols: usize) -> Result<WeightId> {
        let wanted = match rows {
            Some(rows) => format!("[{cols}, {rows}]"),
            None => format!("[{cols}, any number of rows]"),
        };
        let info = self.find(name, &wanted)?;
        let found_rows = info.rows();
        // A sparse file can claim any shape at no cost; activations, logits and the plan grow with the rows.
        if found_rows > MOST {
            return Err(Error::tensor(
                self.path(),
                format!("tensor {name} has {found_rows} rows, wanted at most {MOST}"),
            ));
        }
        if info.cols() != cols as u64 || rows.is_some_and(|r| found_rows != r as u64) || info.dims().len() > 2
        {
            return Err(Error::tensor(
                self.path(),
                format!("tensor {name} has shape {:?}, wanted {wanted}", info.dims()),
            ));
        }
        // An unsupported type is noted and the search goes on: the caller hears of all of them at once.
        let format = self.format_of(info).unwrap_or(Format::F32);
        let id = WeightId(self.table.matrices.len() as u32);
        let rows = found_rows as usize;
        let matrix = Matrix::new(name, format, rows, cols, info.file as u16, info.offset);
        self.table.matrices.push(matrix);
        Ok(id)
    }

    /// A vector of `len` values, read now and kept as f32.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let info = self.find(name, &format!("[{len}]"))?;
        if info.cols() != len as u64 || info.rows() != 1 {
            return Err(Error::tensor(
                self.path(),
                format!("tensor {name} has shape {:?}, wanted [{len}]", info.dims()),
            ));
        }
        let Some(format) = self.format_of(info) else {
            return Ok(Vec::new());
        };
        // The header's check compared the range with the file's length, so this is no more than the file holds.
        let mut bytes = vec![0; info.len as usize];
        self.gguf.files()[info.file].read_exact_at(&mut bytes, info.offset).map_err(|source| {
            Error::Machine {
                what: format!("{}: cannot read tensor {name}", self.gguf.paths()[info.file].display()),
                source,
            }
        })?;
        let mut values = vec![0.0; len];
        let row = QuantRows::new(format, len, &bytes)
            .map_err(|e| Error::tensor(self.path(), format!("tensor {name}: {e}")))?;
        dequantise(self.isa, row, &mut values);
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::tensor(
                self.path(),
                format!(
                    "tensor {name} holds the non-finite value {} at index {i}; the file is damaged",
                    values[i]
                ),
            ));
        }
        Ok(values)
    }

    /// A vector that may be absent.
    pub(crate) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// A norm's weights. All zeros is what a paused download into a preallocated file leaves.
    pub(crate) fn norm(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let values = self.vector(name, len)?;
        if values.iter().all(|v| *v == 0.0) && !values.is_empty() {
            self.warnings.push(format!("tensor {name} is all zeros; the download may be incomplete"));
        }
        Ok(values)
    }

    fn format_of(&mut self, info: &TensorInfo) -> Option<Format> {
        let format = Format::from_name(info.ty.name());
        if format.is_none() {
            self.unsupported.push(format!("{} is {}", info.name, info.ty.name()));
        }
        format
    }

    /// The finished table and the warnings.
    ///
    /// # Errors
    /// When tensors have types that cannot be computed, naming all of them; when a layer past the last, or a bias
    /// that nothing adds, is in the file: ignoring them would quietly give another model.
    pub(crate) fn finish(mut self, layers: usize) -> Result<(Table, Vec<String>)> {
        let path = self.path();
        if !self.unsupported.is_empty() {
            // A large model has hundreds of tensors; the first ones and the count say as much as all of them.
            const SHOWN: usize = 8;
            let count = self.unsupported.len();
            let mut list = self.unsupported[..count.min(SHOWN)].join(", ");
            if count > SHOWN {
                list += &format!(" and {} more", count - SHOWN);
            }
            let can = Format::ALL.map(Format::name).join(", ");
            return Err(Error::tensor(
                path,
                format!(
                    "{count} tensors have an unsupported type: {list}; wanted one of {can}: requantise the model"
                ),
            ));
        }
        let unused = self.gguf.tensors().iter().filter(|t| !self.used.contains(t.name.as_str()));
        let mut ignored = Vec::new();
        for tensor in unused {
            if let Some(layer) = layer_of(&tensor.name)
                && layer >= layers as u64
            {
                return Err(Error::tensor(
                    path,
                    format!(
                        "tensor {} belongs to layer {layer}, but block_count says there are {layers} layers",
                        tensor.name
                    ),
                ));
            }
            // What scales or shifts values in a layer belongs to an architecture that this one only resembles: without
            // it the text would be fluent and wrong.
            let in_a_layer = layer_of(&tensor.name).is_some();
            let changes_the_result = tensor.name.ends_with(".bias")
                || in_a_layer && (tensor.name.ends_with("_norm.weight") || tensor.name.ends_with(".scale"));
            if changes_the_result {
                return Err(Error::tensor(
                    path,
                    format!(
                        "tensor {} would change the result and this program does not know how: the model is of a kind \
                         that is not supported",
                        tensor.name
                    ),
                ));
            }
            ignored.push(tensor.name.as_str());
        }
        if let [first, rest @ ..] = &ignored[..] {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            self.warnings.push(format!("tensors that nothing uses: {first}{more}"));
        }
        Ok((self.table, self.warnings))
    }
}

/// `N` of a tensor called `blk.N.…`.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
