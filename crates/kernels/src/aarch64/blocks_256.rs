//! The formats with 256 weights per block, unpacked to bytes: Q2_K to Q6_K and IQ4_XS.
//!
//! High bits are inserted above low ones (`sli`, `sri`, `bsl`), signs included, so that weights come out signed and nothing has to be
//! taken off or masked. Only Q5_K is left 16 below the real weights: it has minima, and with them the sums that put this right.

use core::arch::aarch64::*;

use super::blocks_32::{nibbles, non_linear};
use super::lanes::{load_i16, load_u8};
use crate::blocks::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};
use crate::in_place::InPlace;

/// A block of 256 weights, unpacked with NEON.
pub(super) trait Block256: InPlace {
    /// Whether there is a scale (and a minimum) for each 16 weights, and not for each 32.
    const PER_16: bool;
    /// Whether there are minima.
    const HAS_MIN: bool;
    /// What unpacked weights lie above the real ones; 0 without minima.
    const OFFSET: i8 = 0;
    /// The weights in order, `OFFSET` too large.
    ///
    /// # Safety
    /// The CPU must have NEON.
    unsafe fn weights(&self) -> [int8x16_t; 16];
    /// The scales: sixteen, or eight and something above them.
    ///
    /// # Safety
    /// The CPU must have NEON.
    unsafe fn scales(&self) -> int8x16_t;
    /// The minima, likewise; 0 without.
    ///
    /// # Safety
    /// The CPU must have NEON.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mins(&self) -> int8x16_t {
        vdupq_n_s8(0)
    }
}

/// No weights yet.
#[inline]
#[target_feature(enable = "neon")]
fn none() -> [int8x16_t; 16] {
    [vdupq_n_s8(0); 16]
}

/// 16 bytes of an array.
#[inline]
#[target_feature(enable = "neon")]
fn part<const N: usize>(bytes: &[u8; N], index: usize) -> uint8x16_t {
    load_u8(&bytes.as_chunks().0[index])
}

/// 8 bytes in the lower half, 8 in the upper.
#[inline]
#[target_feature(enable = "neon")]
fn join(low: u64, high: u64) -> int8x16_t {
    vcombine_s8(vcreate_s8(low), vcreate_s8(high))
}

/// The four bytes from `at` on.
#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The low six bits of each byte of `low`, which are numbers 0 to 3; numbers 4 to 7 have their low four bits in `rest` and their
/// top two where those of `low` are. See `blocks::scales_and_mins`.
#[inline]
#[target_feature(enable = "neon")]
fn six_bits(low: u32, rest: u32) -> int8x16_t {
    let high = rest & 0x0f0f_0f0f | (low >> 6 & 0x0303_0303) << 4;
    join(u64::from(low & 0x3f3f_3f3f) | u64::from(high) << 32, 0)
}

impl Block256 for BlockQ4K {
    const PER_16: bool = false;
    const HAS_MIN: bool = true;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let mut q = none();
        for i in 0..8 {
            let at = i / 2 * 4 + i % 2;
            [q[at], q[at + 2]] = nibbles(&self.qs.as_chunks().0[i]);
        }
        q
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        six_bits(word(&self.scales, 0), word(&self.scales, 8))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mins(&self) -> int8x16_t {
        six_bits(word(&self.scales, 4), word(&self.scales, 8) >> 4)
    }
}

impl Block256 for BlockQ5K {
    const PER_16: bool = false;
    const HAS_MIN: bool = true;
    const OFFSET: i8 = -16;

    // All four bits above a nibble are set where its fifth bit is not.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let clear = [vmvnq_u8(part(&self.qh, 0)), vmvnq_u8(part(&self.qh, 1))];
        let mut q = none();
        for i in 0..8 {
            let (pair, half, qs) = (i / 2, i % 2, part(&self.qs, i));
            let first = vtstq_u8(clear[half], vdupq_n_u8(1 << (2 * pair)));
            let second = vtstq_u8(clear[half], vdupq_n_u8(2 << (2 * pair)));
            q[4 * pair + half] = vreinterpretq_s8_u8(vsliq_n_u8::<4>(qs, first));
            q[4 * pair + half + 2] = vreinterpretq_s8_u8(vsliq_n_u8::<4>(vshrq_n_u8::<4>(qs), second));
        }
        q
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        six_bits(word(&self.scales, 0), word(&self.scales, 8))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mins(&self) -> int8x16_t {
        six_bits(word(&self.scales, 4), word(&self.scales, 8) >> 4)
    }
}

impl Block256 for BlockQ6K {
    const PER_16: bool = true;
    const HAS_MIN: bool = false;

