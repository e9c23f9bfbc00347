//! Sixteen singles in four registers.
//!
//! Every function is inlined into code that is compiled with the level's features, and a value can only be made with the
//! proof that the CPU has them.

use core::arch::aarch64::*;

use super::Neon;
use crate::numbers::{LANES, NAN};
use crate::wide::Lanes;

/// Four registers of four.
#[derive(Clone, Copy)]
pub(super) struct Lanes4([float32x4_t; 4]);

impl Lanes for Lanes4 {
    type Proof = Neon;

    #[inline(always)]
    fn splat(_proof: Neon, value: f32) -> Self {
        // SAFETY: the proof says that the CPU has NEON.
        Self(unsafe { [vdupq_n_f32(value); 4] })
    }

    #[inline(always)]
    fn load(_proof: Neon, from: &[f32; LANES]) -> Self {
        let from = from.as_ptr();
        // SAFETY: as in `splat`; there are 16 singles, and any alignment will do.
        Self(unsafe {
            [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
        })
    }

    #[inline(always)]
    fn fma(mut self, a: Self, b: Self) -> Self {
        for i in 0..4 {
            // SAFETY: `self` was made with the proof that the CPU has NEON.
            self.0[i] = unsafe { vfmaq_f32(self.0[i], a.0[i], b.0[i]) };
        }
        self
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for i in 0..4 {
            // SAFETY: as in `fma`.
            self.0[i] = unsafe { vaddq_f32(self.0[i], other.0[i]) };
        }
        self
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        for (v, to) in self.0.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: as in `fma`; there is room for 4 singles, and any alignment will do.
            unsafe { vst1q_f32(to.as_mut_ptr(), vbslq_f32(vceqq_f32(v, v), v, vdupq_n_f32(NAN))) };
        }
    }
}
