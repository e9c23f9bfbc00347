//! From tokens back to text, as they come: a character that is spread over several tokens is held back until it is
//! whole.

use super::{TokenKind, Tokenizer};

/// Turns a stream of tokens into text.
///
/// Every piece of text it gives is whole UTF-8. Of an unfinished character at most three bytes are held back; bytes
/// that cannot be part of any character become U+FFFD at once. Control, unknown and unused tokens give no text.
#[derive(Clone, Debug)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    held: Vec<u8>,     // the beginning of a character, at most 3 bytes
    strip_space: bool, // the next text begins the document, and the tokenizer put a space there
}

impl<'t> Decoder<'t> {
    /// A decoder for tokens that begin a text: where the tokenizer puts a space before a text, the one space that the
    /// first token begins with is left out.
    pub fn new(tokenizer: &'t Tokenizer) -> Decoder<'t> {
        Decoder { tokenizer, held: Vec::new(), strip_space: tokenizer.space_prefix() }
    }

    /// A decoder for tokens that continue a text: every space is kept, so that the text can be put behind what came
    /// before.
    pub fn continuing(tokenizer: &'t Tokenizer) -> Decoder<'t> {
        Decoder { tokenizer, held: Vec::new(), strip_space: false }
    }

    /// Takes the next token and gives the text that is now complete, often none. An id outside the vocabulary gives no
    /// text.
    pub fn push(&mut self, id: u32) -> String {
        let printed = matches!(
            self.tokenizer.kind(id),
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte)
        );
        if !printed {
            return String::new();
        }
        let piece = self.tokenizer.piece(id);
        let mut bytes = &piece[..];
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.held.extend_from_slice(bytes);
        self.take(false)
    }

    /// Ends the stream: what was held back of an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        self.take(true)
    }

    /// The text of the held bytes, up to an unfinished character at their end.
    fn take(&mut self, at_end: bool) -> String {
        let mut text = String::new();
        let mut rest = &self.held[..];
        loop {
            let error = match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = b"";
                    break;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid)); // valid: borrowed as it is
            rest = match error.error_len() {
                Some(len) => &after[len..],
                None if at_end => b"",
                None => {
                    rest = after;
                    break;
                }
            };
            text.push(char::REPLACEMENT_CHARACTER);
        }
        let kept = rest.len();
        self.held.drain(..self.held.len() - kept);
        text
    }
}
