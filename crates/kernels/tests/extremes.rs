//! Everything at its ends, on every level: quants, scales, activations, and every half that there is.

mod blocks;

use blocks::{BOUND, Pcg, acts, acts_of, every, levels, part, product, rows_of};
use sluice_kernels::{Format, Isa, QuantRows, dequantise, reference};

/// The one NaN that products give.
const NAN: u32 = 0x7fc0_0000;

/// Bytes whose fields are at their ends, whether they are bytes of either sign, nibbles, pairs of bits or single bits:
/// smallest, largest, −128, 127, ends in either nibble, −127.
const ENDS: [u8; 7] = [0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x81];

/// Halves at their ends: ±0, smallest and largest subnormal, smallest normal, 1, −1, largest, infinite, and a NaN of each kind.
const HEADS: [u16; 15] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
    0x7e01, 0xfc01,
];

/// Columns for which every level takes its ways for whole tiles and for parts of them.
fn columns(format: Format) -> usize {
    match format.block_len() {
        1 => 35,
        32 => 5 * 32,
        len => 2 * len,
    }
}

/// Every level gives the bits of scalar for all of the tokens, for one at a time and for two; gives them back.
fn compare(w: QuantRows<'_>, values: &[f32], what: &str) -> Vec<u32> {
    let (format, cols) = (w.format(), w.cols());
    let wanted = product(Isa::scalar(), w, &acts_of(values, cols, Isa::scalar(), format));
    let tokens = values.len() / cols;
    for isa in levels() {
        let got = product(isa, w, &acts_of(values, cols, isa, format));
        assert!(got == wanted, "{format}, {what}, {isa}");
        for (token, values) in values.chunks_exact(cols).enumerate() {
            let got = product(isa, w, &acts_of(values, cols, isa, format));
            let one: Vec<u32> = wanted.iter().skip(token).step_by(tokens).copied().collect();
            assert!(got == one, "{format}, {what}, token {token} alone, {isa}");
        }
        let got = product(isa, w, &acts_of(&values[..2 * cols], cols, isa, format));
        assert!(got == part(&wanted, tokens, w.rows(), 2), "{format}, {what}, two tokens, {isa}");
    }
    wanted
}

/// Quants and scales at their ends, each with each, against activations of ±127: where integer sums are largest, and where
/// arithmetic that saturates or is too narrow would show.
#[test]
fn quants_scales_and_activations_at_their_ends() {
    let mut rng = Pcg::new(3);
    for format in Format::ALL.into_iter().filter(|format| format.block_len() > 1) {
        let cols = columns(format);
        // Whole blocks of one byte each, blocks of bytes as they come, and scales likewise.
        let fills = || ENDS.into_iter().map(Some).chain([None]);
        let scales = blocks::scales(format);
        for quants in fills() {
            for scale in fills().take(if scales.is_empty() { 1 } else { ENDS.len() + 1 }) {
                let mut bytes = vec![0; 17 * format.row_bytes(cols).unwrap()];
                for block in bytes.chunks_exact_mut(format.block_bytes()) {
                    block.fill_with(|| quants.unwrap_or(ENDS[rng.below(4)]));
                    block[scales.clone()].fill_with(|| scale.unwrap_or(ENDS[rng.below(4)]));
                    blocks::set_heads(format, block, [0x3c00, 0xbc00]);
                }
                // Of one sign, of signs that change every 1, 2, 4 and 16 columns, and of signs as they come.
                let sign = |token: usize, col: usize| match token {
                    0 => true,
                    1 => false,
                    2..=5 => (col / [1, 2, 4, 16][token - 2]).is_multiple_of(2),
                    _ => rng.below(2) == 0,
                };
                let mut sign = sign;
                let values: Vec<f32> =
                    (0..13 * cols).map(|i| if sign(i / cols, i % cols) { 127.0 } else { -127.0 }).collect();
                let w = QuantRows::new(format, cols, &bytes).unwrap();
                let what = format!("quants {quants:x?}, scales {scale:x?}");
                let y = compare(w, &values, &what);
                let x = acts_of(&values, cols, Isa::scalar(), format);
                let error = blocks::error(w.slice(0..1), &x, &y, 13);
                assert!(error <= BOUND, "{format}, {what}: off by {error:e} of Σ|w·x|");
            }
        }
    }
}

