//! `cargo xtask synth`: models with random weights, as files.

use crate::sh::Result;
use sluice_fixtures::{Spec, TensorType, blocks};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// Writes the tiny model whose every matrix is of the type called `format` (`Q4_K`; case does not matter).
pub fn synth(format: &str, path: &Path) -> Result {
    let ty =
        TensorType::from_name(&format.to_uppercase()).filter(|ty| blocks::FORMATS.contains(ty));
    let ty = ty.ok_or_else(|| {
        format!(
            "{format}: wanted one of {}",
            blocks::FORMATS.map(TensorType::name).join(", ")
        )
    })?;
    write(&Spec::tiny(ty), path)
}

/// Writes the model of `spec` to `path`.
pub fn write(spec: &Spec, path: &Path) -> Result {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    spec.write_to(BufWriter::new(file))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_without_random_blocks_are_refused_by_name() {
        for format in ["Q9_X", "IQ1_S"] {
            let message = synth(format, Path::new("/nowhere/a.gguf")).unwrap_err();
            assert!(
                message.contains(format) && message.contains("Q4_K"),
                "{message}"
            );
        }
        assert!(
            synth("q4_k", Path::new("/nowhere/a.gguf"))
                .unwrap_err()
                .contains("/nowhere/a.gguf")
        );
    }
}
