//! Many tokens with the formats of 256 weights per block on the tile unit (AMX).
//!
//! Scales are folded into the weights and shifts into the activations, so that a sum runs over a whole block and is scaled once:
//! S = Σ w·a with w = scale·q, at most 4127 in magnitude, and a = q·2^shift, at most 1016. Both are split into two bytes in
//! base 64, x = low + 64·high with −32 ≤ low < 32, and three products give the four (Karatsuba):
//! w·a = ll + 64·((low + high)·(low + high) − ll − hh) + 4096·hh. Every number of them fits a signed byte, every sum 32 bits, so S is
//! exactly the integer of the other levels, and so are the bits of the results.
//!
//! 32 rows stand in two tiles, 16 tokens in the elements of a tile's rows. The three planes of a block of 32 rows, 24 KB, are
//! unpacked once for all tokens of a call; those of the activations come with them (`acts::Planes`).

mod tile;

use core::arch::x86_64::*;

use self::tile::{SIDE, Tile, TileSums, Tiles};
use super::avx2::per_256::Wide;
use super::avx512::lanes::{Sums, load, load_singles, store_singles};
use crate::acts::{Acts, PLANES, Planes};
use crate::blocks::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};
use crate::format::Format;
use crate::in_place::blocks_of;
use crate::numbers::f16_to_f32;
use crate::rows::QuantRows;

pub(super) use self::tile::detect;

/// Rows that are multiplied together: each tile of activations serves both.
const PAIR: usize = 2;
const ROWS: usize = PAIR * SIDE;

/// Tiles of 64 columns in a block.
const STEPS: usize = 4;

/// Tokens for which a block of weights is unpacked once. Their planes of a block are 400 KB, which fit level 2 while they meet
/// [`SOME`] rows.
const TOKENS: usize = 512;

/// Rows that meet a block of activations before the next one. Their sums with all tokens, twice 4 bytes each, are 780 KB.
const SOME: usize = 6 * ROWS;

/// Bytes on the heap for each token of a product: sums of the minima, and the panel's 26 KB where there are 16 tokens or more.
pub(super) const SCRATCH_PER_TOKEN: usize = SOME * size_of::<f32>() + size_of::<Panel>() / SIDE;

/// A block of 32 rows.
struct Panel {
    /// By plane, step and sixteen rows.
    q: [[[Tile; PAIR]; STEPS]; PLANES],
    /// Per row, the minima of two neighbouring groups of 16 weights each, 16 bits wide.
    min: [[i32; 8]; ROWS],
    d: [f32; ROWS],
    dmin: [f32; ROWS],
}

/// A product of one format.
pub(super) type Product = unsafe fn(QuantRows<'_>, &Acts, &Planes, &mut [f32]);

/// The product of a format, if the unit is for it.
pub(super) fn product(format: Format) -> Option<Product> {
    match format {
        Format::Q2_K => Some(matmul::<BlockQ2K>),
        Format::Q3_K => Some(matmul::<BlockQ3K>),
        Format::Q4_K => Some(matmul::<BlockQ4K>),
        Format::Q5_K => Some(matmul::<BlockQ5K>),
        Format::Q6_K => Some(matmul::<BlockQ6K>),
        Format::IQ4_XS => Some(matmul::<BlockIq4Xs>),
        _ => None,
    }
}

/// y = W·x for one format; shapes and forms have been checked.
///
/// # Safety
/// [`detect`] must have said yes, and the CPU must have all that the AVX-512 level asks for.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn matmul<B: Wide>(w: QuantRows<'_>, x: &Acts, planes: &Planes, y: &mut [f32]) {
    // SAFETY: the caller vouches for the unit.
    let tiles = unsafe { Tiles::new() };
    let (tokens, blocks) = (x.tokens(), x.cols() / 256);
    let mut panel = Box::new(Panel {
        q: [[[Tile::ZERO; PAIR]; STEPS]; PLANES],
        min: [[0; 8]; ROWS],
        d: [0.0; ROWS],
        dmin: [0.0; ROWS],
    });
    let mut sums = [[TileSums::ZERO; PLANES]; PAIR];
    let some = SOME.min(w.rows().next_multiple_of(ROWS));
    let mut minima = vec![0.0; if B::HAS_MIN { some * tokens.min(TOKENS).next_multiple_of(SIDE) } else { 0 }];
    let all = blocks_of::<B>(w);
    for first in (0..tokens).step_by(TOKENS) {
        let here = TOKENS.min(tokens - first);
        let each = ROWS * here.next_multiple_of(SIDE);
        for (w, y) in all.chunks(some * blocks).zip(y.chunks_mut(some * tokens)) {
            for block in 0..blocks {
                for (at, (w, y)) in w.chunks(ROWS * blocks).zip(y.chunks_mut(ROWS * tokens)).enumerate() {
                    for (row, w) in w.chunks_exact(blocks).enumerate() {
                        unpack(&w[block], row, &mut panel);
                    }
                    for token in (first..first + here).step_by(SIDE) {
                        let at = at * each + (token - first) * ROWS;
                        let minima = minima.get_mut(at..).unwrap_or_default();
                        let place = Place { block, token, rows: w.len() / blocks };
                        if place.rows > SIDE {
                            multiply::<B, PAIR>(&tiles, &panel, x, planes, place, &mut sums, minima, y);
                        } else {
                            multiply::<B, 1>(&tiles, &panel, x, planes, place, &mut sums, minima, y);
                        }
                    }
                }
            }
        }
    }
}

