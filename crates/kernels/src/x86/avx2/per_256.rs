//! AVX2 products of the formats with 256 weights per block: Q2_K to Q6_K and IQ4_XS.
//!
//! Products of bytes are added in pairs to 16 bits (at most 2·127·127, so the instruction's saturation never acts), and these
//! in pairs to 32 bits, each multiplied by the scale of its group. Offsets are taken off through the sums of the
//! activations: Σ scale·(q − o)·a = Σ scale·q·a − o·Σ scale·Σa, all of it exact and far within 32 bits.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{Sums, load, load_half, load_ps, scales_of_eight, scales_of_one, sum_each};
use super::per_32::{nibbles, non_linear};
use super::tiles::{TILE, Tiles};
use crate::acts::{Acts, Form, Group};
use crate::blocks::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};
use crate::in_place::InPlace;
use crate::x86::memory::Prefetch;

/// A block, unpacked for products.
pub(in crate::x86) struct Weights {
    /// 8 × 32 bytes, unsigned unless the format says otherwise.
    pub(in crate::x86) q: [__m256i; 8],
    /// Element `k` of each half, in 16 bits: the scale that the pairs of products in that half of `q[k]` are multiplied with.
    pub(in crate::x86) scales: __m256i,
    /// Per 16 weights, in 16 bits: the minimum, or the scale where a format has an offset to take off.
    pub(in crate::x86) per_16: __m256i,
}

/// A block of 256 weights, unpacked with AVX2.
pub(in crate::x86) trait Wide: InPlace {
    /// Whether there are minima.
    const HAS_MIN: bool;
    /// What unpacked weights lie above the real ones; 0 with minima.
    const OFFSET: i32;
    /// Whether unpacked weights are signed bytes.
    const SIGNED: bool = false;
    /// Unpacks the block.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    unsafe fn weights(&self) -> Weights;
}

/// 32 bytes of an array.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8; N], index: usize) -> &[u8; 32] {
    &bytes.as_chunks().0[index]
}

/// 16-bit element `k` of each half of a table to all of that half.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(table: __m256i, k: usize) -> __m256i {
    _mm256_shuffle_epi8(table, _mm256_set1_epi16((0x0100 + 0x0202 * k) as i16))
}

/// The 6-bit scales and minima of Q4_K and Q5_K in 16 bits: each scale in both each minimum twice in a row.
///
/// See `blocks::scales_and_mins` for how they are packed.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_and_mins(packed: &[u8; 12]) -> (__m256i, __m256i) {
    const LOW_SIX: u32 = 0x3f3f_3f3f;
    const LOW_FOUR: u32 = 0x0f0f_0f0f;
    const LOW_TWO: u32 = 0x0303_0303;
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (scales, mins, rest) = (word(0), word(4), word(8));
    let high_scales = rest & LOW_FOUR | (scales >> 6 & LOW_TWO) << 4;
    let high_mins = rest >> 4 & LOW_FOUR | (mins >> 6 & LOW_TWO) << 4;
    let join =
        |low: u32, high: u32| _mm_cvtsi64_si128((u64::from(low & LOW_SIX) | u64::from(high) << 32) as i64);
    let (scales, mins) = (join(scales, high_scales), join(mins, high_mins));
    let scales = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scales));
    let mins = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(mins, mins));
    (scales, mins)
}

impl Wide for BlockQ4K {
    const HAS_MIN: bool = true;
    const OFFSET: i32 = 0;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let (scales, per_16) = scales_and_mins(&self.scales);
        let low = _mm256_set1_epi8(15);
        let mut q = [_mm256_setzero_si256(); 8];
        for pair in 0..4 {
            let bytes = load(part(&self.qs, pair));
            q[2 * pair] = _mm256_and_si256(bytes, low);
            q[2 * pair + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low);
        }
        Weights { q, scales, per_16 }
    }
}

impl Wide for BlockQ5K {
    const HAS_MIN: bool = true;
    const OFFSET: i32 = 0;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let (scales, per_16) = scales_and_mins(&self.scales);
        let (low, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
        let mut high = load(&self.qh);
        let mut q = [_mm256_setzero_si256(); 8];
        for pair in 0..4 {
            let bytes = load(part(&self.qs, pair));
            // Bits 2·pair and 2·pair + 1 have been shifted to the bottom; what crosses bytes is masked away.
            let first = _mm256_and_si256(_mm256_slli_epi16::<4>(high), fifth);
            let second = _mm256_and_si256(_mm256_slli_epi16::<3>(high), fifth);
            high = _mm256_srli_epi16::<2>(high);
            q[2 * pair] = _mm256_or_si256(_mm256_and_si256(bytes, low), first);
            q[2 * pair + 1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low), second);
        }
        Weights { q, scales, per_16 }
    }
}

