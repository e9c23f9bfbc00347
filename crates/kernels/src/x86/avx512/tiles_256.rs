//! Several tokens with formats of 256 weights per block.

use core::arch::x86_64::*;
use core::marker::PhantomData;

use super::lanes::{Sums, TILE, halves, load, load_half};
use super::rows_32::non_linear;
use super::rows_256::first_16;
use super::tiles::{PANELS, Place, Tiles, four, pieces, transpose};
use crate::acts::{Acts, FINEST};
use crate::blocks::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};
use crate::in_place::InPlace;

/// The shifts that activations come with.
const SHIFTS: usize = FINEST as usize + 1;

/// The same block of 16 rows, a row per lane.
pub(super) struct Panel {
    /// Four weights each, unsigned.
    q: [__m512i; 64],
    /// The scale of each group, in 32 bits, shifted by as many bits as the activations may ask for.
    scale: [[__m512i; 16]; SHIFTS],
    /// In 16 bits, for groups 2i and 2i + 1: the minima, or minus the scales times the offset of the weights.
    min: [__m512i; 8],
    d: __m512,
    dmin: __m512,
}

/// A block that is unpacked into panels.
pub(super) trait Unpack: InPlace {
    /// Groups of weights with a scale, 8 or 16.
    const GROUPS: usize;
    /// Whether there are minima.
    const HAS_MIN: bool;
    /// Fills the panel.
    ///
    /// # Safety
    /// The CPU must have what the level asks for.
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel);
}

/// Scales, minima and their scales of Q4_K and Q5_K; see `blocks::scales_and_mins` for how they are packed.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unpack_begin<B: InPlace>(rows: &[&B; TILE], panel: &mut Panel) {
    let mut begin = [&[0; 16]; TILE];
    for r in 0..TILE {
        begin[r] = first_16(rows[r]);
    }
    let [heads, scales, mins, rest] = transpose(&begin);
    (panel.d, panel.dmin) = halves(heads);
    let (six, four, two) = (_mm512_set1_epi8(0x3f), _mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x30));
    let top = |v| _mm512_and_si512(_mm512_srli_epi16::<2>(v), two);
    let high_scales = _mm512_or_si512(_mm512_and_si512(rest, four), top(scales));
    let high_mins = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16::<4>(rest), four), top(mins));
    let (scales, mins) = (_mm512_and_si512(scales, six), _mm512_and_si512(mins, six));
    for (half, (scales, mins)) in [(scales, mins), (high_scales, high_mins)].into_iter().enumerate() {
        let byte = _mm512_set1_epi32(0xff);
        for i in 0..4 {
            let shift = _mm512_set1_epi32(8 * i);
            panel.scale[0][4 * half + i as usize] = _mm512_and_si512(_mm512_srlv_epi32(scales, shift), byte);
        }
        panel.min[2 * half] = _mm512_shuffle_epi8(mins, low_bytes(0));
        panel.min[2 * half + 1] = _mm512_shuffle_epi8(mins, low_bytes(2));
    }
}

/// Moves bytes `at` and `at + 1` of every element to the low bytes of its words.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn low_bytes(at: i32) -> __m512i {
    let one = |element: i32| (-0x7fff_8000 | ((4 * element + at + 1) << 16)) | (4 * element + at);
    _mm512_broadcast_i32x4(_mm_setr_epi32(one(0), one(1), one(2), one(3)))
}

/// The bits of `v` from bit `from` of each byte on, moved to bit `to` on, where `mask` lets them through: not what crosses
/// bytes in turning.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn move_bits(v: __m512i, from: usize, to: usize, mask: __m512i) -> __m512i {
    _mm512_and_si512(_mm512_rorv_epi32(v, _mm512_set1_epi32((32 + from - to) as i32 % 32)), mask)
}

impl Unpack for BlockQ4K {
    const GROUPS: usize = 8;
    const HAS_MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_begin(rows, panel);
        let low = _mm512_set1_epi8(15);
        for piece in 0..8 {
            let words = transpose(&pieces(rows, |b| &b.qs, piece));
            for i in 0..4 {
                // 16 bytes are half of a pair of groups, whose nibbles lie 32 weights apart.
                let k = 16 * (piece / 2) + 4 * (piece % 2) + i;
                panel.q[k] = _mm512_and_si512(words[i], low);
                panel.q[k + 8] = _mm512_and_si512(_mm512_srli_epi16::<4>(words[i]), low);
            }
        }
    }
}

