//! Tensor infos: read, then checked against each other and against the length of the file.

use crate::error::{Error, ErrorKind, Result, quote};
use crate::limits::Limits;
use crate::read::Cursor;
use crate::types::TensorType;

/// One tensor: what it is, and where its bytes are.
///
/// The first dimension is the contiguous one: a tensor of dimensions `[cols, rows]` is `rows` rows of `cols` weights,
/// each row whole blocks, one row after the other without gaps. `offset .. offset + len` lies inside the file and shares
/// no byte with another tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique over all shards.
    pub name: String,
    /// How the weights are stored.
    pub ty: TensorType,
    /// Index into [`Gguf::paths`](crate::Gguf::paths) of the file that holds the bytes.
    pub file: usize,
    /// Of the first byte, absolute in its file. Aligned to the file's alignment relative to the data's start only.
    pub offset: u64,
    /// In bytes: `rows() * row_bytes()`.
    pub len: u64,
    dims: [u64; 4],
    n_dims: u8,
}

impl TensorInfo {
    /// One to four dimensions, none of them 0, the contiguous one first.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.n_dims.into()]
    }

    /// Weights in a row: the first dimension.
    pub fn cols(&self) -> u64 {
        self.dims[0]
    }

    /// Rows: the product of the other dimensions, 1 for a vector.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes in a row.
    pub fn row_bytes(&self) -> u64 {
        self.cols() / self.ty.block_len() * self.ty.block_bytes()
    }
}

/// An info as it stands in the file: the type may be unknown, the offset counts from the start of the data.
pub(crate) struct RawInfo {
    name: String,
    type_id: u32,
    dims: [u64; 4],
    n_dims: u8,
    offset: u64,
}

impl RawInfo {
    /// Reads info `i` of `count`.
    pub fn read(cursor: &mut Cursor<'_>, i: u64, count: u64, limits: &Limits) -> Result<Self> {
        let at = cursor.pos();
        let malformed = |why: String| Error::new(ErrorKind::Malformed, why).at(at);
        let len = cursor.u64(format_args!("name length of tensor {i} of {count}"))?;
        cursor.want(len, format_args!("name length of tensor {i} of {count}"))?;
        if len == 0 {
            return Err(malformed(format!("tensor name {i} of {count} is empty; the file is damaged")));
        }
        if len > limits.name_bytes {
            let max = limits.name_bytes;
            let start = cursor.take(len.min(max) as usize, format_args!("tensor name"))?;
            let start = quote(start);
            let why = format!(
                "tensor name {i} of {count} is too long: length {len} bytes, at most {max}; begins {start}"
            );
            return Err(malformed(why));
        }
        let bytes = cursor.take(len as usize, format_args!("name of tensor {i} of {count}"))?;
        let quoted = quote(bytes);
        let name = str::from_utf8(bytes)
            .map_err(|_| {
                malformed(format!("tensor name {quoted} ({i} of {count}) is not UTF-8; the file is damaged"))
            })?
            .to_owned();

        let n_dims = cursor.u32(format_args!("dimensions of tensor {quoted}"))?;
        if !(1..=4).contains(&n_dims) {
            return Err(malformed(format!(
                "tensor {quoted}: {n_dims} dimensions, wanted 1 to 4; the file is damaged"
            )));
        }
        let mut dims = [1; 4];
        for dim in &mut dims[..n_dims as usize] {
            *dim = cursor.u64(format_args!("dimensions of tensor {quoted}"))?;
        }
        let type_id = cursor.u32(format_args!("type of tensor {quoted}"))?;
        let offset = cursor.u64(format_args!("offset of tensor {quoted}"))?;
        Ok(Self { name, type_id, dims, n_dims: n_dims as u8, offset })
    }

    /// The name, for messages.
    pub fn quoted_name(&self) -> String {
        quote(self.name.as_bytes())
    }

    /// Whether this can be the info of a tensor. Bytes of weights or padding practically never are: an info has a short
    /// text behind a 64-bit length, a known type and an aligned offset.
    pub fn is_plausible(&self, alignment: u64) -> bool {
        let printable = self.name.bytes().all(|b| b.is_ascii_graphic());
        let sized = self.dims.iter().all(|&dim| dim != 0 && i64::try_from(dim).is_ok());
        let typed = TensorType::from_id(self.type_id).is_some();
        printable && sized && typed && self.offset.is_multiple_of(alignment)
    }
}

/// How a file's data section lies.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    /// Its first byte, aligned.
    pub start: u64,
    pub alignment: u64,
    pub file_len: u64,
}

/// Turns infos into tensors, or says what is wrong with them.
pub(crate) fn check(raw: Vec<RawInfo>, data: Data) -> Result<Vec<TensorInfo>> {
    refuse_types(&raw)?;
    let tensors = raw.into_iter().map(|info| measure(info, data)).collect::<Result<Vec<_>>>()?;
    if let Err((a, b)) = by_name(&tensors) {
        let why =
            format!("duplicate tensor {} (infos {a} and {b}); convert the model again", name(&tensors[a]));
        return Err(Error::new(ErrorKind::Malformed, why));
    }
    check_ranges(&tensors, data)?;
    Ok(tensors)
}

/// How many tensors one error line names: enough to see the pattern.
const NAMED: usize = 16;

