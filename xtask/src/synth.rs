//! `cargo xtask synth`: models with random weights, as files.

use crate::sh::Result;
use sluice_fixtures::{Spec, TensorType, blocks};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Writes the tiny model called `name`: a tensor type or a feature, see [`Spec::named`].
pub fn synth(name: &str, path: &Path) -> Result {
    let spec = Spec::named(name).ok_or_else(|| {
        let types = blocks::FORMATS.map(TensorType::name);
        format!("{name}: wanted one of {}, {}", types.join(", "), Spec::FEATURES.join(", "))
    })?;
    write(&spec, path)
}

/// Writes the model of `spec` to `path`.
pub fn write(spec: &Spec, path: &Path) -> Result {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    spec.write_to(BufWriter::new(file)).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_without_random_blocks_are_refused_by_name() {
        for format in ["Q9_X", "IQ1_S"] {
            let message = synth(format, Path::new("/nowhere/a.gguf")).unwrap_err();
            assert!(
                message.contains(format) && message.contains("Q4_K") && message.contains("tied"),
                "{message}"
            );
        }
        assert!(synth("q4_k", Path::new("/nowhere/a.gguf")).unwrap_err().contains("/nowhere/a.gguf"));
    }
}