impl Unpack for BlockQ5K {
    const GROUPS: usize = 8;
    const HAS_MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_begin(rows, panel);
        let (low, fifth) = (_mm512_set1_epi8(15), _mm512_set1_epi8(16));
        for part in 0..2 {
            let high = transpose(&pieces(rows, |b| &b.qh, part));
            for pair in 0..4 {
                let words = transpose(&pieces(rows, |b| &b.qs, 2 * pair + part));
                for i in 0..4 {
                    let k = 16 * pair + 4 * part + i;
                    let first = move_bits(high[i], 2 * pair, 4, fifth);
                    let second = move_bits(high[i], 2 * pair + 1, 4, fifth);
                    panel.q[k] = _mm512_or_si512(_mm512_and_si512(words[i], low), first);
                    panel.q[k + 8] =
                        _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16::<4>(words[i]), low), second);
                }
            }
        }
    }
}

impl Unpack for BlockQ6K {
    const GROUPS: usize = 16;
    const HAS_MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_signed_scales::<32>(transpose(&pieces(rows, |b| &b.scales, 0)), panel);
        unpack_heads(rows.map(|b| b.d), [[0; 2]; TILE], panel);
        let (low, two) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        for half in 0..2 {
            for part in 0..2 {
                let high = transpose(&pieces(rows, |b| &b.qh, 2 * half + part));
                for group in 0..2 {
                    let words = transpose(&pieces(rows, |b| &b.ql, 4 * half + 2 * group + part));
                    for i in 0..4 {
                        // Groups 2 and 3 have the high nibbles of groups 0 and 1.
                        let k = 32 * half + 8 * group + 4 * part + i;
                        let first = move_bits(high[i], 2 * group, 4, two);
                        let second = move_bits(high[i], 2 * group + 4, 4, two);
                        panel.q[k] = _mm512_or_si512(_mm512_and_si512(words[i], low), first);
                        panel.q[k + 16] =
                            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16::<4>(words[i]), low), second);
                    }
                }
            }
        }
    }
}

/// The scales of the scales and those of the minima.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unpack_heads(d: [[u8; 2]; TILE], dmin: [[u8; 2]; TILE], panel: &mut Panel) {
    let mut heads = [0; TILE];
    for r in 0..TILE {
        heads[r] = i32::from_le_bytes([d[r][0], d[r][1], dmin[r][0], dmin[r][1]]);
    }
    (panel.d, panel.dmin) = halves(load(&heads));
}

/// The weights of Q2_K; those of Q3_K with bit `4 · half + group` of `hmask` above them.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unpack_two_bits(qs: [&[u8; 64]; TILE], hmask: Option<[&[u8; 32]; TILE]>, panel: &mut Panel) {
    let (two, third) = (_mm512_set1_epi8(3), _mm512_set1_epi8(4));
    for part in 0..2 {
        let high = hmask.map(|hmask| transpose(&pieces(&hmask, |b| b, part)));
        for half in 0..2 {
            let words = transpose(&pieces(&qs, |b| b, 2 * half + part));
            for group in 0..4 {
                for i in 0..4 {
                    let mut q = move_bits(words[i], 2 * group, 0, two);
                    if let Some(high) = high {
                        q = _mm512_or_si512(q, move_bits(high[i], 4 * half + group, 2, third));
                    }
                    panel.q[32 * half + 8 * group + 4 * part + i] = q;
                }
            }
        }
    }
}

impl Unpack for BlockQ2K {
    const GROUPS: usize = 16;
    const HAS_MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_heads(rows.map(|b| b.d), rows.map(|b| b.dmin), panel);
        unpack_two_bits(rows.map(|b| &b.qs), None, panel);
        let low = _mm512_set1_epi8(15);
        for (four, both) in transpose(&pieces(rows, |b| &b.scales, 0)).into_iter().enumerate() {
            for i in 0..4 {
                let down = _mm512_srlv_epi32(both, _mm512_set1_epi32(8 * i));
                panel.scale[0][4 * four + i as usize] = _mm512_and_si512(down, _mm512_set1_epi32(15));
            }
            let mins = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
            panel.min[2 * four] = _mm512_shuffle_epi8(mins, low_bytes(0));
            panel.min[2 * four + 1] = _mm512_shuffle_epi8(mins, low_bytes(2));
        }
    }
}

