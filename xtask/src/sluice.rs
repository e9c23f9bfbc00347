//! Running the built `sluice` binary and reading its report.

use crate::sh::{Result, cargo, command, output_within, run, target_dir};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Builds the release binary, which is what users run, and gives its path.
pub fn build() -> Result<PathBuf> {
    run(&mut cargo("build --release --package sluice"))?;
    Ok(target_dir()?.join("release/sluice"))
}

/// The slowest run here, the real model with streamed weights, takes seconds; one that takes minutes has stalled.
const LIMIT: Duration = Duration::from_secs(120);

/// What became of one run.
pub enum Outcome {
    /// It ran to the end; the document of `--json`.
    Report(Value),
    /// The machine forbids io_uring or direct reads.
    Forbidden {
        /// The line of standard error that says so.
        reason: String,
    },
}

/// Runs `sluice run MODEL -p PROMPT --temp 0 --json` with more `flags`, separated by blanks.
pub fn run_json(binary: &Path, model: &Path, prompt: &str, flags: &str) -> Result<Outcome> {
    let program = binary.to_str().ok_or_else(|| format!("{}: not UTF-8", binary.display()))?;
    let mut command = command(program, &["run", "-p", prompt, "--temp", "0", "--json"]);
    command.arg(model).args(flags.split_whitespace()).stdin(Stdio::null());
    let output = output_within(&mut command, LIMIT)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        let report = serde_json::from_slice(&output.stdout);
        return report.map(Outcome::Report).map_err(|error| format!("{flags}: bad JSON: {error}"));
    }
    match said.lines().find_map(|line| Some((forbidden(line)?, line))) {
        Some((_, line)) if output.status.code() == Some(1) => Ok(Outcome::Forbidden { reason: line.into() }),
        _ => Err(format!("sluice run {flags} failed: {}\n{}", output.status, said.trim_end())),
    }
}

/// Whether a line says that the machine forbids io_uring or direct reads, and which: the word that SLUICE_REQUIRE has.
///
/// The program names the cause and the flag to use instead; nothing else counts as a reason.
pub fn forbidden(said: &str) -> Option<&'static str> {
    if said.contains("io_uring") && said.contains("use --backend pread") {
        Some("uring")
    } else if said.contains("O_DIRECT") && said.contains("use --direct off") {
        Some("direct")
    } else {
        None
    }
}

/// Whether SLUICE_REQUIRE says that `what` must work here.
pub fn required(what: &str) -> bool {
    std::env::var("SLUICE_REQUIRE").is_ok_and(|list| list.split(',').any(|word| word.trim() == what))
}

/// A number of the report by JSON pointer.
pub fn number(report: &Value, pointer: &str) -> Result<f64> {
    report
        .pointer(pointer)
        .and_then(Value::as_f64)
        .ok_or_else(|| format!("the report has no number at {pointer}"))
}

/// A string of the report by JSON pointer.
pub fn string<'a>(report: &'a Value, pointer: &str) -> Result<&'a str> {
    report
        .pointer(pointer)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("the report has no string at {pointer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_causes_count_as_forbidden() {
        let uring = "error: io_uring is not allowed: seccomp, or sysctl kernel.io_uring_disabled; use --backend pread";
        let direct = "error: model.gguf: its filesystem takes no O_DIRECT reads; use --direct off";
        assert_eq!(forbidden(uring), Some("uring"));
        assert_eq!(forbidden(direct), Some("direct"));
        assert_eq!(forbidden("error: io_uring: read failed: EIO"), None);
    }

    #[test]
    fn missing_keys_are_named() {
        let report = serde_json::json!({"memory": {"peak_rss_bytes": 5}, "text": "a"});
        assert_eq!(number(&report, "/memory/peak_rss_bytes").unwrap(), 5.0);
        assert_eq!(string(&report, "/text").unwrap(), "a");
        assert!(number(&report, "/memory/anon_bytes").unwrap_err().contains("/memory/anon_bytes"));
    }
}
