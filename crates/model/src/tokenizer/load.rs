//! Builds a tokenizer from a file's metadata, checking all that encoding and decoding later rely on.
//!
//! The arrays are streamed from the file; nothing of them is kept but the compact tables.

use super::bpe::{self, Bpe, Hidden, Merges};
use super::error::{TokenizerError, quote};
use super::pretokenize::PreTokenizer;
use super::special::{self, Specials};
use super::spm::{self, Spm};
use super::vocab::{self, TokenKind, Vocab};
use super::{Scheme, Tokenizer};
use sluice_gguf::{ArrayInfo, Gguf, ValueType};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const BOS_ID: &str = "tokenizer.ggml.bos_token_id";
const EOS_ID: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN_ID: &str = "tokenizer.ggml.unknown_token_id";
/// Other tokens that end a generation.
const END_IDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Most tokens: two ids are kept for marking things inside the tables.
const MAX_TOKENS: u64 = u32::MAX as u64 - 2;

type Result<T> = std::result::Result<T, TokenizerError>;

pub(super) fn load(gguf: &Gguf) -> Result<Tokenizer> {
    let model = gguf.metadata().bytes(MODEL).map_err(|e| TokenizerError::read(MODEL, e))?;
    let pre = match model {
        Some(b"llama") => None,
        Some(b"gpt2") => Some(pre_tokenizer(gguf)?),
        Some(other) => {
            return Err(TokenizerError::unsupported(MODEL, "llama (SentencePiece) and gpt2 (BPE)", other));
        }
        None => return Err(TokenizerError::missing(MODEL, "the kind of tokenizer")),
    };
    let mut vocab = tokens(gguf)?;
    let ids = Ids::read(gguf, vocab.len())?;
    let mut warnings = Vec::new();
    let mut kinds = kinds(gguf, &vocab, &ids, pre.is_none(), &mut warnings)?;
    let ends = ends(&vocab, &mut kinds, &ids, &mut warnings);
    vocab.set_kinds(&kinds);

    let (scheme, add_bos_by_default) = match pre {
        Some((pre, warning)) => {
            warnings.extend(warning.map(|w| w + looks_like_llama3(&vocab)));
            each_score(gguf, vocab.len(), |_| {})?;
            let encoder = load_bpe(gguf, &mut vocab, kinds, pre, &mut warnings)?;
            (Scheme::Bpe(encoder), pre.add_bos)
        }
        None => (Scheme::Spm(load_spm(gguf, &mut vocab, &mut warnings)?), true),
    };
    let unknown = ids.unknown.or_else(|| {
        let mut all = 0..vocab.len() as u32;
        all.find(|&id| vocab.kind(id) == TokenKind::Unknown)
    });
    let (missing, substitute) = match &scheme {
        Scheme::Bpe(bpe) => (bpe.missing_bytes(), None),
        Scheme::Spm(spm) => (spm.missing_bytes(), unknown),
    };
    if missing > 0 {
        let becomes =
            substitute.map_or("is left out".into(), |id| format!("becomes {}", quote(vocab.text(id))));
        warnings.push(format!(
            "{TOKENS}: {missing} bytes have no token; text that cannot do without them {becomes}"
        ));
    }
    let add_bos = match (flag(gguf, ADD_BOS)?, ids.bos) {
        (Some(true), None) => {
            return Err(TokenizerError::missing(BOS_ID, "an id, as add_bos_token is true"));
        }
        (said, Some(_)) => said.unwrap_or(add_bos_by_default),
        (_, None) => false,
    };
    Ok(Tokenizer {
        specials: Specials::new(&vocab),
        vocab,
        scheme,
        bos: ids.bos,
        eos: ids.eos,
        unknown,
        ends,
        add_bos,
        warnings,
    })
}

/// The pre-tokenizer, and a warning if it is a guess.
fn pre_tokenizer(gguf: &Gguf) -> Result<(PreTokenizer, Option<String>)> {
    let name = gguf.metadata().bytes(PRE).map_err(|e| TokenizerError::read(PRE, e))?;
    let named = |name: &[u8]| str::from_utf8(name).ok().and_then(PreTokenizer::named);
    let unknown = |name| TokenizerError::unsupported(PRE, PreTokenizer::names(), name);
    let found = named(name.unwrap_or(b"default")).ok_or_else(|| unknown(name.unwrap_or_default()))?;
    let warning = match name {
        None => Some(format!(
            "{PRE}: not in the file, so text is cut up as for \"default\"; its tokens may be wrong"
        )),
        Some(b"default") => {
            Some(format!("{PRE}: \"default\" suits no model exactly; tokens of text may be wrong"))
        }
        Some(_) => None,
    };
    Ok((found, warning))
}