impl Unpack for BlockQ3K {
    const GROUPS: usize = 16;
    const HAS_MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_heads(rows.map(|b| b.d), [[0; 2]; TILE], panel);
        unpack_two_bits(rows.map(|b| &b.qs), Some(rows.map(|b| &b.hmask)), panel);
        // The scales lie in twelve bytes, of which three times four go to the lanes.
        let mut words = [[0; TILE]; 3];
        for r in 0..TILE {
            for (words, bytes) in words.iter_mut().zip(rows[r].scales.as_chunks().0) {
                words[r] = i32::from_le_bytes(*bytes);
            }
        }
        let [first, second, tops] = [load(&words[0]), load(&words[1]), load(&words[2])];
        let (low, two) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let lows = [first, second, _mm512_srli_epi16::<4>(first), _mm512_srli_epi16::<4>(second)];
        let mut scales = lows;
        for i in 0..4 {
            let six = _mm512_or_si512(_mm512_and_si512(lows[i], low), move_bits(tops, 2 * i, 4, two));
            scales[i] = _mm512_sub_epi8(six, _mm512_set1_epi8(32));
        }
        unpack_signed_scales::<4>(scales, panel);
    }
}

impl Unpack for BlockIq4Xs {
    const GROUPS: usize = 8;
    const HAS_MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&Self; TILE], panel: &mut Panel) {
        unpack_heads(rows.map(|b| b.d), [[0; 2]; TILE], panel);
        let (mut high, mut low) = ([0; TILE], [0; TILE]);
        for r in 0..TILE {
            high[r] = i32::from(u16::from_le_bytes(rows[r].scales_h));
            low[r] = i32::from_le_bytes(rows[r].scales_l);
        }
        let (high, low) = (load(&high), load(&low));
        for group in 0..8 {
            let low = _mm512_srlv_epi32(low, _mm512_set1_epi32(4 * group));
            let high = _mm512_srlv_epi32(high, _mm512_set1_epi32(2 * group));
            let high = _mm512_slli_epi32::<4>(_mm512_and_si512(high, _mm512_set1_epi32(3)));
            let six = _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(15)), high);
            panel.scale[0][group as usize] = _mm512_sub_epi32(six, _mm512_set1_epi32(32));
        }
        for pair in 0..4 {
            let (first, second) = (panel.scale[0][2 * pair], panel.scale[0][2 * pair + 1]);
            let words = _mm512_mask_blend_epi16(0xaaaa_aaaa, first, _mm512_slli_epi32::<16>(second));
            panel.min[pair] = _mm512_mullo_epi16(words, _mm512_set1_epi16(-128));
        }
        let (nibble, sign) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-128));
        for group in 0..8 {
            let words = transpose(&pieces(rows, |b| &b.qs, group));
            for i in 0..4 {
                let (first, second) = (words[i], _mm512_srli_epi16::<4>(words[i]));
                let at = 8 * group + i;
                panel.q[at] = _mm512_xor_si512(non_linear(_mm512_and_si512(first, nibble)), sign);
                panel.q[at + 4] = _mm512_xor_si512(non_linear(_mm512_and_si512(second, nibble)), sign);
            }
        }
    }
}

/// 16 signed scales in bytes, of weights that lie `OFFSET` above the real ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn unpack_signed_scales<const OFFSET: i16>(scales: [__m512i; 4], panel: &mut Panel) {
    for (four, bytes) in scales.into_iter().enumerate() {
        for i in 0..4 {
            let up = _mm512_sllv_epi32(bytes, _mm512_set1_epi32(24 - 8 * i));
            panel.scale[0][4 * four + i as usize] = _mm512_srai_epi32::<24>(up);
        }
        for pair in 0..2 {
            let words = _mm512_shuffle_epi8(bytes, low_bytes(2 * pair));
            let words = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(words));
            panel.min[2 * four + pair as usize] = _mm512_mullo_epi16(words, _mm512_set1_epi16(-OFFSET));
        }
    }
}

