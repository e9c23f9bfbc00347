//! Rows as another program dequantised them, from the shared collection: SLUICE_SHARED names the folder that has
//! `cases/files` in it. Elsewhere this test says that it skips.

#![allow(clippy::print_stderr, reason = "a skip must be seen")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use sluice_kernels::{Format, Isa, QuantRows, dequantise, reference};
use sluice_model::gguf::Gguf;

/// Listed values have 9 digits and were computed in f32: a rounding or two of 2⁻²⁴ each.
const TOLERANCE: f64 = 2e-7;

/// How many formats the list has at least; all 15 are compared with another implementation in the tests of the kernels.
const FORMATS: usize = 8;

#[test]
fn rows_are_what_the_list_says_at_every_level() {
    let Some(shared) = std::env::var_os("SLUICE_SHARED") else {
        eprintln!("SKIPPED: SLUICE_SHARED is not set");
        return;
    };
    let folder = PathBuf::from(shared).join("cases/files");
    let list = std::fs::read_to_string(folder.join("dequant_ref.tsv")).expect("dequant_ref.tsv");
    let (mut rows, mut worst, mut formats) = (0, 0.0f64, Vec::new());
    for line in list.lines().skip(1) {
        let [file, tensor, ty, row, sum, values] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("six columns, not {line:?}");
        };
        let path = folder.join(file);
        let gguf = Gguf::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let info = gguf.tensor(tensor).unwrap_or_else(|| panic!("{file}: {tensor} is missing"));
        assert_eq!(info.ty.name(), ty, "{file}: {tensor}");
        let format = Format::from_name(ty).unwrap_or_else(|| panic!("{ty} is not computed"));
        let cols = info.dims()[0] as usize;
        let mut bytes = vec![0; format.row_bytes(cols).expect("whole blocks")];
        let at = info.offset + row.parse::<u64>().expect("a row") * bytes.len() as u64;
        let data = File::open(&gguf.paths()[info.file]).expect("the file");
        data.read_exact_at(&mut bytes, at).expect("a row of the tensor");

        let exact = reference::dequantise(format, &bytes);
        let size: f64 = exact.iter().map(|v| v.abs()).sum();
        let mut close = |found: f64, wanted: &str, scale: f64, what: &str| {
            let wanted: f64 = wanted.parse().expect("a number");
            let off = (found - wanted).abs() / scale;
            assert!(
                off <= TOLERANCE || found == wanted || (found.is_nan() && wanted.is_nan()),
                "{file}: {tensor} row {row}, {what}: {found}, wanted {wanted}"
            );
            if off.is_finite() {
                worst = worst.max(off);
            }
        };
        close(exact.iter().sum(), sum, size, "sum");
        for entry in values.split(' ') {
            let (i, wanted) = entry.split_once(':').expect("index:value");
            let found = exact[i.parse::<usize>().expect("an index")];
            close(found, wanted, found.abs().max(f64::MIN_POSITIVE), i);
        }
        for isa in Isa::available() {
            let mut out = vec![0.0; cols];
            dequantise(isa, QuantRows::new(format, cols, &bytes).expect("one row"), &mut out);
            for (i, (found, exact)) in out.iter().zip(&exact).enumerate() {
                close(
                    f64::from(*found),
                    &exact.to_string(),
                    exact.abs().max(f64::MIN_POSITIVE),
                    &format!("{} at {}", i, isa.name()),
                );
            }
        }
        rows += 1;
        if !formats.contains(&ty) {
            formats.push(ty);
        }
    }
    assert!(formats.len() >= FORMATS, "{FORMATS} formats at least, not {formats:?}");
    eprintln!("{rows} rows of {formats:?}, largest relative difference {worst:.1e}");
}
