//! Running cells: every one once per round, so that a slow minute does not fall on one of them.

use super::axes::{Cache, Engine};
use super::cells::Cell;
use super::child::{self, How};
use super::group::Groups;
use super::models::Model;
use super::options::Options;
use super::presets::Preset;
use super::record::{Journal, Repetition, Status};
use super::{cache, judge, peer, rates};
use crate::sh::{Result, command};
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// 9 and 12 tokens in the vocabularies of the smoke preset: whole groups of five and a rest.
const PROMPT: &str = "the same bits";

/// Seconds that the loader streams in a cell of its own: several passes over the files of the presets, and no model.
pub const LOADER_S: u32 = 2;

/// How often a run is tried again whose page cache was not what its cell says: somebody else has read the file, or the
/// kernel kept a few of its pages. What fails three times has another cause.
const TRIES: u32 = 3;

/// Age at which the memory's rate is measured again: it follows what other machines on the same host do, and takes 0.6 s.
const MEMORY_AGE: Duration = Duration::from_secs(60);

/// Runs cells and writes what they gave into a record.
pub struct Runner<'a> {
    options: &'a Options,
    binary: PathBuf,
    /// The loader's example, where a cell or the disk's rate wants it.
    example: Option<PathBuf>,
    models: Vec<Model>,
    groups: Result<Groups>,
    /// How the disk is measured under each model of cold cells; a file system may refuse.
    disks: HashMap<String, rates::Disk>,
    /// The model whose cold cell ended just now, and the disk's rate since then.
    disk_after: Option<(String, f64)>,
    /// The memory's rate by threads, and when it was measured.
    memory: HashMap<u32, (Instant, f64)>,
    /// The model that this run has brought into the page cache.
    warmed: Option<String>,
    /// What cells have taken, everything included, for the estimate of the time left.
    seconds: HashMap<String, f64>,
    journal: Journal,
}

impl<'a> Runner<'a> {
    /// Everything that cells need, found beforehand; `journal` may hold the beginning of the run.
    pub fn new(
        options: &'a Options,
        binary: PathBuf,
        example: Option<PathBuf>,
        models: Vec<Model>,
        groups: Result<Groups>,
        journal: Journal,
    ) -> Self {
        Self {
            options,
            binary,
            example,
            models,
            groups,
            disks: HashMap::new(),
            disk_after: None,
            memory: HashMap::new(),
            warmed: None,
            seconds: HashMap::new(),
            journal,
        }
    }

    /// Runs what the record does not hold yet, to the end.
    ///
    /// # Errors
    /// When something other than a cell fails: a program cannot be started, the record not be written.
    pub fn rounds(mut self, cells: &[Cell]) -> Result {
        let mut digests = Digests::new();
        let mut given_up: Vec<String> = Vec::new();
        let found = std::mem::take(&mut self.journal.found);
        for old in &found {
            note_end(old, &mut given_up);
            self.seconds.insert(old.cell.clone(), old.total_s);
            let cell = cells.iter().find(|cell| cell.to_string() == old.cell);
            if let (Some(cell), Some(digest), Status::Ok) = (cell, judge::digest(&old.report), old.status) {
                digests.entry((cell.model.clone(), cell.tokens)).or_insert((old.cell.clone(), digest.into()));
            }
        }
        if !found.is_empty() {
            eprintln!("going on after {} runs", found.len());
        }
        // An interrupted run has taken what its parts have.
        let mut seconds: f64 = found.iter().map(|old| old.total_s).sum();
        let begin = Instant::now();
        for model in self.models.clone() {
            if cells.iter().any(|cell| cell.cache == Cache::Cold && cell.model == model.name) {
                self.find_disk(&model)?;
            }
        }
        seconds += begin.elapsed().as_secs_f64();
        let rounds = cells.iter().map(|cell| cell.reps).max().unwrap_or(0);
        for round in 0..rounds {
            let ordered = order(cells, round);
            for (place, cell) in ordered.iter().enumerate() {
                let id = cell.to_string();
                if !is_left(&id, round, &found, &given_up) {
                    continue;
                }
                let begin = Instant::now();
                let mut repetition = self.repetition(cell, round)?;
                while repetition.status == Status::Spoilt && repetition.tries < TRIES {
                    eprintln!("            {id}: {}; once more", repetition.reason);
                    let tries = repetition.tries + 1;
                    repetition = Repetition { tries, ..self.repetition(cell, round)? };
                }
                agree(cell, &mut repetition, &mut digests);
                repetition.total_s = begin.elapsed().as_secs_f64();
                seconds += repetition.total_s;
                self.journal.append(&repetition.to_json())?;
                self.seconds.insert(id, repetition.total_s);
                note_end(&repetition, &mut given_up);
                let now = ordered[place + 1..].iter().map(|cell| (round, *cell));
                let later = (round + 1..rounds)
                    .flat_map(|round| order(cells, round).into_iter().map(move |cell| (round, cell)));
                let left = now.chain(later).map(|(round, cell)| {
                    let id = cell.to_string();
                    if is_left(&id, round, &found, &given_up) { self.cost(&id, cell) } else { 0.0 }
                });
                self.progress(&repetition, left.sum());
            }
        }
        self.journal.append(&json!({"kind": "end", "seconds": seconds}))
    }