/// 16 signed scales in 16 bits: a register of weights has two, 2k and 2k + 1, so even ones stand in the lower half of the
/// table and odd ones in the upper.
#[inline]
#[target_feature(enable = "avx2")]
fn even_odd(scales: __m128i) -> __m256i {
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order))
}

/// The weights of Q2_K and the low bits of Q3_K.
#[inline]
#[target_feature(enable = "avx2")]
fn two_bits(qs: &[u8; 64]) -> [__m256i; 8] {
    let mut q = [_mm256_set1_epi8(3); 8];
    for half in 0..2 {
        let bytes = load(part(qs, half));
        let shifted = [
            bytes,
            _mm256_srli_epi16::<2>(bytes),
            _mm256_srli_epi16::<4>(bytes),
            _mm256_srli_epi16::<6>(bytes),
        ];
        for group in 0..4 {
            q[4 * half + group] = _mm256_and_si256(q[4 * half + group], shifted[group]);
        }
    }
    q
}

impl Wide for BlockQ2K {
    const HAS_MIN: bool = true;
    const OFFSET: i32 = 0;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let (both, low) = (load_half(&self.scales), _mm_set1_epi8(15));
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(both), low);
        let scales = even_odd(_mm_and_si128(both, low));
        Weights { q: two_bits(&self.qs), scales, per_16: _mm256_cvtepu8_epi16(mins) }
    }
}

/// The 6-bit scales of Q3_K, less 32; see `blocks` for how they are packed.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_of_q3_k(packed: &[u8; 12]) -> __m128i {
    let word = |at: usize| i32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let lows = _mm_srlv_epi32(_mm_setr_epi32(word(0), word(4), word(0), word(4)), _mm_setr_epi32(0, 0, 4, 4));
    let tops = _mm_srlv_epi32(_mm_set1_epi32(word(8)), _mm_setr_epi32(0, 2, 4, 6));
    let tops = _mm_slli_epi16::<4>(_mm_and_si128(tops, _mm_set1_epi8(3)));
    _mm_sub_epi8(_mm_or_si128(_mm_and_si128(lows, _mm_set1_epi8(15)), tops), _mm_set1_epi8(32))
}

impl Wide for BlockQ3K {
    const HAS_MIN: bool = false;
    const OFFSET: i32 = 4;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let (mut q, high, four) = (two_bits(&self.qs), load(&self.hmask), _mm256_set1_epi8(4));
        for k in 0..8 {
            let bit = _mm256_set1_epi8((1u8 << k) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            q[k] = _mm256_or_si256(q[k], _mm256_and_si256(set, four));
        }
        let scales = scales_of_q3_k(&self.scales);
        Weights { q, scales: even_odd(scales), per_16: _mm256_cvtepi8_epi16(scales) }
    }
}

impl Wide for BlockIq4Xs {
    const HAS_MIN: bool = false;
    const OFFSET: i32 = 0;
    const SIGNED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let mut q = [_mm256_setzero_si256(); 8];
        for (q, qs) in q.iter_mut().zip(self.qs.as_chunks().0) {
            *q = non_linear(nibbles(qs));
        }
        let low = _mm256_set1_epi32(i32::from_le_bytes(self.scales_l));
        let high = _mm256_set1_epi32(i32::from(u16::from_le_bytes(self.scales_h)));
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let scales = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), high);
        let scales = _mm256_sub_epi32(scales, _mm256_set1_epi32(32));
        // Packed within halves: 0 to 3 and 4 to 7 stand in quarters 0 and 2, and all eight are wanted in both halves.
        let packed = _mm256_packs_epi32(scales, scales);
        let table = _mm256_permute4x64_epi64::<0b10_00_10_00>(packed);
        Weights { q, scales: table, per_16: _mm256_setzero_si256() }
    }
}

impl Wide for BlockQ6K {
    const HAS_MIN: bool = false;
    const OFFSET: i32 = 32;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let scales = load_half(&self.scales);
        let table = even_odd(scales);
        let (low, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let mut q = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let (first, second) = (load(part(&self.ql, 2 * half)), load(part(&self.ql, 2 * half + 1)));
            let high = load(part(&self.qh, half));
            let tops = [
                _mm256_slli_epi16::<4>(high),
                _mm256_slli_epi16::<2>(high),
                high,
                _mm256_srli_epi16::<2>(high),
            ];
            let bottoms = [first, second, _mm256_srli_epi16::<4>(first), _mm256_srli_epi16::<4>(second)];
            for group in 0..4 {
                q[4 * half + group] = _mm256_or_si256(
                    _mm256_and_si256(bottoms[group], low),
                    _mm256_and_si256(tops[group], two),
                );
            }
        }
        Weights { q, scales: table, per_16: _mm256_cvtepi8_epi16(scales) }
    }
}

