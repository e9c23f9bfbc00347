//! One token with 16 rows of a format with 256 weights per block; Q4_K, Q5_K and Q6_K, the others next door.
//!
//! Products of bytes are added in pairs to 16 bits (at most 2·63·127, so the instruction's saturation never acts), and these
//! in pairs to 32 bits, each multiplied by the scale of its group. Offsets are taken off through the sums of the activations:
//! Σ scale·(q − o)·a = Σ scale·q·a − o·Σ scale·Σa, all of it exact and far within 32 bits.

use core::arch::x86_64::*;

use super::lanes::{
    QUAD, Sums, TILE, add_quarters, halves, join, load, load_half, load_quarter, sum_quarters,
    swap_quarters_and_elements,
};
use crate::acts::{Form, Group};
use crate::blocks::{BlockQ4K, BlockQ5K, BlockQ6K};
use crate::in_place::InPlace;
use crate::x86::memory::Prefetch;

/// The activations of one block, as the products of a format want them.
#[derive(Clone, Copy)]
pub(super) struct Acts256 {
    /// In the order of the format's registers of weights.
    pub(super) a: [__m512i; 4],
    /// By how many bits they are shifted, in 16 bits, in the order of the format's scales, which are shifted instead. A
    /// second register is for the format that has its scales in two.
    pub(super) shifts: [__m512i; 2],
    /// What the minima, or the shifted scales of a format with an offset, are multiplied with.
    pub(super) sums: __m512i,
}

/// The products of four rows with one block of activations.
pub(super) struct Products {
    /// Per row, 16 sums that add up to S.
    pub(super) s: [__m512i; QUAD],
    /// In quarter `r` four sums that add up to M of row `r`, where the format has minima.
    pub(super) m: __m512i,
}

/// A block of 256 weights.
pub(super) trait Rows: InPlace {
    /// Whether there are minima.
    const HAS_MIN: bool;
    /// Takes up activations.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn acts(a: Group<'_>) -> Acts256;
    /// Multiplies the same block of four rows.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products;
}

/// The products of a register of weights, in pairs times their scales, added to `s`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn add_products(s: __m512i, q: __m512i, a: __m512i, scales: __m512i) -> __m512i {
    _mm512_dpwssd_epi32(s, _mm512_maddubs_epi16(q, a), scales)
}

/// The same 64 bits throughout the lower and throughout the upper half.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn halves_of(low: i64, high: i64) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_set1_epi64(low), _mm256_set1_epi64x(high))
}

/// 64 bytes of an array.
#[inline(always)]
pub(super) fn part<T, const N: usize>(bytes: &[T; N], index: usize) -> &[T; 64] {
    &bytes.as_chunks().0[index]
}

/// Q4_K and Q5_K: groups of 32 weights. A register of nibbles holds two pairs of groups, so the activations are taken up as
/// groups 0 and 2, 1 and 3, 4 and 6, 5 and 7.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn acts_by_nibble(a: Group<'_>) -> Acts256 {
    let z = [load(part(a.q, 0)), load(part(a.q, 1)), load(part(a.q, 2)), load(part(a.q, 3))];
    let q = [
        _mm512_shuffle_i64x2::<0b01_00_01_00>(z[0], z[1]),
        _mm512_shuffle_i64x2::<0b11_10_11_10>(z[0], z[1]),
        _mm512_shuffle_i64x2::<0b01_00_01_00>(z[2], z[3]),
        _mm512_shuffle_i64x2::<0b11_10_11_10>(z[2], z[3]),
    ];
    // Sums per 32, in 16 bits: at most 32·127·8.
    let per_32 = _mm256_cvtepi32_epi16(_mm256_madd_epi16(load_half(a.sums), _mm256_set1_epi16(1)));
    let shifts = _mm512_broadcast_i32x4(shifts_per_32(a.shifts));
    Acts256 { a: q, shifts: [shifts; 2], sums: _mm512_broadcast_i32x4(per_32) }
}

/// Eight shifts in 16 bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn shifts_per_32(shifts: &[u8; 8]) -> __m128i {
    _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(*shifts)))
}

