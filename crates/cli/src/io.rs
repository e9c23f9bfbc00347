//! Where output goes, and what becomes of an error on the way.

use std::io::{self, Write};

use serde::Serialize;
use sluice_model::Error;
use sluice_model::gguf::escape;

/// Why a command did not end normally.
pub enum Failure {
    /// Something to tell the user.
    Error(Error),
    /// stdout was closed by whoever read it: end quietly.
    ClosedPipe,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<sluice_model::gguf::Error> for Failure {
    fn from(error: sluice_model::gguf::Error) -> Self {
        Self::Error(error.into())
    }
}

/// Writes `text` to stdout and flushes, so that each piece shows as it comes.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// As [`print()`], for what need not be text.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_failure)
}

/// Writes `document` to stdout as one line of JSON.
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(document).map_err(|e| stdout_failure(e.into()))?;
    print(&(text + "\n"))
}

fn stdout_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::ClosedPipe;
    }
    Failure::Error(Error::Machine { what: "cannot write to standard output".into(), source: error })
}

/// Whether stdout and stderr end up in the same place, as after `2>&1`.
pub fn one_file() -> bool {
    let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) => place(out) == place(err),
        _ => false,
    }
}

/// Ends a line that the text left open where stderr goes on: stdout itself stays the text, byte for byte.
pub fn end_line_on_stderr() {
    let _ = writeln!(io::stderr().lock());
}

/// `text` on one line and safe for a terminal: paths and names may hold anything.
pub fn one_line(text: &str) -> String {
    escape(text.as_bytes()).to_string()
}

/// Writes a line to stderr, escaped. When stderr is closed there is nobody to tell, and that is no reason to stop.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", one_line(line));
}
