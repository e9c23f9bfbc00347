//! Several tokens with formats of 32 weights per block.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{Sums, TILE, halves, load};
use super::rows_32::non_linear;
use super::tiles::{PANELS, Place, Tiles, four, pieces, transpose};
use crate::acts::Acts;
use crate::blocks::{BlockIq4Nl, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};
use crate::in_place::InPlace;

/// One block of 16 rows, a row per lane.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Four weights each, unsigned.
    q: [__m512i; 8],
    d: __m512,
    /// What comes off the weights: minus the minimum.
    dmin: __m512,
}

/// A block that is unpacked into panels.
pub(super) trait Unpack: InPlace {
    /// What unpacked weights lie above the real ones.
    const OFFSET: i32;
    /// Whether a minimum lies behind the scale.
    const HAS_MIN: bool;
    /// The weights.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8];
}

/// Low nibbles, then high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn nibbles(qs: &[&[u8; 16]; TILE]) -> [__m512i; 8] {
    let low = _mm512_set1_epi8(15);
    let words = transpose(qs);
    let mut q = [low; 8];
    for i in 0..4 {
        q[i] = _mm512_and_si512(words[i], low);
        q[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(words[i]), low);
    }
    q
}

/// Adds 16 to the weights whose bit is set.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_fifth_bits(qh: [[u8; 4]; TILE], q: [__m512i; 8]) -> [__m512i; 8] {
    let bits = load(&qh.map(i32::from_le_bytes));
    let mut out = q;
    for i in 0..8 {
        let four =
            _mm512_and_si512(_mm512_srlv_epi32(bits, _mm512_set1_epi32(4 * i as i32)), _mm512_set1_epi32(15));
        // Copies of the four bits, 7 apart and moved up by 4: bit `n` arrives at bit 4 of byte `n`.
        let copies = _mm512_mullo_epi32(four, _mm512_set1_epi32(0x0020_4081 << 4));
        out[i] = _mm512_or_si512(q[i], _mm512_and_si512(copies, _mm512_set1_epi8(16)));
    }
    out
}

impl Unpack for BlockQ4_0 {
    const OFFSET: i32 = 8;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        nibbles(&pieces(rows, |b| &b.qs, 0))
    }
}

impl Unpack for BlockQ4_1 {
    const OFFSET: i32 = 0;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        nibbles(&pieces(rows, |b| &b.qs, 0))
    }
}

impl Unpack for BlockQ5_0 {
    const OFFSET: i32 = 16;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        add_fifth_bits(rows.map(|b| b.qh), nibbles(&pieces(rows, |b| &b.qs, 0)))
    }
}

impl Unpack for BlockQ5_1 {
    const OFFSET: i32 = 0;
    const HAS_MIN: bool = true;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        add_fifth_bits(rows.map(|b| b.qh), nibbles(&pieces(rows, |b| &b.qs, 0)))
    }
}

impl Unpack for BlockQ8_0 {
    const OFFSET: i32 = 128;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        let (first, second) =
            (transpose(&pieces(rows, |b| &b.qs, 0)), transpose(&pieces(rows, |b| &b.qs, 1)));
        let sign = _mm512_set1_epi8(-128);
        let mut q = [sign; 8];
        for i in 0..4 {
            q[i] = _mm512_xor_si512(first[i], sign);
            q[i + 4] = _mm512_xor_si512(second[i], sign);
        }
        q
    }
}

impl Unpack for BlockIq4Nl {
    const OFFSET: i32 = 128;
    const HAS_MIN: bool = false;
    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn weights(rows: &[&Self; TILE]) -> [__m512i; 8] {
        let mut q = nibbles(&pieces(rows, |b| &b.qs, 0));
        for q in &mut q {
            *q = _mm512_xor_si512(non_linear(*q), _mm512_set1_epi8(-128));
        }
        q
    }
}

/// The tiles of a format.
pub(super) struct Per32<B>(PhantomData<B>);

/// Blocks in a panel: as many columns as a block of 256 has, so that panels are of one size.
const BLOCKS: usize = 8;

impl<B: Unpack> Tiles for Per32<B> {
    type Block = B;
    type Panel = [Part; BLOCKS];
    const LEN: usize = 32;
    const BLOCKS: usize = BLOCKS;
    // With minima three registers per result instead of two.
    const TOKENS: usize = if B::HAS_MIN { 4 } else { 6 };

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn empty() -> Self::Panel {
        let none = _mm512_setzero_ps();
        [Part { q: [_mm512_setzero_si512(); 8], d: none, dmin: none }; BLOCKS]
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&[B]; TILE], panel: &mut Self::Panel) {
        for (block, part) in panel[..rows[0].len()].iter_mut().enumerate() {
            let mut these = [&rows[0][block]; TILE];
            let mut heads = [0; TILE];
            for r in 0..TILE {
                these[r] = &rows[r][block];
                heads[r] = i32::from_le_bytes(these[r].head());
            }
            // SAFETY: the features are those of this function.
            part.q = unsafe { B::weights(&these) };
            let (d, m) = halves(load(&heads));
            (part.d, part.dmin) = (d, _mm512_xor_ps(m, _mm512_set1_ps(-0.0)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply<const R: usize, const T: usize>(
        panels: &[Self::Panel; PANELS],
        x: &Acts,
        at: Place,
        sums: &mut [[Sums; PANELS]; T],
    ) {
        let (form, tokens, blocks) = (x.per_32(), x.tokens(), x.cols() / 32);
        let q = form.q.as_chunks::<32>().0;
        let mut a = [q; T];
        let mut total = [[Sums::new(); T]; R];
        for t in 0..T {
            a[t] = &q[(at.token + t) * blocks + at.block..][..at.blocks];
            for r in 0..R {
                total[r][t] = sums[t][r];
            }
        }
        for block in 0..at.blocks {
            let place = (at.block + block) * tokens + at.token;
            let (scales, a_sums) = (&form.scales[place..][..T], &form.sums[place..][..T]);
            let mut s = [[_mm512_setzero_si512(); T]; R];
            for t in 0..T {
                for r in 0..R {
                    s[r][t] = _mm512_set1_epi32(-B::OFFSET * a_sums[t]);
                }
            }
            for k in 0..8 {
                for t in 0..T {
                    let a = _mm512_set1_epi32(four(&a[t][block], k));
                    for r in 0..R {
                        s[r][t] = _mm512_dpbusd_epi32(s[r][t], panels[r][block].q[k], a);
                    }
                }
            }
            for t in 0..T {
                let dx = _mm512_set1_ps(scales[t]);
                for r in 0..R {
                    total[r][t].add(panels[r][block].d, dx, s[r][t]);
                    if B::HAS_MIN {
                        total[r][t].add_min(panels[r][block].dmin, dx, _mm512_set1_epi32(a_sums[t]));
                    }
                }
            }
        }
        for t in 0..T {
            for r in 0..R {
                sums[t][r] = total[r][t];
            }
        }
    }
}
