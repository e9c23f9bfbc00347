//! One token, block after block as they lie in memory: one stream per core, which is what a prefetcher follows best.
//!
//! 16 blocks that follow one another stand in the lanes, wherever rows end. What the definition of the bits adds in order of
//! a row's blocks is added one by one from memory, while the next blocks are multiplied. Every block loads its own
//! activations, which lie ready in the order that its format wants, the first ones once more behind the last.

use core::arch::x86_64::*;

use super::lanes::{
    QUAD, TILE, add_quarters, halves, load, load_singles, store_singles, sum_quarters,
    swap_quarters_and_elements,
};
use super::rows_32::{self, TOGETHER};
use super::rows_256::{self, Acts256, Each};
use crate::acts::Form;
use crate::numbers::canonical;
use crate::x86::memory::Ahead;

/// Blocks from which on this way is open: a tile is whole, the last one may overlap the one before.
pub(super) const LEAST: usize = TILE;

/// d·dx and S of 16 blocks, and dmin·dx and M where the format has minima.
#[derive(Default)]
struct Terms {
    d: [f32; TILE],
    s: [f32; TILE],
    dmin: [f32; TILE],
    m: [f32; TILE],
}

/// Adds blocks to rows in order.
struct Chain<'a> {
    blocks: usize,
    /// Blocks of the first of `y` that have been added.
    done: usize,
    acc: f32,
    accm: f32,
    y: &'a mut [f32],
}

impl Chain<'_> {
    /// Adds the blocks of a tile from `from` on.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn add<const HAS_MIN: bool>(&mut self, terms: &Terms, mut from: usize) {
        while from < TILE {
            let here = (self.blocks - self.done).min(TILE - from);
            for i in from..from + here {
                self.acc = terms.d[i].mul_add(terms.s[i], self.acc);
                if HAS_MIN {
                    self.accm = terms.dmin[i].mul_add(terms.m[i], self.accm);
                }
            }
            (from, self.done) = (from + here, self.done + here);
            if self.done == self.blocks {
                let Some((y, rest)) = core::mem::take(&mut self.y).split_first_mut() else { return };
                *y = canonical(self.acc - self.accm);
                (self.acc, self.accm, self.done, self.y) = (0.0, 0.0, 0, rest);
            }
        }
    }
}

/// `values`, then the first `more` of them, over and over if there are fewer.
fn cyclic<T: Clone>(values: &[T], more: usize) -> Vec<T> {
    values.iter().cycle().take(values.len() + more).cloned().collect()
}

/// Where tiles begin, and how many of a tile's blocks the one before had.
fn tiles(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(TILE).map(move |begin| {
        let start = begin.min(count - TILE);
        (start, begin - start)
    })
}

/// The only token with all rows (at least [`LEAST`] blocks in all), each of `blocks` blocks.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn per_256<B: rows_256::Rows>(
    w: &[B],
    blocks: usize,
    form: &Form<i16>,
    ahead: Ahead,
    y: &mut [f32],
) {
    // SAFETY: the features are those of this function.
    let a: Vec<Acts256> = (0..blocks).map(|block| unsafe { B::acts(form.group(block)) }).collect();
    let (a, scales) = (cyclic(&a, QUAD - 1), cyclic(&form.scales[..blocks], TILE - 1));
    let mut chain = Chain { blocks, done: 0, acc: 0.0, accm: 0.0, y };
    let mut terms = Terms::default();
    for (start, known) in tiles(w.len()) {
        let phase = start % blocks;
        let tile: &[B; TILE] = w[start..].first_chunk().expect("a whole tile");
        let (mut s, mut m) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        let mut heads = [0; TILE];
        let mut at = phase;
        for (quad, w) in tile.as_chunks::<QUAD>().0.iter().enumerate() {
            ahead.of(w);
            for r in 0..QUAD {
                heads[QUAD * quad + r] = i32::from_le_bytes(w[r].head());
            }
            let a = Each(a[at..].first_chunk().expect("activations, the first ones twice"));
            // SAFETY: the features are those of this function.
            let products = unsafe { B::quad([&w[0], &w[1], &w[2], &w[3]], a) };
            (s[quad], m[quad]) = (sum_quarters(products.s), products.m);
            at = next(at, QUAD, blocks);
        }
        let (d, dmin) = halves(load(&heads));
        let dx = load_singles(scales[phase..].first_chunk().expect("scales, the first ones twice"));
        store_singles(_mm512_mul_ps(d, dx), &mut terms.d);
        store_singles(_mm512_cvtepi32_ps(add_quarters(s)), &mut terms.s);
        if B::HAS_MIN {
            store_singles(_mm512_mul_ps(dmin, dx), &mut terms.dmin);
            let m = swap_quarters_and_elements(sum_quarters(m));
            store_singles(_mm512_cvtepi32_ps(m), &mut terms.m);
            chain.add::<true>(&terms, known);
        } else {
            chain.add::<false>(&terms, known);
        }
    }
}

