//! The models of a matrix: files by name, written by synth where they are not there yet.

use crate::sh::{Result, target_dir};
use crate::{fetch, synth};
use sluice_fixtures::{Spec, TensorType};
use std::fs;
use std::path::{Path, PathBuf};

/// A file to run.
#[derive(Clone, Debug)]
pub struct Model {
    /// What records and reports call it; no path, which would mean nothing elsewhere.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Length of the file.
    pub bytes: u64,
}

/// The models of the smoke preset: formats mixed as real files mix them, with a vocabulary that no chunk of rows divides;
/// and a tied one with attention biases.
pub const SMOKE: [&str; 2] = ["mixed", "tied"];

/// Bytes below which a model is written anew every time, so that it never lags behind a change of synth: that takes
/// 10 ms. Larger ones are written when they are not whole: 2 s for the 1.1B model, 9 s for the 8B one.
const SMALL: u64 = 64 << 20;

/// The model called `name`: a file, one of [`SMOKE`], or a preset of synth, which is written first unless it is there.
pub fn find(name: &str) -> Result<Model> {
    let path = Path::new(name);
    if path.is_file() {
        let stem = path.file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
        return measured(&stem, path);
    }
    let spec = spec(name).ok_or_else(|| {
        format!(
            "{name}: no such file, and no preset (those are {}, {})",
            SMOKE.join(", "),
            sluice_fixtures::PRESETS.join(", ")
        )
    })?;
    let wanted = spec.file_len().map_err(|error| format!("{name}: {error}"))?;
    let small = wanted < SMALL;
    // Large ones lie beside the fetched model, where all builds find them. None lies in the temporary folder: that one is
    // often a tmpfs, which has no direct reads.
    let folder = if small { target_dir()?.join("bench/models") } else { fetch::cache_dir()?.join("models") };
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let path = folder.join(format!("{name}.gguf"));
    let there = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == wanted);
    if small || !there {
        if !small {
            eprintln!("writing {name}, {} MB", wanted / 1_000_000);
        }
        // Under another name first: a file that an interruption left must not pass for whole.
        let part = folder.join(format!("{name}.part"));
        synth::write(&spec, &part)?;
        fs::rename(&part, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    measured(name, &path)
}

fn measured(name: &str, path: &Path) -> Result<Model> {
    let failed = |error| format!("{}: {error}", path.display());
    // The program runs in the workspace's root.
    let path = std::path::absolute(path).map_err(failed)?;
    let bytes = fs::metadata(&path).map_err(failed)?.len();
    Ok(Model { name: name.into(), path, bytes })
}

fn spec(name: &str) -> Option<Spec> {
    use TensorType::{Q4_0, Q4_K, Q6_K, Q8_0};
    let mix = [("attn_v.weight", Q6_K), ("ffn_down.weight", Q6_K), ("output.weight", Q8_0)];
    match name {
        "mixed" => Some(Spec {
            vocab: 1031,
            overrides: mix.map(|(name, ty)| (name.to_string(), ty)).to_vec(),
            rope_freqs: true,
            ..Spec::tiny(Q4_K)
        }),
        "tied" => Some(Spec { tied: true, attention_bias: true, kv_heads: 1, ..Spec::tiny(Q4_0) }),
        _ => Spec::preset(name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_neither_file_nor_preset_is_refused() {
        let message = find("no-such-model").unwrap_err();
        for word in ["no-such-model", "mixed", "llama3_8b"] {
            assert!(message.contains(word), "{message}");
        }
        assert!(SMOKE.iter().all(|name| spec(name).is_some()));
    }
}
