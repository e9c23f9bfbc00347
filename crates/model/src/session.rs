//! A session: one sequence on a model, its cache, its workers, and the stream that its weights come through.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_kernels::{ActBits, QuantRows, Tuning, dequantise};
use sluice_loader::sync::Counts;
use sluice_loader::{Backend, Stream};

use crate::budget::Ledger;
use crate::budget::settle::{Ground, Settled, settle};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::layers::Pass;
use crate::layers::attention::scores_bytes;
use crate::layers::output::Logits;
use crate::memory::ProcessMemory;
use crate::model::Model;
use crate::options::Options;
use crate::sample::{NonFinite, non_finite};
use crate::state::{State, sized};
use crate::stream::{PassKind, StreamedWeights};
use crate::team::Team;

/// What a session did with files and memory so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Backend in force: `mmap`, `pread` or `uring`.
    pub backend: String,
    /// The backend in its own words.
    pub describe: String,
    /// Reads bypass the page cache.
    pub direct: bool,
    /// Bytes read, padding included.
    pub bytes_read: u64,
    /// Reads made.
    pub reads: u64,
    /// Seconds that workers waited for bytes, summed over workers.
    pub wait_s: f64,
    /// Seconds that workers multiplied, summed over workers.
    pub compute_s: f64,
    /// Seconds that passes took.
    pub pass_s: f64,
    /// Bytes that a pass with head streams, without padding.
    pub streamed_bytes_per_pass: u64,
    /// Bytes of weights that stay, as planned.
    pub resident_bytes: u64,
    /// Of these, bytes that are in memory now: fewer before the first pass has ended, and while memory is short.
    pub resident_now_bytes: u64,
    /// The fewest of them that could stay at any time so far; as many as planned when memory was never short.
    pub resident_least_bytes: u64,
    /// Passes begun.
    pub passes: u64,
    /// Ceiling that the plan kept to; None when nobody set one and the system does not say what there is.
    pub budget: Option<u64>,
    /// What memory was predicted to be for, before the first weight was read.
    pub ledger: Ledger,
    /// Most anonymous and most file-backed memory seen at the end of load and of each pass.
    pub memory: ProcessMemory,
    /// CPU level.
    pub isa: &'static str,
    /// The choices that belong to this kind of CPU.
    pub tuning: Tuning,
    /// Workers.
    pub threads: usize,
    /// How activations are rounded for products with quantised weights.
    pub act_bits: ActBits,
    /// What was locked, woken and slept for.
    pub sync: SyncReport,
}

/// Locks, wake-ups and sleeps of the session's thread and its workers. What a backend's own threads do is not in it, and
/// neither is what watches memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Those of the last pass.
    pub last_pass: Counts,
    /// Those of all passes that fed one token, without the first pass of the session, which reads what stays.
    pub single: Counts,
    /// How many such passes there were.
    pub single_passes: u64,
}

impl SyncReport {
    /// Means of a pass that feeds one token: locks, wake-ups, sleeps. None when there was no such pass.
    pub fn per_token(&self) -> Option<[f64; 3]> {
        let Counts { locks, wakeups, sleeps } = self.single;
        (self.single_passes > 0)
            .then(|| [locks, wakeups, sleeps].map(|n| n as f64 / self.single_passes as f64))
    }
}

/// One sequence of tokens being fed to a model.
pub struct Session<'m> {
    model: &'m Model,
    weights: StreamedWeights<'m>,
    team: Arc<Team>,
    kv: KvCache,
    state: State,
    position: usize,
    context: usize,
    batch: usize,
    /// Bytes of activations that a token of a batch takes.
    per_token: usize,
    digest: Digest,
    memory: ProcessMemory,
    /// File-backed memory before the first pass: the program's.
    file_before: u64,
    passes: u64,
    passes_took: Duration,
    sync: SyncReport,
    budget: Option<u64>,
    ledger: Ledger,
    notes: Vec<String>,
}

impl<'m> Session<'m> {
    /// Opens a session; nothing of the weights is read yet.
    ///
    /// # Errors
    /// When options contradict each other or the model, when the backend asked for is not to be had, when the budget cannot
    /// be kept, or when the model's files are no longer those whose headers were read.
    pub fn open(model: &'m Model, options: &Options) -> Result<Self> {
        Self::start(model, options, settle(model, options, &Ground::now(model, options)?, None)?)
    }

    /// As [`Session::open`], with weights from a backend of the caller's, which must hold the model's files in order.
    /// The options' own backend and direct are not looked at.
    ///
    /// # Errors
    /// When options contradict each other or the model, or the budget cannot be kept.
    pub fn with_backend(model: &'m Model, options: &Options, backend: Arc<dyn Backend>) -> Result<Self> {
        let ground = Ground::now(model, options)?;
        Self::start(model, options, settle(model, options, &ground, Some(backend))?)
    }

