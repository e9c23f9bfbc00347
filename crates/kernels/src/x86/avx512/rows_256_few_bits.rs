//! One token with rows of Q2_K, Q3_K and IQ4_XS; what they share with the other formats is in `rows_256`.

use core::arch::x86_64::*;

use super::lanes::{QUAD, join, load, load_half, load_quarter};
use super::rows_32::non_linear;
use super::rows_256::{
    Acts256, Products, Rows, add_products, halves_of, part, shifts_per_16, shifts_per_32, spread_to_quarters,
    unshifted_sums,
};
use crate::acts::Group;
use crate::blocks::{BlockIq4Xs, BlockQ2K, BlockQ3K};

/// Q2_K and Q3_K: a register of weights has the same group of both halves of a block, and so have the activations.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn acts_by_two_bits(a: &[i8; 256]) -> [__m512i; 4] {
    let z = [load(part(a, 0)), load(part(a, 1)), load(part(a, 2)), load(part(a, 3))];
    [
        _mm512_shuffle_i64x2::<0b01_00_01_00>(z[0], z[2]),
        _mm512_shuffle_i64x2::<0b11_10_11_10>(z[0], z[2]),
        _mm512_shuffle_i64x2::<0b01_00_01_00>(z[1], z[3]),
        _mm512_shuffle_i64x2::<0b11_10_11_10>(z[1], z[3]),
    ]
}

/// The weights of Q2_K and the low bits of Q3_K.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn two_bits(qs: &[u8; 64]) -> [__m512i; 4] {
    let (bytes, two) = (load(qs), _mm512_set1_epi8(3));
    [
        _mm512_and_si512(bytes, two),
        _mm512_and_si512(_mm512_srli_epi16::<2>(bytes), two),
        _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), two),
        _mm512_and_si512(_mm512_srli_epi16::<6>(bytes), two),
    ]
}

/// For register `k` of [`two_bits`] its four scales out of 16, in 16 bits, a quarter each.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn spread_by_halves(table: __m512i, k: i16) -> __m512i {
    let order = join([
        _mm_set1_epi16(2 * k),
        _mm_set1_epi16(2 * k + 1),
        _mm_set1_epi16(2 * k + 8),
        _mm_set1_epi16(2 * k + 9),
    ]);
    _mm512_permutexvar_epi16(order, table)
}

impl Rows for BlockQ2K {
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        let shifts = _mm512_castsi256_si512(shifts_per_16(a.shifts));
        Acts256 {
            a: acts_by_two_bits(a.q),
            shifts: [shifts; 2],
            sums: _mm512_castsi256_si512(load_half(a.sums)),
        }
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        let (mut s, mut m) = ([_mm512_setzero_si512(); QUAD], [_mm_setzero_si128(); QUAD]);
        for r in 0..QUAD {
            let (both, low) = (load_quarter(&w[r].scales), _mm_set1_epi8(15));
            let scales = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(_mm_and_si128(both, low)));
            let scales = _mm512_sllv_epi16(scales, a.shifts[0]);
            let mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16::<4>(both), low));
            let eight = _mm256_madd_epi16(mins, _mm512_castsi512_si256(a.sums));
            m[r] = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let q = two_bits(&w[r].qs);
            for k in 0..4 {
                s[r] = add_products(s[r], q[k], a.a[k], spread_by_halves(scales, k as i16));
            }
        }
        Products { s, m: join(m) }
    }
}

/// The 6-bit scales of Q3_K, less 32, in 16 bits; see `blocks` for how they are packed.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn scales_of_q3_k(packed: &[u8; 12]) -> __m512i {
    let word = |at: usize| i32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let lows = _mm_srlv_epi32(_mm_setr_epi32(word(0), word(4), word(0), word(4)), _mm_setr_epi32(0, 0, 4, 4));
    // The two bits of each byte turned to bits 4 and 5; what crosses bytes is masked away.
    let tops = _mm_rorv_epi32(_mm_set1_epi32(word(8)), _mm_setr_epi32(28, 30, 0, 2));
    let lows = _mm_and_si128(lows, _mm_set1_epi8(15));
    let scales = _mm_or_si128(lows, _mm_and_si128(tops, _mm_set1_epi8(0x30)));
    _mm512_castsi256_si512(_mm256_cvtepi8_epi16(_mm_sub_epi8(scales, _mm_set1_epi8(32))))
}

