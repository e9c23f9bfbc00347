//! From the order in which a forward pass asks for its matrices to the steps that the loader reads.
//!
//! The order is recorded, not written twice: the pass runs once over a [`Recorder`] with no tokens, and what it
//! asks for, in which groups, is the plan. Chunks (units of reading) and bands (units of work) are cut here.

use std::collections::HashMap;
use std::ops::Range;

use sluice_kernels::Acts;
use sluice_loader::{Schedule, Step};

use crate::error::{Error, Result};
use crate::weights::{Table, WeightId, Weights};

/// Kernels work on rows in groups; a chunk or band that is no multiple of this ends in a slower tail.
const ROW_GROUP: usize = 16;

/// Below this a band's lock and dispatch (about a microsecond) would show beside its arithmetic (16 KiB of
/// 4-bit weights take about that long per core).
const SMALLEST_BAND: usize = 16 << 10;

/// A band's weights should still be in the core's L2 after they were copied or mapped there: half of the 512 KiB
/// that even small cores have.
const LARGEST_BAND: usize = 256 << 10;

/// Bands per worker and group: with four, a worker that was held up costs the others at most an eighth or so
/// of the region.
const BANDS_PER_WORKER: usize = 4;

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

/// Which matrices stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Matrices of the layers stay.
    pub layers: bool,
    /// The output projection stays.
    pub head: bool,
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
        self.rows
            .clone()
            .step_by(self.band_rows)
            .map(|r| r..(r + self.band_rows).min(self.rows.end))
    }
}

/// Matrices that share their input, and where their chunks stand in the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The matrices, in the order they are asked for.
    pub weights: Vec<WeightId>,
    /// Steps of the pass, counted from its start.
    pub steps: Range<usize>,
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
    /// Cuts the groups of each kind of pass (as recorded) into chunks. `head` is the output projection.
    pub fn new(
        passes: &[Vec<Vec<WeightId>>],
        table: &Table,
        head: WeightId,
        cut: &Cut,
        residency: Residency,
    ) -> Self {
        let mut plan = Self {
            chunks: Vec::new(),
            passes: Vec::new(),
            resident: Vec::new(),
        };
        let mut cut_before: HashMap<WeightId, Range<u32>> = HashMap::new();
        for groups in passes {
            let mut pass = PassPlan::default();
            for weights in groups {
                let start = pass.steps.len();
                let bytes: usize = weights
                    .iter()
                    .map(|w| table.get(*w).row_bytes * table.get(*w).rows)
                    .sum();
                let band_bytes =
                    (bytes / (cut.workers * BANDS_PER_WORKER)).clamp(SMALLEST_BAND, LARGEST_BAND);
                for &weight in weights {
                    let chunks = cut_before.entry(weight).or_insert_with(|| {
                        plan.add_chunks(weight, table, weight == head, band_bytes, cut, residency)
                    });
                    pass.steps.extend(chunks.clone());
                }
                pass.groups.push(Group {
                    weights: weights.clone(),
                    steps: start..pass.steps.len(),
                });
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
        residency: Residency,
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
        let band_rows = whole_groups(band_bytes / matrix.row_bytes);
        let first = self.chunks.len() as u32;
        for start in (0..matrix.rows).step_by(rows) {
            let rows = start..(start + rows).min(matrix.rows);
            self.chunks.push(Chunk {
                weight,
                rows,
                band_rows,
            });
            self.resident.push(if is_head {
                residency.head
            } else {
                residency.layers
            });
        }
        first..self.chunks.len() as u32
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
                loans: chunk.bands().count() as u32,
                resident: *resident,
            })
            .collect();
        let passes = self.passes.iter().map(|p| p.steps.clone()).collect();
        Schedule::new(steps, passes).map_err(Error::from)
    }
}

/// `rows`, at least one, and a multiple of [`ROW_GROUP`] when there are that many.
fn whole_groups(rows: usize) -> usize {
    if rows >= ROW_GROUP {
        rows - rows % ROW_GROUP
    } else {
        rows.max(1)
    }
}
