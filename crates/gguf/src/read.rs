//! Where bytes come from, and a buffered cursor over them that checks every length before it reads.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::{Error, ErrorKind, Result};

/// Bytes at offsets: a file, or memory in tests. Positional, so that several readers can share one source.
pub trait Source: Send + Sync {
    /// The length in bytes.
    ///
    /// # Errors
    /// What the operating system says.
    fn byte_len(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes at `offset` and returns how many; 0 only at or past the end, or for an empty `buf`.
    ///
    /// # Errors
    /// What the operating system says. `Interrupted` is retried by the callers in this crate.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl Source for File {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }
}

impl Source for [u8] {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

impl Source for Vec<u8> {
    fn byte_len(&self) -> io::Result<u64> {
        self.as_slice().byte_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buf)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn byte_len(&self) -> io::Result<u64> {
        (**self).byte_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buf)
    }
}

/// 64 KiB: large enough that system calls vanish beside the walk, small enough to stay in a core's own cache.
const BUFFER_BYTES: u64 = 64 << 10;

/// A sequential reader over part of a source. `what` arguments say in an error what was being read; they are formatted
/// only then.
pub(crate) struct Cursor<'a> {
    source: &'a dyn Source,
    /// Length of the source.
    file_len: u64,
    /// The first byte that may not be read: the end of the file, or less where a limit says so.
    end: u64,
    buf: Vec<u8>,
    /// Offset of `buf[0]` in the source.
    start: u64,
    /// The next byte is `buf[at]`; bytes up to `filled` are there.
    at: usize,
    filled: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at `start` of `source`, which is `file_len` bytes long, that stops at `end`.
    pub fn new(source: &'a dyn Source, file_len: u64, start: u64, end: u64) -> Self {
        let end = end.min(file_len);
        let buf = vec![0; end.saturating_sub(start).min(BUFFER_BYTES) as usize];
        Self { source, file_len, end, buf, start, at: 0, filled: 0 }
    }