/// The sums of a token's activations in pairs of 16 bits, per group of the weights.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn pairs_of_sums(sums: &[i16; 16], groups: usize) -> [i32; 8] {
    let mut v = load_half(sums);
    if groups == 8 {
        v = _mm256_castsi128_si256(_mm256_cvtepi32_epi16(_mm256_madd_epi16(v, _mm256_set1_epi16(1))));
    }
    let mut pairs = [0; 8];
    // SAFETY: the array has room for 32 bytes.
    unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), v) };
    pairs
}

/// The tiles of a format.
pub(super) struct Per256<B>(PhantomData<B>);

impl<B: Unpack> Tiles for Per256<B> {
    type Block = B;
    type Panel = Panel;
    const LEN: usize = 256;
    const BLOCKS: usize = 1;
    const TOKENS: usize = 6;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn empty() -> Panel {
        let (zero, none) = (_mm512_setzero_si512(), _mm512_setzero_ps());
        Panel { q: [zero; 64], scale: [[zero; 16]; SHIFTS], min: [zero; 8], d: none, dmin: none }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack(rows: &[&[B]; TILE], panel: &mut Panel) {
        let mut first = [&rows[0][0]; TILE];
        for r in 0..TILE {
            first[r] = &rows[r][0];
        }
        // SAFETY: the features are those of this function.
        unsafe { B::unpack(&first, panel) };
        for shift in 1..SHIFTS {
            for group in 0..B::GROUPS {
                let scale = panel.scale[shift - 1][group];
                panel.scale[shift][group] = _mm512_add_epi32(scale, scale);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply<const R: usize, const T: usize>(
        panels: &[Panel; PANELS],
        x: &Acts,
        at: Place,
        sums: &mut [[Sums; PANELS]; T],
    ) {
        let (form, tokens, blocks) = (x.per_256(), x.tokens(), x.cols() / 256);
        let mut a = [form.group(at.token * blocks + at.block); T];
        let mut pairs = [[0; 8]; T];
        for t in 0..T {
            a[t] = form.group((at.token + t) * blocks + at.block);
            pairs[t] = pairs_of_sums(a[t].sums, B::GROUPS);
        }
        let mut s = [[_mm512_setzero_si512(); T]; R];
        let mut m = [[_mm512_setzero_si512(); T]; R];
        for i in 0..B::GROUPS / 2 {
            for t in 0..T {
                let pair = _mm512_set1_epi32(pairs[t][i]);
                for r in 0..R {
                    m[r][t] = _mm512_dpwssd_epi32(m[r][t], panels[r].min[i], pair);
                }
            }
        }
        if B::HAS_MIN {
            for t in 0..T {
                let dx = _mm512_set1_ps(form.scales[at.block * tokens + at.token + t]);
                for r in 0..R {
                    sums[t][r].add_min(panels[r].dmin, dx, m[r][t]);
                }
            }
        } else {
            s = m;
        }
        let each = 64 / B::GROUPS;
        for group in 0..B::GROUPS {
            let mut sub = [[_mm512_setzero_si512(); T]; R];
            for k in 0..each {
                let k = group * each + k;
                for t in 0..T {
                    let a = _mm512_set1_epi32(four(a[t].q, k));
                    for r in 0..R {
                        sub[r][t] = _mm512_dpbusd_epi32(sub[r][t], panels[r].q[k], a);
                    }
                }
            }
            for t in 0..T {
                // Up to 3 by construction; what the mask would change cannot occur, and it spares a check.
                let shift = usize::from(a[t].shifts[group * 8 / B::GROUPS]) % SHIFTS;
                for r in 0..R {
                    let scaled = _mm512_mullo_epi32(sub[r][t], panels[r].scale[shift][group]);
                    s[r][t] = _mm512_add_epi32(s[r][t], scaled);
                }
            }
        }
        for t in 0..T {
            let dx = _mm512_set1_ps(form.scales[at.block * tokens + at.token + t]);
            for r in 0..R {
                sums[t][r].add(panels[r].d, dx, s[r][t]);
            }
        }
    }
}
