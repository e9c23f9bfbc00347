//! Sets of shards: `name-00001-of-00003.gguf` and its siblings.
//!
//! Each shard is a GGUF of its own. `split.no` counts from 0, the number in the name from 1; `split.count` stands in
//! every shard; `split.tensors.count` is the total over all of them. The first shard has the model's metadata.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, escape};
use crate::header::Header;
use crate::header::open_file;
use crate::limits::Limits;
use crate::metadata::Metadata;

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TOTAL: &str = "split.tensors.count";

/// A set, known from its first shard.
#[derive(Debug)]
pub(crate) struct Set {
    first: PathBuf,
    stem: Vec<u8>,
    /// Number of shards, at least 2.
    pub count: u64,
    total: Option<u64>,
}

/// The set that `path` is the first shard of; `None` for a model in one file (`split.count` absent, 0 after a merge, or 1).
///
/// Siblings are looked for beside the path given, not beside what a symbolic link points to: caches keep shards under
/// their hashes and link to them by name.
pub(crate) fn first_of(path: &Path, metadata: &Metadata, limits: &Limits) -> Result<Option<Set>> {
    let count = metadata.uint(COUNT)?.unwrap_or(1);
    if count < 2 {
        return Ok(None);
    }
    if count > limits.shards {
        let why =
            format!("{COUNT} is {count}, at most {} shards are allowed (Limits::shards)", limits.shards);
        return Err(Error::new(ErrorKind::Limit, why).in_file(Some(path)));
    }
    let malformed = |why: String| Error::new(ErrorKind::Malformed, why).in_file(Some(path));
    let no =
        metadata.uint(NO)?.ok_or_else(|| malformed(format!("a shard ({COUNT} is {count}) without {NO}")))?;
    if no >= count {
        return Err(malformed(format!("{NO} is {no}, wanted less than {COUNT}, which is {count}")));
    }
    let named = Name::of(path);
    let Some(Name { stem, .. }) = named.filter(|n| n.number == no + 1 && n.count == count) else {
        return Err(malformed(format!(
            "shard {} of {count} has been renamed: the others cannot be found unless its name ends in {}",
            no + 1,
            ending(no, count)
        )));
    };
    if no != 0 {
        let first = escape(sibling(path, stem, 0, count).as_os_str().as_bytes()).to_string();
        return Err(malformed(format!(
            "this is shard {} of {count} of a split model: give the first, {first}",
            no + 1
        )));
    }
    Ok(Some(Set { first: path.into(), stem: stem.into(), count, total: metadata.uint(TOTAL)? }))
}

impl Set {
    /// Opens shard `no`, counted from 0, and checks that it belongs here.
    pub fn open_shard(&self, no: u64, limits: &Limits) -> Result<(PathBuf, File, Header)> {
        let path = sibling(&self.first, &self.stem, no, self.count);
        let absent = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        if std::fs::metadata(&path).is_err_and(|e| absent(&e)) {
            let why = format!(
                "shard {} of {} is missing: {} is not there; all shards must lie in one folder",
                no + 1,
                self.count,
                escape(path.as_os_str().as_bytes())
            );
            return Err(Error::new(ErrorKind::Missing, why).in_file(Some(&self.first)));
        }
        let (file, header) = open_file(&path, limits)?;
        for (key, want) in [(COUNT, self.count), (NO, no)] {
            let found = header.metadata.uint(key)?;
            if found != Some(want) {
                let found = found.map_or("nothing".into(), |n| n.to_string());
                let why = format!(
                    "{key}: wanted {want} in shard {} of {}, found {found}; mixed sets?",
                    no + 1,
                    self.count
                );
                return Err(Error::new(ErrorKind::Malformed, why).in_file(Some(&path)));
            }
        }
        Ok((path, file, header))
    }

    /// Compares the tensors of all shards with the promised number.
    pub fn check_total(&self, found: usize) -> Result<()> {
        match self.total {
            Some(total) if total != found as u64 => {
                let why = format!(
                    "{TOTAL} is {total}, but the {} shards hold {found} tensors; mixed sets?",
                    self.count
                );
                Err(Error::new(ErrorKind::Malformed, why).in_file(Some(&self.first)))
            }
            _ => Ok(()),
        }
    }
}

/// What a shard's file name says: `stem-NNNNN-of-NNNNN.gguf`.
#[derive(Debug, PartialEq, Eq)]
struct Name<'a> {
    stem: &'a [u8],
    number: u64,
    count: u64,
}

impl<'a> Name<'a> {
    fn of(path: &'a Path) -> Option<Self> {
        let rest = path.file_name()?.as_bytes().strip_suffix(b".gguf")?;
        let (rest, count) = strip_number(rest)?;
        let (stem, number) = strip_number(rest.strip_suffix(b"-of-")?)?;
        Some(Self { stem: stem.strip_suffix(b"-")?, number, count })
    }
}

/// Splits five decimal digits off the end.
fn strip_number(text: &[u8]) -> Option<(&[u8], u64)> {
    let (rest, digits) = text.split_last_chunk::<5>()?;
    let digits = str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?;
    Some((rest, digits.parse().ok()?))
}

fn ending(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

fn sibling(path: &Path, stem: &[u8], no: u64, count: u64) -> PathBuf {
    let mut name = stem.to_vec();
    name.extend(ending(no, count).bytes());
    path.with_file_name(OsStr::from_bytes(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards() {
        let name = |s| {
            Name::of(Path::new(s)).map(|n| (str::from_utf8(n.stem).unwrap().to_owned(), n.number, n.count))
        };
        assert_eq!(name("a/m-00002-of-00003.gguf"), Some(("m".into(), 2, 3)));
        assert_eq!(name("-00001-of-00001.gguf"), Some((String::new(), 1, 1)));
        for bad in [
            "m.gguf",
            "m-1-of-2.gguf",
            "m-00001-of-00002.bin",
            "m00001-of-00002.gguf",
            "m-0000x-of-00002.gguf",
            "..",
        ] {
            assert_eq!(name(bad), None, "{bad}");
        }
        assert_eq!(
            sibling(Path::new("a/m-00001-of-00003.gguf"), b"m", 2, 3),
            Path::new("a/m-00003-of-00003.gguf")
        );
    }
}
