//! What can go wrong between a path and a token, sorted by who can do something about it.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, worded in one line: the file, the key or tensor, what was wanted, what was found, what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// The header cannot be read, or says something impossible.
    #[error(transparent)]
    Header(#[from] sluice_gguf::Error),

    /// A metadata key is missing, or holds a value this program cannot run with.
    #[error("{}: {key}: {problem}", path.display())]
    Key {
        /// The model file.
        path: PathBuf,
        /// The full metadata key, such as `llama.block_count`.
        key: String,
        /// Wanted, found, and what to do.
        problem: String,
    },

    /// A tensor is missing, has another shape than the metadata asks for, or a type that is not supported.
    #[error("{}: {problem}", path.display())]
    Tensor {
        /// The model file.
        path: PathBuf,
        /// The tensor or tensors by name, wanted, found.
        problem: String,
    },

    /// The vocabulary in the file cannot be used.
    #[error("{}: {source}", path.display())]
    Vocabulary {
        /// The model file.
        path: PathBuf,
        /// What is wrong with it.
        source: crate::tokenizer::TokenizerError,
    },

    /// Reading weights failed.
    #[error(transparent)]
    Stream(#[from] sluice_loader::Error),

    /// An option contradicts the model or another option; the message names the flag.
    #[error("{0}")]
    Usage(String),

    /// The context has no room for what was asked.
    #[error(
        "the context holds {context} positions, {wanted} are needed ({detail}); raise --ctx (this model allows up to {longest})"
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
    #[error("{}: non-finite logits at position {position} (id {id} has {value}): the weights are damaged, or an activation overflowed", path.display())]
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

    /// The machine refused something: a thread, a file of the kernel's.
    #[error("{what}: {source}")]
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
        matches!(self, Self::Usage(_))
    }

    pub(crate) fn key(path: &Path, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Key {
            path: path.to_owned(),
            key: key.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn tensor(path: &Path, problem: impl Into<String>) -> Self {
        Self::Tensor {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}