/// Scales, minima and weights that are subnormal, largest, infinite or no number, with activations that are.
#[test]
fn halves_and_activations_that_are_odd() {
    const ODD: [f32; 10] = [
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-38,
        1e-45,
        0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::from_bits(0xff80_0001),
    ];
    let mut rng = Pcg::new(9);
    for format in Format::ALL {
        let cols = columns(format);
        // A row for each pair of halves: in all of its blocks, and in the last alone.
        for alone in [false, true] {
            let mut bytes = rows_of(&mut rng, format, HEADS.len() * HEADS.len(), cols);
            let row_bytes = format.row_bytes(cols).unwrap();
            for (row, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
                let heads = [HEADS[row / HEADS.len()], HEADS[row % HEADS.len()]];
                let from = if alone { row_bytes - format.block_bytes() } else { 0 };
                for block in bytes[from..].chunks_exact_mut(format.block_bytes()) {
                    blocks::set_heads(format, block, heads);
                }
            }
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            // A token for each odd value: in one place of it, and beside them tokens without and one of it alone.
            let mut values: Vec<f32> = (0..13 * cols).map(|_| rng.normal()).collect();
            for (token, odd) in ODD.into_iter().enumerate() {
                values[token * cols + rng.below(cols)] = odd;
            }
            values[11 * cols..12 * cols].fill(1e-45);
            values[12 * cols..].fill(f32::MAX);
            let y = compare(w, &values, if alone { "odd last block" } else { "odd blocks" });
            for (row, y) in y.chunks_exact(13).enumerate() {
                for (token, &bits) in y.iter().enumerate() {
                    let value = f32::from_bits(bits);
                    assert!(!value.is_nan() || bits == NAN, "{format}: {bits:#x} is not the one NaN");
                    let odd = ODD.get(token).is_some_and(|odd| !odd.is_finite());
                    if format.block_len() > 1 && odd {
                        assert_eq!(bits, NAN, "{format}: {} must show", ODD[token]);
                    }
                    // What a half of these bits is in F32 and BF16 is another matter.
                    let head = half::f16::from_bits(HEADS[row / HEADS.len()]);
                    if head.is_nan() && !matches!(format, Format::F32 | Format::BF16) {
                        assert_eq!(bits, NAN, "{format}: a scale that is no number must show");
                    }
                }
            }
        }
    }
}

/// Weights of F32 and BF16 at their ends; those of F16 are among all halves.
#[test]
fn singles_at_their_ends() {
    const ENDS: [u32; 16] = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc0_0001,
        0x7f80_0001,
        0xffbf_ffff,
        0x3f80_0000,
        0xbf80_0000,
    ];
    let mut rng = Pcg::new(10);
    for format in [Format::F32, Format::BF16] {
        for cols in [1, 16, 35] {
            let mut bytes = rows_of(&mut rng, format, ENDS.len(), cols);
            for (row, bytes) in bytes.chunks_exact_mut(format.row_bytes(cols).unwrap()).enumerate() {
                // One weight of each row, which is the last in every other.
                let at = if row % 2 == 0 { cols - 1 } else { rng.below(cols) };
                let len = format.block_bytes();
                bytes[at * len..][..len].copy_from_slice(&ENDS[row].to_le_bytes()[4 - len..]);
            }
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let values: Vec<f32> = (0..13 * cols).map(|_| rng.normal()).collect();
            let y = compare(w, &values, "singles");
            assert!(y.iter().all(|&bits| !f32::from_bits(bits).is_nan() || bits == NAN), "{format}");
            assert_eq!(y[13 * 10], NAN, "{format}: a weight that is no number must show");
        }
    }
}

/// Every half as scale, and every half as scale of the minima, through each kernel that takes a half to a single.
#[test]
fn every_half_as_scale() {
    const TOKENS: usize = 12;
    let mut rng = Pcg::new(11);
    for format in Format::ALL {
        // As few blocks as do not make any level take another way; weights beside the half show nothing more.
        let cols = match format.block_len() {
            32 => 4 * 32,
            len => len,
        };
        let row = rows_of(&mut rng, format, 1, cols);
        let heads: Vec<u16> = (0..=u16::MAX).step_by(every(7)).collect();
        let mut bytes = row.repeat(heads.len());
        for (&bits, row) in heads.iter().zip(bytes.chunks_exact_mut(row.len())) {
            for block in row.chunks_exact_mut(format.block_bytes()) {
                blocks::set_heads(format, block, [bits, bits.swap_bytes()]);
            }
        }
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        let mut out = vec![0.0; w.rows() * cols];
        for isa in levels() {
            dequantise(isa, w, &mut out);
            let rows = out.chunks_exact(cols).zip(bytes.chunks_exact(row.len()));
            for (bits, (values, row)) in heads.iter().zip(rows) {
                for i in [0, format.block_len() / 2, format.block_len() - 1] {
                    let (got, wanted) = (values[i], reference::value(format, row, i) as f32);
                    let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
                    assert!(same, "{format}, {bits:#06x}, value {i}: {got:e}, not {wanted:e}, {isa}");
                }
            }
        }
        let x = acts(&mut rng, TOKENS, cols, Isa::scalar(), format);
        let wanted = product(Isa::scalar(), w, &x);
        for isa in levels().into_iter().filter(|&isa| isa != Isa::scalar()) {
            for tokens in [1, 2, TOKENS] {
                let x = acts_of(&x.values()[..tokens * cols], cols, isa, format);
                let got = product(isa, w, &x);
                assert!(
                    got == part(&wanted, TOKENS, heads.len(), tokens),
                    "{format}, {tokens} tokens, {isa}"
                );
            }
        }
    }
}

#[test]
fn every_half_on_every_level() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for isa in levels() {
        for cols in [1 << 16, 1] {
            let mut out = vec![0.0; 1 << 16];
            dequantise(isa, QuantRows::new(Format::F16, cols, &bytes).unwrap(), &mut out);
            for (bits, got) in (0..=u16::MAX).zip(out) {
                let wanted = half::f16::from_bits(bits).to_f32();
                let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
                assert!(same, "{bits:#06x} gives {got:e}, {isa}");
            }
        }
    }
}