/// Eight sums that add up to S, and eight that add up to M; `powers` are those of the activations.
#[inline]
#[target_feature(enable = "avx2")]
fn products<B: Wide>(w: &Weights, a: Group<'_>, powers: __m256i) -> (__m256i, __m256i) {
    let scales = _mm256_mullo_epi16(w.scales, powers);
    let mut s = _mm256_setzero_si256();
    for (k, q) in a.q.as_chunks::<32>().0.iter().enumerate() {
        let (q, a) = (w.q[k], load(q));
        let pairs = if B::SIGNED {
            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(a, q))
        } else {
            _mm256_maddubs_epi16(q, a)
        };
        s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, spread(scales, k)));
    }
    let m = _mm256_madd_epi16(w.per_16, load(a.sums));
    (_mm256_sub_epi32(s, _mm256_mullo_epi32(m, _mm256_set1_epi32(B::OFFSET))), m)
}

/// What the scales are multiplied with for a group of activations: its eight powers in both halves.
#[inline]
#[target_feature(enable = "avx2")]
fn powers(a: Group<'_>) -> __m256i {
    _mm256_broadcastsi128_si256(load_half(a.powers))
}

/// The tiles of a format.
pub(super) struct Per256<B>(PhantomData<B>);

impl<B: Wide> Tiles for Per256<B> {
    type Block = B;
    type Form = Form<i16>;
    const LEN: usize = 256;

    fn form(x: &Acts) -> &Self::Form {
        x.per_256()
    }

    // Lanes without a row repeat the last one.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows(
        w: &[B],
        blocks: usize,
        form: &Form<i16>,
        tokens: usize,
        token: usize,
        ask: Prefetch,
    ) -> [f32; TILE] {
        let last = w.len() / blocks - 1;
        let mut rows = [w; TILE];
        for r in 0..TILE {
            rows[r] = &w[r.min(last) * blocks..][..blocks];
        }
        // The bytes after this tile, most likely the next one: asked for in order while these are used.
        let mut next = w.as_ptr_range().end;
        let mut sums = Sums::new();
        for block in 0..blocks {
            let a = form.group(token * blocks + block);
            let powers = powers(a);
            let (mut s, mut m) = ([_mm256_setzero_si256(); TILE], [_mm256_setzero_si256(); TILE]);
            let mut heads = [[0; 4]; TILE];
            ask.blocks::<B, TILE>(next);
            next = next.wrapping_add(TILE);
            for r in 0..TILE {
                // SAFETY: each row has `blocks` blocks.
                let w = unsafe { rows[r].get_unchecked(block) };
                // SAFETY: the features are those of this function.
                let weights = unsafe { w.weights() };
                (s[r], m[r]) = products::<B>(&weights, a, powers);
                heads[r] = w.head();
            }
            let (d, dmin) = scales_of_eight(&heads, B::HAS_MIN);
            let dx = _mm256_set1_ps(form.scales[block * tokens + token]);
            sums.add(d, dx, sum_each(&s));
            if B::HAS_MIN {
                sums.add_min(dmin, dx, sum_each(&m));
            }
        }
        sums.results()
    }

    // Lanes past the last token repeat it, or hold what nobody reads.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tokens(w: &[B], form: &Form<i16>, tokens: usize, first: usize) -> [f32; TILE] {
        let blocks = w.len();
        let mut starts = [0; TILE];
        for t in 0..TILE {
            starts[t] = (first + t).min(tokens - 1) * blocks;
        }
        let mut sums = Sums::new();
        for (block, w) in w.iter().enumerate() {
            // SAFETY: the features are those of this function.
            let weights = unsafe { w.weights() };
            let (mut s, mut m) = ([_mm256_setzero_si256(); TILE], [_mm256_setzero_si256(); TILE]);
            for t in 0..TILE {
                let a = form.group(starts[t] + block);
                (s[t], m[t]) = products::<B>(&weights, a, powers(a));
            }
            let (d, dmin) = scales_of_one(w.head(), B::HAS_MIN);
            let dx = load_ps(form.scales_tile(block * tokens + first));
            sums.add(d, dx, sum_each(&s));
            if B::HAS_MIN {
                sums.add_min(dmin, dx, sum_each(&m));
            }
        }
        sums.results()
    }
}
