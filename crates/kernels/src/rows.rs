//! Rows of quantised weights: a borrowed run of bytes whose shape has been checked once.

use core::ops::Range;

use crate::format::{Format, ShapeError};

/// `rows × cols` weights in one format, row after row without gaps, at any address (alignment 1).
///
/// Format, columns and bytes travel together, so a kernel never has to trust a length given apart from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct QuantRows<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8], // rows × row_bytes
}

impl<'a> QuantRows<'a> {
    /// Takes `bytes` as rows of `cols` weights; no bytes are no rows.
    ///
    /// # Errors
    /// When `cols` does not fit the format or `bytes` is not a whole number of rows.
    pub fn new(format: Format, cols: usize, bytes: &'a [u8]) -> Result<Self, ShapeError> {
        let row_bytes = format.row_bytes(cols)?;
        if !bytes.len().is_multiple_of(row_bytes) {
            return Err(ShapeError::Bytes { format, cols, row_bytes, bytes: bytes.len() });
        }
        Ok(Self { format, rows: bytes.len() / row_bytes, cols, row_bytes, bytes })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the weights are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The bytes of all rows.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The rows `range`, counted from 0.
    ///
    /// # Panics
    /// When the range does not lie within `0..rows()`.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of a matrix of {} rows",
            self.rows
        );
        let bytes = &self.bytes[range.start * self.row_bytes..range.end * self.row_bytes];
        Self { rows: range.len(), bytes, ..*self }
    }

    /// The bytes of one row.
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_only() {
        let bytes = [0; 72];
        let w = QuantRows::new(Format::Q4_0, 64, &bytes).unwrap();
        assert_eq!((w.rows(), w.cols(), w.row_bytes()), (2, 64, 36));
        assert_eq!(w.slice(1..2).bytes().as_ptr(), bytes[36..].as_ptr());
        assert_eq!(w.slice(2..2).rows(), 0);
        assert_eq!(QuantRows::new(Format::Q4_0, 64, &[]).unwrap().rows(), 0);
        let error = QuantRows::new(Format::Q4_0, 64, &bytes[1..]).unwrap_err();
        assert_eq!(error, ShapeError::Bytes { format: Format::Q4_0, cols: 64, row_bytes: 36, bytes: 71 });
        assert!(QuantRows::new(Format::Q4_0, 33, &bytes).is_err());
    }

    #[test]
    #[should_panic(expected = "of a matrix of 2 rows")]
    fn slicing_past_the_end_is_a_bug() {
        let bytes = [0; 8];
        let _ = QuantRows::new(Format::F32, 1, &bytes).unwrap().slice(1..3);
    }
}
