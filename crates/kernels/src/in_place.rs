//! Blocks in place in memory: rows as the blocks that they consist of, without a copy.

use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, Head,
};
use crate::rows::QuantRows;

/// A block type that may be read in place: `repr(C)`, alignment 1, and any bytes are one.
///
/// # Safety
/// The type must be exactly that; the blocks of `blocks.rs` are, by the assertions there.
// SAFETY: asks for a promise; each implementation says why it holds.
pub(crate) unsafe trait InPlace: Head + Sized {}

// SAFETY: `blocks.rs` asserts size and alignment; the type is byte arrays only.
unsafe impl InPlace for BlockQ4_0 {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ4_1 {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ5_0 {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ5_1 {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ8_0 {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ4K {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ5K {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ6K {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ2K {}
// SAFETY: as above.
unsafe impl InPlace for BlockQ3K {}
// SAFETY: as above.
unsafe impl InPlace for BlockIq4Nl {}
// SAFETY: as above.
unsafe impl InPlace for BlockIq4Xs {}

/// All blocks of all rows, as they lie in memory.
#[inline]
pub(crate) fn blocks_of<B: InPlace>(w: QuantRows<'_>) -> &[B] {
    let count = w.bytes().len() / size_of::<B>();
    // SAFETY: `B` has alignment 1 and no invalid bytes, and `count` of them lie within the bytes.
    unsafe { core::slice::from_raw_parts(w.bytes().as_ptr().cast(), count) }
}
