//! Every level against scalar for equality, and scalar against the reference within a written bound.

mod blocks;

use blocks::{Pcg, rows_of};
use sluice_kernels::{Acts, Format, Isa, QuantRows, dequantise, matmul, reference};

/// Columns that cover 1 to 9 blocks; formats without blocks get every tail of their groups of 16 instead.
fn columns(format: Format) -> Vec<usize> {
    match format.block_len() {
        1 => (1..=49).collect(),
        len => (1..=9).map(|blocks| blocks * len).collect(),
    }
}

fn acts(rng: &mut Pcg, tokens: usize, cols: usize, isa: Isa, format: Format) -> Acts {
    let values: Vec<f32> = (0..tokens * cols).map(|_| rng.normal()).collect();
    let mut acts = Acts::new();
    acts.fill(&values, cols);
    acts.prepare(isa, format);
    acts
}

fn product(isa: Isa, w: QuantRows<'_>, x: &Acts) -> Vec<u32> {
    let mut y = vec![f32::NAN; w.rows() * x.tokens()];
    matmul(isa, w, x, &mut y);
    y.into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_shape_on_every_level() {
    let mut rng = Pcg::new(1);
    for format in Format::ALL {
        for cols in columns(format) {
            for rows in 1..=9 {
                let bytes = rows_of(&mut rng, format, rows, cols);
                let w = QuantRows::new(format, cols, &bytes).unwrap();
                for tokens in 1..=9 {
                    let values: Vec<f32> = (0..tokens * cols).map(|_| rng.normal()).collect();
                    let mut wanted = Vec::new();
                    for isa in Isa::available() {
                        let mut x = Acts::new();
                        x.fill(&values, cols);
                        x.prepare(isa, format);
                        let got = product(isa, w, &x);
                        if isa == Isa::scalar() {
                            wanted = got;
                        } else {
                            assert_eq!(got, wanted, "{format}, {rows} × {cols}, {tokens} tokens, {isa}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_rows_and_addresses_do_not_matter() {
    let mut rng = Pcg::new(2);
    for format in Format::ALL {
        let (rows, cols, tokens) = (37, 512, 21);
        let bytes = rows_of(&mut rng, format, rows, cols);
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        for isa in Isa::available() {
            let x = acts(&mut rng, tokens, cols, isa, format);
            let whole = product(isa, w, &x);
            // One token at a time.
            for token in 0..tokens {
                let mut one = Acts::new();
                one.fill(&x.values()[token * cols..][..cols], cols);
                one.prepare(isa, format);
                let column: Vec<u32> = whole.iter().skip(token).step_by(tokens).copied().collect();
                assert_eq!(product(isa, w, &one), column, "{format}, token {token}, {isa}");
            }
            // Rows in two calls.
            for split in 0..=rows {
                let mut parts = product(isa, w.slice(0..split), &x);
                parts.extend(product(isa, w.slice(split..rows), &x));
                assert_eq!(parts, whole, "{format}, split at {split}, {isa}");
            }
            // Any address.
            let mut moved = vec![0xaa; bytes.len() + 64];
            for offset in 0..64 {
                moved[offset..][..bytes.len()].copy_from_slice(&bytes);
                let w = QuantRows::new(format, cols, &moved[offset..][..bytes.len()]).unwrap();
                assert_eq!(product(isa, w, &x), whole, "{format}, offset {offset}, {isa}");
            }
        }
    }
}

/// More tokens than any level takes at once, and rows for whole tiles, parts of them and single ones.
#[test]
fn many_tokens_on_every_level() {
    let mut rng = Pcg::new(6);
    for format in Format::ALL {
        for (rows, cols, tokens) in [(33, 256, 150), (16, 512, 271), (50, 768, 12)] {
            let bytes = rows_of(&mut rng, format, rows, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let x = acts(&mut rng, tokens, cols, Isa::scalar(), format);
            let wanted = product(Isa::scalar(), w, &x);
            for isa in Isa::available() {
                assert!(product(isa, w, &x) == wanted, "{format}, {rows} × {cols}, {tokens} tokens, {isa}");
            }
        }
    }
}

/// Everything at its ends: weights and activations of ±127 and ±128 only, scales at both ends, and halves that are
/// subnormal, infinite or no number.
#[test]
fn extremes_on_every_level() {
    let mut rng = Pcg::new(3);
    let heads: [u16; 9] = [0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01];
    for format in Format::ALL {
        // Enough tokens for all ways in which levels take several.
        let (cols, tokens) = (2 * format.block_len().max(24), 13);
        for fill in [0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x81] {
            for head in heads {
                let mut bytes = vec![fill; 3 * format.row_bytes(cols).unwrap()];
                blocks::set_heads(format, &mut bytes, head);
                let w = QuantRows::new(format, cols, &bytes).unwrap();
                for odd in [1.0, f32::MAX, 1e-38, 0.0, f32::INFINITY, f32::NAN] {
                    // All of one sign in tokens 0 and 1, where sums are largest; signs as they come in the others.
                    let value = |i| match i {
                        _ if i == 3 * cols + 7 => odd,
                        _ if i < 2 * cols => [127.0, -127.0][i / cols],
                        _ => [127.0, -127.0][rng.below(2)],
                    };
                    let values: Vec<f32> = (0..tokens * cols).map(value).collect();
                    let mut wanted = Vec::new();
                    for isa in Isa::available() {
                        let mut x = Acts::new();
                        x.fill(&values, cols);
                        x.prepare(isa, format);
                        let got = product(isa, w, &x);
                        if isa == Isa::scalar() {
                            wanted = got;
                            if !odd.is_finite() && format.block_len() > 1 {
                                let nan = f32::NAN.to_bits();
                                assert!(
                                    (0..3).all(|row| wanted[row * tokens + 3] == nan),
                                    "{format}: {odd} must show"
                                );
                            }
                        } else {
                            assert_eq!(got, wanted, "{format}, {fill:#x}, head {head:#x}, {odd}, {isa}");
                        }
                    }
                }
            }
        }
    }
}

/// Scalar is within 1e-5·Σ|w·x| of the reference in f64, on the activations that the 8-bit form stands for.
#[test]
fn scalar_against_reference() {
    let mut rng = Pcg::new(4);
    for format in Format::ALL {
        for cols in [format.block_len() * 3, 2048, 5632] {
            let bytes = rows_of(&mut rng, format, 5, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let x = acts(&mut rng, 2, cols, Isa::scalar(), format);
            let mut y = vec![0.0; 10];
            matmul(Isa::scalar(), w, &x, &mut y);
            for token in 0..2 {
                let seen = blocks::as_quantised(format, &x.values()[token * cols..][..cols]);
                for row in 0..5 {
                    let (wanted, scale) = reference::dot(format, w.slice(row..row + 1).bytes(), &seen);
                    let error = (f64::from(y[row * 2 + token]) - wanted).abs();
                    assert!(
                        error <= 1e-5 * scale,
                        "{format}, {cols} columns: off by {error:e}, Σ|w·x| is {scale:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn dequantised_rows_are_the_reference_rounded_once() {
    let mut rng = Pcg::new(5);
    for format in Format::ALL {
        for cols in columns(format) {
            let mut bytes = rows_of(&mut rng, format, 3, cols);
            for round in 0..2 {
                if round == 1 && format != Format::F32 && format != Format::BF16 {
                    rng.fill(&mut bytes); // anything goes, whatever the scales then are
                }
                let wanted = reference::dequantise(format, &bytes);
                for isa in Isa::available() {
                    let mut out = vec![0.0; 3 * cols];
                    dequantise(isa, QuantRows::new(format, cols, &bytes).unwrap(), &mut out);
                    for (i, (&got, &wanted)) in out.iter().zip(&wanted).enumerate() {
                        let wanted = wanted as f32;
                        let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
                        assert!(same, "{format}, value {i}: {got:e}, not {wanted:e}, {isa}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_half_on_every_level() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for isa in Isa::available() {
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
