//! Rows of weights to f32 and back: lookup of embedding rows, and keys and values on their way into and out of a cache.

use half::f16;

use crate::blocks::{
    Block, BlockIq4Nl, BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, SUB,
};
use crate::format::Format;
use crate::isa::{Isa, Portable};
use crate::numbers::{bf16_to_f32, f16_to_f32};
use crate::rows::QuantRows;

/// The values of all rows, (rows, cols).
///
/// Each is the exact value of the weight, rounded to f32 once; for the formats without minima it is the exact value. A
/// scale that is not finite gives values that are not finite; the payload of a NaN is not specified.
///
/// # Panics
/// When `out` is not of length rows × cols.
pub fn dequantise(isa: Isa, w: QuantRows<'_>, out: &mut [f32]) {
    assert_eq!(out.len(), w.rows() * w.cols(), "values of {} rows × {} columns", w.rows(), w.cols());
    // The one decoding that hardware has an instruction for, which portable code cannot name.
    #[cfg(target_arch = "x86_64")]
    if let (Format::F16, Some(proof)) = (w.format(), isa.level().avx2()) {
        return proof.decode_f16(w.bytes().as_chunks().0, out);
    }
    #[cfg(target_arch = "aarch64")]
    if let (Format::F16, Some(proof)) = (w.format(), isa.level().neon()) {
        return proof.decode_f16(w.bytes().as_chunks().0, out);
    }
    isa.run(Dequantise { w, out });
}

struct Dequantise<'a> {
    w: QuantRows<'a>,
    out: &'a mut [f32],
}

impl Portable for Dequantise<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { w, out } = self;
        match w.format() {
            Format::F32 => {
                for (out, &bytes) in out.iter_mut().zip(w.bytes().as_chunks().0) {
                    *out = f32::from_le_bytes(bytes);
                }
            }
            Format::F16 => {
                for (out, &bytes) in out.iter_mut().zip(w.bytes().as_chunks().0) {
                    *out = f16_to_f32(bytes);
                }
            }
            Format::BF16 => {
                for (out, &bytes) in out.iter_mut().zip(w.bytes().as_chunks().0) {
                    *out = bf16_to_f32(bytes);
                }
            }
            Format::Q4_0 => blocks::<BlockQ4_0, 32, 2>(w.bytes(), out),
            Format::Q4_1 => blocks::<BlockQ4_1, 32, 2>(w.bytes(), out),
            Format::Q5_0 => blocks::<BlockQ5_0, 32, 2>(w.bytes(), out),
            Format::Q5_1 => blocks::<BlockQ5_1, 32, 2>(w.bytes(), out),
            Format::Q8_0 => blocks::<BlockQ8_0, 32, 2>(w.bytes(), out),
            Format::Q2_K => blocks::<BlockQ2K, 256, 16>(w.bytes(), out),
            Format::Q3_K => blocks::<BlockQ3K, 256, 16>(w.bytes(), out),
            Format::Q4_K => blocks::<BlockQ4K, 256, 16>(w.bytes(), out),
            Format::Q5_K => blocks::<BlockQ5K, 256, 16>(w.bytes(), out),
            Format::Q6_K => blocks::<BlockQ6K, 256, 16>(w.bytes(), out),
            Format::IQ4_NL => blocks::<BlockIq4Nl, 32, 2>(w.bytes(), out),
            Format::IQ4_XS => blocks::<BlockIq4Xs, 256, 16>(w.bytes(), out),
        }
    }
}

/// Both products are exact in f32: a half has 11 significant bits, scale times weight at most 12. So only the difference
/// rounds.
#[inline(always)]
fn blocks<B: Block<N, S>, const N: usize, const S: usize>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(size_of::<B>()).zip(out.as_chunks_mut::<N>().0) {
        let w = B::read(block).unpack();
        let groups = out.as_chunks_mut::<SUB>().0.iter_mut().zip(w.q.as_chunks::<SUB>().0);
        for (group, (out, q)) in groups.enumerate() {
            let scale = w.d * f32::from(w.scale[group]);
            let min = w.dmin * f32::from(w.min[group]);
            for (out, &q) in out.iter_mut().zip(q) {
                let product = scale * f32::from(q);
                *out = if B::HAS_MIN { product - min } else { product };
            }
        }
    }
}