/// The same, each for 16 activations and 16 more.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn shifts_per_16(shifts: &[u8; 8]) -> __m256i {
    let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(*shifts));
    _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes))
}

/// The 6-bit scales and minima of four rows in 16 bits, eight to a quarter, from the 16 bytes that their blocks begin with.
///
/// See `blocks::scales_and_mins` for how they are packed.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn scales_and_mins(begin: [&[u8; 16]; QUAD]) -> (__m512i, __m512i) {
    let packed = join([
        load_quarter(begin[0]),
        load_quarter(begin[1]),
        load_quarter(begin[2]),
        load_quarter(begin[3]),
    ]);
    // In each quarter, four bytes to words 0 to 3 and four to words 4 to 7.
    let pick = |words: [i64; 2]| {
        let table = _mm512_broadcast_i32x4(_mm_set_epi64x(words[1], words[0]));
        _mm512_shuffle_epi8(packed, table)
    };
    let none = -1;
    let from = |at: i64| 0x8003_8002_8001_8000_u64 as i64 + at * 0x0001_0001_0001_0001;
    let low = _mm512_broadcast_i32x4(_mm_set_epi64x(0x000f_000f_000f_000f, 0x003f_003f_003f_003f));
    let high = _mm512_set1_epi16(0x30);
    let tops = _mm512_and_si512(_mm512_srli_epi16::<2>(pick([none, from(4)])), high);
    let scales = _mm512_or_si512(_mm512_and_si512(pick([from(4), from(12)]), low), tops);
    let tops = _mm512_and_si512(_mm512_srli_epi16::<2>(pick([none, from(8)])), high);
    let shift = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0004_0004_0004_0004, 0));
    let bottoms = _mm512_srlv_epi16(pick([from(8), from(12)]), shift);
    let mins = _mm512_or_si512(_mm512_and_si512(bottoms, low), tops);
    (scales, mins)
}

/// What Q4_K and Q5_K have in common.
trait Nibbles {
    /// The 16 bytes of scales that a block begins with.
    fn begin(&self) -> &[u8; 16];
    /// The weights in unsigned bytes, in the order of [`acts_by_nibble`].
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn weights(&self) -> [__m512i; 4];
}

/// The first 16 bytes of a block.
#[inline(always)]
pub(super) fn first_16<B: InPlace>(block: &B) -> &[u8; 16] {
    const { assert!(size_of::<B>() >= 16) };
    // SAFETY: the block has at least 16 bytes, all of them initialised, and bytes have alignment 1.
    unsafe { &*core::ptr::from_ref(block).cast() }
}

