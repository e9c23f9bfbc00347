//! The border of the ARM levels: everything inside is compiled with NEON and dot products, and only the proofs lead in.
//!
//! Also the walk over rows and tokens, for the formats with blocks.

use core::marker::PhantomData;

use super::Neon;
use super::blocks_32::Block32;
use super::blocks_256::Block256;
use super::cells::{Cells, ROWS, TOKENS};
use super::floats;
use super::lanes::TILE;
use super::panels::{Panel, Panel32, Panel256, Sums};
use super::rows::{rows_32, rows_256};
use super::wide::Lanes4;
use crate::acts::Acts;
use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::format::Format;
use crate::in_place::{InPlace, blocks_of};
use crate::isa::Portable;
use crate::rows::QuantRows;
use crate::wide::Wide;

/// Left-over tokens from which a panel beats taking them one by one: it does the work of four, and unpacking and packing a row is
/// as much work as one token.
const TOKENS_FOR_PANEL: usize = 3;

/// Tokens that a panel meets before the next block of its rows is unpacked: their sums take 8 KiB of level 1 (64 bytes per token),
/// and unpacking is then a twentieth of the work.
const TOGETHER: usize = 128;

/// y = W·x; shapes and forms have been checked, and there is at least one row and one token.
///
/// # Safety
/// The CPU must have NEON with dot products, and what `C` asks for.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn matmul<C: Cells>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    // SAFETY: the features are those of this function, and the caller answers for `C`.
    unsafe {
        match w.format() {
            Format::F32 => floats::matmul::<floats::Single, 4>(w, x, y),
            Format::F16 => floats::matmul::<floats::Half, 2>(w, x, y),
            Format::BF16 => floats::matmul::<floats::Brain, 2>(w, x, y),
            Format::Q4_0 => blocks::<C, Per32<BlockQ4_0>>(w, x, y),
            Format::Q4_1 => blocks::<C, Per32<BlockQ4_1>>(w, x, y),
            Format::Q5_0 => blocks::<C, Per32<BlockQ5_0>>(w, x, y),
            Format::Q5_1 => blocks::<C, Per32<BlockQ5_1>>(w, x, y),
            Format::Q8_0 => blocks::<C, Per32<BlockQ8_0>>(w, x, y),
            Format::Q2_K => blocks::<C, Per256<BlockQ2K>>(w, x, y),
            Format::Q3_K => blocks::<C, Per256<BlockQ3K>>(w, x, y),
            Format::Q4_K => blocks::<C, Per256<BlockQ4K>>(w, x, y),
            Format::Q5_K => blocks::<C, Per256<BlockQ5K>>(w, x, y),
            Format::Q6_K => blocks::<C, Per256<BlockQ6K>>(w, x, y),
            Format::IQ4_NL => blocks::<C, Per32<BlockIq4Nl>>(w, x, y),
            Format::IQ4_XS => blocks::<C, Per256<BlockIq4Xs>>(w, x, y),
        }
    }
}

/// Compiles portable code with the features of these levels.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn run<P: Portable>(code: P) -> P::Out {
    code.run()
}

/// Compiles code for sixteen lanes with registers of these levels.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn run_wide<W: Wide>(proof: Neon, code: W) -> W::Out {
    code.run::<Lanes4>(proof)
}

/// How a format is multiplied: with one token, and with four.
trait Kernel<C: Cells> {
    /// A block of weights.
    type Block: InPlace;
    /// Eight rows, unpacked.
    type Panel: Panel<C, Block = Self::Block>;
    /// Up to four rows of `blocks` blocks with one token.
    ///
    /// # Safety
    /// The CPU must have NEON with dot products.
    unsafe fn rows(w: &[Self::Block], blocks: usize, x: &Acts, token: usize) -> [f32; TILE];
}

/// Formats with blocks of 32 weights.
struct Per32<B>(PhantomData<B>);

impl<C: Cells, B: Block32> Kernel<C> for Per32<B> {
    type Block = B;
    type Panel = Panel32<B>;
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn rows(w: &[B], blocks: usize, x: &Acts, token: usize) -> [f32; TILE] {
        rows_32(w, blocks, x, token)
    }
}

/// Formats with blocks of 256.
struct Per256<B>(PhantomData<B>);

impl<C: Cells, B: Block256> Kernel<C> for Per256<B> {
    type Block = B;
    type Panel = Panel256<B>;
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn rows(w: &[B], blocks: usize, x: &Acts, token: usize) -> [f32; TILE] {
        rows_256(w, blocks, x, token)
    }
}

/// y = W·x for a format with blocks.
///
/// # Safety
/// As [`matmul`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn blocks<C: Cells, K: Kernel<C>>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    let (tokens, blocks) = (x.tokens(), x.cols() / w.format().block_len());
    let all = blocks_of::<K::Block>(w);
    let left_over = tokens % TOKENS;
    let tiled = if left_over < TOKENS_FOR_PANEL { tokens - left_over } else { tokens };
    for first in (0..tiled).step_by(TOGETHER) {
        let count = TOGETHER.min(tiled - first);
        // SAFETY: as the caller's.
        unsafe { panels::<C, K>(all, blocks, x, first, count, y) };
    }
    if tiled < tokens {
        for (w, y) in all.chunks(TILE * blocks).zip(y.chunks_mut(TILE * tokens)) {
            // All left-over tokens while these rows are near.
            for token in tiled..tokens {
                // SAFETY: the features are those of this function.
                let results = unsafe { K::rows(w, blocks, x, token) };
                for (y, result) in y.chunks_exact_mut(tokens).zip(results) {
                    y[token] = result;
                }
            }
        }
    }
}

/// All rows with `count` tokens from `first` on, at most `TOGETHER`.
///
/// # Safety
/// As [`matmul`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn panels<C: Cells, K: Kernel<C>>(
    all: &[K::Block],
    blocks: usize,
    x: &Acts,
    first: usize,
    count: usize,
    y: &mut [f32],
) {
    let tokens = x.tokens();
    let mut panel = K::Panel::new();
    let mut sums = [Sums::new(); TOGETHER / TOKENS];
    let sums = &mut sums[..count.div_ceil(TOKENS)];
    for (w, y) in all.chunks(ROWS * blocks).zip(y.chunks_mut(ROWS * tokens)) {
        sums.fill(Sums::new());
        for block in (0..blocks).step_by(K::Panel::BLOCKS) {
            let end = blocks.min(block + K::Panel::BLOCKS);
            // SAFETY: the features are those of this function, and the caller answers for `C`.
            unsafe { panel.unpack(w, blocks, block, end) };
            for (tile, sums) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                unsafe { panel.multiply(x, block, end, first + TOKENS * tile, sums) };
            }
        }
        for (tile, sums) in sums.iter().enumerate() {
            let token = TOKENS * tile;
            sums.results::<C>(|r, t, value| {
                if token + t < count
                    && let Some(y) = y.get_mut(r * tokens + first + token + t)
                {
                    *y = value;
                }
            });
        }
    }
}