/// Words for a vocabulary that is Llama 3's whatever the file says.
fn looks_like_llama3(vocab: &Vocab) -> &'static str {
    let is = |id| matches!(vocab.text(id), b"<|start_header_id|>" | b"<|eot_id|>");
    let found = (0..vocab.len() as u32).filter(|&id| is(id)).count() >= 2;
    if found { " (the vocabulary looks like Llama 3's, which needs \"llama-bpe\")" } else { "" }
}

/// Token texts as the file has them.
fn tokens(gguf: &Gguf) -> Result<Vocab> {
    let info = array(gguf, TOKENS, "an array of strings", |e| e == ValueType::String)?
        .ok_or_else(|| TokenizerError::missing(TOKENS, "the vocabulary"))?;
    let count = count(TOKENS, info, "token")?;
    // In the file each text stands behind its length, 8 bytes. The header's check has compared both with the file's.
    let bytes = info.bytes.saturating_sub(8 * info.len) as usize;
    let mut vocab = Vocab::with_capacity(count, bytes);
    each_string(gguf, TOKENS, |_, text| {
        vocab.push(text);
        Ok(())
    })?;
    Ok(vocab)
}

/// The scores by token, checked; whether the file has any.
fn each_score(gguf: &Gguf, count: usize, mut each: impl FnMut(f32)) -> Result<bool> {
    let is_float = |e| matches!(e, ValueType::F32 | ValueType::F64);
    let Some(info) = array(gguf, SCORES, "an array of floats", is_float)? else {
        return Ok(false);
    };
    same_length(SCORES, info, count)?;
    let scores = gguf.floats(SCORES).map_err(|e| TokenizerError::read(SCORES, e))?;
    for (id, score) in scores.into_iter().flatten().enumerate() {
        let score = score.map_err(|e| TokenizerError::read(SCORES, e))?;
        if score.is_nan() {
            return Err(TokenizerError::malformed(SCORES, "numbers", format!("NaN for token {id}")));
        }
        each(score as f32);
    }
    Ok(true)
}

/// The ids that the file names.
struct Ids {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    ends: Vec<u32>,
}

impl Ids {
    fn read(gguf: &Gguf, count: usize) -> Result<Ids> {
        let id = |key: &'static str| match gguf.uint(key).map_err(|e| TokenizerError::read(key, e))? {
            Some(id) if id < count as u64 => Ok(Some(id as u32)),
            Some(id) => {
                Err(TokenizerError::malformed(key, format!("an id below {count}, the number of tokens"), id))
            }
            None => Ok(None),
        };
        let (bos, eos, unknown) = (id(BOS_ID)?, id(EOS_ID)?, id(UNKNOWN_ID)?);
        let mut ends: Vec<u32> = eos.into_iter().collect();
        for key in END_IDS {
            ends.extend(id(key)?);
        }
        Ok(Ids { bos, eos, unknown, ends })
    }
}

