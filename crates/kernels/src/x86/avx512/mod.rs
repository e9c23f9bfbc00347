//! The border of AVX-512: everything inside is compiled with its features, and only `x86::Avx512` leads in.
//!
//! Results stand in the lanes of a register, a row to each: `rows_*` takes one token and brings 16 rows into the lanes by
//! transposing their sums, `tiles_*` takes several and transposes the weights, once for all of them. Either way each lane adds
//! its blocks in the order that `scalar` does. The features named throughout include those of AVX2.

mod floats;
pub(super) mod lanes;
mod rows_256;
mod rows_256_few_bits;
mod rows_32;
mod tiles;
mod tiles_256;
mod tiles_32;

use core::arch::x86_64::{_mm512_add_ps, _mm512_setzero_ps};
use core::ops::Range;

use self::lanes::{QUAD, TILE, load_singles, store_singles, transpose_tile};
use crate::acts::Acts;
use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::format::Format;
use crate::in_place::blocks_of;
use crate::isa::Portable;
use crate::rows::QuantRows;
use crate::transpose::{SIDE, put};
use crate::tuning::Tuning;
use crate::wide::Wide;
use crate::x86::Avx512;
use crate::x86::memory::Prefetch;
use crate::x86::wide::Lanes1;

/// y = W·x; shapes and forms have been checked, and there is at least one row and one token.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn matmul(w: QuantRows<'_>, x: &Acts, y: &mut [f32], tuning: Tuning) {
    let ask = Prefetch::new(tuning);
    match w.format() {
        Format::F32 => floats::matmul::<floats::Single, 4>(w, x, y, ask),
        Format::F16 => floats::matmul::<floats::Half, 2>(w, x, y, ask),
        Format::BF16 => floats::matmul::<floats::Brain, 2>(w, x, y, ask),
        Format::Q4_0 => per_32::<BlockQ4_0>(w, x, y, ask),
        Format::Q4_1 => per_32::<BlockQ4_1>(w, x, y, ask),
        Format::Q5_0 => per_32::<BlockQ5_0>(w, x, y, ask),
        Format::Q5_1 => per_32::<BlockQ5_1>(w, x, y, ask),
        Format::Q8_0 => per_32::<BlockQ8_0>(w, x, y, ask),
        Format::Q2_K => per_256::<BlockQ2K>(w, x, y, ask),
        Format::Q3_K => per_256::<BlockQ3K>(w, x, y, ask),
        Format::Q4_K => per_256::<BlockQ4K>(w, x, y, ask),
        Format::Q5_K => per_256::<BlockQ5K>(w, x, y, ask),
        Format::Q6_K => per_256::<BlockQ6K>(w, x, y, ask),
        Format::IQ4_NL => per_32::<BlockIq4Nl>(w, x, y, ask),
        Format::IQ4_XS => per_256::<BlockIq4Xs>(w, x, y, ask),
    }
}

/// Compiles portable code with the widest registers.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn run<P: Portable>(code: P) -> P::Out {
    code.run()
}

/// Compiles code for sixteen lanes with registers of this level.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn run_wide<W: Wide>(proof: Avx512, code: W) -> W::Out {
    code.run::<Lanes1>(proof)
}

/// Turns `columns` of `y` (rows × stride) to `out` (columns × rows), or adds them to it; all lengths have been checked.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn turn<const ADD: bool>(y: &[f32], stride: usize, columns: Range<usize>, out: &mut [f32]) {
    let rows = y.len() / stride;
    let (whole_rows, whole_columns) = (rows - rows % SIDE, columns.len() - columns.len() % SIDE);
    for r in (0..whole_rows).step_by(SIDE) {
        for c in (0..whole_columns).step_by(SIDE) {
            let mut tile = [_mm512_setzero_ps(); SIDE];
            for (i, v) in tile.iter_mut().enumerate() {
                *v = load_singles(&y[(r + i) * stride + columns.start + c..].as_chunks().0[0]);
            }
            for (i, mut v) in transpose_tile(tile).into_iter().enumerate() {
                let out = &mut out[(c + i) * rows + r..].as_chunks_mut().0[0];
                if ADD {
                    v = _mm512_add_ps(load_singles(out), v);
                }
                store_singles(v, out);
            }
        }
    }
    for c in 0..columns.len() {
        for r in if c < whole_columns { whole_rows } else { 0 }..rows {
            put::<ADD>(&mut out[c * rows + r], y[r * stride + columns.start + c]);
        }
    }
}

/// y = W·x for a format with 256 weights per block.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn per_256<B: rows_256::Rows + tiles_256::Unpack>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    let (tokens, blocks) = (x.tokens(), x.cols() / 256);
    if tokens > 1 {
        return tiles::matmul::<tiles_256::Per256<B>>(w, x, y, ask);
    }
    if blocks * size_of::<B>() >= rows_256::LONG {
        for (w, y) in blocks_of::<B>(w).chunks(QUAD * blocks).zip(y.chunks_mut(QUAD)) {
            let results = rows_256::long_rows(w, blocks, x.per_256(), ask);
            y.copy_from_slice(&results[..y.len()]);
        }
        return;
    }
    for (w, y) in blocks_of::<B>(w).chunks(TILE * blocks).zip(y.chunks_mut(TILE)) {
        let results = rows_256::rows(w, blocks, x.per_256(), ask);
        y.copy_from_slice(&results[..y.len()]);
    }
}

/// y = W·x for a format with 32 weights per block.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn per_32<B: rows_32::Rows + tiles_32::Unpack>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    let (tokens, blocks) = (x.tokens(), x.cols() / 32);
    if tokens > 1 || blocks < rows_32::TOGETHER {
        return tiles::matmul::<tiles_32::Per32<B>>(w, x, y, ask);
    }
    for (w, y) in blocks_of::<B>(w).chunks(TILE * blocks).zip(y.chunks_mut(TILE)) {
        let results = rows_32::rows(w, blocks, x.per_32(), ask);
        y.copy_from_slice(&results[..y.len()]);
    }
}
