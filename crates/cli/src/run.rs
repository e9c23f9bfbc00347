//! `sluice run`: a prompt in, text out as it is generated.

use std::io::{IsTerminal, stdout};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use sluice_model::{
    Error, GenerateOptions, Model, Options, Outcome, ProcessMemory, Report, Sampler, StopReason, generate,
};

use crate::io::{self, Failure, note, print, print_json};
use crate::json::{ModelInfo, RunDocument, Timings, report_parts};
use crate::{args, interrupt, open};

pub fn run(args: &args::Run, started: Instant) -> Result<ExitCode, Failure> {
    // Bad flags are told before anything is read.
    let mut sampler = Sampler::new(args.sampling.options()).map_err(|e| Error::Usage(e.to_string()))?;
    open::check(&args.session)?;
    let cancel = interrupt::flag()?;
    let text = args.prompt.read(&cancel)?;
    let model = open::model(&args.model, &args.session)?;
    args.prompt.note_ignored_input();
    let prompt = encode(&model, &args.session, text)?;
    let context = open::context(&model, &args.session, prompt.len(), args.n, "the prompt")?;
    let options = Options { cancel, ..args.session.options(context) };
    let mut session = open::session(&model, &options, args.verbose)?;
    let idle = args.sampling.without_effect();
    if !idle.is_empty() {
        let verb = if idle.len() == 1 { "has" } else { "have" };
        note(&format!(
            "note: {} {verb} no effect at --temp 0, which takes the likeliest token every time",
            idle.join(", ")
        ));
    }
    if args.sampling.temp > 0.0 {
        note(&format!("seed: {}", sampler.seed()));
    }
    let load_s = started.elapsed().as_secs_f64();

    let mut closed = None;
    let mut line_is_open = false;
    let generate_options =
        GenerateOptions { max_tokens: args.n, sampler: args.sampling.options(), stop: args.stop.clone() };
    let outcome =
        generate(&mut session, model.tokenizer(), &prompt, &generate_options, &mut sampler, |text| {
            if args.json {
                return ControlFlow::Continue(());
            }
            line_is_open = !text.ends_with('\n');
            match print(text) {
                Ok(()) => ControlFlow::Continue(()),
                Err(failure) => {
                    closed = Some(failure);
                    ControlFlow::Break(())
                }
            }
        });
    if let Some(failure) = closed {
        return Err(failure);
    }
    if line_is_open && stdout().is_terminal() {
        // For the eye only: elsewhere stdout is the text, byte for byte.
        print("\n")?;
    } else if line_is_open && io::one_file() {
        io::end_line_on_stderr();
    }
    let outcome = outcome?;

    let ttft_s = outcome.first_token.map(|t| (t - started).as_secs_f64());
    let report = session.report();
    let peak = ProcessMemory::now().peak;
    let mut told = Vec::new();
    if args.verbose {
        told.extend(traffic(&report));
        told.push(memory(&report, &session.measured(), peak));
    }
    told.push(summary(&outcome, prompt.len(), ttft_s, peak));
    let code = if outcome.stop_reason == StopReason::Interrupted { interrupt::EXIT_CODE } else { 0 };
    if args.json {
        let (memory, io, cpu, sync) = report_parts(report, peak);
        print_json(&RunDocument {
            prompt_tokens: prompt.len(),
            generated_tokens: outcome.ids.len(),
            stop_reason: outcome.stop_reason.name(),
            logits_digest: format!("{:016x}", session.digest()),
            seed: (args.sampling.temp > 0.0).then(|| sampler.seed()),
            timings: Timings {
                load_s,
                ttft_s,
                prefill_tok_s: outcome.prefill_tok_s,
                decode_tok_s: outcome.decode_tok_s,
            },
            memory,
            io,
            cpu,
            sync,
            model: ModelInfo { name: model.name(), file_bytes: model.file_bytes() },
            text: outcome.text,
            ids: outcome.ids,
            reps: Vec::new(),
        })?;
    }
    told.iter().for_each(|line| note(line));
    Ok(ExitCode::from(code))
}

