//! The vocabulary: all token texts in one blob, their kinds, and the hash indices that find a token by its text.
//!
//! A map from strings to ids would cost some 60 bytes a token; here a token of 6 bytes costs its text and 5 bytes.

use super::compact::{Slots, Spans};

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

/// Token texts and kinds by id, and ids by text.
#[derive(Clone, Debug)]
pub(super) struct Vocab {
    blob: Vec<u8>,
    spans: Spans,                 // token i is blob[spans[i]]
    kinds: Vec<(u32, TokenKind)>, // runs: the first id, and what it and those up to the next run are; rarely ten runs
    plain: Slots,                 // tokens that ordinary text can become
    special: Slots, // control, unknown and user-defined tokens, by the text that users and templates write
    longest: usize, // bytes of the longest token in `plain`
}

impl Vocab {
    /// An empty vocabulary with room for `count` tokens of `bytes` all together.
    pub(super) fn with_capacity(count: usize, bytes: usize) -> Vocab {
        Vocab {
            blob: Vec::with_capacity(bytes),
            spans: Spans::with_capacity(count, bytes),
            kinds: Vec::new(),
            plain: Slots::new(0, 0),
            special: Slots::new(0, 0),
            longest: 0,
        }
    }

    /// Appends the next token's text.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.blob.extend_from_slice(text);
        self.spans.push(text.len());
    }

    /// Sets the kinds, which are as many as tokens.
    pub(super) fn set_kinds(&mut self, kinds: &[TokenKind]) {
        debug_assert_eq!(kinds.len(), self.len());
        self.kinds.clear();
        for (id, &kind) in kinds.iter().enumerate() {
            if self.kinds.last().is_none_or(|&(_, last)| last != kind) {
                self.kinds.push((id as u32, kind));
            }
        }
        self.kinds.shrink_to_fit();
    }

    /// Turns every token's text into what `decode` makes of it, in place; false leaves it as it is. The new text must
    /// not be longer.
    pub(super) fn rewrite(&mut self, mut decode: impl FnMut(u32, &[u8], &mut Vec<u8>) -> bool) {
        let old = std::mem::take(&mut self.spans);
        let mut spans = Spans::with_capacity(old.len(), self.blob.len());
        let mut to = 0;
        let mut text = Vec::new();
        for (id, from) in old.iter().enumerate() {
            text.clear();
            let len = if decode(id as u32, &self.blob[from.clone()], &mut text) {
                assert!(text.len() <= from.len(), "a rewritten token is not longer");
                self.blob[to..to + text.len()].copy_from_slice(&text);
                text.len()
            } else {
                self.blob.copy_within(from.clone(), to);
                from.len()
            };
            spans.push(len);
            to += len;
        }
        self.blob.truncate(to);
        self.spans = spans;
    }

    /// Builds both indices; `plain(id)` tells whether ordinary text may become that token. Of tokens with one text the
    /// lowest id is found. Returns the first two ids that share a text.
    pub(super) fn index(&mut self, mut plain: impl FnMut(u32, TokenKind) -> bool) -> Option<(u32, u32)> {
        self.blob.shrink_to_fit();
        self.spans.shrink();
        let is_special =
            |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
        let (mut plains, mut specials) = (0, 0);
        for id in 0..self.len() as u32 {
            let kind = self.kind(id);
            plains += usize::from(plain(id, kind));
            specials += usize::from(is_special(kind));
        }
        let slots = |count| Slots::new(count, self.len());
        let (mut plain_slots, mut special_slots) = (slots(plains), slots(specials));
        let (mut longest, mut duplicate) = (0, None);
        for (id, span) in self.spans.iter().enumerate() {
            let (id, text) = (id as u32, &self.blob[span]);
            let kind = self.kind(id);
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
        self.spans.len()
    }

    /// The text of a token as stored.
    ///
    /// # Panics
    /// If there is no such token.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        &self.blob[self.spans.get(id as usize)]
    }

    /// What a token is for. The kinds are set.
    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[self.kinds.partition_point(|&(first, _)| first <= id) - 1].1
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
            + self.spans.heap_bytes()
            + self.kinds.capacity() * size_of::<(u32, TokenKind)>()
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
        let mut vocab = Vocab::with_capacity(0, 0);
        tokens.iter().for_each(|(text, _)| vocab.push(text));
        vocab.set_kinds(&tokens.iter().map(|&(_, kind)| kind).collect::<Vec<_>>());
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
    fn byte_values() {
        assert_eq!(byte_value(b"<0x00>"), Some(0));
        assert_eq!(byte_value(b"<0xfF>"), Some(255));
        for bad in [&b"<0x0>"[..], b"<0x000>", b"0x00", b"<0xG0>", b"<0x+1>"] {
            assert_eq!(byte_value(bad), None);
        }
    }
}
