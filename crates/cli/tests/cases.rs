//! The shared collection of odd and hostile models, run as a user would: SLUICE_SHARED names the folder that has
//! `cases/files` in it. Elsewhere these tests say that they skip.

#![allow(clippy::print_stderr, reason = "a skip must be seen")]

mod common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Ran, finish, sluice};

/// The folder of the files, and the rows of one of its lists, split at tabs.
fn list(name: &str) -> Option<(PathBuf, Vec<Vec<String>>)> {
    let Some(shared) = std::env::var_os("SLUICE_SHARED") else {
        eprintln!("SKIPPED: SLUICE_SHARED is not set");
        return None;
    };
    let folder = PathBuf::from(shared).join("cases/files");
    let text = std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let rows: Vec<Vec<String>> =
        text.lines().skip(1).map(|row| row.split('\t').map(str::to_owned).collect()).collect();
    assert!(!rows.is_empty(), "{name} has no rows");
    Some((folder, rows))
}

/// What is wrong with how a file was refused; empty when nothing is.
fn faults_of_refusal(ran: &Ran, file: &str, words: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut wrong = |is: bool, what: String| {
        if is {
            faults.push(what);
        }
    };
    let lines: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with("warning: ")).collect();
    wrong(!ran.stdout.is_empty(), "something is on stdout".into());
    wrong(lines.len() != 1, "not one line".into());
    wrong(!ran.stderr.contains(file), "the file is not named".into());
    for group in words.split(" | ").filter(|group| *group != "-") {
        let said =
            group.split('/').any(|word| ran.stderr.to_lowercase().contains(&word.trim().to_lowercase()));
        // Alternatives are parted by slashes, but a word may be a file's name as well.
        wrong(!said && !ran.stderr.contains(group), format!("none of {group:?} is said"));
    }
    faults
}

/// Runs the model with 4 GB of address space: an allocation out of proportion to the file shows.
fn in_little_memory(model: &Path) -> Ran {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"ulimit -v 4000000; exec "$@""#, "sh", env!("CARGO_BIN_EXE_sluice"), "run"]);
    shell.arg(model).args(["-p", "the", "-n", "4", "--temp", "0"]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(shell.spawn().expect("a shell"))
}

#[test]
fn every_file_runs_or_is_refused_as_the_index_says() {
    let Some((folder, rows)) = list("index.tsv") else {
        return;
    };
    let mut failed = Vec::new();
    for row in &rows {
        let [file, kind, what, words] = &row[..] else { panic!("four columns, not {row:?}") };
        let ran = in_little_memory(&folder.join(file));
        let faults = match (ran.code, kind.as_str()) {
            (Some(0), "must-accept" | "either") => Vec::new(),
            (Some(1 | 2), "must-reject" | "either") => faults_of_refusal(&ran, file, words),
            _ => vec![format!("{kind}: {what}")],
        };
        if !faults.is_empty() {
            failed.push(format!("{file}: {}: {ran:?}", faults.join(", ")));
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), rows.len(), failed.join("\n"));
}

/// The digest of the logits of a few tokens, more than 20 of them: wrong rotations show late.
fn digest(path: &Path, flags: &[&str]) -> String {
    let ids: Vec<String> = (0..32).map(|i| (1 + i * 37 % 250).to_string()).collect();
    let ids = ids.join(",");
    let args = [OsStr::new("logits"), path.as_os_str(), "--ids".as_ref(), ids.as_ref(), "--json".as_ref()];
    let ran = sluice(args.into_iter().chain(flags.iter().map(OsStr::new))).ok();
    ran.json()["logits_digest"].as_str().expect("a digest").to_owned()
}

#[test]
fn pairs_have_the_same_logits_or_not() {
    let Some((folder, rows)) = list("pairs.tsv") else {
        return;
    };
    for row in &rows {
        let [a, b, relation, why] = &row[..] else { panic!("four columns, not {row:?}") };
        let same = digest(&folder.join(a), &[]) == digest(&folder.join(b), &[]);
        assert_eq!(same, relation == "same-logits", "{a} and {b}: {why}");
    }
}

#[test]
fn good_files_give_the_same_logits_however_they_are_read() {
    let Some((folder, rows)) = list("index.tsv") else {
        return;
    };
    for file in rows.iter().filter(|row| row[1] == "must-accept").map(|row| folder.join(&row[0])) {
        let wanted = digest(&file, &["--threads", "1", "--layers", "resident"]);
        for flags in [
            "--backend mmap --layers stream --stream-lm-head",
            "--backend pread --direct off --layers stream --lm-head-rows 7 --chunk-bytes 1 --threads 3",
        ] {
            let flags: Vec<&str> = flags.split(' ').collect();
            assert_eq!(digest(&file, &flags), wanted, "{}: {flags:?}", file.display());
        }
    }
}