/// Which block of a row comes `step` after block `at`.
#[inline(always)]
fn next(at: usize, step: usize, blocks: usize) -> usize {
    let mut at = at + step;
    while at >= blocks {
        at -= blocks;
    }
    at
}

/// As [`per_256`], with 32 weights per block.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn per_32<B: rows_32::Rows>(
    w: &[B],
    blocks: usize,
    form: &Form<i32>,
    ahead: Ahead,
    y: &mut [f32],
) {
    let a = cyclic(&form.q.as_chunks::<32>().0[..blocks], TOGETHER - 1);
    let (scales, a_sums) = (cyclic(&form.scales[..blocks], TILE - 1), cyclic(&form.sums[..blocks], TILE - 1));
    let mut chain = Chain { blocks, done: 0, acc: 0.0, accm: 0.0, y };
    let mut terms = Terms::default();
    for (start, known) in tiles(w.len()) {
        let phase = start % blocks;
        let tile: &[B; TILE] = w[start..].first_chunk().expect("a whole tile");
        let (mut s, mut heads) = ([_mm512_setzero_si512(); 4], _mm512_setzero_si512());
        let mut at = phase;
        for (four, w) in tile.as_chunks::<TOGETHER>().0.iter().enumerate() {
            ahead.of(w);
            let a = rows_32::acts(a[at..].first_chunk().expect("activations, the first ones twice"));
            // SAFETY: the features are those of this function.
            let q = unsafe { B::weights(w) };
            s[four] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(s[four], q[0], a[0]), q[1], a[1]);
            heads = _mm512_mask_mov_epi32(heads, 0x1111 << four, rows_32::heads(w));
            at = next(at, TOGETHER, blocks);
        }
        let (d, m) = halves(swap_quarters_and_elements(heads));
        let dx = load_singles(scales[phase..].first_chunk().expect("scales, the first ones twice"));
        let a_sums = load(a_sums[phase..].first_chunk::<TILE>().expect("sums, the first ones twice"));
        let s = swap_quarters_and_elements(sum_quarters(s));
        let s = _mm512_sub_epi32(s, _mm512_mullo_epi32(a_sums, _mm512_set1_epi32(B::OFFSET)));
        store_singles(_mm512_mul_ps(d, dx), &mut terms.d);
        store_singles(_mm512_cvtepi32_ps(s), &mut terms.s);
        if B::HAS_MIN {
            // The minimum is added to the weights, so it is −m that comes off.
            let dmin = _mm512_xor_ps(m, _mm512_set1_ps(-0.0));
            store_singles(_mm512_mul_ps(dmin, dx), &mut terms.dmin);
            store_singles(_mm512_cvtepi32_ps(a_sums), &mut terms.m);
            chain.add::<true>(&terms, known);
        } else {
            chain.add::<false>(&terms, known);
        }
    }
}
