//! A session: one sequence on a model, its cache, its workers, and the stream that its weights come through.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_kernels::{QuantRows, dequantise};
use sluice_loader::{Backend, Stream};

use crate::available::available;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::layers::Pass;
use crate::layers::output::Logits;
use crate::memory::ProcessMemory;
use crate::model::Model;
use crate::options::Options;
use crate::plan::{Cut, Plan, Residency};
use crate::residency;
use crate::sample::NonFinite;
use crate::state::{State, sized};
use crate::stream::{PassKind, StreamedWeights};
use crate::team::Team;

/// Activations of a prompt batch, when its size is left to us: small beside any model, and enough tokens that
/// reading the weights is shared by many.
const ACTIVATION_BYTES: usize = 8 << 20;

/// Largest batch chosen by us: beyond it the weights' reading is shared by so many tokens that nothing is gained.
const MOST_BATCH: usize = 512;

/// The same where all weights stay: small beside them, and as many tokens as the widest kernel unpacks a weight for once (264)
/// take 30 MB on a model of 1.1 billion weights, 66 MB on one of 8 billion. Against 66 tokens that is a fifth more speed, and
/// longer batches gain nothing further.
const RESIDENT_ACTIVATION_BYTES: usize = 64 << 20;

/// Largest batch chosen by us where all weights stay.
const RESIDENT_BATCH: usize = 264;

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
    /// Bytes of weights that stay.
    pub resident_bytes: u64,
    /// Passes begun.
    pub passes: u64,
    /// Most anonymous and most file-backed memory seen at the end of load and of each pass.
    pub memory: ProcessMemory,
    /// CPU level.
    pub isa: &'static str,
    /// Workers.
    pub threads: usize,
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
    digest: Digest,
    memory: ProcessMemory,
    passes: u64,
    passes_took: Duration,
    notes: Vec<String>,
}

impl<'m> Session<'m> {
    /// Opens a session; nothing of the weights is read yet.
    ///
    /// # Errors
    /// When options contradict each other or the model, when the backend asked for is not to be had, or when the model's
    /// files are no longer those whose headers were read.
    pub fn open(model: &'m Model, options: &Options) -> Result<Self> {
        let mut settled = Settled::new(model, options)?;
        let Residency { layers, head } = settled.residency;
        let opened = sluice_loader::open(
            &model.paths,
            &sluice_loader::Options {
                backend: options.backend,
                direct: options.direct,
                depth: None,
                all_resident: layers && head,
                workers: settled.workers,
                page_cache_room: settled.page_cache_room,
            },
        )?;
        model.check_files()?;
        settled.notes.extend(opened.notes);
        Self::start(model, options, opened.backend, settled)
    }

    /// As [`Session::open`], with weights from a backend of the caller's, which must hold the model's files in order.
    /// The options' own backend and direct are not looked at.
    ///
    /// # Errors
    /// When options contradict each other or the model.
    pub fn with_backend(model: &'m Model, options: &Options, backend: Arc<dyn Backend>) -> Result<Self> {
        Self::start(model, options, backend, Settled::new(model, options)?)
    }

    fn start(
        model: &'m Model,
        options: &Options,
        backend: Arc<dyn Backend>,
        settled: Settled,
    ) -> Result<Self> {
        let Settled { kv, batch, workers, residency, notes, .. } = settled;
        let team = Arc::new(Team::new(workers)?);
        let cut = Cut {
            chunk_bytes: options.chunk_bytes.unwrap_or(backend.chunk_bytes()),
            head_rows: options.head_rows,
            workers: team.workers(),
            chunk_is_band: backend.depth() == 0,
        };
        let llama = &model.llama;
        let head = llama.output.head.weight;
        let plan = Plan::new(&llama.record(model.isa)?, &model.table, head, &cut, residency);
        let stream = Stream::new(backend, plan.schedule(&model.table)?, team.workers())?;
        let cancel = Arc::clone(&options.cancel);
        let mut weights =
            StreamedWeights::new(&model.table, plan, stream, Arc::clone(&team), model.isa, cancel);
        weights.watch_memory();
        Ok(Self {
            model,
            weights,
            team,
            kv,
            state: State::new(),
            position: 0,
            context: options.context,
            batch,
            digest: Digest::default(),
            memory: ProcessMemory::now(),
            passes: 0,
            passes_took: Duration::ZERO,
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
        // All logits of a batch lie in memory twice (turned and not): no more than the activations may take.
        let most = (ACTIVATION_BYTES / (2 * size_of::<f32>() * rows)).clamp(1, self.batch);
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
        let result = self.pass_on_team(tokens, kind, next, wanted);
        self.passes_took += began.elapsed();
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

    fn pass_on_team(
        &mut self,
        tokens: &[u32],
        kind: PassKind,
        next: Option<PassKind>,
        wanted: Logits,
    ) -> Result<()> {
        self.weights.begin(kind, next)?;
        self.passes += 1;
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
            if let Some(at) = logits.iter().position(|v| !v.is_finite()) {
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

    /// What was read and used so far.
    pub fn report(&self) -> Report {
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
            passes: self.passes,
            memory: self.memory,
            isa: self.model.isa.name(),
            threads: self.team.workers(),
        }
    }
}

/// What is decided before a backend is opened.
struct Settled {
    kv: KvCache,
    /// Tokens of a prompt that go through the model together.
    batch: usize,
    workers: usize,
    residency: Residency,
    /// Bytes that the page cache may take beside us.
    page_cache_room: Option<u64>,
    /// What was decided on the caller's behalf, a line each.
    notes: Vec<String>,
}

impl Settled {
    fn new(model: &Model, options: &Options) -> Result<Self> {
        check_options(model, options)?;
        let config = &model.llama.config;
        let kv = KvCache::new(config, options.kv)?;
        let tokens_in = |bytes: usize| bytes / State::bytes_per_token(config);
        let mut batch =
            options.prompt_batch.unwrap_or_else(|| tokens_in(ACTIVATION_BYTES).clamp(1, MOST_BATCH));
        let mut notes = Vec::new();
        let workers = options.threads.unwrap_or_else(Team::default_workers);
        let left = available(workers);
        let residency = residency::decide(model, options, &kv, batch, left, &mut notes);
        let page_cache_room =
            left.map(|left| left.saturating_sub(residency::beside(model, options, &kv, batch)));
        if options.prompt_batch.is_none() && residency.layers && residency.head {
            batch = tokens_in(RESIDENT_ACTIVATION_BYTES).clamp(batch, RESIDENT_BATCH.max(batch));
        }
        notes.push(format!(
            "keys and values in {}: {:.1} MB when all {} positions are used",
            options.kv.name(),
            kv.bytes_for(options.context) as f64 / 1e6,
            options.context
        ));
        Ok(Self { kv, batch, workers, residency, page_cache_room, notes })
    }
}

/// Refuses options that contradict the model or make no sense, naming the flag.
fn check_options(model: &Model, options: &Options) -> Result<()> {
    let longest = model.longest_context();
    if options.context > longest {
        return Err(Error::Context {
            context: longest,
            wanted: options.context,
            longest,
            detail: "the context asked for".into(),
        });
    }
    for (value, flag) in [
        (Some(options.head_rows), "--lm-head-rows"),
        (options.chunk_bytes, "--chunk-bytes"),
        (options.prompt_batch, "--prompt-batch"),
        (options.threads, "--threads"),
    ] {
        if value == Some(0) {
            return Err(Error::Usage(format!("{flag} 0: wanted at least 1")));
        }
    }
    Ok(())
}
