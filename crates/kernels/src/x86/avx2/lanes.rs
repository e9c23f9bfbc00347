//! What the AVX2 kernels share: loads, eight sums at once, eight halves from eight rows, the sums of a tile.

use core::arch::x86_64::*;

use super::tiles::TILE;
use crate::numbers::NAN;

/// 32 bytes of integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load<T: Copy, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(size_of::<[T; N]>() == 32) };
    // SAFETY: 32 bytes are there, at any alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_half<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(size_of::<[T; N]>() == 16) };
    // SAFETY: 16 bytes are there, at any alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// 8 singles.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_ps(from: &[f32; 8]) -> __m256 {
    // SAFETY: 8 singles are there, at any alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

/// Lane `i` is the sum of the eight lanes of `v[i]`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_each(v: &[__m256i; TILE]) -> __m256i {
    let pairs_01 = _mm256_hadd_epi32(v[0], v[1]);
    let pairs_23 = _mm256_hadd_epi32(v[2], v[3]);
    let pairs_45 = _mm256_hadd_epi32(v[4], v[5]);
    let pairs_67 = _mm256_hadd_epi32(v[6], v[7]);
    let quads_0123 = _mm256_hadd_epi32(pairs_01, pairs_23);
    let quads_4567 = _mm256_hadd_epi32(pairs_45, pairs_67);
    let low = _mm256_permute2x128_si256::<0x20>(quads_0123, quads_4567);
    let high = _mm256_permute2x128_si256::<0x31>(quads_0123, quads_4567);
    _mm256_add_epi32(low, high)
}

/// The first halves of eight heads, as singles. No closures here: one would not be inlined into the array functions of
/// the standard library, which are compiled without wide registers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn first_halves(heads: &[[u8; 4]; TILE]) -> __m256 {
    let mut h = [0; TILE];
    for i in 0..TILE {
        h[i] = i16::from_le_bytes([heads[i][0], heads[i][1]]);
    }
    let h = _mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
    _mm256_cvtph_ps(h)
}

/// Both halves of eight heads, as singles.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn both_halves(heads: &[[u8; 4]; TILE]) -> (__m256, __m256) {
    let h = heads.map(i32::from_le_bytes);
    let pairs = _mm256_setr_epi32(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
    let first = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
    let second = _mm256_srli_epi32::<16>(pairs);
    // Packing works within halves of the register: 0..4 and 4..8 of the first stand in quarters 0 and 2.
    let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(first, second));
    let (first, second) = (_mm256_castsi256_si128(packed), _mm256_extracti128_si256::<1>(packed));
    (_mm256_cvtph_ps(first), _mm256_cvtph_ps(second))
}

/// The scale and, if there is one, the minimum of each of eight blocks.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn scales_of_eight(heads: &[[u8; 4]; TILE], has_min: bool) -> (__m256, __m256) {
    if has_min { both_halves(heads) } else { (first_halves(heads), _mm256_setzero_ps()) }
}

/// The scale and, if there is one, the minimum of one block, in all lanes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn scales_of_one(head: [u8; 4], has_min: bool) -> (__m256, __m256) {
    let scale = _mm_set1_epi16(i16::from_le_bytes([head[0], head[1]]));
    let min = _mm_set1_epi16(i16::from_le_bytes([head[2], head[3]]));
    (_mm256_cvtph_ps(scale), if has_min { _mm256_cvtph_ps(min) } else { _mm256_setzero_ps() })
}

/// What a tile has gathered so far: `acc` and `accm` of `scalar`, for eight results.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    acc: __m256,
    accm: __m256,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new() -> Self {
        Self { acc: _mm256_setzero_ps(), accm: _mm256_setzero_ps() }
    }

    /// Adds d·dx·S of a block to each lane.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add(&mut self, d: __m256, dx: __m256, s: __m256i) {
        self.acc = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), self.acc);
    }

    /// Adds dmin·dx·M of a block to what comes off each lane.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add_min(&mut self, dmin: __m256, dx: __m256, m: __m256i) {
        self.accm = _mm256_fmadd_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(m), self.accm);
    }

    /// The results; every NaN becomes the same one, as in `numbers::canonical`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn results(self) -> [f32; TILE] {
        let v = _mm256_sub_ps(self.acc, self.accm);
        let nan = _mm256_set1_ps(NAN);
        let v = _mm256_blendv_ps(v, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let mut out = [0.0; TILE];
        // SAFETY: the array has room for 8 singles.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) };
        out
    }
}
