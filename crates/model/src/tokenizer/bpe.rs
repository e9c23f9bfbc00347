//! Byte-level byte-pair encoding (GPT-2's): bytes become tokens, and the pair of neighbours that stands first in the
//! file's list of merges is joined until none is left.
//!
//! Files write bytes as printable characters (a space as `Ġ`); here every token is turned back into its bytes when
//! it is loaded, so that text is looked up as it is.
//!
//! A merge is kept as the token that it makes and the length of its left part: both parts are then known by their
//! texts, and a pair of neighbours is looked up by the stretch of text that they cover.

use super::compact::Spans;
use super::pretokenize::{self, PreTokenizer};
use super::vocab::{MAX_PART, NONE, TokenKind, Vocab};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The merges, in groups that make the same token.
#[derive(Clone, Debug)]
pub(super) struct Merges {
    groups: Spans, // the merges that make token i are those in groups[i]; tokens after the last that is made have none
    parts: Parts,
}

/// What the merges of all groups, one after the other, are made of.
#[derive(Clone, Debug)]
enum Parts {
    /// Bytes of the left part. The place in the list orders as the rank does: trained vocabularies number their tokens
    /// in the order of the merges that make them.
    InOrder(Vec<u8>),
    /// Bytes of the left part, and the rank.
    Ranked(Vec<(u32, u32)>),
}

impl Merges {
    /// Merges in the order of their ranks, `each` called with a function that takes the token a merge makes and the bytes
    /// of its left part. `None` if tokens are not made in the order of their ids, or a left part is of 256 bytes or more.
    ///
    /// There will be `count` merges at most, of tokens below `tokens`.
    pub(super) fn in_order<E>(
        count: usize,
        tokens: usize,
        each: impl FnOnce(&mut dyn FnMut(u32, usize)) -> Result<(), E>,
    ) -> Result<Option<Merges>, E> {
        let mut groups = Spans::with_capacity(tokens, count);
        let mut lefts: Vec<u8> = Vec::with_capacity(count);
        let (mut begin, mut fits) = (0, true); // where the group of token `groups.len()` begins
        each(&mut |made, left| {
            fits &= made as usize >= groups.len();
            match u8::try_from(left) {
                Ok(left) if fits => {
                    while groups.len() < made as usize {
                        groups.push(lefts.len() - begin);
                        begin = lefts.len();
                    }
                    // A merge that came before keeps its better rank.
                    if !lefts[begin..].contains(&left) {
                        lefts.push(left);
                    }
                }
                _ => fits = false,
            }
        })?;
        groups.push(lefts.len() - begin);
        Ok(fits.then_some(Merges { groups, parts: Parts::InOrder(lefts) }))
    }

    /// Merges in any order, each the token that it makes, the bytes of its left part, and its rank.
    pub(super) fn ranked(mut merges: Vec<(u32, u32, u32)>) -> Merges {
        merges.sort_unstable();
        merges.dedup_by_key(|&mut (made, left, _)| (made, left)); // the better rank stays
        let tokens = merges.last().map_or(0, |&(made, ..)| made as usize + 1);
        let mut groups = Spans::with_capacity(tokens, merges.len());
        for group in merges.chunk_by(|a, b| a.0 == b.0) {
            while groups.len() < group[0].0 as usize {
                groups.push(0);
            }
            groups.push(group.len());
        }
        let parts = merges.iter().map(|&(_, left, rank)| (left, rank)).collect();
        Merges { groups, parts: Parts::Ranked(parts) }
    }

