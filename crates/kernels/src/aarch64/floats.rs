//! ARM code for singles: products of F32, F16 and BF16 with 16 partial sums in four registers per result, as `numbers::dot` has them;
//! decoding halves; turning products.

use core::arch::aarch64::*;
use core::ops::Range;

use super::instructions::{singles, singles_high};
use super::lanes::{load_f32, stored};
use crate::acts::Acts;
use crate::numbers::{LANES, bf16_to_f32, canonical, f16_to_f32, padded, sum_lanes};
use crate::rows::QuantRows;
use crate::transpose::put;

/// Singles in a register.
const FOUR: usize = 4;
/// Registers of partial sums.
const REGISTERS: usize = LANES / FOUR;

/// How a weight of `N` bytes becomes a single.
pub(super) trait Decode<const N: usize> {
    /// The weight.
    fn one(bytes: [u8; N]) -> f32;
    /// Sixteen weights.
    ///
    /// # Safety
    /// The CPU must have NEON.
    unsafe fn sixteen(bytes: &[[u8; N]; LANES]) -> [float32x4_t; REGISTERS];
}

/// F32.
pub(super) struct Single;
/// F16.
pub(super) struct Half;
/// BF16.
pub(super) struct Brain;

/// Eight elements of two bytes.
#[inline]
#[target_feature(enable = "neon")]
fn load_u16(from: &[[u8; 2]; 8]) -> uint16x8_t {
    // SAFETY: 16 bytes are there, at any alignment.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(from.as_ptr().cast()) })
}

impl Decode<4> for Single {
    #[inline(always)]
    fn one(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(bytes: &[[u8; 4]; LANES]) -> [float32x4_t; REGISTERS] {
        let mut out = [vdupq_n_f32(0.0); REGISTERS];
        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<FOUR>().0) {
            // SAFETY: 16 bytes are there, at any alignment.
            *out = vreinterpretq_f32_u8(unsafe { vld1q_u8(bytes.as_ptr().cast()) });
        }
        out
    }
}

impl Decode<2> for Half {
    #[inline(always)]
    fn one(bytes: [u8; 2]) -> f32 {
        f16_to_f32(bytes)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(bytes: &[[u8; 2]; LANES]) -> [float32x4_t; REGISTERS] {
        let halves = bytes.as_chunks().0;
        let (low, high) = (load_u16(&halves[0]), load_u16(&halves[1]));
        [singles(vget_low_u16(low)), singles_high(low), singles(vget_low_u16(high)), singles_high(high)]
    }
}

impl Decode<2> for Brain {
    #[inline(always)]
    fn one(bytes: [u8; 2]) -> f32 {
        bf16_to_f32(bytes)
    }
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn sixteen(bytes: &[[u8; 2]; LANES]) -> [float32x4_t; REGISTERS] {
        let halves = bytes.as_chunks().0;
        let (low, high, zero) = (load_u16(&halves[0]), load_u16(&halves[1]), vdupq_n_u16(0));
        let upper = |v: uint16x8_t| vreinterpretq_f32_u16(v);
        [
            upper(vzip1q_u16(zero, low)),
            upper(vzip2q_u16(zero, low)),
            upper(vzip1q_u16(zero, high)),
            upper(vzip2q_u16(zero, high)),
        ]
    }
}

/// Rows that are taken together with one token: four times four chains of additions hide their latency and leave 16 of the 32
/// registers.
const TOGETHER: usize = 4;

/// Rows and tokens of a tile with several tokens: as many sums. With 24 registers of them the compiler moves the others about, and a
/// tile of three rows and two tokens takes 3.7 instructions per multiply-add of halves, this one 2.4.
const ROWS: usize = 2;
const TOKENS: usize = 2;

/// y = W·x for one format.
#[target_feature(enable = "neon")]
pub(super) fn matmul<D: Decode<N>, const N: usize>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    let (rows, tokens) = (w.rows(), x.tokens());
    let tiled = tokens - tokens % TOKENS;
    let whole = rows - rows % ROWS;
    for row in (0..whole).step_by(ROWS) {
        for token in (0..tiled).step_by(TOKENS) {
            tile::<D, N, ROWS, TOKENS>(w, x, y, row, token);
        }
    }
    for row in whole..rows {
        for token in (0..tiled).step_by(TOKENS) {
            tile::<D, N, 1, TOKENS>(w, x, y, row, token);
        }
    }
    for token in tiled..tokens {
        let whole = rows - rows % TOGETHER;
        for row in (0..whole).step_by(TOGETHER) {
            tile::<D, N, TOGETHER, 1>(w, x, y, row, token);
        }
        for row in whole..rows {
            tile::<D, N, 1, 1>(w, x, y, row, token);
        }
    }
}

