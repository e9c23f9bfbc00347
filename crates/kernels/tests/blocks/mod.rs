//! Rows for tests and benches, random and chosen, a small generator of random numbers, products as bits, and what the kernels
//! see of activations.
#![allow(dead_code)] // each test file is a crate of its own and uses a part of this

use core::ops::Range;

use half::f16;
use sluice_kernels::{ActBits, Acts, Format, Isa, QuantRows, Tuning, matmul, reference};

/// How far a product may be off the reference, in parts of Σ|w·x|: what the crate promises of f32 sums.
pub const BOUND: f64 = 1e-5;

/// Every how many of the shapes a long test takes: all, but under an emulator, which is some twenty times slower, some.
pub fn every(when_emulated: usize) -> usize {
    if std::env::var_os("SLUICE_TEST_RUNNER").is_some() { when_emulated } else { 1 }
}

/// Every level of this CPU, a tile unit from the first token on, so that it is tried at all shapes.
pub fn levels() -> Vec<Isa> {
    let from_one = |isa: Isa| isa.with_tuning(Tuning { tile_tokens: 1, ..isa.tuning() });
    Isa::available().into_iter().map(from_one).collect()
}

/// PCG-XSH-RR with 64 bits of state, from O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
/// Algorithms for Random Number Generation", 2014.
pub struct Pcg(u64);

impl Pcg {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u32 {
        let state = self.0;
        self.0 = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((((state >> 18) ^ state) >> 27) as u32).rotate_right((state >> 59) as u32)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Between −1 and 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// About normal: the sum of three uniform numbers, with variance 1.
    pub fn normal(&mut self) -> f32 {
        self.uniform() + self.uniform() + self.uniform()
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next() as u8;
        }
    }
}

/// Where the halves of a block are.
fn heads(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4_NL | Format::IQ4_XS => &[0],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q6_K => &[208],
    }
}

/// Where the integers are that scale parts of a block; nowhere in formats with one scale.
pub fn scales(format: Format) -> Range<usize> {
    match format {
        Format::Q2_K => 0..16,
        Format::Q3_K => 96..108,
        Format::Q4_K | Format::Q5_K => 4..16,
        Format::Q6_K => 192..208,
        Format::IQ4_XS => 2..8,
        _ => 0..0,
    }
}

/// Sets the halves of a block to these bits: the scale and, where there is one, that of the minima. Of a format without
/// blocks it sets the weight, or its upper half.
pub fn set_heads(format: Format, block: &mut [u8], bits: [u16; 2]) {
    let places = match format {
        Format::F32 => &[2],
        Format::F16 | Format::BF16 => &[0],
        _ => heads(format),
    };
    for (&at, bits) in places.iter().zip(bits) {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// Rows of valid blocks: random integers with scales of either sign between 2^-9 and 2^-7.
pub fn rows_of(rng: &mut Pcg, format: Format, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
    rng.fill(&mut bytes);
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let value = rng.normal();
        match format {
            Format::F32 => block.copy_from_slice(&value.to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            _ => {
                for &at in heads(format) {
                    let sign = [1.0, -1.0][rng.below(2)];
                    let d = sign * (1.0 + rng.uniform().abs() * 3.0) / 512.0;
                    block[at..at + 2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// The values that the 8-bit form of `x` stands for, written here once more from its definition; `x` itself for formats
/// without blocks.
pub fn as_quantised(format: Format, x: &[f32]) -> Vec<f32> {
    if format.block_len() == 1 {
        return x.to_vec();
    }
    let largest = |x: &[f32]| x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let mut values = Vec::with_capacity(x.len());
    for group in x.chunks_exact(format.block_len()) {
        let amax = largest(group);
        for part in group.chunks_exact(32) {
            // Within a group of 32 the part is the group.
            let finer = [8.0, 4.0, 2.0, 1.0].into_iter().find(|finer| largest(part) * finer <= amax).unwrap();
            let value = |x: &f32| (x * (127.0 / amax) * finer).round_ties_even() * (amax / 127.0) / finer;
            values.extend(part.iter().map(value));
        }
    }
    values
}

/// Activations of normal distribution, ready for rows of the format; every 32 of them are wider or narrower than others, so
/// that all steps occur in which they are rounded.
pub fn acts(rng: &mut Pcg, tokens: usize, cols: usize, isa: Isa, format: Format) -> Acts {
    let mut values: Vec<f32> = (0..tokens * cols).map(|_| rng.normal()).collect();
    for part in values.chunks_mut(32) {
        let width = [1.0, 0.7, 0.4, 0.2, 0.1, 0.01][rng.below(6)];
        part.iter_mut().for_each(|x| *x *= width);
    }
    acts_of(&values, cols, isa, format)
}

/// These activations, ready for rows of the format.
pub fn acts_of(values: &[f32], cols: usize, isa: Isa, format: Format) -> Acts {
    acts_in(ActBits::Eight, values, cols, isa, format)
}

/// These activations in so many bits, ready for rows of the format.
pub fn acts_in(bits: ActBits, values: &[f32], cols: usize, isa: Isa, format: Format) -> Acts {
    let mut acts = Acts::with_bits(bits);
    acts.fill(values, cols);
    acts.prepare(isa, format);
    acts
}

/// The bits of W·x, (rows, tokens).
pub fn product(isa: Isa, w: QuantRows<'_>, x: &Acts) -> Vec<u32> {
    let mut y = vec![f32::NAN; w.rows() * x.tokens()];
    matmul(isa, w, x, &mut y);
    y.into_iter().map(f32::to_bits).collect()
}

/// The first results of (rows, tokens): those of the first `rows` rows with the first `few` tokens.
pub fn part(results: &[u32], tokens: usize, rows: usize, few: usize) -> Vec<u32> {
    results.chunks_exact(tokens).take(rows).flat_map(|row| &row[..few]).copied().collect()
}

/// The largest error of a product against the reference in f64, on the activations that the 8-bit form stands for, in parts
/// of Σ|w·x|. All rows, the first `tokens` tokens.
pub fn error(w: QuantRows<'_>, x: &Acts, y: &[u32], tokens: usize) -> f64 {
    let seen: Vec<f32> =
        x.values().chunks_exact(w.cols()).flat_map(|x| as_quantised(w.format(), x)).collect();
    error_on(&seen, w, x, y, tokens)
}

/// As [`error`], on activations that are given, (tokens, cols).
pub fn error_on(seen: &[f32], w: QuantRows<'_>, x: &Acts, y: &[u32], tokens: usize) -> f64 {
    let mut worst = 0.0f64;
    for (token, seen) in seen.chunks_exact(w.cols()).take(tokens).enumerate() {
        for row in 0..w.rows() {
            let (wanted, scale) = reference::dot(w.format(), w.slice(row..row + 1).bytes(), seen);
            let off = (f64::from(f32::from_bits(y[row * x.tokens() + token])) - wanted).abs();
            // Nothing may be off a sum of nothing, and no number is no small error.
            let ratio = if off == 0.0 { 0.0 } else { off / scale };
            worst = if ratio.is_nan() { f64::INFINITY } else { worst.max(ratio) };
        }
    }
    worst
}
