//! Pre-tokenizers: how text is cut into pieces before byte pairs are merged.
//!
//! Models publish these as regular expressions over Unicode general categories. They are few and simple enough to scan
//! by hand, which needs no compiled automaton in memory. The expressions are the models' own (`tokenizer.json` of
//! GPT-2, Llama 3, Qwen2, SmolLM); which name of `tokenizer.ggml.pre` means which of them, and what `default` means,
//! are llama.cpp's conventions. `\s` is the Unicode property White_Space throughout. Bytes that are not UTF-8 are
//! treated one by one as if each were a symbol (neither letter, digit nor space) and kept as they are.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// How text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Each `\p{N}` alone, the rest as [`Pattern::Gpt2`].
    SmolLm,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    /// where n is the number here: 3 for Llama 3, 1 for Qwen2.
    Llama3(usize),
    /// What llama.cpp does for `default` and for files that do not say: runs of `[\p{P}$+<=>^~|]` first, the rest as
    /// [`Pattern::Gpt2`], then numbers without their space and ASCII digits in threes from the left.
    Default,
}

/// A pre-tokenizer as a file names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    pub(super) pattern: Pattern,
    /// A piece that is a token as a whole becomes it, whatever the merges would make of it.
    pub(super) whole_pieces: bool,
    /// Whether BOS is added when the file does not say.
    pub(super) add_bos: bool,
}

/// The names that `tokenizer.ggml.pre` may have here, grouped by meaning.
const NAMES: [(&[&str], PreTokenizer); 6] = [
    (&["default"], PreTokenizer { pattern: Pattern::Default, whole_pieces: false, add_bos: false }),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        PreTokenizer { pattern: Pattern::Llama3(3), whole_pieces: true, add_bos: true },
    ),
    (
        &["smaug-bpe", "dbrx"],
        PreTokenizer { pattern: Pattern::Llama3(3), whole_pieces: false, add_bos: false },
    ),
    (
        &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"],
        PreTokenizer { pattern: Pattern::Llama3(1), whole_pieces: false, add_bos: false },
    ),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        PreTokenizer { pattern: Pattern::SmolLm, whole_pieces: false, add_bos: false },
    ),
    (
        &["gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4"],
        PreTokenizer { pattern: Pattern::Gpt2, whole_pieces: false, add_bos: false },
    ),
];

impl PreTokenizer {
    /// The pre-tokenizer of that name.
    pub(super) fn named(name: &str) -> Option<PreTokenizer> {
        NAMES.iter().find(|(names, _)| names.contains(&name)).map(|&(_, pre)| pre)
    }

    /// All names, for error messages.
    pub(super) fn names() -> String {
        let all: Vec<&str> = NAMES.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        all.join(", ")
    }
}

/// Cuts `text` into pieces and hands them over in order; together they are the text.
pub(super) fn split(pattern: Pattern, text: &[u8], each: &mut dyn FnMut(&[u8])) {
    match pattern {
        Pattern::Gpt2 => scan(text, each, gpt2),
        Pattern::Llama3(digits) => scan(text, each, |text| llama3(text, digits)),
        Pattern::SmolLm => segments(text, |c| c.class == Class::Number, &mut |segment, numbers| {
            if numbers { scan(segment, each, |s| first(s).len) } else { scan(segment, each, gpt2) }
        }),
        Pattern::Default => segments(text, Char::is_default_punctuation, &mut |segment, punctuation| {
            if punctuation {
                each(segment);
            } else {
                scan(segment, &mut |piece| split_number(piece, each), gpt2);
            }
        }),
    }
}

/// The categories that the expressions tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter, // \p{L}
    Number, // \p{N}
    Space,  // \s
    Other,  // [^\s\p{L}\p{N}]
    End,    // past the end of the text
}

/// A character at the start of some text.
#[derive(Clone, Copy)]
struct Char {
    code: char,
    class: Class,
    len: usize, // bytes
}

