//! What each format means: the value of one weight, exactly, in f64, a few lines each. The specification, and the oracle of
//! the tests; written apart from the kernels and sharing nothing with them.

use half::{bf16, f16};

use crate::format::Format;

/// The little-endian half at `at`.
fn half_at(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// Bit `index` of the bytes, counted from the lowest bit of the first byte.
fn bit(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 8] >> (index % 8) & 1
}

/// Nibble `i` of 16 bytes that hold weights 0 to 15 in their low and 16 to 31 in their high nibbles.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (4 * (i / 16)) & 15
}

/// The 6-bit scale and minimum `j` of the 8 in 12 bytes.
fn scale_min(packed: &[u8], j: usize) -> (f64, f64) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | (packed[j - 4] >> 6) << 4, low >> 4 | (packed[j] >> 6) << 4)
    };
    (f64::from(scale), f64::from(min))
}

/// The value of weight `i` of a block.
///
/// Exact: every value is a sum of at most two products of a half with an integer of at most 13 bits, which an f64 holds. A
/// scale that is not finite gives what IEEE arithmetic gives.
///
/// # Panics
/// When `i` is not below [`Format::block_len`] or `block` is shorter than [`Format::block_bytes`].
pub fn value(format: Format, block: &[u8], i: usize) -> f64 {
    assert!(i < format.block_len(), "weight {i} of a block of {format}");
    match format {
        Format::F32 => f64::from(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
        Format::F16 => half_at(block, 0),
        Format::BF16 => bf16::from_le_bytes([block[0], block[1]]).to_f64(),
        Format::Q4_0 => half_at(block, 0) * (f64::from(nibble(&block[2..], i)) - 8.0),
        Format::Q4_1 => half_at(block, 0) * f64::from(nibble(&block[4..], i)) + half_at(block, 2),
        Format::Q5_0 => {
            let q = nibble(&block[6..], i) | bit(&block[2..], i) << 4;
            half_at(block, 0) * (f64::from(q) - 16.0)
        }
        Format::Q5_1 => {
            let q = nibble(&block[8..], i) | bit(&block[4..], i) << 4;
            half_at(block, 0) * f64::from(q) + half_at(block, 2)
        }
        Format::Q8_0 => half_at(block, 0) * f64::from(block[2 + i] as i8),
        Format::Q4_K => {
            let (scale, min) = scale_min(&block[4..], i / 32);
            let q = block[16 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
            half_at(block, 0) * scale * f64::from(q) - half_at(block, 2) * min
        }
        Format::Q5_K => {
            let (scale, min) = scale_min(&block[4..], i / 32);
            let low = block[48 + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
            let q = low | (block[16 + i % 32] >> (i / 32) & 1) << 4;
            half_at(block, 0) * scale * f64::from(q) - half_at(block, 2) * min
        }
        Format::Q6_K => {
            let (half, group, l) = (i / 128, i / 32 % 4, i % 32);
            let low = block[64 * half + 32 * (group % 2) + l] >> (4 * (group / 2)) & 15;
            let high = block[128 + 32 * half + l] >> (2 * group) & 3;
            let scale = f64::from(block[192 + i / 16] as i8);
            half_at(block, 208) * scale * (f64::from(low | high << 4) - 32.0)
        }
    }
}

/// The values of one row of whole blocks; bytes of `row` behind the last whole block are left out.
pub fn dequantise(format: Format, row: &[u8]) -> Vec<f64> {
    let blocks = row.chunks_exact(format.block_bytes());
    blocks.flat_map(|block| (0..format.block_len()).map(move |i| value(format, block, i))).collect()
}

/// Σ w·x of one row in f64, and Σ |w·x|, by which an error is to be judged.
///
/// # Panics
/// When `x` does not have a value for each weight of the row.
pub fn dot(format: Format, row: &[u8], x: &[f32]) -> (f64, f64) {
    let w = dequantise(format, row);
    assert_eq!(w.len(), x.len(), "weights and activations of one row");
    w.iter().zip(x).map(|(w, &x)| w * f64::from(x)).fold((0.0, 0.0), |(sum, all), p| (sum + p, all + p.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1.5 and 0.25 as halves.
    const D: [u8; 2] = 0x3e00u16.to_le_bytes();
    const M: [u8; 2] = 0x3400u16.to_le_bytes();

    /// Blocks written by hand: what goes in is spelt out byte by byte, and so is what must come out.
    #[test]
    fn floats() {
        assert_eq!(dequantise(Format::F32, &[0, 0, 0x80, 0xbf]), [-1.0]);
        assert_eq!(dequantise(Format::F16, &[0, 0x3e, 1, 0, 0xff, 0xfb]), [1.5, 2f64.powi(-24), -65504.0]);
        assert_eq!(dequantise(Format::BF16, &[0x80, 0x3f, 0x49, 0xc0]), [1.0, -3.140625]);
    }

    #[test]
    fn q4_0_and_q4_1() {
        let mut qs = [0x88; 16];
        qs[0] = 0xf0; // weight 0 is 0, weight 16 is 15
        qs[15] = 0x1a; // weight 15 is 10, weight 31 is 1
        let w = dequantise(Format::Q4_0, &[&D[..], &qs].concat());
        assert_eq!((w[0], w[16], w[15], w[31], w[1]), (-12.0, 10.5, 3.0, -10.5, 0.0));
        let w = dequantise(Format::Q4_1, &[&D[..], &M, &qs].concat());
        assert_eq!((w[0], w[16], w[15], w[31], w[1]), (0.25, 22.75, 15.25, 1.75, 12.25));
    }

    #[test]
    fn q5_0_and_q5_1() {
        let mut qs = [0; 16];
        qs[0] = 0xf0; // low bits: weight 0 is 0, weight 16 is 15
        qs[15] = 0x1a; // weight 15 is 10, weight 31 is 1
        let qh = (1u32 | 1 << 15 | 1 << 16).to_le_bytes(); // fifth bit of weights 0, 15, 16
        let w = dequantise(Format::Q5_0, &[&D[..], &qh, &qs].concat());
        assert_eq!((w[0], w[16], w[15], w[31], w[1]), (0.0, 22.5, 15.0, -22.5, -24.0));
        let w = dequantise(Format::Q5_1, &[&D[..], &M, &qh, &qs].concat());
        assert_eq!((w[0], w[16], w[15], w[31], w[1]), (24.25, 46.75, 39.25, 1.75, 0.25));
    }

    #[test]
    fn q8_0() {
        let mut qs = [0u8; 32];
        (qs[0], qs[31]) = (0x80, 0x7f);
        let w = dequantise(Format::Q8_0, &[&D[..], &qs].concat());
        assert_eq!((w[0], w[1], w[31]), (-192.0, 0.0, 190.5));
    }

    #[test]
    fn q4_k_and_q5_k() {
        // Scales 1, 2, 3, 4, 0x15, 0x26, 0x37, 0x08 and minima 5, 6, 7, 8, 0x39, 0x0a, 0x1b, 0x2c.
        let scales = [
            1 | 0x40,
            2 | 0x80,
            3 | 0xc0,
            4, // the top bits of scales 4 to 7 are 1, 2, 3, 0
            5 | 0xc0,
            6,
            7 | 0x40,
            8 | 0x80, // the top bits of minima 4 to 7 are 3, 0, 1, 2
            0x95,
            0xa6,
            0xb7,
            0xc8, // minimum above scale, four bits each
        ];
        let mut qs = [0u8; 128];
        qs[0] = 0xf3; // weight 0 is 3, weight 32 is 15
        qs[32 * 3 + 31] = 0x21; // weight 223 is 1, weight 255 is 2
        let w = dequantise(Format::Q4_K, &[&D[..], &M, &scales, &qs].concat());
        assert_eq!(w[0], 1.5 * 3.0 - 0.25 * 5.0);
        assert_eq!(w[32], 1.5 * 2.0 * 15.0 - 0.25 * 6.0);
        assert_eq!(w[64], -0.25 * 7.0);
        assert_eq!(w[128], -0.25 * f64::from(0x39));
        assert_eq!(w[160], -0.25 * f64::from(0x0a));
        assert_eq!(w[223], 1.5 * f64::from(0x37) - 0.25 * f64::from(0x1b));
        assert_eq!(w[255], 1.5 * f64::from(0x08) * 2.0 - 0.25 * f64::from(0x2c));
        let mut qh = [0u8; 32];
        qh[0] = 1 << 1 | 1 << 4; // weights 32 and 128
        qh[31] = 1 << 7; // weight 255
        let w = dequantise(Format::Q5_K, &[&D[..], &M, &scales, &qh, &qs].concat());
        assert_eq!(w[0], 1.5 * 3.0 - 0.25 * 5.0);
        assert_eq!(w[32], 1.5 * 2.0 * 31.0 - 0.25 * 6.0);
        assert_eq!(w[128], 1.5 * f64::from(0x15) * 16.0 - 0.25 * f64::from(0x39));
        assert_eq!(w[255], 1.5 * f64::from(0x08) * 18.0 - 0.25 * f64::from(0x2c));
    }

    #[test]
    fn q6_k() {
        let (mut ql, mut qh, mut scales) = ([0u8; 128], [0u8; 64], [1u8; 16]);
        ql[0] = 0xe5; // weight 0 is 5, weight 64 is 14
        ql[32] = 0x07; // weight 32 is 7
        ql[127] = 0xf0; // weight 255 is 15
        qh[0] = 0b0110_1101; // two more bits: weight 0 takes 1, 32 takes 3, 64 takes 2, 96 takes 1
        qh[63] = 0b1100_0000; // weight 255 takes 3
        (scales[0], scales[2], scales[15]) = (0x80, 0x7f, 0xff);
        let w = dequantise(Format::Q6_K, &[&ql[..], &qh, &scales, &D].concat());
        assert_eq!(w[0], 1.5 * -128.0 * (21.0 - 32.0));
        assert_eq!(w[32], 1.5 * 127.0 * (55.0 - 32.0));
        assert_eq!(w[64], 1.5 * (46.0 - 32.0));
        assert_eq!(w[96], 1.5 * (16.0 - 32.0));
        assert_eq!(w[255], -1.5 * (63.0 - 32.0));
    }

    #[test]
    fn dot_gives_sum_and_scale_of_the_error() {
        let row = [0x80, 0x3f, 0x80, 0xbf]; // 1 and −1
        assert_eq!(dot(Format::BF16, &row, &[3.0, 2.0]), (1.0, 5.0));
    }
}
