//! Backends by name and by choice: no silent fallback, the same text, and files that change under a run.

#![allow(clippy::print_stderr, reason = "a skip must be seen")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Ran, command, endless, finish, model, run};
use sluice_fixtures::required;

/// The flags of every backend that this machine permits; each that it forbids is refused with a reason.
fn permitted(path: &Path) -> Vec<&'static str> {
    let all = [
        ("--backend mmap", ""),
        ("--backend pread --direct off", ""),
        ("--backend pread --direct on", "direct"),
        ("--backend uring --direct off", "uring"),
        ("--backend uring --direct on", "uring,direct"),
    ];
    let mut flags = Vec::new();
    for (backend, needs) in all {
        let ran = run(path, &format!("-p the -n 1 {backend}"));
        if ran.code == Some(0) {
            flags.push(backend);
        } else {
            assert!(!needs.is_empty() && !needs.split(',').any(required), "{backend}: {ran:?}");
            eprintln!("SKIPPED: {backend}: {}", ran.stderr);
            ran.refused(1, &[if needs == "direct" { "--direct off" } else { "--" }]);
        }
    }
    flags
}

#[test]
fn what_was_asked_for_is_what_is_used_and_gives_the_same_text() {
    let (_dir, path) = model();
    let wanted = run(&path, "-p thequickbrown -n 4 --json --threads 1").ok().json();
    for backend in permitted(&path) {
        for place in [
            "--layers stream --lm-head stream",
            "--layers resident --lm-head resident",
            "--chunk-bytes 20K --stream-lm-head --lm-head-rows 77",
        ] {
            let d = run(&path, &format!("-p thequickbrown -n 4 --json {backend} {place}")).ok().json();
            let name = backend.split(' ').nth(1).expect("a name");
            assert_eq!(d["io"]["backend"], name, "{d}");
            assert_eq!(d["io"]["direct"], backend.contains("--direct on"), "{d}");
            for key in ["text", "ids", "logits_digest"] {
                assert_eq!(d[key], wanted[key], "{backend} {place}");
            }
        }
    }
}

/// Starts a run that would never end, has `change` act on the file once text comes, and waits.
fn while_running(flags: &str, change: impl FnOnce(&Path)) -> Ran {
    let (_dir, path) = endless();
    let args = ["run", path.to_str().expect("plain"), "-p", "the", "-n", "100000"];
    let mut child = command(args.into_iter().chain(flags.split(' '))).spawn().expect("the binary starts");
    child.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 9]).expect("some text");
    change(&path);
    finish(child)
}

fn cut(path: &Path) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(100)).expect("our own file");
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_an_error() {
    let (_dir, path) = model();
    for backend in permitted(&path).iter().filter(|flags| !flags.contains("mmap")) {
        for threads in [1, 2] {
            let flags = format!("{backend} --layers stream --lm-head stream --threads {threads}");
            let ran = while_running(&flags, cut);
            assert_eq!(ran.code, Some(1), "{flags}: {ran:?}");
            let told = ran.stderr.contains("endless.gguf") && ran.stderr.contains("got shorter");
            assert!(told && ran.stderr.lines().count() == 1, "{flags}: {ran:?}");
        }
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_goes_on_as_it_was() {
    let (_dir, path) = model();
    let wanted = run(&path, "-p the -n 100").ok().stdout;
    for backend in permitted(&path) {
        let args = ["run", path.to_str().expect("plain"), "-p", "the", "-n", "100"];
        let mut child =
            command(args.into_iter().chain(backend.split(' '))).spawn().expect("the binary starts");
        let mut text = vec![0; 9];
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut text).expect("some text");
        let copy = path.with_extension("copy");
        fs::copy(&path, &copy).expect("a copy");
        fs::rename(&copy, &path).expect("a replaced file");
        stdout.read_to_end(&mut text).expect("the rest");
        finish(child).ok();
        assert_eq!(text, wanted, "{backend}");
    }
}

/// Runs a command with io_uring_setup failing with the errno that comes first, as a seccomp filter of a container has
/// it. The system call has one number on all architectures.
const FORBID: &str = r#"
import ctypes, os, struct, sys
def rule(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
rules = (rule(0x20, 0, 0, 0) + rule(0x15, 0, 1, 425)
         + rule(0x06, 0, 0, 0x00050000 | int(sys.argv[1])) + rule(0x06, 0, 0, 0x7fff0000))
class Program(ctypes.Structure): _fields_ = [("len", ctypes.c_ushort), ("rules", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(4, rules)), 0, 0): sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[test]
#[cfg(target_os = "linux")]
fn forbidden_io_uring_is_explained_and_auto_goes_on_without() {
    let (_dir, path) = model();
    let path = path.to_str().expect("plain");
    let forbidden = |errno: &str, flags: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", FORBID, errno, env!("CARGO_BIN_EXE_sluice"), "run", path, "-p", "the", "-n", "5"]);
        python.args(flags.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        python.spawn().map(finish)
    };
    let wanted = match forbidden("1", "--backend pread") {
        Ok(ran) if ran.code == Some(0) => ran.stdout,
        other => {
            eprintln!("SKIPPED: no way to forbid a system call here: {other:?}");
            return;
        }
    };
    const EPERM: (&str, &[&str]) = ("1", &["seccomp", "kernel.io_uring_disabled"]);
    const ENOSYS: (&str, &[&str]) = ("38", &["not implemented", "sandbox"]);
    for (errno, words) in [EPERM, ENOSYS] {
        let named = forbidden(errno, "--backend uring").expect("python3");
        let line = named.refused(1, &["io_uring", "--backend pread"]).stderr.to_lowercase();
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        // Direct reads by choice ask for reads in flight, so for io_uring first.
        let auto =
            forbidden(errno, "--layers stream --lm-head stream --verbose --direct on").expect("python3");
        if auto.code == Some(1) && auto.stderr.contains("--direct off") {
            eprintln!("SKIPPED: no direct reads here: {}", auto.stderr);
            continue;
        }
        let auto = auto.ok();
        assert_eq!(auto.stdout, wanted);
        assert!(auto.stderr.contains("backend pread: ") && auto.stderr.contains("io_uring"), "{auto:?}");
    }
}
