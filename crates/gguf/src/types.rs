//! The ggml tensor types: numbers, names and block geometry, also of those that nothing here can compute yet.

use std::fmt;

/// How the weights of a tensor are stored. A row is a whole number of blocks; a block holds [`block_len`] weights in
/// [`block_bytes`] bytes.
///
/// Names, numbers and geometry are those of ggml (`ggml_type`, and its table of type traits), to id 42. Types that ggml
/// has withdrawn are here for their names; see [`is_removed`].
///
/// [`block_len`]: Self::block_len
/// [`block_bytes`]: Self::block_bytes
/// [`is_removed`]: Self::is_removed
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)] // the names are ggml's, known as such, and say all that there is to say
#[repr(u32)]
#[non_exhaustive]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q4_2 = 4,
    Q4_3 = 5,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    Q4_0_4_4 = 31,
    Q4_0_4_8 = 32,
    Q4_0_8_8 = 33,
    TQ1_0 = 34,
    TQ2_0 = 35,
    IQ4_NL_4_4 = 36,
    IQ4_NL_4_8 = 37,
    IQ4_NL_8_8 = 38,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use TensorType::*;

/// Name, weights per block, bytes per block; the row number is the id.
///
/// The block sizes follow from the layouts: a scale is an f16 (2 bytes), a minimum another 2, n weights of b bits n·b/8
/// bytes, and the 256-weight types add their packed sub-block scales. Removed types keep the size of their last use.
const TABLE: [(TensorType, &str, u32, u32); 43] = [
    (F32, "F32", 1, 4),
    (F16, "F16", 1, 2),
    (Q4_0, "Q4_0", 32, 18),
    (Q4_1, "Q4_1", 32, 20),
    (Q4_2, "Q4_2", 16, 10),
    (Q4_3, "Q4_3", 16, 12),
    (Q5_0, "Q5_0", 32, 22),
    (Q5_1, "Q5_1", 32, 24),
    (Q8_0, "Q8_0", 32, 34),
    (Q8_1, "Q8_1", 32, 36),
    (Q2_K, "Q2_K", 256, 84),
    (Q3_K, "Q3_K", 256, 110),
    (Q4_K, "Q4_K", 256, 144),
    (Q5_K, "Q5_K", 256, 176),
    (Q6_K, "Q6_K", 256, 210),
    (Q8_K, "Q8_K", 256, 292),
    (IQ2_XXS, "IQ2_XXS", 256, 66),
    (IQ2_XS, "IQ2_XS", 256, 74),
    (IQ3_XXS, "IQ3_XXS", 256, 98),
    (IQ1_S, "IQ1_S", 256, 50),
    (IQ4_NL, "IQ4_NL", 32, 18),
    (IQ3_S, "IQ3_S", 256, 110),
    (IQ2_S, "IQ2_S", 256, 82),
    (IQ4_XS, "IQ4_XS", 256, 136),
    (I8, "I8", 1, 1),
    (I16, "I16", 1, 2),
    (I32, "I32", 1, 4),
    (I64, "I64", 1, 8),
    (F64, "F64", 1, 8),
    (IQ1_M, "IQ1_M", 256, 56),
    (BF16, "BF16", 1, 2),
    (Q4_0_4_4, "Q4_0_4_4", 32, 18),
    (Q4_0_4_8, "Q4_0_4_8", 32, 18),
    (Q4_0_8_8, "Q4_0_8_8", 32, 18),
    (TQ1_0, "TQ1_0", 256, 54),
    (TQ2_0, "TQ2_0", 256, 66),
    (IQ4_NL_4_4, "IQ4_NL_4_4", 32, 18),
    (IQ4_NL_4_8, "IQ4_NL_4_8", 32, 18),
    (IQ4_NL_8_8, "IQ4_NL_8_8", 32, 18),
    (MXFP4, "MXFP4", 32, 17),
    (NVFP4, "NVFP4", 64, 36),
    (Q1_0, "Q1_0", 128, 18),
    (Q2_0, "Q2_0", 64, 18),
];

impl TensorType {
    /// Every type, by ascending id.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type with this id, as it stands in a tensor info; `None` for one that ggml did not have when this was written.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.get(id as usize).map(|row| row.0)
    }

    /// The type of this name, exactly as [`name`](Self::name) gives it.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The id in a tensor info.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The usual name: `"Q4_K"`, `"IQ4_XS"`, `"BF16"`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Weights per block: 1 for plain numbers, 16 to 256 for quantised types.
    pub fn block_len(self) -> u64 {
        TABLE[self as usize].2.into()
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> u64 {
        TABLE[self as usize].3.into()
    }

    /// Whether ggml has withdrawn this type: files that use it are refused when they are opened, because readers never
    /// agreed on what such bytes mean (4, 5) or repack at load instead (31–33, 36–38).
    pub fn is_removed(self) -> bool {
        matches!(self, Q4_2 | Q4_3 | Q4_0_4_4 | Q4_0_4_8 | Q4_0_8_8 | IQ4_NL_4_4 | IQ4_NL_4_8 | IQ4_NL_8_8)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_of_id_and_names_are_unique() {
        for (i, ty) in TensorType::all().enumerate() {
            assert_eq!(ty.id() as usize, i);
            assert_eq!(TensorType::from_id(ty.id()), Some(ty));
            assert_eq!(TensorType::from_name(ty.name()), Some(ty));
            assert_eq!(format!("{ty:?}"), ty.name());
            assert_eq!(format!("[{ty:>10}]").len(), 12);
        }
        assert_eq!(TensorType::from_id(43), None);
        assert_eq!(TensorType::from_id(u32::MAX), None);
        assert_eq!(TensorType::from_name("q4_k"), None);
    }

    #[test]
    fn bits_per_weight_are_the_published_ones() {
        let bits = |ty: TensorType| 8.0 * ty.block_bytes() as f64 / ty.block_len() as f64;
        for (ty, want) in [
            (Q2_K, 2.625),
            (Q3_K, 3.4375),
            (Q4_K, 4.5),
            (Q5_K, 5.5),
            (Q6_K, 6.5625),
            (Q8_0, 8.5),
            (IQ1_S, 1.5625),
            (IQ1_M, 1.75),
            (IQ2_XXS, 2.0625),
            (IQ2_XS, 2.3125),
            (IQ2_S, 2.5625),
            (IQ3_XXS, 3.0625),
            (IQ3_S, 3.4375),
            (IQ4_XS, 4.25),
            (IQ4_NL, 4.5),
            (TQ1_0, 1.6875),
            (TQ2_0, 2.0625),
            (MXFP4, 4.25),
            (NVFP4, 4.5),
            (Q1_0, 1.125),
        ] {
            assert_eq!(bits(ty), want, "{ty}");
        }
    }
}