/// Which products are computed.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    /// The first of 16 tokens.
    token: usize,
    /// How many of the panel's rows are real.
    rows: usize,
}

/// A block to row `row` of the panel.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unpack<B: Wide>(w: &B, row: usize, panel: &mut Panel) {
    // SAFETY: the features are among those of this function.
    let weights = unsafe { w.weights() };
    let scales = _mm512_castsi256_si512(weights.scales);
    let (half, mask) = (_mm512_set1_epi16(32), _mm512_set1_epi16(63));
    // Packing works within quarters: 8 bytes of the first and 8 of the second register by turns.
    let in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for step in 0..STEPS {
        let mut low = [half; 2];
        let mut high = [half; 2];
        for i in 0..2 {
            let k = 2 * step + i;
            let q = if B::SIGNED {
                _mm512_cvtepi8_epi16(weights.q[k])
            } else {
                _mm512_sub_epi16(_mm512_cvtepu8_epi16(weights.q[k]), _mm512_set1_epi16(B::OFFSET as i16))
            };
            // Word k of each half of the table to a half of the register.
            let order = _mm512_inserti64x4::<1>(_mm512_set1_epi16(k as i16), _mm256_set1_epi16(k as i16 + 8));
            let w = _mm512_mullo_epi16(q, _mm512_permutexvar_epi16(order, scales));
            low[i] = _mm512_sub_epi16(_mm512_and_si512(_mm512_add_epi16(w, half), mask), half);
            high[i] = _mm512_srai_epi16::<6>(_mm512_sub_epi16(w, low[i]));
        }
        let low = _mm512_permutexvar_epi64(in_order, _mm512_packs_epi16(low[0], low[1]));
        let high = _mm512_permutexvar_epi64(in_order, _mm512_packs_epi16(high[0], high[1]));
        for (plane, v) in [low, high, _mm512_add_epi8(low, high)].into_iter().enumerate() {
            let to = &mut panel.q[plane][step][row / SIDE].0[row % SIDE];
            // SAFETY: there is room for 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), v) };
        }
    }
    let head = w.head();
    panel.d[row] = f16_to_f32([head[0], head[1]]);
    if B::HAS_MIN {
        panel.dmin[row] = f16_to_f32([head[2], head[3]]);
        // SAFETY: there is room for 32 bytes.
        unsafe { _mm256_storeu_si256(panel.min[row].as_mut_ptr().cast(), weights.per_16) };
    }
}

