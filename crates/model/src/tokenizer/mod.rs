//! Tokenizers from a GGUF file's metadata: byte-level BPE (`gpt2`) and SentencePiece (`llama`).
//!
//! Made for little memory: Llama 3's vocabulary, 128,256 tokens and 280,147 merges, takes 1.8 MB, and 2.2 while it is
//! loaded. What text becomes which tokens follows llama.cpp, whose conventions files of this kind are written for;
//! differences are said where they are made.

mod bpe;
mod compact;
mod decode;
mod error;
mod load;
mod pretokenize;
mod special;
mod spm;
mod vocab;

pub use decode::Decoder;
pub use error::{TokenizerError, TokenizerErrorKind};
pub use vocab::TokenKind;

use special::{Specials, Stretch};
use std::borrow::Cow;
use vocab::Vocab;

/// A tokenizer: bytes to token ids and back.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    scheme: Scheme,
    specials: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    ends: Vec<u32>, // every token that ends a generation, ascending
    add_bos: bool,
    warnings: Vec<String>,
}

/// How text between special tokens is cut up.
#[derive(Clone, Debug)]
enum Scheme {
    Bpe(bpe::Bpe),
    Spm(spm::Spm),
}

impl Tokenizer {
    /// Reads the tokenizer of a model. A file with a vocabulary and no tensors will do.
    ///
    /// # Errors
    /// When a key is missing or malformed, a special id is outside the vocabulary, the kind of tokenizer or its
    /// pre-tokenizer is not known, or reading fails.
    pub fn from_gguf(gguf: &sluice_gguf::Gguf) -> Result<Tokenizer, TokenizerError> {
        load::load(gguf)
    }

    /// The tokens of `text`.
    ///
    /// With `parse_special`, control tokens written out in the text (`<s>`, `<|eot_id|>`, …) become those tokens: right
    /// for templates and raw prompts, wrong for text from users. User-defined tokens are always found.
    ///
    /// With `add_bos`, BOS goes first if the file asks for one ([`Tokenizer::adds_bos`]), unless the text begins with
    /// it: there is never a second one.
    ///
    /// The text is taken byte for byte, a newline at its end included. Bytes that are not UTF-8 become their byte
    /// tokens in a SentencePiece vocabulary and U+FFFD in BPE. Text that the vocabulary has no tokens for becomes
    /// the unknown token in a SentencePiece vocabulary that has one, and is otherwise left out. An empty text has
    /// no tokens but BOS.
    ///
    /// Takes O(n log n) time, and while it runs up to about 40 bytes of memory per byte of text without spaces.
    pub fn encode(&self, text: &[u8], parse_special: bool, add_bos: bool) -> Vec<u32> {
        let stretches = self.specials.split(&self.vocab, text, parse_special);
        let mut ids = Vec::new();
        if let Some(bos) = self.bos
            && add_bos
            && self.add_bos
            && stretches.first() != Some(&Stretch::Token(bos))
        {
            ids.push(bos);
        }
        for stretch in stretches {
            match (stretch, &self.scheme) {
                (Stretch::Token(id), _) => ids.push(id),
                (Stretch::Text(text), Scheme::Bpe(bpe)) => bpe.encode(&self.vocab, text, &mut ids),
                (Stretch::Text(text), Scheme::Spm(spm)) => {
                    spm.encode(&self.vocab, text, self.unknown, &mut ids)
                }
            }
        }
        ids
    }

    /// The bytes that a token stands for: SentencePiece's `▁` as a space, byte tokens as their byte, control tokens as
    /// they are written. Not always UTF-8: a token may be part of a character. Empty for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        let Some(kind) = self.kind(id) else {
            return Cow::Borrowed(b"");
        };
        let text = self.vocab.text(id);
        match (kind, &self.scheme) {
            (TokenKind::Byte, _) => match vocab::byte_value(text) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(text),
            },
            (TokenKind::Normal | TokenKind::Unused, Scheme::Spm(_)) => spm::unescape(text),
            _ => Cow::Borrowed(text),
        }
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that the file names as the end of a text. To stop a generation ask [`Tokenizer::is_end`].
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the file wants a text to begin with BOS: `tokenizer.ggml.add_bos_token`, else what is usual for the kind
    /// of tokenizer.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether this token ends a generation: eos, end of turn, end of message, by id or by their well-known texts.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Whether this is a control token, which is never printed.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Control)
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        ((id as usize) < self.vocab.len()).then(|| self.vocab.kind(id))
    }

    /// What the user should know about this tokenizer, one line each, such as a pre-tokenizer that had to be guessed.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let scheme = match &self.scheme {
            Scheme::Bpe(bpe) => bpe.heap_bytes(),
            Scheme::Spm(spm) => spm.heap_bytes(),
        };
        self.vocab.heap_bytes()
            + scheme
            + self.specials.heap_bytes()
            + self.ends.capacity() * size_of::<u32>()
    }

    /// Whether a space is put before a text.
    fn space_prefix(&self) -> bool {
        matches!(&self.scheme, Scheme::Spm(spm) if spm.space_prefix())
    }
}
