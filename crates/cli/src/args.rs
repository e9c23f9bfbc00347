//! The command line: every flag, its default, its help.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluice_model::{
    ActBits, BackendChoice, Budget, DEFAULT_HEAD_ROWS, Direct, KvFormat, Options, Placement, SamplerOptions,
};

/// Shown after the help of `sluice`: what a newcomer types first.
const EXAMPLES: &str = "\
Examples:
  sluice run model.gguf -p \"The capital of France is\" -n 32
  sluice run model.gguf -f prompt.txt --layers stream --lm-head stream --verbose
  echo \"Once upon a time\" | sluice run model.gguf --temp 0.8 --seed 7 --json
  sluice inspect model.gguf --tensors
  sluice inspect model.gguf --key tokenizer.chat_template

stdout carries the text or one JSON document, stderr everything else.
Exit codes: 0 done, 1 the file or the machine is at fault, 2 the command line is, 130 interrupted.";

/// Run Llama-family language models from GGUF files in a chosen fraction of their memory.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text after a prompt
    Run(Run),
    /// Show metadata, tensors, sizes, and what a pass would stream
    Inspect(Inspect),
    /// Turn text into token ids
    Tokenize(Tokenize),
    /// Feed given token ids and print the highest logits after each
    Logits(Logits),
    /// Measure how fast a prompt is read and text is generated
    Bench(Bench),
    /// Predict memory and speed of a run, at this budget and at others
    ///
    /// Measures the disk, the page cache, memory and products on the file itself, for a second or three. Speeds are told
    /// warm (what is streamed is in the page cache) and cold (it is read from the disk, by direct reads, in every pass).
    Plan(Plan),
}

impl Command {
    pub fn model(&self) -> &Path {
        match self {
            Self::Run(a) => &a.model,
            Self::Inspect(a) => &a.model,
            Self::Tokenize(a) => &a.model,
            Self::Logits(a) => &a.model,
            Self::Bench(a) => &a.model,
            Self::Plan(a) => &a.model,
        }
    }

    pub fn wants_json(&self) -> bool {
        match self {
            Self::Run(a) => a.json,
            Self::Inspect(a) => a.json,
            Self::Tokenize(a) => a.json,
            Self::Logits(a) => a.json,
            Self::Bench(a) => a.json,
            Self::Plan(a) => a.json,
        }
    }
}

#[derive(Debug, Args)]
pub struct Run {
    /// The GGUF file, or the first of its shards
    pub model: PathBuf,
    #[command(flatten)]
    pub prompt: Prompt,
    /// Most tokens to generate
    #[arg(short = 'n', value_name = "N", default_value_t = 256, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub n: usize,
    #[command(flatten)]
    pub sampling: Sampling,
    /// End the text before this string (may be given several times)
    #[arg(long, value_name = "STR", value_parser = some_text)]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub session: Session,
    /// Print one JSON document instead of the text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Say on stderr what was decided and how it went
    #[arg(long, help_heading = "Output")]
    pub verbose: bool,
}

/// Where the prompt comes from: -p, -f, or standard input when neither is given. It is taken byte for byte, a
/// newline at the end included.
#[derive(Debug, Args)]
pub struct Prompt {
    /// The prompt itself; without -p and -f it is read from standard input
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "TEXT",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub text: Option<OsString>,
    /// A file with the prompt, taken byte for byte, newlines included; - for standard input
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Choosing tokens")]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token every time
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temp: f32,
    /// Choose among the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub top_k: usize,
    /// Choose among the likeliest tokens that make up this probability; 1 for all
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the likeliest; 0 for none
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Make tokens that came before less likely; 1 for no change
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Seed of the random choice; a random one is printed when it is left out
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = whole::<u64>)]
    pub seed: Option<u64>,
}

