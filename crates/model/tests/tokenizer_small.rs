//! Tokenizers of small vocabularies that the tests write themselves: both kinds, every rule, every refusal.

use sluice_gguf::{Gguf, Writer};
use sluice_model::tokenizer::{Decoder, TokenKind, Tokenizer, TokenizerError, TokenizerErrorKind};

/// Text of tokens that follow other text.
fn decoded(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = Decoder::continuing(tokenizer);
    let text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    text + &decoder.finish()
}

/// The keys of a small vocabulary; a test changes what it is about.
#[derive(Clone)]
struct Keys {
    model: Option<&'static str>,
    pre: Option<&'static str>,
    tokens: Vec<Vec<u8>>,
    types: Option<Vec<i32>>,
    scores: Option<Vec<f32>>,
    merges: Option<Vec<String>>,
    ids: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
}

impl Keys {
    fn add(&mut self, text: &str, kind: i32) -> u32 {
        self.add_bytes(text.as_bytes(), kind)
    }

    fn add_bytes(&mut self, text: &[u8], kind: i32) -> u32 {
        self.tokens.push(text.to_vec());
        self.types.get_or_insert_default().push(kind);
        if let Some(scores) = &mut self.scores {
            scores.push(-(scores.len() as f32));
        }
        self.tokens.len() as u32 - 1
    }

    fn load(&self) -> Result<Tokenizer, TokenizerError> {
        self.load_with(|_| {})
    }

    fn load_with(&self, more: impl FnOnce(&mut Writer)) -> Result<Tokenizer, TokenizerError> {
        let mut writer = Writer::new();
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        self.model.map(|model| writer.key(&key("model"), model));
        self.pre.map(|pre| writer.key(&key("pre"), pre));
        let tokens: Vec<&[u8]> = self.tokens.iter().map(|token| &token[..]).collect();
        writer.array(&key("tokens"), &tokens);
        self.types.as_ref().map(|types| writer.array(&key("token_type"), types));
        self.scores.as_ref().map(|scores| writer.array(&key("scores"), scores));
        if let Some(merges) = &self.merges {
            writer.array(&key("merges"), &merges.iter().map(|merge| &merge[..]).collect::<Vec<&str>>());
        }
        for &(name, id) in &self.ids {
            writer.key(&key(name), id);
        }
        for &(name, flag) in &self.flags {
            writer.key(&key(name), flag);
        }
        more(&mut writer);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocabulary.gguf");
        writer.begin(std::fs::File::create(&path).unwrap()).unwrap().finish().unwrap();
        Tokenizer::from_gguf(&Gguf::open(&path).unwrap())
    }

