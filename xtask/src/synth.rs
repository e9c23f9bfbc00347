//! `cargo xtask synth`: models with random weights, as files.

use crate::sh::Result;
use sluice_fixtures::{PRESETS, Spec, TensorType, blocks};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

/// Writes the model that `words` describe: `NAME OUT [--layers N] [--seed N]`.
pub fn synth(words: &[&str]) -> Result {
    let (spec, path) = parse(words)?;
    write(&spec, path.as_ref())
}

const USAGE: &str = "usage: cargo xtask synth NAME OUT [--layers N] [--seed N]";

/// NAME is a preset with a real model's shape, or a tiny model: a tensor type or a feature, see [`Spec::named`].
fn parse<'a>(words: &[&'a str]) -> Result<(Spec, &'a str)> {
    let [name, path, flags @ ..] = words else {
        return Err(USAGE.into());
    };
    let (mut layers, mut seed) = (None, None);
    for flag in flags.chunks(2) {
        let place = match flag[0] {
            "--layers" => &mut layers,
            "--seed" => &mut seed,
            other => return Err(format!("{other}: no such flag; {USAGE}")),
        };
        let value = flag.get(1).and_then(|value| value.parse::<u64>().ok());
        *place = Some(value.ok_or_else(|| format!("{}: wanted a whole number", flag[0]))?);
    }
    // More layers than any model has are a slip of the finger, and would fill the disk.
    if layers.is_some_and(|layers| !(1..=1000).contains(&layers)) {
        return Err("--layers: wanted 1 to 1000".into());
    }
    let spec = Spec::preset(name, layers);
    let named = || Spec::named(name).map(|spec| Spec { layers: layers.unwrap_or(spec.layers), ..spec });
    let spec = spec.or_else(named).ok_or_else(|| {
        let (types, features) = (blocks::FORMATS.map(TensorType::name).join(", "), Spec::FEATURES.join(", "));
        format!(
            "{name}: wanted a real shape ({}), or a tiny model: a type ({types}) or a feature ({features})",
            PRESETS.join(", ")
        )
    })?;
    Ok((Spec { seed: seed.unwrap_or(spec.seed), ..spec }, path))
}

/// Writes the model of `spec` to `path`; a file that could not be written whole is taken away again.
pub fn write(spec: &Spec, path: &Path) -> Result {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    spec.write_to(BufWriter::new(file)).map_err(|error| {
        let _ = fs::remove_file(path);
        format!("{}: {error}", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_random_blocks_is_refused_by_name() {
        for format in ["Q9_X", "IQ1_S"] {
            let message = synth(&[format, "/nowhere/a.gguf"]).unwrap_err();
            for word in [format, "Q4_K", "tied", "tinyllama_1b"] {
                assert!(message.contains(word), "{message}");
            }
        }
        assert!(synth(&["q4_k", "/nowhere/a.gguf"]).unwrap_err().contains("/nowhere/a.gguf"));
    }

    #[test]
    fn flags_change_layers_and_seed() {
        let (spec, path) = parse(&["llama3_70b", "out", "--layers", "8", "--seed", "7"]).unwrap();
        assert_eq!((spec.layers, spec.seed, spec.dim, path), (8, 7, 8192, "out"));
        assert_eq!(parse(&["tied", "out", "--layers", "1"]).unwrap().0.layers, 1);
        let refused = |words: &[&str]| parse(words).unwrap_err();
        assert!(refused(&["tiny"]).contains("usage"));
        assert!(refused(&["tiny", "out", "--depth", "3"]).contains("--depth"));
        assert!(refused(&["tiny", "out", "--seed"]).contains("--seed"));
        assert!(refused(&["tiny", "out", "--seed", "-1"]).contains("whole number"));
        assert!(refused(&["tiny", "out", "--layers", "0"]).contains("1 to 1000"));
    }
}
