//! Tables that cost little more than what is in them: lengths in a bit string, and a hash set of packed numbers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;

/// Ranges of [`Spans`] to a sample. A look-up passes over half as many on average: of tokens a word holds nine lengths,
/// so that is four words, while the samples take one bit a range.
const PER_SAMPLE: usize = 64;

/// Consecutive ranges, given by their lengths: those of tokens in a blob, those of merges in a list.
///
/// A length of n is n zero bits and a one, which is short where lengths are small: 7.4 bits for a token of Llama 3,
/// where the end of its range as a number would take 32.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    bits: Vec<u64>,    // the first length begins at the lowest bit of the first word
    samples: Vec<u64>, // the bit where the length of range 0, PER_SAMPLE, … begins
    len: usize,        // ranges
    used: u64,         // bits
}

impl Spans {
    /// Room for `count` ranges of `total` all together. Memory is touched only as it fills.
    pub(super) fn with_capacity(count: usize, total: usize) -> Spans {
        Spans {
            bits: Vec::with_capacity((count + total).div_ceil(64)),
            samples: Vec::with_capacity(count.div_ceil(PER_SAMPLE)),
            ..Spans::default()
        }
    }

    /// Appends a range of this length.
    pub(super) fn push(&mut self, length: usize) {
        if self.len.is_multiple_of(PER_SAMPLE) {
            self.samples.push(self.used);
        }
        let one = self.used + length as u64;
        self.bits.resize((one / 64) as usize + 1, 0);
        self.bits[(one / 64) as usize] |= 1 << (one % 64);
        (self.used, self.len) = (one + 1, self.len + 1);
    }

    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Range `index`.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn get(&self, index: usize) -> Range<usize> {
        assert!(index < self.len, "range {index} of {}", self.len);
        let mut begin = self.samples[index / PER_SAMPLE];
        let passed = index % PER_SAMPLE;
        if passed > 0 {
            begin = self.nth_one(begin, passed - 1) + 1;
        }
        let one = self.nth_one(begin, 0);
        // Each range before this one has its own bit behind it.
        (begin as usize - index)..(one as usize - index)
    }

    /// The place of one bit number `n` at or behind bit `from`.
    fn nth_one(&self, from: u64, mut n: usize) -> u64 {
        let mut at = (from / 64) as usize;
        let mut word = self.bits[at] & (u64::MAX << (from % 64));
        while n >= word.count_ones() as usize {
            n -= word.count_ones() as usize;
            at += 1;
            word = self.bits[at];
        }
        for _ in 0..n {
            word &= word - 1;
        }
        at as u64 * 64 + u64::from(word.trailing_zeros())
    }

    /// All ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.len).scan((0, 0), |(begin, start), _| {
            let one = self.nth_one(*begin, 0);
            let length = (one - *begin) as usize;
            (*begin, *start) = (one + 1, *start + length);
            Some(*start - length..*start)
        })
    }

    /// Gives back room that was not used.
    pub(super) fn shrink(&mut self) {
        self.bits.shrink_to_fit();
        self.samples.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        (self.bits.capacity() + self.samples.capacity()) * size_of::<u64>()
    }
}

/// Bits of the hash that a slot holds at least. A look-up that fails meets eight slots in use, so with 4 bits it compares
/// a text in vain every other time; vocabularies in use leave 7 or more.
const TAG_BITS: u32 = 4;

/// A hash set of numbers by open addressing: the keys live elsewhere (in the blob), so the caller brings the hash and the
/// comparison. Slots are as many bytes wide as it takes; the bits that the entries leave free hold bits of the hash, so
/// that a comparison, which costs a trip to memory, is rarely made in vain.
///
/// Keyed with the standard library's randomly seeded SipHash: a file cannot be made so that its entries collide.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    bytes: Vec<u8>, // `width` for each slot, all ones = free, else bits of the hash above the entry; 3 more at the end
    width: usize,
    slots: usize,
    entry_mask: u32,
    hasher: RandomState,
}

impl Slots {
    /// Room for `count` entries, each of them less than `below`. A quarter of the slots stay free, so that a look-up that
    /// fails, the usual kind, takes 8.5 probes (linear probing: half of 1 + 1/(1 − load)²) of 2 or 3 bytes side by side.
    pub(super) fn new(count: usize, below: usize) -> Slots {
        // One more than the entries need: no slot in use looks like a free one.
        let entry_bits = u32::BITS - (below as u32).leading_zeros();
        let width = (entry_bits + TAG_BITS).div_ceil(8).min(4) as usize;
        let slots = count + count / 3 + 1;
        // Slots are read as 4 bytes of which `width` count, also the last one.
        let bytes = vec![0xFF; slots * width + (4 - width)];
        let entry_mask = u32::MAX.checked_shr(u32::BITS - entry_bits).unwrap_or(0);
        Slots { bytes, width, slots, entry_mask, hasher: RandomState::new() }
    }

