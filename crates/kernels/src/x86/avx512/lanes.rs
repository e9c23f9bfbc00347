//! What the AVX-512 kernels share: loads, transposing four rows at a time, the sums of a tile.

use core::arch::x86_64::*;

use crate::numbers::NAN;

/// Rows in a tile: the singles in a register.
pub(super) const TILE: usize = 16;

/// Rows whose registers are transposed together; a tile is four times as many.
pub(super) const QUAD: usize = 4;

/// 64 bytes of integers.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in crate::x86) fn load<T: Copy, const N: usize>(from: &[T; N]) -> __m512i {
    const { assert!(size_of::<[T; N]>() == 64) };
    // SAFETY: 64 bytes are there, at any alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// 32 bytes of integers.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn load_half<T: Copy, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(size_of::<[T; N]>() == 32) };
    // SAFETY: 32 bytes are there, at any alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes of integers.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn load_quarter<T: Copy, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(size_of::<[T; N]>() == 16) };
    // SAFETY: 16 bytes are there, at any alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Four times 16 bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn join(quarters: [__m128i; 4]) -> __m512i {
    let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(quarters[0]), quarters[1]);
    let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(quarters[2]), quarters[3]);
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Quarter `l`, element `i` is the sum of quarter `l` of `v[i]`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn sum_quarters(v: [__m512i; QUAD]) -> __m512i {
    let pairs_01 = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let pairs_23 = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(pairs_01, pairs_23), _mm512_unpackhi_epi64(pairs_01, pairs_23))
}

/// Quarter `q` is the sum of the quarters of `v[q]`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn add_quarters(v: [__m512i; 4]) -> __m512i {
    let low = |a, b| _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
    let high = |a, b| _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
    let pairs_01 = _mm512_add_epi32(low(v[0], v[1]), high(v[0], v[1]));
    let pairs_23 = _mm512_add_epi32(low(v[2], v[3]), high(v[2], v[3]));
    let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(pairs_01, pairs_23);
    let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(pairs_01, pairs_23);
    _mm512_add_epi32(even, odd)
}

/// Quarter `q` of result `l` is quarter `l` of `v[q]`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn transpose_quarters(v: [__m512i; 4]) -> [__m512i; 4] {
    let low_01 = _mm512_shuffle_i32x4::<0b01_00_01_00>(v[0], v[1]);
    let low_23 = _mm512_shuffle_i32x4::<0b01_00_01_00>(v[2], v[3]);
    let high_01 = _mm512_shuffle_i32x4::<0b11_10_11_10>(v[0], v[1]);
    let high_23 = _mm512_shuffle_i32x4::<0b11_10_11_10>(v[2], v[3]);
    [
        _mm512_shuffle_i32x4::<0b10_00_10_00>(low_01, low_23),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(low_01, low_23),
        _mm512_shuffle_i32x4::<0b10_00_10_00>(high_01, high_23),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(high_01, high_23),
    ]
}

/// Element `i` of quarter `l` of result `e` is element `e` of quarter `l` of `v[i]`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn transpose_elements(v: [__m512i; 4]) -> [__m512i; 4] {
    let (low_01, high_01) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let (low_23, high_23) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    [
        _mm512_unpacklo_epi64(low_01, low_23),
        _mm512_unpackhi_epi64(low_01, low_23),
        _mm512_unpacklo_epi64(high_01, high_23),
        _mm512_unpackhi_epi64(high_01, high_23),
    ]
}

/// Element `r` of result `c` is element `c` of `v[r]`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn transpose_tile(v: [__m512; TILE]) -> [__m512; TILE] {
    let mut quads = [[_mm512_setzero_si512(); 4]; 4];
    for (quad, v) in quads.iter_mut().zip(v.as_chunks::<4>().0) {
        // Quarter l, element i of result e: element 4l + e of row i of these four.
        *quad = transpose_elements([
            _mm512_castps_si512(v[0]),
            _mm512_castps_si512(v[1]),
            _mm512_castps_si512(v[2]),
            _mm512_castps_si512(v[3]),
        ]);
    }
    let mut out = [_mm512_setzero_ps(); TILE];
    for e in 0..4 {
        let columns = transpose_quarters([quads[0][e], quads[1][e], quads[2][e], quads[3][e]]);
        for l in 0..4 {
            out[4 * l + e] = _mm512_castsi512_ps(columns[l]);
        }
    }
    out
}

/// 16 singles.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in crate::x86) fn load_singles(from: &[f32; TILE]) -> __m512 {
    // SAFETY: 16 singles are there, at any alignment.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// 16 singles.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in crate::x86) fn store_singles(v: __m512, to: &mut [f32; TILE]) {
    // SAFETY: there is room for 16 singles, at any alignment.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) };
}

/// Element 4·`l` + `i` becomes element 4·`i` + `l`: rows in quarters change places with rows in elements.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn swap_quarters_and_elements(v: __m512i) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, v)
}

/// The halves in the low and in the high words, as singles.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn halves(pairs: __m512i) -> (__m512, __m512) {
    let low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    let high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs)));
    (low, high)
}

/// What a tile has gathered so far: `acc` and `accm` of `scalar`, for 16 results.
#[derive(Clone, Copy)]
pub(in crate::x86) struct Sums {
    pub(in crate::x86) acc: __m512,
    pub(in crate::x86) accm: __m512,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::x86) fn new() -> Self {
        Self { acc: _mm512_setzero_ps(), accm: _mm512_setzero_ps() }
    }

    /// Adds d·dx·S of a block to each lane.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::x86) fn add(&mut self, d: __m512, dx: __m512, s: __m512i) {
        self.acc = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), self.acc);
    }

    /// Adds dmin·dx·M of a block to what comes off each lane.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::x86) fn add_min(&mut self, dmin: __m512, dx: __m512, m: __m512i) {
        self.accm = _mm512_fmadd_ps(_mm512_mul_ps(dmin, dx), _mm512_cvtepi32_ps(m), self.accm);
    }

    /// The results, one per lane; every NaN becomes the same one.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::x86) fn lanes(self) -> __m512 {
        let v = _mm512_sub_ps(self.acc, self.accm);
        let nan = _mm512_set1_ps(NAN);
        _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), nan)
    }

    /// [`Sums::lanes`] in memory.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn results(self) -> [f32; TILE] {
        let mut out = [0.0; TILE];
        store_singles(self.lanes(), &mut out);
        out
    }
}
