//! AVX2 products of F32, F16 and BF16: 16 partial sums in two registers per result, as `numbers::dot` has them.

use core::arch::x86_64::*;

use super::lanes::load_ps;
use crate::acts::Acts;
use crate::numbers::{LANES, bf16_to_f32, canonical, f16_to_f32, padded, sum_lanes};
use crate::rows::QuantRows;
use crate::x86::memory::Prefetch;

/// How a weight of `N` bytes becomes a single.
pub(super) trait Decode<const N: usize> {
    /// The weight.
    fn one(bytes: [u8; N]) -> f32;
    /// Eight weights.
    ///
    /// # Safety
    /// The CPU must have AVX2 and F16C.
    unsafe fn eight(bytes: &[[u8; N]; 8]) -> __m256;
}

/// F32.
pub(super) struct Single;
/// F16.
pub(super) struct Half;
/// BF16.
pub(super) struct Brain;

impl Decode<4> for Single {
    #[inline(always)]
    fn one(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn eight(bytes: &[[u8; 4]; 8]) -> __m256 {
        // SAFETY: 32 bytes are there, at any alignment.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}

impl Decode<2> for Half {
    #[inline(always)]
    fn one(bytes: [u8; 2]) -> f32 {
        f16_to_f32(bytes)
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(bytes: &[[u8; 2]; 8]) -> __m256 {
        // SAFETY: 16 bytes are there, at any alignment.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
    }
}

impl Decode<2> for Brain {
    #[inline(always)]
    fn one(bytes: [u8; 2]) -> f32 {
        bf16_to_f32(bytes)
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn eight(bytes: &[[u8; 2]; 8]) -> __m256 {
        // SAFETY: 16 bytes are there, at any alignment.
        let upper = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(upper)))
    }
}

/// Rows that are taken together with one token: four times two chains of additions hide their latency.
const TOGETHER: usize = 4;

/// Rows and tokens of a tile with several tokens: 12 registers of sums leave 4 of the 16 for weights and values, and of the
/// shapes that fit, this one loads least and proved fastest.
const ROWS: usize = 3;
const TOKENS: usize = 2;

/// y = W·x for one format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul<D: Decode<N>, const N: usize>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    let (rows, tokens) = (w.rows(), x.tokens());
    let tiled = tokens - tokens % TOKENS;
    let whole = rows - rows % ROWS;
    // Rows outside: decoding them again for each token costs more than the values cost on their way from level 2.
    for row in (0..whole).step_by(ROWS) {
        for token in (0..tiled).step_by(TOKENS) {
            tile::<D, N, ROWS, TOKENS>(w, x, y, row, token, ask);
        }
    }
    for row in whole..rows {
        for token in (0..tiled).step_by(TOKENS) {
            tile::<D, N, 1, TOKENS>(w, x, y, row, token, ask);
        }
    }
    for token in tiled..tokens {
        let whole = rows - rows % TOGETHER;
        for row in (0..whole).step_by(TOGETHER) {
            tile::<D, N, TOGETHER, 1>(w, x, y, row, token, ask);
        }
        for row in whole..rows {
            tile::<D, N, 1, 1>(w, x, y, row, token, ask);
        }
    }
}

/// `R` rows with `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
    let mut low = [[_mm256_setzero_ps(); T]; R];
    let mut high = [[_mm256_setzero_ps(); T]; R];
    let whole = cols - cols % LANES;
    // The bytes after this tile, most likely the next one: asked for in order while these are used, in pieces of the 16
    // weights of 4 rows that a round of the loop takes.
    let mut next = weights[R - 1].as_ptr_range().end.cast::<[u8; N]>();
    for at in (0..whole).step_by(LANES) {
        if R == TOGETHER {
            ask.blocks::<_, { TOGETHER * LANES }>(next);
            next = next.wrapping_add(TOGETHER * LANES);
        }
        for r in 0..R {
            let [w_low, w_high] = weights_at::<D, N>(weights[r], at);
            for t in 0..T {
                let [x_low, x_high] = values_at(values[t], at);
                low[r][t] = _mm256_fmadd_ps(w_low, x_low, low[r][t]);
                high[r][t] = _mm256_fmadd_ps(w_high, x_high, high[r][t]);
            }
        }
    }
    if whole < cols {
        for r in 0..R {
            let mut tail = [0.0; LANES];
            for (value, &bytes) in tail.iter_mut().zip(&weights[r][whole..]) {
                *value = D::one(bytes);
            }
            let [w_low, w_high] = values_at(&tail, 0);
            for t in 0..T {
                let [x_low, x_high] = values_at(&padded(&values[t][whole..]), 0);
                low[r][t] = _mm256_fmadd_ps(w_low, x_low, low[r][t]);
                high[r][t] = _mm256_fmadd_ps(w_high, x_high, high[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            let mut lanes = [0.0; LANES];
            // SAFETY: the array has room for 16 singles.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), low[r][t]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), high[r][t]);
            }
            y[(first_row + r) * tokens + first_token + t] = canonical(sum_lanes(lanes));
        }
    }
}

/// The 16 weights from `at` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights_at<D: Decode<N>, const N: usize>(weights: &[[u8; N]], at: usize) -> [__m256; 2] {
    let (eights, _) = weights[at..at + LANES].as_chunks();
    // SAFETY: the features are those of this function.
    unsafe { [D::eight(&eights[0]), D::eight(&eights[1])] }
}

/// The 16 values from `at` on.
#[inline]
#[target_feature(enable = "avx2")]
fn values_at(values: &[f32], at: usize) -> [__m256; 2] {
    let (eights, _) = values[at..at + LANES].as_chunks();
    [load_ps(&eights[0]), load_ps(&eights[1])]
}
