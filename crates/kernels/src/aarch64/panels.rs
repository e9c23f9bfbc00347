//! Several tokens: eight rows are unpacked once, 256 columns at a time, and multiplied with four tokens at a time.
//!
//! What `Cells` says decides how rows and tokens stand in the lanes; nothing is ever added across lanes.

use core::arch::aarch64::*;

use super::blocks_32::Block32;
use super::blocks_256::{Block256, per_16, without_offset};
use super::cells::{CELLS, Cells, ROWS, TOKENS};
use super::instructions::singles;
use super::lanes::{load_f32, load_i8, load_i16, load_i32, stored};
use crate::acts::Acts;
use crate::numbers::canonical;

/// What four tokens have gathered so far with eight rows: `acc` and `accm` of `scalar`, by cell.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    acc: [float32x4_t; CELLS],
    accm: [float32x4_t; CELLS],
}

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn new() -> Self {
        Self { acc: [vdupq_n_f32(0.0); CELLS], accm: [vdupq_n_f32(0.0); CELLS] }
    }

    /// Gives `put` the row, the token and the result of every lane.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn results<C: Cells>(&self, mut put: impl FnMut(usize, usize, f32)) {
        for cell in 0..CELLS {
            let values = stored(vsubq_f32(self.acc[cell], self.accm[cell]));
            for (lane, value) in values.into_iter().enumerate() {
                let (row, token) = C::place(cell / C::ACROSS, cell % C::ACROSS, lane);
                put(row, token, canonical(value));
            }
        }
    }
}

/// A value per row, in the lanes of each cell down.
#[inline(always)]
fn of_rows<C: Cells, T: Copy>(values: &[T; ROWS], row: usize) -> [T; 4] {
    [0, 1, 2, 3].map(|lane| values[C::place(row, 0, lane).0])
}

/// A value per row, one of some halves, as singles in the lanes of each cell down.
#[inline]
#[target_feature(enable = "neon")]
fn singles_of_rows<C: Cells>(halves: &[u16; ROWS]) -> [float32x4_t; 4] {
    let mut out = [vdupq_n_f32(0.0); 4];
    for row in 0..C::DOWN {
        let halves = of_rows::<C, u16>(halves, row);
        // SAFETY: 4 integers are there, at any alignment.
        out[row] = singles(unsafe { vld1_u16(halves.as_ptr()) });
    }
    out
}

/// 16 activations of four tokens, ready for products.
///
/// # Safety
/// The CPU must have NEON with dot products, and what `C` asks for.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn activations<C: Cells>(q: [&[i8; 16]; TOKENS]) -> [int8x16_t; TOKENS] {
    let a = [load_i8(q[0]), load_i8(q[1]), load_i8(q[2]), load_i8(q[3])];
    // SAFETY: as the caller's.
    unsafe { C::gather(a) }
}

/// How the eight rows and four tokens of a format with blocks of `LEN` weights are multiplied.
pub(super) trait Panel<C: Cells> {
    /// A block of weights.
    type Block;
    /// Weights per block.
    const LEN: usize;
    /// Room for blocks of eight rows.
    fn new() -> Self;
    /// Blocks that a panel holds.
    const BLOCKS: usize = 256 / Self::LEN;
    /// Takes blocks `first..last` of up to eight rows of `blocks` blocks. Rows that are not there repeat the last one.
    ///
    /// # Safety
    /// The CPU must have NEON with dot products, and what `C` asks for; so for all functions here.
    unsafe fn unpack(&mut self, w: &[Self::Block], blocks: usize, first: usize, last: usize);
    /// Adds to `sums` what blocks `first..last`, those that have been unpacked, give with four tokens from `token` on. Tokens
    /// that are not there repeat the last one, or are what nobody reads.
    ///
    /// # Safety
    /// See `unpack`.
    unsafe fn multiply(&self, x: &Acts, first: usize, last: usize, token: usize, sums: &mut Sums);
}

/// Up to eight blocks of 32 weights of eight rows.
pub(super) struct Panel32<B> {
    /// 16 columns of eight rows, packed.
    q: [[int8x16_t; ROWS]; 16],
    d: [[float32x4_t; 4]; 8],
    /// Minus the minimum.
    dmin: [[float32x4_t; 4]; 8],
    blocks: core::marker::PhantomData<B>,
}

