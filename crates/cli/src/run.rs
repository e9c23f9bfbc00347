//! `sluice run`: a prompt in, text out as it is generated.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};
use sluice_model::{Error, GenerateOptions, Model, Options, Outcome, ProcessMemory, Sampler, Session, StopReason, generate};

use crate::args;
use crate::io::{Failure, note, print, print_json};
use crate::json::{ModelInfo, RunDocument, Timings, report_parts};

pub fn run(args: &args::Run, started: Instant) -> Result<ExitCode, Failure> {
    // Bad flags are told before anything is read.
    let mut sampler = Sampler::new(args.sampling.options()).map_err(|e| Error::Usage(e.to_string()))?;
    let text = args.prompt.read()?;
    // From here on the first Ctrl-C ends the pass and keeps the text; before, it ends the process as usual.
    let cancel = interrupt_flag()?;
    let model = Model::open(&args.model)?;
    for warning in model.warnings() {
        note(&format!("warning: {}: {warning}", args.model.display()));
    }
    let tokenizer = model.tokenizer();
    let prompt = tokenizer.encode(&text, true, true);
    drop(text);
    if prompt.is_empty() {
        return Err(Error::Usage("the prompt is empty, and this model has no token to begin with; give a prompt".into()).into());
    }
    let longest = model.longest_context();
    let context = match args.session.ctx {
        Some(ctx) if ctx > longest => {
            return Err(Error::Usage(format!("--ctx {ctx}: this model was trained for {longest} positions")).into());
        }
        Some(ctx) => ctx,
        None => prompt.len().saturating_add(args.n).min(longest),
    };
    let options = Options { cancel, ..args.session.options(context) };
    let mut session = Session::open(&model, &options)?;
    if args.verbose {
        session.notes().iter().for_each(|n| note(n));
    }
    if args.sampling.temp > 0.0 {
        note(&format!("seed: {}", sampler.seed()));
    }
    let load_s = started.elapsed().as_secs_f64();

    let mut closed = None;
    let generate_options =
        GenerateOptions { max_tokens: args.n, sampler: args.sampling.options(), stop: args.stop.clone() };
    let outcome = generate(&mut session, tokenizer, &prompt, &generate_options, &mut sampler, |text| {
        if args.json {
            return ControlFlow::Continue(());
        }
        match print(text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                closed = Some(failure);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(failure) = closed {
        return Err(failure);
    }

    let ttft_s = outcome.first_token.map(|t| (t - started).as_secs_f64());
    let digest = format!("{:016x}", session.digest());
    let report = session.report();
    if args.verbose {
        note(&report.describe);
        note(&format!(
            "{:.1} MB streamed per pass, {:.1} MB resident, {:.1} MB read in {} reads, workers waited {:.3} s",
            report.streamed_bytes_per_pass as f64 / 1e6,
            report.resident_bytes as f64 / 1e6,
            report.bytes_read as f64 / 1e6,
            report.reads,
            report.wait_s
        ));
    }
    let peak = ProcessMemory::now().peak;
    let interrupted = outcome.stop_reason == StopReason::Interrupted;
    if args.json {
        let (memory, io, cpu) = report_parts(report, peak);
        print_json(&RunDocument {
            prompt_tokens: prompt.len(),
            generated_tokens: outcome.ids.len(),
            stop_reason: outcome.stop_reason.name(),
            logits_digest: digest,
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
            model: ModelInfo { name: model.name(), file_bytes: model.file_bytes() },
            text: outcome.text,
            ids: outcome.ids,
        })?;
    } else {
        if !outcome.text.ends_with('\n') {
            print("\n")?;
        }
        note(&summary(&outcome, prompt.len(), ttft_s, peak));
    }
    Ok(if interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// One line: why it ended, how fast it was, what memory it took.
fn summary(outcome: &Outcome, prompt: usize, ttft_s: Option<f64>, peak: u64) -> String {
    let mut line = format!("[{}: {} tokens after a prompt of {prompt}", outcome.stop_reason.name(), outcome.ids.len());
    if let Some(s) = ttft_s {
        line += &format!(", first after {s:.2} s");
    }
    if let Some(rate) = outcome.decode_tok_s {
        line += &format!(", {rate:.1} tok/s");
    }
    line + &format!(", peak memory {:.0} MB]", peak as f64 / 1e6)
}

/// A flag that the first SIGINT or SIGTERM raises; the second ends the process at once.
fn interrupt_flag() -> Result<Arc<AtomicBool>, Error> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // 128 + signal number, as shells count it; the order matters: the first signal must find the flag down.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(|source| Error::Machine { what: "cannot catch Ctrl-C".into(), source })?;
    }
    Ok(flag)
}
