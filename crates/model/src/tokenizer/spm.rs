//! SentencePiece's merging by score: characters are joined with their neighbour wherever the result is a token, the
//! result with the highest score first; characters that are no token become byte tokens.

use super::vocab::{MAX_PART, NONE, TokenKind, Vocab};
use std::borrow::Cow;
use std::collections::BinaryHeap;

/// SentencePiece writes a space as U+2581, also inside tokens.
const SPACE: &[u8] = "\u{2581}".as_bytes();

/// A SentencePiece tokenizer over a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Spm {
    scores: Vec<f32>,       // by id
    bytes: Box<[u32; 256]>, // the token of each byte, or NONE
    space_prefix: bool,
}

/// A run of bytes of the text that is one token or one character; the live ones form a list.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32, // in bytes
    len: u32,   // 0 once merged into the one before
    prev: u32,  // index of the neighbour, NONE at the ends
    next: u32,
}

/// A possible merge. Ordered by its first field: score, then leftmost.
type Candidate = (u64, u32); // (priority and index of the left symbol, length of the result in bytes)

impl Spm {
    /// A tokenizer from a score per token; a space goes before the text (and after a special token) if `space_prefix`.
    pub(super) fn new(vocab: &Vocab, scores: Vec<f32>, space_prefix: bool) -> Spm {
        let mut bytes = Box::new([NONE; 256]);
        for id in 0..vocab.len() as u32 {
            if vocab.kind(id) == TokenKind::Byte
                && let Some(byte) = super::vocab::byte_value(vocab.text(id))
                && bytes[byte as usize] == NONE
            {
                bytes[byte as usize] = id;
            }
        }
        Spm { scores, bytes, space_prefix }
    }

    /// Whether a space goes before the text.
    pub(super) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// How many of the 256 bytes have no byte token.
    pub(super) fn missing_bytes(&self) -> usize {
        self.bytes.iter().filter(|&&id| id == NONE).count()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.scores.capacity() * size_of::<f32>() + size_of::<[u32; 256]>()
    }

    /// Appends the tokens of `text`, a stretch without special tokens that begins the text or follows a special
    /// token. Characters that are no token become byte tokens, and so do bytes that are not UTF-8. Bytes that have
    /// no byte token become `unknown`, one for a run of them, or nothing when there is none. Takes O(n log n).
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], unknown: Option<u32>, ids: &mut Vec<u32>) {
        let mut spaced = Vec::with_capacity(text.len() + text.len() / 4 + SPACE.len());
        if self.space_prefix {
            spaced.extend_from_slice(SPACE);
        }
        for &byte in text {
            match byte {
                b' ' => spaced.extend_from_slice(SPACE),
                _ => spaced.push(byte),
            }
        }
        for part in spaced.chunks(MAX_PART) {
            self.encode_spaced(vocab, part, unknown, ids);
        }
    }

    fn encode_spaced(&self, vocab: &Vocab, text: &[u8], unknown: Option<u32>, ids: &mut Vec<u32>) {
        let mut symbols = characters(text);
        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len() as u32 {
            queue.extend(self.candidate(vocab, text, &symbols, left));
        }
        while let Some((priority, len)) = queue.pop() {
            let at = !(priority as u32);
            let Symbol { start, len: left_len, prev, next } = symbols[at as usize];
            // Either symbol may have grown or gone since the pair was queued.
            if left_len == 0 || next == NONE || left_len + symbols[next as usize].len != len {
                continue;
            }
            let after = symbols[next as usize].next;
            symbols[next as usize].len = 0;
            symbols[at as usize] = Symbol { start, len, prev, next: after };
            if after != NONE {
                symbols[after as usize].prev = at;
            }
            if prev != NONE {
                queue.extend(self.candidate(vocab, text, &symbols, prev));
            }
            queue.extend(self.candidate(vocab, text, &symbols, at));
        }
        let mut after_unknown = false;
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let Symbol { start, len, next, .. } = symbols[at as usize];
            let bytes = &text[start as usize..(start + len) as usize];
            let known = vocab.find_plain(bytes);
            let spelled = known.is_some() || bytes.iter().all(|&b| self.bytes[b as usize] != NONE);
            match known {
                Some(id) => ids.push(id),
                None if spelled => ids.extend(bytes.iter().map(|&b| self.bytes[b as usize])),
                None if !after_unknown => ids.extend(unknown),
                None => {}
            }
            after_unknown = !spelled;
            at = next;
        }
    }

    /// The merge of symbol `left` with the one after it, if that makes a token.
    fn candidate(&self, vocab: &Vocab, text: &[u8], symbols: &[Symbol], left: u32) -> Option<Candidate> {
        let Symbol { start, len, next, .. } = symbols[left as usize];
        if next == NONE {
            return None;
        }
        let len = len + symbols[next as usize].len;
        let id = vocab.find_plain(&text[start as usize..(start + len) as usize])?;
        let priority = u64::from(ascending(self.scores[id as usize])) << 32 | u64::from(!left);
        Some((priority, len))
    }
}

