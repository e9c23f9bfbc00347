//! The JSON documents: their keys are a contract with scripts.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_model::{Ledger, Report};

/// The document of a command that failed.
#[derive(Serialize)]
pub struct ErrorDocument {
    /// The line that stderr got, without its "error: ".
    pub error: String,
    pub exit_code: u8,
}

/// The document of `run` and of `bench`.
#[derive(Serialize)]
pub struct RunDocument {
    pub text: String,
    /// Generated ids only.
    pub ids: Vec<u32>,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    pub stop_reason: &'static str,
    /// 64-bit hash of every logits row's bits, in order, as 16 hexadecimal digits.
    pub logits_digest: String,
    /// The seed in force; null for greedy.
    pub seed: Option<u64>,
    pub timings: Timings,
    pub memory: Memory,
    pub io: Io,
    pub cpu: Cpu,
    pub sync: Sync,
    pub model: ModelInfo,
    /// Of `bench`: every repetition that counts; the timings above are their medians.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reps: Vec<Rep>,
}

/// One repetition of `bench`.
#[derive(Serialize)]
pub struct Rep {
    pub prefill_tok_s: f64,
    /// Null for a single generated token.
    pub decode_tok_s: Option<f64>,
}

/// Seconds and rates; null where there was nothing to measure.
#[derive(Serialize)]
pub struct Timings {
    pub load_s: f64,
    /// From process start to the first token.
    pub ttft_s: Option<f64>,
    pub prefill_tok_s: Option<f64>,
    /// (generated − 1) / (last − first token).
    pub decode_tok_s: Option<f64>,
}

#[derive(Serialize)]
pub struct Memory {
    /// Ceiling that was kept to; null when none was set and the system does not say what there is.
    pub budget_bytes: Option<u64>,
    /// The ledger's sum, fixed before the first weight is read.
    pub predicted_bytes: u64,
    /// What memory is for, item by item, in bytes.
    pub ledger: BTreeMap<String, u64>,
    /// VmHWM.
    pub peak_rss_bytes: u64,
    /// Largest RssAnon and RssFile at the end of load and of each pass.
    pub anon_bytes: u64,
    pub file_bytes: u64,
}

#[derive(Serialize)]
pub struct Io {
    pub backend: String,
    /// The backend in its own words.
    pub describe: String,
    pub direct: bool,
    pub bytes_read: u64,
    pub reads: u64,
    /// Seconds that workers waited for bytes, and that they multiplied, each summed over workers.
    pub wait_s: f64,
    pub compute_s: f64,
    /// Seconds that passes took, and bytes read in each of these.
    pub pass_s: f64,
    pub read_bytes_s: f64,
    pub streamed_bytes_per_pass: u64,
    /// Bytes of weights that stay as planned, those of them in memory at the end, and the fewest that could stay at any time:
    /// the three differ when memory got short during the run.
    pub resident_bytes: u64,
    pub resident_now_bytes: u64,
    pub resident_least_bytes: u64,
    pub passes: u64,
}

#[derive(Serialize)]
pub struct Cpu {
    pub isa: &'static str,
    pub tuning: String,
    pub threads: usize,
    /// Bits of the activations in products with quantised weights.
    pub act_bits: u32,
}

/// Means over passes of one token; null when there was none.
#[derive(Serialize)]
pub struct Sync {
    pub locks_per_token: Option<f64>,
    pub wakeups_per_token: Option<f64>,
    pub sleeps_per_token: Option<f64>,
}

#[derive(Serialize)]
pub struct ModelInfo {
    pub name: String,
    pub file_bytes: u64,
}

/// The items of a ledger under their names.
pub fn ledger(ledger: &Ledger) -> BTreeMap<String, u64> {
    ledger.items().map(|(name, bytes)| (format!("{name}_bytes"), bytes)).collect()
}

/// The parts of [`RunDocument`] that a session's report fills.
pub fn report_parts(report: Report, peak_rss_bytes: u64) -> (Memory, Io, Cpu, Sync) {
    let memory = Memory {
        budget_bytes: report.budget,
        predicted_bytes: report.ledger.total(),
        ledger: ledger(&report.ledger),
        peak_rss_bytes,
        anon_bytes: report.memory.anon,
        file_bytes: report.memory.file,
    };
    let io = Io {
        backend: report.backend,
        describe: report.describe,
        direct: report.direct,
        bytes_read: report.bytes_read,
        reads: report.reads,
        wait_s: report.wait_s,
        compute_s: report.compute_s,
        pass_s: report.pass_s,
        read_bytes_s: report.bytes_read as f64 / report.pass_s.max(f64::MIN_POSITIVE),
        streamed_bytes_per_pass: report.streamed_bytes_per_pass,
        resident_bytes: report.resident_bytes,
        resident_now_bytes: report.resident_now_bytes,
        resident_least_bytes: report.resident_least_bytes,
        passes: report.passes,
    };
    let [locks_per_token, wakeups_per_token, sleeps_per_token] =
        report.sync.per_token().map_or([None; 3], |means| means.map(Some));
    let sync = Sync { locks_per_token, wakeups_per_token, sleeps_per_token };
    let cpu = Cpu {
        isa: report.isa,
        tuning: report.tuning.to_string(),
        threads: report.threads,
        act_bits: report.act_bits.count(),
    };
    (memory, io, cpu, sync)
}