/// `R` rows with `T` tokens.
#[inline]
#[target_feature(enable = "neon")]
fn tile<D: Decode<N>, const N: usize, const R: usize, const T: usize>(
    w: QuantRows<'_>,
    x: &Acts,
    y: &mut [f32],
    first_row: usize,
    first_token: usize,
) {
    let (cols, tokens) = (x.cols(), x.tokens());
    let mut weights: [&[[u8; N]]; R] = [&[]; R];
    for r in 0..R {
        weights[r] = &w.row(first_row + r).as_chunks().0[..cols];
    }
    let mut values: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        values[t] = &x.values()[(first_token + t) * cols..][..cols];
    }
    let mut sums = [[[vdupq_n_f32(0.0); REGISTERS]; T]; R];
    let whole = cols - cols % LANES;
    for at in (0..whole).step_by(LANES) {
        for r in 0..R {
            // SAFETY: the features are those of this function.
            let w = unsafe { D::sixteen(&weights[r][at..at + LANES].as_chunks().0[0]) };
            for t in 0..T {
                add(&mut sums[r][t], w, &values[t][at..at + LANES].as_chunks().0[0]);
            }
        }
    }
    if whole < cols {
        for r in 0..R {
            let mut tail = [0.0; LANES];
            for (value, &bytes) in tail.iter_mut().zip(&weights[r][whole..]) {
                *value = D::one(bytes);
            }
            let w = sixteen(&tail);
            for t in 0..T {
                add(&mut sums[r][t], w, &padded(&values[t][whole..]));
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            let mut lanes = [0.0; LANES];
            for (lanes, &sum) in lanes.as_chunks_mut::<FOUR>().0.iter_mut().zip(&sums[r][t]) {
                *lanes = stored(sum);
            }
            y[(first_row + r) * tokens + first_token + t] = canonical(sum_lanes(lanes));
        }
    }
}

/// Sixteen singles.
#[inline]
#[target_feature(enable = "neon")]
fn sixteen(values: &[f32; LANES]) -> [float32x4_t; REGISTERS] {
    let fours = values.as_chunks::<FOUR>().0;
    [load_f32(&fours[0]), load_f32(&fours[1]), load_f32(&fours[2]), load_f32(&fours[3])]
}

/// Adds the products of 16 columns to the partial sums.
#[inline]
#[target_feature(enable = "neon")]
fn add(sums: &mut [float32x4_t; REGISTERS], w: [float32x4_t; REGISTERS], values: &[f32; LANES]) {
    for (i, x) in sixteen(values).into_iter().enumerate() {
        sums[i] = vfmaq_f32(sums[i], w[i], x);
    }
}

/// Halves to singles, as many as the shorter of the two holds.
#[target_feature(enable = "neon")]
pub(super) fn decode_f16(halves: &[[u8; 2]], out: &mut [f32]) {
    let (groups, _) = halves.as_chunks::<LANES>();
    let (out_groups, _) = out.as_chunks_mut::<LANES>();
    let whole = groups.len().min(out_groups.len()) * LANES;
    for (halves, out) in groups.iter().zip(out_groups) {
        // SAFETY: the features are those of this function.
        let values = unsafe { Half::sixteen(halves) };
        for (out, value) in out.as_chunks_mut::<FOUR>().0.iter_mut().zip(values) {
            *out = stored(value);
        }
    }
    for (&half, out) in halves[whole..].iter().zip(&mut out[whole..]) {
        *out = f16_to_f32(half);
    }
}

/// Turns `columns` of `y` (rows × stride) to `out` (columns × rows), or adds them to it; all lengths have been checked.
#[target_feature(enable = "neon")]
pub(super) fn turn<const ADD: bool>(y: &[f32], stride: usize, columns: Range<usize>, out: &mut [f32]) {
    let rows = y.len() / stride;
    let (whole_rows, whole_columns) = (rows - rows % FOUR, columns.len() - columns.len() % FOUR);
    // Bands of 16 rows: four tiles fill a line of cache of `out`.
    for band in (0..whole_rows).step_by(LANES) {
        for c in (0..whole_columns).step_by(FOUR) {
            for r in (band..whole_rows.min(band + LANES)).step_by(FOUR) {
                let row = |i: usize| load_f32(&y[(r + i) * stride + columns.start + c..].as_chunks().0[0]);
                let tile = transpose_tile([row(0), row(1), row(2), row(3)]);
                for (i, mut v) in tile.into_iter().enumerate() {
                    let out = &mut out[(c + i) * rows + r..].as_chunks_mut().0[0];
                    if ADD {
                        v = vaddq_f32(load_f32(out), v);
                    }
                    *out = stored(v);
                }
            }
        }
    }
    for c in 0..columns.len() {
        for r in if c < whole_columns { whole_rows } else { 0 }..rows {
            put::<ADD>(&mut out[c * rows + r], y[r * stride + columns.start + c]);
        }
    }
}

/// Lane `i` of result `j` is lane `j` of register `i`.
#[inline]
#[target_feature(enable = "neon")]
fn transpose_tile(v: [float32x4_t; FOUR]) -> [float32x4_t; FOUR] {
    let doubles = |v: float32x4_t| vreinterpretq_f64_f32(v);
    let (even, odd) = (vtrn1q_f32(v[0], v[1]), vtrn2q_f32(v[0], v[1]));
    let (more_even, more_odd) = (vtrn1q_f32(v[2], v[3]), vtrn2q_f32(v[2], v[3]));
    [
        vreinterpretq_f32_f64(vtrn1q_f64(doubles(even), doubles(more_even))),
        vreinterpretq_f32_f64(vtrn1q_f64(doubles(odd), doubles(more_odd))),
        vreinterpretq_f32_f64(vtrn2q_f64(doubles(even), doubles(more_even))),
        vreinterpretq_f32_f64(vtrn2q_f64(doubles(odd), doubles(more_odd))),
    ]
}
