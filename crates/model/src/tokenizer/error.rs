//! Why a file's tokenizer cannot be used.

use std::fmt;

/// What sort of trouble a [`TokenizerError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerErrorKind {
    /// The header could not be read.
    Read,
    /// A key that the tokenizer needs is absent.
    Missing,
    /// A key has the wrong type, the wrong length or an impossible value.
    Malformed,
    /// A kind of tokenizer that is not implemented.
    Unsupported,
}

/// A tokenizer that cannot be used. `Display` is one line without the file's path, which the caller knows.
#[derive(Debug)]
pub struct TokenizerError {
    kind: TokenizerErrorKind,
    key: &'static str,
    problem: String,
    source: Option<Box<sluice_gguf::Error>>, // boxed: rare, and large
}

impl TokenizerError {
    /// What sort of trouble it is.
    pub fn kind(&self) -> TokenizerErrorKind {
        self.kind
    }

    /// The metadata key at fault.
    pub fn key(&self) -> &str {
        self.key
    }

    pub(super) fn missing(key: &'static str, wanted: &str) -> TokenizerError {
        let problem =
            format!("wanted {wanted}, found no such key; convert the model again, with its tokenizer");
        TokenizerError { kind: TokenizerErrorKind::Missing, key, problem, source: None }
    }

    pub(super) fn malformed(
        key: &'static str,
        wanted: impl fmt::Display,
        found: impl fmt::Display,
    ) -> TokenizerError {
        let problem = format!("wanted {wanted}, found {found}; download or convert the model again");
        TokenizerError { kind: TokenizerErrorKind::Malformed, key, problem, source: None }
    }

    pub(super) fn unsupported(key: &'static str, known: impl fmt::Display, found: &[u8]) -> TokenizerError {
        let problem = format!("{} is not supported; known are {known}", quote(found));
        TokenizerError { kind: TokenizerErrorKind::Unsupported, key, problem, source: None }
    }

    pub(super) fn read(key: &'static str, source: sluice_gguf::Error) -> TokenizerError {
        let kind = match source.kind() {
            sluice_gguf::ErrorKind::WrongType => TokenizerErrorKind::Malformed,
            _ => TokenizerErrorKind::Read,
        };
        let mut problem = source.context().to_string();
        if let Some(cause) = std::error::Error::source(&source) {
            problem += &format!(": {cause}");
        }
        TokenizerError { kind, key, problem, source: Some(Box::new(source)) }
    }
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl std::error::Error for TokenizerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// A token's text for a message: in quotes, safe for a terminal, and short even if the token is not.
pub(super) fn quote(text: &[u8]) -> String {
    const CHARS: usize = 60; // what fits on a line beside the rest
    format!("\"{}\"", sluice_gguf::escape(text).at_most(CHARS))
}
