//! In which ways the runs of several budgets read: those that read alike are measured once.

use std::sync::Arc;

use sluice_loader::Backend;

use super::Work;
use crate::budget::settle::{Settled, settle};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::{BackendChoice, Direct, Options};
use crate::plan::Plan;

/// Chunks are cut to suit a budget or at their usual length, and copying is timed for each: this divides them. Direct reads of
/// either length differ by less than the disk does from one second to the next.
const SHORT_CHUNK: usize = 384 << 10;

/// How a run reads, and what.
pub struct Run {
    /// Index into [`Ways`].
    pub way: usize,
    pub work: Work,
}

/// A way of reading, with one of the plans that use it.
pub struct Way {
    pub backend: Arc<dyn Backend>,
    pub plan: Plan,
    pub short: bool,
}

#[derive(Default)]
pub struct Ways {
    pub all: Vec<Way>,
}

impl Ways {
    /// The run when the page cache holds what is streamed.
    pub fn warm(&mut self, model: &Model, options: &Options) -> Result<Option<Run>> {
        if options.direct == Direct::On {
            return Ok(None);
        }
        self.run(model, &Options { direct: Direct::Off, ..options.clone() })
    }

    /// The run when every streamed byte comes from the disk.
    pub fn cold(&mut self, model: &Model, options: &Options, notes: &mut Vec<String>) -> Result<Option<Run>> {
        // Where all stays, opening by itself is what a run does, and it maps.
        if options.direct == Direct::Auto {
            let settled = match settle(model, options, None) {
                Err(Error::Budget(_)) => return Ok(None),
                settled => settled?,
            };
            if settled.plan.schedule(&model.table)?.streamed_bytes(0) == 0 {
                return self.enter(model, settled).map(Some);
            }
        }
        if options.direct == Direct::Off || options.backend == BackendChoice::Mmap {
            return Ok(None);
        }
        match self.run(model, &Options { direct: Direct::On, ..options.clone() }) {
            Err(Error::Stream(error)) if options.direct == Direct::Auto => {
                let line = format!("no speed from the disk is told: {error}");
                if !notes.contains(&line) {
                    notes.push(line);
                }
                Ok(None)
            }
            run => run,
        }
    }

    fn run(&mut self, model: &Model, options: &Options) -> Result<Option<Run>> {
        match settle(model, options, None) {
            Err(Error::Budget(_)) => Ok(None),
            settled => self.enter(model, settled?).map(Some),
        }
    }

    fn enter(&mut self, model: &Model, settled: Settled) -> Result<Run> {
        let Settled { backend, plan, batch, .. } = settled;
        let schedule = plan.schedule(&model.table)?;
        let work = Work {
            streamed: schedule.streamed_bytes(0),
            streamed_without_head: schedule.streamed_bytes(1),
            resident: schedule.resident_bytes(),
            batch: batch.max(1),
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
        Ok(Run { way, work })
    }
}
