//! In which ways the runs of several budgets read: those that read alike are measured once.

use std::sync::Arc;

use sluice_loader::Backend;

use super::{Planned, Work};
use crate::budget::settle::{Ground, Settled, settle};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::{BackendChoice, Direct, Options};
use crate::plan::Plan;

/// Chunks are cut to suit a budget or at their usual length, and copying is timed for each: this divides them. Direct reads of
/// either length differ by less than the disk does from one second to the next.
const SHORT_CHUNK: usize = 384 << 10;

/// How a run reads, and what.
#[derive(Clone, Copy)]
pub struct Run {
    /// Index into [`Ways`].
    pub way: usize,
    pub work: Work,
}

/// The runs at one budget; None where there is none.
pub struct Runs {
    /// The page cache holds what is streamed.
    pub warm: Option<Run>,
    /// Every streamed byte comes from the disk.
    pub cold: Option<Run>,
}

/// A way of reading, with one of the plans that use it.
pub struct Way {
    pub backend: Arc<dyn Backend>,
    pub plan: Plan,
    pub short: bool,
}

/// The ways of all runs so far, and what the plans begin from.
pub struct Ways<'m> {
    pub all: Vec<Way>,
    model: &'m Model,
    ground: Ground,
    /// Why something is not told, a line each.
    pub notes: Vec<String>,
}

impl<'m> Ways<'m> {
    pub fn new(model: &'m Model, options: &Options) -> Result<Self> {
        Ok(Self { all: Vec::new(), model, ground: Ground::now(model, options)?, notes: Vec::new() })
    }

    /// Plans a run with `options`. It is the one from the page cache or the one from the disk, or where nothing is streamed
    /// both; the other is planned beside it, if there is one.
    pub fn plan(&mut self, options: &Options) -> Result<(Planned, Runs)> {
        let asked = settle(self.model, options, &self.ground, None)?;
        let round_cache = asked.backend.direct();
        let (planned, run) = self.enter(asked)?;
        let stays = planned.streamed_bytes_per_pass == 0;
        let warm = match options.direct {
            Direct::On => None,
            _ if round_cache => self.run(options, Direct::Off)?,
            _ => Some(run),
        };
        let cold = match options.direct {
            Direct::On => Some(run),
            Direct::Off => None,
            // Where all stays, opening by itself is what a run does, and it maps.
            Direct::Auto if round_cache || stays => Some(run),
            Direct::Auto if options.backend == BackendChoice::Mmap => None,
            Direct::Auto => match self.run(options, Direct::On) {
                Err(Error::Stream(error)) => {
                    let line = format!("no speed from the disk is told: {error}");
                    if !self.notes.contains(&line) {
                        self.notes.push(line);
                    }
                    None
                }
                run => run?,
            },
        };
        Ok((planned, Runs { warm, cold }))
    }

    /// The run that reads otherwise than was asked; None when that would not keep to the budget.
    fn run(&mut self, options: &Options, direct: Direct) -> Result<Option<Run>> {
        match settle(self.model, &Options { direct, ..options.clone() }, &self.ground, None) {
            Err(Error::Budget(_)) => Ok(None),
            settled => Ok(Some(self.enter(settled?)?.1)),
        }
    }

    fn enter(&mut self, settled: Settled) -> Result<(Planned, Run)> {
        let Settled { backend, plan, batch, ledger, budget, notes, .. } = settled;
        let schedule = plan.schedule(&self.model.table)?;
        let work = Work {
            streamed: schedule.streamed_bytes(0),
            streamed_without_head: schedule.streamed_bytes(1),
            resident: schedule.resident_bytes(),
            batch: batch.max(1),
        };
        let planned = Planned {
            ledger,
            budget,
            resident_bytes: work.resident,
            streamed_bytes_per_pass: work.streamed,
            backend: backend.name(),
            notes,
        };
        let longest = schedule.steps().iter().map(|step| step.range.len).max().unwrap_or(0);
        let short = longest < SHORT_CHUNK && backend.depth() == 0;
        let key = |backend: &dyn Backend| (backend.name(), backend.direct());
        let found =
            self.all.iter().position(|way| key(&*way.backend) == key(&*backend) && way.short == short);
        let way = found.unwrap_or_else(|| {
            self.all.push(Way { backend, plan, short });
            self.all.len() - 1
        });
        Ok((planned, Run { way, work }))
    }
}