/// What each token is for. Where the file does not say, the named ids are control tokens; and a SentencePiece
/// vocabulary in which nothing is marked as a byte token has them by their texts.
fn kinds(
    gguf: &Gguf,
    vocab: &Vocab,
    ids: &Ids,
    spm: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<TokenKind>> {
    let count = vocab.len();
    let mut kinds = Vec::with_capacity(count);
    let info = array(gguf, TOKEN_TYPE, "an array of integers", ValueType::is_integer)?;
    if let Some(info) = info {
        same_length(TOKEN_TYPE, info, count)?;
        let mut odd = 0;
        for number in
            gguf.ints(TOKEN_TYPE).map_err(|e| TokenizerError::read(TOKEN_TYPE, e))?.into_iter().flatten()
        {
            let kind = TokenKind::from_number(number.map_err(|e| TokenizerError::read(TOKEN_TYPE, e))?);
            odd += usize::from(kind.is_none());
            kinds.push(kind.unwrap_or(TokenKind::Normal));
        }
        if odd > 0 {
            warnings
                .push(format!("{TOKEN_TYPE}: {odd} tokens are of no known type and taken as normal text"));
        }
    } else {
        kinds.resize(count, TokenKind::Normal);
        for &id in ids.ends.iter().chain(&ids.bos) {
            kinds[id as usize] = TokenKind::Control;
        }
        if let Some(id) = ids.unknown {
            kinds[id as usize] = TokenKind::Unknown;
        }
    }
    if spm && !kinds.contains(&TokenKind::Byte) {
        for (id, kind) in kinds.iter_mut().enumerate() {
            if *kind == TokenKind::Normal && vocab::byte_value(vocab.text(id as u32)).is_some() {
                *kind = TokenKind::Byte;
            }
        }
    }
    Ok(kinds)
}

/// Every token that ends a generation, ascending. They are control tokens whatever the file says of them.
fn ends(vocab: &Vocab, kinds: &mut [TokenKind], ids: &Ids, warnings: &mut Vec<String>) -> Vec<u32> {
    let mut ends = ids.ends.clone();
    ends.extend((0..vocab.len() as u32).filter(|&id| special::is_end_text(vocab.text(id))));
    ends.sort_unstable();
    ends.dedup();
    for &id in &ends {
        let kind = &mut kinds[id as usize];
        if *kind != TokenKind::Control {
            let text = quote(vocab.text(id));
            warnings.push(format!(
                "{TOKEN_TYPE}: {text} ends a text but is not marked as a control token; taken as one"
            ));
            *kind = TokenKind::Control;
        }
    }
    ends
}

fn load_spm(gguf: &Gguf, vocab: &mut Vocab, warnings: &mut Vec<String>) -> Result<Spm> {
    let mut scores = Vec::with_capacity(vocab.len());
    if !each_score(gguf, vocab.len(), |score| scores.push(score))? {
        warnings.push(format!(
            "{SCORES}: not in the file, so text is joined from the left; its tokens may be wrong"
        ));
        scores.resize(vocab.len(), 0.0);
    }
    let duplicate = vocab.index(|_, kind| spm::is_plain(kind));
    warn_of_duplicate(vocab, duplicate, warnings);
    Ok(Spm::new(vocab, scores, flag(gguf, ADD_SPACE_PREFIX)?.unwrap_or(true)))
}

fn load_bpe(
    gguf: &Gguf,
    vocab: &mut Vocab,
    kinds: Vec<TokenKind>,
    pre: PreTokenizer,
    warnings: &mut Vec<String>,
) -> Result<Bpe> {
    // A token with a character that stands for no byte keeps its text, and no text ever becomes it.
    let mut unreachable = Vec::new(); // ascending
    vocab.rewrite(|id, text, bytes| {
        let plain = bpe::is_plain(kinds[id as usize]);
        let decoded = plain && bpe::decode_text(text, bytes);
        if plain && !decoded {
            unreachable.push(id);
        }
        decoded
    });
    drop(kinds);
    let duplicate = vocab.index(|id, kind| bpe::is_plain(kind) && unreachable.binary_search(&id).is_err());
    warn_of_duplicate(vocab, duplicate, warnings);
    drop(unreachable);

    let info = array(gguf, MERGES, "an array of strings", |e| e == ValueType::String)?
        .ok_or_else(|| TokenizerError::missing(MERGES, "the merges of a gpt2 tokenizer"))?;
    let count = count(MERGES, info, "merge")?;
    let mut hidden = Hidden::new();
    let in_order = Merges::in_order(count, vocab.len(), |push| {
        each_merge(gguf, vocab, |merge| {
            if let Some(text) = merge.hidden {
                hidden.insert(text.into(), merge.made);
            }
            push(merge.made, merge.left);
        })
    })?;
    let merges = match in_order {
        Some(merges) => merges,
        None => {
            let mut list = Vec::with_capacity(count);
            each_merge(gguf, vocab, |merge| list.push((merge.made, merge.left as u32, list.len() as u32)))?;
            Merges::ranked(list)
        }
    };
    Ok(Bpe::new(vocab, merges, hidden, pre))
}

/// A merge as the file has it, its tokens looked up.
struct Merge<'t> {
    made: u32,
    /// Bytes of the left part.
    left: usize,
    /// The bytes of the token that it makes, if ordinary text becomes that token by merges only.
    hidden: Option<&'t [u8]>,
}

