//! The one error type: what was tried, on which file, at which bytes, why it failed and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file could not be opened or examined.
    Open,
    /// The system refused a read.
    Read,
    /// The file ends before the bytes that were asked for.
    Shortened,
    /// The file is not the one that was opened: its length or time of change differs.
    Changed,
    /// Direct reads were asked for by name, and this file does not take them or this machine has no threads for them.
    NoDirect,
    /// The backend was asked for by name and this machine does not have it.
    Unavailable,
    /// Options or a schedule that make no sense: the caller is at fault, not the file.
    Usage,
    /// The stream was stopped from outside, or a worker panicked with a loan or a read in its hands.
    Stopped,
}

/// An error of a backend or a stream. Cheap to clone, so that every waiting worker gets it.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    op: &'static str,
    path: Option<PathBuf>,
    at: Option<At>,
    note: String,
    source: Option<io::Error>,
}

/// The place in the file: all in bytes.
#[derive(Clone, Copy, Debug)]
struct At {
    offset: u64,
    wanted: usize,
    got: usize,
}

impl Error {
    /// An error of `kind` met while doing `op` (an infinitive: "read", "open").
    pub fn new(kind: ErrorKind, op: &'static str) -> Self {
        let inner = Inner { kind, op, path: None, at: None, note: String::new(), source: None };
        Error { inner: Arc::new(inner) }
    }

    /// Another kind, for who knows better than whoever met it.
    #[must_use]
    pub(crate) fn of_kind(self, kind: ErrorKind) -> Self {
        self.edit(|inner| inner.kind = kind)
    }

    /// Names the file.
    #[must_use]
    pub fn path(self, path: &Path) -> Self {
        self.edit(|inner| inner.path = Some(path.to_owned()))
    }

    /// Names the place: `wanted` bytes from `offset`, of which `got` arrived.
    #[must_use]
    pub fn at(self, offset: u64, wanted: usize, got: usize) -> Self {
        self.edit(|inner| inner.at = Some(At { offset, wanted, got }))
    }

    /// Says why, and what to do about it.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        let note = note.into();
        self.edit(|inner| inner.note = note)
    }

    /// Keeps the system's own error.
    #[must_use]
    pub fn caused_by(self, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        self.edit(|inner| inner.source = Some(source))
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The file, where one is concerned.
    pub fn file(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    /// The system's own error, where there is one.
    pub fn cause(&self) -> Option<&io::Error> {
        self.inner.source.as_ref()
    }

    /// Offset in bytes of the read that failed, where a read is concerned.
    pub fn offset(&self) -> Option<u64> {
        self.inner.at.map(|at| at.offset)
    }

    // An error is edited only while it is built, before anybody can have cloned it.
    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            change(inner);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.inner;
        write!(f, "cannot {}", inner.op)?;
        if let Some(path) = &inner.path {
            write!(f, " {}", path.display())?;
        }
        if let Some(At { offset, wanted, got }) = inner.at {
            write!(f, " at byte {offset}: wanted {wanted} bytes, got {got}")?;
        }
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        if !inner.note.is_empty() {
            write!(f, ": {}", inner.note)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_everything_once() {
        let error = Error::new(ErrorKind::Shortened, "read")
            .path(Path::new("m.gguf"))
            .at(4096, 100, 7)
            .note("the file got shorter");
        assert_eq!(
            error.to_string(),
            "cannot read m.gguf at byte 4096: wanted 100 bytes, got 7: the file got shorter"
        );
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Shortened, Some(4096)));
    }
}