    /// What orders the merge that makes token `made` with a left part of `left` bytes among all merges.
    fn rank(&self, made: u32, left: usize) -> Option<u32> {
        if made as usize >= self.groups.len() {
            return None;
        }
        let group = self.groups.get(made as usize);
        match &self.parts {
            Parts::InOrder(lefts) => {
                let at = lefts[group.clone()].iter().position(|&l| usize::from(l) == left)?;
                Some((group.start + at) as u32)
            }
            Parts::Ranked(parts) => {
                let parts = &parts[group];
                let at = parts.binary_search_by_key(&left, |&(l, _)| l as usize).ok()?;
                Some(parts[at].1)
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let parts = match &self.parts {
            Parts::InOrder(lefts) => lefts.capacity(),
            Parts::Ranked(parts) => parts.capacity() * size_of::<(u32, u32)>(),
        };
        self.groups.heap_bytes() + parts
    }
}

/// A byte-level BPE tokenizer over a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    merges: Merges,
    bytes: Box<[u32; 256]>, // the token of each byte, or NONE
    hidden: Hidden,
    pre: PreTokenizer,
}

/// Tokens that only merges make of text, by the bytes they stand for: they were marked as special after the merges had
/// been learnt. Few files have any.
pub(super) type Hidden = HashMap<Box<[u8]>, u32>;

/// A stretch of the piece being merged, named by its first byte; the live ones form a list.
#[derive(Clone, Copy)]
struct Symbol {
    prev: u32, // the neighbour, NONE at the start
    next: u32, // the neighbour, or the length of the piece at its end; 0 once merged into the one before
}

/// Two neighbours that a merge would join: its rank, the first byte, and the end of both.
type Candidate = Reverse<(u32, u32, u32)>; // lowest rank first, then leftmost

/// Work space that is kept from piece to piece.
#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl Bpe {
    /// A tokenizer from merges of tokens of `vocab`.
    pub(super) fn new(vocab: &Vocab, merges: Merges, hidden: Hidden, pre: PreTokenizer) -> Bpe {
        let bytes = std::array::from_fn(|byte| vocab.find_plain(&[byte as u8]).unwrap_or(NONE));
        Bpe { merges, bytes: Box::new(bytes), hidden, pre }
    }

