//! Whatever the bytes and the activations: no panic, and the same bits on every level.

use proptest::prelude::*;
use sluice_kernels::{Acts, Format, Isa, QuantRows, dequantise, matmul};

fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::ALL.to_vec())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #[test]
    fn bytes_are_rows_or_an_error(format in format(), cols in any::<usize>(), small in 0..600usize, len in 0..4000usize) {
        let bytes = vec![0; len];
        for cols in [cols, small] {
            match QuantRows::new(format, cols, &bytes) {
                Ok(w) => prop_assert_eq!(w.rows() * format.row_bytes(cols).unwrap(), len),
                Err(error) => prop_assert!(error.to_string().contains(format.name())),
            }
        }
    }

    #[test]
    fn any_bytes_with_any_values(
        format in format(),
        (rows, blocks, tokens) in (1..20usize, 1..5usize, 0..20usize),
        bytes in prop::collection::vec(any::<u8>(), 1..5000),
        values in prop::collection::vec(prop_oneof![9 => -10.0..10.0f32, 1 => prop::num::f32::ANY], 1..500),
    ) {
        let cols = blocks * format.block_len();
        let len = rows * format.row_bytes(cols).unwrap();
        let bytes: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
        let values: Vec<f32> = values.iter().copied().cycle().take(tokens * cols).collect();
        let w = QuantRows::new(format, cols, &bytes).unwrap();
        let mut wanted = None;
        for isa in Isa::available() {
            let mut x = Acts::new();
            x.fill(&values, cols);
            x.prepare(isa, format);
            let (mut y, mut out) = (vec![0.0; rows * tokens], vec![0.0; rows * cols]);
            matmul(isa, w, &x, &mut y);
            dequantise(isa, w, &mut out);
            for value in &mut out {
                // The payload of a NaN is free here, and only here.
                *value = if value.is_nan() { f32::NAN } else { *value };
            }
            let got = (bits(&y), bits(&out));
            prop_assert_eq!(wanted.get_or_insert(got.clone()), &got, "{}", isa);
        }
    }
}
