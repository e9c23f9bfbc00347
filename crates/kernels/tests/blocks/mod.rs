//! Random rows for the tests, a small generator of random numbers, and what the kernels see of activations.
#![allow(dead_code)] // each test file is a crate of its own and uses a part of this

use half::f16;
use sluice_kernels::Format;

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

/// Sets every half of every block to these bits; for F16 every weight.
pub fn set_heads(format: Format, bytes: &mut [u8], bits: u16) {
    let places = if format == Format::F16 { &[0] } else { heads(format) };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &at in places {
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
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
    let groups = x.chunks_exact(format.block_len()).flat_map(|group| {
        let amax = group.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        group.iter().map(move |x| (x * (127.0 / amax)).round_ties_even() * (amax / 127.0))
    });
    groups.collect()
}
