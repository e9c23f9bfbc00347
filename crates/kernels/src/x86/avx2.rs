//! The border of AVX2: everything inside is compiled with its features.

use core::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

use crate::isa::Portable;
use crate::numbers::f16_to_f32;

/// Compiles portable code with wide registers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<P: Portable>(code: P) -> P::Out {
    code.run()
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
            _mm256_storeu_ps(
                out.as_mut_ptr(),
                _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast())),
            )
        };
    }
    for (&half, out) in tail.iter().zip(&mut out[whole..]) {
        *out = f16_to_f32(half);
    }
}
