//! Several tokens: rows unpacked once into panels, and every token of a tile multiplied with them.
//!
//! A panel has 16 rows in its lanes. Four weights of each row meet the same four activations of a token in one instruction,
//! so a result never has to be gathered from the lanes. Two panels are taken at once where there are rows for two, and their
//! sums with several tokens stay in registers; the weights of a panel stay in level 1, the activations of a tile in level 2.

use core::arch::x86_64::*;

use super::lanes::{QUAD, Sums, TILE, join, load_quarter, store_singles, transpose_elements, transpose_tile};
use crate::acts::Acts;
use crate::in_place::{InPlace, blocks_of};
use crate::rows::QuantRows;
use crate::x86::memory::Prefetch;

/// Panels that are multiplied together: each activation on its way from memory serves as many.
pub(super) const PANELS: usize = 2;

/// Tokens for which a panel is unpacked once. Unpacking takes as long as multiplying with about 5 tokens; the sums of the
/// tokens, 256 bytes each, are to fit level 1 or nearly so, and the number is a multiple of the tokens in registers.
const TOKENS: usize = 264;

/// How the tiles of one format are computed.
pub(super) trait Tiles {
    /// A block of weights.
    type Block: InPlace;
    /// The same part of 16 rows, unpacked.
    type Panel;
    /// Weights per block.
    const LEN: usize;
    /// Blocks of a row in a panel.
    const BLOCKS: usize;
    /// Tokens whose sums fit the registers.
    const TOKENS: usize;

    /// A panel of nothing.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn empty() -> Self::Panel;

    /// Fills a panel with blocks of 16 rows: `rows[r][..blocks]`, at least one and at most `BLOCKS`.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn unpack(rows: &[&[Self::Block]; TILE], panel: &mut Self::Panel);

    /// Adds to the sums of `T` tokens, in order of the blocks, what the first `R` panels give; `at` says where they are.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn multiply<const R: usize, const T: usize>(
        panels: &[Self::Panel; PANELS],
        x: &Acts,
        at: Place,
        sums: &mut [[Sums; PANELS]; T],
    );
}

/// Which blocks and tokens are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The first block of the panels, and how many there are.
    pub block: usize,
    pub blocks: usize,
    /// The first token.
    pub token: usize,
}

/// y = W·x for one format.
///
/// Not inlined: the caller also serves single tokens, and should not set up this much of a stack for them.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn matmul<T: Tiles>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], prefetch: Prefetch) {
    let (tokens, blocks) = (x.tokens(), x.cols() / T::LEN);
    // SAFETY: the features are those of this function.
    let mut panels = unsafe { [T::empty(), T::empty()] };
    let mut sums = [[Sums::new(); PANELS]; TOKENS];
    let all = blocks_of::<T::Block>(w);
    for first in (0..tokens).step_by(TOKENS) {
        let sums = &mut sums[..TOKENS.min(tokens - first)];
        for (w, y) in all.chunks(PANELS * TILE * blocks).zip(y.chunks_mut(PANELS * TILE * tokens)) {
            sums.fill([Sums::new(); PANELS]);
            if w.len() > TILE * blocks {
                rows::<T, PANELS>(w, x, first, &mut panels, sums, prefetch);
            } else {
                rows::<T, 1>(w, x, first, &mut panels, sums, prefetch);
            }
            for (panel, y) in y.chunks_mut(TILE * tokens).enumerate() {
                store(sums, panel, &mut y[..], tokens, first);
            }
        }
    }
}

/// The results of one panel to `y` (up to 16 rows × tokens), from token `first` on. Rows lie in the lanes, and 16 tokens
/// of a row make a line of `y`: they are turned in registers, which is a third of the work of storing lane by lane.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn store(sums: &[[Sums; PANELS]], panel: usize, y: &mut [f32], tokens: usize, first: usize) {
    let (tiles, rest) = sums.as_chunks::<TILE>();
    for (i, tile) in tiles.iter().enumerate() {
        let mut lanes = [_mm512_setzero_ps(); TILE];
        for t in 0..TILE {
            lanes[t] = tile[t][panel].lanes();
        }
        for (y, row) in y.chunks_exact_mut(tokens).zip(transpose_tile(lanes)) {
            store_singles(row, &mut y[first + TILE * i..].as_chunks_mut().0[0]);
        }
    }
    for (t, sums) in rest.iter().enumerate() {
        for (y, result) in y.chunks_exact_mut(tokens).zip(sums[panel].results()) {
            y[first + TILE * tiles.len() + t] = result;
        }
    }
}

