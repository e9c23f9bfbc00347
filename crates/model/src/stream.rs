//! Streamed weights: takes the loader's chunks in the planned order and multiplies them with the team.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_kernels::{Acts, Isa, QuantRows, matmul};
use sluice_loader::{ByteRange, Stream};

use crate::error::{Error, Result};
use crate::plan::{Chunk, Plan};
use crate::team::Team;
use crate::weights::{Table, WeightId, Weights};

/// A pass with the output projection, or one without: the groups of a long prompt before its last need no logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// Ends in logits.
    WithHead,
    /// Fills the KV cache only.
    WithoutHead,
}

impl PassKind {
    /// Both kinds, in the order of [`Plan::passes`].
    pub const ALL: [Self; 2] = [Self::WithHead, Self::WithoutHead];

    fn index(self) -> usize {
        match self {
            Self::WithHead => 0,
            Self::WithoutHead => 1,
        }
    }
}

/// The [`Weights`] of a session: every matrix comes through the loader's stream.
pub struct StreamedWeights<'m> {
    table: &'m Table,
    plan: Plan,
    stream: Stream,
    team: Arc<Team>,
    isa: Isa,
    cancel: Arc<AtomicBool>,
    /// Passes that the loader knows of and that have not begun, with the position of their first step.
    announced: VecDeque<(PassKind, u64)>,
    /// The pass being walked: its kind, the position of its first step, its next group.
    now: (PassKind, u64, usize),
}

impl<'m> StreamedWeights<'m> {
    /// Weights of `table` in the order of `plan`, through `stream`, multiplied by `team`.
    pub fn new(
        table: &'m Table,
        plan: Plan,
        stream: Stream,
        team: Arc<Team>,
        isa: Isa,
        cancel: Arc<AtomicBool>,
    ) -> Self {
        let announced = VecDeque::new();
        Self { table, plan, stream, team, isa, cancel, announced, now: (PassKind::WithHead, 0, usize::MAX) }
    }

    /// Begins a pass of `kind`; `next` is the one after it, if it is known that there will be one, so that its
    /// first chunks are read while this pass ends and the token is sampled.
    pub fn begin(&mut self, kind: PassKind, next: Option<PassKind>) -> Result<()> {
        if self.announced.front().is_some_and(|(k, _)| *k != kind) {
            // The pass that was foreseen doesn't come: its reads are of no use.
            self.rewind()?;
        }
        if self.announced.is_empty() {
            self.announce(kind);
        }
        if self.announced.len() == 1
            && let Some(next) = next
        {
            self.announce(next);
        }
        let (kind, start) = self.announced.pop_front().expect("one was announced above");
        self.now = (kind, start, 0);
        Ok(())
    }

    fn announce(&mut self, kind: PassKind) {
        let start = self.stream.announce(kind.index());
        self.announced.push_back((kind, start));
    }

    /// Forgets all that was announced, after an error or when the sequence goes on differently.
    ///
    /// # Errors
    /// When the loader cannot get its slots back in order.
    pub fn rewind(&mut self) -> Result<()> {
        self.announced.clear();
        self.stream.rewind().map_err(Error::from)
    }

    /// Reads bytes outside the schedule: rows of the embedding table.
    pub fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<()> {
        self.stream.read(range, into).map_err(Error::from)
    }

    /// The loader's side, for statistics.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

/// A band of one chunk and where its results go.
struct Task<'y> {
    position: u64,
    weight: WeightId,
    /// The band's rows, counted from the start of its chunk.
    rows: Range<usize>,
    y: &'y mut [f32],
}

impl Weights for StreamedWeights<'_> {
    fn matmul(&mut self, group: &[WeightId], x: &mut Acts, ys: &mut [&mut [f32]]) -> Result<()> {
        let (kind, start, index) = self.now;
        let pass = &self.plan.passes[kind.index()];
        let planned = &pass.groups[index];
        assert_eq!(planned.weights, group, "a pass asks for the same groups every time");
        self.now.2 += 1;
        for id in group {
            x.prepare(self.isa, self.table.get(*id).format);
        }

        let x = &*x;
        let chunks = planned
            .steps
            .clone()
            .map(|step| (start + step as u64, &self.plan.chunks[pass.steps[step] as usize]));
        let tasks = Mutex::new(tasks(chunks, group, ys, x.tokens()));
        let failure = Mutex::new(None);
        self.team.run(|_| {
            loop {
                // A statement of its own, so that the lock is not held while the band is multiplied.
                let task = lock(&tasks).next();
                let Some(task) = task else { break };
                let outcome = match self.cancel.load(Ordering::Relaxed) {
                    true => Err(Error::Interrupted),
                    false => self.run(task, x),
                };
                if let Err(e) = outcome {
                    lock(&failure).get_or_insert(e);
                    // Nobody takes another task: the region ends early.
                    lock(&tasks).by_ref().for_each(drop);
                }
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

impl StreamedWeights<'_> {
    /// Borrows the chunk that holds the band and multiplies the band's rows.
    fn run(&self, task: Task<'_>, x: &Acts) -> Result<()> {
        let matrix = self.table.get(task.weight);
        let loan = self.stream.loan(task.position)?;
        let bytes = &loan[task.rows.start * matrix.row_bytes..task.rows.end * matrix.row_bytes];
        let rows = QuantRows::new(matrix.format, matrix.cols, bytes).expect("a band is whole rows");
        matmul(self.isa, rows, x, task.y);
        Ok(())
    }
}

/// The bands of a group in the order of its chunks, each with its own part of the results.
fn tasks<'a, 'y: 'a>(
    chunks: impl Iterator<Item = (u64, &'a Chunk)> + Send + 'a,
    group: &'a [WeightId],
    ys: &'a mut [&'y mut [f32]],
    tokens: usize,
) -> impl Iterator<Item = Task<'a>> + Send + 'a {
    // What is left of each result; bands come in ascending order, so they are taken off the front.
    let mut left: Vec<&'a mut [f32]> = ys.iter_mut().map(|y| &mut **y).collect();
    chunks.flat_map(|(position, chunk)| chunk.bands().map(move |rows| (position, chunk, rows))).map(
        move |(position, chunk, rows)| {
            let which = group.iter().position(|w| *w == chunk.weight).expect("a chunk of this group");
            let y = left[which].split_off_mut(..rows.len() * tokens).expect("results for every row");
            let rows = rows.start - chunk.rows.start..rows.end - chunk.rows.start;
            Task { position, weight: chunk.weight, rows, y }
        },
    )
}

/// Locks, also after another worker's panic: that panic is on its way to the caller already.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
