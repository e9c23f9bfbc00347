//! `sluice bench`: how fast a prompt is read and text is generated, over several repetitions on one open model.
//!
//! The prompt is random ids, always the same; each token after it is the likeliest, as in a greedy run. The first
//! repetition does not count: it brings resident weights into memory and the cores up to speed.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sluice_model::{Error, Options, ProcessMemory, Sampler, SamplerOptions, Session};

use crate::io::{Failure, print, print_json};
use crate::json::{ModelInfo, Rep, RunDocument, Timings, report_parts};
use crate::{args, interrupt, open};

pub fn run(args: &args::Bench, started: Instant) -> Result<ExitCode, Failure> {
    open::check(&args.session)?;
    let cancel = interrupt::flag()?;
    let model = open::model(&args.model, &args.session)?;
    let what = format!("--prompt-tokens {} and --gen-tokens {}", args.prompt_tokens, args.gen_tokens);
    // The last token is chosen and not fed.
    let positions = args.prompt_tokens.saturating_add(args.gen_tokens - 1);
    let context = open::context(&model, &args.session, positions, 0, &what)?;
    let options = Options { cancel: Arc::clone(&cancel), ..args.session.options(context) };
    let mut session = open::session(&model, &options, false)?;
    let load_s = started.elapsed().as_secs_f64();

    let vocabulary = model.tokenizer().vocab_size();
    let prompt = random_ids(args.prompt_tokens, vocabulary);
    let mut reps = Vec::with_capacity(args.reps);
    let mut ids = Vec::new();
    let mut first_token = None;
    for rep in 0..=args.reps {
        session.restart()?;
        let (measured, generated, first) = repetition(&mut session, vocabulary, &prompt, args.gen_tokens)?;
        first_token.get_or_insert(first);
        if rep > 0 {
            reps.push(measured);
        }
        ids = generated;
    }

    let prefill_tok_s = median(reps.iter().map(|r| r.prefill_tok_s));
    let decode_tok_s = median(reps.iter().filter_map(|r| r.decode_tok_s));
    let report = session.report();
    let peak = ProcessMemory::now().peak;
    if args.json {
        let (memory, io, cpu, sync) = report_parts(report, peak);
        print_json(&RunDocument {
            text: String::new(),
            prompt_tokens: prompt.len(),
            generated_tokens: ids.len(),
            stop_reason: "limit",
            logits_digest: format!("{:016x}", session.digest()),
            seed: None,
            timings: Timings {
                load_s,
                ttft_s: first_token.map(|t| (t - started).as_secs_f64()),
                prefill_tok_s,
                decode_tok_s,
            },
            memory,
            io,
            cpu,
            sync,
            model: ModelInfo { name: model.name(), file_bytes: model.file_bytes() },
            ids,
            reps,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let range = |values: Vec<f64>| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("{least:.1} to {most:.1}")
    };
    let mut text =
        format!("{}, {} threads ({}), {}\n", model.name(), report.threads, report.isa, report.describe);
    let mut line = |name: &str, count: usize, median: Option<f64>, values: Vec<f64>| {
        if let Some(median) = median {
            text += &format!(
                "{name} of {count} tokens: {median:.1} tok/s (median of {}, {})\n",
                values.len(),
                range(values)
            );
        }
    };
    line("prompt", prompt.len(), prefill_tok_s, reps.iter().map(|r| r.prefill_tok_s).collect());
    line("generation", ids.len(), decode_tok_s, reps.iter().filter_map(|r| r.decode_tok_s).collect());
    print(&format!("{text}peak memory {:.1} MB\n", peak as f64 / 1e6))?;
    Ok(ExitCode::SUCCESS)
}

/// One prompt and what follows it: the rates, the ids, and when the first of them was known.
fn repetition(
    session: &mut Session<'_>,
    vocabulary: usize,
    prompt: &[u32],
    count: usize,
) -> Result<(Rep, Vec<u32>, Instant), Error> {
    let mut sampler = Sampler::new(SamplerOptions::default()).map_err(|e| Error::Usage(e.to_string()))?;
    let mut next = |tokens: &[u32], more: bool| -> Result<u32, Error> {
        let logits = session.feed(tokens, more)?;
        // Rows past the vocabulary are padding of the matrix.
        Ok(sampler.next(&mut logits[..vocabulary], &[]).expect("feed gives finite logits only"))
    };
    let began = Instant::now();
    let mut ids = vec![next(prompt, count > 1)?];
    let first = Instant::now();
    while ids.len() < count {
        ids.push(next(&[ids[ids.len() - 1]], ids.len() + 1 < count)?);
    }
    let decode_s = first.elapsed().as_secs_f64();
    let rep = Rep {
        prefill_tok_s: prompt.len() as f64 / (first - began).as_secs_f64(),
        decode_tok_s: (count > 1).then(|| (count - 1) as f64 / decode_s),
    };
    Ok((rep, ids, first))
}

/// Ids spread over the vocabulary: a multiplicative sequence, which repeats late and has no order.
fn random_ids(count: usize, vocabulary: usize) -> Vec<u32> {
    // Knuth's multiplier for 32-bit hashing, the golden ratio of 2^32.
    (1..=count as u64).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u32 % vocabulary as u32).collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn ids_are_in_the_vocabulary_and_differ() {
        let ids = random_ids(512, 320);
        assert!(ids.iter().all(|id| *id < 320));
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
    }
}
