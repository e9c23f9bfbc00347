//! Asking for memory ahead of its use.

use core::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use crate::tuning::{Hint, Tuning};

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
