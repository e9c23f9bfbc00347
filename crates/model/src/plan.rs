//! From the order in which a forward pass asks for its matrices to the steps that the loader reads.
//!
//! The order is recorded, not written twice: the pass runs once over a [`Recorder`] with no tokens, and what it
//! asks for, in which groups, is the plan. Chunks (units of reading) and bands (units of work) are cut here.

use std::collections::HashMap;
use std::ops::Range;

use sluice_kernels::Acts;
use sluice_loader::{Schedule, Step};

use crate::error::{Error, Result};
use crate::shares::ROW_GROUP;
use crate::weights::{Table, WeightId, Weights};

/// A loan and its return take 0.3 to 0.5 µs as measured, and 16 KiB of weights half a
/// microsecond at the speed of memory: smaller bands would cost more to hand out than to multiply.
const SMALLEST_BAND: usize = 16 << 10;

/// Kernels ask for the next rows ahead of time, and that is in vain at the end of a band, whose successor is another
/// worker's: longer bands lose less. Against 256 KiB this was worth 25 % of decode speed through mmap, and nothing either way for copies, which still fit the L2 of current cores.
const LARGEST_BAND: usize = 1 << 20;

/// Bands per worker and group: with four, a worker that was held up costs the others at most an eighth or so
/// of the region.
const BANDS_PER_WORKER: usize = 4;

/// Bands in a group at most, however many workers there are: what is taken per band is bounded for a token, and with more
/// workers than 32 each still gets some.
const BANDS_PER_GROUP: usize = 128;

/// Bands in a chunk at most: workers that help with a chunk take its loan from one another, with a lock each time.
pub const BANDS_PER_CHUNK: usize = 8;

/// Notes the groups that a pass asks for and computes nothing.
#[derive(Debug, Default)]
pub struct Recorder {
    groups: Vec<Vec<WeightId>>,
}

impl Recorder {
    /// The groups in the order they were asked for.
    pub fn into_groups(self) -> Vec<Vec<WeightId>> {
        self.groups
    }
}

impl Weights for Recorder {
    fn matmul(&mut self, group: &[WeightId], _x: &mut Acts, _ys: &mut [&mut [f32]]) -> Result<()> {
        self.groups.push(group.to_vec());
        Ok(())
    }
}

/// How matrices are cut into chunks and bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Most bytes in a chunk; a chunk has at least one row whatever this says.
    pub chunk_bytes: usize,
    /// Most rows in a chunk of the head.
    pub head_rows: usize,
    /// Workers that share a group.
    pub workers: usize,
    /// The worker that takes a chunk also reads it, so a chunk is one band (lazy backends).
    pub chunk_is_band: bool,
}

/// One chunk of a matrix, one step of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which matrix.
    pub weight: WeightId,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// Rows in each band; the last may have fewer.
    pub band_rows: usize,
}

impl Chunk {
    /// The bands of this chunk as ranges of the matrix's rows.
    pub fn bands(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.rows.clone().step_by(self.band_rows).map(|r| r..(r + self.band_rows).min(self.rows.end))
    }
}

/// Matrices that share their input, and where their chunks stand in the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The matrices, in the order they are asked for.
    pub weights: Vec<WeightId>,
    /// Steps of the pass, counted from its start.
    pub steps: Range<usize>,
    /// All of its chunks stay in memory.
    pub resident: bool,
}

/// What one kind of pass asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassPlan {
    /// Groups in order.
    pub groups: Vec<Group>,
    /// Chunk of each step, as indices into [`Plan::chunks`].
    pub steps: Vec<u32>,
}

/// The steps of every kind of pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Every chunk once.
    pub chunks: Vec<Chunk>,
    /// By kind.
    pub passes: Vec<PassPlan>,
    resident: Vec<bool>,
}

impl Plan {
    /// Cuts the groups of each kind of pass (as recorded) into chunks, all of them streamed. `head` is the output projection.
    pub fn new(passes: &[Vec<Vec<WeightId>>], table: &Table, head: WeightId, cut: &Cut) -> Self {
        let mut plan = Self { chunks: Vec::new(), passes: Vec::new(), resident: Vec::new() };
        let mut cut_before: HashMap<WeightId, Range<u32>> = HashMap::new();
        for groups in passes {
            let mut pass = PassPlan::default();
            for weights in groups {
                let start = pass.steps.len();
                let bytes: usize = weights.iter().map(|w| table.get(*w).row_bytes * table.get(*w).rows).sum();
                let bands = cut.workers.saturating_mul(BANDS_PER_WORKER).min(BANDS_PER_GROUP);
                let band_bytes = (bytes / bands).clamp(SMALLEST_BAND, LARGEST_BAND);
                for &weight in weights {
                    let chunks = cut_before
                        .entry(weight)
                        .or_insert_with(|| plan.add_chunks(weight, table, weight == head, band_bytes, cut));
                    pass.steps.extend(chunks.clone());
                }
                let steps = start..pass.steps.len();
                pass.groups.push(Group { weights: weights.clone(), steps, resident: false });
            }
            plan.passes.push(pass);
        }
        plan
    }