/// 16 tokens with up to `R` times 16 rows: what they gather is in `y` (rows × tokens), that of the minima in `minima` (rows × 16).
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply<B: Wide, const R: usize>(
    tiles: &Tiles,
    panel: &Panel,
    x: &Acts,
    planes: &Planes,
    at: Place,
    sums: &mut [[TileSums; PLANES]; PAIR],
    minima: &mut [f32],
    y: &mut [f32],
) {
    let (form, tokens, blocks) = (x.per_256(), x.tokens(), x.cols() / 256);
    let here = planes.tile(at.token / SIDE * blocks + at.block);
    tiles.zero::<0>();
    tiles.zero::<1>();
    tiles.zero::<2>();
    if R == PAIR {
        tiles.zero::<3>();
        tiles.zero::<4>();
        tiles.zero::<5>();
    }
    for step in 0..STEPS {
        step_of::<0, 3, R>(tiles, &panel.q[0][step], as_tile(&here.q[0][step]));
        step_of::<1, 4, R>(tiles, &panel.q[1][step], as_tile(&here.q[1][step]));
        step_of::<2, 5, R>(tiles, &panel.q[2][step], as_tile(&here.q[2][step]));
    }
    tiles.store::<0>(&mut sums[0][0]);
    tiles.store::<1>(&mut sums[0][1]);
    tiles.store::<2>(&mut sums[0][2]);
    if R == PAIR {
        tiles.store::<3>(&mut sums[1][0]);
        tiles.store::<4>(&mut sums[1][1]);
        tiles.store::<5>(&mut sums[1][2]);
    }
    // Behind the last scale there are as many spare ones as a register holds.
    let dx = load_singles(form.scales[at.block * tokens + at.token..].first_chunk().expect("spare scales"));
    let count = SIDE.min(tokens - at.token);
    let real = if count == SIDE { !0 } else { (1 << count) - 1 };
    let (is_first, is_last) = (at.block == 0, at.block + 1 == blocks);
    for (row, y) in y.chunks_exact_mut(tokens).enumerate() {
        let [low, high, both] = &sums[row / SIDE];
        let (low, high, both) =
            (load(&low.0[row % SIDE]), load(&high.0[row % SIDE]), load(&both.0[row % SIDE]));
        let middle = _mm512_sub_epi32(_mm512_sub_epi32(both, low), high);
        let s = _mm512_add_epi32(low, _mm512_slli_epi32::<6>(middle));
        let s = _mm512_add_epi32(s, _mm512_slli_epi32::<12>(high));
        let y = &mut y[at.token..at.token + count];
        let mut gathered = Sums::new();
        if !is_first {
            // SAFETY: the mask ends where the tokens do, and so does the slice.
            gathered.acc = unsafe { _mm512_maskz_loadu_ps(real, y.as_ptr()) };
        }
        gathered.add(_mm512_set1_ps(panel.d[row]), dx, s);
        if B::HAS_MIN {
            let mut m = _mm512_setzero_si512();
            for pair in 0..8 {
                m = _mm512_dpwssd_epi32(m, _mm512_set1_epi32(panel.min[row][pair]), load(&here.sums[pair]));
            }
            let to = minima[row * SIDE..].first_chunk_mut().expect("room for every row");
            if !is_first {
                gathered.accm = load_singles(to);
            }
            gathered.add_min(_mm512_set1_ps(panel.dmin[row]), dx, m);
            store_singles(gathered.accm, to);
        }
        let results = if is_last { gathered.lanes() } else { gathered.acc };
        // SAFETY: as above.
        unsafe { _mm512_mask_storeu_ps(y.as_mut_ptr(), real, results) };
    }
}

/// One plane of 64 columns.
#[inline(always)]
fn step_of<const FIRST: u8, const SECOND: u8, const R: usize>(tiles: &Tiles, w: &[Tile; PAIR], a: &Tile) {
    tiles.load::<7>(a);
    tiles.load::<6>(&w[0]);
    tiles.multiply::<FIRST, 6, 7>();
    if R == PAIR {
        tiles.load::<6>(&w[1]);
        tiles.multiply::<SECOND, 6, 7>();
    }
}

/// Activations as a tile.
#[inline(always)]
fn as_tile(bytes: &[i8; 1024]) -> &Tile {
    // SAFETY: 1024 bytes; `Planes` aligns them to 64, as a tile is.
    unsafe { &*core::ptr::from_ref(bytes).cast() }
}
