//! What is decided before a session begins: how weights reach memory, which of them stay, and what all of it takes.

use std::collections::HashSet;
use std::sync::Arc;

use sluice_kernels::Format;
use sluice_loader::{Backend, Step};

use super::{Ceiling, Form, Ledger, Needs, Order, Outline, Piece, mb, plan};
use crate::available::{available, total_memory};
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::layers::attention::scores_bytes;
use crate::memory::ProcessMemory;
use crate::model::Model;
use crate::options::{Budget, Options, Placement};
use crate::plan::{Chunk, Cut, Plan};
use crate::state::State;
use crate::team::Team;
use crate::weights::WeightId;

/// Bytes in a chunk at the least, where a budget is small and the length is left to us: half of what is copied best, at nine
/// tenths of the speed (33.3 against 36 GB/s from the page cache).
const SMALLEST_CHUNK: u64 = 256 << 10;

/// Code that a run brings in after this is planned, 384 to 448 KiB of it as measured (the kernel maps 64 KiB at a time), and
/// 52 KiB more of the first thread's stack; 224 KiB are what lies idle between pieces of the heap, and what runs of one command
/// differ by: how much of the program is there when this is planned changes by 180 KB from run to run (which 64 KiB are mapped
/// around a page goes by where the program lies), and what a run ends with by as much, and not always together. With 192 a
/// prompt of 512 tokens went over its least by 10 and 30 KB in 2 runs of 8.
const TO_COME: u64 = (448 + 56 + 224) << 10;

/// What each further thread touches: 92 KiB of stack, in the products of a batch, and 24 to 50 of the C library's heap for it.
const PER_THREAD: u64 = 144 << 10;

/// The same of a thread that only reads: 8 KiB of stack, the pages that begin it, and what the C library keeps for it.
const PER_READER: u64 = 24 << 10;

/// The same of the thread that watches memory, where there are residents that can be given back: in maps of a run with and without
/// it 16 to 24 KiB of stack and heap.
const WATCHING: u64 = 28 << 10;

/// Bytes that are kept for every chunk: in the plan itself and whether it stays; in the schedule its step, the limit above
/// which it stays, and a place in both kinds of pass, here and in the plan. With 19 thousand chunks 90 each were measured.
const PER_CHUNK: u64 = (size_of::<Chunk>() + size_of::<Step>()) as u64 + 1 + 8 + 4 * 4;

/// Left alone when everything stays: for what others take in the next moment. Mapped weights can be dropped by the kernel by
/// itself, so this need not be much. Of little memory it is a fifth.
const ASIDE: u64 = 64 << 20;

/// Most that `auto` leaves alone when something has to be streamed: a fifth of what is available, but others' needs do not
/// grow with the machine. What is kept is memory of our own, which the kernel cannot take back.
const MOST_ASIDE: u64 = 1 << 30;

/// What runs of the same command differ by in what they take: some pages here and there.
const VARIES: u64 = 300_000;

/// Share of a budget that reads in flight may take, beyond the usual few: 1.6 % for a tenth more from the disk.
const FLIGHT_SHARE: u64 = 64;

/// All that a session is built from.
pub struct Settled {
    /// Brings the weights.
    pub backend: Arc<dyn Backend>,
    /// Empty, of the format asked for.
    pub kv: KvCache,
    /// Tokens of a prompt that go through the model together.
    pub batch: usize,
    /// Bytes of activations that each of them takes.
    pub per_token: usize,
    /// Threads that multiply.
    pub workers: usize,
    /// The order of the pass, with what stays.
    pub plan: Plan,
    /// What memory is for.
    pub ledger: Ledger,
    /// The ceiling that was kept to, in bytes; None when nobody set one and the system does not say what there is.
    pub budget: Option<u64>,
    /// What was decided on the caller's behalf, a line each.
    pub notes: Vec<String>,
}

