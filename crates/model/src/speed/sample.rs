//! Some layers of a model and some rows of its head, run as a session runs the whole: what [`super::probe`] times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_kernels::Isa;
use sluice_loader::{Backend, Stream};

use crate::error::Result;
use crate::forward::Llama;
use crate::kv::{KvCache, PAGE};
use crate::layers::Pass;
use crate::layers::output::Logits;
use crate::model::Model;
use crate::options::Options;
use crate::plan::{Chunk, Plan};
use crate::state::{State, sized};
use crate::stream::{PassKind, StreamedWeights};
use crate::team::Team;
use crate::weights::Table;

/// Which part of a model is run.
pub struct Part {
    /// The model with those layers only.
    llama: Llama,
    /// Rows of the head wanted; chunks decide how many there are.
    head_rows: usize,
}

/// Bytes and weights, of a part or of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    pub layer_bytes: f64,
    pub layer_weights: f64,
    pub head_bytes: f64,
}

impl Part {
    /// As many layers, evenly spread, as come to `wanted` bytes, at least one, and as large a part of the head; the whole
    /// model if that is not more.
    pub fn of(model: &Model, wanted: u64) -> Self {
        let mut llama = model.llama.clone();
        let all = llama.layers.len();
        let bytes: f64 = model.table.all().map(|(_, m)| (m.rows * m.row_bytes) as f64).sum();
        let share = (wanted as f64 / bytes.max(1.0)).min(1.0);
        let count = ((share * all as f64).ceil() as usize).clamp(1, all);
        let picks: Vec<usize> = (0..count).map(|i| (2 * i + 1) * all / (2 * count)).collect();
        llama.layers = picks.iter().map(|&i| model.llama.layers[i].clone()).collect();
        llama.config.kv_heads = picks.iter().map(|&i| model.llama.config.kv_heads[i]).collect();
        let head_rows = (llama.output.rows * count).div_ceil(all);
        Self { llama, head_rows }
    }

    /// The chunks of `plan` that belong to the part, and the part with as many rows in its head as they have.
    fn cut(&self, plan: &Plan, model: &Model) -> Result<(Llama, Plan)> {
        let head = self.llama.output.head.weight;
        let ends = plan.chunks.iter().filter(|chunk| chunk.weight == head).map(|chunk| chunk.rows.end);
        let rows = ends.clone().filter(|end| *end <= self.head_rows).max().or(ends.min()).unwrap_or(0);
        let mut llama = self.llama.clone();
        llama.output.rows = rows;
        if let Some(bias) = &mut llama.output.head.bias {
            bias.truncate(rows);
        }
        let wanted = |chunk: &Chunk| chunk.weight != head || chunk.rows.end <= rows;
        let plan = plan.part(&llama.record(model.isa)?, wanted);
        Ok((llama, plan))
    }
}

impl Part {
    /// Bytes of the part when it is cut as in `plan`.
    pub fn bytes(&self, plan: &Plan, model: &Model) -> Result<u64> {
        let (llama, plan) = self.cut(plan, model)?;
        let Size { layer_bytes, head_bytes, .. } = size(&plan, &model.table, llama.output.head.weight);
        Ok((layer_bytes + head_bytes) as u64)
    }
}

/// What all chunks of a plan come to.
pub fn size(plan: &Plan, table: &Table, head: crate::weights::WeightId) -> Size {
    let mut size = Size::default();
    for chunk in &plan.chunks {
        let matrix = table.get(chunk.weight);
        let bytes = (chunk.rows.len() * matrix.row_bytes) as f64;
        if chunk.weight == head {
            size.head_bytes += bytes;
        } else {
            size.layer_bytes += bytes;
            size.layer_weights += (chunk.rows.len() * matrix.cols) as f64;
        }
    }
    size
}

/// A part that runs.
pub struct Sample<'m> {
    llama: Llama,
    weights: StreamedWeights<'m>,
    team: Arc<Team>,
    kv: KvCache,
    state: State,
    isa: Isa,
    /// What it comes to.
    pub size: Size,
    /// Bytes of it that stay.
    pub resident: u64,
}