/// Up to `R` times 16 rows with all tokens that there are sums for. Lanes without a row repeat the last one.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows<T: Tiles, const R: usize>(
    w: &[T::Block],
    x: &Acts,
    first: usize,
    panels: &mut [T::Panel; PANELS],
    sums: &mut [[Sums; PANELS]],
    prefetch: Prefetch,
) {
    let blocks = x.cols() / T::LEN;
    let last = w.len() / blocks - 1;
    // The bytes after these rows, most likely the next ones: asked for in order, as many with each block as it has itself, a
    // little after each panel and each step, since a core drops what it is asked for beyond what it can have on its way.
    let mut next = w.as_ptr_range().end;
    let times = R + sums.len().div_ceil(T::TOKENS);
    for block in (0..blocks).step_by(T::BLOCKS) {
        let here = T::BLOCKS.min(blocks - block);
        let mut left = R * TILE * here / QUAD;
        let each = left.div_ceil(times);
        let mut ask = || {
            for _ in 0..each.min(left) {
                prefetch.blocks::<T::Block, QUAD>(next);
                next = next.wrapping_add(QUAD);
                left -= 1;
            }
        };
        for (p, panel) in panels[..R].iter_mut().enumerate() {
            let mut rows = [w; TILE];
            for r in 0..TILE {
                rows[r] = &w[(TILE * p + r).min(last) * blocks + block..][..here];
            }
            // SAFETY: the features are those of this function.
            unsafe { T::unpack(&rows, panel) };
            ask();
        }
        let mut at = Place { block, blocks: here, token: first };
        let mut sums = &mut *sums;
        while !sums.is_empty() {
            ask();
            if T::TOKENS >= 6 && sums.len() >= 6 {
                step::<T, R, 6>(panels, x, &mut at, &mut sums);
            } else if sums.len() >= 4 {
                step::<T, R, 4>(panels, x, &mut at, &mut sums);
            } else if sums.len() >= 2 {
                step::<T, R, 2>(panels, x, &mut at, &mut sums);
            } else {
                step::<T, R, 1>(panels, x, &mut at, &mut sums);
            }
        }
    }
}

/// The next `N` tokens, for which there are sums.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn step<T: Tiles, const R: usize, const N: usize>(
    panels: &[T::Panel; PANELS],
    x: &Acts,
    at: &mut Place,
    sums: &mut &mut [[Sums; PANELS]],
) {
    let (now, rest) = core::mem::take(sums).split_at_mut(N);
    // SAFETY: the features are those of this function.
    unsafe { T::multiply::<R, N>(panels, x, *at, &mut now.as_chunks_mut().0[0]) };
    at.token += N;
    *sums = rest;
}

/// Lane `r` of result `e` is element `e` of the 16 bytes of row `r`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn transpose(rows: &[&[u8; 16]; TILE]) -> [__m512i; 4] {
    let mut quarters = [_mm512_setzero_si512(); 4];
    for i in 0..4 {
        quarters[i] = join([
            load_quarter(rows[i]),
            load_quarter(rows[4 + i]),
            load_quarter(rows[8 + i]),
            load_quarter(rows[12 + i]),
        ]);
    }
    transpose_elements(quarters)
}

/// 16 of a block's bytes for each row, out of those that `bytes` gives.
#[inline(always)]
pub(super) fn pieces<'a, B, const N: usize>(
    rows: &[&'a B; TILE],
    bytes: impl Fn(&'a B) -> &'a [u8; N],
    index: usize,
) -> [&'a [u8; 16]; TILE] {
    let mut pieces = [&[0; 16]; TILE];
    for r in 0..TILE {
        pieces[r] = &bytes(rows[r]).as_chunks().0[index];
    }
    pieces
}

/// Four activations of a token in every lane.
#[inline(always)]
pub(super) fn four<const N: usize>(a: &[i8; N], index: usize) -> i32 {
    i32::from_le_bytes(a.as_chunks::<4>().0[index].map(|a| a as u8))
}