impl Nibbles for BlockQ4K {
    #[inline(always)]
    fn begin(&self) -> &[u8; 16] {
        first_16(self)
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(&self) -> [__m512i; 4] {
        let low = _mm512_set1_epi8(15);
        let (first, second) = (load(part(&self.qs, 0)), load(part(&self.qs, 1)));
        [
            _mm512_and_si512(first, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(first), low),
            _mm512_and_si512(second, low),
            _mm512_and_si512(_mm512_srli_epi16::<4>(second), low),
        ]
    }
}

impl Nibbles for BlockQ5K {
    #[inline(always)]
    fn begin(&self) -> &[u8; 16] {
        first_16(self)
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(&self) -> [__m512i; 4] {
        let (low, fifth) = (_mm512_set1_epi8(15), _mm512_set1_epi8(16));
        let (first, second) = (load(part(&self.qs, 0)), load(part(&self.qs, 1)));
        // Bits 0 and 2 to the fifth place, then bits 1 and 3, 4 and 6, 5 and 7; what crosses bytes is masked away.
        let high = _mm512_broadcast_i64x4(load_half(&self.qh));
        const STEP: i64 = 0x0001_0001_0001_0001;
        let tops = [
            _mm512_sllv_epi16(high, halves_of(4 * STEP, 2 * STEP)),
            _mm512_sllv_epi16(high, halves_of(3 * STEP, STEP)),
            _mm512_srlv_epi16(high, halves_of(0, 2 * STEP)),
            _mm512_srlv_epi16(high, halves_of(STEP, 3 * STEP)),
        ];
        let bottoms = [first, _mm512_srli_epi16::<4>(first), second, _mm512_srli_epi16::<4>(second)];
        let mut q = tops;
        for k in 0..4 {
            q[k] = _mm512_or_si512(_mm512_and_si512(bottoms[k], low), _mm512_and_si512(tops[k], fifth));
        }
        q
    }
}

/// The products of four rows of Q4_K or Q5_K.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn quad_by_nibble<B: Nibbles>(w: [&B; QUAD], a: &Acts256) -> Products {
    let (scales, mins) = scales_and_mins([w[0].begin(), w[1].begin(), w[2].begin(), w[3].begin()]);
    let scales = _mm512_sllv_epi16(scales, a.shifts[0]);
    // Word `g` of a quarter to all words of a half of the register.
    let spread = |low: i16, high: i16| {
        let (low, high) = (0x0100 + 0x0202 * low, 0x0100 + 0x0202 * high);
        _mm512_inserti64x4::<1>(_mm512_set1_epi16(low), _mm256_set1_epi16(high))
    };
    let order = [spread(0, 2), spread(1, 3), spread(4, 6), spread(5, 7)];
    let rows = [
        _mm512_shuffle_i32x4::<0b00_00_00_00>(scales, scales),
        _mm512_shuffle_i32x4::<0b01_01_01_01>(scales, scales),
        _mm512_shuffle_i32x4::<0b10_10_10_10>(scales, scales),
        _mm512_shuffle_i32x4::<0b11_11_11_11>(scales, scales),
    ];
    let mut s = [_mm512_setzero_si512(); QUAD];
    for r in 0..QUAD {
        // SAFETY: the features are those of this function.
        let q = unsafe { w[r].weights() };
        for k in 0..4 {
            s[r] = add_products(s[r], q[k], a.a[k], _mm512_shuffle_epi8(rows[r], order[k]));
        }
    }
    Products { s, m: _mm512_madd_epi16(mins, a.sums) }
}

impl Rows for BlockQ4K {
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        acts_by_nibble(a)
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        quad_by_nibble(w, a)
    }
}

impl Rows for BlockQ5K {
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        acts_by_nibble(a)
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        quad_by_nibble(w, a)
    }
}

/// Formats with a scale per 16 weights: activations as they lie, and −16 times their sums twice over, so that one more
/// product with the scales takes an offset of 32 off (16·16·127 still fits 16 bits, twice that does not).
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn acts_as_they_lie(a: Group<'_>) -> Acts256 {
    let shifts = _mm512_broadcast_i64x4(shifts_per_16(a.shifts));
    let offset = _mm256_mullo_epi16(unshifted_sums(a), _mm256_set1_epi16(-16));
    Acts256 {
        a: [load(part(a.q, 0)), load(part(a.q, 1)), load(part(a.q, 2)), load(part(a.q, 3))],
        shifts: [shifts; 2],
        sums: _mm512_broadcast_i64x4(offset),
    }
}

/// The sums per 16 of what `q` holds: to be multiplied with scales that are shifted themselves.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn unshifted_sums(a: Group<'_>) -> __m256i {
    _mm256_srav_epi16(load_half(a.sums), shifts_per_16(a.shifts))
}

/// Word 4·`k` + `l` of a table to all words of quarter `l`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn spread_to_quarters(table: __m512i, k: i16) -> __m512i {
    let order = join([
        _mm_set1_epi16(4 * k),
        _mm_set1_epi16(4 * k + 1),
        _mm_set1_epi16(4 * k + 2),
        _mm_set1_epi16(4 * k + 3),
    ]);
    _mm512_permutexvar_epi16(order, table)
}