/// Bytes of a prompt up to which it is split into tokens whatever it is: under a second, and some 40 MB of memory.
const QUICK: usize = 1 << 20;

/// The prompt's tokens. A text that is far too long is refused by its length: splitting it would take many times its
/// size in memory for nothing.
fn encode(model: &Model, flags: &args::Session, text: Vec<u8>) -> Result<Vec<u32>, Error> {
    let tokenizer = model.tokenizer();
    if text.len() > QUICK {
        let ids = 0..tokenizer.vocab_size() as u32;
        let longest = ids.map(|id| tokenizer.piece(id).len()).max().unwrap_or(1).max(1);
        let what = format!("or more, for a prompt of {} bytes", text.len());
        open::context(model, flags, text.len().div_ceil(longest), 0, &what)?;
    }
    let prompt = tokenizer.encode(&text, true, true);
    if prompt.is_empty() {
        return Err(Error::Usage(
            "the prompt is empty, and this model has no token to begin with; give a prompt".into(),
        ));
    }
    Ok(prompt)
}

/// What was read, and how.
fn traffic(report: &Report) -> [String; 2] {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let short = match report.resident_least_bytes {
        least if least < report.resident_bytes => format!(
            " (memory got short: {:.1} MB at the least, {:.1} MB now)",
            mb(least),
            mb(report.resident_now_bytes)
        ),
        _ => String::new(),
    };
    let read = format!(
        "weights: {:.1} MB resident{short}, {:.1} MB streamed in each of {} passes; {:.1} MB read in {} reads",
        mb(report.resident_bytes),
        mb(report.streamed_bytes_per_pass),
        report.passes,
        mb(report.bytes_read),
        report.reads
    );
    let how = format!(
        "backend: {}; {:.2} GB/s over {:.2} s of passes; {} threads ({}, {}; activations of {} bits) waited {:.3} s in all for bytes and multiplied for {:.3} s",
        report.describe,
        report.bytes_read as f64 / 1e9 / report.pass_s.max(f64::MIN_POSITIVE),
        report.pass_s,
        report.threads,
        report.isa,
        report.tuning,
        report.act_bits.count(),
        report.wait_s,
        report.compute_s
    );
    [read, how]
}

/// What was predicted beside what was measured, item by item where it can be; the others count as
/// predicted, and what no item explains is what is left.
fn memory(report: &Report, measured: &[(&'static str, u64)], peak: u64) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let mut explained = 0;
    let mut items = Vec::new();
    for (name, predicted) in report.ledger.items() {
        let found = measured.iter().find(|(item, _)| *item == name).map(|(_, bytes)| *bytes);
        explained += found.unwrap_or(predicted);
        items.extend(found.map(|found| format!("{name} {:.1}/{:.1}", mb(predicted), mb(found))));
    }
    let predicted = report.ledger.total();
    format!(
        "memory, predicted/measured in MB: {}; in all {:.1}/{:.1}, unexplained {:.1}",
        items.join(", "),
        mb(predicted),
        mb(peak),
        mb(peak.saturating_sub(explained))
    )
}

/// One line: why it ended, how fast it was, what memory it took. Widths are fixed, so that lines of several runs
/// compare at a glance.
fn summary(outcome: &Outcome, prompt: usize, ttft_s: Option<f64>, peak: u64) -> String {
    let n = outcome.ids.len();
    let mut line =
        format!("[{}: {n} {} after a prompt of {prompt}", outcome.stop_reason.name(), plural(n, "token"));
    if let Some(s) = ttft_s {
        line += &format!("; first after {s:5.2} s");
    }
    if let Some(rate) = outcome.decode_tok_s {
        line += &format!(", then {rate:7.1} tok/s");
    }
    line + &format!("; peak memory {:4.0} MB]", peak as f64 / 1e6)
}

fn plural(n: usize, word: &str) -> String {
    if n == 1 { word.into() } else { format!("{word}s") }
}
