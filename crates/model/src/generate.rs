//! From a prompt to text: feed, sample, decode, until something ends it.

use std::ops::ControlFlow;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::sample::{Sampler, SamplerOptions};
use crate::session::Session;
use crate::stop::StopFilter;
use crate::tokenizer::{Decoder, Tokenizer};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How a token is chosen.
    pub sampler: SamplerOptions,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    Eos,
    /// As many tokens as were asked for.
    Limit,
    /// The context is full.
    Context,
    /// A stop string came.
    Stop,
    /// The caller ended it.
    Interrupted,
}

impl StopReason {
    /// The name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Limit => "limit",
            Self::Context => "context",
            Self::Stop => "stop",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What was generated, and how fast. Rates are None when there was nothing to measure.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The text, without end-of-generation tokens and stop strings.
    pub text: String,
    /// Ids generated, an end-of-generation token included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// When the first token was chosen.
    pub first_token: Option<Instant>,
    /// Prompt tokens per second, from the first pass to the first token.
    pub prefill_tok_s: Option<f64>,
    /// Tokens per second after the first.
    pub decode_tok_s: Option<f64>,
}

/// Feeds `prompt` and generates; `emit` sees each piece of text as soon as it is complete characters, and may end
/// the generation.
///
/// # Errors
/// As [`Session::feed`]; an interrupted pass is an [`Outcome`] with the text so far.
pub fn generate(
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions,
    sampler: &mut Sampler,
    mut emit: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<Outcome> {
    let began = Instant::now();
    let room = session.context().saturating_sub(session.position() + prompt.len());
    // The last token that is chosen needs no position of its own.
    let most = options.max_tokens.min(room + 1);
    let mut history = prompt.to_vec();
    // The text goes on where the prompt ends, so a space at its beginning is part of it.
    let mut decoder = Decoder::continuing(tokenizer);
    let mut filter = StopFilter::new(&options.stop);
    let mut out = Outcome {
        text: String::new(),
        ids: Vec::new(),
        stop_reason: if most < options.max_tokens { StopReason::Context } else { StopReason::Limit },
        first_token: None,
        prefill_tok_s: None,
        decode_tok_s: None,
    };
    let mut last = began;
    let mut show = |out: &mut Outcome, text: String| {
        out.text.push_str(&text);
        if text.is_empty() { ControlFlow::Continue(()) } else { emit(&text) }
    };

    let mut fed = 0;
    loop {
        let more = out.ids.len() + 1 < most;
        let logits = match session.feed(&history[fed..], more) {
            Ok(logits) => logits,
            Err(Error::Interrupted) => {
                out.stop_reason = StopReason::Interrupted;
                break;
            }
            Err(e) => return Err(e),
        };
        fed = history.len();
        if most == 0 {
            break;
        }
        // Rows past the vocabulary are padding of the matrix: they stand for no token.
        let chosen = sampler.next(&mut logits[..tokenizer.vocab_size()], &history);
        let id = chosen.map_err(|e| session.non_finite(e))?;
        last = Instant::now();
        out.first_token.get_or_insert(last);
        out.ids.push(id);
        history.push(id);
        if tokenizer.is_end(id) {
            out.stop_reason = StopReason::Eos;
            break;
        }
        let passed = filter.push(&decoder.push(id));
        let shown = show(&mut out, passed.text);
        if passed.stopped {
            out.stop_reason = StopReason::Stop;
            break;
        }
        if shown.is_break() {
            out.stop_reason = StopReason::Interrupted;
            break;
        }
        if out.ids.len() == most {
            break;
        }
    }
    if out.stop_reason != StopReason::Stop {
        let passed = filter.push(&decoder.finish());
        if passed.stopped {
            out.stop_reason = StopReason::Stop;
        }
        let tail = passed.text + &filter.finish();
        // The end is reached either way.
        let _ = show(&mut out, tail);
    }
    if let Some(first) = out.first_token {
        let per_second = |n: usize, s: f64| (n > 0 && s > 0.0).then(|| n as f64 / s);
        out.prefill_tok_s = per_second(prompt.len(), (first - began).as_secs_f64());
        out.decode_tok_s = per_second(out.ids.len() - 1, (last - first).as_secs_f64());
    }
    Ok(out)
}
