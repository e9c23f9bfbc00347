//! Sixteen singles in registers: two of AVX2, or one of AVX-512.
//!
//! Every function is inlined into code that is compiled with the level's features, and a value can only be made with the
//! proof that the CPU has them.

use core::arch::x86_64::*;

use super::{Avx2, Avx512};
use crate::numbers::{LANES, NAN};
use crate::wide::Lanes;

/// Two registers of eight.
#[derive(Clone, Copy)]
pub(super) struct Lanes2([__m256; 2]);

impl Lanes for Lanes2 {
    type Proof = Avx2;

    #[inline(always)]
    fn splat(_proof: Avx2, value: f32) -> Self {
        // SAFETY: the proof says that the CPU has AVX.
        Self(unsafe { [_mm256_set1_ps(value); 2] })
    }

    #[inline(always)]
    fn load(_proof: Avx2, from: &[f32; LANES]) -> Self {
        // SAFETY: as in `splat`; there are 16 singles, and any alignment will do.
        Self(unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] })
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: `self` was made with the proof that the CPU has AVX2 and FMA.
        Self(unsafe {
            [_mm256_fmadd_ps(a.0[0], b.0[0], self.0[0]), _mm256_fmadd_ps(a.0[1], b.0[1], self.0[1])]
        })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `fma`.
        Self(unsafe { [_mm256_add_ps(self.0[0], other.0[0]), _mm256_add_ps(self.0[1], other.0[1])] })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: as in `fma`; there is room for 16 singles, and any alignment will do.
        unsafe {
            for (i, v) in self.0.into_iter().enumerate() {
                let v = _mm256_blendv_ps(v, _mm256_set1_ps(NAN), _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
                _mm256_storeu_ps(to.as_mut_ptr().add(8 * i), v);
            }
        }
    }
}

/// One register of sixteen.
#[derive(Clone, Copy)]
pub(super) struct Lanes1(__m512);

impl Lanes for Lanes1 {
    type Proof = Avx512;

    #[inline(always)]
    fn splat(_proof: Avx512, value: f32) -> Self {
        // SAFETY: the proof says that the CPU has AVX-512.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    fn load(_proof: Avx512, from: &[f32; LANES]) -> Self {
        // SAFETY: as in `splat`; there are 16 singles, and any alignment will do.
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: `self` was made with the proof that the CPU has AVX-512.
        Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `fma`.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: as in `fma`; there is room for 16 singles, and any alignment will do.
        unsafe {
            let odd = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mask_mov_ps(self.0, odd, _mm512_set1_ps(NAN)));
        }
    }
}
