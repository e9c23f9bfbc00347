//! One token: four rows side by side, each block unpacked in registers and multiplied at once by `sdot`.

use core::arch::aarch64::*;

use super::blocks_32::Block32;
use super::blocks_256::Block256;
use super::instructions::sdot;
use super::lanes::{Sums, TILE, load_i8, load_i16, scales_of_four, sum_each};
use crate::acts::{Acts, Group};

/// The same block of up to four rows (at least one) of `blocks` blocks each. Lanes without a row repeat the last one.
#[inline(always)]
fn rows_of<B>(w: &[B], blocks: usize) -> [&[B]; TILE] {
    let last = w.len() / blocks - 1;
    [0, 1, 2, 3].map(|r: usize| &w[r.min(last) * blocks..][..blocks])
}

/// Up to four rows of `blocks` blocks of 32 weights with one token.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn rows_32<B: Block32>(w: &[B], blocks: usize, x: &Acts, token: usize) -> [f32; TILE] {
    let (form, tokens, rows) = (x.per_32(), x.tokens(), rows_of(w, blocks));
    let a = &form.q.as_chunks::<16>().0.as_chunks::<2>().0[token * blocks..][..blocks];
    let mut sums = Sums::new();
    for (block, a) in a.iter().enumerate() {
        let at = block * tokens + token;
        let (dx, a_sum) = (vdupq_n_f32(form.scales[at]), form.sums[at]);
        let (first, second) = (load_i8(&a[0]), load_i8(&a[1]));
        // Sums begin with what takes the offset off, in one lane.
        let start = vsetq_lane_s32::<0>(-i32::from(B::OFFSET) * a_sum, vdupq_n_s32(0));
        let (mut s, mut heads) = ([start; TILE], [0; TILE]);
        for r in 0..TILE {
            // SAFETY: each row has `blocks` blocks, and so has `a`.
            let w = unsafe { rows[r].get_unchecked(block) };
            // SAFETY: the features are those of this function.
            let q = unsafe { w.weights() };
            s[r] = sdot(sdot(start, q[0], first), q[1], second);
            heads[r] = u32::from_le_bytes(w.head());
        }
        let (d, m) = scales_of_four(heads, B::HAS_MIN);
        sums.add(d, dx, sum_each(s));
        if B::HAS_MIN {
            // The minimum is added to the weights, so it is −m that comes off.
            sums.add_min(vnegq_f32(m), dx, vdupq_n_s32(a_sum));
        }
    }
    sums.results()
}

/// What all rows need of a block of a token's activations: its powers, as often as there are scales, and its sums, likewise.
struct Activations<'a> {
    q: &'a [[i8; 16]; 16],
    powers: [int16x8_t; 2],
    sums: [int16x8_t; 2],
}

impl<'a> Activations<'a> {
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn new<B: Block256>(a: &Group<'a>) -> Self {
        let powers = load_i16(a.powers);
        let sums = a.sums.as_chunks().0;
        let (first, second) = (load_i16(&sums[0]), load_i16(&sums[1]));
        let q = &a.q.as_chunks().0.as_chunks().0[0];
        if B::PER_16 {
            let powers = [vzip1q_s16(powers, powers), vzip2q_s16(powers, powers)];
            Self { q, powers, sums: [first, second] }
        } else {
            // 32 activations, in units of the scale, make 32·127·8 at most.
            Self { q, powers: [powers; 2], sums: [vpaddq_s16(first, second); 2] }
        }
    }
}

/// Four sums that add up to Σ v·sum over eight or sixteen values.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn with_sums<B: Block256>(v: int8x16_t, sums: [int16x8_t; 2]) -> int32x4_t {
    let low = vmovl_s8(vget_low_s8(v));
    let m = vmull_s16(vget_low_s16(low), vget_low_s16(sums[0]));
    let m = vmlal_high_s16(m, low, sums[0]);
    if !B::PER_16 {
        return m;
    }
    let high = vmovl_high_s8(v);
    let m = vmlal_s16(m, vget_low_s16(high), vget_low_s16(sums[1]));
    vmlal_high_s16(m, high, sums[1])
}

/// `s` plus four registers of sums, each times its scale.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn scaled(s: int32x4_t, sums: [int32x4_t; 4], scales: int32x4_t) -> int32x4_t {
    let s = vmlaq_laneq_s32::<1>(vmlaq_laneq_s32::<0>(s, sums[0], scales), sums[1], scales);
    vmlaq_laneq_s32::<3>(vmlaq_laneq_s32::<2>(s, sums[2], scales), sums[3], scales)
}

/// Four sums that add up to S, and four that add up to M.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn products<B: Block256>(w: &B, a: &Activations<'_>) -> (int32x4_t, int32x4_t) {
    // SAFETY: the features are those of this function.
    let (q, scales, mins) = unsafe { (w.weights(), w.scales(), w.mins()) };
    let zero = vdupq_n_s32(0);
    let mut s = zero;
    if B::OFFSET != 0 {
        s = vmulq_n_s32(with_sums::<B>(scales, a.sums), -i32::from(B::OFFSET));
    }
    let low = vmovl_s8(vget_low_s8(scales));
    let high = if B::PER_16 { vmovl_high_s8(scales) } else { low };
    let [powers, more] = a.powers;
    let scales = [
        vmull_s16(vget_low_s16(low), vget_low_s16(powers)),
        vmull_high_s16(low, powers),
        vmull_s16(vget_low_s16(high), vget_low_s16(more)),
        vmull_high_s16(high, more),
    ];
    let dot = |sum, i: usize| sdot(sum, q[i], load_i8(&a.q[i]));
    if B::PER_16 {
        for (i, scales) in scales.into_iter().enumerate() {
            let i = 4 * i;
            s = scaled(s, [dot(zero, i), dot(zero, i + 1), dot(zero, i + 2), dot(zero, i + 3)], scales);
        }
    } else {
        for (i, scales) in scales.into_iter().take(2).enumerate() {
            let two = |group: usize| dot(dot(zero, 8 * i + 2 * group), 8 * i + 2 * group + 1);
            s = scaled(s, [two(0), two(1), two(2), two(3)], scales);
        }
    }
    let m = if B::HAS_MIN { with_sums::<B>(mins, a.sums) } else { zero };
    (s, m)
}

/// Up to four rows of `blocks` blocks of 256 weights with one token.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn rows_256<B: Block256>(w: &[B], blocks: usize, x: &Acts, token: usize) -> [f32; TILE] {
    let (form, tokens, rows) = (x.per_256(), x.tokens(), rows_of(w, blocks));
    let mut sums = Sums::new();
    for block in 0..blocks {
        let a = Activations::new::<B>(&form.group(token * blocks + block));
        let (mut s, mut m) = ([vdupq_n_s32(0); TILE], [vdupq_n_s32(0); TILE]);
        let mut heads = [0; TILE];
        for r in 0..TILE {
            // SAFETY: each row has `blocks` blocks.
            let w = unsafe { rows[r].get_unchecked(block) };
            (s[r], m[r]) = products(w, &a);
            heads[r] = u32::from_le_bytes(w.head());
        }
        let (d, dmin) = scales_of_four(heads, B::HAS_MIN);
        let dx = vdupq_n_f32(form.scales[block * tokens + token]);
        sums.add(d, dx, sum_each(s));
        if B::HAS_MIN {
            sums.add_min(dmin, dx, sum_each(m));
        }
    }
    sums.results()
}