impl Rows for BlockQ3K {
    const HAS_MIN: bool = false;
    // The offset of 4 comes off with one more product, of the scales with −4 times the sums.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        let shifts = _mm512_castsi256_si512(shifts_per_16(a.shifts));
        let offset = _mm256_mullo_epi16(unshifted_sums(a), _mm256_set1_epi16(-4));
        Acts256 { a: acts_by_two_bits(a.q), shifts: [shifts; 2], sums: _mm512_zextsi256_si512(offset) }
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        let mut s = [_mm512_setzero_si512(); QUAD];
        let third = _mm512_set1_epi8(4);
        for r in 0..QUAD {
            let scales = _mm512_sllv_epi16(scales_of_q3_k(&w[r].scales), a.shifts[0]);
            let (q, high) = (two_bits(&w[r].qs), _mm512_broadcast_i64x4(load_half(&w[r].hmask)));
            s[r] = _mm512_madd_epi16(scales, a.sums);
            for k in 0..4 {
                // Bit k for the first half and k + 4 for the second, turned to bit 2.
                let turn = halves_of(turns(k + 30), turns(k + 2));
                let q = _mm512_or_si512(q[k], _mm512_and_si512(_mm512_rorv_epi32(high, turn), third));
                s[r] = add_products(s[r], q, a.a[k], spread_by_halves(scales, k as i16));
            }
        }
        Products { s, m: _mm512_setzero_si512() }
    }
}

/// The same count for both elements of 64 bits.
#[inline(always)]
const fn turns(count: usize) -> i64 {
    (count % 32 * 0x1_0000_0001) as i64
}

impl Rows for BlockIq4Xs {
    const HAS_MIN: bool = false;
    /// The first 16 activations of four groups, then the others.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        let z = [load(part(a.q, 0)), load(part(a.q, 1)), load(part(a.q, 2)), load(part(a.q, 3))];
        let q = [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(z[0], z[1]),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(z[0], z[1]),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(z[2], z[3]),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(z[2], z[3]),
        ];
        // The scales of both halves of a block come in registers of their own.
        let table = _mm512_castsi128_si512(shifts_per_32(a.shifts));
        let shifts = [spread_to_quarters(table, 0), spread_to_quarters(table, 1)];
        Acts256 { a: q, shifts, sums: _mm512_setzero_si512() }
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        let low = _mm512_set1_epi8(15);
        // Scale `l` of four turned to the bottom of quarter `l`, and its top bits, of which the second four scales have
        // theirs 8 further on, to bits 4 and 5. Counts of turns go by 32 bits that hold the same word twice.
        let each = |first: i32, step: i32| {
            let turn = |l: i32| _mm_set1_epi32((first + l * step) % 32);
            join([turn(0), turn(1), turn(2), turn(3)])
        };
        let (turn_low, turn_high) = (each(0, 4), [each(28, 2), each(36, 2)]);
        let mut s = [_mm512_setzero_si512(); QUAD];
        for r in 0..QUAD {
            let w = w[r];
            let high = i16::from_le_bytes(w.scales_h);
            for half in 0..2 {
                let bytes = load(part(&w.qs, half));
                let lows = i16::from_le_bytes([w.scales_l[2 * half], w.scales_l[2 * half + 1]]);
                let lows = _mm512_rorv_epi32(_mm512_set1_epi16(lows), turn_low);
                let tops = _mm512_rorv_epi32(_mm512_set1_epi16(high), turn_high[half]);
                let lows = _mm512_and_si512(lows, _mm512_set1_epi16(15));
                let scales = _mm512_or_si512(lows, _mm512_and_si512(tops, _mm512_set1_epi16(0x30)));
                let scales = _mm512_sub_epi16(scales, _mm512_set1_epi16(32));
                let scales = _mm512_sllv_epi16(scales, a.shifts[half]);
                let first = non_linear(_mm512_and_si512(bytes, low));
                let second = non_linear(_mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low));
                s[r] = add_signed_products(s[r], first, a.a[2 * half], scales);
                s[r] = add_signed_products(s[r], second, a.a[2 * half + 1], scales);
            }
        }
        Products { s, m: _mm512_setzero_si512() }
    }
}

/// As [`add_products`] for signed weights, whose signs move to the activations: at most 2·127·127 in 16 bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_signed_products(s: __m512i, q: __m512i, a: __m512i, scales: __m512i) -> __m512i {
    let a = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(q), _mm512_setzero_si512(), a);
    add_products(s, _mm512_abs_epi8(q), a, scales)
}