/// What is the same for every way of running a model: what the process and the machine had when planning began, and the order
/// of the pass. Plans made from one ground do not count each other, however much the process has grown meanwhile.
pub struct Ground {
    workers: usize,
    /// What each kind of pass asks for.
    groups: [Vec<Vec<WeightId>>; 2],
    /// Memory that was left on the machine, as far as it says.
    left: Option<u64>,
    /// Memory that this process had.
    taken: u64,
    /// The most that it ever had.
    peak: u64,
}

impl Ground {
    /// As things are now.
    ///
    /// # Errors
    /// For options that contradict each other.
    pub fn now(model: &Model, options: &Options) -> Result<Self> {
        check_options(model, options)?;
        let workers = options.threads.unwrap_or_else(Team::default_workers);
        let left = available(workers);
        let groups = model.llama.record(model.isa)?;
        Ok(Self { workers, groups, left, taken: taken(), peak: ProcessMemory::now().peak })
    }

    /// The most that the process would have had by now, had it begun from here: `had` bytes and a peak of `peak` were its own
    /// before something was done that may have raised the peak.
    fn peak_since(&self, had: u64, peak: u64) -> u64 {
        let now = ProcessMemory::now().peak;
        if now > peak { self.peak.max(now.saturating_sub(had.saturating_sub(self.taken))) } else { self.peak }
    }
}

/// Settles everything for a session on `model` from `ground`, which was found with the same options but for the budget and how
/// files are read; with `own` a backend of the caller's is used whatever the options say.
///
/// # Errors
/// For backends that are not to be had, and budgets that cannot be kept.
pub fn settle(
    model: &Model,
    options: &Options,
    ground: &Ground,
    own: Option<Arc<dyn Backend>>,
) -> Result<Settled> {
    let kv = KvCache::new(&model.llama.config, options.kv)?;
    let mut settling = Settling {
        model,
        options,
        ground,
        kv: &kv,
        needs: needs(model, options, &kv, ground),
        notes: Vec::new(),
    };
    let ceiling = settling.ceiling();
    let (backend, planned, plan) = match own {
        Some(backend) => {
            let (planned, plan) = settling.plan(&*backend, ceiling)?;
            (backend, planned, plan)
        }
        None => settling.open(ceiling)?,
    };
    let budget = match ceiling {
        Ceiling::Bytes(bytes) => Some(bytes.max(planned.ledger.total())),
        Ceiling::Least => Some(planned.ledger.total()),
        Ceiling::Unknown => None,
    };
    settling.tell(&planned);
    let Settling { notes, needs, .. } = settling;
    let per_token = needs.per_token as usize;
    let (ledger, batch) = (planned.ledger, planned.batch);
    Ok(Settled { backend, kv, batch, per_token, workers: ground.workers, plan, ledger, budget, notes })
}

struct Settling<'a> {
    model: &'a Model,
    options: &'a Options,
    ground: &'a Ground,
    kv: &'a KvCache,
    needs: Needs,
    notes: Vec<String>,
}