    fn start(model: &'m Model, options: &Options, settled: Settled) -> Result<Self> {
        let Settled { backend, kv, batch, per_token, workers, plan, ledger, budget, notes } = settled;
        let team = Arc::new(Team::new(workers)?);
        let stream = Stream::new(backend, plan.schedule(&model.table)?, team.workers())?;
        let cancel = Arc::clone(&options.cancel);
        let mut weights =
            StreamedWeights::new(&model.table, plan, stream, Arc::clone(&team), model.isa, cancel);
        weights.watch_memory();
        let now = ProcessMemory::now();
        Ok(Self {
            model,
            weights,
            team,
            kv,
            state: State::new(model.act_bits(options.act_bits)),
            position: 0,
            context: options.context,
            batch,
            per_token,
            digest: Digest::default(),
            memory: now,
            file_before: now.file,
            passes: 0,
            passes_took: Duration::ZERO,
            sync: SyncReport::default(),
            budget,
            ledger,
            notes,
        })
    }

    /// Positions used so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Positions that there is room for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Goes back to position 0, for another text. Weights that are resident stay, and so does the memory of the cache.
    ///
    /// # Errors
    /// When reads that are under way cannot be brought to an end.
    pub fn restart(&mut self) -> Result<()> {
        self.position = 0;
        self.weights.rewind()
    }

    /// What was decided on the caller's behalf, a line each, for `--verbose`.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Digest of all logits rows so far.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Feeds `tokens` in batches and returns the logits after the last, for a sampler to work on in place. `more` says
    /// that another token will be fed after them, so that its weights can be read ahead.
    ///
    /// # Errors
    /// [`Error::Context`] when they do not fit, [`Error::NonFinite`] for damaged weights, and all that reading
    /// can meet. After an error in a pass the positions of that batch are not counted and may be fed again.
    pub fn feed(&mut self, tokens: &[u32], more: bool) -> Result<&mut [f32]> {
        self.check(tokens)?;
        let mut batches = tokens.chunks(self.batch);
        while let Some(batch) = batches.next() {
            // Only the last batch needs the head; which kind comes next is known one pass ahead.
            let after = batches.len();
            let (kind, wanted) = match after {
                0 => (PassKind::WithHead, Logits::Last),
                _ => (PassKind::WithoutHead, Logits::None),
            };
            let next = match after {
                0 => more.then_some(PassKind::WithHead),
                1 => Some(PassKind::WithHead),
                _ => Some(PassKind::WithoutHead),
            };
            self.pass(batch, kind, next, wanted)?;
        }
        Ok(&mut self.state.logits)
    }