impl Rows for BlockQ6K {
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn acts(a: Group<'_>) -> Acts256 {
        acts_as_they_lie(a)
    }
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quad(w: [&Self; QUAD], a: &Acts256) -> Products {
        const STEP: i64 = 0x0001_0001_0001_0001;
        let (low, six) = (_mm512_set1_epi8(15), _mm512_set1_epi8(63));
        let left = halves_of(4 * STEP, 2 * STEP);
        let right = halves_of(0, 2 * STEP);
        let mut s = [_mm512_setzero_si512(); QUAD];
        for r in 0..QUAD {
            let w = w[r];
            let scales = _mm256_broadcastsi128_si256(load_quarter(&w.scales));
            let scales = _mm512_sllv_epi16(_mm512_cvtepi8_epi16(scales), a.shifts[0]);
            s[r] = _mm512_madd_epi16(scales, a.sums);
            for half in 0..2 {
                let bottoms = load(part(&w.ql, half));
                let high = _mm512_broadcast_i64x4(load_half(&w.qh.as_chunks::<32>().0[half]));
                // The low nibbles take bits 0, 1 in the lower half of the register and 2, 3 in the upper one.
                let first = select(low, bottoms, _mm512_sllv_epi16(high, left));
                let second = select(low, _mm512_srli_epi16::<4>(bottoms), _mm512_srlv_epi16(high, right));
                let k = 2 * half;
                let (first, second) = (_mm512_and_si512(first, six), _mm512_and_si512(second, six));
                s[r] = add_products(s[r], first, a.a[k], spread_to_quarters(scales, k as i16));
                s[r] = add_products(s[r], second, a.a[k + 1], spread_to_quarters(scales, k as i16 + 1));
            }
        }
        Products { s, m: _mm512_setzero_si512() }
    }
}

/// Bit by bit: where `mask` is set the bit of `a`, else that of `b`.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0b1100_1010>(mask, a, b)
}

/// The only token with up to 16 rows (at least one), each of `blocks` blocks. Lanes without a row repeat the last one.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn rows<B: Rows>(w: &[B], blocks: usize, form: &Form<i16>, ask: Prefetch) -> [f32; TILE] {
    let last = w.len() / blocks - 1;
    let mut rows = [w; TILE];
    for r in 0..TILE {
        rows[r] = &w[r.min(last) * blocks..][..blocks];
    }
    // The bytes after this tile, most likely the next one: asked for in order while these are used.
    let mut next = w.as_ptr_range().end;
    let mut sums = Sums::new();
    for block in 0..blocks {
        // SAFETY: the features are those of this function.
        let a = unsafe { B::acts(form.group(block)) };
        let (mut s, mut m) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        let mut heads = [0; TILE];
        for quad in 0..4 {
            ask.blocks::<B, QUAD>(next);
            next = next.wrapping_add(QUAD);
            let mut w = [&rows[0][0]; QUAD];
            for r in 0..QUAD {
                // SAFETY: each row has `blocks` blocks.
                w[r] = unsafe { rows[QUAD * quad + r].get_unchecked(block) };
                heads[QUAD * quad + r] = i32::from_le_bytes(w[r].head());
            }
            // SAFETY: the features are those of this function.
            let products = unsafe { B::quad(w, &a) };
            (s[quad], m[quad]) = (sum_quarters(products.s), products.m);
        }
        let (d, dmin) = halves(load(&heads));
        let dx = _mm512_set1_ps(form.scales[block]);
        sums.add(d, dx, add_quarters(s));
        if B::HAS_MIN {
            sums.add_min(dmin, dx, swap_quarters_and_elements(sum_quarters(m)));
        }
    }
    sums.results()
}

/// Bytes of a row from which on four rows are walked side by side instead of 16: then 16 rows, and the next 16 that are asked
/// for ahead, are most of level 1 or more, and as many places at once are more than the hardware keeps track of. Products from
/// memory, two threads, GB/s by fours and by sixteens where a loop that only reads got 50: Q4_K rows of 1152 bytes 48 to 51 and
/// 44 to 46, of 1728 bytes 50 and 44, Q5_K of 1408 bytes 50 and 45, Q6_K of 1680 bytes 46 to 48 and 43; IQ4_XS of 1088 bytes 49
/// and 48; below that sixteens win (Q4_K of 576 bytes 42 and 48). From level 2 the kernel itself takes a tenth longer by fours.
pub(super) const LONG: usize = 1024;

/// Bytes up to which six rows are near: then two rows more are asked for than the next four, without which a core by itself waits
/// for rows of 1152 bytes (33 GB/s, with them 36; two threads get as much either way). Of long rows four are most of level 1 already.
const NEAR: usize = 10 << 10;

