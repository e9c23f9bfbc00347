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

/// The values that the 16 indices of IQ4_NL and IQ4_XS stand for.
const NON_LINEAR: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

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
        Format::Q2_K => {
            let both = block[i / 16];
            let q = block[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
            half_at(block, 80) * f64::from(both & 15) * f64::from(q)
                - half_at(block, 82) * f64::from(both >> 4)
        }
        Format::Q3_K => {
            let low = block[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
            let q = low | (block[i % 32] >> (i / 32) & 1) << 2;
            let (packed, j) = (&block[96..108], i / 16);
            let scale = packed[j % 8] >> (4 * (j / 8)) & 15 | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
            half_at(block, 108) * (f64::from(scale) - 32.0) * (f64::from(q) - 4.0)
        }
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
        Format::IQ4_NL => half_at(block, 0) * NON_LINEAR[usize::from(nibble(&block[2..], i))],
        Format::IQ4_XS => {
            let group = i / 32;
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            let high = block[2 + group / 4] >> (2 * (group % 4)) & 3;
            let scale = f64::from(low | high << 4) - 32.0;
            half_at(block, 0) * scale * NON_LINEAR[usize::from(nibble(&block[8 + 16 * group..], i % 32))]
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
    fn q2_k_and_q3_k() {
        let (mut scales, mut qs) = ([0x31u8; 16], [0u8; 64]);
        (scales[0], scales[3], scales[15]) = (0x52, 0x0f, 0xf4); // minimum above scale
        qs[0] = 0b11_01_10_01; // weights 0, 32, 64, 96 are 1, 2, 1, 3
        qs[31] = 0b00_00_11_00; // weight 63 is 3
        qs[63] = 0b10_00_00_00; // weight 255 is 2
        let w = dequantise(Format::Q2_K, &[&scales[..], &qs, &D, &M].concat());
        assert_eq!(w[0], 1.5 * 2.0 - 0.25 * 5.0);
        assert_eq!(w[32], 1.5 * 2.0 - 0.25 * 3.0);
        assert_eq!(w[63], 1.5 * 15.0 * 3.0);
        assert_eq!(w[96], 1.5 * 3.0 - 0.25 * 3.0);
        assert_eq!(w[255], 1.5 * 4.0 * 2.0 - 0.25 * 15.0);
        let mut hmask = [0u8; 32];
        hmask[0] = 1 << 0 | 1 << 3; // weights 0 and 96
        hmask[31] = 1 << 7; // weight 255
        // Scales 0 and 8 are 5 and 6 of their low bits, 3 and 14 for 7 and 15; the top bits are 2 for 0, 3 for 8, 1 for 15.
        let packed = [0x65, 0, 0, 0, 0, 0, 0, 0xe3, 2 | 3 << 4, 0, 0, 1 << 6];
        let w = dequantise(Format::Q3_K, &[&hmask[..], &qs, &packed, &D].concat());
        assert_eq!(w[0], 1.5 * 5.0 * 1.0);
        assert_eq!(w[1], 1.5 * 5.0 * -4.0);
        assert_eq!(w[32], 1.5 * -32.0 * (2.0 - 4.0));
        assert_eq!(w[96], 1.5 * -32.0 * 3.0);
        assert_eq!(w[112], 1.5 * (3.0 - 32.0) * -4.0); // scale 7
        assert_eq!(w[128], 1.5 * (54.0 - 32.0) * -4.0); // scale 8
        assert_eq!(w[255], 1.5 * (30.0 - 32.0) * 2.0); // scale 15
    }

    #[test]
    fn iq4_nl_and_iq4_xs() {
        let mut qs = [0x88; 16];
        (qs[0], qs[15]) = (0xf0, 0x1a);
        let w = dequantise(Format::IQ4_NL, &[&D[..], &qs].concat());
        assert_eq!((w[0], w[16], w[15], w[31], w[1]), (-190.5, 169.5, 37.5, -156.0, 1.5));
        let mut all = [0x88; 128];
        all[112..].copy_from_slice(&qs); // the last group
        // Scales: 0x21, 0x32 of groups 0 and 1, 0x1c of group 7, 0 of the others.
        let (high, low) = ((2u16 | 3 << 2 | 1 << 14).to_le_bytes(), [0x21, 0, 0, 0xc0]);
        let w = dequantise(Format::IQ4_XS, &[&D[..], &high, &low, &all].concat());
        assert_eq!((w[0], w[32], w[64]), (1.5, 1.5 * 18.0, 1.5 * -32.0));
        assert_eq!(
            (w[224], w[240], w[239], w[255]),
            (-190.5 * -4.0, 169.5 * -4.0, 37.5 * -4.0, -156.0 * -4.0)
        );
    }

    #[test]
    fn dot_gives_sum_and_scale_of_the_error() {
        let row = [0x80, 0x3f, 0x80, 0xbf]; // 1 and −1
        assert_eq!(dot(Format::BF16, &row, &[3.0, 2.0]), (1.0, 5.0));
    }
}