    // Two bits less two, with their sign, make the four bits above a nibble: those two with the upper one turned over, shifted
    // to the top and back.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let (nibble, upper) = (vdupq_n_s8(15), vdupq_n_u8(0b1010_1010));
        let mut q = none();
        for i in 0..4 {
            let (half, l) = (i / 2, i % 2);
            let high = vreinterpretq_s8_u8(veorq_u8(part(&self.qh, i), upper));
            let first = vreinterpretq_s8_u8(part(&self.ql, 4 * half + l));
            let second = vreinterpretq_s8_u8(part(&self.ql, 4 * half + 2 + l));
            let at = 8 * half + l;
            let tops = [
                vshrq_n_s8::<2>(vshlq_n_s8::<6>(high)),
                vshrq_n_s8::<2>(vshlq_n_s8::<4>(high)),
                vshrq_n_s8::<2>(vshlq_n_s8::<2>(high)),
                vshrq_n_s8::<2>(high),
            ];
            q[at] = vbslq_s8(vreinterpretq_u8_s8(nibble), first, tops[0]);
            q[at + 2] = vbslq_s8(vreinterpretq_u8_s8(nibble), second, tops[1]);
            q[at + 4] = vsriq_n_s8::<4>(tops[2], first);
            q[at + 6] = vsriq_n_s8::<4>(tops[3], second);
        }
        q
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        vreinterpretq_s8_u8(load_u8(&self.scales))
    }
}

impl Block256 for BlockQ2K {
    const PER_16: bool = true;
    const HAS_MIN: bool = true;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let three = vdupq_n_u8(3);
        let mut q = none();
        for i in 0..4 {
            let (qs, at) = (part(&self.qs, i), i / 2 * 8 + i % 2);
            q[at] = vreinterpretq_s8_u8(vandq_u8(qs, three));
            q[at + 2] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8::<2>(qs), three));
            q[at + 4] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8::<4>(qs), three));
            q[at + 6] = vreinterpretq_s8_u8(vshrq_n_u8::<6>(qs));
        }
        q
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        vreinterpretq_s8_u8(vandq_u8(load_u8(&self.scales), vdupq_n_u8(15)))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn mins(&self) -> int8x16_t {
        vreinterpretq_s8_u8(vshrq_n_u8::<4>(load_u8(&self.scales)))
    }
}

impl Block256 for BlockQ3K {
    const PER_16: bool = true;
    const HAS_MIN: bool = false;

    // All six bits above the two low ones are set where the third bit is not, which is the 4 to take off.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let clear = [vmvnq_u8(part(&self.hmask, 0)), vmvnq_u8(part(&self.hmask, 1))];
        let mut q = none();
        for i in 0..4 {
            let (half, l, qs) = (i / 2, i % 2, part(&self.qs, i));
            let pairs = [qs, vshrq_n_u8::<2>(qs), vshrq_n_u8::<4>(qs), vshrq_n_u8::<6>(qs)];
            for (group, pairs) in pairs.into_iter().enumerate() {
                let top = vtstq_u8(clear[l], vdupq_n_u8(1 << (4 * half + group)));
                q[8 * half + 2 * group + l] = vreinterpretq_s8_u8(vsliq_n_u8::<2>(pairs, top));
            }
        }
        q
    }

    // How they are packed: see `blocks`.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let lows = u64::from(word(&self.scales, 0)) | u64::from(word(&self.scales, 4)) << 32;
        let tops = word(&self.scales, 8);
        let top = |shift: u32| u64::from((tops >> shift & 0x0303_0303) << 4);
        let low = lows & LOW | top(0) | top(2) << 32;
        let high = lows >> 4 & LOW | top(4) | top(6) << 32;
        vsubq_s8(join(low, high), vdupq_n_s8(32))
    }
}

impl Block256 for BlockIq4Xs {
    const PER_16: bool = false;
    const HAS_MIN: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn weights(&self) -> [int8x16_t; 16] {
        let mut q = none();
        for i in 0..8 {
            [q[2 * i], q[2 * i + 1]] = non_linear(nibbles(&self.qs.as_chunks().0[i]));
        }
        q
    }

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn scales(&self) -> int8x16_t {
        let low = vcreate_s8(u64::from(word(&self.scales_l, 0)));
        let (even, odd) = (vand_s8(low, vdup_n_s8(15)), vreinterpret_u8_s8(low));
        let low = vzip1_s8(even, vreinterpret_s8_u8(vshr_n_u8::<4>(odd)));
        // Two bits each: those of scale i to the bottom of 16-bit lane i.
        let right = load_i16(&const { [0, -2, -4, -6, -8, -10, -12, -14] });
        let high = vshlq_u16(vdupq_n_u16(u16::from_le_bytes(self.scales_h)), right);
        let high = vand_u8(vmovn_u16(high), vdup_n_u8(3));
        let scales = vorr_s8(low, vreinterpret_s8_u8(vshl_n_u8::<4>(high)));
        let scales = vsub_s8(scales, vdup_n_s8(32));
        vcombine_s8(scales, scales)
    }
}

/// 16 scales or minima, one per 16 weights, of a format that has `PER_16` or not.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn per_16(values: int8x16_t, already: bool) -> int8x16_t {
    if already { values } else { vzip1q_s8(values, values) }
}

/// 16 weights as they really are.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn without_offset(q: int8x16_t, offset: i8) -> int8x16_t {
    vsubq_s8(q, vdupq_n_s8(offset))
}