    fn add_chunks(
        &mut self,
        weight: WeightId,
        table: &Table,
        is_head: bool,
        band_bytes: usize,
        cut: &Cut,
    ) -> Range<u32> {
        let matrix = table.get(weight);
        let mut chunk_bytes = cut.chunk_bytes;
        if cut.chunk_is_band {
            chunk_bytes = chunk_bytes.min(band_bytes);
        }
        let mut rows = whole_groups(chunk_bytes / matrix.row_bytes);
        if is_head {
            rows = rows.min(cut.head_rows);
        }
        let most = rows.min(matrix.rows).div_ceil(BANDS_PER_CHUNK).next_multiple_of(ROW_GROUP);
        let band_rows =
            whole_groups(band_bytes / matrix.row_bytes).max(if rows < ROW_GROUP { 1 } else { most });
        let first = self.chunks.len() as u32;
        for start in (0..matrix.rows).step_by(rows) {
            let rows = start..(start + rows).min(matrix.rows);
            self.chunks.push(Chunk { weight, rows, band_rows });
            self.resident.push(false);
        }
        first..self.chunks.len() as u32
    }

    /// Says of every chunk whether it stays in memory.
    ///
    /// # Panics
    /// When `stays` is of another length than the chunks.
    pub fn keep(&mut self, stays: &[bool]) {
        assert_eq!(stays.len(), self.chunks.len(), "a word for every chunk");
        self.resident = stays.to_vec();
        for pass in &mut self.passes {
            for group in &mut pass.groups {
                group.resident = pass.steps[group.steps.clone()].iter().all(|chunk| stays[*chunk as usize]);
            }
        }
    }

    /// The plan of the groups in `passes` alone, and of those of their chunks that are `wanted`: a part of the model that runs
    /// by itself. All of it is streamed.
    pub fn part(&self, passes: &[Vec<Vec<WeightId>>], wanted: impl Fn(&Chunk) -> bool) -> Self {
        let mut part = Self { chunks: Vec::new(), passes: Vec::new(), resident: Vec::new() };
        let mut taken: HashMap<u32, u32> = HashMap::new();
        for (groups, whole) in passes.iter().zip(&self.passes) {
            let mut pass = PassPlan::default();
            for weights in groups {
                let start = pass.steps.len();
                let group = whole.groups.iter().find(|group| group.weights == *weights);
                let steps = group.map_or(&[][..], |group| &whole.steps[group.steps.clone()]);
                for &step in steps {
                    let chunk = &self.chunks[step as usize];
                    if wanted(chunk) {
                        let new = *taken.entry(step).or_insert(part.chunks.len() as u32);
                        if new as usize == part.chunks.len() {
                            part.chunks.push(chunk.clone());
                            part.resident.push(false);
                        }
                        pass.steps.push(new);
                    }
                }
                let steps = start..pass.steps.len();
                pass.groups.push(Group { weights: weights.clone(), steps, resident: false });
            }
            part.passes.push(pass);
        }
        part
    }

    /// The loader's view: byte ranges and how often each is borrowed.
    ///
    /// # Errors
    /// When the loader refuses the schedule.
    pub fn schedule(&self, table: &Table) -> Result<Schedule> {
        let steps = self
            .chunks
            .iter()
            .zip(&self.resident)
            .map(|(chunk, resident)| Step {
                range: table.get(chunk.weight).bytes_of(chunk.rows.clone()),
                loans: 1, // whoever takes it lends it to who helps
                resident: *resident,
            })
            .collect();
        let passes = self.passes.iter().map(|p| p.steps.clone()).collect();
        Schedule::new(steps, passes).map_err(Error::from)
    }
}

