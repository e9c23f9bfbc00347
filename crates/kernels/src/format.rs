//! The formats that can be computed, their block geometry, and the error for bytes that do not fit it.

use core::fmt;

use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};

/// How the weights of a row are stored. The names are those of the GGUF tensor types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names people know from file names; Q4K would be a different word
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 4 bits, one scale per 32.
    Q4_0,
    /// 4 bits, one scale and one minimum per 32.
    Q4_1,
    /// 5 bits, one scale per 32.
    Q5_0,
    /// 5 bits, one scale and one minimum per 32.
    Q5_1,
    /// 8 bits, one scale per 32.
    Q8_0,
    /// 2 bits in blocks of 256, with a 4-bit scale and minimum per 16.
    Q2_K,
    /// 3 bits in blocks of 256, with a 6-bit scale per 16.
    Q3_K,
    /// 4 bits in blocks of 256, with a 6-bit scale and minimum per 32.
    Q4_K,
    /// 5 bits in blocks of 256, with a 6-bit scale and minimum per 32.
    Q5_K,
    /// 6 bits in blocks of 256, with an 8-bit scale per 16.
    Q6_K,
    /// 4 bits that choose among 16 values, one scale per 32.
    IQ4_NL,
    /// 4 bits that choose among 16 values, in blocks of 256 with a 6-bit scale per 32.
    IQ4_XS,
}

impl Format {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// The GGUF name of the tensor type, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
        }
    }

    /// The format with this GGUF name (upper case, as [`Format::name`] gives it), if it can be computed.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Weights per block; 1 for the formats without blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => size_of::<BlockQ4_0>(),
            Self::Q4_1 => size_of::<BlockQ4_1>(),
            Self::Q5_0 => size_of::<BlockQ5_0>(),
            Self::Q5_1 => size_of::<BlockQ5_1>(),
            Self::Q8_0 => size_of::<BlockQ8_0>(),
            Self::Q2_K => size_of::<BlockQ2K>(),
            Self::Q3_K => size_of::<BlockQ3K>(),
            Self::Q4_K => size_of::<BlockQ4K>(),
            Self::Q5_K => size_of::<BlockQ5K>(),
            Self::Q6_K => size_of::<BlockQ6K>(),
            Self::IQ4_NL => size_of::<BlockIq4Nl>(),
            Self::IQ4_XS => size_of::<BlockIq4Xs>(),
        }
    }

    /// Bytes of one row of `cols` weights.
    ///
    /// # Errors
    /// When `cols` is 0 or not a whole number of blocks, or the size does not fit a `usize`.
    pub fn row_bytes(self, cols: usize) -> Result<usize, ShapeError> {
        if cols == 0 || !cols.is_multiple_of(self.block_len()) {
            return Err(ShapeError::Cols { format: self, cols });
        }
        (cols / self.block_len())
            .checked_mul(self.block_bytes())
            .ok_or(ShapeError::Cols { format: self, cols })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Columns or bytes that do not fit a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeError {
    /// A row cannot have this many columns.
    Cols {
        /// The format asked for.
        format: Format,
        /// The number of columns that does not fit it.
        cols: usize,
    },
    /// The bytes are not a whole number of rows.
    Bytes {
        /// The format asked for.
        format: Format,
        /// Columns per row.
        cols: usize,
        /// Bytes that one row takes.
        row_bytes: usize,
        /// Bytes that were given.
        bytes: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cols { format, cols } => write!(
                f,
                "a row of {format} must have a positive multiple of {} columns, found {cols}; \
                 the tensor's shape and type do not go together",
                format.block_len()
            ),
            Self::Bytes { format, cols, row_bytes, bytes } => write!(
                f,
                "rows of {cols} columns of {format} take {row_bytes} bytes each, found {bytes} bytes, \
                 which is not a whole number of rows"
            ),
        }
    }
}

impl core::error::Error for ShapeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_round() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
        }
        assert_eq!(Format::from_name("q4_k"), None);
        assert_eq!(Format::from_name("IQ1_S"), None);
    }

    #[test]
    fn geometry_is_that_of_the_file_format() {
        let bytes: Vec<usize> = Format::ALL.iter().map(|f| f.block_bytes()).collect();
        assert_eq!(bytes, [4, 2, 2, 18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 18, 136]);
        let len: Vec<usize> = Format::ALL.iter().map(|f| f.block_len()).collect();
        assert_eq!(len, [1, 1, 1, 32, 32, 32, 32, 32, 256, 256, 256, 256, 256, 32, 256]);
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        assert_eq!(Format::Q4_K.row_bytes(512), Ok(288));
        for (format, cols) in
            [(Format::Q4_K, 576), (Format::Q8_0, 33), (Format::F32, 0), (Format::F32, usize::MAX)]
        {
            assert_eq!(format.row_bytes(cols), Err(ShapeError::Cols { format, cols }));
        }
        let text = Format::Q4_K.row_bytes(576).unwrap_err().to_string();
        assert!(text.contains("Q4_K") && text.contains("256") && text.contains("576"), "{text}");
    }
}
