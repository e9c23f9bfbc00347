//! Byte-level byte-pair encoding (GPT-2's): bytes become tokens, and the pair of neighbours that stands first in the
//! file's list of merges is joined until none is left.
//!
//! Files write bytes as printable characters (a space as `Ġ`); here every token is turned back into its bytes when
//! it is loaded, so that text is looked up as it is.

use super::pretokenize::{self, PreTokenizer};
use super::vocab::{MAX_PART, NONE, Slots, TokenKind, Vocab};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The merges, by rank and by pair.
#[derive(Clone, Debug)]
pub(super) struct Merges {
    list: Vec<[u32; 3]>, // rank → left, right, result
    by_pair: Slots,      // (left, right) → rank
}

impl Merges {
    /// Room for `count` merges.
    pub(super) fn with_capacity(count: usize) -> Merges {
        Merges { list: Vec::with_capacity(count), by_pair: Slots::new(count, count) }
    }

    /// Appends the merge of the next rank. A pair that came before keeps its better rank.
    pub(super) fn push(&mut self, left: u32, right: u32, result: u32) {
        let rank = self.list.len() as u32;
        self.list.push([left, right, result]);
        let hash = self.by_pair.hash(&pair(left, right));
        self.by_pair.enter(hash, rank, |other| self.list[other as usize][..2] == [left, right]);
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        let hash = self.by_pair.hash(&pair(left, right));
        self.by_pair.find(hash, |rank| self.list[rank as usize][..2] == [left, right])
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<[u32; 3]>() + self.by_pair.heap_bytes()
    }
}

/// Two ids as one number, which is quicker to hash.
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A byte-level BPE tokenizer over a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    merges: Merges,
    bytes: Box<[u32; 256]>, // the token of each byte, or NONE
    pre: PreTokenizer,
}

/// One token of the piece being merged; the live ones form a list.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,   // DEAD once merged into the one before
    prev: u32, // index of the neighbour, NONE at the ends
    next: u32,
}

/// The id of a symbol that was merged into its left neighbour. (NONE is a byte without a token.)
const DEAD: u32 = NONE - 1;

/// Work space that is kept from piece to piece.
#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32)>>, // (rank, index of the left symbol): lowest rank first, then leftmost
}

impl Bpe {
    /// A tokenizer from merges whose ids are those of `vocab`.
    pub(super) fn new(vocab: &Vocab, merges: Merges, pre: PreTokenizer) -> Bpe {
        let bytes = std::array::from_fn(|byte| vocab.find_plain(&[byte as u8]).unwrap_or(NONE));
        Bpe { merges, bytes: Box::new(bytes), pre }
    }

    /// How many of the bytes that most texts are made of (printable ASCII, newline, the inner bytes of characters)
    /// have no token. Trained vocabularies often lack bytes that they never met.
    pub(super) fn missing_bytes(&self) -> usize {
        let usual = (b' '..=b'~').chain([b'\n']).chain(0x80..=0xBF);
        usual.filter(|&byte| self.bytes[usize::from(byte)] == NONE).count()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.merges.heap_bytes() + size_of::<[u32; 256]>()
    }

    /// Appends the tokens of `text`. Bytes that are not UTF-8 become U+FFFD, one each; bytes that have no token are
    /// left out.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], ids: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        pretokenize::split(self.pre.pattern, &valid_text(text), &mut |piece| {
            if self.pre.whole_pieces
                && let Some(id) = vocab.find_plain(piece)
            {
                ids.push(id);
                return;
            }
            for part in piece.chunks(MAX_PART) {
                self.merge(part, &mut scratch);
                let merged = scratch.symbols.iter().map(|symbol| symbol.id);
                ids.extend(merged.filter(|&id| id != DEAD && id != NONE));
            }
        });
    }

    /// Merges the bytes of a piece; the live symbols of `scratch` are the result.
    /// Takes O(n log n).
    fn merge(&self, piece: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        symbols.extend(piece.iter().enumerate().map(|(at, &byte)| Symbol {
            id: self.bytes[byte as usize],
            prev: (at as u32).checked_sub(1).unwrap_or(NONE),
            next: if at + 1 == piece.len() { NONE } else { at as u32 + 1 },
        }));
        queue.clear();
        for left in 0..symbols.len() as u32 {
            self.offer(symbols, left, queue);
        }
        while let Some(Reverse((rank, at))) = queue.pop() {
            let [left, right, result] = self.merges.list[rank as usize];
            let Symbol { id, prev, next } = symbols[at as usize];
            // Either symbol may have become something else since the pair was queued.
            if id != left || next == NONE || symbols[next as usize].id != right {
                continue;
            }
            let after = symbols[next as usize].next;
            symbols[next as usize].id = DEAD;
            symbols[at as usize] = Symbol { id: result, prev, next: after };
            if after != NONE {
                symbols[after as usize].prev = at;
            }
            if prev != NONE {
                self.offer(symbols, prev, queue);
            }
            self.offer(symbols, at, queue);
        }
    }

    /// Queues the pair that begins at symbol `at`, if there is a merge for it.
    fn offer(&self, symbols: &[Symbol], at: u32, queue: &mut BinaryHeap<Reverse<(u32, u32)>>) {
        let Symbol { id, next, .. } = symbols[at as usize];
        if next != NONE
            && let Some(rank) = self.merges.rank(id, symbols[next as usize].id)
        {
            queue.push(Reverse((rank, at)));
        }
    }
}

/// The text with every byte that is not UTF-8 replaced.
fn valid_text(text: &[u8]) -> Cow<'_, [u8]> {
    if str::from_utf8(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let mut valid = Vec::with_capacity(text.len() + text.len() / 8);
    for chunk in text.utf8_chunks() {
        valid.extend_from_slice(chunk.valid().as_bytes());
        for _ in chunk.invalid() {
            valid.extend_from_slice("\u{FFFD}".as_bytes());
        }
    }
    Cow::Owned(valid)
}

