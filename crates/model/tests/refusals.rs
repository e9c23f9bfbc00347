//! Models that contradict themselves: each is refused with the key or tensor, what was wanted and what was found.
//!
//! The files are a good tiny model with a few bytes changed, so that nothing else can be what is refused.

#![allow(clippy::print_stderr, reason = "common says when a test skips")]

mod common;

use sluice_fixtures::{Spec, TensorType};
use sluice_model::Model;

/// The bytes behind the only occurrence of `name` in the header.
fn behind<'a>(file: &'a mut [u8], name: &str) -> &'a mut [u8] {
    let mut found = file.windows(name.len()).enumerate().filter(|(_, w)| *w == name.as_bytes());
    let (at, _) = found.next().unwrap_or_else(|| panic!("{name} is in the file"));
    assert!(found.next().is_none(), "{name} is there once");
    &mut file[at + name.len()..]
}

/// Changes the value of a key that is stored as u32 or f32.
fn set(file: &mut [u8], key: &str, value: [u8; 4]) {
    // Behind the key: its type in four bytes, then the value.
    behind(file, key)[4..8].copy_from_slice(&value);
}

/// What opening the changed model says.
fn refusal(spec: &Spec, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut file = spec.to_bytes().expect("a valid spec");
    change(&mut file);
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("changed.gguf");
    std::fs::write(&path, file).expect("room for a tiny model");
    let message = match Model::open(&path) {
        Ok(_) => panic!("a contradiction was accepted"),
        Err(e) => e.to_string(),
    };
    assert!(message.starts_with(&path.display().to_string()), "names the file: {message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn impossible_counts_are_named_with_what_was_found() {
    let cases: [(&str, u32, &[&str]); 11] = [
        ("llama.block_count", 0, &["llama.block_count", "found 0"]),
        ("llama.block_count", u32::MAX, &["llama.block_count", "found 4294967295"]),
        ("llama.block_count", 3, &["blk.2.", "missing"]),
        ("llama.block_count", 1, &["blk.1.", "belongs to layer 1", "block_count"]),
        ("llama.embedding_length", 0, &["llama.embedding_length", "found 0"]),
        ("llama.embedding_length", 512, &["token_embd.weight", "[256, 320]", "512"]),
        ("llama.feed_forward_length", 7, &["blk.0.ffn_gate.weight", "[256, 512]", "[256, 7]"]),
        ("llama.attention.head_count_kv", 3, &["llama.attention.head_count_kv", "divisor", "found 3"]),
        ("llama.attention.head_count_kv", 0, &["llama.attention.head_count_kv", "found 0"]),
        ("llama.context_length", 0, &["llama.context_length", "found 0"]),
        ("llama.rope.dimension_count", 1000, &["llama.rope.dimension_count", "found 1000"]),
    ];
    for (key, value, words) in cases {
        let message = refusal(&Spec::tiny(TensorType::Q8_0), |file| set(file, key, value.to_le_bytes()));
        assert!(words.iter().all(|w| message.contains(w)), "{key} = {value}: {message}");
    }
}

#[test]
fn impossible_constants_are_named() {
    for (key, value) in [
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN),
        ("llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", f32::INFINITY),
    ] {
        let message = refusal(&Spec::tiny(TensorType::Q8_0), |file| set(file, key, value.to_le_bytes()));
        assert!(message.contains(key), "{key} = {value}: {message}");
    }
}

#[test]
fn a_missing_tensor_is_named_with_the_shape_it_should_have() {
    for (name, wanted) in [
        ("blk.1.ffn_down.weight", "[512, 256]"),
        ("blk.0.attn_q.weight", "[256, 256]"),
        ("output_norm.weight", "[256]"),
        ("token_embd.weight", "[256, any number of rows]"),
    ] {
        let message = refusal(&Spec::tiny(TensorType::Q8_0), |file| {
            let len = file.len() - behind(file, name).len();
            file[len - 1] = b'X';
        });
        assert!(
            message.contains(name) && message.contains("missing") && message.contains(wanted),
            "{message}"
        );
    }
}

#[test]
fn tensors_that_cannot_be_computed_are_named_all_at_once() {
    const I32: u32 = 26; // as large as F32, so that nothing else is wrong with the file
    let message = refusal(&Spec::tiny(TensorType::F32), |file| {
        for name in ["blk.0.attn_k.weight", "blk.1.ffn_up.weight"] {
            // Behind the name: the number of dimensions, two of them, the type.
            behind(file, name)[4 + 16..][..4].copy_from_slice(&I32.to_le_bytes());
        }
    });
    for words in ["2 tensors", "blk.0.attn_k.weight is I32", "blk.1.ffn_up.weight is I32", "Q4_K"] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn another_architecture_is_refused_by_name() {
    let message = refusal(&Spec::tiny(TensorType::Q8_0), |file| {
        // Behind the key: type, length, the five letters of llama.
        behind(file, "general.architecture")[4 + 8..][..5].copy_from_slice(b"mamba");
    });
    assert!(message.contains("general.architecture") && message.contains("mamba"), "{message}");
}

#[test]
fn damage_in_a_norm_is_found_at_load() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let spec = Spec::tiny(TensorType::Q8_0);
        let message = refusal(&spec, |file| {
            let dir = tempfile::TempDir::new().expect("a temporary folder");
            let path = dir.path().join("good.gguf");
            std::fs::write(&path, &file[..]).expect("room for a tiny model");
            let gguf = sluice_model::gguf::Gguf::open(&path).expect("a good file");
            let at = gguf.tensor("blk.1.ffn_norm.weight").expect("a norm").offset as usize;
            file[at + 20..at + 24].copy_from_slice(&value.to_le_bytes());
        });
        assert!(message.contains("blk.1.ffn_norm.weight") && message.contains(word), "{message}");
    }
}

/// Were the count believed until the first missing layer, a file of 1 MB would take 256 MB.
#[test]
fn a_count_of_layers_that_the_file_cannot_hold_is_refused_before_memory_is_taken() {
    let layers = 1u32 << 24;
    let message = refusal(&Spec::tiny(TensorType::Q8_0), |file| {
        set(file, "llama.block_count", layers.to_le_bytes());
    });
    assert!(
        ["llama.block_count", "16777216 layers", "21 tensors"].iter().all(|w| message.contains(w)),
        "{message}"
    );
}

/// The tensor is all hole, so the file takes no room; logits of so many rows would.
#[test]
fn a_vocabulary_that_only_a_sparse_file_can_hold_is_refused() {
    let spec = Spec { dim: 32, heads: 1, kv_heads: 1, tied: true, ..Spec::tiny(TensorType::Q4_0) };
    let mut file = spec.metadata();
    for tensor in spec.tensors() {
        let mut dims = tensor.dims.clone();
        if tensor.name == "token_embd.weight" {
            dims[1] = 1 << 25;
        }
        file.tensor(&tensor.name, tensor.ty, &dims);
    }
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("sparse.gguf");
    drop(file.begin(std::fs::File::create(&path).expect("a file")).expect("a header"));
    // 18 bytes for 32 weights, and the layers beside them.
    let length = (1u64 << 25) * 18 + (1 << 20);
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|f| f.set_len(length)).expect("a hole");
    let message = Model::open(&path).err().expect("too many rows").to_string();
    assert!(message.contains("token_embd.weight") && message.contains("33554432 rows"), "{message}");
}
