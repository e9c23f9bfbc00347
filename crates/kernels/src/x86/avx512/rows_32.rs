//! One token with 16 rows of a format with 32 weights per block, four blocks at a time.
//!
//! Each block has a quarter of the registers: the first 16 weights of four blocks are multiplied with one instruction, the
//! others with a second one into the same sums. Weights are unsigned bytes, less an offset that is taken off through the sum
//! of the activations: Σ(q − o)·a = Σq·a − o·Σa, all of it exact. Where bytes lie is told in words of 16 bits, of which all
//! blocks are a whole number.

use core::arch::x86_64::*;

use super::lanes::{QUAD, Sums, TILE, halves, load, load_quarter, sum_quarters, transpose_quarters};
use crate::acts::Form;
use crate::blocks::{BlockIq4Nl, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, IQ4};
use crate::in_place::InPlace;
use crate::x86::memory::Prefetch;

/// Blocks of a row that are taken together.
pub(super) const TOGETHER: usize = 4;

/// A block of 32 weights.
pub(super) trait Rows: InPlace {
    /// What unpacked weights lie above the real ones.
    const OFFSET: i32;
    /// Whether a minimum lies behind the scale.
    const HAS_MIN: bool;
    /// The weights of four blocks as unsigned bytes: 0 to 15 of each block, then 16 to 31.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2];
}

/// 128 bytes out of four blocks, as two registers that may overlap.
#[derive(Clone, Copy)]
struct Span([__m512i; 2]);

/// Which words of a [`Span`] go to each of the 32 places of a register.
type Order = [u16; 32];

/// Where the second register of a span begins: at the end of the blocks, or, as Q8_0 is too long for that, where its
/// registers of first weights end.
const fn second<B>() -> usize {
    let end = TOGETHER * size_of::<B>();
    if end > 128 { end / TOGETHER * 3 + 18 - 64 } else { end - 64 }
}

/// Words `first` to `first + count` of each block, over and over, to the quarter that goes with the block; the registers of
/// the span begin at bytes `begin[0]` and `begin[1]` of the blocks.
const fn order<B>(first: usize, count: usize, begin: [usize; 2]) -> Order {
    let mut order = [0; 32];
    let mut place = 0;
    while place < 32 {
        let byte = (place / 8) * size_of::<B>() + 2 * (first + place % 8 % count);
        let in_first = byte >= begin[0] && byte < begin[0] + 64;
        assert!(in_first || (byte >= begin[1] && byte < begin[1] + 64));
        order[place] = if in_first { (byte - begin[0]) / 2 } else { 32 + (byte - begin[1]) / 2 } as u16;
        place += 1;
    }
    order
}

/// The span whose registers begin at these bytes of the blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn span<B: InPlace>(w: &[B; TOGETHER], begin: [usize; 2]) -> Span {
    assert!(begin[0] + 64 <= size_of_val(w) && begin[1] + 64 <= size_of_val(w));
    let bytes = w.as_ptr().cast::<u8>();
    // SAFETY: both runs of 64 bytes lie within the blocks, as just asserted; any alignment will do.
    unsafe {
        Span([_mm512_loadu_si512(bytes.add(begin[0]).cast()), _mm512_loadu_si512(bytes.add(begin[1]).cast())])
    }
}

impl Span {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn pick(self, order: &Order) -> __m512i {
        _mm512_permutex2var_epi16(self.0[0], load(order), self.0[1])
    }
}

/// Nibbles: `first` is the word where a block's 16 bytes of them begin.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn nibbles<B: InPlace, const FIRST: usize>(w: &[B; TOGETHER]) -> [__m512i; 2] {
    let begin = const { [0, second::<B>()] };
    let qs = span(w, begin).pick(const { &order::<B>(FIRST, 8, [0, second::<B>()]) });
    let low = _mm512_set1_epi8(15);
    [_mm512_and_si512(qs, low), _mm512_and_si512(_mm512_srli_epi16::<4>(qs), low)]
}

/// Adds 16 where the bit of a weight is set: `first` is the word where a block's 32 bits begin.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_fifth_bits<B: InPlace, const FIRST: usize>(w: &[B; TOGETHER], q: [__m512i; 2]) -> [__m512i; 2] {
    let begin = const { [0, second::<B>()] };
    let qh = span(w, begin).pick(const { &order::<B>(FIRST, 2, [0, second::<B>()]) });
    // The byte with its bit to every weight, then that bit.
    let bit = _mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64);
    let byte = |n: i64| 0x0101_0101_0101_0101 * n;
    let spread = |low: i64, high: i64| {
        _mm512_shuffle_epi8(qh, _mm512_broadcast_i32x4(_mm_set_epi64x(byte(high), byte(low))))
    };
    let sixteen = _mm512_set1_epi8(16);
    [
        _mm512_mask_add_epi8(q[0], _mm512_test_epi8_mask(spread(0, 1), bit), q[0], sixteen),
        _mm512_mask_add_epi8(q[1], _mm512_test_epi8_mask(spread(2, 3), bit), q[1], sixteen),
    ]
}

