//! Where input comes from and output goes: pipes that close, devices that are full, streams that are not there.

mod common;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, Stdio};

use common::{command, endless, finish, model, sluice, with_input};

/// A shell line with the binary as $S and a model as $M: the only way to start a process with a stream closed.
fn shell(line: &str) -> common::Ran {
    let (_dir, path) = model();
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).env("S", env!("CARGO_BIN_EXE_sluice")).env("M", &path);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(shell.spawn().expect("a shell"))
}

#[test]
fn a_reader_who_has_seen_enough_ends_the_run_quietly() {
    let (_dir, path) = endless();
    let path = path.to_str().expect("plain");
    let mut child = command(["run", path, "-p", "the", "-n", "100000"]).spawn().expect("the binary starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0]).expect("a first byte");
    drop(stdout);
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn every_command_bears_a_closed_pipe() {
    let (_dir, path) = model();
    let path = path.to_str().expect("plain");
    for args in [
        &["run", path, "-p", "the", "-n", "3", "--json"][..],
        &["inspect", path, "--tensors"],
        &["inspect", path, "--json"],
        &["tokenize", path, "-p", "the"],
        &["logits", path, "--ids", "1,2"],
        &["--help"],
    ] {
        // Closed before the program starts: it may be done sooner than a parent can close its end.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = finish(command(args).stdout(writer).spawn().expect("the binary starts"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_device_is_an_error() {
    let (_dir, path) = model();
    let path = path.to_str().expect("plain");
    for args in [
        &["run", path, "-p", "the", "-n", "3"][..],
        &["run", path, "-p", "the", "-n", "3", "--json"],
        &["inspect", path],
        &["tokenize", path, "-p", "the", "--json"],
        &["logits", path, "--ids", "1,2"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let child = command(args).stdout(full).spawn().expect("the binary starts");
        finish(child).refused(1, &["standard output", "No space left"]);
    }
}

#[test]
fn streams_that_are_closed_are_nobody_to_talk_to() {
    let text = shell(r#""$S" run "$M" -p the -n 5"#).ok().stdout;
    let deaf = shell(r#""$S" run "$M" -p the -n 5 2>&-"#).ok();
    assert_eq!((deaf.stdout, deaf.stderr.as_str()), (text, ""));
    assert!(shell(r#""$S" run "$M" -p the -n 5 >&-"#).ok().stdout.is_empty());
    let failed = shell(r#""$S" run /nowhere/x.gguf -p the 2>&-"#);
    assert_eq!((failed.code, failed.stderr.as_str()), (Some(1), ""));
    // No input is an empty prompt: BOS alone.
    let empty = shell(r#""$S" run "$M" -n 2 <&-"#).ok();
    assert!(empty.stderr.contains("after a prompt of 1"), "{empty:?}");
    let (_dir, path) = model();
    let empty = with_input(["run".as_ref(), path.as_os_str(), "-n".as_ref(), "2".as_ref()], b"").ok();
    assert!(empty.stderr.contains("after a prompt of 1"), "{empty:?}");
}

#[test]
fn a_log_holds_no_progress() {
    let ran = shell(r#""$S" run "$M" -p the -n 9 2>&1; "$S" run "$M" -p the -n 9 >/dev/null"#).ok();
    assert!(!ran.stderr.contains(['\r', '\u{8}', '\u{1b}']), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
}

#[test]
fn the_summary_has_a_line_of_its_own_where_text_and_notes_meet() {
    let text = shell(r#""$S" run "$M" -p the -n 9"#).ok().stdout;
    assert!(!text.is_empty() && !text.ends_with(b"\n"), "another prompt is needed: {text:?}");
    for line in
        [r#""$S" run "$M" -p the -n 9 2>&1"#, r#""$S" run "$M" -p the -n 9 >"$M.log" 2>&1; cat "$M.log""#]
    {
        let both = shell(line).ok().stdout;
        let rest = both.strip_prefix(&text[..]).expect("the text comes first");
        assert!(rest.starts_with(b"\n[limit: "), "{:?}", String::from_utf8_lossy(rest));
    }
    let parted = shell(r#""$S" run "$M" -p the -n 9 2>"$M.err"; cat "$M.err" >&2"#).ok();
    assert!(parted.stdout == text && parted.stderr.starts_with("[limit: "), "{parted:?}");
}

#[test]
fn the_prompt_is_the_same_bytes_however_it_comes() {
    let (dir, path) = model();
    let file = dir.path().join("prompt.txt");
    let ids = |input: Option<&[u8]>, more: &[&str]| {
        let args =
            ["tokenize", path.to_str().expect("plain"), "--json"].into_iter().chain(more.iter().copied());
        let ran = input.map_or_else(|| sluice(args.clone()), |bytes| with_input(args.clone(), bytes)).ok();
        assert!(ran.stderr.is_empty(), "{ran:?}");
        ran.json()["ids"].clone()
    };
    let mut seen = Vec::new();
    for text in [
        "the cat",
        "the cat\n",
        "the cat\r\n",
        "\u{feff}the cat",
        " the  cat",
        "ünïcödé ∎ 🦙",
        "-n",
        "a\nb\n",
    ] {
        std::fs::write(&file, text).expect("a prompt file");
        let given = ids(None, &["-p", text]);
        assert_eq!(ids(Some(text.as_bytes()), &[]), given, "{text:?} from standard input");
        assert_eq!(ids(Some(text.as_bytes()), &["-f", "-"]), given, "{text:?} from -f -");
        assert_eq!(ids(None, &["-f", file.to_str().expect("plain")]), given, "{text:?} from a file");
        assert!(!seen.contains(&given), "{text:?} is not told from another");
        seen.push(given);
    }
    for bytes in [&b"\xe6\xad"[..], b"\xff", b"\xed\xa0\x80", b"a\xf0\x9f\xa6", b"\0"] {
        std::fs::write(&file, bytes).expect("a prompt file");
        let from_input = ids(Some(bytes), &[]);
        assert_eq!(ids(None, &["-f", file.to_str().expect("plain")]), from_input, "{bytes:?}");
        assert!(from_input.as_array().is_some_and(|a| a.len() > bytes.len()), "{bytes:?}: {from_input}");
    }
    let with = ids(None, &["-p", "the"]);
    let without = ids(None, &["-p", "the", "--no-bos"]);
    assert_eq!(with.as_array().map(|a| &a[1..]), without.as_array().map(|a| &a[..]));
}

#[test]
fn text_that_waits_in_vain_is_pointed_out() {
    let (dir, path) = model();
    let file = dir.path().join("waiting");
    std::fs::write(&file, "X").expect("a file");
    for flag in ["-p", "-f"] {
        let args = ["run", path.to_str().expect("plain"), flag, file.to_str().expect("plain"), "-n", "1"];
        let waiting = File::open(&file).expect("the file");
        let ran = finish(command(args).stdin(waiting).spawn().expect("the binary starts")).ok();
        assert!(ran.stderr.contains(&format!("standard input is not read, because {flag}")), "{ran:?}");
        assert!(!sluice(args).ok().stderr.contains("standard input"));
    }
}

#[test]
fn prompts_that_cannot_be_read_name_the_file() {
    let (dir, path) = model();
    let path = path.to_str().expect("plain");
    for command in ["run", "tokenize"] {
        sluice([command, path, "-f", "/nowhere/prompt"]).refused(1, &["/nowhere/prompt", "No such file"]);
        sluice([command, path, "-f", "/nowhere/a\nb"]).refused(1, &["/nowhere/a\\nb"]);
        sluice([command, path, "-f", dir.path().to_str().expect("plain")]).refused(1, &["directory"]);
    }
    sluice(["tokenize", path, "-f", "/dev/zero"]).refused(2, &["longer than", "MiB"]);
    let folder = File::open(dir.path()).expect("the folder");
    let ran = finish(command(["tokenize", path]).stdin(folder).spawn().expect("the binary starts"));
    ran.refused(1, &["standard input", "directory"]);
}