    /// Runs a cell once: its cache state is made, disk and memory measured, the program run and judged.
    fn repetition(&mut self, cell: &Cell, round: u32) -> Result<Repetition> {
        let mut repetition = Repetition::skipped(cell.to_string(), round);
        let model =
            self.models.iter().find(|model| model.name == cell.model).expect("cells are of these models");
        let model = model.clone();
        // None is needed where nobody looks at speed.
        repetition.memory_rate = (cell.cache != Cache::Any).then(|| self.memory_rate(cell.threads));
        let before = self.disk_rate(cell, &model)?;
        // A path of this machine has no place in a record.
        let named = |reason: &str| reason.replace(&*model.path.to_string_lossy(), &model.name);
        if let Err(reason) = self.make_cache_state(cell, &model) {
            let reason = named(&reason);
            return Ok(Repetition { status: Status::Spoilt, reason, ..repetition });
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
            Err((status, reason)) => (repetition.status, repetition.reason) = (status, named(&reason)),
        }
        drop(group);
        if let Some(before) = before {
            let after = self.disk_rate(cell, &model)?;
            self.disk_after = after.map(|rate| (model.name.clone(), rate));
            repetition.disk_rate = after.map(|after| f64::midpoint(before, after));
        }
        Ok(repetition)
    }

    /// The memory's rate at so many threads, not long ago.
    fn memory_rate(&mut self, threads: u32) -> f64 {
        match self.memory.get(&threads) {
            Some((when, rate)) if when.elapsed() < MEMORY_AGE => *rate,
            _ => {
                let rate = rates::memory(threads);
                self.memory.insert(threads, (Instant::now(), rate));
                rate
            }
        }
    }

    /// The disk's rate now, for a cold cell, where it can be measured.
    fn disk_rate(&mut self, cell: &Cell, model: &Model) -> Result<Option<f64>> {
        let last = self.disk_after.take();
        if cell.cache != Cache::Cold {
            return Ok(None);
        }
        if let Some((name, rate)) = last
            && name == model.name
        {
            return Ok(Some(rate));
        }
        let disk = self.disks.get(&model.name);
        disk.map(|disk| disk.slice(rates::slice_s(model.bytes))).transpose()
    }

    /// Finds how to measure the disk under a model: as the record has it, or by trying, which it then notes.
    fn find_disk(&mut self, model: &Model) -> Result {
        let example = self.example()?;
        let known = self.journal.disks.iter().find(|line| line["model"] == *model.name);
        if let Some(disk) = known.and_then(|line| rates::Disk::from_json(&model.path, example, line)) {
            self.disks.insert(model.name.clone(), disk);
            return Ok(());
        }
        eprintln!("            {}: trying what reads the disk fastest, a minute", model.name);
        let disk = rates::Disk::calibrate(&model.path, example);
        let mut line = match &disk {
            Ok(disk) => disk.to_json(),
            Err(reason) => json!({"how": reason.replace(&*model.path.to_string_lossy(), &model.name)}),
        };
        line["kind"] = "disk".into();
        line["model"] = model.name.clone().into();
        self.journal.append(&line)?;
        self.disks.extend(disk.ok().map(|disk| (model.name.clone(), disk)));
        Ok(())
    }

