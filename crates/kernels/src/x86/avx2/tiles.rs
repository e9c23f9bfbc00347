//! Cuts a product into tiles and walks them so that weights and activations stay in cache.

use crate::acts::Acts;
use crate::in_place::{InPlace, blocks_of};
use crate::rows::QuantRows;
use crate::x86::memory::Prefetch;

/// Results in a tile: the singles in a register.
pub(super) const TILE: usize = 8;

/// Left-over tokens from which a tile with lanes to spare beats taking them one by one with 8 rows: a tile does the work of
/// 8 tokens but unpacks once, and unpacking is about as much work as one token.
const TOKENS_FOR_TILE: usize = 4;

/// Bytes of weights that meet all token tiles before the next rows do: half of the smallest level-1 cache in use, the other
/// half being left to the activations of a tile.
const ROWS_BYTES: usize = 16 << 10;

/// How the tiles of one format are computed.
pub(super) trait Tiles {
    /// A block of weights.
    type Block: InPlace;
    /// The activations in 8 bits.
    type Form;
    /// Weights per block.
    const LEN: usize;

    /// The activations in the form that goes with the format.
    fn form(x: &Acts) -> &Self::Form;

    /// One of `tokens` tokens with up to 8 rows (at least one), each of `blocks` blocks.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn rows(
        w: &[Self::Block],
        blocks: usize,
        form: &Self::Form,
        tokens: usize,
        token: usize,
        ask: Prefetch,
    ) -> [f32; TILE];

    /// One row with up to 8 of `tokens` tokens from `first` on.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    unsafe fn tokens(w: &[Self::Block], form: &Self::Form, tokens: usize, first: usize) -> [f32; TILE];
}

/// y = W·x for one format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul<T: Tiles>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    let (tokens, form, blocks) = (x.tokens(), T::form(x), x.cols() / T::LEN);
    let left_over = tokens % TILE;
    let tiled = if left_over < TOKENS_FOR_TILE { tokens - left_over } else { tokens };
    let all = blocks_of::<T::Block>(w);
    let some_rows = (ROWS_BYTES / w.row_bytes()).max(1);
    for (w, y) in all.chunks(some_rows * blocks).zip(y.chunks_mut(some_rows * tokens)) {
        for first in (0..tiled).step_by(TILE) {
            for (row, y) in w.chunks_exact(blocks).zip(y.chunks_exact_mut(tokens)) {
                // SAFETY: the features are those of this function.
                let results = unsafe { T::tokens(row, form, tokens, first) };
                for (y, result) in y[first..].iter_mut().zip(results) {
                    *y = result;
                }
            }
        }
    }
    for token in tiled..tokens {
        for (w, y) in all.chunks(TILE * blocks).zip(y.chunks_mut(TILE * tokens)) {
            // SAFETY: the features are those of this function.
            let results = unsafe { T::rows(w, blocks, form, tokens, token, ask) };
            for (y, result) in y.chunks_exact_mut(tokens).zip(results) {
                y[token] = result;
            }
        }
    }
}
