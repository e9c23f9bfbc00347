//! Records: one JSON document per line, the run first, then what it measured as it went along.

use crate::sh::Result;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// How a repetition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It ran, and as it was told to.
    Ok,
    /// It ended with an error, or did not run as it was told to.
    Failed,
    /// A signal ended it: the kernel, for want of memory.
    Killed,
    /// It took too long.
    TimedOut,
    /// The page cache was not what the cell says.
    Spoilt,
    /// The machine does not have what it needs.
    Skipped,
}

const STATUSES: [(Status, &str); 6] = [
    (Status::Ok, "ok"),
    (Status::Failed, "failed"),
    (Status::Killed, "killed"),
    (Status::TimedOut, "timed out"),
    (Status::Spoilt, "spoilt"),
    (Status::Skipped, "skipped"),
];

impl Status {
    /// Its word in records and reports.
    pub fn word(self) -> &'static str {
        STATUSES.iter().find(|(status, _)| *status == self).map_or("", |(_, word)| word)
    }
}

/// One run of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Repetition {
    /// The cell's id.
    pub cell: String,
    /// Which repetition it is, from 0.
    pub round: u32,
    /// How it ended.
    pub status: Status,
    /// Why, if not well.
    pub reason: String,
    /// How often it was run until the page cache was what the cell says; what is here is the last time.
    pub tries: u32,
    /// Seconds of the process.
    pub wall_s: f64,
    /// Seconds of it all: every try, with making the cache's state and measuring the disk.
    pub total_s: f64,
    /// Bytes that block devices delivered for it.
    pub disk_bytes: Option<u64>,
    /// The disk's rate, the mean of just before and just after, in bytes per second; only for cold cells.
    pub disk_rate: Option<f64>,
    /// The memory's rate at this number of threads, not long before, in bytes per second.
    pub memory_rate: Option<f64>,
    /// The most that was charged to its container, page cache included.
    pub group_peak_bytes: Option<u64>,
    /// The program's own report, without its text.
    pub report: Value,
}

impl Repetition {
    /// One that has not been run.
    pub fn skipped(cell: String, round: u32) -> Self {
        Self {
            cell,
            round,
            status: Status::Skipped,
            reason: String::new(),
            tries: 1,
            wall_s: 0.0,
            total_s: 0.0,
            disk_bytes: None,
            disk_rate: None,
            memory_rate: None,
            group_peak_bytes: None,
            report: Value::Null,
        }
    }

    /// As a line of a record.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "repetition",
            "cell": self.cell,
            "round": self.round,
            "status": self.status.word(),
            "reason": self.reason,
            "tries": self.tries,
            "wall_s": self.wall_s,
            "total_s": self.total_s,
            "disk_bytes": self.disk_bytes,
            "disk_rate": self.disk_rate,
            "memory_rate": self.memory_rate,
            "group_peak_bytes": self.group_peak_bytes,
            "report": self.report,
        })
    }

    /// From a line of a record; `None` if it is no repetition.
    pub fn from_json(line: &Value) -> Option<Self> {
        let status = line["status"].as_str()?;
        Some(Self {
            cell: line["cell"].as_str()?.into(),
            round: line["round"].as_u64()?.try_into().ok()?,
            status: STATUSES.iter().find(|(_, word)| *word == status)?.0,
            reason: line["reason"].as_str().unwrap_or_default().into(),
            tries: line["tries"].as_u64().map_or(Some(1), |tries| tries.try_into().ok())?,
            wall_s: line["wall_s"].as_f64()?,
            total_s: line["total_s"].as_f64().or(line["wall_s"].as_f64())?,
            disk_bytes: line["disk_bytes"].as_u64(),
            disk_rate: line["disk_rate"].as_f64(),
            memory_rate: line["memory_rate"].as_f64(),
            group_peak_bytes: line["group_peak_bytes"].as_u64(),
            report: line["report"].clone(),
        })
    }

    /// A number of the program's report.
    pub fn number(&self, pointer: &str) -> Option<f64> {
        self.report.pointer(pointer)?.as_f64()
    }
}

/// A record that has been read.
#[derive(Clone, Debug)]
pub struct Record {
    /// The machine, the program and the cells.
    pub run: Value,
    /// Everything that was measured, in order.
    pub repetitions: Vec<Repetition>,
    /// How the disk was measured under each model: `model`, `how` in words, and what [`super::rates::Disk`] is made of.
    pub disks: Vec<Value>,
    /// The last line, if the run came to its end.
    pub end: Option<Value>,
}

