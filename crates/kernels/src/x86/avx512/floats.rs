//! Products of F32, F16 and BF16: one register holds the 16 partial sums of a result, as `numbers::dot` has them.

use core::arch::x86_64::*;

use crate::acts::Acts;
use crate::numbers::{LANES, canonical};
use crate::rows::QuantRows;
use crate::x86::memory::Prefetch;

/// How a weight of `N` bytes becomes a single.
pub(super) trait Decode<const N: usize> {
    /// The weights whose bit in `mask` is set, zero for the others, which need not exist.
    ///
    /// # Safety
    /// The CPU must have what the level asks for, and the weights of the mask must be there.
    unsafe fn weights(from: *const [u8; N], mask: __mmask16) -> __m512;
}

/// F32.
pub(super) struct Single;
/// F16.
pub(super) struct Half;
/// BF16.
pub(super) struct Brain;

impl Decode<4> for Single {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(from: *const [u8; 4], mask: __mmask16) -> __m512 {
        // SAFETY: only what the mask names is read, and the caller vouches for that; any alignment will do.
        unsafe { _mm512_maskz_loadu_ps(mask, from.cast()) }
    }
}

impl Decode<2> for Half {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(from: *const [u8; 2], mask: __mmask16) -> __m512 {
        // SAFETY: as above.
        _mm512_cvtph_ps(unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) })
    }
}

impl Decode<2> for Brain {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(from: *const [u8; 2], mask: __mmask16) -> __m512 {
        // SAFETY: as above.
        let upper = unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper)))
    }
}

/// Rows that are taken together with one token: as many chains of additions hide their latency.
const TOGETHER: usize = 8;

/// Rows and tokens of a tile with several tokens: 24 registers of sums leave 8 of the 32 for weights and values, and each
/// weight that is decoded meets six values.
const ROWS: usize = 4;
const TOKENS: usize = 6;

/// y = W·x for one format.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn matmul<D: Decode<N>, const N: usize>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    let mut token = 0;
    while token < x.tokens() {
        token += match x.tokens() - token {
            1 => columns::<D, N, TOGETHER, 1>(w, x, y, token, ask),
            2..TOKENS => columns::<D, N, ROWS, 2>(w, x, y, token, ask),
            _ => columns::<D, N, ROWS, TOKENS>(w, x, y, token, ask),
        };
    }
}

/// All rows, `R` at a time, with `T` tokens, which is what comes back.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn columns<D: Decode<N>, const N: usize, const R: usize, const T: usize>(
    w: QuantRows<'_>,
    x: &Acts,
    y: &mut [f32],
    token: usize,
    ask: Prefetch,
) -> usize {
    let whole = w.rows() - w.rows() % R;
    for row in (0..whole).step_by(R) {
        tile::<D, N, R, T>(w, x, y, row, token, ask);
    }
    for row in whole..w.rows() {
        tile::<D, N, 1, T>(w, x, y, row, token, ask);
    }
    T
}

/// `R` rows with `T` tokens.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile<D: Decode<N>, const N: usize, const R: usize, const T: usize>(
    w: QuantRows<'_>,
    x: &Acts,
    y: &mut [f32],
    first_row: usize,
    first_token: usize,
    ask: Prefetch,
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
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    // The bytes after this tile, most likely the next one: asked for in order while these are used.
    let mut next = weights[R - 1].as_ptr_range().end;
    for at in (0..cols).step_by(LANES) {
        if R == TOGETHER {
            ask.blocks::<_, { TOGETHER * LANES }>(next);
            next = next.wrapping_add(TOGETHER * LANES);
        }
        // All of the lanes, or as many as there are columns left.
        let mask = if cols - at < LANES { (1 << (cols - at)) - 1 } else { !0 };
        let mut x = [_mm512_setzero_ps(); T];
        for t in 0..T {
            // SAFETY: the mask ends where the columns do.
            x[t] = unsafe { _mm512_maskz_loadu_ps(mask, values[t].as_ptr().add(at)) };
        }
        for r in 0..R {
            // SAFETY: the mask ends where the columns do, and the features are those of this function.
            let w = unsafe { D::weights(weights[r].as_ptr().add(at), mask) };
            for t in 0..T {
                sums[r][t] = _mm512_fmadd_ps(w, x[t], sums[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            y[(first_row + r) * tokens + first_token + t] = canonical(sum_lanes(sums[r][t]));
        }
    }
}

/// As `numbers::sum_lanes`: upper half onto lower half, 8, 4, 2, 1.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn sum_lanes(v: __m512) -> f32 {
    let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}
