//! Running a matrix: every cell once per round, so that a slow minute does not fall on one of them.

use super::cells::{Budget, Cache, Cell, Engine, Table};
use super::child::{self, How};
use super::group::Groups;
use super::models::{self, Model};
use super::options::Options;
use super::presets::Preset;
use super::record::{Journal, Record, Repetition, Status};
use super::{cache, host, judge, peer, rates, report};
use crate::sh::{Result, cargo, command, run as sh_run, stdout, target_dir};
use crate::sluice::build;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// 9 and 12 tokens in the vocabularies of the smoke preset: whole groups of five and a rest.
const PROMPT: &str = "the same bits";

/// Seconds that the loader streams in a cell of its own: several passes over the files of the presets, and no model.
const LOADER_S: u32 = 2;

/// Runs a matrix, or goes on with one that was interrupted, and writes its report.
///
/// # Errors
/// When a cell failed or the logits of two cells differ; the record then holds the reason.
pub fn run(options: &Options) -> Result {
    let binary = match &options.binary {
        Some(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => build()?,
    };
    let has_budget = knows_budget(&binary)?;
    let mut tables = options.preset.tables(has_budget);
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
    let cells = chosen_cells(options, &tables, &found, has_budget);
    if options.list {
        cells.iter().for_each(|cell| println!("{cell}"));
        println!("{} cells, {} repetitions", cells.len(), options.reps);
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
    let described = host::describe(options, &binary, folder, has_budget, &cells)?;
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
        Runner {
            options,
            binary,
            has_budget,
            example,
            models: found,
            groups,
            disks: HashMap::new(),
            warmed: None,
            seconds: HashMap::new(),
            journal,
        }
        .rounds(&cells)?;
    }
    finish(options, &path)
}

/// The cells of the tables and of the peer that this machine and this program can have; says what is left out.
fn chosen_cells(options: &Options, tables: &[Table], models: &[Model], has_budget: bool) -> Vec<Cell> {
    let mut cells = Table::cells(tables, models);
    if !has_budget {
        let all = cells.len();
        cells.retain(|cell| !matches!(cell.budget, Budget::Percent(_)));
        if cells.len() < all {
            eprintln!(
                "this program has no --ram-budget: {} cells with percentages left out, min is --layers stream with a \
                 streamed head",
                all - cells.len()
            );
        }
    }
    if options.peer {
        match peer::version() {
            Ok(_) => cells.extend(peer::cells(&cells)),
            Err(_) => eprintln!("llama-cpp-python cannot be imported: no rows of it"),
        }
    }
    cells
}

/// Whether `sluice run` has the flag that a budget needs.
fn knows_budget(binary: &Path) -> Result<bool> {
    let mut help = command(&binary.to_string_lossy(), &["run", "--help"]);
    Ok(stdout(&mut help)?.contains("--ram-budget"))
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

struct Runner<'a> {
    options: &'a Options,
    binary: PathBuf,
    has_budget: bool,
    example: Option<PathBuf>,
    models: Vec<Model>,
    groups: Result<Groups>,
    /// How the disk is measured under each model; a file system may refuse.
    disks: HashMap<String, Result<rates::Disk>>,
    /// The model that this run has brought into the page cache.
    warmed: Option<String>,
    /// What cells have taken, everything included, for the estimate of the time left.
    seconds: HashMap<String, f64>,
    journal: Journal,
}

impl Runner<'_> {
    fn rounds(mut self, cells: &[Cell]) -> Result {
        let start = Instant::now();
        let mut digests = Digests::new();
        let mut given_up: Vec<String> = Vec::new();
        for old in self.journal.found.clone() {
            note_end(&old, &mut given_up);
            let cell = cells.iter().find(|cell| cell.to_string() == old.cell);
            if let (Some(cell), Some(digest), Status::Ok) = (cell, judge::digest(&old.report), old.status) {
                digests.entry((cell.model.clone(), cell.tokens)).or_insert((old.cell.clone(), digest.into()));
            }
        }
        if !self.journal.found.is_empty() {
            eprintln!("going on after {} runs", self.journal.found.len());
        }
        for round in 0..self.options.reps {
            let memory = self.memory_rates(cells);
            let ordered = order(cells, round);
            for (place, cell) in ordered.iter().enumerate() {
                let id = cell.to_string();
                let there = self.journal.found.iter().any(|old| old.cell == id && old.round == round);
                if there || given_up.contains(&id) {
                    continue;
                }
                let begin = Instant::now();
                let mut repetition = self.repetition(cell, round)?;
                repetition.memory_rate = memory.get(&cell.threads).copied();
                agree(cell, &mut repetition, &mut digests);
                self.journal.append(&repetition.to_json())?;
                self.seconds.insert(id, begin.elapsed().as_secs_f64());
                note_end(&repetition, &mut given_up);
                let later = self.options.reps - round - 1;
                self.progress(&repetition, &ordered[place + 1..], &ordered, later);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.journal.append(&json!({"kind": "end", "seconds": seconds}))
    }

    /// The memory's rate at each number of threads that cells have; none is needed where nobody looks at speed.
    fn memory_rates(&self, cells: &[Cell]) -> HashMap<u32, f64> {
        let timed = cells.iter().filter(|cell| cell.cache != Cache::Any);
        let mut threads: Vec<u32> = timed.map(|cell| cell.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.into_iter().map(|threads| (threads, rates::memory(threads))).collect()
    }

    /// Runs a cell once: its cache state is made, the disk measured, the program run and judged.
    fn repetition(&mut self, cell: &Cell, round: u32) -> Result<Repetition> {
        let mut repetition = Repetition {
            cell: cell.to_string(),
            round,
            status: Status::Skipped,
            reason: String::new(),
            wall_s: 0.0,
            disk_bytes: None,
            disk_rate: None,
            memory_rate: None,
            group_peak_bytes: None,
            report: Value::Null,
        };
        let model =
            self.models.iter().find(|model| model.name == cell.model).expect("cells are of these models");
        let model = model.clone();
        match self.prepare(cell, &model) {
            Ok(rate) => repetition.disk_rate = rate,
            Err(reason) => return Ok(Repetition { reason, ..repetition }),
        }
        let group = match (cell.limit, &self.groups) {
            (None, _) => None,
            (Some(limit), Ok(groups)) => Some(groups.make(limit)?),
            (Some(_), Err(reason)) => {
                return Ok(Repetition { reason: reason.clone(), ..repetition });
            }
        };
        let how = How {
            limit: self.options.timeout,
            group: group.as_ref(),
            delay_percent: self.options.delay_percent,
        };
        let done = child::run(self.command(cell, &model)?, how)?;
        repetition.wall_s = done.wall_s;
        repetition.disk_bytes = done.disk_bytes;
        repetition.group_peak_bytes = group.as_ref().and_then(|group| group.peak_bytes());
        match judge::outcome(cell, &done, group.as_ref().map_or(0, |group| group.killed())) {
            Ok(report) => (repetition.status, repetition.report) = (Status::Ok, report),
            Err((status, reason)) => {
                let path = model.path.to_string_lossy();
                (repetition.status, repetition.reason) = (status, reason.replace(&*path, &model.name));
            }
        }
        Ok(repetition)
    }

    /// Brings the page cache into the cell's state; for a cold one gives the disk's rate, measured before.
    fn prepare(&mut self, cell: &Cell, model: &Model) -> Result<Option<f64>> {
        match cell.cache {
            Cache::Any => Ok(None),
            Cache::Warm => {
                // Only what this run has read itself is known to lie in large folios.
                if self.warmed.as_ref() != Some(&model.name) || cache::is_warm(&model.path).is_err() {
                    self.warmed = None;
                    cache::warm(&model.path)?;
                    self.warmed = Some(model.name.clone());
                }
                Ok(None)
            }
            Cache::Cold => {
                self.warmed = None;
                if !self.disks.contains_key(&model.name) {
                    let disk = rates::Disk::calibrate(&model.path, self.example.as_deref());
                    let how = match &disk {
                        Ok(disk) => disk.how.clone(),
                        Err(reason) => reason.replace(&*model.path.to_string_lossy(), &model.name),
                    };
                    self.journal.append(&json!({"kind": "disk", "model": model.name, "how": how}))?;
                    self.disks.insert(model.name.clone(), disk);
                }
                let rate = self.disks[&model.name]
                    .as_ref()
                    .ok()
                    .map(|disk| disk.slice(rates::SLICE_S))
                    .transpose()?;
                cache::evict(&model.path)?;
                Ok(rate)
            }
        }
    }

    fn command(&self, cell: &Cell, model: &Model) -> Result<Command> {
        let (backend, direct) = cell.way.flags();
        match cell.engine {
            Engine::Peer => Ok(peer::command_for(cell, model, PROMPT)),
            Engine::Loader => {
                let example = self.example.as_ref().ok_or("the loader's example is not built")?;
                let mut stream = command(&example.to_string_lossy(), &[]);
                stream.arg(&model.path).arg("json").arg(format!("seconds={LOADER_S}"));
                stream.arg(format!("workers={}", cell.threads));
                stream.arg(format!("backend={backend}")).arg(format!("direct={direct}"));
                Ok(stream)
            }
            Engine::Sluice => {
                let mut sluice = command(&self.binary.to_string_lossy(), &["run"]);
                sluice.arg(&model.path).args(["-p", PROMPT, "--temp", "0", "--json"]);
                sluice.args(cell.flags(self.has_budget));
                if !cell.isa.is_empty() {
                    sluice.env("SLUICE_ISA", cell.isa);
                }
                Ok(sluice)
            }
        }
    }

    /// One line per run, or for the smoke preset one per failure.
    fn progress(&self, repetition: &Repetition, rest: &[&Cell], all: &[&Cell], later_rounds: u32) {
        if self.options.preset == Preset::Smoke && matches!(repetition.status, Status::Ok | Status::Skipped) {
            return;
        }
        let mean = self.seconds.values().sum::<f64>() / self.seconds.len().max(1) as f64;
        let cost = |cells: &[&Cell]| -> f64 {
            cells.iter().map(|cell| self.seconds.get(&cell.to_string()).copied().unwrap_or(mean)).sum()
        };
        let left = cost(rest) + f64::from(later_rounds) * cost(all);
        let what = match repetition.status {
            Status::Ok => {
                let number = |pointer, unit: f64| repetition.number(pointer).map(|value| value / unit);
                let speed = number("/timings/decode_tok_s", 1.0).map(|speed| format!("{speed:.2} tok/s"));
                let speed = speed.or_else(|| number("/gb_s", 1.0).map(|rate| format!("{rate:.2} GB/s")));
                let peak = number("/memory/peak_rss_bytes", 1e6).or_else(|| number("/vm_hwm_kb", 1e3));
                format!("{}, {:.1} MB", speed.unwrap_or_default(), peak.unwrap_or(0.0))
            }
            status => format!("{}: {}", status.word(), repetition.reason),
        };
        eprintln!("{:>5} left  {:<70} {what}", time(left), repetition.cell);
    }
}

/// The cells in the order of a round: warm ones together, so that a file is brought in once and not for each of them,
/// then the rest; each round begins at another place.
fn order(cells: &[Cell], round: u32) -> Vec<&Cell> {
    let (warm, cold): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(|cell| cell.cache == Cache::Warm);
    let mut warm = turned(warm, round);
    // Turning may have split a model's cells in two.
    warm.sort_by(|a, b| a.model.cmp(&b.model));
    warm.into_iter().chain(turned(cold, round)).collect()
}

/// By a third of the list per round.
fn turned(mut cells: Vec<&Cell>, round: u32) -> Vec<&Cell> {
    let turn = cells.len().div_ceil(3) * round as usize % cells.len().max(1);
    cells.rotate_left(turn);
    cells
}

/// By model and number of tokens the first cell and its digest.
type Digests = HashMap<(String, u32), (String, String)>;

/// Fails a repetition whose logits differ from those of the first cell of its model.
fn agree(cell: &Cell, repetition: &mut Repetition, digests: &mut Digests) {
    let Some(digest) = judge::digest(&repetition.report) else {
        return;
    };
    let first = digests.entry((cell.model.clone(), cell.tokens));
    let (other, wanted) = first.or_insert_with(|| (repetition.cell.clone(), digest.into()));
    if wanted != digest {
        repetition.status = Status::Failed;
        repetition.reason = format!("logits_digest {digest}, but {wanted} in: {other}");
    }
}

/// Remembers a cell that is not worth another try: it would take as long again, or be skipped for the same reason.
fn note_end(repetition: &Repetition, given_up: &mut Vec<String>) {
    if matches!(repetition.status, Status::TimedOut | Status::Killed | Status::Skipped) {
        given_up.push(repetition.cell.clone());
    }
}

fn time(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cells::{Way, tests};
    use crate::bench::record::tests::repetition;

    #[test]
    fn a_round_has_every_cell_once_and_the_warm_ones_together() {
        let table = Table {
            ways: vec![Way::Mmap, Way::Pread, Way::UringDirect],
            caches: vec![Cache::Cold, Cache::Warm],
            threads: vec![1, 2],
            ..tests::table()
        };
        let cells = Table::cells(&[table], &[tests::model()]);
        let rounds: Vec<Vec<String>> =
            (0..3).map(|round| order(&cells, round).iter().map(ToString::to_string).collect()).collect();
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), cells.len());
            assert!(round.iter().position(|id| id.contains("cold")) == Some(4), "{round:?}");
        }
        assert!(rounds[0] != rounds[1] && rounds[1] != rounds[2], "each begins elsewhere");
    }

    #[test]
    fn logits_that_differ_fail_the_second_cell() {
        let cell = Table::cells(&[tests::table()], &[tests::model()]).remove(0);
        let mut digests = Digests::new();
        let mut first = repetition("first", 0, 5.0);
        agree(&cell, &mut first, &mut digests);
        let mut second = repetition("second", 0, 5.0);
        second.report["logits_digest"] = "other".into();
        agree(&cell, &mut second, &mut digests);
        assert_eq!((first.status, second.status), (Status::Ok, Status::Failed));
        assert!(second.reason.contains("other") && second.reason.ends_with("first"), "{}", second.reason);
    }

    #[test]
    fn hopeless_cells_are_not_tried_again() {
        let mut given_up = Vec::new();
        for (name, status) in [("a", Status::Ok), ("b", Status::Failed), ("c", Status::TimedOut)] {
            note_end(&Repetition { status, ..repetition(name, 0, 1.0) }, &mut given_up);
        }
        assert_eq!(given_up, ["c"]);
        assert_eq!(time(125.4), "2:05");
    }
}
