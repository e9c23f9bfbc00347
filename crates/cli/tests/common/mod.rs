//! What the tests of the command share: tiny models on disk, and runs of the binary that cannot hang a test.

#![allow(dead_code)] // each test binary uses its own part

use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_fixtures::{Spec, TensorType, vocab};
use sluice_model::gguf::Gguf;
use tempfile::TempDir;

/// How long a run may take before it counts as hung: far beyond what any takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A tiny model whose rows of every type are whole blocks, small enough to be written in every test.
pub fn tiny() -> Spec {
    Spec::tiny(TensorType::Q8_0)
}

/// Writes `spec` as `name` to a folder of its own, which lives as long as what is returned.
pub fn write(spec: &Spec, name: impl AsRef<OsStr>) -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join(name.as_ref());
    std::fs::write(&path, spec.to_bytes().expect("a valid spec")).expect("room for a tiny model");
    (dir, path)
}

/// [`tiny`] as a file.
pub fn model() -> (TempDir, PathBuf) {
    write(&tiny(), "tiny.gguf")
}

/// A model that generates for as long as anybody wants: room for a million tokens, of which runs should ask for so few that
/// their keys and values are small (100 000 take 50 MB), and the token that ends a text never wins.
pub fn endless() -> (TempDir, PathBuf) {
    let (dir, path) = write(&Spec { context: 1 << 20, ..tiny() }, "endless.gguf");
    let gguf = Gguf::open(&path).expect("a tiny model");
    let head = gguf.tensor("output.weight").expect("a head");
    let row = (head.len / head.dims()[1]) as usize;
    let at = head.offset as usize + row * vocab::EOS_ID as usize;
    let mut bytes = std::fs::read(&path).expect("the model");
    // Zeros make a logit of 0, and of 320 random ones the highest is above that.
    bytes[at..at + row].fill(0);
    std::fs::write(&path, bytes).expect("the model again");
    (dir, path)
}

/// What a run left behind.
pub struct Ran {
    /// Exit code; None after a signal.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    /// stdout as a JSON document: all of it, and nothing else.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    /// A run that went well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// A run that ended with `code`, an empty stdout, and one line on stderr that has every one of `words` in it.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stdout.is_empty(), "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("error: "), "wanted one line: {self:?}");
        assert!(!lines[0].contains(char::is_control), "{self:?}");
        for word in words {
            assert!(lines[0].contains(word), "{word:?} is not in {:?}", lines[0]);
        }
        self
    }
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.stdout);
        write!(f, "exit {:?}, stdout {text:?}, stderr {:?}", self.code, self.stderr)
    }
}

impl From<Output> for Ran {
    fn from(out: Output) -> Self {
        Self {
            code: out.status.code(),
            stdout: out.stdout,
            stderr: String::from_utf8(out.stderr).expect("stderr is UTF-8 whatever paths hold"),
        }
    }
}

/// The binary with its output caught and nothing on standard input.
pub fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the binary.
#[track_caller]
pub fn sluice<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    finish(command(args).spawn().expect("the binary starts"))
}

/// `sluice run MODEL` with more flags, split at spaces.
#[track_caller]
pub fn run(model: &Path, flags: &str) -> Ran {
    sluice([OsStr::new("run"), model.as_os_str()].into_iter().chain(flags.split(' ').map(OsStr::new)))
}

/// Runs the binary with `input` on standard input.
#[track_caller]
pub fn with_input<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>, input: &[u8]) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that ends without reading all of it closes the pipe: what it says is checked by the caller.
    let _ = stdin.write_all(input);
    drop(stdin);
    finish(child)
}

/// Waits for the end; a run that hangs is killed and fails the test.
#[track_caller]
pub fn finish(child: Child) -> Ran {
    let pid = Pid::from_child(&child);
    let (done, end) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match end.recv_timeout(PATIENCE) {
        Ok(out) => out.expect("output of the binary").into(),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("no end after {PATIENCE:?}");
        }
    }
}

/// Waits until `there` says so, a little at a time; fails the test when it never does.
#[track_caller]
pub fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    const STEP: Duration = Duration::from_millis(5);
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        if there() {
            return;
        }
        std::thread::sleep(STEP);
    }
    panic!("{what}: not after {PATIENCE:?}");
}
