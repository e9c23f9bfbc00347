//! Every level against scalar for equality, and scalar against the reference within a written bound.
#![allow(clippy::print_stderr, reason = "a skip must be seen")]

mod blocks;

use blocks::{BOUND, Pcg, acts, acts_in, acts_of, every, levels, part, product, rows_of};
#[cfg(target_arch = "x86_64")]
use sluice_kernels::HINTS;
use sluice_kernels::{ActBits, Format, Isa, QuantRows, Tuning, dequantise, reference};

/// Columns that cover 1 to 9 blocks; formats without blocks get every tail of their groups of 16 instead.
fn columns(format: Format) -> Vec<usize> {
    match format.block_len() {
        1 => (1..=49).collect(),
        len => (1..=9).map(|blocks| blocks * len).collect(),
    }
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
                    for isa in levels() {
                        let got = product(isa, w, &acts_of(&values, cols, isa, format));
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

/// Every choice that belongs to a kind of CPU.
#[test]
#[cfg(target_arch = "x86_64")] // other levels have no choices yet
fn choices_change_no_bit() {
    let mut rng = Pcg::new(17);
    let all = Tuning::of_this_cpu();
    for format in Format::ALL {
        for cols in
            columns(format).into_iter().step_by(if format.block_len() == 1 { 8 } else { 1 }).chain([17 * 256])
        {
            let bytes = rows_of(&mut rng, format, 19, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let values: Vec<f32> = (0..cols).map(|_| rng.normal()).collect();
            let wanted = product(Isa::scalar(), w, &acts_of(&values, cols, Isa::scalar(), format));
            for isa in levels() {
                for (hint, twice) in HINTS.iter().flat_map(|(_, hint)| [(*hint, false), (*hint, true)]) {
                    let isa = isa.with_tuning(Tuning { hint, twice, distance: 1024, ..all });
                    let x = acts_of(&values, cols, isa, format);
                    for rows in [1, 2, 16, 19] {
                        let got = product(isa, w.slice(0..rows), &x);
                        assert_eq!(got, wanted[..rows], "{format}, {rows} × {cols}, {isa}, {}", isa.tuning());
                    }
                }
            }
        }
    }
}

/// More rows than meet a block of activations together on the tile unit, and more tokens than a block of weights is unpacked
/// for, from the fewest tokens on that it takes.
#[test]
fn tiles_of_many_rows_and_tokens() {
    let tiled: Vec<Isa> = levels().into_iter().filter(|isa| isa.name() == "amx").collect();
    if tiled.is_empty() {
        eprintln!("SKIPPED: this CPU has no tile unit, or the system does not let us use it");
        return;
    }
    let mut rng = Pcg::new(19);
    let (rows, cols, most) = (227, 512, 531);
    for format in [Format::Q4_K, Format::Q6_K] {
        let bytes = rows_of(&mut rng, format, rows, cols);
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        let x = acts(&mut rng, most, cols, Isa::scalar(), format);
        let wanted = product(Isa::scalar(), w, &x);
        for &isa in &tiled {
            for tokens in [1, 3, 16, 511, 513, most] {
                let x = acts_of(&x.values()[..tokens * cols], cols, isa, format);
                let got = product(isa, w, &x);
                assert!(got == part(&wanted, most, rows, tokens), "{format}, {tokens} tokens, {isa}");
            }
        }
    }
}

/// Rows and tokens on either side of where levels go from one way of tiling to another: 16 rows stand in the lanes, or two
/// times 16; 12 tokens are worth panels, and 128 (AVX2, ARM) or 264 (AVX-512) are what panels are unpacked for at most. On ARM panels have 8 rows and 4 tokens.
#[test]
fn where_tiles_switch() {
    const ROWS: [usize; 7] = [1, 15, 16, 17, 31, 32, 33];
    const MOST: usize = 265;
    const TOKENS: [usize; 14] = [1, 2, 4, 5, 6, 11, 12, 13, 131, 132, 133, 263, 264, MOST];
    let mut rng = Pcg::new(7);
    for format in Format::ALL {
        let all = columns(format);
        for cols in all.into_iter().step_by(if format.block_len() == 1 { 8 } else { every(4) }) {
            let bytes = rows_of(&mut rng, format, 33, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let x = acts(&mut rng, MOST, cols, Isa::scalar(), format);
            let wanted = product(Isa::scalar(), w, &x);
            for isa in levels() {
                for tokens in TOKENS {
                    let x = acts_of(&x.values()[..tokens * cols], cols, isa, format);
                    for rows in ROWS {
                        // The level that defines the bits is slow, and small shapes show as much of it.
                        if isa == Isa::scalar() && rows * tokens > 17 * 13 {
                            continue;
                        }
                        let got = product(isa, w.slice(0..rows), &x);
                        assert!(
                            got == part(&wanted, MOST, rows, tokens),
                            "{format}, {rows} × {cols}, {tokens} tokens, {isa}"
                        );
                    }
                }
            }
        }
    }
}

/// From 1 KB a row on, one token is multiplied with four rows side by side, four blocks of each at a time.
#[test]
fn long_rows_on_every_level() {
    let mut rng = Pcg::new(11);
    for format in Format::ALL {
        for blocks in (4..=21).step_by(if format.block_len() == 256 { 1 } else { 6 }) {
            let cols = blocks * 256;
            let bytes = rows_of(&mut rng, format, 9, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let x = acts(&mut rng, 2, cols, Isa::scalar(), format);
            let wanted = product(Isa::scalar(), w, &x);
            for isa in levels() {
                for tokens in 1..=2 {
                    let x = acts_of(&x.values()[..tokens * cols], cols, isa, format);
                    for rows in 1..=9 {
                        let got = product(isa, w.slice(0..rows), &x);
                        assert!(
                            got == part(&wanted, 2, rows, tokens),
                            "{format}, {rows} × {cols}, {tokens} tokens, {isa}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_and_rows_do_not_matter() {
    let mut rng = Pcg::new(2);
    for format in Format::ALL {
        let (rows, cols, tokens) = (37, 512, 21);
        let bytes = rows_of(&mut rng, format, rows, cols);
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        for isa in levels() {
            let x = acts(&mut rng, tokens, cols, isa, format);
            let whole = product(isa, w, &x);
            // One token at a time.
            for token in 0..tokens {
                let one = acts_of(&x.values()[token * cols..][..cols], cols, isa, format);
                let column: Vec<u32> = whole.iter().skip(token).step_by(tokens).copied().collect();
                assert_eq!(product(isa, w, &one), column, "{format}, token {token}, {isa}");
            }
            // Rows in two calls.
            for split in 0..=rows {
                let mut parts = product(isa, w.slice(0..split), &x);
                parts.extend(product(isa, w.slice(split..rows), &x));
                assert_eq!(parts, whole, "{format}, split at {split}, {isa}");
            }
        }
    }
}

/// Any address of the weights, for every way of taking tokens: one, few, and enough for panels.
#[test]
fn addresses_do_not_matter() {
    const ROWS: usize = 17;
    const TOKENS: usize = 13;
    let mut rng = Pcg::new(8);
    for format in Format::ALL {
        // A whole number of blocks that are not a whole number of what any level takes at once, or a tail.
        let cols = match format.block_len() {
            1 => 35,
            32 => 5 * 32,
            len => 2 * len,
        };
        let bytes = rows_of(&mut rng, format, ROWS, cols);
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        let x = acts(&mut rng, TOKENS, cols, Isa::scalar(), format);
        let wanted = product(Isa::scalar(), w, &x);
        let values = reference::dequantise(format, &bytes);
        let mut moved = vec![0; bytes.len() + 64 + 64];
        // Addresses count from a whole line on.
        let line = moved.as_ptr().align_offset(64);
        for offset in 0..64 {
            moved.fill(0xaa);
            let moved = &mut moved[line + offset..][..bytes.len()];
            moved.copy_from_slice(&bytes);
            let w = QuantRows::new(format, cols, moved).unwrap();
            for isa in levels() {
                for tokens in [1, 2, 3, TOKENS] {
                    let x = acts_of(&x.values()[..tokens * cols], cols, isa, format);
                    let got = product(isa, w, &x);
                    assert!(
                        got == part(&wanted, TOKENS, ROWS, tokens),
                        "{format}, offset {offset}, {tokens} tokens, {isa}"
                    );
                }
                let mut out = vec![0.0; values.len()];
                dequantise(isa, w, &mut out);
                let same = out.iter().zip(&values).all(|(&got, &wanted)| got == wanted as f32);
                assert!(same, "{format}, offset {offset}, dequantised, {isa}");
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
            for isa in levels() {
                assert!(product(isa, w, &x) == wanted, "{format}, {rows} × {cols}, {tokens} tokens, {isa}");
            }
        }
    }
}

/// Scalar is within 1e-5·Σ|w·x| of the reference in f64, on the activations that the 8-bit form stands for.
#[test]
fn scalar_against_reference() {
    let mut rng = Pcg::new(4);
    for format in Format::ALL {
        // One block, some, and as many as in real models; more tokens than scalar unpacks a block for.
        for (cols, tokens) in [(1, 17), (3, 17), (2048, 2), (5632, 2), (14336, 1)] {
            let cols = cols * if cols < 2048 { format.block_len() } else { 1 };
            let bytes = rows_of(&mut rng, format, 5, cols);
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            let x = acts(&mut rng, tokens, cols, Isa::scalar(), format);
            let error = blocks::error(w, &x, &product(Isa::scalar(), w, &x), tokens);
            assert!(error <= BOUND, "{format}, {cols} columns, {tokens} tokens: off by {error:e} of Σ|w·x|");
        }
    }
}

/// With 16 bits results are those of the activations themselves: within 2^-15 of Σ|w·x|, which 8 bits miss by far. On every
/// level, and whatever the other rows and tokens are.
#[test]
fn sixteen_bits_are_the_activations_themselves() {
    const BOUND: f64 = 1.0 / 32768.0;
    const ROWS: usize = 70; // more than are taken together
    let mut rng = Pcg::new(8);
    for format in Format::ALL {
        let cols = 5 * format.block_len().max(32);
        let bytes = rows_of(&mut rng, format, ROWS, cols);
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        let eight = acts(&mut rng, 40, cols, Isa::scalar(), format);
        let values = eight.values();
        let x = acts_in(ActBits::Sixteen, values, cols, Isa::scalar(), format);
        let wanted = product(Isa::scalar(), w, &x);
        let error = blocks::error_on(values, w, &x, &wanted, 40);
        assert!(error <= BOUND, "{format}: off by {error:e} of Σ|w·x|");
        if format.block_len() > 1 {
            let error = blocks::error_on(values, w, &eight, &product(Isa::scalar(), w, &eight), 40);
            assert!(error > BOUND, "{format}: 8 bits are off by {error:e} only");
        }
        for isa in levels() {
            for tokens in [1, 2, 7, 13, 40] {
                let x = acts_in(ActBits::Sixteen, &values[..tokens * cols], cols, isa, format);
                for rows in [1, 17, 32, 33, ROWS] {
                    let got = product(isa, w.slice(0..rows), &x);
                    let wanted = part(&wanted, 40, rows, tokens);
                    assert!(got == wanted, "{format}, {rows} rows, {tokens} tokens, {isa}");
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
                for isa in levels() {
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

/// FNV-1a of 64 blocks of each format as the Python package gguf 0.19.0 dequantises them: an implementation that shares
/// nothing with ours. Zeros count as positive.
#[test]
fn dequantised_rows_are_those_of_another_implementation() {
    const HASHES: [(Format, u64); 15] = [
        (Format::F32, 0x4733_6f49_320a_c7d0),
        (Format::F16, 0x1467_7865_fb68_5276),
        (Format::BF16, 0x853a_7b98_7334_66b9),
        (Format::Q4_0, 0x9b94_36b1_e285_9efd),
        (Format::Q4_1, 0xec6d_75ba_8151_2b7f),
        (Format::Q5_0, 0x6189_3bb4_bbe3_f02f),
        (Format::Q5_1, 0x267d_a3ee_1802_ef27),
        (Format::Q8_0, 0x8307_02df_bb8d_e699),
        (Format::Q2_K, 0xe00d_bd9a_36f4_6ce2),
        (Format::Q3_K, 0x44de_39c7_68cf_ef25),
        (Format::Q4_K, 0x529c_a535_4b56_fd7f),
        (Format::Q5_K, 0xc845_38f7_de87_2df7),
        (Format::Q6_K, 0x9675_88e8_9bb5_656b),
        (Format::IQ4_NL, 0xa715_8514_b78a_6205),
        (Format::IQ4_XS, 0xc2d9_12cc_825a_47b8),
    ];
    for (format, wanted) in HASHES {
        let mut rng = Pcg::new(12);
        let mut bytes = vec![0; 64 * format.block_bytes()];
        rng.fill(&mut bytes);
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            // Scales of either sign between 2^-7 and 2^-6; of formats without blocks, finite weights.
            blocks::set_heads(format, block, [0; 2].map(|_: u16| rng.next() as u16 & 0x83ff | 0x2000));
        }
        for isa in levels() {
            let mut out = vec![0.0; 64 * format.block_len()];
            dequantise(isa, QuantRows::new(format, format.block_len(), &bytes).unwrap(), &mut out);
            let bytes = out.iter().flat_map(|value| (value + 0.0).to_le_bytes());
            let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            assert_eq!(hash, wanted, "{format}, {isa}: {hash:#x}");
        }
    }
}