/// Turns a token's text as files write it into the bytes it stands for. False if it holds a character that stands
/// for no byte; `bytes` is then undefined.
pub(super) fn decode_text(text: &[u8], bytes: &mut Vec<u8>) -> bool {
    let Ok(text) = str::from_utf8(text) else {
        return false;
    };
    text.chars().all(|c| byte_of(c).map(|byte| bytes.push(byte)).is_some())
}

/// The byte that a character stands for. Bytes that print in Latin-1 stand for themselves, the other 68 in ascending
/// order for U+0100 and up (the table of GPT-2's encoder).
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8), // 00 to 20
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8), // 7F to A0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Whether ordinary text can become this token.
pub(super) fn is_plain(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::Unused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [0; 256];
        for code in 0..0x400 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                seen[byte as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n == 1));
        let mut bytes = Vec::new();
        assert!(decode_text("Ġthe".as_bytes(), &mut bytes));
        assert_eq!(bytes, b" the");
        bytes.clear();
        assert!(decode_text("åıĤ".as_bytes(), &mut bytes));
        assert_eq!(bytes, "参".as_bytes());
        assert!(!decode_text(b"a b", &mut Vec::new()));
        assert!(!decode_text(b"\xFF", &mut Vec::new()));
    }

    /// Tokens are the letters a to e and what the merges make of them; ids in order of appearance.
    fn bpe(merges: &[(&str, &str)]) -> (Vocab, Bpe) {
        let mut vocab = Vocab::with_capacity(0);
        let joined = merges.iter().map(|(l, r)| format!("{l}{r}"));
        let texts: Vec<String> = "abcde ".chars().map(String::from).chain(joined).collect();
        for text in &texts {
            assert!(vocab.push(text.as_bytes()));
        }
        vocab.set_kinds(vec![TokenKind::Normal; texts.len()]);
        vocab.index(|_, kind| is_plain(kind));
        let mut list = Merges::with_capacity(merges.len());
        let id = |text: &str| vocab.find_plain(text.as_bytes()).unwrap();
        for (l, r) in merges {
            list.push(id(l), id(r), id(&format!("{l}{r}")));
        }
        let bpe = Bpe::new(&vocab, list, PreTokenizer::named("gpt-2").unwrap());
        (vocab, bpe)
    }

    fn texts(vocab: &Vocab, bpe: &Bpe, text: &str) -> Vec<String> {
        let mut ids = Vec::new();
        bpe.encode(vocab, text.as_bytes(), &mut ids);
        ids.iter().map(|&id| String::from_utf8_lossy(vocab.text(id)).into_owned()).collect()
    }

    #[test]
    fn lowest_rank_first_then_leftmost() {
        let (vocab, bpe) = bpe(&[("b", "c"), ("a", "b"), ("ab", "c"), ("d", "d"), ("dd", "dd")]);
        assert_eq!(texts(&vocab, &bpe, "abc"), ["a", "bc"]);
        assert_eq!(texts(&vocab, &bpe, "abab"), ["ab", "ab"]);
        assert_eq!(texts(&vocab, &bpe, "ddd"), ["dd", "d"]);
        assert_eq!(texts(&vocab, &bpe, "ddddddd"), ["dddd", "dd", "d"]);
        assert_eq!(texts(&vocab, &bpe, "a a"), ["a", " ", "a"]);
    }

    /// The definition, slowly: find the best pair, merge its leftmost place, start again.
    fn naive(merges: &[(&str, &str)], text: &str) -> Vec<String> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let best = (1..parts.len())
                .filter_map(|i| {
                    let rank = merges.iter().position(|&(l, r)| parts[i - 1] == l && parts[i] == r)?;
                    Some((rank, i))
                })
                .min();
            let Some((_, i)) = best else { return parts };
            let right = parts.remove(i);
            parts[i - 1] += &right;
        }
    }

    #[test]
    fn equals_the_definition_on_every_short_word() {
        let merges = [
            ("b", "c"),
            ("a", "b"),
            ("a", "a"),
            ("bc", "a"),
            ("aa", "bc"),
            ("c", "c"),
            ("ab", "bc"),
            ("aa", "aa"),
        ];
        let (vocab, bpe) = bpe(&merges);
        for number in 0..3usize.pow(8) {
            let word: String = (0..8).map(|i| ['a', 'b', 'c'][number / 3usize.pow(i) % 3]).collect();
            assert_eq!(texts(&vocab, &bpe, &word), naive(&merges, &word), "{word}");
        }
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        let (vocab, bpe) = bpe(&[("a", "b")]);
        assert_eq!(bpe.missing_bytes(), 95 + 1 + 64 - 6);
        assert_eq!(texts(&vocab, &bpe, "abzab"), ["ab", "ab"]);
        assert_eq!(texts(&vocab, &bpe, "azb"), ["a", "b"]);
    }

    #[test]
    fn what_is_not_utf8_is_replaced_byte_by_byte() {
        assert_eq!(&*valid_text(b"a\xE6\xADb\xFF"), "a\u{FFFD}\u{FFFD}b\u{FFFD}".as_bytes());
        assert!(matches!(valid_text("é".as_bytes()), Cow::Borrowed(_)));
    }

    #[test]
    fn a_million_equal_letters_end_soon() {
        let (vocab, bpe) = bpe(&[("a", "a"), ("aa", "aa"), ("aaaa", "aaaa")]);
        let mut ids = Vec::new();
        bpe.encode(&vocab, &vec![b'a'; 1_000_001], &mut ids);
        assert_eq!(ids.len(), 125_001); // quadratic would take hours
    }
}