impl<C: Cells, B: Block32> Panel<C> for Panel32<B> {
    type Block = B;
    const LEN: usize = 32;

    fn new() -> Self {
        // SAFETY: every AArch64 CPU has NEON.
        let (q, singles) = unsafe { (vdupq_n_s8(0), vdupq_n_f32(0.0)) };
        let d = [[singles; 4]; 8];
        Self { q: [[q; ROWS]; 16], d, dmin: d, blocks: core::marker::PhantomData }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn unpack(&mut self, w: &[B], blocks: usize, first: usize, last: usize) {
        let last_row = w.len() / blocks - 1;
        for (i, block) in (first..last).enumerate() {
            let mut q = [[vdupq_n_s8(0); ROWS]; 2];
            let (mut d, mut m) = ([0; ROWS], [0; ROWS]);
            for r in 0..ROWS {
                let w = &w[r.min(last_row) * blocks + block];
                // SAFETY: the features are those of this function.
                let [low, high] = unsafe { w.weights() };
                (q[0][r], q[1][r]) = (without_offset(low, B::OFFSET), without_offset(high, B::OFFSET));
                let [d0, d1, m0, m1] = w.head();
                (d[r], m[r]) = (u16::from_le_bytes([d0, d1]), u16::from_le_bytes([m0, m1]));
            }
            // SAFETY: the features are those of this function, and the caller answers for `C`.
            (self.q[2 * i], self.q[2 * i + 1]) = unsafe { (C::pack(q[0]), C::pack(q[1])) };
            self.d[i] = singles_of_rows::<C>(&d);
            if B::HAS_MIN {
                for (dmin, m) in self.dmin[i].iter_mut().zip(singles_of_rows::<C>(&m)) {
                    *dmin = vnegq_f32(m);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn multiply(&self, x: &Acts, first: usize, last: usize, token: usize, sums: &mut Sums) {
        let (form, tokens, blocks) = (x.per_32(), x.tokens(), x.cols() / 32);
        let q = form.q.as_chunks::<16>().0.as_chunks::<2>().0;
        let count = last - first;
        let q = [0, 1, 2, 3].map(|t| &q[(token + t).min(tokens - 1) * blocks + first..][..count]);
        let mut all = *sums;
        for i in 0..count {
            // SAFETY: the features are those of this function, and the caller answers for `C`.
            let (low, high) = unsafe {
                (
                    activations::<C>([&q[0][i][0], &q[1][i][0], &q[2][i][0], &q[3][i][0]]),
                    activations::<C>([&q[0][i][1], &q[1][i][1], &q[2][i][1], &q[3][i][1]]),
                )
            };
            let at = (first + i) * tokens + token;
            let dx = load_f32(&form.scales[at..at + TOKENS].as_chunks().0[0]);
            // SAFETY: as above.
            let dx = unsafe { C::of_tokens(vreinterpretq_s32_f32(dx)) };
            // SAFETY: as above.
            let m = unsafe { C::of_tokens(load_i32(&form.sums[at..at + TOKENS].as_chunks().0[0])) };
            for row in 0..C::DOWN {
                for token in 0..C::ACROSS {
                    let cell = row * C::ACROSS + token;
                    let dx = vreinterpretq_f32_s32(dx[token]);
                    // SAFETY: as above.
                    let s = unsafe {
                        let s = C::dot(vdupq_n_s32(0), &self.q[2 * i], &low, row, token);
                        C::dot(s, &self.q[2 * i + 1], &high, row, token)
                    };
                    let scale = vmulq_f32(self.d[i][row], dx);
                    all.acc[cell] = vfmaq_f32(all.acc[cell], scale, vcvtq_f32_s32(s));
                    if B::HAS_MIN {
                        let scale = vmulq_f32(self.dmin[i][row], dx);
                        all.accm[cell] = vfmaq_f32(all.accm[cell], scale, vcvtq_f32_s32(m[token]));
                    }
                }
            }
        }
        *sums = all;
    }
}

/// A block of 256 weights of eight rows.
pub(super) struct Panel256<B> {
    /// 16 columns of eight rows, packed.
    q: [[int8x16_t; ROWS]; 16],
    /// Per 16 or 32 weights.
    scale: [[int32x4_t; 4]; 16],
    /// The minima per 16 weights, packed like 16 columns.
    min: [int8x16_t; ROWS],
    d: [float32x4_t; 4],
    dmin: [float32x4_t; 4],
    blocks: core::marker::PhantomData<B>,
}

impl<C: Cells, B: Block256> Panel<C> for Panel256<B> {
    type Block = B;
    const LEN: usize = 256;

    fn new() -> Self {
        // SAFETY: every AArch64 CPU has NEON.
        let (q, scale, d) = unsafe { (vdupq_n_s8(0), vdupq_n_s32(0), vdupq_n_f32(0.0)) };
        Self {
            q: [[q; ROWS]; 16],
            scale: [[scale; 4]; 16],
            min: [q; ROWS],
            d: [d; 4],
            dmin: [d; 4],
            blocks: core::marker::PhantomData,
        }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn unpack(&mut self, w: &[B], blocks: usize, block: usize, _last: usize) {
        let last_row = w.len() / blocks - 1;
        let mut min = [vdupq_n_s8(0); ROWS];
        let mut scales = [[0i8; 16]; ROWS];
        let (mut d, mut dmin) = ([0; ROWS], [0; ROWS]);
        for r in 0..ROWS {
            let w = &w[r.min(last_row) * blocks + block];
            // SAFETY: the features are those of this function.
            let (q, scale, mins) = unsafe { (w.weights(), w.scales(), w.mins()) };
            for (to, q) in self.q.iter_mut().zip(q) {
                to[r] = without_offset(q, B::OFFSET);
            }
            // SAFETY: there is room for 16 bytes.
            unsafe { vst1q_s8(scales[r].as_mut_ptr(), scale) };
            min[r] = per_16(mins, B::PER_16);
            let [d0, d1, m0, m1] = w.head();
            (d[r], dmin[r]) = (u16::from_le_bytes([d0, d1]), u16::from_le_bytes([m0, m1]));
        }
        for q in &mut self.q {
            // SAFETY: the features are those of this function, and the caller answers for `C`.
            *q = unsafe { C::pack(*q) };
        }
        for group in 0..if B::PER_16 { 16 } else { 8 } {
            let scales = scales.map(|scales| i32::from(scales[group]));
            for row in 0..C::DOWN {
                self.scale[group][row] = load_i32(&of_rows::<C, i32>(&scales, row));
            }
        }
        self.d = singles_of_rows::<C>(&d);
        if B::HAS_MIN {
            self.dmin = singles_of_rows::<C>(&dmin);
            // SAFETY: as above.
            self.min = unsafe { C::pack(min) };
        }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn multiply(&self, x: &Acts, block: usize, _last: usize, token: usize, sums: &mut Sums) {
        let (form, tokens, blocks) = (x.per_256(), x.tokens(), x.cols() / 256);
        let groups = [0, 1, 2, 3].map(|t| form.group((token + t).min(tokens - 1) * blocks + block));
        let at = block * tokens + token;
        let dx = load_f32(&form.scales[at..at + TOKENS].as_chunks().0[0]);
        // SAFETY: the features are those of this function, and the caller answers for `C`.
        let dx = unsafe { C::of_tokens(vreinterpretq_s32_f32(dx)) };
        if B::HAS_MIN {
            // SAFETY: as above.
            let m = unsafe { self.minima::<C>(groups.map(|group| group.sums)) };
            for (cell, m) in m.into_iter().enumerate() {
                let dx = vreinterpretq_f32_s32(dx[cell % C::ACROSS]);
                let scale = vmulq_f32(self.dmin[cell / C::ACROSS], dx);
                sums.accm[cell] = vfmaq_f32(sums.accm[cell], scale, vcvtq_f32_s32(m));
            }
        }
        let powers = powers::<C>(groups.map(|group| group.powers));
        let q: [&[[i8; 16]; 16]; TOKENS] =
            groups.map(|group| &group.q.as_chunks::<16>().0.as_chunks::<16>().0[0]);
        let zero = vdupq_n_s32(0);
        let mut s = [zero; CELLS];
        for group in 0..8 {
            let (even, odd) = (2 * group, 2 * group + 1);
            // SAFETY: as above.
            let (low, high) = unsafe {
                (
                    activations::<C>([&q[0][even], &q[1][even], &q[2][even], &q[3][even]]),
                    activations::<C>([&q[0][odd], &q[1][odd], &q[2][odd], &q[3][odd]]),
                )
            };
            let (w, more) = (&self.q[even], &self.q[odd]);
            for token in 0..C::ACROSS {
                let pair = vreinterpret_s16_s32(vdup_n_s32(powers[token][group]));
                let power = vmovl_s16(pair);
                for row in 0..C::DOWN {
                    let cell = row * C::ACROSS + token;
                    let sum = if B::PER_16 {
                        // SAFETY: as above.
                        let sums = unsafe {
                            [C::dot(zero, w, &low, row, token), C::dot(zero, more, &high, row, token)]
                        };
                        let sum = vmulq_s32(sums[0], self.scale[2 * group][row]);
                        vmlaq_s32(sum, sums[1], self.scale[2 * group + 1][row])
                    } else {
                        // SAFETY: as above.
                        let sum =
                            unsafe { C::dot(C::dot(zero, w, &low, row, token), more, &high, row, token) };
                        vmulq_s32(sum, self.scale[group][row])
                    };
                    s[cell] = vmlaq_s32(s[cell], sum, power);
                }
            }
        }
        for (cell, s) in s.into_iter().enumerate() {
            let scale = vmulq_f32(self.d[cell / C::ACROSS], vreinterpretq_f32_s32(dx[cell % C::ACROSS]));
            sums.acc[cell] = vfmaq_f32(sums.acc[cell], scale, vcvtq_f32_s32(s));
        }
    }
}

impl<B> Panel256<B> {
    /// Σ min·sum for all cells. Sums of 16 activations have 16 bits: as bytes, low ones signed and high ones to match, they are
    /// columns like any other.
    ///
    /// # Safety
    /// The CPU must have NEON with dot products, and what `C` asks for.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn minima<C: Cells>(&self, sums: [&[i16; 16]; TOKENS]) -> [int32x4_t; CELLS] {
        let (mut low, mut high) = ([vdupq_n_s8(0); TOKENS], [vdupq_n_s8(0); TOKENS]);
        let half = vdupq_n_s16(128);
        for (t, sums) in sums.into_iter().enumerate() {
            let sums = sums.as_chunks().0;
            let sums = [load_i16(&sums[0]), load_i16(&sums[1])];
            let bytes = |v: int16x8_t| vreinterpretq_s8_s16(v);
            low[t] = vuzp1q_s8(bytes(sums[0]), bytes(sums[1]));
            // At most 16·127·8 + 128: no overflow.
            high[t] = vuzp2q_s8(bytes(vaddq_s16(sums[0], half)), bytes(vaddq_s16(sums[1], half)));
        }
        // SAFETY: as the caller's.
        let (low, high) = unsafe { (C::gather(low), C::gather(high)) };
        let mut m = [vdupq_n_s32(0); CELLS];
        for (cell, m) in m.iter_mut().enumerate() {
            let (row, token) = (cell / C::ACROSS, cell % C::ACROSS);
            // SAFETY: as above.
            *m = unsafe {
                let high = C::dot(*m, &self.min, &high, row, token);
                C::dot(vshlq_n_s32::<8>(high), &self.min, &low, row, token)
            };
        }
        m
    }
}

/// For each cell across and each 32 activations, the powers of its lanes 0 and 1, one above the other: 2 and 3 have the same.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn powers<C: Cells>(of: [&[i16; 8]; TOKENS]) -> [[i32; 8]; TOKENS] {
    let mut out = [[0; 8]; TOKENS];
    for token in 0..C::ACROSS {
        let (first, second) = (C::place(0, token, 0).1, C::place(0, token, 1).1);
        let (first, second) = (load_i16(of[first]), load_i16(of[second]));
        // SAFETY: there is room for eight integers.
        unsafe {
            vst1q_s32(out[token].as_mut_ptr(), vreinterpretq_s32_s16(vzip1q_s16(first, second)));
            vst1q_s32(out[token].as_mut_ptr().add(4), vreinterpretq_s32_s16(vzip2q_s16(first, second)));
        }
    }
    out
}