    fn fails(&self) -> (TokenizerErrorKind, String) {
        let error = self.load().expect_err("this vocabulary is bad");
        (error.kind(), error.to_string())
    }
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// `<unk> <s> </s>`, the byte tokens, some pieces.
fn spm() -> Keys {
    let mut keys = Keys {
        model: Some("llama"),
        pre: None,
        tokens: Vec::new(),
        types: None,
        scores: Some(Vec::new()),
        merges: None,
        ids: vec![("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)],
        flags: Vec::new(),
    };
    for (text, kind) in [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] {
        keys.add(text, kind);
    }
    for byte in 0..=255 {
        keys.add(&format!("<0x{byte:02X}>"), BYTE);
    }
    for piece in ["▁the", "▁t", "he", "▁", "t", "h", "e"] {
        keys.add(piece, NORMAL);
    }
    keys
}

/// What byte-level BPE writes for a byte.
fn byte_char(byte: u8) -> char {
    let plain = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let before = (0..byte).filter(|&b| !plain(b)).count() as u32;
    if plain(byte) { char::from(byte) } else { char::from_u32(0x100 + before).unwrap() }
}

/// The 256 bytes, the results of some merges, control tokens.
fn bpe(pre: &'static str) -> Keys {
    let mut keys = Keys {
        model: Some("gpt2"),
        pre: Some(pre),
        tokens: Vec::new(),
        types: None,
        scores: None,
        merges: Some(["h e", "Ġ t", "Ġt he", "1 2", "12 3"].map(String::from).to_vec()),
        ids: vec![("bos_token_id", 261), ("eos_token_id", 262)],
        flags: Vec::new(),
    };
    for byte in 0..=255 {
        keys.add(&byte_char(byte).to_string(), NORMAL);
    }
    for (text, kind) in [
        ("he", NORMAL),
        ("Ġt", NORMAL),
        ("Ġthe", NORMAL),
        ("12", NORMAL),
        ("123", NORMAL),
        ("<|begin_of_text|>", CONTROL),
        ("<|end_of_text|>", CONTROL),
        ("<|eot_id|>", CONTROL),
        ("ehe", NORMAL), // no merge leads here
    ] {
        keys.add(text, kind);
    }
    keys
}

/// Tokens as their texts, for reading.
fn texts(tokenizer: &Tokenizer, text: &str, parse_special: bool, add_bos: bool) -> Vec<String> {
    let ids = tokenizer.encode(text.as_bytes(), parse_special, add_bos);
    ids.iter().map(|&id| String::from_utf8_lossy(&tokenizer.piece(id)).into_owned()).collect()
}

#[test]
fn bpe_pieces_merges_and_whole_pieces() {
    let llama = bpe("llama-bpe").load().unwrap();
    let smollm = bpe("smollm").load().unwrap();
    assert_eq!(texts(&llama, "the the 12345", false, false), ["t", "he", " the", " ", "123", "4", "5"]);
    assert_eq!(texts(&smollm, "the 12345", false, false), ["t", "he", " ", "1", "2", "3", "4", "5"]);
    assert_eq!(texts(&llama, "ehe", false, false), ["ehe"]);
    assert_eq!(texts(&smollm, "ehe", false, false), ["e", "he"]);
    assert_eq!(llama.warnings(), [] as [String; 0]);
    assert_eq!(llama.vocab_size(), 265);
    assert_eq!((llama.bos(), llama.eos()), (Some(261), Some(262)));
}

#[test]
fn every_end_of_generation_token_ends_and_none_is_printed() {
    let mut keys = bpe("llama-bpe");
    let message_end = keys.add("<some own end>", CONTROL);
    let mislabelled = keys.add("<|im_end|>", NORMAL);
    keys.ids.push(("eom_token_id", message_end));
    let tokenizer = keys.load().unwrap();
    let ends: Vec<u32> = (0..tokenizer.vocab_size() as u32 + 9).filter(|&id| tokenizer.is_end(id)).collect();
    assert_eq!(ends, [262, 263, message_end, mislabelled]);
    assert!(ends.iter().all(|&id| tokenizer.is_control(id)));
    assert_eq!(decoded(&tokenizer, &[104, 261, 262, 263, message_end, mislabelled, 105]), "hi");
    assert!(tokenizer.warnings()[0].contains("<|im_end|>"));
}

#[test]
fn control_tokens_in_text_only_when_asked_for() {
    let tokenizer = bpe("llama-bpe").load().unwrap();
    let text = "he<|eot_id|>he";
    assert_eq!(texts(&tokenizer, text, true, false), ["he", "<|eot_id|>", "he"]);
    let plain = tokenizer.encode(text.as_bytes(), false, false);
    assert!(plain.iter().all(|&id| !tokenizer.is_control(id)));
    assert_eq!(decoded(&tokenizer, &plain), text);
    // SentencePiece: merging must not find control or byte tokens either.
    let mut keys = spm();
    for piece in ["<s", "<", "s", ">", "<0x41"] {
        keys.add(piece, NORMAL);
    }
    let tokenizer = keys.load().unwrap();
    assert_eq!(texts(&tokenizer, "<s>", false, false)[..3], [" ", "<s", ">"]);
    assert_eq!(tokenizer.encode(b"<s>", true, false), [1]);
    let bytes = tokenizer.encode(b"<0x41>", false, false);
    assert_eq!(decoded(&tokenizer, &bytes), " <0x41>");
}

#[test]
fn exactly_one_bos() {
    let says = |flag: Option<bool>, keys: Keys| {
        let flags = flag.map(|flag| ("add_bos_token", flag)).into_iter().collect();
        Keys { flags, ..keys }.load().unwrap()
    };
    for (flag, keys, expected) in [
        (None, spm(), true),
        (Some(false), spm(), false),
        (None, bpe("llama-bpe"), true),
        (None, bpe("smollm"), false),
        (Some(true), bpe("smollm"), true),
    ] {
        let tokenizer = says(flag, keys);
        let bos = tokenizer.bos().unwrap();
        assert_eq!(tokenizer.adds_bos(), expected);
        let first = if expected { vec![bos] } else { vec![] };
        assert_eq!(tokenizer.encode(b"", true, true), first);
        assert!(tokenizer.encode(b"", true, false).is_empty());
        let spelled = tokenizer.piece(bos);
        assert_eq!(tokenizer.encode(&spelled, true, true), [bos]);
    }
    let none = Keys { ids: vec![], ..spm() }.load().unwrap();
    assert!(!none.adds_bos());
    assert!(none.encode(b"", true, true).is_empty());
}

#[test]
fn the_space_prefix() {
    let with = spm().load().unwrap();
    assert_eq!(texts(&with, "the", true, true), ["<s>", " the"]);
    assert_eq!(texts(&with, " the", true, true), ["<s>", " ", " the"]);
    assert_eq!(texts(&with, "<s>the", true, true), ["<s>", " the"]);
    assert_eq!(texts(&with, "the</s>the", true, false), [" the", "</s>", " the"]);
    let keys = Keys { flags: vec![("add_space_prefix", false)], ..spm() };
    let without = keys.load().unwrap();
    assert_eq!(texts(&without, "the", true, true), ["<s>", "t", "he"]);
    assert_eq!(texts(&without, "<s> the", true, true), ["<s>", " the"]);
    for (tokenizer, expected) in [(with, "the the"), (without, " the the")] {
        let mut decoder = Decoder::new(&tokenizer);
        let text: String = [1, 259, 259].iter().map(|&id| decoder.push(id)).collect();
        assert_eq!(text, expected);
        assert_eq!(decoded(&tokenizer, &[1, 259, 259]), " the the");
    }
}

#[test]
fn the_decoder_gives_whole_characters_and_holds_back_little() {
    let tokenizer = spm().load().unwrap();
    let steps = |bytes: &[u8]| {
        let mut decoder = Decoder::new(&tokenizer);
        let mut steps: Vec<String> = bytes.iter().map(|&byte| decoder.push(3 + u32::from(byte))).collect();
        steps.push(decoder.finish());
        steps
    };
    assert_eq!(steps(b"\xF0\x9F\xA6\x99"), ["", "", "", "🦙", ""]);
    assert_eq!(steps(b"\xF0\x9F"), ["", "", "\u{FFFD}"]);
    assert_eq!(steps(b"\xF0\x9F\x41"), ["", "", "\u{FFFD}A", ""]);
    assert_eq!(steps(b"\xFF\x80a"), ["\u{FFFD}", "\u{FFFD}", "a", ""]);
    assert_eq!(steps(b"\xC3\xC3\xA9"), ["", "\u{FFFD}", "é", ""]);
    assert_eq!(steps(b"\xED\xA0\x80"), ["", "\u{FFFD}\u{FFFD}", "\u{FFFD}", ""]);
    let mut decoder = Decoder::new(&tokenizer);
    assert_eq!(decoder.push(3 + 0xC3), "");
    assert_eq!(decoder.push(2), ""); // a control token in between
    assert_eq!(decoder.push(9999), ""); // no token at all
    assert_eq!(decoder.push(3 + 0xA9), "é");
}

#[test]
fn any_bytes_become_tokens_and_come_back() {
    let (spm, bpe) = (spm().load().unwrap(), bpe("llama-bpe").load().unwrap());
    let mut state = 1u64;
    for round in 0..3000 {
        let bytes: Vec<u8> = (0..round % 40)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let random = (state >> 33) as usize;
                if random & 1 == 0 { b"the <s>\n\xC3\xA9"[random / 2 % 10] } else { (random >> 8) as u8 }
            })
            .collect();
        let joined = |tokenizer: &Tokenizer, ids: Vec<u32>| -> Vec<u8> {
            ids.iter().flat_map(|&id| tokenizer.piece(id).into_owned()).collect()
        };
        let back = joined(&spm, spm.encode(&bytes, false, false));
        assert_eq!(back.strip_prefix(b" ").unwrap_or(b""), bytes);
        // BPE replaces bytes that are no text, one by one.
        let text: String = bytes
            .utf8_chunks()
            .flat_map(|chunk| [chunk.valid().to_string(), "\u{FFFD}".repeat(chunk.invalid().len())])
            .collect();
        assert_eq!(joined(&bpe, bpe.encode(&bytes, false, false)), text.as_bytes());
    }
}

#[test]
fn odd_token_texts() {
    let mut keys = spm();
    let long = keys.add(&"x".repeat(100_000), NORMAL);
    let not_text = keys.add_bytes(b"\xFF\xFE", NORMAL);
    let empty = keys.add("", USER_DEFINED);
    let zero = keys.add("\0", NORMAL);
    let spaces = keys.add("    ", USER_DEFINED);
    let unused = keys.add("unused", UNUSED);
    let tokenizer = keys.load().unwrap();
    assert_eq!(tokenizer.piece(long).len(), 100_000);
    assert_eq!(tokenizer.kind(empty), Some(TokenKind::UserDefined));
    assert_eq!(decoded(&tokenizer, &[not_text, empty, zero, unused, spaces]), "\u{FFFD}\u{FFFD}\0    ");
    assert_eq!(tokenizer.encode(b"\0    \0", false, false), [262, zero, spaces, 262, zero]);
    assert_eq!(tokenizer.encode(&[b'x'; 1000], false, false).len(), 1001); // no way leads to the long token
    assert_eq!(&*tokenizer.piece(u32::MAX), b"");

    let mut keys = bpe("gpt-2");
    let odd = [keys.add("你好 raw", NORMAL), keys.add_bytes(b"\xFF", NORMAL), keys.add("", NORMAL)];
    let tokenizer = keys.load().unwrap();
    assert_eq!(&*tokenizer.piece(odd[0]), "你好 raw".as_bytes());
    assert!(tokenizer.encode("你好 raw\u{FFFD}".as_bytes(), true, false).iter().all(|id| !odd.contains(id)));
}

#[test]
fn kinds_are_inferred_where_the_file_has_none() {
    let tokenizer = Keys { types: None, ..spm() }.load().unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|id| tokenizer.kind(id).unwrap()),
        [TokenKind::Unknown, TokenKind::Control, TokenKind::Control, TokenKind::Byte]
    );
    assert_eq!(texts(&tokenizer, "éthe", true, true).len(), 1 + 1 + 2 + 2);
    // Any integer width will do for token_type.
    let keys = Keys { types: None, ..spm() };
    let narrow: Vec<u8> = spm().types.unwrap().iter().map(|&kind| kind as u8).collect();
    let tokenizer = keys
        .load_with(|writer| {
            writer.array("tokenizer.ggml.token_type", &narrow);
        })
        .unwrap();
    assert_eq!(tokenizer.kind(3), Some(TokenKind::Byte));
}

