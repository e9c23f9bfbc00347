//! Many tokens with the K formats: 8 rows, a row per lane, unpacked once for all tokens.
//!
//! Four weights of each row meet the same four activations of a token in one instruction. Its sums of two products have 16
//! bits, and as the weights are small, some of them may be added before they are multiplied with the scale of their group:
//! `SUM` of them stay below 2^15, 2·127 times the largest weight each. Results never have to be gathered from the lanes.

use core::arch::x86_64::*;

use super::lanes::{Sums, load, load_ps};
use super::per_256::Wide;
use crate::acts::{Acts, FINEST};
use crate::blocks::{Block, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, Unpacked256};
use crate::in_place::blocks_of;
use crate::rows::QuantRows;

/// Rows in a panel: the singles in a register.
const ROWS: usize = 8;

/// Tokens from which a panel pays: unpacking one, in portable code, takes as long as multiplying it with 8 tokens, and the
/// tiles of tokens that are the alternative take 1.7 times as long per token.
pub(super) const WORTHWHILE: usize = 12;

/// Tokens for which a panel is unpacked once: their sums, 64 bytes each, take a quarter of level 1.
const TOKENS: usize = 128;

/// Tokens whose sums fit the registers, two for each beside the weights, the activations and what is on its way.
const TOGETHER: usize = 4;

/// A format with small unsigned weights, as [`Wide`] unpacks them.
pub(super) trait Small: Wide + Block<256, 16> {
    /// How many sums of two products may be added in 16 bits.
    const SUM: usize;
}

impl Small for BlockQ2K {
    const SUM: usize = 4; // weights up to 3; four is all that a group has
}
impl Small for BlockQ3K {
    const SUM: usize = 4; // up to 7, likewise
}
impl Small for BlockQ4K {
    const SUM: usize = 8; // up to 15: 8·2·15·127 = 30480
}
impl Small for BlockQ5K {
    const SUM: usize = 4; // up to 31: 4·2·31·127 = 31496
}
impl Small for BlockQ6K {
    const SUM: usize = 2; // up to 63: 2·2·63·127 = 32004
}

/// The shifts that activations come with.
const SHIFTS: usize = FINEST as usize + 1;

/// The same block of 8 rows.
struct Panel {
    /// Four weights each, unsigned.
    q: [__m256i; 64],
    /// Per 16 weights their scale, twice in 16 bits, shifted by as many bits as the activations may ask for.
    scale: [[__m256i; 16]; SHIFTS],
    /// Per 32 weights, for each 16 of them in 16 bits: the minimum, or minus the scale times the offset of the weights.
    min: [__m256i; 8],
    d: __m256,
    dmin: __m256,
}

/// y = W·x for one format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul<B: Small>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    let (tokens, blocks) = (x.tokens(), x.cols() / 256);
    let all = blocks_of::<B>(w);
    let mut panel = Panel {
        q: [_mm256_setzero_si256(); 64],
        scale: [[_mm256_setzero_si256(); 16]; SHIFTS],
        min: [_mm256_setzero_si256(); 8],
        d: _mm256_setzero_ps(),
        dmin: _mm256_setzero_ps(),
    };
    let mut sums = [Sums::new(); TOKENS];
    for first in (0..tokens).step_by(TOKENS) {
        let sums = &mut sums[..TOKENS.min(tokens - first)];
        for (w, y) in all.chunks(ROWS * blocks).zip(y.chunks_mut(ROWS * tokens)) {
            sums.fill(Sums::new());
            for block in 0..blocks {
                unpack(w, blocks, block, &mut panel);
                let mut token = first;
                let (tiles, rest) = sums.as_chunks_mut::<TOGETHER>();
                for sums in tiles {
                    multiply::<B, TOGETHER>(&panel, x, block, token, sums);
                    token += TOGETHER;
                }
                for sums in rest.as_chunks_mut::<1>().0 {
                    multiply::<B, 1>(&panel, x, block, token, sums);
                    token += 1;
                }
            }
            for (token, sums) in sums.iter().enumerate() {
                for (y, result) in y.chunks_exact_mut(tokens).zip(sums.results()) {
                    y[first + token] = result;
                }
            }
        }
    }
}