/// Memory, reading and threads: only --kv and --act-bits, which round, change the numbers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory, reading and threads")]
pub struct Session {
    /// Positions in the context [default: what is needed (run: prompt + -n), at most the model's own]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub ctx: Option<usize>,
    /// Worker threads [default: what the machine gives this process]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
    /// Most memory for the whole process: a size such as 300M or 300MiB; auto for what is available; min for the least that
    /// works
    #[arg(long, value_name = "SIZE|auto|min", default_value = "auto", allow_negative_numbers = true, value_parser = budget)]
    pub ram_budget: Budget,
    /// How weights are read
    #[arg(long, value_enum, default_value_t)]
    pub backend: Backend,
    /// Reads past the page cache
    #[arg(long, value_enum, default_value_t)]
    pub direct: DirectArg,
    /// Most bytes in a chunk, such as 512K or 1MiB; at least a row is read [default: 1MiB]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = size)]
    pub chunk_bytes: Option<usize>,
    /// Whether the layers' weights stay in memory
    #[arg(long, value_enum, default_value_t)]
    pub layers: Place,
    /// Whether the output projection stays in memory
    #[arg(long, value_enum, default_value_t)]
    pub lm_head: Place,
    /// The same as --lm-head stream
    #[arg(long, conflicts_with = "lm_head")]
    pub stream_lm_head: bool,
    /// Most rows of the output projection in a chunk
    #[arg(long, value_name = "N", default_value_t = DEFAULT_HEAD_ROWS, allow_negative_numbers = true, value_parser = at_least_one)]
    pub lm_head_rows: usize,
    /// Prompt tokens that go through the model together: a number, or auto
    #[arg(long, value_name = "N|auto", default_value = "auto", allow_negative_numbers = true, value_parser = batch)]
    pub prompt_batch: Batch,
    /// How keys and values are stored
    #[arg(long, value_enum, default_value_t)]
    pub kv: Kv,
    /// Bits of the activations in products with quantised weights: 16 for logits without the noise of 8, at twice the arithmetic;
    /// auto takes 16 up to 400 million weights
    #[arg(long, value_enum, default_value_t)]
    pub act_bits: Bits,
}

impl Session {
    /// The library's options for a context of `context` positions.
    pub fn options(&self, context: usize) -> Options {
        Options {
            threads: self.threads,
            backend: self.backend.into(),
            direct: self.direct.into(),
            budget: self.ram_budget,
            chunk_bytes: self.chunk_bytes,
            layers: self.layers.into(),
            head: if self.stream_lm_head { Placement::Stream } else { self.lm_head.into() },
            head_rows: self.lm_head_rows,
            prompt_batch: self.prompt_batch.0,
            kv: self.kv.into(),
            act_bits: self.act_bits.into(),
            ..Options::new(context)
        }
    }
}

impl Sampling {
    /// Flags that were given although nothing is left to chance.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let given = [
            ("--top-k", self.top_k > 0),
            ("--top-p", self.top_p < 1.0),
            ("--min-p", self.min_p > 0.0),
            ("--seed", self.seed.is_some()),
        ];
        given.iter().filter(|(_, given)| *given && self.temp == 0.0).map(|(flag, _)| *flag).collect()
    }

    pub fn options(&self) -> SamplerOptions {
        SamplerOptions {
            temp: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
            ..SamplerOptions::default()
        }
    }
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// The GGUF file, or the first of its shards
    pub model: PathBuf,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print one metadata value whole: a string as it is, an array's elements one per line (strings escaped)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tensors", "json"])]
    pub key: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Tokenize {
    /// The GGUF file; one with a vocabulary only will do
    pub model: PathBuf,
    #[command(flatten)]
    pub prompt: Prompt,
    /// Leave out the token that the model wants at the beginning
    #[arg(long)]
    pub no_bos: bool,
    /// Print {"ids":[…],"pieces":[…]}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Logits {
    /// The GGUF file, or the first of its shards
    pub model: PathBuf,
    /// Token ids to feed, separated by commas
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true, allow_hyphen_values = true, value_parser = token_id)]
    pub ids: Vec<u32>,
    /// How many of the highest logits to print for each position
    #[arg(long, value_name = "K", default_value_t = 5, allow_negative_numbers = true, value_parser = at_least_one)]
    pub top: usize,
    #[command(flatten)]
    pub session: Session,
    /// Print one JSON document
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// The GGUF file, or the first of its shards
    pub model: PathBuf,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value = "512", value_parser = at_least_one)]
    pub prompt_tokens: usize,
    /// Tokens to generate after it, the first of them by the prompt's pass
    #[arg(long, value_name = "N", default_value = "64", value_parser = at_least_one)]
    pub gen_tokens: usize,
    /// Repetitions that count; one that doesn't goes before them
    #[arg(long, value_name = "N", default_value = "5", value_parser = at_least_one)]
    pub reps: usize,
    #[command(flatten)]
    pub session: Session,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The GGUF file, or the first of its shards
    pub model: PathBuf,
    #[command(flatten)]
    pub session: Session,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Backend {
    /// The fastest that works here
    #[default]
    Auto,
    /// Mapped pages, dropped after use; for files that nobody cuts short meanwhile (SIGBUS)
    Mmap,
    /// Plain reads
    Pread,
    /// io_uring, several reads in flight
    Uring,
}

