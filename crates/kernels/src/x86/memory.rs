//! Blocks in place in memory, and asking for memory ahead of its use.

use core::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::rows::QuantRows;
use crate::tuning::{Hint, Tuning};

/// A block type that may be read in place: `repr(C)`, alignment 1, and any bytes are one.
///
/// # Safety
/// The type must be exactly that; the blocks of `blocks.rs` are, by the assertions there.
// SAFETY: asks for a promise; each implementation says why it holds.
pub(super) unsafe trait InPlace: Sized {}

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
pub(super) fn blocks_of<B: InPlace>(w: QuantRows<'_>) -> &[B] {
    let count = w.bytes().len() / size_of::<B>();
    // SAFETY: `B` has alignment 1 and no invalid bytes, and `count` of them lie within the bytes.
    unsafe { core::slice::from_raw_parts(w.bytes().as_ptr().cast(), count) }
}

/// Bytes of a line of cache.
const LINE: usize = 64;

/// How the blocks behind those in use are asked for; see [`Tuning`](crate::Tuning).
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    hint: Hint,
    /// How much further the first of two requests lies, where there are two.
    earlier: Option<usize>,
}

impl Prefetch {
    pub(super) fn new(tuning: Tuning) -> Self {
        Self { hint: tuning.hint, earlier: tuning.twice.then_some(tuning.distance) }
    }

    /// Asks for `N` blocks from `at` on. Where that is no memory of ours, nothing happens.
    #[inline(always)]
    pub(super) fn once<B, const N: usize>(self, at: *const B) {
        match self.hint {
            Hint::Nta => lines::<B, N, _MM_HINT_NTA>(at),
            Hint::T0 => lines::<B, N, _MM_HINT_T0>(at),
            Hint::T1 => lines::<B, N, _MM_HINT_T1>(at),
            Hint::None => {}
        }
    }

    /// As [`Prefetch::once`], or twice where the CPU gains from it: what lies so much further is asked for too, and again when
    /// it is its turn. A core drops requests beyond what it can have on its way, and what level 1 gave up meanwhile comes from
    /// nearer the second time.
    #[inline(always)]
    pub(super) fn blocks<B, const N: usize>(self, at: *const B) {
        if let Some(earlier) = self.earlier {
            self.once::<B, N>(at.wrapping_byte_add(earlier));
        }
        self.once::<B, N>(at);
    }
}

/// Asks for the lines of `N` blocks.
#[inline(always)]
fn lines<B, const N: usize, const HINT: i32>(at: *const B) {
    for line in (0..N * size_of::<B>()).step_by(LINE) {
        let line = at.cast::<i8>().wrapping_add(line);
        #[allow(unused_unsafe)]
        // the intrinsic is unsafe in the oldest compiler that we support, safe in later ones
        // SAFETY: a prefetch reads nothing that the program could see and never faults, whatever the address.
        unsafe {
            _mm_prefetch::<HINT>(line)
        };
    }
}