impl Settling<'_> {
    fn ceiling(&mut self) -> Ceiling {
        match (self.options.budget, self.ground.left) {
            (Budget::Min, _) => Ceiling::Least,
            (Budget::Bytes(bytes), _) => {
                if let Some(all) = total_memory().filter(|all| bytes > *all) {
                    self.notes.push(format!(
                        "note: the budget of {} MB is more than the {} MB that this machine has",
                        mb(bytes),
                        mb(all)
                    ));
                }
                Ceiling::Bytes(bytes)
            }
            (Budget::Auto, Some(left)) => {
                // What this process has already is not in what is left.
                Ceiling::Bytes((left - (left / 5).min(ASIDE)).saturating_add(self.ground.taken))
            }
            (Budget::Auto, None) => Ceiling::Unknown,
        }
    }

    /// Opens files as suits what stays, and plans.
    fn open(&mut self, ceiling: Ceiling) -> Result<(Arc<dyn Backend>, Outline, Plan)> {
        let Options { backend: choice, direct, .. } = *self.options;
        let left = self.ground.left;
        let (had, peak) = (taken(), ProcessMemory::now().peak);
        // Whether all can stay decides how files are opened, before it is known how much of a window they want.
        let mapped = Form::Mapped { window: 0 };
        let whole = self.outline(mapped, &self.cut(1 << 20, true), ceiling).is_ok_and(|(o, _)| o.keeps_all());
        let ceiling = match (self.options.budget, ceiling) {
            (Budget::Auto, Ceiling::Bytes(all)) if !whole && self.undecided() => {
                let left = left.unwrap_or(0);
                let more = (left / 5).min(MOST_ASIDE) - (left / 5).min(ASIDE);
                Ceiling::Bytes(all.saturating_sub(more))
            }
            _ => ceiling,
        };
        let beside = match ceiling {
            Ceiling::Bytes(bytes) if self.options.budget != Budget::Auto => bytes,
            _ => Ledger { resident: 0, ..self.least(mapped) }.total(),
        };
        let flight_room = match ceiling {
            Ceiling::Bytes(bytes) if self.undecided() => Some(bytes / FLIGHT_SHARE),
            _ => None,
        };
        let open = sluice_loader::Options {
            backend: choice,
            direct,
            depth: None,
            flight_room,
            all_resident: whole,
            copied: !whole && self.copies(ceiling),
            workers: self.ground.workers,
            page_cache_room: left.map(|left| left.saturating_sub(beside)),
        };
        let sluice_loader::Opened { backend, notes, .. } = sluice_loader::open(&self.model.paths, &open)?;
        self.model.check_files()?;
        self.notes.extend(notes);
        // Trying backends out may have mapped more for a moment than all this will take.
        self.needs.before = self.ground.peak_since(had, peak);
        if backend.name() == "pread" {
            self.needs.threads += backend.depth() as u64 * PER_READER;
        }
        let (outline, plan) = self.plan(&*backend, ceiling)?;
        Ok((backend, outline, plan))
    }

    /// Whether parts are left for the planner to place.
    fn undecided(&self) -> bool {
        [self.options.layers, self.options.head].contains(&Placement::Auto)
    }

    /// Whether some of what is copied may stay: then memory is watched.
    fn may_keep(&self, ceiling: Ceiling) -> bool {
        let asked = [self.options.layers, self.options.head];
        asked.contains(&Placement::Resident) || (self.undecided() && matches!(ceiling, Ceiling::Bytes(_)))
    }

    /// Whether weights are better copied than mapped under a ceiling that not all of them fit: when some of them may stay, or
    /// when there is less room than a mapping's window wants.
    fn copies(&self, ceiling: Ceiling) -> bool {
        self.options.budget != Budget::Auto || (self.undecided() && matches!(ceiling, Ceiling::Bytes(_)))
    }

    fn cut(&self, chunk_bytes: usize, lazy: bool) -> Cut {
        Cut {
            chunk_bytes: self.options.chunk_bytes.unwrap_or(chunk_bytes),
            head_rows: self.options.head_rows,
            workers: self.ground.workers,
            chunk_is_band: lazy,
        }
    }

    /// The plan for `backend`, with shorter chunks where the ceiling wants them.
    fn plan(&self, backend: &dyn Backend, ceiling: Ceiling) -> Result<(Outline, Plan)> {
        let lazy = backend.depth() == 0;
        let usual = backend.chunk_bytes();
        // A slot for a single byte is as long as reads are aligned.
        let align = backend.slot(1)?.capacity() as u64;
        let slots = (self.ground.workers + backend.depth()) as u64;
        let form = match backend.maps() {
            true => Form::Mapped { window: self.mapped(backend, &self.cut(usual, lazy)) },
            false => Form::Copied { slots, align },
        };
        let free = self.options.chunk_bytes.is_none() && !backend.maps();
        if ceiling == Ceiling::Least && free {
            return self
                .within(self.outline(form, &self.cut(SMALLEST_CHUNK as usize, lazy), ceiling), ceiling);
        }
        let first = self.outline(form, &self.cut(usual, lazy), ceiling);
        let planned = match (first, ceiling) {
            (Err(least), Ceiling::Bytes(bytes)) if free => {
                let room = bytes.saturating_sub(least.total() - least.window) / slots;
                let chunk = room.saturating_sub(2 * align).clamp(SMALLEST_CHUNK, usual as u64);
                // More chunks take more room themselves: what is just too little for these may do for the shortest.
                self.outline(form, &self.cut(chunk as usize, lazy), ceiling)
                    .or_else(|_| self.outline(form, &self.cut(SMALLEST_CHUNK as usize, lazy), ceiling))
            }
            (first, _) => first,
        };
        match planned {
            // What `auto` finds is an estimate, and what must be is tried; but not what a smaller context would cure.
            Err(least) if self.options.budget == Budget::Auto => {
                let all = self.ground.left.map_or(u64::MAX, |left| left.saturating_add(self.ground.taken));
                if least.total() > all && self.longest_context(&least, all).is_some() {
                    return Err(self.refusal(&least, all));
                }
                self.plan(backend, Ceiling::Least)
            }
            planned => self.within(planned, ceiling),
        }
    }

    /// The most of the files that is mapped at once when all is streamed.
    fn mapped(&self, backend: &dyn Backend, cut: &Cut) -> u64 {
        let Model { table, llama, .. } = self.model;
        let plan = Plan::new(&self.ground.groups, table, llama.output.head.weight, cut);
        let chunks = plan.passes[0].steps.iter().map(|chunk| &plan.chunks[*chunk as usize]);
        let ranges = chunks.map(|chunk| table.get(chunk.weight).bytes_of(chunk.rows.clone()));
        backend.mapped_bytes(&ranges.collect::<Vec<_>>(), self.ground.workers)
    }

    fn within<T>(&self, planned: Result<T, Box<Ledger>>, ceiling: Ceiling) -> Result<T> {
        let budget = if let Ceiling::Bytes(bytes) = ceiling { bytes } else { 0 };
        planned.map_err(|least| self.refusal(&least, budget))
    }

    /// The refusal of a ceiling that cannot be kept: what it is, the least that works, what for, and what would lower it.
    fn refusal(&self, least: &Ledger, ceiling: u64) -> Error {
        let context = self.options.context;
        let enough = least.total().saturating_add(VARIES).div_ceil(1_000_000);
        let longest = self.longest_context(least, ceiling.saturating_sub(VARIES));
        let mut lower = Vec::new();
        if longest.is_some() || least.kv > least.total() / 20 {
            lower.push("a smaller --ctx".to_owned());
            if self.options.kv != crate::kv::KvFormat::Q8_0 {
                lower.push("--kv q8_0".into());
            }
        }
        lower.push("--prompt-batch 1".into());
        if self.ground.workers > 1 {
            lower.push("--threads 1".into());
        }
        if self.options.layers == Placement::Resident || self.options.head == Placement::Resident {
            lower.insert(0, "letting --layers and --lm-head stream".into());
        }
        let limit = match self.options.budget {
            Budget::Auto => format!("{} MB of memory are available", mb(ceiling)),
            _ => format!("--ram-budget {ceiling}"),
        };
        let longest = match longest {
            Some(longest) => format!("the longest context that fits is --ctx {longest}"),
            None => "no context is short enough".into(),
        };
        Error::Budget(format!(
            "{limit}: with {context} positions of context the least that works is {enough}M ({}, in MB); {longest}; lower it with {}",
            least.line(),
            lower.join(", ")
        ))
    }

    /// The longest context shorter than the one asked for with which `least` comes to no more than `ceiling`; None when not even
    /// one position fits.
    fn longest_context(&self, least: &Ledger, ceiling: u64) -> Option<usize> {
        let fits = |context| {
            let needs = self.needs.with_context(self.model, self.kv, self.ground.workers, context);
            least.with_context(&needs).total() <= ceiling
        };
        // Every position takes memory, so that halving finds it: `longest` fits or is none, `beyond` does not.
        let (mut longest, mut beyond) = (0, self.options.context);
        while beyond - longest > 1 {
            let middle = longest + (beyond - longest) / 2;
            *if fits(middle) { &mut longest } else { &mut beyond } = middle;
        }
        (longest > 0).then_some(longest)
    }

    /// The ledger when nothing stays but what must.
    fn least(&self, form: Form) -> Ledger {
        let (outline, _) = self
            .outline(form, &self.cut(1 << 20, true), Ceiling::Least)
            .expect("without a ceiling there is nothing to refuse");
        outline.ledger
    }

    fn outline(&self, form: Form, cut: &Cut, ceiling: Ceiling) -> Result<(Outline, Plan), Box<Ledger>> {
        let model = self.model;
        let lazy = cut.chunk_is_band;
        let head = model.llama.output.head.weight;
        let mut cut = Plan::new(&self.ground.groups, &model.table, head, cut);
        let pieces: Vec<Piece> = cut
            .chunks
            .iter()
            .map(|chunk| Piece {
                bytes: (chunk.rows.len() * model.table.get(chunk.weight).row_bytes) as u64,
                placement: if chunk.weight == head { self.options.head } else { self.options.layers },
            })
            .collect();
        let mut needs = self.needs;
        needs.header = needs.header.saturating_add(pieces.len() as u64 * PER_CHUNK);
        if !matches!(form, Form::Mapped { .. }) && self.may_keep(ceiling) {
            needs.threads = needs.threads.saturating_add(WATCHING);
        }
        let order = if lazy { Order::Prefix } else { Order::Spread };
        let outline = plan(&needs, form, &pieces, ceiling, order)?;
        cut.keep(&outline.stays);
        Ok((outline, cut))
    }

    /// Says what was decided, for `--verbose`.
    fn tell(&mut self, planned: &Outline) {
        let all = planned.stays.len();
        let stay = planned.stays.iter().filter(|stays| **stays).count();
        let available = self
            .ground
            .left
            .map_or("the system does not say how much is".into(), |b| format!("{} MB are", mb(b)));
        self.notes.push(format!(
            "{stay} of {all} chunks stay in memory; {} MB of memory are predicted ({}), {available} available",
            mb(planned.ledger.total()),
            planned.ledger.line(),
        ));
        self.notes.push(format!(
            "keys and values in {}: {} MB when all {} positions are used; prompts go through in batches of {}",
            self.options.kv.name(),
            mb(self.kv.bytes_for(self.options.context) as u64),
            self.options.context,
            planned.batch
        ));
    }
}