/// A number that orders as the score does (the bits of a float, with the negative ones turned round).
fn ascending(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits(); // −0 and 0 are the same score
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// One symbol for each character; a byte that is not UTF-8 is one by itself.
fn characters(text: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    for chunk in text.utf8_chunks() {
        let lens = chunk.valid().chars().map(char::len_utf8).chain(chunk.invalid().iter().map(|_| 1));
        for len in lens {
            let at = symbols.len() as u32;
            symbols.push(Symbol {
                start,
                len: len as u32,
                prev: at.checked_sub(1).unwrap_or(NONE),
                next: at + 1,
            });
            start += len as u32;
        }
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    symbols
}

/// A token's text with its spaces written as spaces.
pub(super) fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.windows(SPACE.len()).any(|window| window == SPACE) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let space = rest.strip_prefix(SPACE);
        out.push(if space.is_some() { b' ' } else { byte });
        rest = space.unwrap_or(after);
    }
    Cow::Owned(out)
}

/// Whether ordinary text can become this token.
pub(super) fn is_plain(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::UserDefined)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `<unk>`, optionally the 256 byte tokens, then the given ones.
    fn spm(tokens: &[(&str, f32)], with_bytes: bool, space_prefix: bool) -> (Vocab, Spm) {
        let mut vocab = Vocab::with_capacity(0, 0);
        let (mut kinds, mut scores) = (vec![TokenKind::Unknown], vec![0.0]);
        vocab.push(b"<unk>");
        for byte in 0..=255u8 {
            if with_bytes {
                vocab.push(format!("<0x{byte:02X}>").as_bytes());
                kinds.push(TokenKind::Byte);
                scores.push(0.0);
            }
        }
        for &(text, score) in tokens {
            vocab.push(text.as_bytes());
            kinds.push(TokenKind::Normal);
            scores.push(score);
        }
        vocab.set_kinds(&kinds);
        vocab.index(|_, kind| is_plain(kind));
        let spm = Spm::new(&vocab, scores, space_prefix);
        (vocab, spm)
    }

    fn texts((vocab, spm): &(Vocab, Spm), text: &[u8]) -> Vec<String> {
        let mut ids = Vec::new();
        spm.encode(vocab, text, Some(0), &mut ids);
        ids.iter().map(|&id| String::from_utf8_lossy(vocab.text(id)).into_owned()).collect()
    }

    const TOKENS: [(&str, f32); 8] = [
        ("▁", -5.0),
        ("a", -6.0),
        ("b", -7.0),
        ("ab", -2.0),
        ("▁a", -1.0),
        ("ba", -1.0),
        ("aa", -3.0),
        ("aba", -4.0),
    ];

    #[test]
    fn highest_score_first_then_leftmost() {
        let vocab = spm(&TOKENS, true, false);
        assert_eq!(texts(&vocab, b"ab"), ["ab"]);
        assert_eq!(texts(&vocab, b"aba"), ["aba"]); // "ba" wins over "ab", then a + ba
        assert_eq!(texts(&vocab, b"aaa"), ["aa", "a"]);
        assert_eq!(texts(&vocab, b" ab"), ["▁a", "b"]);
        assert_eq!(texts(&vocab, "\u{2581}a".as_bytes()), ["▁a"]); // U+2581 and the space are one to SentencePiece
    }

    #[test]
    fn the_space_prefix_comes_on_top_of_the_texts_own_space() {
        assert_eq!(texts(&spm(&TOKENS, true, true), b"a"), ["▁a"]);
        assert_eq!(texts(&spm(&TOKENS, true, true), b" a"), ["▁", "▁a"]);
        assert_eq!(texts(&spm(&TOKENS, true, false), b"a"), ["a"]);
    }

    #[test]
    fn what_is_no_token_becomes_bytes_whatever_they_are() {
        let vocab = spm(&TOKENS, true, false);
        assert_eq!(texts(&vocab, "é".as_bytes()), ["<0xC3>", "<0xA9>"]);
        assert_eq!(texts(&vocab, b"\xE6ab\xAD"), ["<0xE6>", "ab", "<0xAD>"]);
        assert_eq!(texts(&vocab, b"\xED\xA0\x80\xFF"), ["<0xED>", "<0xA0>", "<0x80>", "<0xFF>"]);
        assert!(texts(&vocab, b"").is_empty());
    }

    #[test]
    fn without_byte_tokens_a_run_of_unknown_text_is_one_unknown_token() {
        let vocab = spm(&TOKENS, false, true);
        assert_eq!(vocab.1.missing_bytes(), 256);
        assert_eq!(texts(&vocab, "你\n".as_bytes()), ["▁", "<unk>"]);
        assert_eq!(texts(&vocab, "你a你".as_bytes()), ["▁", "<unk>", "a", "<unk>"]);
        let mut ids = Vec::new();
        vocab.1.encode(&vocab.0, "你a".as_bytes(), None, &mut ids);
        assert_eq!(ids.len(), 2);
    }

    #[test]
    fn spaces_in_tokens() {
        assert_eq!(unescape("▁▁a▁".as_bytes()), &b"  a "[..]);
        assert!(matches!(unescape(b"ab"), Cow::Borrowed(b"ab")));
    }

    #[test]
    fn scores_order_as_numbers() {
        let ordered = [f32::NEG_INFINITY, -1e9, -1.0, -0.0, 1e-40, 2.0, f32::INFINITY];
        assert!(ordered.windows(2).all(|w| ascending(w[0]) < ascending(w[1])));
        assert_eq!(ascending(-0.0), ascending(0.0));
    }

    #[test]
    fn a_million_equal_letters_end_soon() {
        let mut ids = Vec::new();
        let (vocab, spm) = spm(&TOKENS, true, false);
        spm.encode(&vocab, &vec![b'a'; 1_000_001], None, &mut ids);
        assert_eq!(ids.len(), 500_001); // quadratic would take hours
    }
}
