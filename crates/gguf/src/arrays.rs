//! Streaming readers for metadata arrays: one 64 KiB buffer, whatever the array's size.
//!
//! The array was checked when the header was parsed. The file may have changed since, so every length is checked again;
//! after an error the reader is at its end.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result, quote};
use crate::read::{Cursor, Source};
use crate::value::{ArrayInfo, Value, ValueType};

/// What the readers have in common: where they are, and what to call the array in an error.
struct Elements<'a> {
    cursor: Cursor<'a>,
    element: ValueType,
    len: u64,
    next: u64,
    key: String,
    path: Option<PathBuf>,
}

impl<'a> Elements<'a> {
    fn new(source: &'a dyn Source, array: ArrayInfo, key: &str, path: Option<&Path>) -> Self {
        let end = array.offset.saturating_add(array.bytes);
        Self {
            // Its end is the end of the world: a string that now seems longer than the array must not read on.
            cursor: Cursor::new(source, end, array.offset, end),
            element: array.element,
            len: array.len,
            next: 0,
            key: quote(key.as_bytes()),
            path: path.map(Path::to_path_buf),
        }
    }

    fn left(&self) -> u64 {
        self.len - self.next
    }

    /// Ends the iteration with an error that says where.
    fn fail(&mut self, error: Error) -> Error {
        self.next = self.len;
        error.in_file(self.path.as_deref())
    }

    /// The next scalar, passed through `read`; `want` says what `read` takes.
    fn scalar<T>(&mut self, want: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Result<T>> {
        if self.left() == 0 {
            return None;
        }
        let (i, size) = (self.next, self.element.fixed_bytes()? as usize);
        let value = match self.cursor.take(size, format_args!("element {i} of key {}", self.key)) {
            Ok(bytes) => Value::decode(self.element, bytes),
            Err(e) => return Some(Err(self.fail(e))),
        };
        let Some(out) = value.as_ref().and_then(read) else {
            let found = value.map_or("an invalid byte".into(), |v| format!("{} {v}", v.ty()));
            let why = format!("key {}, element {i}: wanted {want}, found {found}", self.key);
            return Some(Err(self.fail(Error::new(ErrorKind::WrongType, why))));
        };
        self.next += 1;
        Some(Ok(out))
    }
}

/// The strings of an array, one at a time, lent until the next one is asked for.
pub struct Strings<'a>(Elements<'a>);

impl<'a> Strings<'a> {
    /// `array` has string elements.
    pub(crate) fn new(source: &'a dyn Source, array: ArrayInfo, key: &str, path: Option<&Path>) -> Self {
        Self(Elements::new(source, array, key, path))
    }

    /// Number of strings in the array, those already read included.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the array has no strings.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The next string as it stands in the file, which need not be UTF-8; `None` at the end and after an error.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Truncated` if it has changed since it was opened.
    #[allow(clippy::should_implement_trait)] // an Iterator could not lend its buffer
    pub fn next(&mut self) -> Option<Result<&[u8]>> {
        let Elements { cursor, key, path, next, len, .. } = &mut self.0;
        if next == len {
            return None;
        }
        let i = *next;
        // Counted as the last until it is there, so that an error ends the iteration.
        *next = *len;
        let in_file = |e: Error| e.in_file(path.as_deref());
        let bytes = match cursor.u64(format_args!("length of string {i}, key {key}")) {
            Ok(bytes) => bytes,
            Err(e) => return Some(Err(in_file(e))),
        };
        // Checked against the array's own size before the buffer grows, as the header's walk did.
        if let Err(e) = cursor.want(bytes, format_args!("string {i}, key {key}")) {
            return Some(Err(in_file(e)));
        }
        match cursor.take(bytes as usize, format_args!("string {i}, key {key}")) {
            Ok(string) => {
                *next = i + 1;
                Some(Ok(string))
            }
            Err(e) => Some(Err(in_file(e))),
        }
    }
}

/// The elements of an array of numbers or bools as they stand in the file, each as a [`Value`] of the array's type.
pub struct Scalars<'a>(Elements<'a>);

impl<'a> Scalars<'a> {
    /// `array` has elements of a fixed size.
    pub(crate) fn new(source: &'a dyn Source, array: ArrayInfo, key: &str, path: Option<&Path>) -> Self {
        Self(Elements::new(source, array, key, path))
    }
}

impl Iterator for Scalars<'_> {
    /// `WrongType` for a bool that is neither 0 nor 1, `Io` or `Truncated` if the file cannot be read; the last item
    /// then.
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.scalar("0 or 1", |v| Some(v.clone()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.0.left()).ok();
        (0, left) // an error may end it at once
    }
}

/// The elements of an integer array of any width, as `i64`.
pub struct Ints<'a>(Elements<'a>);

impl<'a> Ints<'a> {
    /// `array` has integer elements.
    pub(crate) fn new(source: &'a dyn Source, array: ArrayInfo, key: &str, path: Option<&Path>) -> Self {
        Self(Elements::new(source, array, key, path))
    }
}

impl Iterator for Ints<'_> {
    /// `WrongType` for a `u64` over `i64::MAX`, `Io` or `Truncated` if the file cannot be read; the last item then.
    type Item = Result<i64>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.scalar("an integer up to 2^63-1", |v| v.integer()?.try_into().ok())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.0.left()).ok();
        (0, left) // an error may end it at once
    }
}

/// The elements of an array of numbers (`f32`, `f64` or integers), as `f64`.
pub struct Floats<'a>(Elements<'a>);

impl<'a> Floats<'a> {
    /// `array` has numeric elements.
    pub(crate) fn new(source: &'a dyn Source, array: ArrayInfo, key: &str, path: Option<&Path>) -> Self {
        Self(Elements::new(source, array, key, path))
    }
}

impl Iterator for Floats<'_> {
    /// `WrongType` for an integer that `f64` cannot hold, `Io` or `Truncated` if the file cannot be read; the last item
    /// then.
    type Item = Result<f64>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.scalar("a number that f64 holds exactly", Value::number)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.0.left()).ok();
        (0, left) // an error may end it at once
    }
}