    /// How many of the bytes that most texts are made of (printable ASCII, newline, the inner bytes of characters)
    /// have no token. Trained vocabularies often lack bytes that they never met.
    pub(super) fn missing_bytes(&self) -> usize {
        let usual = (b' '..=b'~').chain([b'\n']).chain(0x80..=0xBF);
        usual.filter(|&byte| self.bytes[usize::from(byte)] == NONE).count()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let hidden = self.hidden.keys().map(|text| text.len() + size_of::<(Box<[u8]>, u32)>());
        self.merges.heap_bytes() + size_of::<[u32; 256]>() + hidden.sum::<usize>()
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
                self.merge(vocab, part, &mut scratch);
                let mut at = 0;
                while at < part.len() {
                    let next = scratch.symbols[at].next as usize;
                    let id = match &part[at..next] {
                        [byte] => self.bytes[usize::from(*byte)],
                        text => self.token(vocab, text).expect("merges make tokens"),
                    };
                    ids.extend((id != NONE).then_some(id));
                    at = next;
                }
            }
        });
    }

    /// The token that merges can make of a text.
    fn token(&self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        let hidden = || if self.hidden.is_empty() { None } else { self.hidden.get(text).copied() };
        vocab.find_plain(text).or_else(hidden)
    }

    /// Merges the bytes of a piece; the live symbols of `scratch` are the result.
    /// Takes O(n log n).
    fn merge(&self, vocab: &Vocab, piece: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols, queue } = scratch;
        let len = piece.len() as u32;
        symbols.clear();
        symbols.extend((0..len).map(|at| Symbol { prev: at.checked_sub(1).unwrap_or(NONE), next: at + 1 }));
        queue.clear();
        for left in 0..len {
            queue.extend(self.candidate(vocab, piece, symbols, left));
        }
        while let Some(Reverse((_, at, end))) = queue.pop() {
            let Symbol { prev, next } = symbols[at as usize];
            // Symbols only grow: where the two still end where they did, they are what they were.
            if next == 0 || next == len || symbols[next as usize].next != end {
                continue;
            }
            symbols[next as usize].next = 0;
            symbols[at as usize].next = end;
            if end != len {
                symbols[end as usize].prev = at;
            }
            if prev != NONE {
                queue.extend(self.candidate(vocab, piece, symbols, prev));
            }
            queue.extend(self.candidate(vocab, piece, symbols, at));
        }
    }

    /// The merge of symbol `at` with the one after it, if there is one.
    fn candidate(&self, vocab: &Vocab, piece: &[u8], symbols: &[Symbol], at: u32) -> Option<Candidate> {
        let next = symbols[at as usize].next;
        let end = symbols.get(next as usize)?.next;
        let made = self.token(vocab, &piece[at as usize..end as usize])?;
        let rank = self.merges.rank(made, (next - at) as usize)?;
        Some(Reverse((rank, at, end)))
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

    /// Tokens are the letters a to e, a space, and what the merges make of them, in order of appearance. Two tokenizers
    /// that must not differ: one with its merges in order, one with their ranks.
    fn bpe(merges: &[(&str, &str)]) -> (Vocab, [Bpe; 2]) {
        let mut texts: Vec<String> = "abcde ".chars().map(String::from).collect();
        for (left, right) in merges {
            let joined = format!("{left}{right}");
            if !texts.contains(&joined) {
                texts.push(joined);
            }
        }
        let mut vocab = Vocab::with_capacity(0, 0);
        texts.iter().for_each(|text| vocab.push(text.as_bytes()));
        vocab.set_kinds(&vec![TokenKind::Normal; texts.len()]);
        vocab.index(|_, kind| is_plain(kind));
        let made = |(left, right): &(&str, &str)| {
            let id = vocab.find_plain(format!("{left}{right}").as_bytes()).expect("a token of every merge");
            (id, left.len())
        };
        let in_order = Merges::in_order::<()>(merges.len(), vocab.len(), |push| {
            merges.iter().map(made).for_each(|(id, left)| push(id, left));
            Ok(())
        });
        let in_order = in_order.expect("no errors").expect("merges in order");
        let ranks = merges.iter().map(made).zip(0..).map(|((id, left), rank)| (id, left as u32, rank * 3));
        let both = [in_order, Merges::ranked(ranks.collect())].map(|merges| {
            Bpe::new(&vocab, merges, Hidden::new(), PreTokenizer::named("gpt-2").expect("a known name"))
        });
        (vocab, both)
    }

    fn texts(vocab: &Vocab, both: &[Bpe; 2], text: &str) -> Vec<String> {
        let [ids, others] = both.each_ref().map(|bpe| {
            let mut ids = Vec::new();
            bpe.encode(vocab, text.as_bytes(), &mut ids);
            ids
        });
        assert_eq!(ids, others, "{text}");
        ids.iter().map(|&id| String::from_utf8_lossy(vocab.text(id)).into_owned()).collect()
    }

    #[test]
    fn merges_out_of_order_or_with_a_long_part_are_told() {
        let fits = |list: &[(u32, usize)]| {
            let merges = Merges::in_order::<()>(list.len(), 9, |push| {
                list.iter().for_each(|&(made, left)| push(made, left));
                Ok(())
            });
            merges.expect("no errors")
        };
        assert!(fits(&[(3, 1), (2, 1)]).is_none());
        assert!(fits(&[(3, 1), (2, 1), (4, 1)]).is_none());
        assert!(fits(&[(3, 256)]).is_none());
        let merges = fits(&[(3, 255), (3, 1), (3, 255), (5, 1), (5, 2)]).expect("in order");
        let ranks = [(3, 255), (3, 1), (5, 1), (5, 2)].map(|(made, left)| merges.rank(made, left));
        assert_eq!(ranks, [0, 1, 2, 3].map(Some), "the second of two equal merges does not count");
        for (made, left) in [(3, 2), (4, 1), (5, 255), (6, 1), (8, 1), (NONE, 1)] {
            assert_eq!(merges.rank(made, left), None);
        }
    }

    #[test]
    fn lowest_rank_first_then_leftmost() {
        let merges = [("b", "c"), ("a", "b"), ("ab", "c"), ("d", "d"), ("dd", "dd"), ("dd", "dd")];
        let (vocab, bpe) = bpe(&merges);
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
        assert_eq!(bpe[0].missing_bytes(), 95 + 1 + 64 - 6);
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
        bpe[0].encode(&vocab, &vec![b'a'; 1_000_001], &mut ids);
        assert_eq!(ids.len(), 125_001); // quadratic would take hours
    }
}
