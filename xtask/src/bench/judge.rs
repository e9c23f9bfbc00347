//! Whether a program ran to its end, and ran what its cell says.

use super::axes::{Budget, Cache, Engine, Head, Way};
use super::cells::Cell;
use super::child::Finished;
use super::record::Status;
use crate::sh::Result;
use crate::sluice::{forbidden, number, required, string};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

/// The share of what a cold program reads that has to come from the disk: the rest is what a pass finds of the chunks
/// that were read ahead, and what the kernel counts to somebody else.
const COLD: f64 = 0.95;

/// The share of the file that a warm one may still get from the disk.
const WARM: f64 = 0.02;

/// Reads what a program left: its report, or how it failed and why.
pub fn outcome(
    cell: &Cell,
    done: &Finished,
    killed_in_group: u64,
) -> std::result::Result<Value, (Status, String)> {
    // The last line says what went wrong.
    let said = done.stderr.lines().last().unwrap_or_default();
    let failed = |reason: String| (Status::Failed, reason);
    let Some(status) = done.status else {
        return Err((Status::TimedOut, format!("not done after {:.0} s", done.wall_s)));
    };
    if let Some(signal) = status.signal() {
        let reason = match (killed_in_group, cell.limit) {
            (0, _) | (_, None) => format!("ended by signal {signal}"),
            (_, Some(limit)) => format!("the kernel ended it: no memory left in {} MiB", limit >> 20),
        };
        return Err((Status::Killed, reason));
    }
    if !status.success() {
        let cause = done.stderr.lines().find_map(|line| Some((forbidden(line)?, line)));
        return Err(match cause {
            Some((what, line)) if !required(what) => (Status::Skipped, line.to_string()),
            Some((what, line)) => failed(format!("SLUICE_REQUIRE has {what}, but: {line}")),
            None => failed(format!("{status}: {said}")),
        });
    }
    let mut report: Value =
        serde_json::from_slice(&done.stdout).map_err(|error| failed(format!("bad JSON: {error}")))?;
    if let Some(report) = report.as_object_mut() {
        for key in ["text", "ids"] {
            report.remove(key);
        }
    }
    as_told(cell, &report).map_err(failed)?;
    as_cached(cell, &report, done.disk_bytes).map_err(|reason| (Status::Spoilt, reason))?;
    Ok(report)
}

/// Checks what the report says that it ran.
fn as_told(cell: &Cell, report: &Value) -> Result {
    let (root, (backend, direct)) = match cell.engine {
        Engine::Sluice => ("/io", cell.way.flags()),
        Engine::Loader => ("", cell.way.flags()),
        Engine::Peer => return number(report, "/timings/decode_tok_s").map(drop),
    };
    if cell.way != Way::Auto {
        let ran = string(report, &format!("{root}/backend"))?;
        let ran_direct = report.pointer(&format!("{root}/direct")).and_then(Value::as_bool);
        if (ran, ran_direct) != (backend, Some(direct == "on")) {
            return Err(format!("asked for {backend} with direct {direct}, ran {ran} with {ran_direct:?}"));
        }
    }
    if cell.engine == Engine::Loader {
        return Ok(());
    }
    let (isa, threads) = (string(report, "/cpu/isa")?, number(report, "/cpu/threads")?);
    if threads != f64::from(cell.threads) || !(cell.isa.is_empty() || cell.isa == isa) {
        return Err(format!("asked for {} {} threads, ran {isa} {threads}", cell.isa, cell.threads));
    }
    let streamed = number(report, "/io/streamed_bytes_per_pass")?;
    let wrong = match (cell.budget, cell.head) {
        (Budget::Stream, _) | (_, Head::Stream) => streamed == 0.0,
        (Budget::All, _) => streamed > 0.0,
        // A model smaller than the window through which it would be streamed takes least when it stays.
        (Budget::Auto | Budget::Min | Budget::Percent(_), _) => false,
    };
    if wrong {
        return Err(format!("{streamed} bytes are streamed in a pass"));
    }
    let peak = number(report, "/memory/peak_rss_bytes")?;
    match cell.budget_bytes() {
        Some(budget) if peak > budget as f64 => {
            Err(format!("over its budget: {:.1} of {:.1} MB", peak / 1e6, budget as f64 / 1e6))
        }
        _ => Ok(()),
    }
}

/// Checks that the bytes came from where the cell says: from the disk in every pass, or from the page cache.
fn as_cached(cell: &Cell, report: &Value, from_disk: Option<u64>) -> Result {
    // The peer says nothing of what it reads, and where the kernel keeps no accounts nothing can be checked.
    let (Engine::Sluice | Engine::Loader, Some(from_disk)) = (cell.engine, from_disk) else {
        return Ok(());
    };
    let pointer = if cell.engine == Engine::Sluice { "/io/bytes_read" } else { "/bytes_read" };
    let (read, from_disk) = (number(report, pointer)?, from_disk as f64);
    match cell.cache {
        Cache::Cold if from_disk < COLD * read => Err(format!(
            "not cold: {:.0} % of what it read came from the page cache",
            100.0 * (1.0 - from_disk / read)
        )),
        Cache::Warm if from_disk > WARM * cell.file_bytes as f64 => {
            Err(format!("not warm: {:.1} MB came from the disk", from_disk / 1e6))
        }
        _ => Ok(()),
    }
}

