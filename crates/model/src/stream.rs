//! Streamed weights: takes the loader's chunks in the planned order and multiplies them with the team.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use sluice_kernels::{Acts, Isa, QuantRows, matmul};
use sluice_loader::sync::{Counts, Mutex, lock};
use sluice_loader::{ByteRange, Loan, Loans, Stream};

use crate::error::{Error, Result};
use crate::plan::{Chunk, Plan};
use crate::pressure::Monitor;
use crate::shares::{Run, Shares};
use crate::team::{Deal, Team};
use crate::weights::{Matrix, Table, WeightId, Weights};

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
    monitor: Option<Monitor>, // before the stream, so that it is gone when that goes
    stream: Arc<RwLock<Stream>>, // written to be rewound, read for everything else
    team: Arc<Team>,
    isa: Isa,
    cancel: Arc<AtomicBool>,
    /// Nanoseconds that workers multiplied.
    computed: AtomicU64,
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
        let stream = Arc::new(RwLock::new(stream));
        let now = (PassKind::WithHead, 0, usize::MAX);
        let computed = AtomicU64::new(0);
        Self { table, plan, monitor: None, stream, team, isa, cancel, computed, announced, now }
    }

    /// From now on gives chunks back when memory gets short, and keeps them again when there is room. Does nothing where none
    /// stay, where those that do are mapped, and where the kernel does not say how short memory is.
    pub fn watch_memory(&mut self) {
        self.monitor = Monitor::start(&self.stream);
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
        let start = self.stream().announce(kind.index());
        self.announced.push_back((kind, start));
    }

    /// Forgets all that was announced, after an error or when the sequence goes on differently.
    ///
    /// # Errors
    /// When the loader cannot get its slots back in order.
    pub fn rewind(&mut self) -> Result<()> {
        self.announced.clear();
        let mut stream = self.stream.write().unwrap_or_else(PoisonError::into_inner);
        stream.rewind().map_err(Error::from)
    }

    /// Reads bytes outside the schedule: rows of the embedding table.
    pub fn read(&self, range: ByteRange, into: &mut [u8]) -> Result<()> {
        self.stream().read(range, into).map_err(Error::from)
    }

    /// Seconds that workers multiplied, summed over workers.
    pub fn compute_s(&self) -> f64 {
        self.computed.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// Bytes of weights that are kept now, and the fewest of the resident ones that could stay at any time of the run: less
    /// than all of them when memory got short. What is kept of a mapping the kernel may have dropped without a word.
    pub fn kept_bytes(&self) -> (u64, u64) {
        let stream = self.stream();
        let all = stream.resident_bytes();
        (stream.kept_bytes(), self.monitor.as_ref().map_or(all, |monitor| monitor.least().min(all)))
    }

    /// The loader's side, for statistics.
    pub fn stream(&self) -> RwLockReadGuard<'_, Stream> {
        read(&self.stream)
    }
}

/// A lock that only a rewind holds alone; taken once for a group, and counted.
fn read(stream: &RwLock<Stream>) -> RwLockReadGuard<'_, Stream> {
    Counts { locks: 1, ..Counts::default() }.note();
    stream.read().unwrap_or_else(PoisonError::into_inner)
}

/// A band of a chunk and where its results go.
struct Band<'y> {
    /// Its rows, counted from the start of the chunk.
    rows: Range<usize>,
    y: &'y mut [f32],
}

/// A chunk on its way through the workers of a region.
struct Shared<'s> {
    position: u64,
    weight: WeightId,
    /// Bands that are not multiplied yet.
    left: AtomicUsize,
    /// Set once the loan is there for others.
    open: AtomicBool,
    /// From who borrowed it, for those who help; gone with the last band.
    loan: Mutex<Option<Arc<Loan<'s>>>>,
}

impl Weights for StreamedWeights<'_> {
    fn matmul(&mut self, group: &[WeightId], x: &mut Acts, ys: &mut [&mut [f32]]) -> Result<()> {
        let (kind, start, index) = self.now;
        let pass = &self.plan.passes[kind.index()];
        let planned = &pass.groups[index];
        assert_eq!(planned.weights, group, "a pass asks for the same groups every time");
        self.now.2 += 1;
        let parts = x.tokens().div_ceil(self.team.tokens_each(x.tokens()).max(1)).max(1);
        for id in group {
            let parts = x.parts(self.isa, self.table.get(*id).format, parts);
            self.team.share(parts.into_iter(), |part| part.build(self.isa));
        }

        let steps = planned.steps.clone();
        let positions = start + steps.start as u64..start + steps.end as u64;
        let chunks = steps.map(|step| &self.plan.chunks[pass.steps[step] as usize]);
        // Once for the whole group; only a rewind would wait for it, and that is ours to call.
        let reading = read(&self.stream);
        let stream: &Stream = &reading;
        let here = if planned.resident { stream.loan_residents(positions.clone())? } else { None };
        match here {
            Some(loans) => self.multiply_residents(&loans, chunks, group, x, ys),
            None => self.multiply_loans(stream, positions.zip(chunks), group, x, ys),
        }
    }
}