    /// Offset of the next byte in the source.
    pub fn pos(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Bytes that can still be read.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.pos())
    }

    /// Bytes up to the end of the source, whatever the cursor's own end.
    pub fn file_left(&self) -> u64 {
        self.file_len.saturating_sub(self.pos())
    }

    /// Fails unless `n` more bytes are there. Call it before anything of size `n` is allocated.
    pub fn want(&self, n: u64, what: fmt::Arguments<'_>) -> Result<()> {
        if n <= self.left() { Ok(()) } else { Err(self.too_short(n, what)) }
    }

    #[cold]
    pub fn too_short(&self, n: u64, what: fmt::Arguments<'_>) -> Error {
        let error = if self.end < self.file_len && n <= self.file_left() {
            let why = format!(
                "{what}: {n} bytes more would pass the limit of {} bytes (Limits::header_bytes)",
                self.end
            );
            Error::new(ErrorKind::Limit, why)
        } else {
            let (left, len) = (self.file_len.saturating_sub(self.pos()), self.file_len);
            let why = format!(
                "{what}: wanted {n} bytes, {left} left: past the end of file, which has {len} bytes; it is truncated or \
                 damaged, download it again"
            );
            Error::new(ErrorKind::Truncated, why)
        };
        error.at(self.pos())
    }

    /// The next `n` bytes. The buffer grows to `n` where that is more than 64 KiB: bound `n` first.
    #[inline]
    pub fn take(&mut self, n: usize, what: fmt::Arguments<'_>) -> Result<&[u8]> {
        if self.filled - self.at < n {
            self.fill(n, what)?;
        }
        self.at += n;
        Ok(&self.buf[self.at - n..self.at])
    }

    fn fill(&mut self, n: usize, what: fmt::Arguments<'_>) -> Result<()> {
        self.want(n as u64, what)?;
        self.buf.copy_within(self.at..self.filled, 0);
        self.start += self.at as u64;
        self.filled -= self.at;
        self.at = 0;
        if self.buf.len() < n {
            self.buf.resize(n, 0);
        }
        // Never past `end`: what lies behind it is tensor data, and reading it would only warm the wrong pages.
        let room = (self.end - self.start).min(self.buf.len() as u64) as usize;
        while self.filled < n {
            match self.source.read_at(self.start + self.filled as u64, &mut self.buf[self.filled..room]) {
                // The file was longer when it was opened: somebody is writing to it.
                Ok(0) => return Err(self.too_short(n as u64, what)),
                Ok(got) => self.filled += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(format!("{what}: cannot read"), e).at(self.pos())),
            }
        }
        Ok(())
    }

    /// The next `n` bytes in memory of their own. Unlike [`take`](Self::take) it does not grow the buffer: long values
    /// would lie in memory twice.
    pub fn take_owned(&mut self, n: usize, what: fmt::Arguments<'_>) -> Result<Box<[u8]>> {
        self.want(n as u64, what)?;
        let mut out = Vec::with_capacity(n);
        while out.len() < n {
            let piece = (n - out.len()).min(self.buf.len());
            out.extend_from_slice(self.take(piece, what)?);
        }
        Ok(out.into())
    }

    /// Moves on by `n` bytes without reading them.
    #[inline]
    pub fn skip(&mut self, n: u64, what: fmt::Arguments<'_>) -> Result<()> {
        if n <= (self.filled - self.at) as u64 {
            self.at += n as usize;
            return Ok(());
        }
        self.want(n, what)?;
        self.start = self.pos() + n;
        (self.at, self.filled) = (0, 0);
        Ok(())
    }

    /// Goes back to `pos`, which lies in what was read last.
    ///
    /// # Panics
    /// If it does not.
    pub fn rewind(&mut self, pos: u64) {
        assert!((self.start..=self.pos()).contains(&pos), "rewinding out of the buffer");
        self.at = (pos - self.start) as usize;
    }

    /// The next `N` bytes, to be decoded by one of the `from_le_bytes`.
    #[inline]
    pub fn bytes<const N: usize>(&mut self, what: fmt::Arguments<'_>) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: fmt::Arguments<'_>) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    #[inline]
    pub fn u64(&mut self, what: fmt::Arguments<'_>) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Gives at most three bytes per call, and is interrupted by a signal every other time.
    struct Stutter(Vec<u8>, AtomicBool);

    impl Source for Stutter {
        fn byte_len(&self) -> io::Result<u64> {
            self.0.byte_len()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            if self.1.fetch_xor(true, Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = buf.len().min(3);
            self.0.read_at(offset, &mut buf[..n])
        }
    }

    #[test]
    fn short_reads_do_not_show() {
        let data: Vec<u8> = (0..200).collect();
        let source = Stutter(data.clone(), AtomicBool::new(true));
        let mut cursor = Cursor::new(&source, 200, 0, 199);
        let mut seen = cursor.take_owned(50, format_args!("a")).unwrap().into_vec();
        cursor.skip(100, format_args!("b")).unwrap();
        assert_eq!(cursor.pos(), 150);
        seen.extend(cursor.take(49, format_args!("c")).unwrap());
        assert_eq!(seen[..50], data[..50]);
        assert_eq!(seen[50..], data[150..199]);
        assert_eq!(cursor.left(), 0);
    }

    #[test]
    fn the_end_is_an_error_and_a_limit_another() {
        let data = vec![1u8; 100];
        let mut cursor = Cursor::new(&data, 100, 90, 100);
        let e = cursor.take(11, format_args!("the thing")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Truncated);
        assert!(e.to_string().contains("the thing: wanted 11 bytes, 10 left"), "{e}");
        assert!(cursor.skip(u64::MAX, format_args!("x")).is_err());
        assert_eq!(cursor.take(10, format_args!("y")).unwrap(), [1; 10]);

        let mut cursor = Cursor::new(&data, 100, 0, 40);
        assert_eq!(cursor.take(41, format_args!("z")).unwrap_err().kind(), ErrorKind::Limit);
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let data = vec![1u8; 10];
        let mut cursor = Cursor::new(&data, 20, 0, 20);
        assert_eq!(cursor.take(15, format_args!("x")).unwrap_err().kind(), ErrorKind::Truncated);
    }
}