#[test]
fn warnings_say_what_was_guessed() {
    let warned = |keys: Keys, words: &str| {
        let warnings = keys.load().unwrap().warnings().join("\n");
        assert!(warnings.contains(words), "{warnings}");
    };
    warned(Keys { pre: None, ..bpe("") }, "tokenizer.ggml.pre");
    warned(bpe("default"), "\"default\"");
    let mut llama = bpe("default");
    llama.add("<|start_header_id|>", CONTROL);
    warned(llama, "llama-bpe");
    warned(Keys { scores: None, ..spm() }, "tokenizer.ggml.scores");
    let mut twice = spm();
    twice.add("he", NORMAL);
    warned(twice, "duplicate token \"he\"");
    let mut odd = spm();
    odd.add("odd", 77);
    warned(odd, "tokenizer.ggml.token_type");
    let no_bytes = Keys { types: Some([&[UNKNOWN, CONTROL, CONTROL][..], &[NORMAL; 7]].concat()), ..spm() };
    let keep = |id: &usize| *id < 3 || *id >= 259;
    let tokens =
        spm().tokens.into_iter().enumerate().filter(|(id, _)| keep(id)).map(|(_, text)| text).collect();
    let no_bytes = Keys { tokens, scores: Some(vec![0.0; 10]), ..no_bytes };
    assert_eq!(texts(&no_bytes.load().unwrap(), "你\n", true, true), ["<s>", " ", "<unk>"]);
    warned(no_bytes, "becomes \"<unk>\"");
}

