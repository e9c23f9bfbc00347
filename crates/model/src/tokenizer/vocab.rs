//! The vocabulary: all token texts in one blob, their kinds, and the hash indices that find a token by its text.
//!
//! A map from strings to ids would cost some 60 bytes a token; here a token costs its text and 13 bytes.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// The id that stands for "no token". No vocabulary reaches it: loading refuses more than `u32::MAX` tokens.
pub(super) const NONE: u32 = u32::MAX;

/// Longest stretch of text whose symbols are numbered together, in bytes: their numbers have 32 bits, some of which
/// mean other things. No context holds as much.
pub(super) const MAX_PART: usize = 1 << 30;

/// What a token is for, as `tokenizer.ggml.token_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Steers the model (begin of text, end of turn, …); never printed, and found in text only on request.
    Control,
    /// Text added to the vocabulary later; always found in text, before everything else.
    UserDefined,
    /// A reserved place without meaning; never printed.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// The kind for a number of `tokenizer.ggml.token_type` (1 to 6, as in the GGUF specification), `None` for others.
    pub(super) fn from_number(number: i64) -> Option<TokenKind> {
        Some(match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// A hash set of u32 by open addressing: the keys live elsewhere (in the blob, in the merge list), so the caller
/// brings the hash and the comparison. Bits that the entries leave free hold bits of the hash, so that a
/// comparison, which costs a trip to memory, is rarely made in vain.
///
/// Keyed with the standard library's randomly seeded SipHash: a file cannot be made so that its entries collide.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    slots: Vec<u32>, // NONE = free, else bits of the hash above the entry
    entry_mask: u32,
    hasher: RandomState,
}

impl Slots {
    /// Room for `count` entries, each of them less than `below`. There are twice as many slots, so that a look-up that
    /// fails, the usual kind, takes 2.5 probes.
    pub(super) fn new(count: usize, below: usize) -> Slots {
        // One more than the entries need: no slot in use looks like a free one.
        let entry_mask = u32::MAX.checked_shr((below as u32).leading_zeros()).unwrap_or(0);
        Slots { slots: vec![NONE; (count * 2).max(1)], entry_mask, hasher: RandomState::new() }
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
    /// If more entries are added than there was room asked for, twice over.
    pub(super) fn enter(&mut self, hash: u64, entry: u32, equal: impl FnMut(u32) -> bool) -> Option<u32> {
        match self.walk(hash, equal) {
            Ok(found) => Some(found),
            Err(free) => {
                self.slots[free.expect("room for every entry")] = self.tag(hash) | entry;
                None
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    /// The entry looked for, or else the free slot where the search ended.
    fn walk(&self, hash: u64, mut equal: impl FnMut(u32) -> bool) -> Result<u32, Option<usize>> {
        // The upper half of the hash, scaled, says where to begin: no power of two is needed.
        let home = ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize;
        let tag = self.tag(hash);
        for at in (home..self.slots.len()).chain(0..home) {
            let slot = self.slots[at];
            if slot == NONE {
                return Err(Some(at));
            }
            let entry = slot & self.entry_mask;
            if slot & !self.entry_mask == tag && equal(entry) {
                return Ok(entry);
            }
        }
        Err(None)
    }

    fn tag(&self, hash: u64) -> u32 {
        hash as u32 & !self.entry_mask
    }
}

/// Token texts and kinds by id, and ids by text.
#[derive(Clone, Debug)]
pub(super) struct Vocab {
    blob: Vec<u8>,
    ends: Vec<u32>, // token i is blob[ends[i - 1]..ends[i]]
    kinds: Vec<TokenKind>,
    plain: Slots,   // tokens that ordinary text can become
    special: Slots, // control, unknown and user-defined tokens, by the text that users and templates write
    longest: usize, // bytes of the longest token in `plain`
}

impl Vocab {
    /// An empty vocabulary with room for `count` tokens.
    pub(super) fn with_capacity(count: usize) -> Vocab {
        Vocab {
            blob: Vec::new(),
            ends: Vec::with_capacity(count),
            kinds: Vec::new(),
            plain: Slots::new(0, 0),
            special: Slots::new(0, 0),
            longest: 0,
        }
    }

    /// Appends the next token's text. False if the blob would outgrow its 32-bit offsets.
    pub(super) fn push(&mut self, text: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.blob.len() + text.len()) else {
            return false;
        };
        self.blob.extend_from_slice(text);
        self.ends.push(end);
        true
    }

    /// Sets the kinds (as many as tokens).
    pub(super) fn set_kinds(&mut self, kinds: Vec<TokenKind>) {
        debug_assert_eq!(kinds.len(), self.ends.len());
        self.kinds = kinds;
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    /// Turns every token's text into what `decode` makes of it, in place; `None` leaves it as it is. The new text must
    /// not be longer.
    pub(super) fn rewrite(&mut self, mut decode: impl FnMut(u32, &[u8], &mut Vec<u8>) -> bool) {
        let (mut from, mut to) = (0, 0);
        let mut text = Vec::new();
        for id in 0..self.ends.len() {
            let end = self.ends[id] as usize;
            text.clear();
            if decode(id as u32, &self.blob[from..end], &mut text) {
                assert!(text.len() <= end - from, "a rewritten token is not longer");
                self.blob[to..to + text.len()].copy_from_slice(&text);
                to += text.len();
            } else {
                self.blob.copy_within(from..end, to);
                to += end - from;
            }
            from = end;
            self.ends[id] = to as u32;
        }
        self.blob.truncate(to);
    }

    /// Builds both indices; `plain(id)` tells whether ordinary text may become that token. Of tokens with one text the
    /// lowest id is found. Returns the first two ids that share a text.
    pub(super) fn index(&mut self, mut plain: impl FnMut(u32, TokenKind) -> bool) -> Option<(u32, u32)> {
        self.blob.shrink_to_fit();
        let is_special =
            |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
        let (mut plains, mut specials) = (0, 0);
        for (id, &kind) in self.kinds.iter().enumerate() {
            plains += usize::from(plain(id as u32, kind));
            specials += usize::from(is_special(kind));
        }
        let slots = |count| Slots::new(count, self.len());
        let (mut plain_slots, mut special_slots) = (slots(plains), slots(specials));
        let (mut longest, mut duplicate) = (0, None);
        for (id, &kind) in self.kinds.iter().enumerate() {
            let id = id as u32;
            let text = self.text(id);
            if text.is_empty() {
                continue; // an empty text would be found everywhere
            }
            let mut enter = |slots: &mut Slots| {
                let first = slots.enter(slots.hash(text), id, |other| self.text(other) == text);
                duplicate = duplicate.or(first.map(|first| (first, id)));
            };
            if plain(id, kind) {
                longest = longest.max(text.len());
                enter(&mut plain_slots);
            }
            if is_special(kind) {
                enter(&mut special_slots);
            }
        }
        (self.plain, self.special, self.longest) = (plain_slots, special_slots, longest);
        duplicate
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of a token as stored.
    ///
    /// # Panics
    /// If there is no such token.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.blob[start..self.ends[id] as usize]
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    /// The token that ordinary text becomes.
    pub(super) fn find_plain(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        self.plain.find(self.plain.hash(text), |id| self.text(id) == text)
    }

    /// The control, unknown or user-defined token with this text.
    pub(super) fn find_special(&self, text: &[u8]) -> Option<u32> {
        self.special.find(self.special.hash(text), |id| self.text(id) == text)
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.blob.capacity()
            + self.ends.capacity() * size_of::<u32>()
            + self.kinds.capacity() * size_of::<TokenKind>()
            + self.plain.heap_bytes()
            + self.special.heap_bytes()
    }
}

/// The value of a byte token's text, `<0x00>` to `<0xFF>`.
pub(super) fn byte_value(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let [high, low] = hex else { return None };
    let digit = |d: u8| char::from(d).to_digit(16);
    Some((digit(*high)? * 16 + digit(*low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[(&[u8], TokenKind)]) -> (Vocab, Option<(u32, u32)>) {
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (text, _) in tokens {
            assert!(vocab.push(text));
        }
        vocab.set_kinds(tokens.iter().map(|&(_, kind)| kind).collect());
        let duplicate = vocab.index(|_, kind| kind == TokenKind::Normal);
        (vocab, duplicate)
    }

    #[test]
    fn plain_and_special_texts_are_kept_apart() {
        let (vocab, duplicate) =
            vocab(&[(b"<s>", TokenKind::Control), (b"<s>", TokenKind::Normal), (b"", TokenKind::Normal)]);
        assert_eq!(duplicate, None);
        assert_eq!(vocab.find_special(b"<s>"), Some(0));
        assert_eq!(vocab.find_plain(b"<s>"), Some(1));
        assert_eq!(vocab.find_plain(b""), None);
        assert_eq!(vocab.find_plain(b"longer than any token"), None);
        assert_eq!(vocab.text(2), b"");
    }

    #[test]
    fn the_lowest_of_equal_tokens_is_found() {
        let (vocab, duplicate) =
            vocab(&[(b"x", TokenKind::Normal), (b"in", TokenKind::Normal), (b"in", TokenKind::Normal)]);
        assert_eq!(duplicate, Some((1, 2)));
        assert_eq!(vocab.find_plain(b"in"), Some(1));
    }

    #[test]
    fn rewriting_shortens_in_place() {
        let (mut vocab, _) =
            vocab(&[(b"abc", TokenKind::Normal), (b"keep", TokenKind::Control), (b"xyz", TokenKind::Normal)]);
        vocab.rewrite(|id, text, out| {
            out.extend_from_slice(&text[..1]);
            id != 1
        });
        assert_eq!([vocab.text(0), vocab.text(1), vocab.text(2)], [&b"a"[..], b"keep", b"x"]);
    }

    #[test]
    fn slots_find_what_was_put_in() {
        for below in [1000, 1023, 1024, MAX_PART * 2, NONE as usize - 1] {
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
    fn byte_values() {
        assert_eq!(byte_value(b"<0x00>"), Some(0));
        assert_eq!(byte_value(b"<0xfF>"), Some(255));
        for bad in [&b"<0x0>"[..], b"<0x000>", b"0x00", b"<0xG0>", b"<0x+1>"] {
            assert_eq!(byte_value(bad), None);
        }
    }
}
