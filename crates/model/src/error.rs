//! What can go wrong between a path and a token, sorted by who can do something about it.

use std::path::{Path, PathBuf};

use sluice_gguf::{Escaped, escape};
use thiserror::Error;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, worded in one line: the file, the key or tensor, what was wanted, what was found, what to do. What comes
/// from a file or a path is escaped, so that it stays one line and is safe for a terminal.
#[derive(Debug, Error)]
pub enum Error {
    /// The header cannot be read, or says something impossible.
    #[error(transparent)]
    Header(#[from] sluice_gguf::Error),

    /// A metadata key is missing, or holds a value this program cannot run with.
    #[error("{}: {}: {}", shown(path), escape(key.as_bytes()), escape(problem.as_bytes()))]
    Key {
        /// The model file.
        path: PathBuf,
        /// The full metadata key, such as `llama.block_count`.
        key: String,
        /// Wanted, found, and what to do.
        problem: String,
    },

    /// A tensor is missing, has another shape than the metadata asks for, or a type that is not supported.
    #[error("{}: {}", shown(path), escape(problem.as_bytes()))]
    Tensor {
        /// The model file.
        path: PathBuf,
        /// The tensor or tensors by name, wanted, found.
        problem: String,
    },

    /// The vocabulary in the file cannot be used.
    #[error("{}: {source}", shown(path))]
    Vocabulary {
        /// The model file.
        path: PathBuf,
        /// What is wrong with it.
        source: crate::tokenizer::TokenizerError,
    },

    /// Reading weights failed.
    #[error("{}", escape(.0.to_string().as_bytes()))]
    Stream(#[from] sluice_loader::Error),

    /// An option contradicts the model or another option; the message names the flag.
    #[error("{0}")]
    Usage(String),

    /// The context has no room for what was asked.
    #[error(
        "the context holds {context} positions, {wanted} are needed ({detail}); {}", advice(*wanted, *longest)
    )]
    Context {
        /// Positions that the session was opened for.
        context: usize,
        /// Positions that the call would have used.
        wanted: usize,
        /// The model's own limit.
        longest: usize,
        /// What makes up the sum.
        detail: String,
    },

    /// Logits came out NaN or infinite; choosing a token from them would print nonsense without a word.
    #[error(
        "{}: non-finite logits at position {position} (id {id} has {value}): the weights are damaged, or an activation overflowed",
        shown(path)
    )]
    NonFinite {
        /// The model file.
        path: PathBuf,
        /// Position of the token whose successor was to be chosen.
        position: usize,
        /// First id with such a logit.
        id: usize,
        /// Its value.
        value: f32,
    },

    /// A budget that cannot be kept: the least that works, what for, and what would lower it.
    #[error("{0}")]
    Budget(String),

    /// The machine refused something: a thread, a file of the kernel's.
    #[error("{}: {source}", escape(what.as_bytes()))]
    Machine {
        /// What was asked for.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },

    /// The caller raised the interrupt flag during a pass.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// True when the command line, and not a file or the machine, is at fault.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Usage(_) | Self::Context { .. } => true,
            Self::Stream(e) => e.kind() == sluice_loader::ErrorKind::Usage,
            _ => false,
        }
    }

    pub(crate) fn key(path: &Path, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Key { path: path.to_owned(), key: key.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(path: &Path, problem: impl Into<String>) -> Self {
        Self::Tensor { path: path.to_owned(), problem: problem.into() }
    }
}

fn shown(path: &Path) -> Escaped<'_> {
    escape(path.as_os_str().as_encoded_bytes())
}

/// What to do about a context that is too small: a larger one helps only as far as the model goes.
fn advice(wanted: usize, longest: usize) -> String {
    if wanted <= longest {
        format!("raise --ctx (this model allows up to {longest})")
    } else {
        format!("shorten the prompt: --ctx can be at most {longest}, as this model was trained for no more")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_whatever_the_path_holds() {
        let bad = Path::new("a\nb\x1b[31m.gguf");
        let shown = "a\\nb\\u{1b}[31m.gguf";
        let read = sluice_loader::Error::new(sluice_loader::ErrorKind::Read, "read").path(bad);
        for error in [
            Error::key(bad, "llama.x", "wanted 1\n"),
            Error::tensor(bad, "t\n"),
            Error::NonFinite { path: bad.into(), position: 1, id: 2, value: f32::NAN },
            Error::Stream(read),
            Error::Machine { what: bad.display().to_string(), source: std::io::Error::other("no") },
        ] {
            let line = error.to_string();
            assert!(line.contains(shown) && !line.contains(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn a_longer_context_is_advised_only_where_it_helps() {
        let error = |wanted| Error::Context { context: 8, wanted, longest: 16, detail: "a prompt".into() };
        assert!(error(16).to_string().contains("raise --ctx"));
        let beyond = error(17).to_string();
        assert!(
            !beyond.contains("raise") && beyond.contains("17") && beyond.contains("at most 16"),
            "{beyond}"
        );
        assert!(error(17).is_usage());
    }

    #[test]
    fn options_that_exclude_each_other_are_the_callers_fault() {
        let error = |kind| Error::from(sluice_loader::Error::new(kind, "open files"));
        assert!(error(sluice_loader::ErrorKind::Usage).is_usage());
        assert!(!error(sluice_loader::ErrorKind::Unavailable).is_usage());
    }
}
