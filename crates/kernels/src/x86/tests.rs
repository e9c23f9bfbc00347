//! Rows that begin and end at an unreadable page: a kernel that reads a byte too many does not come back.
//!
//! Here and not beside the other tests because taking the right to read away is unsafe code.

use core::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::{Acts, Format, Isa, QuantRows, Tuning, dequantise, matmul};

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

/// Every way in which a level takes rows and tokens, for rows that begin where the readable bytes do or end where they end:
/// 16 rows and twice that stand in lanes, four blocks of 32 are taken at once, panels are for 12 tokens or more.
#[test]
fn rows_between_unreadable_pages() {
    const ROWS: [usize; 10] = [1, 2, 7, 8, 9, 15, 16, 17, 32, 33];
    const TOKENS: [usize; 7] = [1, 2, 6, 8, 9, 12, 13];
    let (most_rows, most_tokens) = (33, 13);
    let mut guarded = Guarded::new();
    for format in Format::ALL {
        // For formats without blocks every length of the tail.
        let shapes = match format.block_len() {
            1 => (1..=33).collect::<Vec<_>>(),
            32 => (1..=9).collect(),
            // From 16 on rows are taken by fours, four blocks of each at a time.
            _ => (1..=3).chain(16..=19).collect(),
        };
        for cols in shapes.into_iter().map(|n| n * format.block_len()) {
            let row_bytes = format.row_bytes(cols).unwrap();
            let bytes: Vec<u8> = (0..most_rows * row_bytes).map(|i| (i * 31 % 251) as u8 & 0x3f).collect();
            let values: Vec<f32> = (0..most_tokens * cols).map(|i| (i % 17) as f32 - 8.0).collect();
            let acts = |isa, tokens| {
                let mut x = Acts::new();
                x.fill(&values[..tokens * cols], cols);
                x.prepare(isa, format);
                x
            };
            let mut wanted = vec![0.0; most_rows * most_tokens];
            let w = QuantRows::new(format, cols, &bytes).unwrap();
            matmul(Isa::scalar(), w, &acts(Isa::scalar(), most_tokens), &mut wanted);
            // A tile unit from the first token on, too.
            let tiles = |isa: Isa| isa.with_tuning(Tuning { tile_tokens: 1, ..isa.tuning() });
            for isa in Isa::available().into_iter().map(tiles) {
                for (rows, at_end) in ROWS.into_iter().flat_map(|rows| [(rows, false), (rows, true)]) {
                    let bytes = guarded.place(&bytes[..rows * row_bytes], at_end);
                    let w = QuantRows::new(format, cols, bytes).unwrap();
                    for tokens in TOKENS {
                        let mut got = vec![0.0; rows * tokens];
                        matmul(isa, w, &acts(isa, tokens), &mut got);
                        for (got, wanted) in got.chunks_exact(tokens).zip(wanted.chunks_exact(most_tokens)) {
                            let same = got.iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                            assert!(same, "{format}, {rows} × {cols}, {tokens} tokens, {isa}");
                        }
                    }
                    dequantise(isa, w, &mut vec![0.0; rows * cols]);
                }
            }
        }
    }
}
