//! Any bytes as a GGUF: parsing and streaming every array may fail, but not panic, hang or take memory out of proportion.
//!
//! The input is split in two by its first byte: what is streamed from may differ from what was parsed, as when somebody
//! writes to an open file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_gguf::{Header, Limits};

/// Metadata that a small input may keep: far above the input's own size, far below libFuzzer's memory limit.
const METADATA_BYTES: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((&flips, bytes)) = input.split_first() else {
        return;
    };
    let mut limits = Limits::default();
    limits.metadata_bytes = METADATA_BYTES;
    let header = match Header::parse(&bytes, &limits) {
        Ok(header) => header,
        Err(e) => {
            assert!(
                !e.to_string().contains(char::is_control),
                "an error is one printable line: {e}"
            );
            return;
        }
    };
    for tensor in header.tensors() {
        assert!(
            tensor.offset >= header.data_start()
                && tensor.offset + tensor.len <= bytes.len() as u64
        );
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.len);
    }
    let mut later = bytes.to_vec();
    if flips != 0 {
        later
            .iter_mut()
            .step_by(flips.into())
            .for_each(|b| *b ^= flips);
    }
    for (key, value) in header.metadata().iter() {
        assert!(!value.to_string().contains(char::is_control));
        for source in [bytes, &later] {
            if let Ok(Some(mut strings)) = header.strings(&source, key) {
                while strings.next().is_some() {}
            }
            let _ = header
                .ints(&source, key)
                .ok()
                .flatten()
                .map(Iterator::count);
            let _ = header
                .floats(&source, key)
                .ok()
                .flatten()
                .map(Iterator::count);
        }
    }
});
