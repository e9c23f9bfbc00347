//! `cargo xtask demo`: one prompt through every backend, the weights streamed from disk each time.

use crate::fetch::fetch;
use crate::sh::Result;
use crate::sluice::{Outcome, build, number, run_json, string};

/// A question that a model of this size answers in sensible sentences, and with an end.
const QUESTION: &str = "Explain in a few sentences what a library is for.";
/// Nothing is kept in memory. The answer has 89 tokens; a model that rambles is cut off.
const FLAGS: &str = "-n 120 --layers stream --stream-lm-head";
const BACKENDS: [&str; 3] = ["mmap", "pread", "uring"];

/// Runs the demonstration; fails when two backends give different texts.
pub fn demo() -> Result {
    let model = fetch()?;
    let binary = build()?;
    // The form that the model was tuned on.
    let prompt = format!("<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n");
    println!("\n{QUESTION}");
    let mut texts: Vec<(&str, String)> = Vec::new();
    let mut rows = Vec::new();
    for backend in BACKENDS {
        let flags = format!("--backend {backend} {FLAGS}");
        let report = match run_json(&binary, &model, &prompt, &flags)? {
            Outcome::Report(report) => report,
            Outcome::Forbidden { reason } => {
                rows.push(format!("{backend:<8}  not on this machine: {reason}"));
                continue;
            }
        };
        let text = string(&report, "/text")?;
        println!("\n[{backend}] {}", text.trim());
        texts.push((backend, text.to_string()));
        let figure = |pointer: &str, unit: f64| number(&report, pointer).map(|value| value / unit);
        rows.push(format!(
            "{backend:<8} {:>14.1} {:>13.1} {:>12.1} {:>14.1}",
            figure("/timings/prefill_tok_s", 1.0)?,
            figure("/timings/decode_tok_s", 1.0)?,
            figure("/memory/peak_rss_bytes", 1e6)?,
            figure("/io/streamed_bytes_per_pass", 1e6)?,
        ));
    }
    println!("\nbackend   prefill tok/s  decode tok/s  peak RSS MB  MB read/token");
    println!("{}", rows.join("\n"));
    same(&texts)
}

fn same(texts: &[(&str, String)]) -> Result {
    let [(first, wanted), rest @ ..] = texts else {
        return Err("no backend runs on this machine".into());
    };
    match rest.iter().find(|(_, text)| text != wanted) {
        Some((other, _)) => Err(format!("{first} and {other} give different texts")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_texts_are_named() {
        let text = |backend, text: &str| (backend, text.to_string());
        assert!(same(&[]).is_err());
        assert!(same(&[text("mmap", "a"), text("pread", "a")]).is_ok());
        let message = same(&[text("mmap", "a"), text("pread", "a"), text("uring", "b")]).unwrap_err();
        assert!(message.contains("mmap and uring"), "{message}");
    }
}