impl From<Backend> for BackendChoice {
    fn from(b: Backend) -> Self {
        match b {
            Backend::Auto => Self::Auto,
            Backend::Mmap => Self::Mmap,
            Backend::Pread => Self::Pread,
            Backend::Uring => Self::Uring,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum DirectArg {
    /// On for a file that is not in the page cache, where it works
    #[default]
    Auto,
    /// Always; an error where it does not work
    On,
    /// Never
    Off,
}

impl From<DirectArg> for Direct {
    fn from(d: DirectArg) -> Self {
        match d {
            DirectArg::Auto => Self::Auto,
            DirectArg::On => Self::On,
            DirectArg::Off => Self::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Place {
    /// Resident when everything fits
    #[default]
    Auto,
    /// Read once and kept
    Resident,
    /// Read in every pass
    Stream,
}

impl From<Place> for Placement {
    fn from(p: Place) -> Self {
        match p {
            Place::Auto => Self::Auto,
            Place::Resident => Self::Resident,
            Place::Stream => Self::Stream,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Kv {
    F32,
    #[default]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<Kv> for KvFormat {
    fn from(k: Kv) -> Self {
        match k {
            Kv::F32 => Self::F32,
            Kv::F16 => Self::F16,
            Kv::Q8_0 => Self::Q8_0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Bits {
    #[default]
    Auto,
    #[value(name = "8")]
    Eight,
    #[value(name = "16")]
    Sixteen,
}

impl From<Bits> for Option<ActBits> {
    fn from(bits: Bits) -> Self {
        match bits {
            Bits::Auto => None,
            Bits::Eight => Some(ActBits::Eight),
            Bits::Sixteen => Some(ActBits::Sixteen),
        }
    }
}

/// A number of tokens, or None for auto.
#[derive(Clone, Copy, Debug)]
pub struct Batch(pub Option<usize>);

fn batch(text: &str) -> Result<Batch, String> {
    if text == "auto" { Ok(Batch(None)) } else { at_least_one(text).map(|n| Batch(Some(n))) }
}

fn budget(text: &str) -> Result<Budget, String> {
    match text {
        "auto" => Ok(Budget::Auto),
        "min" => Ok(Budget::Min),
        _ => match size(text) {
            Ok(bytes) => Ok(Budget::Bytes(bytes as u64)),
            Err(why) => Err(format!("{why}, auto or min")),
        },
    }
}

fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "wanted a whole number, 0 or more".into())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("wanted a whole number, at least 1".into()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    // More workers than any machine has cores is a slip of the finger, and each takes a stack.
    const MOST: usize = 1024;
    match text.parse() {
        Ok(n) if (1..=MOST).contains(&n) => Ok(n),
        _ => Err(format!("wanted a whole number from 1 to {MOST}; leave the flag out for automatic")),
    }
}

/// A token id, with spaces around it as lists are printed by other programs.
fn token_id(text: &str) -> Result<u32, String> {
    let text = text.trim();
    match text.strip_prefix('-') {
        Some(digits) if digits.parse::<u64>().is_ok() => {
            Err("a token id is never negative; wanted whole numbers, separated by commas".into())
        }
        _ => text.parse().map_err(|_| "wanted whole numbers, 0 or more, separated by commas".into()),
    }
}

fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("wanted some text; leave the flag out to stop nowhere".into());
    }
    Ok(text.into())
}

/// A size: a whole number with an optional unit, K M G (powers of 1000) or KiB MiB GiB (powers of 1024).
fn size(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[digits..] {
        "" | "B" => 1,
        "K" | "KB" | "k" | "kB" => 1000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("wanted a size such as 300M (300·10^6) or 300MiB (300·2^20)".into()),
    };
    let number: u64 =
        text[..digits].parse().map_err(|_| "wanted a size such as 300M or 300MiB".to_string())?;
    match number.checked_mul(unit).map(usize::try_from) {
        Some(Ok(n)) if n > 0 => Ok(n),
        _ => Err("wanted a size of at least 1 byte that fits into memory".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        assert_eq!(size("300M"), Ok(300_000_000));
        assert_eq!(size("300MiB"), Ok(300 << 20));
        assert_eq!(size("7"), Ok(7));
        for bad in ["", "M", "-1", "1.5G", "0", "3Mi", "99999999999G", " 1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_are_positive_whole_numbers() {
        for bad in ["0", "-1", "abc", "1.5", "1000000"] {
            assert!(threads(bad).is_err(), "{bad}");
        }
        assert_eq!(threads("3"), Ok(3));
        assert!(matches!(batch("auto"), Ok(Batch(None))));
        assert!(batch("0").is_err());
    }
}
