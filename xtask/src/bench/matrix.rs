//! A matrix from its flags to its report.

use super::axes::{Cache, Engine};
use super::cells::{Cell, Table};
use super::group::Groups;
use super::models::{self, Model};
use super::options::Options;
use super::presets::Preset;
use super::record::{Journal, Record, Repetition, Status};
use super::runner::Runner;
use super::{host, peer, report};
use crate::sh::{Result, cargo, run as sh_run, target_dir};
use crate::sluice::build;
use std::path::{Path, PathBuf};

/// Runs a matrix, or goes on with one that was interrupted, and writes its report.
///
/// # Errors
/// When a cell failed or the logits of two cells differ; the record then holds the reason.
pub fn run(options: &Options) -> Result {
    let binary = match &options.binary {
        Some(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => build()?,
    };
    let mut tables = options.preset.tables();
    options.apply(&mut tables);
    let mut found: Vec<Model> = Vec::new();
    for table in &mut tables {
        for name in &mut table.models {
            // What was given as a file is called by less than its path from here on, also in the other tables.
            let model = models::find(name)?;
            name.clone_from(&model.name);
            if found.iter().all(|other| other.name != model.name) {
                found.push(model);
            }
        }
    }
    let cells = chosen_cells(options, &tables, &found);
    if options.list {
        cells.iter().for_each(|cell| println!("{cell}"));
        let runs: u32 = cells.iter().map(|cell| cell.reps).sum();
        let minutes = cells.iter().map(|cell| f64::from(cell.reps) * cell.seconds()).sum::<f64>() / 60.0;
        println!("{} cells, {runs} runs: some {minutes:.0} minutes", cells.len());
        return Ok(());
    }
    if cells.is_empty() {
        return Err("no cell is left: every combination of these axes is impossible here".into());
    }
    let path = match &options.out {
        Some(path) => path.clone(),
        None if options.preset == Preset::Smoke => target_dir()?.join("bench/smoke.jsonl"),
        None => crate::sh::root().join(format!("bench/record/{}.jsonl", options.preset.name())),
    };
    let folder = found.first().and_then(|model| model.path.parent()).unwrap_or(Path::new("/"));
    let described = host::describe(options, &binary, folder, &cells)?;
    let fresh = options.fresh || (options.preset == Preset::Smoke && options.out.is_none());
    let journal = Journal::open(&path, &described, fresh)?;
    if journal.complete {
        println!("{}: this run is complete already; --fresh measures again", path.display());
    } else {
        // A group is only tried where one is needed.
        let contained = cells.iter().any(|cell| cell.limit.is_some());
        let groups = if contained { Groups::find() } else { Err("no cell wants a container".into()) };
        let wanted = |cell: &Cell| cell.engine == Engine::Loader || cell.cache == Cache::Cold;
        let example = cells.iter().any(wanted).then(build_example).transpose()?;
        Runner::new(options, binary, example, found, groups, journal).rounds(&cells)?;
    }
    finish(options, &path)
}

/// The cells of the tables, and those of the peer where it is asked for and there.
fn chosen_cells(options: &Options, tables: &[Table], models: &[Model]) -> Vec<Cell> {
    let mut cells = Table::cells(tables, models);
    if options.peer {
        match peer::version() {
            Ok(version) => {
                let of_peer = peer::cells(&cells);
                eprintln!("llama-cpp-python {version}: {} cells", of_peer.len());
                cells.extend(of_peer);
            }
            // The last line of what Python says is the reason.
            Err(said) => {
                eprintln!("no rows of llama-cpp-python: {}", said.lines().last().unwrap_or_default());
            }
        }
    }
    cells
}

fn build_example() -> Result<PathBuf> {
    sh_run(&mut cargo("build --release --package sluice-loader --example stream"))?;
    Ok(target_dir()?.join("release/examples/stream"))
}

/// The report of a run, its pictures, and the verdict.
fn finish(options: &Options, path: &Path) -> Result {
    let record = Record::read(path)?;
    let failed: Vec<&Repetition> =
        record.repetitions.iter().filter(|r| !matches!(r.status, Status::Ok | Status::Skipped)).collect();
    let skipped = record.repetitions.iter().filter(|r| r.status == Status::Skipped);
    let mut reasons: Vec<&str> = skipped.map(|r| r.reason.as_str()).collect();
    reasons.sort_unstable();
    for same in reasons.chunk_by(|a, b| a == b) {
        println!("skipped {} runs: {}", same.len(), same[0]);
    }
    if options.preset == Preset::Smoke {
        println!("{} runs, {} failed: {}", record.repetitions.len(), failed.len(), path.display());
    } else {
        println!("report: {}", report::write(path)?.display());
    }
    match failed[..] {
        [] => Ok(()),
        // What other programs cannot do is a result, not a fault.
        _ if failed.iter().all(|r| r.cell.contains(" llama-cpp-python ")) => Ok(()),
        [first, ..] => {
            Err(format!("{} runs failed, the first: {}: {}", failed.len(), first.cell, first.reason))
        }
    }
}