impl Char {
    fn is_newline(&self) -> bool {
        matches!(self.code, '\r' | '\n')
    }

    /// `[\p{P}$+<=>^~|]`
    fn is_default_punctuation(&self) -> bool {
        self.class == Class::Other
            && (matches!(self.code, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
                || self.code.general_category_group() == GeneralCategoryGroup::Punctuation)
    }
}

/// The first character of `text`; past the end one of class `End` and no length.
fn first(text: &[u8]) -> Char {
    let Some(&lead) = text.first() else {
        return Char { code: '\0', class: Class::End, len: 0 };
    };
    let (code, len) = match lead {
        0..=0x7F => (char::from(lead), 1),
        _ => multibyte(text).unwrap_or((char::REPLACEMENT_CHARACTER, 1)),
    };
    let class = match code {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        '\t'..='\r' | ' ' => Class::Space,
        '\0'..='\x7F' => Class::Other,
        _ if code.is_whitespace() => Class::Space,
        _ => match code.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        },
    };
    Char { code, class, len }
}

/// The character of 2 to 4 bytes that `text` begins with, if it is well formed.
fn multibyte(text: &[u8]) -> Option<(char, usize)> {
    let len = match text[0] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return None,
    };
    let code = str::from_utf8(text.get(..len)?).ok()?.chars().next()?;
    Some((code, len))
}

/// Cuts off pieces as long as `next` says until nothing is left.
fn scan(mut text: &[u8], each: &mut dyn FnMut(&[u8]), next: impl Fn(&[u8]) -> usize) {
    while !text.is_empty() {
        let (piece, rest) = text.split_at(next(text));
        each(piece);
        text = rest;
    }
}

/// Cuts text into longest runs of characters for which `test` holds and runs for which it does not.
fn segments(text: &[u8], test: impl Fn(&Char) -> bool, each: &mut dyn FnMut(&[u8], bool)) {
    let mut rest = text;
    while !rest.is_empty() {
        let holds = test(&first(rest));
        let mut end = 0;
        while end < rest.len() {
            let c = first(&rest[end..]);
            if test(&c) != holds {
                break;
            }
            end += c.len;
        }
        let (segment, after) = rest.split_at(end);
        each(segment, holds);
        rest = after;
    }
}

/// Bytes of the run of `class` that begins at `from`, plus `from`.
fn run(text: &[u8], from: usize, class: Class) -> usize {
    let mut end = from;
    loop {
        let c = first(&text[end..]);
        if c.class != class {
            return end;
        }
        end += c.len;
    }
}

/// Length of the contraction at the start of `text` ('s 't 're 've 'm 'll 'd), 0 if there is none.
fn contraction(text: &[u8], any_case: bool) -> usize {
    let Some(rest) = text.strip_prefix(b"'") else {
        return 0;
    };
    let letter = |at: usize| rest.get(at).map_or(0, |&b| if any_case { b.to_ascii_lowercase() } else { b });
    match (letter(0), letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        // Unicode folds the long s to s, and so do the regex engines that the models were trained with.
        _ if any_case && rest.starts_with("ſ".as_bytes()) => 1 + "ſ".len(),
        _ => 0,
    }
}

/// `\s+(?!\S)|\s+` at the start of `text`: a run of spaces leaves its last one to the word that follows.
fn spaces(text: &[u8]) -> usize {
    let (mut end, mut last) = (0, 0);
    loop {
        let c = first(&text[end..]);
        match c.class {
            Class::Space => (last, end) = (end, end + c.len),
            Class::End => return end,
            _ => return if last > 0 { last } else { end },
        }
    }
}

/// Length of the next piece of [`Pattern::Gpt2`]; `text` is not empty.
fn gpt2(text: &[u8]) -> usize {
    let contraction = contraction(text, false);
    if contraction > 0 {
        return contraction;
    }
    let word = usize::from(text[0] == b' ');
    match first(&text[word..]).class {
        Class::Space | Class::End => spaces(text),
        class => run(text, word, class),
    }
}

