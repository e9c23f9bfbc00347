//! Special tokens: finding them in text, and which of them end a generation.

use super::vocab::{TokenKind, Vocab};

/// Texts of tokens that end a turn or a document, whatever `eos_token_id` says: chat models stop with one of these
/// while their files name another as eos. (The names are the models' own, as collected by llama.cpp.)
const END_TEXTS: [&str; 13] = [
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>", // Llama 3: end of turn
    "<|eom_id|>", // Llama 3: end of message, a tool is called
    "<|im_end|>", // ChatML
    "<|end|>",    // Phi-3
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// Whether a token of this text ends a generation.
pub(super) fn is_end_text(text: &[u8]) -> bool {
    END_TEXTS.iter().any(|end| end.as_bytes() == text)
}

/// A set of byte values.
#[derive(Clone, Copy, Debug, Default)]
struct ByteSet([u64; 4]);

impl ByteSet {
    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0
    }
}

/// The special tokens of one length.
#[derive(Clone, Debug)]
struct Length {
    bytes: usize,
    control: ByteSet,      // what the control and unknown tokens of this length begin with
    user_defined: ByteSet, // what the user-defined ones begin with
}

/// Where special tokens may be in a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Specials {
    lengths: Vec<Length>, // longest first
}

/// A stretch of text: a special token, or what is between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch<'t> {
    Text(&'t [u8]),
    Token(u32),
}

impl Specials {
    pub(super) fn new(vocab: &Vocab) -> Specials {
        let mut specials = Specials::default();
        for id in 0..vocab.len() as u32 {
            let kind = vocab.kind(id);
            if !matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined) {
                continue;
            }
            let [first, ..] = *vocab.text(id) else {
                continue;
            };
            let bytes = vocab.text(id).len();
            let at = specials.lengths.binary_search_by(|l| bytes.cmp(&l.bytes)).unwrap_or_else(|at| {
                let (control, user_defined) = Default::default();
                specials.lengths.insert(at, Length { bytes, control, user_defined });
                at
            });
            let length = &mut specials.lengths[at];
            match kind {
                TokenKind::UserDefined => length.user_defined.insert(first),
                _ => length.control.insert(first),
            }
        }
        specials
    }

    /// Cuts special tokens out of `text`: longer ones before shorter ones, and of one length from left to right.
    /// User-defined tokens always, the others only with `control`.
    pub(super) fn split<'t>(&self, vocab: &Vocab, text: &'t [u8], control: bool) -> Vec<Stretch<'t>> {
        let mut stretches = vec![Stretch::Text(text)];
        for length in &self.lengths {
            let starts =
                |byte| length.user_defined.contains(byte) || (control && length.control.contains(byte));
            let token = |window: &[u8]| {
                let id = vocab.find_special(window)?;
                (control || vocab.kind(id) == TokenKind::UserDefined).then_some(id)
            };
            let mut finer = Vec::with_capacity(stretches.len());
            for stretch in stretches {
                let Stretch::Text(text) = stretch else {
                    finer.push(stretch);
                    continue;
                };
                let (mut start, mut at) = (0, 0);
                while at + length.bytes <= text.len() {
                    let end = at + length.bytes;
                    match starts(text[at]).then(|| token(&text[at..end])).flatten() {
                        Some(id) => {
                            finer.push(Stretch::Text(&text[start..at]));
                            finer.push(Stretch::Token(id));
                            (start, at) = (end, end);
                        }
                        None => at += 1,
                    }
                }
                finer.push(Stretch::Text(&text[start..]));
            }
            finer.retain(|stretch| *stretch != Stretch::Text(b""));
            stretches = finer;
        }
        stretches
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.lengths.capacity() * size_of::<Length>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stretch::{Text, Token};

    fn vocab() -> (Vocab, Specials) {
        let tokens: [(&[u8], TokenKind); 6] = [
            (b"<s>", TokenKind::Control),
            (b"<|eot|>", TokenKind::Control),
            (b"  ", TokenKind::UserDefined),
            (b"    ", TokenKind::UserDefined),
            (b"<unk>", TokenKind::Unknown),
            (b"abc", TokenKind::Normal),
        ];
        let mut vocab = Vocab::with_capacity(0, 0);
        tokens.iter().for_each(|(text, _)| vocab.push(text));
        vocab.set_kinds(&tokens.map(|(_, kind)| kind));
        vocab.index(|_, kind| kind == TokenKind::Normal);
        let specials = Specials::new(&vocab);
        (vocab, specials)
    }

    #[test]
    fn control_tokens_are_found_only_on_request() {
        let (vocab, specials) = vocab();
        let text = b"<s>hi<|eot|><unk>abc";
        assert_eq!(
            specials.split(&vocab, text, true),
            [Token(0), Text(b"hi"), Token(1), Token(4), Text(b"abc")]
        );
        assert_eq!(specials.split(&vocab, text, false), [Text(text)]);
    }

    #[test]
    fn user_defined_tokens_always_longest_first() {
        let (vocab, specials) = vocab();
        let found = specials.split(&vocab, b"a       b", false);
        assert_eq!(found, [Text(b"a"), Token(3), Token(2), Text(b" b")]);
    }

    #[test]
    fn text_at_the_edges() {
        let (vocab, specials) = vocab();
        assert_eq!(specials.split(&vocab, b"<s", true), [Text(b"<s")]);
        assert_eq!(specials.split(&vocab, b"<s><s>", true), [Token(0), Token(0)]);
        assert!(specials.split(&vocab, b"", true).is_empty());
    }
}
