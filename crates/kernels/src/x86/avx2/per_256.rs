//! AVX2 products of the formats with 256 weights per block: Q4_K, Q5_K, Q6_K.
//!
//! Products of bytes are added in pairs to 16 bits (at most 2·63·127, so the instruction's saturation never acts), and these
//! in pairs to 32 bits, each multiplied by the scale of its group. Q6_K's offset of 32 is taken off through the sums of the
//! activations: Σ scale·(q − 32)·a = Σ scale·q·a − 32·Σ scale·Σa, all of it exact and far within 32 bits.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{Sums, load, load_half, load_ps, scales_of_eight, scales_of_one, sum_each};
use super::tiles::{TILE, Tiles};
use crate::acts::{Acts, Form};
use crate::blocks::{BlockQ4K, BlockQ5K, BlockQ6K};
use crate::x86::memory::{InPlace, prefetch};

/// A block, unpacked for products.
pub(super) struct Weights {
    /// 8 × 32 unsigned bytes.
    q: [__m256i; 8],
    /// For each register of `q` the scales, in 16 bits, that its pairs of products are multiplied with.
    scales: [__m256i; 8],
    /// Per 16 weights, in 16 bits: the minimum, or the scale where a format has an offset to take off.
    per_16: __m256i,
}

/// A block of 256 weights, unpacked with AVX2.
pub(super) trait Wide: InPlace {
    /// Whether there are minima; otherwise unpacked weights lie 32 above the real ones.
    const HAS_MIN: bool;
    /// Unpacks the block.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    unsafe fn weights(&self) -> Weights;
    /// The scale of the scales and, where there is one, that of the minima.
    fn head(&self) -> [u8; 4];
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
        Weights { q, scales: spread_all(scales), per_16 }
    }

    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.dmin[0], self.dmin[1]]
    }
}

/// Every element of a table spread.
#[inline]
#[target_feature(enable = "avx2")]
fn spread_all(table: __m256i) -> [__m256i; 8] {
    let mut all = [table; 8];
    for (k, one) in all.iter_mut().enumerate() {
        *one = spread(table, k);
    }
    all
}

impl Wide for BlockQ5K {
    const HAS_MIN: bool = true;

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
        Weights { q, scales: spread_all(scales), per_16 }
    }

    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], self.dmin[0], self.dmin[1]]
    }
}

impl Wide for BlockQ6K {
    const HAS_MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> Weights {
        let scales = load_half(&self.scales);
        // A register of weights has two scales, 2k and 2k + 1: even ones to the lower half of the table, odd ones above.
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        let table = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, even_odd));
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
        Weights { q, scales: spread_all(table), per_16: _mm256_cvtepi8_epi16(scales) }
    }

    #[inline(always)]
    fn head(&self) -> [u8; 4] {
        [self.d[0], self.d[1], 0, 0]
    }
}

/// Eight sums that add up to S, and eight that add up to M.
#[inline]
#[target_feature(enable = "avx2")]
fn products<B: Wide>(w: &Weights, a: &[i8; 256], a_sums: &[i16; 16]) -> (__m256i, __m256i) {
    let mut s = _mm256_setzero_si256();
    for (k, a) in a.as_chunks::<32>().0.iter().enumerate() {
        let pairs = _mm256_maddubs_epi16(w.q[k], load(a));
        s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, w.scales[k]));
    }
    let m = _mm256_madd_epi16(w.per_16, load(a_sums));
    if B::HAS_MIN { (s, m) } else { (_mm256_sub_epi32(s, _mm256_slli_epi32::<5>(m)), m) }
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
    unsafe fn rows(w: &[B], blocks: usize, form: &Form<i16>, tokens: usize, token: usize) -> [f32; TILE] {
        let last = w.len() / blocks - 1;
        let mut rows = [w; TILE];
        for r in 0..TILE {
            rows[r] = &w[r.min(last) * blocks..][..blocks];
        }
        let a = &form.q.as_chunks::<256>().0[token * blocks..][..blocks];
        let a_sums = &form.sums.as_chunks::<16>().0[token * blocks..][..blocks];
        // The bytes after this tile, most likely the next one: asked for in order while these are used.
        let mut next = w.as_ptr_range().end;
        let mut sums = Sums::new();
        for (block, (a, a_sums)) in a.iter().zip(a_sums).enumerate() {
            let (mut s, mut m) = ([_mm256_setzero_si256(); TILE], [_mm256_setzero_si256(); TILE]);
            let mut heads = [[0; 4]; TILE];
            prefetch::<B, TILE>(next);
            next = next.wrapping_add(TILE);
            for r in 0..TILE {
                // SAFETY: each row has `blocks` blocks, and so have the activations.
                let w = unsafe { rows[r].get_unchecked(block) };
                // SAFETY: the features are those of this function.
                let weights = unsafe { w.weights() };
                (s[r], m[r]) = products::<B>(&weights, a, a_sums);
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
        let (q, q_sums) = (form.q.as_chunks::<256>().0, form.sums.as_chunks::<16>().0);
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
                let at = starts[t] + block;
                (s[t], m[t]) = products::<B>(&weights, &q[at], &q_sums[at]);
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