    /// Feeds `tokens` and gives `visit` the logits after each of them, in order.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_each(&mut self, tokens: &[u32], mut visit: impl FnMut(usize, &[f32])) -> Result<()> {
        self.check(tokens)?;
        let rows = self.model.llama.output.rows;
        // All logits of a batch lie in memory twice (turned and not): with them no more than the activations of a whole
        // batch, which the ledger allows for.
        let per_token = self.per_token;
        let most = (self.batch * per_token / (per_token + 2 * size_of::<f32>() * rows)).clamp(1, self.batch);
        let batches = tokens.chunks(most).count();
        for (i, batch) in tokens.chunks(most).enumerate() {
            let next = (i + 1 < batches).then_some(PassKind::WithHead);
            let first = self.position;
            self.pass(batch, PassKind::WithHead, next, Logits::All)?;
            for (t, row) in self.state.logits.chunks_exact(rows).enumerate() {
                visit(first + t, row);
            }
        }
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let rows = self.model.llama.output.rows;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= rows) {
            return Err(Error::Usage(format!("token id {id} is outside of the vocabulary of {rows}")));
        }
        if tokens.is_empty() {
            return Err(Error::Usage("there are no tokens to feed: the prompt is empty".into()));
        }
        let wanted = self.position + tokens.len();
        if wanted > self.context {
            return Err(Error::Context {
                context: self.context,
                wanted,
                longest: self.model.longest_context(),
                detail: format!("{} used and {} to come", self.position, tokens.len()),
            });
        }
        Ok(())
    }

    fn pass(&mut self, tokens: &[u32], kind: PassKind, next: Option<PassKind>, wanted: Logits) -> Result<()> {
        let began = Instant::now();
        let before = self.counts();
        let result = self.pass_on_team(tokens, kind, next, wanted);
        self.passes_took += began.elapsed();
        self.sync.last_pass = self.counts() - before;
        if tokens.len() == 1 && self.passes > 1 {
            self.sync.single += self.sync.last_pass;
            self.sync.single_passes += 1;
        }
        if result.is_err() {
            // The first error is the one to tell; if the stream is beyond repair the next pass says so.
            let _ = self.weights.rewind();
        }
        let now = ProcessMemory::now();
        self.memory.peak = now.peak;
        self.memory.anon = self.memory.anon.max(now.anon);
        self.memory.file = self.memory.file.max(now.file);
        result
    }

    /// Of this thread and the workers.
    fn counts(&self) -> Counts {
        let mut counts = self.team.counts();
        counts += Counts::of_this_thread();
        counts
    }

    fn pass_on_team(
        &mut self,
        tokens: &[u32],
        kind: PassKind,
        next: Option<PassKind>,
        wanted: Logits,
    ) -> Result<()> {
        self.weights.begin(kind, next)?;
        self.passes += 1;
        self.state.reserve(&self.model.llama.config, tokens.len());
        self.embed(tokens)?;
        let llama = &self.model.llama;
        let mut pass = Pass {
            config: &llama.config,
            weights: &mut self.weights,
            team: &self.team,
            isa: self.model.isa,
            state: &mut self.state,
            kv: &mut self.kv,
            first: self.position,
            tokens: tokens.len(),
        };
        llama.run(&mut pass, wanted)?;
        if wanted != Logits::None {
            let rows = llama.output.rows;
            let logits = &self.state.logits;
            if let Some(at) = non_finite(logits) {
                let path = self.model.path().to_owned();
                let position = self.position + tokens.len() - logits.len() / rows + at / rows;
                return Err(Error::NonFinite { path, position, id: at % rows, value: logits[at] });
            }
            // Only once all are known to be good: a batch that failed may be fed again.
            logits.chunks_exact(rows).for_each(|row| self.digest.add(row));
        }
        self.position += tokens.len();
        Ok(())
    }

    /// Looks up the rows of `tokens` in the embedding table, in the file: a few KB each, beside the schedule.
    fn embed(&mut self, tokens: &[u32]) -> Result<()> {
        let matrix = self.model.table.get(self.model.llama.embedding);
        let x = sized(&mut self.state.x, tokens.len() * matrix.cols);
        let mut bytes = vec![0; matrix.row_bytes];
        for (id, x) in tokens.iter().zip(x.chunks_exact_mut(matrix.cols)) {
            let row = *id as usize;
            self.weights.read(matrix.bytes_of(row..row + 1), &mut bytes)?;
            let row = QuantRows::new(matrix.format, matrix.cols, &bytes).expect("one whole row");
            dequantise(self.model.isa, row, x);
        }
        Ok(())
    }

    /// The error for logits that the sampler could not choose from.
    pub(crate) fn non_finite(&self, found: NonFinite) -> Error {
        let position = self.position.saturating_sub(1);
        Error::NonFinite { path: self.model.path().to_owned(), position, id: found.id, value: found.value }
    }

    /// What the ledger's items came to, by name and in bytes, as far as they can be measured: what was allocated, and for
    /// mapped weights what the kernel counts.
    pub fn measured(&self) -> Vec<(&'static str, u64)> {
        let stream = self.weights.stream();
        // As long as their slots, which are longer than the chunks in them.
        let share = stream.kept_bytes() as f64 / stream.resident_bytes().max(1) as f64;
        let resident = (self.ledger.resident as f64 * share) as u64;
        let scores = self.team.workers() * scores_bytes(&self.model.llama.config, self.position);
        let window = match stream.backend().maps() {
            false => stream.slot_bytes(),
            // All files that are mapped beyond those of the program; what stays is counted above.
            true => self.memory.file.saturating_sub(self.file_before + resident),
        };
        vec![
            ("tokenizer", self.model.tokenizer.heap_bytes() as u64),
            ("kv", self.kv.touched_by(self.position)),
            ("activations", (self.state.heap_bytes() + scores) as u64),
            ("logits", (self.state.logits.capacity() * size_of::<f32>()) as u64),
            ("window", window),
            ("resident", resident),
        ]
    }

    /// What was read and used so far.
    pub fn report(&self) -> Report {
        let (resident_now_bytes, resident_least_bytes) = self.weights.kept_bytes();
        let stream = self.weights.stream();
        let stats = stream.stats();
        Report {
            backend: stream.backend().name().to_owned(),
            describe: stream.describe(),
            direct: stream.backend().direct(),
            bytes_read: stats.bytes_read,
            reads: stats.reads,
            wait_s: stats.wait_s,
            compute_s: self.weights.compute_s(),
            pass_s: self.passes_took.as_secs_f64(),
            streamed_bytes_per_pass: stream.streamed_bytes(0),
            resident_bytes: stream.resident_bytes(),
            resident_now_bytes,
            resident_least_bytes,
            passes: self.passes,
            budget: self.budget,
            ledger: self.ledger,
            memory: self.memory,
            isa: self.model.isa.name(),
            tuning: self.model.isa.tuning(),
            threads: self.team.workers(),
            act_bits: self.state.acts.bits(),
            sync: self.sync,
        }
    }
}