/// The digest of all logits; `None` for engines that have none.
pub fn digest(report: &Value) -> Option<&str> {
    report["logits_digest"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cells::{Table, tests};
    use serde_json::json;
    use std::process::ExitStatus;

    fn cell(budget: Budget, cache: Cache) -> Cell {
        let table = Table { budgets: vec![budget], caches: vec![cache], ..tests::table() };
        Table::cells(&[table], &[tests::model()]).remove(0)
    }

    fn report() -> Value {
        json!({
            "text": "abc", "ids": [1], "logits_digest": "d",
            "io": {"backend": "pread", "direct": false, "streamed_bytes_per_pass": 100, "bytes_read": 1000},
            "cpu": {"isa": "avx2", "threads": 2},
            "memory": {"peak_rss_bytes": 200_000_000},
        })
    }

    fn done(code: i32, stdout: &Value, stderr: &str, disk: u64) -> Finished {
        Finished {
            status: Some(ExitStatus::from_raw(code)),
            stdout: stdout.to_string().into_bytes(),
            stderr: stderr.into(),
            wall_s: 1.0,
            disk_bytes: Some(disk),
        }
    }

    fn reason(cell: &Cell, done: &Finished) -> (Status, String) {
        outcome(cell, done, 1).unwrap_err()
    }

    #[test]
    fn a_good_run_leaves_its_report_without_the_text() {
        let kept = outcome(&cell(Budget::Min, Cache::Cold), &done(0, &report(), "", 990), 0).unwrap();
        assert_eq!((digest(&kept), kept.get("text"), kept.get("ids")), (Some("d"), None, None));
    }

    #[test]
    fn a_run_must_be_what_was_asked_for() {
        let changed = |pointer: &str, value: Value, budget, cache| {
            let mut report = report();
            *report.pointer_mut(pointer).unwrap() = value;
            reason(&cell(budget, cache), &done(0, &report, "", 990)).1
        };
        let min = |pointer, value| changed(pointer, value, Budget::Min, Cache::Cold);
        assert!(min("/io/backend", json!("mmap")).contains("asked for pread"));
        assert!(min("/io/direct", json!(true)).contains("direct off"));
        assert!(min("/cpu/threads", json!(1)).contains("2 threads"));
        let none = changed("/io/streamed_bytes_per_pass", json!(0), Budget::Stream, Cache::Cold);
        assert!(none.contains("0 bytes are streamed"));
        let quarter = |value| changed("/memory/peak_rss_bytes", value, Budget::Percent(25), Cache::Cold);
        assert!(quarter(json!(260_000_000)).contains("over its budget: 260.0 of 250.0 MB"));
        let all = changed("/io/bytes_read", json!(1000), Budget::All, Cache::Cold);
        assert!(all.contains("100 bytes are streamed"), "{all}");
    }

    #[test]
    fn bytes_must_come_from_where_the_cell_says() {
        let cold = reason(&cell(Budget::Min, Cache::Cold), &done(0, &report(), "", 500));
        assert_eq!(cold, (Status::Spoilt, "not cold: 50 % of what it read came from the page cache".into()));
        let warm = |disk| outcome(&cell(Budget::Min, Cache::Warm), &done(0, &report(), "", disk), 0);
        assert!(warm(19_000_000).is_ok());
        assert!(warm(21_000_000).unwrap_err().1.contains("21.0 MB came from the disk"));
    }

    #[test]
    fn failures_say_how_and_why() {
        let min = cell(Budget::Min, Cache::Cold);
        let none = json!(null);
        let (status, why) = reason(&min, &done(1 << 8, &none, "note\nerror: no such tensor", 0));
        assert_eq!((status, why.ends_with("error: no such tensor")), (Status::Failed, true));
        let (status, why) = reason(&min, &done(9, &none, "", 0));
        assert_eq!((status, why.contains("no memory left in 128 MiB")), (Status::Killed, true));
        let line = "error: io_uring is not allowed: seccomp; use --backend pread";
        let (status, why) = reason(&min, &done(1 << 8, &none, line, 0));
        // CI says that it must be allowed, and runs this test too.
        let wanted = if required("uring") { Status::Failed } else { Status::Skipped };
        assert_eq!((status, why.contains(line)), (wanted, true));
        let hung = Finished { status: None, ..done(0, &none, "", 0) };
        assert_eq!(reason(&min, &hung).0, Status::TimedOut);
        assert!(reason(&min, &done(0, &json!("{"), "", 0)).1.contains("no string at /io/backend"));
    }
}
