//! `cargo xtask smoke`: however the weights reach the kernels, the logits are the same, bit for bit.
//!
//! Every cell is a run of the real binary in a process of its own, compared with the first cell by the digest that the
//! program prints over all its logits. A cell also fails when it did not run what it was told to run.

use crate::sh::{Result, target_dir};
use crate::sluice::{self, Outcome, build, number, run_json, string};
use crate::synth;
use serde_json::Value;
use sluice_fixtures::{Spec, TensorType};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// One way to run a model.
#[derive(Clone, Copy, Debug)]
struct Cell {
    backend: &'static str,
    direct: bool,
    layers: &'static str,
    head: &'static str,
    threads: u32,
    work: &'static str,
    isa: Option<&'static str>,
}

/// The plainest way, which all others are compared with: everything in memory, one thread, the kernels that define the
/// numbers.
const PLAIN: Cell = Cell {
    backend: "pread",
    direct: false,
    layers: "resident",
    head: HEADS[0],
    threads: 1,
    work: WORK[0],
    isa: Some("scalar"),
};

/// mmap has no direct reads.
const WAYS: [(&str, bool); 5] =
    [("mmap", false), ("pread", false), ("pread", true), ("uring", false), ("uring", true)];

/// 7 rows divide no usual vocabulary and are no multiple of what a kernel takes at once.
const HEADS: [&str; 3] = ["--lm-head resident", "--stream-lm-head", "--stream-lm-head --lm-head-rows 7"];

/// Chunk sizes and prompt batches: the usual ones; chunks of a few rows with the prompt token by token; chunks that
/// split tensors unevenly with groups that do not divide the prompt.
const WORK: [&str; 3] = ["", "--chunk-bytes 5000 --prompt-batch 1", "--chunk-bytes 70k --prompt-batch 5"];

/// 9 and 12 tokens in the two tiny vocabularies: whole groups of five and a rest.
const PROMPT: &str = "the same bits";

/// The flags of a cell, and how it is named in messages.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Cell { backend, layers, head, threads, work, .. } = self;
        let direct = if self.direct { "on" } else { "off" };
        write!(f, "--backend {backend} --direct {direct} --layers {layers} {head} --threads {threads} {work}")
    }
}

/// All cells: each way × head × threads × work with streamed layers, and each way with resident ones and scalar kernels.
fn cells() -> Vec<Cell> {
    let mut cells = vec![PLAIN];
    for (backend, direct) in WAYS {
        let usual = Cell { backend, direct, layers: "stream", isa: None, ..PLAIN };
        for head in HEADS {
            for threads in [1, 2, 3] {
                cells.extend(WORK.map(|work| Cell { head, threads, work, ..usual }));
            }
        }
        cells.push(Cell { layers: "resident", threads: 2, ..usual });
        cells.push(Cell { head: HEADS[1], work: WORK[2], isa: PLAIN.isa, ..usual });
    }
    cells
}

/// Runs the matrix on `model`, or on two tiny models that it writes first.
pub fn smoke(model: Option<&Path>) -> Result {
    let binary = build()?;
    let models = match model {
        Some(model) => {
            vec![std::path::absolute(model).map_err(|error| format!("{}: {error}", model.display()))?]
        }
        None => write_models(&target_dir()?.join("smoke"))?,
    };
    for model in models {
        matrix(&binary, &model)?;
    }
    Ok(())
}

/// Beside the build, not in the temporary folder: that one is often a tmpfs, which has no direct reads.
fn write_models(folder: &Path) -> Result<Vec<PathBuf>> {
    use TensorType::{Q4_0, Q4_K, Q6_K, Q8_0};
    // Formats mixed as real files mix them; a vocabulary that no chunk of rows divides, and a tied one.
    let mix = [("attn_v.weight", Q6_K), ("ffn_down.weight", Q6_K), ("output.weight", Q8_0)];
    let overrides = mix.map(|(name, ty)| (name.to_string(), ty)).to_vec();
    let mixed = Spec { vocab: 1031, overrides, rope_freqs: true, ..Spec::tiny(Q4_K) };
    let tied = Spec { tied: true, attention_bias: true, kv_heads: 1, ..Spec::tiny(Q4_0) };
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let models = [("mixed.gguf", mixed), ("tied.gguf", tied)];
    models
        .into_iter()
        .map(|(name, spec)| synth::write(&spec, &folder.join(name)).map(|()| folder.join(name)))
        .collect()
}

/// After so many failures a matrix is given up: what fails often fails everywhere, and a hang costs minutes.
const MOST_FAILURES: usize = 4;