impl<'m> Sample<'m> {
    /// The part of `model` through `backend`, in the chunks of `plan`; all of them stay, or none.
    pub fn new(
        model: &'m Model,
        part: &Part,
        plan: &Plan,
        backend: &Arc<dyn Backend>,
        team: &Arc<Team>,
        options: &Options,
        stay: bool,
    ) -> Result<Self> {
        let (llama, mut plan) = part.cut(plan, model)?;
        plan.keep(&vec![stay; plan.chunks.len()]);
        let size = size(&plan, &model.table, llama.output.head.weight);
        let stream = Stream::new(Arc::clone(backend), plan.schedule(&model.table)?, team.workers())?;
        let resident = stream.resident_bytes();
        let kv = KvCache::new(&llama.config, options.kv)?;
        let weights = StreamedWeights::new(
            &model.table,
            plan,
            stream,
            Arc::clone(team),
            model.isa,
            Arc::default(), // nobody interrupts a pass of some milliseconds
        );
        let state = State::new(model.act_bits(options.act_bits));
        Ok(Self { llama, weights, team: Arc::clone(team), kv, state, isa: model.isa, size, resident })
    }

    /// Fills the cache up to `position`, so that attention has as much to do as there. What it holds does not matter.
    pub fn fill(&mut self, position: usize) {
        let config = &self.llama.config;
        for (i, kv_heads) in config.kv_heads.iter().enumerate() {
            let keys = vec![0.0; PAGE * kv_heads * config.key_len];
            let values = vec![0.0; PAGE * kv_heads * config.value_len];
            for first in (0..position).step_by(PAGE) {
                self.kv.layer(i).store(first, &keys, &values);
            }
        }
    }

    /// Seconds of one pass of `tokens` at `first`, with or without head, announced to be followed by another.
    pub fn pass_s(&mut self, tokens: usize, first: usize, kind: PassKind) -> Result<f64> {
        let began = Instant::now();
        self.weights.begin(kind, Some(kind))?;
        let dim = self.llama.config.dim;
        let x = sized(&mut self.state.x, tokens * dim);
        // Any values of the usual size: products take as long with others.
        x.iter_mut().enumerate().for_each(|(i, x)| *x = (i * 37 % 101) as f32 / 500.0 - 0.1);
        let wanted = if kind == PassKind::WithHead { Logits::Last } else { Logits::None };
        let mut pass = Pass {
            config: &self.llama.config,
            weights: &mut self.weights,
            team: &self.team,
            isa: self.isa,
            state: &mut self.state,
            kv: &mut self.kv,
            first,
            tokens,
        };
        self.llama.run(&mut pass, wanted)?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds that all workers multiplied so far, summed.
    pub fn compute_s(&self) -> f64 {
        self.weights.compute_s()
    }

    /// Bytes per second at which all workers together only read what stays.
    pub fn read_rate(&mut self) -> Result<f64> {
        // The pass that was announced to follow does not come.
        self.weights.rewind()?;
        let rate = walk(&self.weights.stream(), &self.team, 1, Duration::MAX);
        self.weights.rewind()?;
        rate
    }
}

/// Bytes per second at which workers borrow the steps of `passes` passes (of the first kind) and read them through,
/// until `time` is up.
pub fn walk(stream: &Stream, team: &Team, passes: u64, time: Duration) -> Result<f64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    let steps = stream.schedule().pass(0);
    let began = Instant::now();
    let first = stream.announce(0);
    for _ in 1..passes {
        stream.announce(0);
    }
    let end = first + passes * steps.len() as u64;
    let (next, bytes) = (AtomicU64::new(first), AtomicU64::new(0));
    let failure = std::sync::Mutex::new(None);
    team.run(steps.len(), |_| {
        while began.elapsed() < time {
            let position = next.fetch_add(1, Ordering::Relaxed);
            if position >= end {
                break;
            }
            let step = steps[((position - first) % steps.len() as u64) as usize];
            for loan in 0..stream.schedule().steps()[step as usize].loans {
                match stream.loan(position) {
                    Ok(lent) if loan == 0 => {
                        std::hint::black_box(add_up(&lent));
                        bytes.fetch_add(lent.len() as u64, Ordering::Relaxed);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).replace(error);
                        return;
                    }
                }
            }
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error.into()),
        None => Ok(bytes.into_inner() as f64 / seconds.max(f64::EPSILON)),
    }
}

/// The sum of the bytes taken as words: no slower than memory.
fn add_up(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}