/// Writes `x` as rows of `format`, which is F32, F16 or Q8_0: what a key-value cache is kept in.
///
/// F16 rounds to nearest, ties to even; what is too large becomes infinite. Q8_0 has, per 32 values, `d` = amax/127 as a
/// half and `q = round_ties_even(x / d)` with that same half, at most ±127; with a `d` of 0 every `q` is 0. A group with a
/// value that is not finite has `d` NaN and `q` 0, so that it shows.
///
/// # Panics
/// With any other format, when `x` is not a whole number of blocks, or `out` is not as long as its row in bytes.
pub fn quantise(format: Format, x: &[f32], out: &mut [u8]) {
    let whole = x.len() / format.block_len() * format.block_bytes();
    assert!(x.len().is_multiple_of(format.block_len()), "{} values as {format}", x.len());
    assert_eq!(out.len(), whole, "bytes for {} values as {format}", x.len());
    match format {
        Format::F32 => {
            for (x, out) in x.iter().zip(out.as_chunks_mut().0) {
                *out = x.to_le_bytes();
            }
        }
        Format::F16 => {
            for (&x, out) in x.iter().zip(out.as_chunks_mut().0) {
                *out = f16::from_f32(x).to_le_bytes();
            }
        }
        Format::Q8_0 => {
            for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<34>().0) {
                *out = quantise_q8_0(x);
            }
        }
        _ => panic!("values are quantised to F32, F16 and Q8_0 only, not to {format}"),
    }
}

fn quantise_q8_0(x: &[f32; 32]) -> [u8; 34] {
    let amax = x.iter().fold(0, |amax: u32, x| amax.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax);
    let d = f16::from_f32(if amax.is_finite() { amax / 127.0 } else { f32::NAN });
    let mut block = [0; 34];
    block[..2].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    if d.is_finite() && d > 0.0 {
        for (q, x) in block[2..].iter_mut().zip(x) {
            *q = (x / d).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_rounds_to_even() {
        let mut out = [0; 8];
        quantise(
            Format::F16,
            &[1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11), 1e9, 2f32.powi(-25)],
            &mut out,
        );
        assert_eq!(out, [0x00, 0x3c, 0x02, 0x3c, 0x00, 0x7c, 0, 0]);
    }

    #[test]
    fn q8_0_is_within_half_a_step() {
        let mut x = [0.0; 32];
        for (i, x) in x.iter_mut().enumerate() {
            *x = (i as f32 - 13.0) * 0.37;
        }
        let mut out = [0; 34];
        quantise(Format::Q8_0, &x, &mut out);
        let mut back = [0.0; 32];
        dequantise(Isa::scalar(), QuantRows::new(Format::Q8_0, 32, &out).unwrap(), &mut back);
        let d = f16_to_f32([out[0], out[1]]);
        for (x, back) in x.iter().zip(back) {
            // A d rounded down by a half's last bit may cut the largest value by 127 of its roundings.
            assert!((x - back).abs() <= d * (0.5 + 127.0 / 2048.0), "{x} came back as {back}");
        }
    }

    #[test]
    fn q8_0_of_odd_values() {
        let mut out = [0xff; 34];
        quantise(Format::Q8_0, &[0.0; 32], &mut out);
        assert_eq!(out, [0; 34]);
        for value in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 32];
            x[7] = value;
            quantise(Format::Q8_0, &x, &mut out);
            assert!(f16_to_f32([out[0], out[1]]).is_nan() && out[2..] == [0; 32]);
        }
        quantise(Format::Q8_0, &[1e-6; 32], &mut out); // d is subnormal: 0 or 2^-24
        assert!(f16_to_f32([out[0], out[1]]) <= 2f32.powi(-24));
    }

    #[test]
    #[should_panic(expected = "not to Q4_K")]
    fn other_formats_are_a_bug() {
        quantise(Format::Q4_K, &[0.0; 256], &mut [0; 144]);
    }
}
