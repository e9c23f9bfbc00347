//! What the ARM kernels share: loads, four sums at once, the scales of four blocks, the sums of four results.

use core::arch::aarch64::*;

use super::instructions::singles;
use crate::numbers::canonical;

/// Results side by side in a register.
pub(super) const TILE: usize = 4;

/// 16 signed bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_i8(from: &[i8; 16]) -> int8x16_t {
    // SAFETY: 16 bytes are there, at any alignment.
    unsafe { vld1q_s8(from.as_ptr()) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u8(from: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are there, at any alignment.
    unsafe { vld1q_u8(from.as_ptr()) }
}

/// 8 integers of 16 bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_i16(from: &[i16; 8]) -> int16x8_t {
    // SAFETY: 8 integers are there, at any alignment.
    unsafe { vld1q_s16(from.as_ptr()) }
}

/// 4 integers of 32 bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_i32(from: &[i32; 4]) -> int32x4_t {
    // SAFETY: 4 integers are there, at any alignment.
    unsafe { vld1q_s32(from.as_ptr()) }
}

/// 4 singles.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f32(from: &[f32; 4]) -> float32x4_t {
    // SAFETY: 4 singles are there, at any alignment.
    unsafe { vld1q_f32(from.as_ptr()) }
}

/// 4 singles to memory.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn stored(v: float32x4_t) -> [f32; 4] {
    let mut out = [0.0; 4];
    // SAFETY: the array has room for 4 singles.
    unsafe { vst1q_f32(out.as_mut_ptr(), v) };
    out
}

/// Lane `i` is the sum of the lanes of `v[i]`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn sum_each(v: [int32x4_t; TILE]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// The scale and, if there is one, the minimum of each of four blocks: the halves in the heads, lower and upper.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn scales_of_four(heads: [u32; TILE], has_min: bool) -> (float32x4_t, float32x4_t) {
    if has_min {
        // SAFETY: 4 integers are there, at any alignment.
        let heads = unsafe { vld1q_u32(heads.as_ptr()) };
        (singles(vmovn_u32(heads)), singles(vshrn_n_u32::<16>(heads)))
    } else {
        let heads = heads.map(|head| head as u16);
        // SAFETY: 4 integers are there, at any alignment.
        (singles(unsafe { vld1_u16(heads.as_ptr()) }), vdupq_n_f32(0.0))
    }
}

/// What four results have gathered so far: `acc` and `accm` of `scalar`.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    acc: float32x4_t,
    accm: float32x4_t,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn new() -> Self {
        Self { acc: vdupq_n_f32(0.0), accm: vdupq_n_f32(0.0) }
    }

    /// Adds d·dx·S of a block to each lane.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn add(&mut self, d: float32x4_t, dx: float32x4_t, s: int32x4_t) {
        self.acc = vfmaq_f32(self.acc, vmulq_f32(d, dx), vcvtq_f32_s32(s));
    }

    /// Adds dmin·dx·M of a block to what comes off each lane.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn add_min(&mut self, dmin: float32x4_t, dx: float32x4_t, m: int32x4_t) {
        self.accm = vfmaq_f32(self.accm, vmulq_f32(dmin, dx), vcvtq_f32_s32(m));
    }

    /// The results; every NaN becomes the same one.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn results(self) -> [f32; TILE] {
        let mut out = stored(vsubq_f32(self.acc, self.accm));
        for value in &mut out {
            *value = canonical(*value);
        }
        out
    }
}
