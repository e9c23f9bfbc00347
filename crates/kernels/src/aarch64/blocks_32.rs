//! The formats with 32 weights per block, unpacked to bytes: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL.
//!
//! Weights may lie off the real ones by `OFFSET`, wherever that spares instructions: one token takes it off through the sum of its
//! activations, Σ(q − o)·a = Σq·a − o·Σa, and panels take it off when they unpack.

use core::arch::aarch64::*;

use super::lanes::{load_i8, load_u8};
use crate::blocks::{BlockIq4Nl, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, IQ4};
use crate::in_place::InPlace;

/// A block of 32 weights, unpacked with NEON.
pub(super) trait Block32: InPlace {
    /// What unpacked weights lie above the real ones.
    const OFFSET: i8;
    /// Whether a minimum lies behind the scale.
    const HAS_MIN: bool;
    /// The weights in order, `OFFSET` too large.
    ///
    /// # Safety
    /// The CPU must have NEON.
    unsafe fn weights(&self) -> [int8x16_t; 2];
}

/// The low nibbles of 16 bytes, then the high ones.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn nibbles(qs: &[u8; 16]) -> [int8x16_t; 2] {
    let qs = load_u8(qs);
    [vreinterpretq_s8_u8(vandq_u8(qs, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8::<4>(qs))]
}

/// Nibbles with the fifth bits of `qh`, less 16: where the bit is not set, the four bits above the nibble are.
#[inline]
#[target_feature(enable = "neon")]
fn five_bits(qs: &[u8; 16], qh: &[u8; 4]) -> [int8x16_t; 2] {
    // Byte i/8 to every byte i, then the bit of its own in each.
    let clear = vreinterpretq_u8_u32(vdupq_n_u32(!u32::from_le_bytes(*qh)));
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let first = load_u8(&const { [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1] });
    let second = load_u8(&const { [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3] });
    let low_clear = vtstq_u8(vqtbl1q_u8(clear, first), bit);
    let high_clear = vtstq_u8(vqtbl1q_u8(clear, second), bit);
    let qs = load_u8(qs);
    [
        vreinterpretq_s8_u8(vsliq_n_u8::<4>(qs, low_clear)),
        vreinterpretq_s8_u8(vsliq_n_u8::<4>(vshrq_n_u8::<4>(qs), high_clear)),
    ]
}

/// The values that nibbles stand for in IQ4_NL and IQ4_XS.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn non_linear(nibbles: [int8x16_t; 2]) -> [int8x16_t; 2] {
    let table = load_i8(&IQ4);
    [vqtbl1q_s8(table, vreinterpretq_u8_s8(nibbles[0])), vqtbl1q_s8(table, vreinterpretq_u8_s8(nibbles[1]))]
}

impl Block32 for BlockQ4_0 {
    const OFFSET: i8 = 8;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        nibbles(&self.qs)
    }
}

impl Block32 for BlockQ4_1 {
    const OFFSET: i8 = 0;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        nibbles(&self.qs)
    }
}

impl Block32 for BlockQ5_0 {
    const OFFSET: i8 = 0;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        five_bits(&self.qs, &self.qh)
    }
}

impl Block32 for BlockQ5_1 {
    const OFFSET: i8 = -16;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        five_bits(&self.qs, &self.qh)
    }
}

impl Block32 for BlockQ8_0 {
    const OFFSET: i8 = 0;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        let halves = self.qs.as_chunks().0;
        [vreinterpretq_s8_u8(load_u8(&halves[0])), vreinterpretq_s8_u8(load_u8(&halves[1]))]
    }
}

impl Block32 for BlockIq4Nl {
    const OFFSET: i8 = 0;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 2] {
        non_linear(nibbles(&self.qs))
    }
}
