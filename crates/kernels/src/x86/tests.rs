//! Rows that begin and end at an unreadable page: a kernel that reads a byte too many does not come back.
//!
//! Here and not beside the other tests because taking the right to read away is unsafe code.

use core::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::{Acts, Format, Isa, QuantRows, dequantise, matmul};

/// Enough for the rows of the test; a multiple of every page size in use.
const ROOM: usize = 256 << 10;
/// Unreadable bytes on either side, likewise.
const GUARD: usize = 64 << 10;

/// Readable and writable bytes between two runs of unreadable ones.
struct Guarded(NonNull<u8>);

impl Guarded {
    fn new() -> Self {
        // SAFETY: a new mapping at an address of the system's choice takes nothing away from anyone.
        let start = unsafe {
            mmap_anonymous(null_mut(), GUARD + ROOM + GUARD, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let start: *mut u8 = start.expect("memory for a test").cast();
        let room = start.wrapping_add(GUARD);
        // SAFETY: the range is part of the mapping made above, which nobody else knows.
        unsafe { mprotect(room.cast(), ROOM, MprotectFlags::READ | MprotectFlags::WRITE) }
            .expect("readable pages");
        Self(NonNull::new(room).expect("mappings are not at 0"))
    }

    /// `bytes`, ending where the readable bytes end (or beginning where they begin).
    fn place(&mut self, bytes: &[u8], at_end: bool) -> &[u8] {
        // SAFETY: `ROOM` bytes are readable and writable, initialised by the system, and borrowed through `self`.
        let room = unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), ROOM) };
        let start = if at_end { ROOM - bytes.len() } else { 0 };
        let place = &mut room[start..start + bytes.len()];
        place.copy_from_slice(bytes);
        place
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let start = self.0.as_ptr().wrapping_sub(GUARD);
        // SAFETY: this is the whole mapping, and `self` was the only way to it.
        unsafe { munmap(start.cast(), GUARD + ROOM + GUARD) }.expect("a mapping to give back");
    }
}

#[test]
fn rows_between_unreadable_pages() {
    let mut guarded = Guarded::new();
    for format in Format::ALL {
        // For formats without blocks every length of the tail.
        let shapes = if format.block_len() == 1 { 1..=33 } else { 1..=3 };
        for cols in shapes.map(|n| n * format.block_len()) {
            for rows in [1, 2, 7, 8, 9] {
                let bytes: Vec<u8> = (0..rows * format.row_bytes(cols).unwrap())
                    .map(|i| (i * 31 % 251) as u8 & 0x3f)
                    .collect();
                for tokens in [1, 2, 8, 9] {
                    let values: Vec<f32> = (0..tokens * cols).map(|i| (i % 17) as f32 - 8.0).collect();
                    let mut wanted = vec![0.0; rows * tokens];
                    let mut x = Acts::new();
                    x.fill(&values, cols);
                    x.prepare(Isa::scalar(), format);
                    matmul(Isa::scalar(), QuantRows::new(format, cols, &bytes).unwrap(), &x, &mut wanted);
                    for isa in Isa::available() {
                        for at_end in [false, true] {
                            let w = QuantRows::new(format, cols, guarded.place(&bytes, at_end)).unwrap();
                            let mut got = vec![0.0; rows * tokens];
                            matmul(isa, w, &x, &mut got);
                            let same = got.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                            assert!(same, "{format}, {rows} × {cols}, {tokens} tokens, {isa}");
                            dequantise(isa, w, &mut vec![0.0; rows * cols]);
                        }
                    }
                }
            }
        }
    }
}