impl StreamedWeights<'_> {
    /// Products with chunks that are all here: their rows are shared out beforehand, neighbours to the same worker.
    fn multiply_residents<'a>(
        &self,
        loans: &Loans<'_>,
        chunks: impl Iterator<Item = &'a Chunk>,
        group: &[WeightId],
        x: &Acts,
        ys: &mut [&mut [f32]],
    ) -> Result<()> {
        let mut results = Results::new(group, ys, x.tokens());
        let runs = chunks.enumerate().map(|(i, chunk)| {
            let matrix = self.table.get(chunk.weight);
            Run {
                matrix,
                row_bytes: matrix.row_bytes,
                bytes: &loans[i],
                y: results.of(chunk.weight, &chunk.rows),
            }
        });
        let bytes = group.iter().map(|id| self.table.get(*id)).map(|m| m.row_bytes * m.rows).sum();
        let workers = self.team.useful(Shares::<&Matrix>::worth(bytes, x.tokens()));
        let shares = Shares::new(runs, workers);
        self.team.run(workers, |worker| {
            while !self.cancelled()
                && let Some(run) = shares.next(worker)
            {
                self.multiply(run.matrix, run.bytes, x, run.y);
            }
        });
        // Workers stop for nothing else, so without an interrupt nothing is left.
        if shares.is_empty() { Ok(()) } else { Err(Error::Interrupted) }
    }

    /// Products with chunks that may have to be read. A worker helps with the bands of a chunk that another has borrowed, and when
    /// there are none it borrows the next chunk; so chunks are borrowed in their order, and nobody waits who holds one. Whoever
    /// finds nothing to do leaves, and is called back when a chunk comes that is worth two.
    fn multiply_loans<'a>(
        &self,
        stream: &Stream,
        chunks: impl Iterator<Item = (u64, &'a Chunk)>,
        group: &[WeightId],
        x: &Acts,
        ys: &mut [&mut [f32]],
    ) -> Result<()> {
        let mut results = Results::new(group, ys, x.tokens());
        let (mut bands, mut ends) = (Vec::new(), Vec::new());
        let chunks = chunks.map(|(position, chunk)| {
            let before = bands.len();
            bands.extend(chunk.bands().map(|rows| {
                let y = results.of(chunk.weight, &rows);
                Band { rows: rows.start - chunk.rows.start..rows.end - chunk.rows.start, y }
            }));
            ends.push(bands.len());
            Shared {
                position,
                weight: chunk.weight,
                left: AtomicUsize::new(bands.len() - before),
                open: AtomicBool::new(false),
                loan: Mutex::new(None),
            }
        });
        let chunks: Vec<Shared<'_>> = chunks.collect();
        // Of lazy backends workers read by themselves, and each read that waits is one that the disk knows of.
        let workers = match stream.backend().depth() {
            0 => chunks.len(),
            _ => self.team.useful(bands.len()),
        };
        let region = Region {
            weights: self,
            stream,
            x,
            chunks,
            bands: Deal::divided(bands, ends),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        };
        let failure = Mutex::new(None);
        self.team.run(workers, |_| {
            if let Err(error) = region.work() {
                // Nobody takes another band: the region ends early.
                region.failed.store(true, Ordering::Relaxed);
                lock(&failure).get_or_insert(error);
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Multiplies rows of a matrix.
    fn multiply(&self, matrix: &Matrix, bytes: &[u8], x: &Acts, y: &mut [f32]) {
        let rows = QuantRows::new(matrix.format, matrix.cols, bytes).expect("whole rows");
        let began = Instant::now();
        matmul(self.isa, rows, x, y);
        self.computed.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// What the workers of a streamed group share.
struct Region<'a, 's, 'y> {
    weights: &'a StreamedWeights<'a>,
    stream: &'s Stream,
    x: &'a Acts,
    chunks: Vec<Shared<'s>>,
    /// A span for each chunk.
    bands: Deal<Band<'y>>,
    /// The next chunk to borrow.
    next: AtomicUsize,
    failed: AtomicBool,
}

impl<'s> Region<'_, 's, '_> {
    /// What one worker does, until nothing is left to take.
    fn work(&self) -> Result<()> {
        let mut from = 0; // chunks before are done, or others are at them
        loop {
            if self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.weights.cancelled() {
                return Err(Error::Interrupted);
            }
            let taken = self.next.load(Ordering::Relaxed).min(self.chunks.len());
            let has_bands =
                |i: &usize| self.bands.left(*i) > 0 && self.chunks[*i].open.load(Ordering::Acquire);
            if let Some(chunk) = (from..taken).find(has_bands) {
                self.help(chunk)?;
                continue;
            }
            while from < taken && self.bands.left(from) == 0 {
                from += 1;
            }
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= self.chunks.len() {
                return Ok(());
            }
            self.borrow(chunk)?;
        }
    }

    /// Borrows a chunk and multiplies those of its bands that no other worker takes.
    fn borrow(&self, index: usize) -> Result<()> {
        let chunk = &self.chunks[index];
        let loan = Arc::new(self.stream.loan(chunk.position)?);
        if self.bands.left(index) > 1 {
            *lock(&chunk.loan) = Some(Arc::clone(&loan));
            chunk.open.store(true, Ordering::Release);
            if self.next.load(Ordering::Relaxed) >= self.chunks.len() {
                // No other chunk is to be borrowed, so some may have left.
                self.weights.team.call_back();
            }
        }
        self.finish(index, loan, None)
    }

    /// Multiplies bands of a chunk that another worker has borrowed.
    fn help(&self, index: usize) -> Result<()> {
        let Some(band) = self.bands.take_front(index) else { return Ok(()) };
        // There until the last band is multiplied, and this one is not.
        let loan = lock(&self.chunks[index].loan).clone().expect("the loan of an open chunk");
        self.finish(index, loan, Some(band))
    }

    /// Multiplies bands until none is left. The last one to be multiplied takes the loan back from those who help; then the
    /// last of them to let go of it returns the chunk.
    fn finish(&self, index: usize, loan: Arc<Loan<'s>>, mut band: Option<Band<'_>>) -> Result<()> {
        let chunk = &self.chunks[index];
        let matrix = self.weights.table.get(chunk.weight);
        loop {
            let Some(Band { rows, y }) = band.take().or_else(|| self.bands.take_front(index)) else {
                return Ok(());
            };
            let bytes = &loan[rows.start * matrix.row_bytes..rows.end * matrix.row_bytes];
            self.weights.multiply(matrix, bytes, self.x, y);
            if chunk.left.fetch_sub(1, Ordering::AcqRel) == 1 && chunk.open.load(Ordering::Relaxed) {
                lock(&chunk.loan).take();
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if self.weights.cancelled() {
                return Err(Error::Interrupted);
            }
        }
    }
}

/// What is left of the results of a group: rows come in ascending order, so theirs are taken off the front.
struct Results<'a, 'y> {
    group: &'a [WeightId],
    left: Vec<&'y mut [f32]>,
    tokens: usize,
}

impl<'a, 'y> Results<'a, 'y> {
    fn new(group: &'a [WeightId], ys: &'y mut [&mut [f32]], tokens: usize) -> Self {
        Self { group, left: ys.iter_mut().map(|y| &mut **y).collect(), tokens }
    }

    /// Those of the next rows of this matrix.
    fn of(&mut self, weight: WeightId, rows: &Range<usize>) -> &'y mut [f32] {
        let which = self.group.iter().position(|w| *w == weight).expect("a matrix of this group");
        self.left[which].split_off_mut(..rows.len() * self.tokens).expect("results for every row")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;
    use sluice_kernels::{Format, quantise};
    use sluice_loader::{Faults, Memory};

    use super::*;
    use crate::plan::Cut;
    use crate::weights::Matrix;

    /// Far longer than any case takes: only a pass that is stuck gets here.
    const STUCK: Duration = Duration::from_secs(20);

    /// One random set of matrices and one way to stream them.
    #[derive(Clone, Debug)]
    struct Case {
        /// Per group its width in blocks of 32, and for each matrix its rows and file; the last group is the head.
        groups: Vec<(usize, Vec<(usize, u16)>)>,
        cut: Cut,
        /// Of every four chunks those whose bit is set stay.
        stays: u8,
        /// Reads ahead; 0 for lazy.
        depth: usize,
        tokens: usize,
        /// Kind of each pass and what was foreseen to follow it, which need not come.
        passes: Vec<(bool, Option<bool>)>,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let group = |count| (1..3usize, prop::collection::vec((1..70usize, 0..2u16), count));
        let groups = (prop::collection::vec(group(1..4), 1..4), group(1..2));
        let cut = (1..4000usize, 1..40usize, 1..4usize, any::<bool>());
        let passes = prop::collection::vec((any::<bool>(), any::<Option<bool>>()), 1..6);
        (groups, cut, 0..16u8, 0..4usize, 0..4usize, passes).prop_map(
            |((mut groups, head), cut, stays, depth, tokens, passes)| {
                groups.push(head);
                let (chunk_bytes, head_rows, workers, chunk_is_band) = cut;
                let cut = Cut { chunk_bytes, head_rows, workers, chunk_is_band };
                Case { groups, cut, stays, depth, tokens, passes }
            },
        )
    }

    fn kind(with_head: bool) -> PassKind {
        if with_head { PassKind::WithHead } else { PassKind::WithoutHead }
    }

    /// Matrices in two files, and what a pass over them is to give.
    struct World {
        table: Table,
        groups: Vec<Vec<WeightId>>,
        files: Vec<Vec<u8>>,
        isa: Isa,
    }

    impl World {
        /// Every other matrix is Q8_0, the rest F32.
        fn new(case: &Case) -> Self {
            let mut files = vec![vec![0; 5], vec![0; 77]]; // tensors need not be aligned
            let (mut matrices, mut groups) = (Vec::new(), Vec::new());
            for (blocks, members) in &case.groups {
                let cols = blocks * 32;
                let mut group = Vec::new();
                for &(rows, file) in members {
                    let id = matrices.len();
                    let format = if id.is_multiple_of(2) { Format::Q8_0 } else { Format::F32 };
                    let bytes = &mut files[usize::from(file)];
                    let matrix = Matrix::new("m", format, rows, cols, file, bytes.len() as u64);
                    for row in 0..rows {
                        let values: Vec<f32> =
                            (0..cols).map(|col| ((id * 31 + row * 7 + col * 3) % 19) as f32 - 9.0).collect();
                        let at = bytes.len();
                        bytes.resize(at + matrix.row_bytes, 0);
                        quantise(format, &values, &mut bytes[at..]);
                    }
                    matrices.push(matrix);
                    group.push(WeightId(id as u32));
                }
                groups.push(group);
            }
            Self { table: Table::new(matrices), groups, files, isa: Isa::scalar() }
        }

        fn weights(&self, case: &Case, memory: Arc<Memory>, cancel: &Arc<AtomicBool>) -> StreamedWeights<'_> {
            let all = &self.groups;
            let recorded = [all.clone(), all[..all.len() - 1].to_vec()];
            let head = all[all.len() - 1][0];
            let mut plan = Plan::new(&recorded, &self.table, head, &case.cut);
            let stays: Vec<bool> = (0..plan.chunks.len()).map(|i| case.stays >> (i % 4) & 1 == 1).collect();
            plan.keep(&stays);
            let schedule = plan.schedule(&self.table).expect("a valid schedule");
            let stream = Stream::new(memory, schedule, case.cut.workers).expect("slots");
            let team = Arc::new(Team::new(case.cut.workers).expect("threads"));
            StreamedWeights::new(&self.table, plan, stream, team, self.isa, Arc::clone(cancel))
        }

        fn memory(&self, depth: usize) -> Arc<Memory> {
            let memory = Memory::new(self.files.clone());
            Arc::new(if depth == 0 { memory } else { memory.eager(depth) })
        }

        /// Walks one pass and compares every product with that of the whole matrix.
        fn pass(
            &self,
            weights: &mut StreamedWeights<'_>,
            tokens: usize,
            kind: PassKind,
            next: Option<PassKind>,
        ) -> Result<()> {
            weights.begin(kind, next)?;
            let count = self.groups.len() - usize::from(kind == PassKind::WithoutHead);
            for group in &self.groups[..count] {
                let cols = self.table.get(group[0]).cols;
                let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 13) as f32 - 6.0).collect();
                let mut acts = Acts::new();
                acts.fill(&x, cols);
                let rows = |id: &WeightId| self.table.get(*id).rows;
                let mut ys: Vec<Vec<f32>> =
                    group.iter().map(|id| vec![f32::NAN; rows(id) * tokens]).collect();
                let mut parts: Vec<&mut [f32]> = ys.iter_mut().map(Vec::as_mut_slice).collect();
                weights.matmul(group, &mut acts, &mut parts)?;
                for (id, y) in group.iter().zip(&ys) {
                    let matrix = self.table.get(*id);
                    let range = matrix.bytes_of(0..matrix.rows);
                    let bytes = &self.files[usize::from(range.file.0)][range.offset as usize..][..range.len];
                    let whole = QuantRows::new(matrix.format, cols, bytes).expect("whole rows");
                    let mut wanted = vec![0.0; y.len()];
                    acts.prepare(self.isa, matrix.format);
                    matmul(self.isa, whole, &acts, &mut wanted);
                    assert_eq!(*y, wanted, "matrix {id:?}");
                }
            }
            Ok(())
        }
    }

    /// Runs `case` on a thread of its own, so that one that is stuck fails.
    fn in_time(case: impl FnOnce() + Send + 'static) {
        let (say, hear) = mpsc::channel();
        let runner = thread::spawn(move || {
            case();
            // Nobody listens any more when the time is up.
            let _ = say.send(());
        });
        if hear.recv_timeout(STUCK) == Err(mpsc::RecvTimeoutError::Timeout) {
            panic!("stuck");
        }
        if let Err(panic) = runner.join() {
            std::panic::resume_unwind(panic);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))] // each starts threads

        /// Chunks, bands, slots, files and what was foreseen do not show in the products.
        #[test]
        fn products_are_those_of_whole_matrices(case in cases()) {
            in_time(move || {
                let world = World::new(&case);
                let mut weights = world.weights(&case, world.memory(case.depth), &Arc::default());
                for &(with_head, next) in &case.passes {
                    world.pass(&mut weights, case.tokens, kind(with_head), next.map(kind)).expect("no faults");
                }
            });
        }

        /// A failing read ends the pass, on all workers, and after a rewind the next pass is whole.
        #[test]
        fn failing_reads_end_passes_and_no_more(case in cases(), seed: u64) {
            in_time(move || {
                let world = World::new(&case);
                let memory = world.memory(case.depth);
                let mut weights = world.weights(&case, memory.clone(), &Arc::default());
                memory.set_faults(Faults {
                    seed,
                    fail_one_in: 9,
                    delay: Duration::from_micros(30),
                    ..Faults::default()
                });
                for &(with_head, next) in &case.passes {
                    if let Err(error) = world.pass(&mut weights, case.tokens, kind(with_head), next.map(kind)) {
                        assert!(matches!(error, Error::Stream(_)), "{error}");
                        weights.rewind().expect("memory for slots");
                    }
                }
                memory.set_faults(Faults::default());
                weights.rewind().expect("memory for slots");
                for with_head in [true, false] {
                    world.pass(&mut weights, case.tokens, kind(with_head), None).expect("no more faults");
                }
            });
        }
    }

    /// The worker that sees the flag leaves its band's loan untaken, so that a chunk is never done; the others must
    /// come to an end nevertheless, with as few slots as there can be.
    #[test]
    fn an_interrupt_at_any_moment_leaves_nobody_waiting() {
        let matrices = |rows| vec![(rows, 0), (rows / 2, 1)];
        for (workers, depth, chunk_is_band) in [(2, 0, true), (3, 0, false), (2, 1, false), (3, 1, false)] {
            let case = Case {
                groups: vec![(1, matrices(64)), (2, matrices(40)), (1, vec![(64, 0)])],
                cut: Cut { chunk_bytes: 300, head_rows: 8, workers, chunk_is_band },
                stays: 0,
                depth,
                tokens: 2,
                passes: Vec::new(),
            };
            in_time(move || {
                let world = World::new(&case);
                let cancel = Arc::new(AtomicBool::new(false));
                let mut weights = world.weights(&case, world.memory(depth), &cancel);
                let mut interrupted = 0;
                for moment in 0..200u64 {
                    // Up before the first pass; later ones may be over before the thread has begun.
                    cancel.store(moment == 0, Ordering::Relaxed);
                    let outcome = thread::scope(|scope| {
                        scope.spawn(|| {
                            thread::sleep(Duration::from_micros(moment * 3));
                            cancel.store(true, Ordering::Relaxed);
                        });
                        world.pass(&mut weights, case.tokens, PassKind::WithHead, Some(PassKind::WithHead))
                    });
                    if let Err(error) = outcome {
                        assert!(matches!(error, Error::Interrupted), "{error}");
                        interrupted += 1;
                        weights.rewind().expect("memory for slots");
                    }
                }
                assert!(interrupted > 0, "the flag was to be seen");
                cancel.store(false, Ordering::Relaxed);
                world.pass(&mut weights, case.tokens, PassKind::WithHead, None).expect("the flag is down");
            });
        }
    }
}
