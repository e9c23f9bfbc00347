//! The error: a kind to match on, one line to read, a source to chase; and the escaping that keeps that line one line.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for code that decides what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused to open or read the file.
    Io,
    /// The file contradicts the format or itself.
    Malformed,
    /// The file ends before what it declares: an incomplete download, or damage that looks like one.
    Truncated,
    /// Well-formed, but not something that this crate reads: another format, version, byte order or tensor type.
    Unsupported,
    /// More than [`Limits`](crate::Limits) allow.
    Limit,
    /// A file of the set is not there.
    Missing,
    /// A metadata value has another type than asked for, or lies outside its range.
    WrongType,
}

/// Why a file could not be read or written.
///
/// `Display` is a complete single line, with the path in front and the operating system's message, if any, at the end;
/// there is no need to print [`source`](std::error::Error::source) as well. Everything in it that came from a file is
/// escaped and shortened, so that it is safe for a terminal.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Option<PathBuf>,
    context: String,
    offset: Option<u64>,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, path: None, context: context.into(), offset: None, source: None }
    }

    pub(crate) fn io(context: impl Into<String>, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::new(ErrorKind::Io, context) }
    }

    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Names the file. The first name stays: whoever knew it first was closest to the fault.
    pub(crate) fn in_file(mut self, path: Option<&Path>) -> Self {
        if self.path.is_none() {
            self.path = path.map(Path::to_path_buf);
        }
        self
    }

    /// What went wrong, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file that is at fault, where there is one: bytes parsed from memory have no path.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The key or tensor, what was wanted and found, and what to do; without the path. Escaped.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// The position in the file, in bytes, where the fault was noticed, if it has one.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            // A path may hold anything but NUL, and error lines end up in terminals and logs.
            write!(f, "{}: ", escape(path.as_os_str().as_encoded_bytes()))?;
        }
        f.write_str(&self.context)?;
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset})")?;
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// Shows bytes from a file so that they are safe in a terminal and stay on one line.
///
/// Invalid UTF-8 becomes U+FFFD; control characters (ESC, newline, NUL…), line separators and the characters that
/// reorder or hide text are written as Rust escapes. Backslashes are left alone, so this is for eyes, not for parsing.
pub fn escape(bytes: &[u8]) -> Escaped<'_> {
    Escaped { bytes, max_chars: usize::MAX }
}

/// Longest name in an error line: four times the longest legal tensor name leaves a hostile 64 KiB key readable.
const QUOTED_CHARS: usize = 256;

/// A name in an error message: in quotes, escaped, and cut where it is absurdly long.
pub(crate) fn quote(bytes: &[u8]) -> String {
    format!("\"{}\"", Escaped { bytes, max_chars: QUOTED_CHARS })
}

/// Bytes to be displayed; see [`escape`].
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    max_chars: usize,
}

impl Escaped<'_> {
    /// Shows at most this many characters, then "…".
    #[must_use]
    pub fn at_most(self, chars: usize) -> Self {
        Self { max_chars: chars, ..self }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut room = self.max_chars;
        for chunk in self.bytes.utf8_chunks() {
            let invalid = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
            for c in chunk.valid().chars().chain(invalid) {
                if room == 0 {
                    return f.write_char('…');
                }
                room -= 1;
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else if is_deceptive(c) {
                    write!(f, "{}", c.escape_unicode())?;
                } else {
                    f.write_char(c)?;
                }
            }
        }
        Ok(())
    }
}

/// Not a control character, yet able to break a line, reorder what is shown, or hide: separators, bidirectional marks,
/// zero-width characters and the byte order mark.
fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_keeps_one_line_and_shows_damage() {
        assert_eq!(escape(b"plain \xc3\xa9").to_string(), "plain é");
        assert_eq!(escape(b"a\x1b[31m\n\0b").to_string(), "a\\u{1b}[31m\\n\\u{0}b");
        assert_eq!(escape(b"\xff\xfeok").to_string(), "\u{fffd}\u{fffd}ok");
        assert_eq!(escape("x\u{202e}y\u{2028}".as_bytes()).to_string(), "x\\u{202e}y\\u{2028}");
        assert_eq!(escape(b"abcdef").at_most(3).to_string(), "abc…");
        assert_eq!(escape(b"abc").at_most(3).to_string(), "abc");
        assert!(quote(&[b'k'; 70_000]).chars().count() < 300);
    }

    #[test]
    fn the_line_has_path_context_offset_and_cause() {
        let e = Error::io("reading the header", io::Error::other("disk on fire"))
            .at(12)
            .in_file(Some("dir/a\nb.gguf".as_ref()))
            .in_file(Some("later".as_ref()));
        assert_eq!(e.to_string(), "dir/a\\nb.gguf: reading the header (at byte 12): disk on fire");
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_eq!(e.path(), Some("dir/a\nb.gguf".as_ref()));
        assert!(std::error::Error::source(&e).is_some());
    }
}