impl Rows for BlockQ4_0 {
    const OFFSET: i32 = 8;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        nibbles::<Self, 1>(w)
    }
}

impl Rows for BlockQ4_1 {
    const OFFSET: i32 = 0;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        nibbles::<Self, 2>(w)
    }
}

impl Rows for BlockQ5_0 {
    const OFFSET: i32 = 16;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        add_fifth_bits::<Self, 1>(w, nibbles::<Self, 3>(w))
    }
}

impl Rows for BlockQ5_1 {
    const OFFSET: i32 = 0;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        add_fifth_bits::<Self, 2>(w, nibbles::<Self, 4>(w))
    }
}

impl Rows for BlockQ8_0 {
    const OFFSET: i32 = 128;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        const FIRST: [usize; 2] = [0, second::<BlockQ8_0>()];
        const OTHER: [usize; 2] = [8, 72];
        let sign = _mm512_set1_epi8(-128);
        [
            _mm512_xor_si512(span(w, FIRST).pick(const { &order::<Self>(1, 8, FIRST) }), sign),
            _mm512_xor_si512(span(w, OTHER).pick(const { &order::<Self>(9, 8, OTHER) }), sign),
        ]
    }
}

/// The values that nibbles stand for in IQ4_NL and IQ4_XS.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn non_linear(nibbles: __m512i) -> __m512i {
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_quarter(&IQ4)), nibbles)
}

impl Rows for BlockIq4Nl {
    const OFFSET: i32 = 128;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(w: &[Self; TOGETHER]) -> [__m512i; 2] {
        let ([first, second], sign) = (nibbles::<Self, 1>(w), _mm512_set1_epi8(-128));
        [_mm512_xor_si512(non_linear(first), sign), _mm512_xor_si512(non_linear(second), sign)]
    }
}

/// The activations of four blocks in the order of the weights.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn acts(a: &[[i8; 32]; TOGETHER]) -> [__m512i; 2] {
    let halves = a.as_flattened().as_chunks::<64>().0;
    let (first, second) = (load(&halves[0]), load(&halves[1]));
    [
        _mm512_shuffle_i64x2::<0b10_00_10_00>(first, second),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(first, second),
    ]
}

/// The only token with up to 16 rows (at least one), each of `blocks` blocks, which are at least four. Lanes without a row
/// repeat the last one.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn rows<B: Rows>(w: &[B], blocks: usize, form: &Form<i32>, ask: Prefetch) -> [f32; TILE] {
    let last = w.len() / blocks - 1;
    let mut rows = [w; TILE];
    for r in 0..TILE {
        rows[r] = &w[r.min(last) * blocks..][..blocks];
    }
    let (a, scales, a_sums) =
        (&form.q.as_chunks::<32>().0[..blocks], &form.scales[..blocks], &form.sums[..blocks]);
    // The bytes after this tile, most likely the next one: asked for in order while these are used.
    let mut next = w.as_ptr_range().end;
    let mut sums = Sums::new();
    for begin in (0..blocks).step_by(TOGETHER) {
        // The last four blocks may overlap those before; what has been added is left out.
        let start = begin.min(blocks - TOGETHER);
        // SAFETY: each row has at least `start + TOGETHER` blocks, and so have the activations.
        let a = acts(unsafe { &*a.as_ptr().add(start).cast() });
        let (mut s, mut heads) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        for quad in 0..4 {
            ask.blocks::<B, { QUAD * TOGETHER }>(next);
            next = next.wrapping_add(QUAD * TOGETHER);
            let mut each = [_mm512_setzero_si512(); QUAD];
            for r in 0..QUAD {
                // SAFETY: as for the activations; an array of blocks has no alignment but theirs, which is 1.
                let w = unsafe { &*rows[QUAD * quad + r].as_ptr().add(start).cast() };
                // SAFETY: the features are those of this function.
                let q = unsafe { B::weights(w) };
                each[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(each[r], q[0], a[0]), q[1], a[1]);
                let head = span(w, const { [0, second::<B>()] })
                    .pick(const { &order::<B>(0, 2, [0, second::<B>()]) });
                heads[quad] = _mm512_mask_mov_epi32(heads[quad], 0x1111 << r, head);
            }
            s[quad] = sum_quarters(each);
        }
        let (s, heads) = (transpose_quarters(s), transpose_quarters(heads));
        for k in begin - start..TOGETHER {
            let (d, m) = halves(heads[k]);
            let (dx, a_sum) = (_mm512_set1_ps(scales[start + k]), a_sums[start + k]);
            sums.add(d, dx, _mm512_sub_epi32(s[k], _mm512_set1_epi32(B::OFFSET * a_sum)));
            if B::HAS_MIN {
                // The minimum is added to the weights, so it is −m that comes off.
                sums.add_min(_mm512_xor_ps(m, _mm512_set1_ps(-0.0)), dx, _mm512_set1_epi32(a_sum));
            }
        }
    }
    sums.results()
}