/// Fills the panel with a block of up to 8 rows of `blocks` blocks. Lanes without a row repeat the last one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<B: Small>(w: &[B], blocks: usize, block: usize, panel: &mut Panel) {
    let last = w.len() / blocks - 1;
    let mut q = [[0u8; 256]; ROWS];
    let (mut scale, mut min) = ([[[0i16; 2]; ROWS]; 16], [[[0i16; 2]; ROWS]; 8]);
    let (mut d, mut dmin) = ([0.0; ROWS], [0.0; ROWS]);
    for r in 0..ROWS {
        let one: Unpacked256 = w[r.min(last) * blocks + block].unpack();
        for i in 0..256 {
            q[r][i] = (one.q[i] + B::OFFSET as i8) as u8;
        }
        for group in 0..16 {
            scale[group][r] = [i16::from(one.scale[group]); 2];
            let offset = -(B::OFFSET as i16) * i16::from(one.scale[group]);
            min[group / 2][r][group % 2] =
                if <B as Wide>::HAS_MIN { i16::from(one.min[group]) } else { offset };
        }
        (d[r], dmin[r]) = (one.d, one.dmin);
    }
    for piece in 0..8 {
        let mut rows = [_mm256_setzero_si256(); ROWS];
        for r in 0..ROWS {
            rows[r] = load::<u8, 32>(&q[r].as_chunks().0[piece]);
        }
        for (k, word) in transpose(rows).into_iter().enumerate() {
            panel.q[8 * piece + k] = word;
        }
    }
    for group in 0..16 {
        panel.scale[0][group] = load(&scale[group]);
        for shift in 1..SHIFTS {
            let scale = panel.scale[shift - 1][group];
            panel.scale[shift][group] = _mm256_add_epi16(scale, scale);
        }
    }
    for pair in 0..8 {
        panel.min[pair] = load(&min[pair]);
    }
    (panel.d, panel.dmin) = (load_ps(&d), load_ps(&dmin));
}

/// Lane `r` of result `i` is lane `i` of row `r`.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: [__m256i; ROWS]) -> [__m256i; ROWS] {
    let mut fours = [[_mm256_setzero_si256(); 4]; 2];
    for half in 0..2 {
        let v = &v[4 * half..];
        let (low_01, high_01) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
        let (low_23, high_23) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
        fours[half] = [
            _mm256_unpacklo_epi64(low_01, low_23),
            _mm256_unpackhi_epi64(low_01, low_23),
            _mm256_unpacklo_epi64(high_01, high_23),
            _mm256_unpackhi_epi64(high_01, high_23),
        ];
    }
    let mut out = v;
    for i in 0..4 {
        out[i] = _mm256_permute2x128_si256::<0x20>(fours[0][i], fours[1][i]);
        out[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[0][i], fours[1][i]);
    }
    out
}

/// Adds to the sums of `T` tokens from `token` on what the panel, which is block `block` of its rows, gives.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<B: Small, const T: usize>(
    panel: &Panel,
    x: &Acts,
    block: usize,
    token: usize,
    sums: &mut [Sums; T],
) {
    let (form, tokens, blocks) = (x.per_256(), x.tokens(), x.cols() / 256);
    let mut a = [form.group(token * blocks + block); T];
    for t in 0..T {
        a[t] = form.group((token + t) * blocks + block);
    }
    let dx = |t: usize| _mm256_set1_ps(form.scales[block * tokens + token + t]);
    let mut s = [_mm256_setzero_si256(); T];
    for pair in 0..8 {
        for t in 0..T {
            let [first, second] = a[t].sums.as_chunks().0[pair];
            let both = _mm256_set1_epi32(i32::from(first as u16) | i32::from(second) << 16);
            s[t] = _mm256_add_epi32(s[t], _mm256_madd_epi16(panel.min[pair], both));
        }
    }
    if <B as Wide>::HAS_MIN {
        for t in 0..T {
            sums[t].add_min(panel.dmin, dx(t), s[t]);
            s[t] = _mm256_setzero_si256();
        }
    }
    for group in 0..8 {
        let mut scales = [&panel.scale[0]; T];
        for t in 0..T {
            scales[t] = &panel.scale[usize::from(a[t].shifts[group]) % SHIFTS];
        }
        for part in group * 8 / B::SUM..(group + 1) * 8 / B::SUM {
            let mut pairs = [_mm256_setzero_si256(); T];
            for k in part * B::SUM..(part + 1) * B::SUM {
                for t in 0..T {
                    let a = i32::from_le_bytes(a[t].q.as_chunks().0[k].map(|a: i8| a as u8));
                    let products = _mm256_maddubs_epi16(panel.q[k], _mm256_set1_epi32(a));
                    pairs[t] = _mm256_add_epi16(pairs[t], products);
                }
            }
            for t in 0..T {
                let scaled = _mm256_madd_epi16(pairs[t], scales[t][part * B::SUM / 4]);
                s[t] = _mm256_add_epi32(s[t], scaled);
            }
        }
    }
    for t in 0..T {
        sums[t].add(panel.d, dx(t), s[t]);
    }
}
