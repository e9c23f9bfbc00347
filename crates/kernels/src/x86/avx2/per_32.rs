//! AVX2 products of the formats with 32 weights per block: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL.
//!
//! Weights are unsigned bytes where the format stores them so, less an offset that is taken off through the sum of the
//! activations: Σ(q − o)·a = Σq·a − o·Σa, all of it exact. The products of bytes are added in pairs to 16 bits: at most
//! 2·31·127 for unsigned weights and 2·128·127 for signed ones, both below 2^15, so the instruction's saturation never acts.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{Sums, load, load_half, load_ps, scales_of_eight, scales_of_one, sum_each};
use super::tiles::{TILE, Tiles};
use crate::acts::{Acts, Form};
use crate::blocks::{BlockIq4Nl, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, IQ4};
use crate::in_place::InPlace;
use crate::x86::memory::Prefetch;

/// A block of 32 weights, unpacked with AVX2.
pub(super) trait Wide: InPlace {
    /// What unpacked weights lie above the real ones.
    const OFFSET: i32;
    /// Whether unpacked weights are signed bytes.
    const SIGNED: bool;
    /// Whether a minimum lies behind the scale.
    const HAS_MIN: bool;
    /// The weights as bytes, in order.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    unsafe fn weights(&self) -> __m256i;
}

/// The low nibbles of 16 bytes, then the high ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn nibbles(qs: &[u8; 16]) -> __m256i {
    let low = load_half(qs);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_srli_epi16::<4>(low));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// 16 in byte `i` where bit `i` of `qh` is set.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(qh: &[u8; 4]) -> __m256i {
    // Byte i/8 of the mask to every byte i, then the bit of its own in each.
    let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(*qh)), spread);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

impl Wide for BlockQ4_0 {
    const OFFSET: i32 = 8;
    const SIGNED: bool = false;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        nibbles(&self.qs)
    }
}

impl Wide for BlockQ4_1 {
    const OFFSET: i32 = 0;
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        nibbles(&self.qs)
    }
}

impl Wide for BlockQ5_0 {
    const OFFSET: i32 = 16;
    const SIGNED: bool = false;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        _mm256_or_si256(nibbles(&self.qs), fifth_bits(&self.qh))
    }
}

impl Wide for BlockQ5_1 {
    const OFFSET: i32 = 0;
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        _mm256_or_si256(nibbles(&self.qs), fifth_bits(&self.qh))
    }
}

impl Wide for BlockQ8_0 {
    const OFFSET: i32 = 0;
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        load(&self.qs)
    }
}

/// The values that nibbles stand for in IQ4_NL and IQ4_XS.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn non_linear(nibbles: __m256i) -> __m256i {
    let table = _mm256_broadcastsi128_si256(load_half(&const { IQ4_BYTES }));
    _mm256_shuffle_epi8(table, nibbles)
}

/// The table of values as bytes.
const IQ4_BYTES: [u8; 16] = {
    let (mut bytes, mut i) = ([0; 16], 0);
    while i < 16 {
        bytes[i] = IQ4[i] as u8;
        i += 1;
    }
    bytes
};

impl Wide for BlockIq4Nl {
    const OFFSET: i32 = 0;
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn weights(&self) -> __m256i {
        non_linear(nibbles(&self.qs))
    }
}

/// Eight sums, each over four neighbouring products.
#[inline]
#[target_feature(enable = "avx2")]
fn products<B: Wide>(w: __m256i, a: &[i8; 32]) -> __m256i {
    let a = load(a);
    let pairs = if B::SIGNED {
        // The sign moves to the activation; −128 has the magnitude 128 as an unsigned byte.
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
    } else {
        _mm256_maddubs_epi16(w, a)
    };
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Adds a block to each lane. `s` still has the offset in it; `a` are the sums of the activations.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn add<B: Wide>(sums: &mut Sums, d: __m256, m: __m256, dx: __m256, s: __m256i, a: __m256i) {
    let offset = _mm256_mullo_epi32(a, _mm256_set1_epi32(B::OFFSET));
    sums.add(d, dx, _mm256_sub_epi32(s, offset));
    if B::HAS_MIN {
        // The minimum is added to the weights, so it is −m that comes off.
        sums.add_min(_mm256_xor_ps(m, _mm256_set1_ps(-0.0)), dx, a);
    }
}

/// The tiles of a format.
pub(super) struct Per32<B>(PhantomData<B>);

impl<B: Wide> Tiles for Per32<B> {
    type Block = B;
    type Form = Form<i32>;
    const LEN: usize = 32;

    fn form(x: &Acts) -> &Self::Form {
        x.per_32()
    }

    // Lanes without a row repeat the last one.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows(
        w: &[B],
        blocks: usize,
        form: &Form<i32>,
        tokens: usize,
        token: usize,
        ask: Prefetch,
    ) -> [f32; TILE] {
        let last = w.len() / blocks - 1;
        let mut rows = [w; TILE];
        for r in 0..TILE {
            rows[r] = &w[r.min(last) * blocks..][..blocks];
        }
        let a = &form.q.as_chunks::<32>().0[token * blocks..][..blocks];
        // The bytes after this tile, most likely the next one: asked for in order while these are used.
        let mut next = w.as_ptr_range().end;
        let mut sums = Sums::new();
        for (block, a) in a.iter().enumerate() {
            let mut s = [_mm256_setzero_si256(); TILE];
            let mut heads = [[0; 4]; TILE];
            ask.blocks::<B, TILE>(next);
            next = next.wrapping_add(TILE);
            for r in 0..TILE {
                // SAFETY: each row has `blocks` blocks, and so has `a`.
                let w = unsafe { rows[r].get_unchecked(block) };
                // SAFETY: the features are those of this function.
                s[r] = products::<B>(unsafe { w.weights() }, a);
                heads[r] = w.head();
            }
            let (d, m) = scales_of_eight(&heads, B::HAS_MIN);
            let at = block * tokens + token;
            let (dx, a_sum) = (_mm256_set1_ps(form.scales[at]), _mm256_set1_epi32(form.sums[at]));
            add::<B>(&mut sums, d, m, dx, sum_each(&s), a_sum);
        }
        sums.results()
    }

    // Lanes past the last token repeat it, or hold what nobody reads.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tokens(w: &[B], form: &Form<i32>, tokens: usize, first: usize) -> [f32; TILE] {
        let blocks = w.len();
        let q = form.q.as_chunks::<32>().0;
        let mut a = [q; TILE];
        for t in 0..TILE {
            a[t] = &q[(first + t).min(tokens - 1) * blocks..][..blocks];
        }
        let mut sums = Sums::new();
        for (block, w) in w.iter().enumerate() {
            // SAFETY: the features are those of this function.
            let weights = unsafe { w.weights() };
            let mut s = [_mm256_setzero_si256(); TILE];
            for t in 0..TILE {
                // SAFETY: each token has `blocks` groups.
                s[t] = products::<B>(weights, unsafe { a[t].get_unchecked(block) });
            }
            let (d, m) = scales_of_one(w.head(), B::HAS_MIN);
            let (scales, a_sums) = form.tile(block * tokens + first);
            add::<B>(&mut sums, d, m, load_ps(scales), sum_each(&s), load(a_sums));
        }
        sums.results()
    }
}
