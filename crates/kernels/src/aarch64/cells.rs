//! How the integer sums of eight rows with four tokens stand in eight registers, the cells: by `sdot` or by `smmla`.

use core::arch::aarch64::*;

use super::instructions::{sdot_lane, smmla};

/// Rows of a panel.
pub(super) const ROWS: usize = 8;
/// Tokens that a panel meets at once.
pub(super) const TOKENS: usize = 4;
/// Sums of four lanes: eight rows with four tokens.
pub(super) const CELLS: usize = ROWS * TOKENS / 4;

/// Four results to a cell, of some rows with some tokens; cell (row, token) is number `row * ACROSS + token`.
///
/// `Safety` of all functions: the CPU must have NEON with dot products, and what the implementation asks for.
pub(super) trait Cells {
    /// Cells side by side for different rows, and for different tokens; 8 in all.
    const DOWN: usize;
    /// See `DOWN`.
    const ACROSS: usize;
    /// Row (below 8) and token (below 4) of a lane of a cell.
    fn place(row: usize, token: usize, lane: usize) -> (usize, usize);
    /// 16 bytes of each of eight rows, as `dot` wants them.
    ///
    /// # Safety
    /// See [`Cells`].
    unsafe fn pack(rows: [int8x16_t; ROWS]) -> [int8x16_t; ROWS];
    /// 16 bytes of each of four tokens, as `dot` wants them.
    ///
    /// # Safety
    /// See [`Cells`].
    unsafe fn gather(tokens: [int8x16_t; TOKENS]) -> [int8x16_t; TOKENS];
    /// Adds to cell (row, token) the products of 16 columns.
    ///
    /// # Safety
    /// See [`Cells`].
    unsafe fn dot(
        sum: int32x4_t,
        w: &[int8x16_t; ROWS],
        a: &[int8x16_t; TOKENS],
        row: usize,
        token: usize,
    ) -> int32x4_t;
    /// A value per token, in the lanes of each cell across; what lies past `ACROSS` means nothing.
    ///
    /// # Safety
    /// See [`Cells`].
    unsafe fn of_tokens(values: int32x4_t) -> [int32x4_t; TOKENS];
}

/// The low halves of 64 bits of two registers, and the high ones.
#[inline]
#[target_feature(enable = "neon")]
fn halves(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
    [vreinterpretq_s8_s64(vtrn1q_s64(a, b)), vreinterpretq_s8_s64(vtrn2q_s64(a, b))]
}

/// A cell is four rows with one token, by `sdot`: register `k` of four holds columns 4k to 4k + 3 of four rows.
pub(super) struct Sdot;

impl Cells for Sdot {
    const DOWN: usize = 2;
    const ACROSS: usize = 4;

    #[inline(always)]
    fn place(row: usize, token: usize, lane: usize) -> (usize, usize) {
        (4 * row + lane, token)
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn pack(rows: [int8x16_t; ROWS]) -> [int8x16_t; ROWS] {
        let mut out = rows;
        for (rows, out) in rows.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
            let words = |r: usize| vreinterpretq_s32_s8(rows[r]);
            let even = [vtrn1q_s32(words(0), words(1)), vtrn1q_s32(words(2), words(3))];
            let odd = [vtrn2q_s32(words(0), words(1)), vtrn2q_s32(words(2), words(3))];
            [out[0], out[2]] = halves(vreinterpretq_s8_s32(even[0]), vreinterpretq_s8_s32(even[1]));
            [out[1], out[3]] = halves(vreinterpretq_s8_s32(odd[0]), vreinterpretq_s8_s32(odd[1]));
        }
        out
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn gather(tokens: [int8x16_t; TOKENS]) -> [int8x16_t; TOKENS] {
        tokens
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn dot(
        sum: int32x4_t,
        w: &[int8x16_t; ROWS],
        a: &[int8x16_t; TOKENS],
        row: usize,
        token: usize,
    ) -> int32x4_t {
        let (w, a) = (&w.as_chunks::<4>().0[row], a[token]);
        let sum = sdot_lane::<1>(sdot_lane::<0>(sum, w[0], a), w[1], a);
        sdot_lane::<3>(sdot_lane::<2>(sum, w[2], a), w[3], a)
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn of_tokens(v: int32x4_t) -> [int32x4_t; TOKENS] {
        [vdupq_laneq_s32::<0>(v), vdupq_laneq_s32::<1>(v), vdupq_laneq_s32::<2>(v), vdupq_laneq_s32::<3>(v)]
    }
}

/// A cell is two rows with two tokens, by `smmla`, which the CPU must have: register `k` of two holds columns 8k to 8k + 7 of two
/// rows, or of two tokens.
pub(super) struct Smmla;

impl Cells for Smmla {
    const DOWN: usize = 4;
    const ACROSS: usize = 2;

    #[inline(always)]
    fn place(row: usize, token: usize, lane: usize) -> (usize, usize) {
        (2 * row + lane / 2, 2 * token + lane % 2)
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn pack(rows: [int8x16_t; ROWS]) -> [int8x16_t; ROWS] {
        let mut out = rows;
        for (rows, out) in rows.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = halves(rows[0], rows[1]);
        }
        out
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn gather(tokens: [int8x16_t; TOKENS]) -> [int8x16_t; TOKENS] {
        let ([a, b], [c, d]) = (halves(tokens[0], tokens[1]), halves(tokens[2], tokens[3]));
        [a, b, c, d]
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn dot(
        sum: int32x4_t,
        w: &[int8x16_t; ROWS],
        a: &[int8x16_t; TOKENS],
        row: usize,
        token: usize,
    ) -> int32x4_t {
        // SAFETY: whoever calls says that the CPU has what `Smmla` asks for, i8mm.
        unsafe { smmla(smmla(sum, w[2 * row], a[2 * token]), w[2 * row + 1], a[2 * token + 1]) }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn of_tokens(v: int32x4_t) -> [int32x4_t; TOKENS] {
        let v = vreinterpretq_s64_s32(v);
        let low = vreinterpretq_s32_s64(vdupq_laneq_s64::<0>(v));
        let high = vreinterpretq_s32_s64(vdupq_laneq_s64::<1>(v));
        [low, high, low, high]
    }
}