#[test]
fn bad_vocabularies_are_refused_by_key() {
    use TokenizerErrorKind::{Malformed, Missing, Unsupported};
    let refused = |keys: Keys, kind: TokenizerErrorKind, words: [&str; 2]| {
        let (found, message) = keys.fails();
        assert_eq!(found, kind, "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert_eq!(message.lines().count(), 1);
    };
    refused(Keys { model: None, ..spm() }, Missing, ["tokenizer.ggml.model", "wanted"]);
    refused(Keys { model: Some("t5"), ..spm() }, Unsupported, ["tokenizer.ggml.model", "t5"]);
    refused(bpe("my-own\n-bpe"), Unsupported, ["my-own\\n-bpe", "llama-bpe"]);
    refused(Keys { tokens: vec![], ..spm() }, Malformed, ["tokenizer.ggml.tokens", "found 0"]);
    refused(Keys { scores: Some(vec![0.0; 5]), ..spm() }, Malformed, ["tokenizer.ggml.scores", "found 5"]);
    refused(Keys { scores: Some(vec![f32::NAN; 266]), ..spm() }, Malformed, ["tokenizer.ggml.scores", "NaN"]);
    refused(
        Keys { types: Some(vec![1; 267]), ..spm() },
        Malformed,
        ["tokenizer.ggml.token_type", "found 267"],
    );
    for name in ["bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "eom_token_id"] {
        refused(Keys { ids: vec![(name, 266)], ..spm() }, Malformed, [name, "found 266"]);
        refused(Keys { ids: vec![(name, u32::MAX)], ..spm() }, Malformed, [name, "266"]);
    }
    let keys = Keys { ids: vec![], flags: vec![("add_bos_token", true)], ..spm() };
    refused(keys, Missing, ["bos_token_id", "add_bos_token"]);
    refused(Keys { merges: None, ..bpe("smollm") }, Missing, ["tokenizer.ggml.merges", "wanted"]);
    let merges = |merge: &str| Keys { merges: Some(vec!["h e".into(), merge.into()]), ..bpe("smollm") };
    for bad in ["he", "", " ", "h ", " e", "hé e", "h  e", "q z", "h e e"] {
        refused(merges(bad), Malformed, ["tokenizer.ggml.merges", "entry 1"]);
    }
    refused(Keys { merges: Some(vec![]), ..bpe("smollm") }, Malformed, ["tokenizer.ggml.merges", "found 0"]);
}

#[test]
fn wrong_element_types_are_refused() {
    let fails = |keys: Keys, name: &str, more: &dyn Fn(&mut Writer, &str)| {
        let key = format!("tokenizer.ggml.{name}");
        let error = keys.load_with(|writer| more(writer, &key)).expect_err(name);
        assert_eq!(error.kind(), TokenizerErrorKind::Malformed);
        assert_eq!(error.key(), key);
    };
    let without = Keys { scores: None, types: None, ids: vec![], ..spm() };
    fails(without.clone(), "scores", &|writer, key| {
        writer.array(key, &[0i8; 266]);
    });
    fails(without.clone(), "scores", &|writer, key| {
        writer.key(key, 1.0f32);
    });
    fails(without.clone(), "token_type", &|writer, key| {
        writer.array(key, &[1.0f32; 266]);
    });
    fails(without.clone(), "bos_token_id", &|writer, key| {
        writer.key(key, -1i32);
    });
    fails(without.clone(), "add_bos_token", &|writer, key| {
        writer.key(key, "yes");
    });
    fails(Keys { model: None, ..without }, "model", &|writer, key| {
        writer.key(key, 7u32);
    });
    fails(Keys { merges: None, ..bpe("gpt-2") }, "merges", &|writer, key| {
        writer.array(key, &[1u32, 2]);
    });
}