/// Length of the next piece of [`Pattern::Llama3`]; `text` is not empty.
fn llama3(text: &[u8], digits: usize) -> usize {
    let contraction = contraction(text, true);
    if contraction > 0 {
        return contraction;
    }
    let c = first(text);
    match c.class {
        Class::Letter => return run(text, 0, Class::Letter),
        Class::Number => {
            let mut end = 0;
            for _ in 0..digits {
                let c = first(&text[end..]);
                if c.class != Class::Number {
                    break;
                }
                end += c.len;
            }
            return end;
        }
        _ => {}
    }
    let next = first(&text[c.len..]);
    if next.class == Class::Letter && !c.is_newline() {
        return run(text, c.len, Class::Letter);
    }
    if c.class == Class::Other || (c.code == ' ' && next.class == Class::Other) {
        let mut end = run(text, c.len, Class::Other);
        while matches!(text.get(end), Some(b'\r' | b'\n')) {
            end += 1;
        }
        return end;
    }
    // A run of spaces with newlines in it goes up to the last newline.
    let run_end = run(text, 0, Class::Space);
    match text[..run_end].iter().rposition(|b| matches!(b, b'\r' | b'\n')) {
        Some(newline) => newline + 1,
        None => spaces(text),
    }
}

/// The last two steps of [`Pattern::Default`] on a piece: `\p{N}+` apart from its space, then `[0-9]{3}`.
fn split_number(piece: &[u8], each: &mut dyn FnMut(&[u8])) {
    let space = usize::from(piece[0] == b' ');
    if first(&piece[space..]).class != Class::Number {
        return each(piece);
    }
    if space > 0 {
        each(&piece[..space]);
    }
    let number = &piece[space..];
    let (mut start, mut at) = (0, 0);
    while at + 3 <= number.len() {
        if number[at..at + 3].iter().all(u8::is_ascii_digit) {
            if start < at {
                each(&number[start..at]);
            }
            each(&number[at..at + 3]);
            at += 3;
            start = at;
        } else {
            at += first(&number[at..]).len;
        }
    }
    if start < number.len() {
        each(&number[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pattern: Pattern, text: &str) -> Vec<String> {
        bytes(pattern, text.as_bytes()).into_iter().map(|piece| String::from_utf8(piece).unwrap()).collect()
    }

    fn bytes(pattern: Pattern, text: &[u8]) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        split(pattern, text, &mut |piece| pieces.push(piece.to_vec()));
        pieces
    }

    const ALL: [Pattern; 5] =
        [Pattern::Gpt2, Pattern::SmolLm, Pattern::Llama3(3), Pattern::Llama3(1), Pattern::Default];

    // Expected pieces are those of the regular expressions in the tokenizers library, version 0.23.

    #[test]
    fn numbers_tell_the_patterns_apart() {
        let text = "x 12345٣½";
        assert_eq!(pieces(Pattern::Gpt2, text), ["x", " 12345٣½"]);
        assert_eq!(pieces(Pattern::SmolLm, text), ["x", " ", "1", "2", "3", "4", "5", "٣", "½"]);
        assert_eq!(pieces(Pattern::Llama3(3), text), ["x", " ", "123", "45٣", "½"]);
        assert_eq!(pieces(Pattern::Llama3(1), text), ["x", " ", "1", "2", "3", "4", "5", "٣", "½"]);
        assert_eq!(pieces(Pattern::Default, text), ["x", " ", "123", "45٣½"]);
    }

    #[test]
    fn contractions() {
        let text = "I'll don'T 'tis we'Ve'ſo";
        let lower = ["I", "'ll", " don", "'", "T", " '", "tis", " we", "'", "Ve", "'", "ſo"];
        assert_eq!(pieces(Pattern::Gpt2, text), lower);
        assert_eq!(pieces(Pattern::SmolLm, text), lower);
        let any = ["I", "'ll", " don", "'T", " '", "tis", " we", "'Ve", "'ſ", "o"];
        assert_eq!(pieces(Pattern::Llama3(3), text), any);
        assert_eq!(pieces(Pattern::Default, "a's"), ["a", "'", "s"]);
    }

    #[test]
    fn runs_of_spaces_leave_one_for_the_word() {
        for pattern in ALL {
            assert_eq!(pieces(pattern, "a   b"), ["a", "  ", " b"], "{pattern:?}");
            assert_eq!(pieces(pattern, "a  "), ["a", "  "], "{pattern:?}");
            assert_eq!(pieces(pattern, " "), [" "], "{pattern:?}");
            assert_eq!(pieces(pattern, "a \u{2029} b"), ["a", " \u{2029}", " b"], "{pattern:?}");
        }
        assert_eq!(pieces(Pattern::Gpt2, "a\t\tb"), ["a", "\t", "\t", "b"]);
        assert_eq!(pieces(Pattern::Llama3(3), "a\t\tb"), ["a", "\t", "\tb"]);
        assert_eq!(pieces(Pattern::Llama3(3), "a\u{a0}b"), ["a", "\u{a0}b"]);
    }

    #[test]
    fn newlines_end_a_run_of_spaces_in_llama3() {
        let text = "a \n\n  \r\n  b!\n\n";
        assert_eq!(pieces(Pattern::Llama3(3), text), ["a", " \n\n  \r\n", " ", " b", "!\n\n"]);
        assert_eq!(pieces(Pattern::Gpt2, text), ["a", " \n\n  \r\n ", " b", "!", "\n\n"]);
    }

    #[test]
    fn punctuation_and_symbols() {
        let text = "(a) $b<=c ~~ 你好。🦙é";
        assert_eq!(
            pieces(Pattern::Llama3(3), text),
            ["(a", ")", " $", "b", "<=", "c", " ~~", " 你好", "。🦙", "é"]
        );
        assert_eq!(
            pieces(Pattern::Gpt2, text),
            ["(", "a", ")", " $", "b", "<=", "c", " ~~", " 你好", "。🦙", "é"]
        );
        let apart = ["(", "a", ")", " ", "$", "b", "<=", "c", " ", "~~", " 你好", "。", "🦙", "é"];
        assert_eq!(pieces(Pattern::Default, text), apart);
    }

    #[test]
    fn what_is_not_utf8_is_a_symbol_and_kept() {
        assert_eq!(bytes(Pattern::Gpt2, b"a\xE6\xADb"), [&b"a"[..], b"\xE6\xAD", b"b"]);
        assert_eq!(bytes(Pattern::Llama3(3), b"\xED\xA0\x80a"), [&b"\xED\xA0\x80"[..], b"a"]);
    }

    #[test]
    fn pieces_make_up_the_text() {
        let alphabet =
            ["a", "S", "'", " ", "\n", "\r", "\t", "7", "½", "é", "🦙", ".", "\u{301}", "\u{3000}"];
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text += alphabet[(state >> 33) as usize % alphabet.len()];
            }
            for pattern in ALL {
                let pieces = pieces(pattern, &text);
                assert_eq!(pieces.concat(), text);
                assert!(pieces.iter().all(|piece| !piece.is_empty()));
            }
        }
    }

    #[test]
    fn names() {
        assert!(PreTokenizer::named("llama-bpe").is_some_and(|pre| pre.whole_pieces && pre.add_bos));
        assert_eq!(PreTokenizer::named("qwen2").map(|pre| pre.pattern), Some(Pattern::Llama3(1)));
        assert!(PreTokenizer::named("my-own-bpe").is_none());
        assert!(PreTokenizer::names().contains("smollm"));
    }
}
