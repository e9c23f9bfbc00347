//! What a record says about the machine and the program.

use super::cells::Cell;
use super::options::Options;
use crate::sh::{Result, command, stdout};
use serde_json::{Value, json};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

/// The first line of a record. What has to be equal for a run to be resumed stands under `key`.
pub fn describe(options: &Options, binary: &Path, folder: &Path, cells: &[Cell]) -> Result<Value> {
    let memory = field("/proc/meminfo", "MemTotal:").and_then(|kb| kb.split(' ').next()?.parse::<u64>().ok());
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_default();
    Ok(json!({
        "kind": "run",
        "key": {
            "preset": options.preset.name(),
            "program": fingerprint(binary)?,
            "reps": cells.iter().map(|cell| cell.reps).collect::<Vec<_>>(),
            "planted_delay_percent": options.delay_percent,
            "cells": cells.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "other_axes": options.other_axes(),
        "date": said(&["date", "-u", "+%F %H:%M"]),
        "revision": said(&["git", "rev-parse", "--short=12", "HEAD"]),
        // Sources that are not committed: the record cannot be made again from the revision alone.
        "modified": !said(&["git", "status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"]).is_empty(),
        "host": said(&["uname", "-n"]),
        "kernel": said(&["uname", "-sr"]),
        "cpu": cpu.trim_start_matches([':', ' ', '\t']),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": memory.map(|kb| kb * 1024),
        "file_system": said(&["df", "--output=fstype", &folder.to_string_lossy()]).lines().nth(1),
        "huge_pages": chosen(&huge),
        // How the tool fills the page cache for warm cells decides the size of its folios; nothing reports it afterwards.
        "folios": "large: evicted, then read from front to back 1 MiB at a time",
        "cells": cells.iter().map(Cell::to_json).collect::<Vec<_>>(),
    }))
}

/// The words that a command prints, or nothing where it cannot.
fn said(words: &[&str]) -> String {
    let text = stdout(&mut command(words[0], &words[1..])).unwrap_or_default();
    text.trim().to_string()
}

/// The rest of the first line of a file that begins with `key`.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_string())
}

/// The word in brackets of a file such as `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Tells two builds apart; two builds of the same sources by the same compiler are the same.
fn fingerprint(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_stands_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn fields_are_found_and_missing_files_are_no_error() {
        assert!(field("/proc/meminfo", "MemTotal:").unwrap().ends_with("kB"));
        assert_eq!(field("/no/such/file", "a"), None);
        assert!(fingerprint(Path::new("/no/such/file")).unwrap_err().contains("/no/such/file"));
    }
}
