//! What the integration tests share: tiny models and test data on disk.

#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};

use sluice_fixtures::{Spec, TensorType};
use tempfile::TempDir;

/// Writes `spec` to a file that lives as long as the folder returned with it.
pub fn write(spec: &Spec) -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, spec.to_bytes().expect("a valid spec")).expect("room for a tiny model");
    (dir, path)
}

/// A tiny model in which every kind of matrix has another type, as real files mix them.
pub fn mixed() -> Spec {
    let types = [
        ("token_embd.weight", TensorType::Q6_K),
        ("attn_q.weight", TensorType::Q4_K),
        ("attn_k.weight", TensorType::Q8_0),
        ("attn_v.weight", TensorType::Q5_K),
        ("attn_output.weight", TensorType::Q4_0),
        ("ffn_gate.weight", TensorType::Q4_1),
        ("ffn_up.weight", TensorType::Q5_0),
        ("ffn_down.weight", TensorType::F16),
    ];
    Spec { overrides: types.map(|(name, ty)| (name.to_owned(), ty)).to_vec(), ..Spec::tiny(TensorType::Q6_K) }
}

/// A file of this crate's test data.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}
