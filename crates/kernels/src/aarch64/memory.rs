//! Blocks in place in memory.
//!
//! Nothing is asked for ahead of its use: rows are walked in order, which these CPUs see by themselves, and what asking early gains
//! has to be measured on one.

use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::rows::QuantRows;

/// A block type that may be read in place: `repr(C)`, alignment 1, and any bytes are one.
///
/// # Safety
/// The type must be exactly that; the blocks of `blocks.rs` are, by the assertions there.
// SAFETY: asks for a promise; each implementation says why it holds.
pub(super) unsafe trait InPlace: Sized {}

macro_rules! in_place {
    ($($block:ty),*) => {
        $(
            // SAFETY: `blocks.rs` asserts size and alignment; the type is byte arrays only.
            unsafe impl InPlace for $block {}
        )*
    };
}

in_place!(BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockIq4Nl);
in_place!(BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockIq4Xs);

/// All blocks of all rows, as they lie in memory.
#[inline]
pub(super) fn blocks_of<B: InPlace>(w: QuantRows<'_>) -> &[B] {
    let count = w.bytes().len() / size_of::<B>();
    // SAFETY: `B` has alignment 1 and no invalid bytes, and `count` of them lie within the bytes.
    unsafe { core::slice::from_raw_parts(w.bytes().as_ptr().cast(), count) }
}
