//! The scalar level, which defines the bits of every product. Plain loops over the integer form of the blocks.

use crate::acts::Acts;
use crate::blocks::{
    Block, BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, SUB, Unpacked,
};
use crate::format::Format;
use crate::numbers::{LANES, bf16_to_f32, canonical, f16_to_f32, fma_lanes, padded, sum_lanes};
use crate::rows::QuantRows;

/// Tokens for which a block is unpacked once; more cost more stack and gain nothing.
const TILE: usize = 16;

/// y = W·x; shapes and forms have been checked.
pub(crate) fn matmul(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    match w.format() {
        Format::F32 => floats(w, x, y, f32::from_le_bytes),
        Format::F16 => floats(w, x, y, f16_to_f32),
        Format::BF16 => floats(w, x, y, bf16_to_f32),
        Format::Q4_0 => per_32::<BlockQ4_0>(w, x, y),
        Format::Q4_1 => per_32::<BlockQ4_1>(w, x, y),
        Format::Q5_0 => per_32::<BlockQ5_0>(w, x, y),
        Format::Q5_1 => per_32::<BlockQ5_1>(w, x, y),
        Format::Q8_0 => per_32::<BlockQ8_0>(w, x, y),
        Format::Q2_K => per_256::<BlockQ2K>(w, x, y),
        Format::Q3_K => per_256::<BlockQ3K>(w, x, y),
        Format::Q4_K => per_256::<BlockQ4K>(w, x, y),
        Format::Q5_K => per_256::<BlockQ5K>(w, x, y),
        Format::Q6_K => per_256::<BlockQ6K>(w, x, y),
        Format::IQ4_NL => per_32::<BlockIq4Nl>(w, x, y),
        Format::IQ4_XS => per_256::<BlockIq4Xs>(w, x, y),
    }
}

/// Formats without blocks: 16 partial sums by column modulo 16, the tail padded with +0.
fn floats<const B: usize>(w: QuantRows<'_>, x: &Acts, y: &mut [f32], decode: fn([u8; B]) -> f32) {
    let (tokens, cols) = (x.tokens(), x.cols());
    for (row, y) in y.chunks_exact_mut(tokens).enumerate() {
        let weights = w.row(row).as_chunks::<B>().0;
        for (x, y) in x.values().chunks_exact(cols).zip(y) {
            let mut lanes = [0.0; LANES];
            for (w, x) in weights.chunks(LANES).zip(x.chunks(LANES)) {
                let mut group = [0.0; LANES];
                for (value, &bytes) in group.iter_mut().zip(w) {
                    *value = decode(bytes);
                }
                fma_lanes(&mut lanes, &group, &padded(x));
            }
            *y = canonical(sum_lanes(lanes));
        }
    }
}

/// What a row and a token have gathered so far.
#[derive(Clone, Copy, Default)]
struct Sums {
    acc: f32,
    accm: f32,
}

impl Sums {
    /// Adds a block: `s` is Σ scale·q·a and `m` is Σ min·a, both exact; each is rounded once, on its way to f32.
    fn add<const N: usize, const S: usize>(&mut self, w: &Unpacked<N, S>, dx: f32, s: i32, m: Option<i32>) {
        self.acc = (w.d * dx).mul_add(s as f32, self.acc);
        if let Some(m) = m {
            self.accm = (w.dmin * dx).mul_add(m as f32, self.accm);
        }
    }

    fn result(self) -> f32 {
        canonical(self.acc - self.accm)
    }
}

/// Σ scale·q·a over a block, in units of the activations' scale, for which they are shifted per 32: at most
/// 256·128·32·127·8 for Q6_K, half of what i32 holds.
fn weighted<const N: usize, const S: usize>(w: &Unpacked<N, S>, a: &[i8], shifts: &[u8]) -> i32 {
    let mut total = 0;
    for (group, (q, a)) in w.q.chunks_exact(SUB).zip(a.chunks_exact(SUB)).enumerate() {
        let sum: i32 = q.iter().zip(a).map(|(&q, &a)| i32::from(q) * i32::from(a)).sum();
        total += i32::from(w.scale[group]) * (sum << shifts[group / 2]);
    }
    total
}

/// Blocks of 32 weights, whose minimum is one for all.
fn per_32<B: Block<32, 2>>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    let (form, tokens, cols) = (x.per_32(), x.tokens(), x.cols());
    for (row, y) in y.chunks_exact_mut(tokens).enumerate() {
        for (tile, y) in y.chunks_mut(TILE).enumerate() {
            let mut sums = [Sums::default(); TILE];
            for (block, bytes) in w.row(row).chunks_exact(size_of::<B>()).enumerate() {
                let w = B::read(bytes).unpack();
                for (t, sums) in sums[..y.len()].iter_mut().enumerate() {
                    let token = tile * TILE + t;
                    let a = &form.q[token * cols + block * 32..][..32];
                    let at = block * tokens + token;
                    sums.add(&w, form.scales[at], weighted(&w, a, &[0]), B::HAS_MIN.then_some(form.sums[at]));
                }
            }
            for (y, sums) in y.iter_mut().zip(sums) {
                *y = sums.result();
            }
        }
    }
}

/// Blocks of 256 weights, whose minima have sums of 16 activations to go with.
fn per_256<B: Block<256, 16>>(w: QuantRows<'_>, x: &Acts, y: &mut [f32]) {
    let (form, tokens, cols) = (x.per_256(), x.tokens(), x.cols());
    for (row, y) in y.chunks_exact_mut(tokens).enumerate() {
        for (tile, y) in y.chunks_mut(TILE).enumerate() {
            let mut sums = [Sums::default(); TILE];
            for (block, bytes) in w.row(row).chunks_exact(size_of::<B>()).enumerate() {
                let w = B::read(bytes).unpack();
                for (t, sums) in sums[..y.len()].iter_mut().enumerate() {
                    let token = tile * TILE + t;
                    let a = form.group(token * (cols / 256) + block);
                    let m =
                        w.min.iter().zip(a.sums).map(|(&min, &sum)| i32::from(min) * i32::from(sum)).sum();
                    let dx = form.scales[block * tokens + token];
                    sums.add(&w, dx, weighted(&w, a.q, a.shifts), B::HAS_MIN.then_some(m));
                }
            }
            for (y, sums) in y.iter_mut().zip(sums) {
                *y = sums.result();
            }
        }
    }
}