impl Record {
    /// Reads a record; a last line that an interruption has cut short does not count.
    ///
    /// # Errors
    /// Names the file and the line that is none of a record.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|message| format!("{}: {message}", path.display()))
    }

    /// The record in `text`.
    pub fn parse(text: &str) -> Result<Self> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut record = Self { run: Value::Null, repetitions: vec![], disks: vec![], end: None };
        for (i, line) in whole.lines().enumerate() {
            let value: Value =
                serde_json::from_str(line).map_err(|error| format!("line {}: {error}", i + 1))?;
            match value["kind"].as_str() {
                Some("run") if i == 0 => record.run = value,
                Some("repetition") if i > 0 => {
                    let repetition = Repetition::from_json(&value);
                    record
                        .repetitions
                        .push(repetition.ok_or_else(|| format!("line {}: keys are missing", i + 1))?);
                }
                Some("disk") if i > 0 => record.disks.push(value),
                Some("end") if i > 0 => record.end = Some(value),
                _ => {
                    return Err(format!(
                        "line {}: no line of a record that `cargo xtask bench` writes",
                        i + 1
                    ));
                }
            }
        }
        if record.run.is_null() { Err("empty".into()) } else { Ok(record) }
    }
}

/// A record that grows.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// What it already held.
    pub found: Vec<Repetition>,
    /// How the disk was measured so far, see [`Record::disks`].
    pub disks: Vec<Value>,
    /// Whether the run that it holds is over.
    pub complete: bool,
}

impl Journal {
    /// Opens the record at `path` for the run that `run` describes: a new one, or the rest of one that was interrupted.
    ///
    /// # Errors
    /// When another run's record is there and `fresh` doesn't say that it may go.
    pub fn open(path: &Path, run: &Value, fresh: bool) -> Result<Self> {
        let failed = |error| format!("{}: {error}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        if !fresh && path.exists() {
            let text = fs::read_to_string(path).map_err(failed)?;
            let record = Record::parse(&text).ok().filter(|record| record.run["key"] == run["key"]);
            let record = record.ok_or_else(|| {
                format!(
                    "{}: holds another run (program, cells or repetitions differ); --fresh replaces it, --out \
                     chooses another file",
                    path.display()
                )
            })?;
            let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
            // What an interruption has cut short goes.
            file.set_len(text.rfind('\n').map_or(0, |end| end as u64 + 1)).map_err(failed)?;
            let complete = record.end.is_some();
            return Ok(Self {
                path: path.into(),
                file,
                found: record.repetitions,
                disks: record.disks,
                complete,
            });
        }
        let file = File::create(path).map_err(failed)?;
        let mut journal = Self { path: path.into(), file, found: vec![], disks: vec![], complete: false };
        journal.append(run)?;
        Ok(journal)
    }

    /// Writes a line; it is in the file when this returns.
    pub fn append(&mut self, line: &Value) -> Result {
        let failed = |error| format!("{}: {error}", self.path.display());
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A repetition that went well: `tok_s` tokens per second.
    pub fn repetition(cell: &str, round: u32, tok_s: f64) -> Repetition {
        Repetition {
            status: Status::Ok,
            wall_s: 1.5,
            total_s: 2.5,
            disk_bytes: Some(1000),
            memory_rate: Some(4e10),
            report: json!({
                "timings": {"decode_tok_s": tok_s, "prefill_tok_s": 2.0 * tok_s, "ttft_s": 0.5},
                "memory": {"peak_rss_bytes": 20_000_000},
                "io": {"streamed_bytes_per_pass": 500_000_000, "resident_bytes": 0},
                "logits_digest": "0123456789abcdef",
            }),
            ..Repetition::skipped(cell.into(), round)
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn an_interrupted_run_goes_on_where_it_was_cut() {
        let folder = folder("record");
        let path = folder.join("a.jsonl");
        let run = json!({"kind": "run", "key": {"cells": ["a"]}});
        let mut journal = Journal::open(&path, &run, false).unwrap();
        let disk = json!({"kind": "disk", "model": "a", "how": "quickly"});
        journal.append(&disk).unwrap();
        journal.append(&repetition("a", 0, 5.0).to_json()).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"kind\":\"repet")).unwrap();

        let journal = Journal::open(&path, &run, false).unwrap();
        assert_eq!((&journal.found[..], journal.complete), (&[repetition("a", 0, 5.0)][..], false));
        assert_eq!(journal.disks, [disk]);
        assert_eq!(fs::read_to_string(&path).unwrap(), whole, "the torn line is gone");

        let other = json!({"kind": "run", "key": {"cells": ["b"]}});
        assert!(Journal::open(&path, &other, false).unwrap_err().contains("--fresh"));
        assert!(Journal::open(&path, &other, true).unwrap().found.is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_no_record_is_refused_with_its_line() {
        let run = "{\"kind\":\"run\"}\n";
        for (text, word) in [
            ("", "empty"),
            ("{\"kind\":\"run\"}", "empty"),
            ("[]\n", "line 1"),
            (&format!("{run}{run}"), "line 2"),
            (&format!("{run}not json\n"), "line 2"),
            (&format!("{run}{{\"kind\":\"repetition\",\"cell\":\"a\"}}\n"), "keys are missing"),
        ] {
            let message = Record::parse(text).unwrap_err();
            assert!(message.contains(word), "{text}: {message}");
        }
        assert!(Record::parse(run).unwrap().end.is_none());
    }
}