/// `rows`, at least one, and a multiple of [`ROW_GROUP`] when there are that many.
fn whole_groups(rows: usize) -> usize {
    if rows >= ROW_GROUP { rows - rows % ROW_GROUP } else { rows.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Matrix;
    use proptest::prelude::*;
    use sluice_kernels::Format;

    /// A table of matrices `rows` × 256 in Q4_K (144 bytes a row), one behind the other.
    fn table(rows: &[usize]) -> Table {
        let mut offset = 4096;
        let matrices = rows.iter().map(|&rows| {
            let matrix = Matrix::new("m", Format::Q4_K, rows, 256, 0, offset);
            offset += (rows * matrix.row_bytes) as u64;
            matrix
        });
        Table::new(matrices.collect())
    }

    fn ids(count: usize) -> Vec<WeightId> {
        (0..count as u32).map(WeightId).collect()
    }

    proptest! {
        /// Chunks cover every row once and in order, bands cover every chunk, and limits are kept.
        #[test]
        fn chunks_and_bands_cover_all_rows(
            rows in proptest::collection::vec(1usize..3000, 1..6),
            chunk_bytes in 1usize..400_000,
            head_rows in 1usize..2000,
            workers in 1usize..5,
            chunk_is_band: bool,
        ) {
            let table = table(&rows);
            let all = ids(rows.len());
            let head = *all.last().expect("at least one matrix");
            let cut = Cut { chunk_bytes, head_rows, workers, chunk_is_band };
            let groups: Vec<Vec<WeightId>> = all.chunks(2).map(<[_]>::to_vec).collect();
            let plan = Plan::new(std::slice::from_ref(&groups), &table, head, &cut);
            let pass = &plan.passes[0];
            let mut step = 0;
            for (group, weights) in pass.groups.iter().zip(&groups) {
                prop_assert_eq!(&group.weights, weights);
                prop_assert_eq!(group.steps.start, step);
                for weight in weights {
                    let mut next = 0;
                    while next < table.get(*weight).rows {
                        let chunk = &plan.chunks[pass.steps[step] as usize];
                        prop_assert_eq!((chunk.weight, chunk.rows.start), (*weight, next));
                        let count = chunk.rows.len();
                        prop_assert!(count == 1 || count * 144 <= chunk_bytes);
                        prop_assert!(*weight != head || count <= head_rows);
                        let full = chunk.rows.end < table.get(*weight).rows;
                        prop_assert!(!full || count < ROW_GROUP || count.is_multiple_of(ROW_GROUP) || *weight == head);
                        let bands: Vec<_> = chunk.bands().collect();
                        prop_assert!(!chunk_is_band || bands.len() == 1);
                        prop_assert_eq!(bands[0].start, chunk.rows.start);
                        prop_assert!(bands.windows(2).all(|b| b[0].end == b[1].start));
                        prop_assert_eq!(bands[bands.len() - 1].end, chunk.rows.end);
                        next = chunk.rows.end;
                        step += 1;
                    }
                    prop_assert_eq!(next, table.get(*weight).rows);
                }
                prop_assert_eq!(group.steps.end, step);
            }
            prop_assert_eq!(step, pass.steps.len());
            let schedule = plan.schedule(&table).expect("a valid schedule");
            let bytes: usize = rows.iter().map(|r| r * 144).sum();
            prop_assert_eq!(schedule.streamed_bytes(0), bytes as u64);
        }
    }

    #[test]
    fn a_part_has_the_chunks_of_its_groups_that_are_wanted() {
        let table = table(&[500, 400, 300]);
        let [first, second, head] = [0, 1, 2].map(WeightId);
        let cut = Cut { chunk_bytes: 20_000, head_rows: 64, workers: 2, chunk_is_band: false };
        let layers = vec![vec![first], vec![second]];
        let passes = [[layers.clone(), vec![vec![head]]].concat(), layers];
        let plan = Plan::new(&passes, &table, head, &cut);
        let wanted = [vec![vec![second], vec![head]], vec![vec![second]]];
        let part = plan.part(&wanted, |chunk| chunk.weight != head || chunk.rows.end <= 128);
        let rows = |id| -> Vec<Range<usize>> {
            part.chunks.iter().filter(|c| c.weight == id).map(|c| c.rows.clone()).collect()
        };
        assert!(rows(first).is_empty());
        assert_eq!(rows(head), [0..64, 64..128]);
        assert_eq!(rows(second).iter().map(Range::len).sum::<usize>(), 400);
        let [with_head, without] = &part.passes[..] else { panic!("two kinds") };
        assert_eq!(with_head.steps[..without.steps.len()], without.steps[..]);
        let schedule = part.schedule(&table).expect("a valid schedule");
        assert_eq!((schedule.streamed_bytes(0), schedule.streamed_bytes(1)), (528 * 144, 400 * 144));
    }

    #[test]
    fn a_matrix_in_two_kinds_of_pass_has_one_set_of_chunks() {
        let table = table(&[500, 300]);
        let [layer, head] = [WeightId(0), WeightId(1)];
        let cut = Cut { chunk_bytes: 20_000, head_rows: 1024, workers: 2, chunk_is_band: false };
        let mut plan = Plan::new(&[vec![vec![layer], vec![head]], vec![vec![layer]]], &table, head, &cut);
        let stays: Vec<bool> = plan.chunks.iter().map(|chunk| chunk.weight == layer).collect();
        plan.keep(&stays);
        let [with_head, without] = &plan.passes[..] else { panic!("two kinds") };
        assert_eq!(with_head.steps[..without.steps.len()], without.steps[..]);
        let schedule = plan.schedule(&table).expect("a valid schedule");
        assert_eq!(schedule.resident_bytes(), 500 * 144);
        assert_eq!((schedule.streamed_bytes(0), schedule.streamed_bytes(1)), (300 * 144, 0));
        let resident = |pass: usize| plan.passes[pass].groups.iter().map(|g| g.resident).collect::<Vec<_>>();
        assert_eq!((resident(0), resident(1)), (vec![true, false], vec![true]));
    }
}