/// Runs every cell on one model.
fn matrix(binary: &Path, model: &Path) -> Result {
    let (mut wanted, mut equal, mut failures) = (None, 0, 0);
    // The reasons for what the machine forbids, each with the number of cells that it leaves out.
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    for cell in cells() {
        let verdict = match run_json(binary, model, PROMPT, &format!("-n 6 {cell}"), cell.isa) {
            Ok(Outcome::Report(report)) => judge(&cell, &report, &mut wanted),
            Ok(Outcome::Forbidden { what, reason }) if sluice::required(what) => {
                Err(format!("SLUICE_REQUIRE has {what}, but: {reason}"))
            }
            Ok(Outcome::Forbidden { reason, .. }) => {
                *skipped.entry(reason).or_default() += 1;
                continue;
            }
            Err(message) => Err(message),
        };
        match verdict {
            Ok(()) => equal += 1,
            Err(message) => {
                failures += 1;
                println!("FAIL {cell} SLUICE_ISA={}\n    {message}", cell.isa.unwrap_or("auto"));
            }
        }
        // Without the plain cell there is nothing to compare with.
        if wanted.is_none() || failures == MOST_FAILURES {
            break;
        }
    }
    for (reason, count) in skipped {
        println!("skip {count} cells: {reason}");
    }
    let model = model.display();
    match (failures, wanted) {
        (0, Some(digest)) => println!("{model}: {equal} cells, all logits equal ({digest})"),
        _ => return Err(format!("{model}: {failures} cells failed, {equal} passed")),
    }
    Ok(())
}

/// Checks a report against the cell and the first digest; the first report sets it.
fn judge(cell: &Cell, report: &Value, wanted: &mut Option<String>) -> Result {
    let ran = (string(report, "/io/backend")?, report.pointer("/io/direct").and_then(Value::as_bool));
    if ran != (cell.backend, Some(cell.direct)) {
        return Err(format!("asked for {} with direct {}, ran {ran:?}", cell.backend, cell.direct));
    }
    let cpu = (string(report, "/cpu/isa")?, number(report, "/cpu/threads")?);
    if cpu.1 != f64::from(cell.threads) || cell.isa.is_some_and(|isa| isa != cpu.0) {
        return Err(format!("asked for {:?} and {} threads, ran {cpu:?}", cell.isa, cell.threads));
    }
    let streamed = number(report, "/io/streamed_bytes_per_pass")?;
    if (cell.layers == "stream") != (streamed > 0.0) {
        return Err(format!("--layers {}, yet {streamed} bytes are streamed in a pass", cell.layers));
    }
    let digest = match report.pointer("/logits_digest") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => return Err("the report has no logits_digest".into()),
    };
    let wanted = wanted.get_or_insert_with(|| digest.clone());
    if *wanted == digest {
        Ok(())
    } else {
        Err(format!("logits_digest {digest}, the plain cell has {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashSet;

    #[test]
    fn cells_are_distinct_and_cover_the_matrix() {
        let all = cells();
        let shown: HashSet<String> = all.iter().map(|cell| format!("{cell} {:?}", cell.isa)).collect();
        assert_eq!(shown.len(), all.len());
        assert_eq!(all.len(), 1 + 5 * (3 * 3 * 3 + 2));
        assert!(!all.iter().any(|cell| cell.backend == "mmap" && cell.direct));
    }

    #[test]
    fn a_cell_must_have_run_as_told() {
        let cell = Cell { layers: "stream", ..PLAIN };
        let report = |backend: &str, direct: bool, bytes: u32, digest: &str| json!({"io": {"backend": backend, "direct": direct, "streamed_bytes_per_pass": bytes}, "cpu": {"isa": "scalar", "threads": 1}, "logits_digest": digest});
        let judge = |report: &Value| {
            let mut wanted = Some("a".to_string());
            judge(&cell, report, &mut wanted)
        };
        assert!(judge(&report("pread", false, 9, "a")).is_ok());
        assert!(judge(&report("mmap", false, 9, "a")).unwrap_err().contains("asked for pread"));
        assert!(judge(&report("pread", true, 9, "a")).unwrap_err().contains("direct false"));
        assert!(judge(&report("pread", false, 0, "a")).unwrap_err().contains("0 bytes"));
        assert!(judge(&report("pread", false, 9, "b")).unwrap_err().contains("logits_digest b"));
    }

    #[test]
    fn the_first_digest_is_what_the_others_are_compared_with() {
        let report = json!({"io": {"backend": "pread", "direct": false, "streamed_bytes_per_pass": 0}, "cpu": {"isa": "scalar", "threads": 1}, "logits_digest": 7});
        let mut wanted = None;
        judge(&PLAIN, &report, &mut wanted).unwrap();
        assert_eq!(wanted.as_deref(), Some("7"));
    }
}