    /// Brings the page cache into the cell's state.
    fn make_cache_state(&mut self, cell: &Cell, model: &Model) -> Result {
        match cell.cache {
            Cache::Any => Ok(()),
            Cache::Warm => {
                // Only what this run has read itself is known to lie in large folios.
                if self.warmed.as_ref() != Some(&model.name) || cache::is_warm(&model.path).is_err() {
                    self.warmed = None;
                    cache::warm(&model.path)?;
                    self.warmed = Some(model.name.clone());
                }
                Ok(())
            }
            Cache::Cold => {
                self.warmed = None;
                cache::evict(&model.path)
            }
        }
    }

    fn example(&self) -> Result<&Path> {
        self.example.as_deref().ok_or_else(|| "the loader's example is not built".into())
    }

    fn command(&self, cell: &Cell, model: &Model) -> Result<Command> {
        let (backend, direct) = cell.way.flags();
        match cell.engine {
            Engine::Peer => Ok(peer::command_for(cell, model, PROMPT)),
            Engine::Loader => {
                let mut stream = command(&self.example()?.to_string_lossy(), &[]);
                stream.arg(&model.path).arg("json").arg(format!("seconds={LOADER_S}"));
                stream.arg(format!("workers={}", cell.threads));
                stream.arg(format!("backend={backend}")).arg(format!("direct={direct}"));
                Ok(stream)
            }
            Engine::Sluice => {
                let mut sluice = command(&self.binary.to_string_lossy(), &["run"]);
                sluice.arg(&model.path).args(["-p", PROMPT, "--temp", "0", "--json"]);
                sluice.args(cell.flags());
                if !cell.isa.is_empty() {
                    sluice.env("SLUICE_ISA", cell.isa);
                }
                Ok(sluice)
            }
        }
    }

    /// Seconds that a run of a cell takes: as the last time, or by a guess.
    fn cost(&self, id: &str, cell: &Cell) -> f64 {
        self.seconds.get(id).copied().unwrap_or(cell.seconds())
    }

    /// One line per run, or for the smoke preset one per failure.
    fn progress(&self, repetition: &Repetition, seconds_left: f64) {
        if self.options.preset == Preset::Smoke && matches!(repetition.status, Status::Ok | Status::Skipped) {
            return;
        }
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
        eprintln!("{:>5} left  {:<70} {what}", time(seconds_left), repetition.cell);
    }
}

/// The cells that a round has, in its order: warm ones together, so that a file is brought in once and not for each of
/// them, then the rest; each round begins at another place.
fn order(cells: &[Cell], round: u32) -> Vec<&Cell> {
    let here = cells.iter().filter(|cell| round < cell.reps);
    let (warm, cold): (Vec<&Cell>, Vec<&Cell>) = here.partition(|cell| cell.cache == Cache::Warm);
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

/// Whether a repetition is neither in the record nor hopeless.
fn is_left(id: &str, round: u32, found: &[Repetition], given_up: &[String]) -> bool {
    let there = found.iter().any(|old| old.cell == id && old.round == round);
    !there && given_up.iter().all(|cell| cell != id)
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
    use crate::bench::axes::Way;
    use crate::bench::cells::{Table, tests};
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
        assert!(order(&cells, tests::table().reps).is_empty(), "no more rounds than repetitions");
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
        let found = [repetition("a", 0, 1.0)];
        let left = |id, round| is_left(id, round, &found, &given_up);
        assert!(!left("a", 0) && left("a", 1) && left("b", 0) && !left("c", 1));
        assert_eq!(time(125.4), "2:05");
    }
}