/// Streams the merges that can ever be made, in the order of their ranks, all of them checked.
fn each_merge(gguf: &Gguf, vocab: &Vocab, mut each: impl FnMut(Merge<'_>)) -> Result<()> {
    let mut bytes = Vec::new();
    each_string(gguf, MERGES, |index, text| {
        let bad = |wanted: String| {
            TokenizerError::malformed(MERGES, wanted, format!("{} as entry {index}", quote(text)))
        };
        // No part is empty, so the space that divides them is never the first byte or the last.
        let space = (1..text.len().saturating_sub(1)).find(|&at| text[at] == b' ');
        let Some(space) = space else {
            return Err(bad("two tokens with a space between them".into()));
        };
        let (left, right) = (&text[..space], &text[space + 1..]);
        bytes.clear();
        let left_decoded = bpe::decode_text(left, &mut bytes);
        let split = bytes.len();
        let right_decoded = bpe::decode_text(right, &mut bytes);
        let decoded = left_decoded && right_decoded;
        // The token of a text, and whether it is a plain one. One that was marked as special later on is stored as the
        // file writes it.
        let find = |text: Option<&[u8]>, raw: &dyn Fn() -> Vec<u8>| {
            let plain = text.and_then(|text| vocab.find_plain(text));
            let found = plain.or_else(|| vocab.find_special(&raw()));
            let found = found.ok_or_else(|| bad(format!("a token {} in {TOKENS}", quote(&raw()))))?;
            Ok((found, plain.is_some()))
        };
        let (_, left_plain) = find(left_decoded.then_some(&bytes[..split]), &|| left.to_vec())?;
        let (_, right_plain) = find(right_decoded.then_some(&bytes[split..]), &|| right.to_vec())?;
        let (made, plain) = find(decoded.then_some(&bytes), &|| [left, right].concat())?;
        // A byte that has no plain token is never merged.
        let mergeable = (left_plain || split > 1) && (right_plain || bytes.len() - split > 1);
        if decoded && mergeable {
            each(Merge { made, left: split, hidden: (!plain).then_some(&bytes) });
        }
        Ok(())
    })
}

fn warn_of_duplicate(vocab: &Vocab, duplicate: Option<(u32, u32)>, warnings: &mut Vec<String>) {
    if let Some((first, second)) = duplicate {
        let text = quote(vocab.text(first));
        warnings.push(format!(
            "{TOKENS}: duplicate token {text}: ids {first} and {second}; text becomes the first"
        ));
    }
}

/// What the header says of an array, if it is there; its elements must be as wanted.
fn array(
    gguf: &Gguf,
    key: &'static str,
    wanted: &str,
    fits: impl FnOnce(ValueType) -> bool,
) -> Result<Option<ArrayInfo>> {
    match gguf.array(key).map_err(|e| TokenizerError::read(key, e))? {
        Some(info) if !fits(info.element) => {
            Err(TokenizerError::malformed(key, wanted, format!("an array of {}", info.element)))
        }
        info => Ok(info),
    }
}

/// The length of an array that must hold something, and no more than ids can tell apart.
fn count(key: &'static str, info: ArrayInfo, of: &str) -> Result<usize> {
    if (1..=MAX_TOKENS).contains(&info.len) {
        return Ok(info.len as usize);
    }
    let wanted = format!("at least one {of} and fewer than 2^32");
    Err(TokenizerError::malformed(key, wanted, info.len))
}

fn same_length(key: &'static str, info: ArrayInfo, count: usize) -> Result<()> {
    if info.len == count as u64 {
        return Ok(());
    }
    Err(TokenizerError::malformed(key, format!("{count} entries, one per token"), info.len))
}

fn flag(gguf: &Gguf, key: &'static str) -> Result<Option<bool>> {
    gguf.bool(key).map_err(|e| TokenizerError::read(key, e))
}

/// Streams an array of strings that is known to be there.
fn each_string(gguf: &Gguf, key: &'static str, mut each: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let read = |e| TokenizerError::read(key, e);
    let Some(mut strings) = gguf.strings(key).map_err(read)? else {
        return Ok(());
    };
    let mut index = 0;
    while let Some(text) = strings.next() {
        each(index, text.map_err(read)?)?;
        index += 1;
    }
    Ok(())
}
