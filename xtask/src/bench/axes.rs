//! The axes of a matrix: what may differ between two cells, and the words for it in flags, records and reports.

use crate::sh::Result;
use std::fmt;

/// An axis whose values are a few words; the words stand in flags, records and reports.
pub trait Word: Copy + PartialEq + 'static {
    /// What the axis is called in messages.
    const AXIS: &'static str;
    /// Every value with its word.
    const WORDS: &'static [(Self, &'static str)];

    /// The word of a value.
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("", |(_, word)| word)
    }

    /// The value of a word.
    fn parse(text: &str) -> Result<Self> {
        let found = Self::WORDS.iter().find(|(_, word)| *word == text);
        found.map(|(value, _)| *value).ok_or_else(|| {
            let known: Vec<&str> = Self::WORDS.iter().map(|(_, word)| *word).collect();
            format!("{} {text}: wanted one of {}", Self::AXIS, known.join(", "))
        })
    }
}

/// Whose speed is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `sluice run`.
    Sluice,
    /// The loader alone: its example streams the file and adds up the bytes.
    Loader,
    /// llama.cpp through its Python package.
    Peer,
}

impl Word for Engine {
    const AXIS: &'static str = "engine";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Sluice, "sluice"), (Self::Loader, "loader"), (Self::Peer, "llama-cpp-python")];
}

/// A backend, through the page cache or past it. mmap has no direct reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the program chooses.
    Auto,
    /// Mapped.
    Mmap,
    /// Plain reads through the page cache.
    Pread,
    /// Plain reads past it.
    PreadDirect,
    /// io_uring through the page cache.
    Uring,
    /// io_uring past it.
    UringDirect,
}

impl Word for Way {
    const AXIS: &'static str = "way";
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Auto, "auto"),
        (Self::Mmap, "mmap"),
        (Self::Pread, "pread"),
        (Self::PreadDirect, "pread+direct"),
        (Self::Uring, "uring"),
        (Self::UringDirect, "uring+direct"),
    ];
}

impl Way {
    /// The values of `--backend` and `--direct`.
    pub fn flags(self) -> (&'static str, &'static str) {
        match self {
            Self::Auto => ("auto", "auto"),
            Self::Mmap => ("mmap", "off"),
            Self::Pread => ("pread", "off"),
            Self::PreadDirect => ("pread", "on"),
            Self::Uring => ("uring", "off"),
            Self::UringDirect => ("uring", "on"),
        }
    }

    /// Whether reads go through the page cache; `Auto` may do either.
    pub fn buffered(self) -> bool {
        matches!(self, Self::Mmap | Self::Pread | Self::Uring)
    }
}

/// How much memory a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// What the program chooses when no flag speaks of memory.
    Auto,
    /// Layers streamed, nothing planned.
    Stream,
    /// The least that works: `--ram-budget min`.
    Min,
    /// `--ram-budget` of so many per cent of the file's length.
    Percent(u32),
    /// Everything resident, unless it is the head and streamed by name.
    All,
}

impl Budget {
    /// The value of a word: `auto`, `stream`, `min`, `all`, or a percentage such as `25%`.
    pub fn parse(text: &str) -> Result<Self> {
        let percent = |text: &str| text.strip_suffix('%')?.parse().ok().filter(|p| (1..=1000).contains(p));
        Ok(match text {
            "auto" => Self::Auto,
            "stream" => Self::Stream,
            "min" => Self::Min,
            "all" => Self::All,
            _ => Self::Percent(percent(text).ok_or_else(|| {
                format!("budget {text}: wanted auto, stream, min, all, or a percentage from 1% to 1000%")
            })?),
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Stream => "stream",
            Self::Min => "min",
            Self::All => "all",
            Self::Percent(percent) => return write!(f, "{percent}%"),
        })
    }
}

/// Where the output projection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// As the budget has it.
    Auto,
    /// Kept.
    Resident,
    /// Read in every pass.
    Stream,
}

impl Word for Head {
    const AXIS: &'static str = "head";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Auto, "auto"), (Self::Resident, "resident"), (Self::Stream, "stream")];
}

/// What the page cache holds of the file before a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Whatever it holds: for cells whose speed is not looked at.
    Any,
    /// All of it, in large folios.
    Warm,
    /// Nothing, and no pass finds anything that an earlier one has left.
    Cold,
}

impl Word for Cache {
    const AXIS: &'static str = "cache";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Any, "any"), (Self::Warm, "warm"), (Self::Cold, "cold")];
}

/// The ceiling of the container that a cell runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// None, unless a cell could not be cold without one.
    Auto,
    /// So many bytes, page cache included.
    Bytes(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed_and_refused_with_what_was_wanted() {
        assert!(Way::parse("uring+direct") == Ok(Way::UringDirect));
        assert!(Way::parse("mmap+direct").unwrap_err().contains("pread+direct"));
        assert_eq!(Budget::parse("25%").unwrap(), Budget::Percent(25));
        for bad in ["0%", "25", "%", "-1%", "lots"] {
            assert!(Budget::parse(bad).unwrap_err().contains("percentage"), "{bad}");
        }
    }
}