/// Bytes of a block up to which lines are asked for twice in rows of any length. Of Q6_K four blocks are 14 lines, and twice as many requests
/// with every step cost two threads as much as they bring one: 4 % slower with rows of 2048 weights, of 4096 from 5 % slower
/// to 6 % faster, 2 % faster with 8192, 1 to 5 % with 14336.
const FEW: usize = 200;

/// Bytes of a row from which on it is so for any format: four rows and the next four are more than level 1 then.
const FAR: usize = 6 << 10;

/// The only token with up to four rows (at least one) of `blocks` blocks: lanes stand for four blocks of each.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn long_rows<B: Rows>(w: &[B], blocks: usize, form: &Form<i16>, ask: Prefetch) -> [f32; QUAD] {
    let last = w.len() / blocks - 1;
    let mut rows = [w; QUAD];
    for r in 0..QUAD {
        rows[r] = &w[r.min(last) * blocks..][..blocks];
    }
    let further = if 6 * size_of_val(rows[0]) <= NEAR { 2 * blocks } else { 0 };
    let twice = size_of::<B>() <= FEW || size_of_val(rows[0]) > FAR;
    let mut next = w.as_ptr_range().end.wrapping_add(further);
    let (mut acc, mut accm) = (_mm_setzero_ps(), _mm_setzero_ps());
    // Scale q of four to quarter q.
    let to_quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for first in (0..blocks).step_by(4) {
        let here = (blocks - first).min(4);
        let (mut s, mut m) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        let mut heads = [0; TILE];
        for quad in 0..here {
            let block = first + quad;
            if twice {
                ask.blocks::<B, QUAD>(next);
            } else {
                ask.once::<B, QUAD>(next);
            }
            next = next.wrapping_add(QUAD);
            // SAFETY: the features are those of this function.
            let a = unsafe { B::acts(form.group(block)) };
            let mut w = [&rows[0][0]; QUAD];
            for r in 0..QUAD {
                w[r] = &rows[r][block];
                heads[QUAD * quad + r] = i32::from_le_bytes(w[r].head());
            }
            // SAFETY: the features are those of this function.
            let products = unsafe { B::quad(w, &a) };
            (s[quad], m[quad]) = (sum_quarters(products.s), products.m);
        }
        let (d, dmin) = halves(load(&heads));
        // Behind the last scale of the only token there are as many spare ones as a register holds.
        let scales = _mm512_castps128_ps512(load_four(form.scales[first..].as_chunks().0[0]));
        let dx = _mm512_permutexvar_ps(to_quarters, scales);
        acc = add_in_order(acc, _mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(add_quarters(s)), here);
        if B::HAS_MIN {
            let m = _mm512_cvtepi32_ps(swap_quarters_and_elements(sum_quarters(m)));
            accm = add_in_order(accm, _mm512_mul_ps(dmin, dx), m, here);
        }
    }
    Sums { acc: _mm512_castps128_ps512(acc), accm: _mm512_castps128_ps512(accm) }.results().as_chunks().0[0]
}

/// `acc + a·b` for the first `count` quarters one after the other.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_in_order(acc: __m128, a: __m512, b: __m512, count: usize) -> __m128 {
    let mut sums = [acc; 4];
    sums[0] = _mm_fmadd_ps(_mm512_castps512_ps128(a), _mm512_castps512_ps128(b), acc);
    sums[1] = _mm_fmadd_ps(_mm512_extractf32x4_ps::<1>(a), _mm512_extractf32x4_ps::<1>(b), sums[0]);
    sums[2] = _mm_fmadd_ps(_mm512_extractf32x4_ps::<2>(a), _mm512_extractf32x4_ps::<2>(b), sums[1]);
    sums[3] = _mm_fmadd_ps(_mm512_extractf32x4_ps::<3>(a), _mm512_extractf32x4_ps::<3>(b), sums[2]);
    sums[count - 1]
}

/// Four singles.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load_four(from: [f32; 4]) -> __m128 {
    _mm_setr_ps(from[0], from[1], from[2], from[3])
}