    /// The hash to pass to `find` and `enter`.
    pub(super) fn hash<K: std::hash::Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The entry with this hash for which `equal` holds.
    pub(super) fn find(&self, hash: u64, equal: impl FnMut(u32) -> bool) -> Option<u32> {
        self.walk(hash, equal).ok()
    }

    /// The entry with this hash for which `equal` holds; if there is none, `entry` goes in.
    ///
    /// # Panics
    /// If more entries are added than there was room asked for, a third more.
    pub(super) fn enter(&mut self, hash: u64, entry: u32, equal: impl FnMut(u32) -> bool) -> Option<u32> {
        match self.walk(hash, equal) {
            Ok(found) => Some(found),
            Err(free) => {
                let at = free.expect("room for every entry") * self.width;
                let slot = (self.tag(hash) | entry).to_le_bytes();
                self.bytes[at..at + self.width].copy_from_slice(&slot[..self.width]);
                None
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The entry looked for, or else the free slot where the search ended.
    fn walk(&self, hash: u64, mut equal: impl FnMut(u32) -> bool) -> Result<u32, Option<usize>> {
        // The upper half of the hash, scaled, says where to begin: no power of two is needed.
        let home = ((u128::from(hash) * self.slots as u128) >> 64) as usize;
        let (tag, free) = (self.tag(hash), self.slot_mask());
        for at in (home..self.slots).chain(0..home) {
            let slot = self.slot(at);
            if slot == free {
                return Err(Some(at));
            }
            let entry = slot & self.entry_mask;
            if slot & !self.entry_mask == tag && equal(entry) {
                return Ok(entry);
            }
        }
        Err(None)
    }

    fn slot(&self, at: usize) -> u32 {
        let at = at * self.width;
        let raw = self.bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(raw) & self.slot_mask()
    }

    /// The bits of a slot, which are also a free one's value.
    fn slot_mask(&self) -> u32 {
        u32::MAX >> (32 - 8 * self.width)
    }

    fn tag(&self, hash: u64) -> u32 {
        hash as u32 & self.slot_mask() & !self.entry_mask
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::NONE;
    use super::*;

    #[test]
    fn spans_give_back_what_was_pushed() {
        let lengths = (0..1000usize).map(|i| match i % 97 {
            0 => 0,
            1 => 200,
            n => n % 9,
        });
        let mut spans = Spans::with_capacity(1000, 7000);
        let mut wanted = Vec::new();
        let mut start = 0;
        for length in lengths {
            spans.push(length);
            wanted.push(start..start + length);
            start += length;
        }
        assert_eq!(spans.len(), 1000);
        assert!(spans.iter().eq(wanted.iter().cloned()));
        for (i, range) in wanted.iter().enumerate() {
            assert_eq!(spans.get(i), *range, "{i}");
        }
    }

    #[test]
    fn spans_at_the_borders_of_words() {
        for first in 60..70 {
            let mut spans = Spans::default();
            [first, 0, 63, 64, 65, 0, 0].iter().for_each(|&n| spans.push(n));
            assert_eq!(spans.get(0), 0..first);
            assert_eq!(spans.get(1), first..first);
            assert_eq!(spans.get(4), first + 127..first + 192);
            assert_eq!(spans.get(6), first + 192..first + 192);
        }
        assert_eq!(Spans::default().iter().count(), 0);
    }

    #[test]
    fn slots_find_what_was_put_in() {
        for below in [1000, 1023, 1024, 1 << 12, 1 << 20, 1 << 21, 1 << 31, NONE as usize - 1] {
            let mut slots = Slots::new(1000, below);
            let entries = (below - 1000) as u32..below as u32;
            for entry in entries.clone() {
                assert_eq!(slots.enter(slots.hash(&entry), entry, |e| e == entry), None);
            }
            for entry in entries {
                assert_eq!(slots.find(slots.hash(&entry), |e| e == entry), Some(entry));
                assert_eq!(slots.enter(slots.hash(&entry), entry, |e| e == entry), Some(entry));
            }
            assert_eq!(slots.find(slots.hash(&u32::MAX), |_| false), None);
        }
        assert_eq!(Slots::new(0, 0).find(7, |_| true), None);
    }

    #[test]
    fn a_full_table_still_ends_its_searches() {
        let mut slots = Slots::new(1, 8);
        for entry in 0..2 {
            slots.enter(u64::from(entry) << 40, entry, |_| false);
        }
        assert_eq!(slots.find(0, |_| false), None);
    }
}
