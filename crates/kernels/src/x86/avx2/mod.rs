//! The border of AVX2: everything inside is compiled with its features, and only `x86::Avx2` leads in.
//!
//! A tile is 8 results in the lanes of one register: 8 rows with one token when decoding, 8 tokens with one row otherwise,
//! where a block is unpacked once for all 8. Many tokens with a K format meet `panels` of 8 rows instead. However it is done,
//! each lane adds its blocks in the order that `scalar` does.

mod floats;
mod lanes;
mod panels;
mod per_256;
mod per_32;
mod tiles;

use core::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

use self::per_32::Per32;
use self::per_256::Per256;
use crate::acts::Acts;
use crate::blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0,
};
use crate::format::Format;
use crate::isa::Portable;
use crate::numbers::f16_to_f32;
use crate::rows::QuantRows;
use crate::tuning::Tuning;
use crate::wide::Wide;
use crate::x86::Avx2;
use crate::x86::memory::Prefetch;
use crate::x86::wide::Lanes2;

/// y = W·x; shapes and forms have been checked, and there is at least one row and one token.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul(w: QuantRows<'_>, x: &Acts, y: &mut [f32], tuning: Tuning) {
    let ask = Prefetch::new(tuning);
    match w.format() {
        Format::F32 => floats::matmul::<floats::Single, 4>(w, x, y, ask),
        Format::F16 => floats::matmul::<floats::Half, 2>(w, x, y, ask),
        Format::BF16 => floats::matmul::<floats::Brain, 2>(w, x, y, ask),
        Format::Q4_0 => tiles::matmul::<Per32<BlockQ4_0>>(w, x, y, ask),
        Format::Q4_1 => tiles::matmul::<Per32<BlockQ4_1>>(w, x, y, ask),
        Format::Q5_0 => tiles::matmul::<Per32<BlockQ5_0>>(w, x, y, ask),
        Format::Q5_1 => tiles::matmul::<Per32<BlockQ5_1>>(w, x, y, ask),
        Format::Q8_0 => tiles::matmul::<Per32<BlockQ8_0>>(w, x, y, ask),
        Format::Q2_K => small::<BlockQ2K>(w, x, y, ask),
        Format::Q3_K => small::<BlockQ3K>(w, x, y, ask),
        Format::Q4_K => small::<BlockQ4K>(w, x, y, ask),
        Format::Q5_K => small::<BlockQ5K>(w, x, y, ask),
        Format::Q6_K => small::<BlockQ6K>(w, x, y, ask),
        Format::IQ4_NL => tiles::matmul::<Per32<BlockIq4Nl>>(w, x, y, ask),
        Format::IQ4_XS => tiles::matmul::<Per256<BlockIq4Xs>>(w, x, y, ask),
    }
}

/// y = W·x for a K format, in panels where there are tokens enough.
#[target_feature(enable = "avx2,fma,f16c")]
fn small<B: panels::Small>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], ask: Prefetch) {
    if x.tokens() < panels::WORTHWHILE {
        tiles::matmul::<Per256<B>>(w, x, y, ask)
    } else {
        panels::matmul::<B>(w, x, y)
    }
}

/// Compiles portable code with wide registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<P: Portable>(code: P) -> P::Out {
    code.run()
}

/// Compiles code for sixteen lanes with registers of this level.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_wide<W: Wide>(proof: Avx2, code: W) -> W::Out {
    code.run::<Lanes2>(proof)
}

/// Halves to singles, as many as the shorter of the two holds.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn decode_f16(halves: &[[u8; 2]], out: &mut [f32]) {
    let (groups, tail) = halves.as_chunks::<8>();
    let (out_groups, _) = out.as_chunks_mut::<8>();
    let whole = groups.len().min(out_groups.len()) * 8;
    for (halves, out) in groups.iter().zip(out_groups) {
        // SAFETY: reads the 16 bytes of `halves` and writes the 8 singles of `out`, at any alignment.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast())))
        };
    }
    for (&half, out) in tail.iter().zip(&mut out[whole..]) {
        *out = f16_to_f32(half);
    }
}