/// Memory that this process has now.
fn taken() -> u64 {
    let now = ProcessMemory::now();
    now.anon + now.file
}

/// What the session takes whatever stays. Part of it is asked of the kernel: what the process has already.
fn needs(model: &Model, options: &Options, kv: &KvCache, ground: &Ground) -> Needs {
    let Ground { workers, ref groups, taken, peak, .. } = *ground;
    let inputs = groups.iter().flatten().flatten().map(|id| {
        let matrix = model.table.get(*id);
        (matrix.format, matrix.cols)
    });
    let inputs: HashSet<(Format, usize)> = inputs.collect();
    let bits = model.act_bits(options.act_bits);
    let per_token = State::bytes_per_token(&model.llama.config, model.isa, bits, workers, inputs.into_iter());
    let tokenizer = model.tokenizer.heap_bytes() as u64;
    let header = model.llama.heap_bytes() as u64;
    let fixed = Needs {
        program: taken.saturating_sub(tokenizer + header) + TO_COME,
        tokenizer,
        header,
        threads: workers.saturating_sub(1) as u64 * PER_THREAD,
        logits: (model.llama.output.rows * size_of::<f32>()) as u64,
        per_token: per_token as u64,
        before: peak,
        batch: options.prompt_batch,
        modest: options.budget == Budget::Auto,
        ..Needs::default()
    };
    fixed.with_context(model, kv, workers, options.context)
}

impl Needs {
    /// The same for a context of `context` positions.
    fn with_context(self, model: &Model, kv: &KvCache, workers: usize, context: usize) -> Self {
        let scores = scores_bytes(&model.llama.config, context) as u64;
        Self { kv: kv.touched_by(context), scores: (workers as u64).saturating_mul(scores), context, ..self }
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
