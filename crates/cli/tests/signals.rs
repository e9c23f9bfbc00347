//! Ctrl-C: 130 within a layer's time, with what there is already; a second one at once.
#![cfg(target_os = "linux")] // what a process catches is read from /proc

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Ran, command, endless, eventually, finish};
use rustix::process::{Pid, Signal, kill_process};

fn start(path: &Path, flags: &str) -> Child {
    let args = ["run".as_ref(), path.as_os_str()].into_iter().chain(flags.split(' ').map(str::as_ref));
    command(args).spawn().expect("the binary starts")
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the process is there");
}

/// Waits until the process catches signals: before, the system would end it. SIGTERM comes last.
fn catches(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    eventually("SIGTERM is caught", || {
        let text = std::fs::read_to_string(&status).expect("a running process");
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("a mask");
        let caught = u64::from_str_radix(mask.trim(), 16).expect("hexadecimal");
        caught >> (Signal::TERM.as_raw() - 1) & 1 == 1
    });
}

#[track_caller]
fn interrupted(ran: Ran) -> Ran {
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("interrupted"), "{ran:?}");
    ran
}

#[test]
fn the_text_so_far_is_kept() {
    let (_dir, path) = endless();
    for which in [Signal::INT, Signal::TERM] {
        let mut child = start(&path, "-p the -n 100000");
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut text = vec![0; 20];
        stdout.read_exact(&mut text).expect("some text");
        signal(&child, which);
        stdout.read_to_end(&mut text).expect("the rest");
        let ran = interrupted(finish(child));
        let generated = ran.stderr.lines().next_back().and_then(|l| l.strip_prefix("[interrupted: "));
        assert!(generated.is_some(), "{ran:?}");
        // What was flushed is the beginning of what would have been written.
        let n = generated.and_then(|l| l.split(' ').next()).expect("a count");
        let whole = common::run(&path, &format!("-p the -n {n}")).ok();
        assert_eq!(whole.stdout, text);
    }
}

#[test]
fn the_json_document_is_whole() {
    let (_dir, path) = endless();
    let mut child = start(&path, "-p the -n 100000 --json --verbose");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    // The notes come just before the first pass.
    stderr.read_line(&mut String::new()).expect("a note");
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, Signal::INT);
    let ran = finish(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let d = ran.json();
    assert_eq!(d["stop_reason"], "interrupted", "{d}");
    assert_eq!(d["generated_tokens"].as_u64(), d["ids"].as_array().map(|a| a.len() as u64), "{d}");
}

#[test]
fn a_second_one_at_once_is_the_same() {
    // As `timeout` does, which signals its child and then its child's group.
    let (_dir, path) = endless();
    for second in [Signal::TERM, Signal::INT] {
        let mut child = start(&path, "-p the -n 100000 --json --verbose");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        stderr.read_line(&mut String::new()).expect("a note");
        std::thread::sleep(Duration::from_millis(100));
        // Equal signals that wait for the process are one: of so many, some are sure to be seen apart.
        signal(&child, Signal::TERM);
        (0..100).for_each(|_| signal(&child, second));
        let ran = finish(child);
        assert_eq!(ran.code, Some(130), "{second:?}: {ran:?}");
        assert_eq!(ran.json()["stop_reason"], "interrupted", "{ran:?}");
    }
}

#[test]
fn during_a_long_prompt() {
    let (_dir, path) = endless();
    let prompt = "q".repeat(100_000);
    for flags in ["--prompt-batch 1", "--prompt-batch 64 --layers stream --backend pread"] {
        let mut child = start(&path, &format!("-p {prompt} --json --verbose {flags}"));
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        stderr.read_line(&mut String::new()).expect("a note");
        signal(&child, Signal::INT);
        let ran = finish(child);
        assert_eq!(ran.code, Some(130), "{ran:?}");
        let d = ran.json();
        assert_eq!((&d["generated_tokens"], &d["prompt_tokens"]), (&0.into(), &100_001.into()), "{d}");
    }
}

#[test]
fn while_the_prompt_is_read() {
    let (_dir, path) = endless();
    let path = path.to_str().expect("plain");
    for args in
        [&["run", path, "--json"][..], &["tokenize", path, "--json"], &["run", path, "-f", "-", "--json"]]
    {
        let mut child = command(args).stdin(Stdio::piped()).spawn().expect("the binary starts");
        let open = child.stdin.take();
        catches(&child);
        signal(&child, Signal::INT);
        let ran = interrupted(finish(child));
        drop(open);
        assert_eq!(ran.json()["exit_code"], 130, "{ran:?}");
    }
}

#[test]
fn logits_are_interrupted_too() {
    let (_dir, path) = endless();
    let ids = vec!["5"; 30_000].join(",");
    let args = ["logits", path.to_str().expect("plain"), "--ids", &ids, "--top", "1", "--threads", "1"];
    let child = command(args).spawn().expect("the binary starts");
    catches(&child);
    signal(&child, Signal::INT);
    let ran = interrupted(finish(child));
    assert!(ran.stdout.is_empty(), "{ran:?}");
}

#[test]
fn a_later_one_ends_what_the_first_cannot() {
    let (dir, path) = endless();
    // Opening a pipe that nobody writes to waits in the system, where no flag is looked at.
    let pipe = dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    for (last, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut child = start(&path, &format!("-f {}", pipe.display()));
        catches(&child);
        signal(&child, Signal::INT);
        signal(&child, last);
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().expect("a state").is_none(), "the first signal ended it");
        eventually("the end", || {
            let ended = child.try_wait().expect("a state").is_some();
            if !ended {
                signal(&child, last);
            }
            ended
        });
        let ran = finish(child);
        assert_eq!((ran.code, ran.stdout.len()), (Some(code), 0), "{ran:?}");
    }
}