/// Names all tensors of types that nobody can read any more or that are not known, in one error.
fn refuse_types(raw: &[RawInfo]) -> Result<()> {
    let known = |info: &RawInfo| TensorType::from_id(info.type_id).filter(|ty| !ty.is_removed());
    let bad: Vec<&RawInfo> = raw.iter().filter(|info| known(info).is_none()).collect();
    if bad.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = bad
        .iter()
        .take(NAMED)
        .map(|info| {
            let what =
                TensorType::from_id(info.type_id).map_or("unknown".into(), |ty| format!("{ty}, removed"));
            format!("{} (type {}: {what})", quote(info.name.as_bytes()), info.type_id)
        })
        .collect();
    let more = if bad.len() > NAMED { format!(" and {} more", bad.len() - NAMED) } else { String::new() };
    let why = format!(
        "unsupported tensor type: {}{more}; removed types are no longer read anywhere and unknown ones belong to newer or \
         private formats: requantise the model to a common type such as Q4_K or Q8_0",
        list.join(", ")
    );
    Err(Error::new(ErrorKind::Unsupported, why))
}

/// The size and absolute place of one tensor of a known type, all arithmetic checked.
fn measure(info: RawInfo, data: Data) -> Result<TensorInfo> {
    let quoted = quote(info.name.as_bytes());
    let malformed = |why: String| Error::new(ErrorKind::Malformed, format!("tensor {quoted}: {why}"));
    // `refuse_types` has seen it.
    let ty = TensorType::from_id(info.type_id)
        .ok_or_else(|| malformed(format!("unknown type {}", info.type_id)))?;
    let dims = &info.dims[..info.n_dims.into()];
    if let Some(dim) = dims.iter().find(|&&d| d == 0 || i64::try_from(d).is_err()) {
        let hint =
            if *dim == 0 { "a weight cannot be empty" } else { "an overflow, negative as a signed number" };
        return Err(malformed(format!(
            "dimension {dim} in {dims:?}: {hint}; wanted 1 to 2^63-1, so the file is damaged"
        )));
    }
    let block = ty.block_len();
    if !dims[0].is_multiple_of(block) {
        return Err(malformed(format!(
            "rows of {} weights, which is not a multiple of the {ty} block size {block}; requantise to a type that fits",
            dims[0]
        )));
    }
    let len = dims[1..]
        .iter()
        .try_fold(dims[0] / block, |n, &dim| n.checked_mul(dim))
        .and_then(|blocks| blocks.checked_mul(ty.block_bytes()))
        .ok_or_else(|| {
            malformed(format!("dimensions {dims:?} of {ty} overflow a 64-bit size; the file is damaged"))
        })?;
    if !info.offset.is_multiple_of(data.alignment) {
        return Err(malformed(format!(
            "offset {} is not aligned: wanted a multiple of {} (general.alignment); write the file anew",
            info.offset, data.alignment
        )));
    }
    let offset =
        data.start.checked_add(info.offset).filter(|start| start.checked_add(len).is_some()).ok_or_else(
            || {
                malformed(format!(
                    "offset {} + {len} bytes overflows, past the end of file; the file is damaged",
                    info.offset
                ))
            },
        )?;
    Ok(TensorInfo { name: info.name, ty, file: 0, offset, len, dims: info.dims, n_dims: info.n_dims })
}

/// Every range inside the file, and no two ranges share a byte.
fn check_ranges(tensors: &[TensorInfo], data: Data) -> Result<()> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&i| tensors[i as usize].offset);
    let sorted = || order.iter().map(|&i| &tensors[i as usize]);
    let overlap = sorted().zip(sorted().skip(1)).find(|(a, b)| a.offset + a.len > b.offset);

    let outside = |t: &&TensorInfo| t.offset + t.len > data.file_len;
    if let Some(first) = sorted().find(outside) {
        let needed = tensors.iter().map(|t| t.offset + t.len).max().unwrap_or(0);
        // An interrupted download is a good file with its tail missing: tensors back to back, and nothing else wrong. A
        // wild offset leaves a hole instead, a wild shape an overlap.
        let padded = |t: &TensorInfo| t.len.checked_next_multiple_of(data.alignment).unwrap_or(t.len);
        let back_to_back = tensors.iter().fold(data.start, |end, t| end.saturating_add(padded(t)));
        let (kind, verdict, advice) = if overlap.is_none() && back_to_back >= needed {
            (ErrorKind::Truncated, "incomplete (truncated)", "download it again")
        } else {
            (ErrorKind::Malformed, "damaged", "download it again, or convert the model again")
        };
        let why = format!(
            "tensor {}: bytes {} to {} are past the end of file; the file is {verdict}: {} of {} tensors lie \
             outside, {} bytes present, {needed} needed; {advice}",
            name(first),
            first.offset,
            first.offset + first.len,
            sorted().filter(outside).count(),
            tensors.len(),
            data.file_len,
        );
        return Err(Error::new(kind, why));
    }
    if let Some((a, b)) = overlap {
        let why = format!(
            "tensors {} (bytes {} to {}) and {} (from {}) overlap; the file is damaged, convert the model again",
            name(a),
            a.offset,
            a.offset + a.len,
            name(b),
            b.offset
        );
        return Err(Error::new(ErrorKind::Malformed, why));
    }
    Ok(())
}

pub(crate) fn name(tensor: &TensorInfo) -> String {
    quote(tensor.name.as_bytes())
}

/// Indices of `tensors` by ascending name, or the first two that share one.
pub(crate) fn by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>, (usize, usize)> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
    match order.windows(2).find(|w| tensors[w[0] as usize].name == tensors[w[1] as usize].name) {
        Some(w) => Err((w[0].min(w[1]) as usize, w[0].max(w[1]) as usize)),
        None => Ok(order),
    }
}
