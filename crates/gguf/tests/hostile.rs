//! Bad input, one test per kind. Every file is built here, byte by byte, so that nothing of the crate's own writer can
//! hide a fault of its reader.

use sluice_gguf::{Error, ErrorKind, Gguf, Header, Limits};

/// A file in pieces that a test can spoil.
#[derive(Clone)]
struct Raw {
    version: u32,
    keys: Vec<Vec<u8>>,
    infos: Vec<Vec<u8>>,
    alignment: usize,
    data: usize,
}

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn text(s: impl AsRef<[u8]>) -> Vec<u8> {
    let s = s.as_ref();
    [&(s.len() as u64).to_le_bytes(), s].concat()
}

fn key(name: impl AsRef<[u8]>, ty: u32, value: &[u8]) -> Vec<u8> {
    [text(name), ty.to_le_bytes().into(), value.into()].concat()
}

fn array(element: u32, len: u64, bytes: &[u8]) -> Vec<u8> {
    [&element.to_le_bytes(), &len.to_le_bytes()[..], bytes].concat()
}

fn info(name: impl AsRef<[u8]>, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(ty.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

impl Raw {
    /// Two keys, three F32 tensors of 64, 64 and 32 bytes at 0, 64 and 128.
    fn good() -> Self {
        Self {
            version: 3,
            keys: vec![
                key("general.architecture", STRING, &text("llama")),
                key("n", U32, &7u32.to_le_bytes()),
            ],
            infos: vec![info("a", &[4, 4], 0, 0), info("b", &[16], 0, 64), info("c", &[2, 2, 2, 1], 0, 128)],
            alignment: 32,
            data: 160,
        }
    }

    fn with_key(mut self, key: Vec<u8>) -> Self {
        self.keys.push(key);
        self
    }

    /// Replaces the info of "b".
    fn with_b(mut self, info: Vec<u8>) -> Self {
        self.infos[1] = info;
        self
    }

    fn head(&self, tensors: u64, keys: u64) -> Vec<u8> {
        [b"GGUF", &self.version.to_le_bytes()[..], &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.head(self.infos.len() as u64, self.keys.len() as u64);
        self.keys.iter().chain(&self.infos).for_each(|part| out.extend(part));
        out.resize(out.len().next_multiple_of(self.alignment) + self.data, 1);
        out
    }
}

/// The file must be refused, in one printable line that has all `words`.
#[track_caller]
fn refused(bytes: &[u8], kind: ErrorKind, words: &[&str]) -> Error {
    let error = Header::parse(&bytes, &Limits::default()).expect_err("must be refused");
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
    assert!(!line.contains(char::is_control) && line.len() < 2500, "{line:?}");
    error
}

#[track_caller]
fn accepted(bytes: &[u8]) -> Header {
    Header::parse(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

use ErrorKind::{Limit, Malformed, Truncated, Unsupported, WrongType};

#[test]
fn the_plain_file_is_read() {
    let header = accepted(&Raw::good().bytes());
    assert_eq!((header.version(), header.alignment()), (3, 32));
    assert_eq!(header.metadata().uint("n").unwrap(), Some(7));
    let c = &header.tensors()[2];
    assert_eq!((c.dims(), c.cols(), c.rows(), c.row_bytes()), ([2, 2, 2, 1].as_slice(), 2, 4, 8));
    assert_eq!((c.offset, c.len), (header.data_start() + 128, 32));
    assert_eq!(header.file_len(), header.data_start() + 160);
}

#[test]
fn counts_beyond_the_file() {
    let raw = Raw::good();
    for tensors in [1, 1 << 63, u64::MAX, 500_000_000] {
        refused(&raw.head(tensors, 0), Truncated, &["tensor count", "truncated"]);
    }
    for keys in [1, 1 << 63, u64::MAX, 500_000_000] {
        refused(&raw.head(0, keys), Truncated, &["metadata count", "truncated"]);
    }
    // Sparse, so that the bytes are there but the limit is not: nothing may be reserved for a million keys.
    let mut long = raw.head(0, 1_000_000);
    long.resize(16_000_000, 0);
    refused(&long, Limit, &["metadata count 1000000", "Limits::keys"]);
    let mut long = raw.head(200_000, 0);
    long.resize(16_000_000, 0);
    refused(&long, Limit, &["tensor count 200000", "Limits::tensors"]);
}

#[test]
fn a_tensor_count_that_is_too_small_does_not_shift_the_data() {
    let raw = Raw::good();
    let whole = raw.bytes();
    let body = &whole[raw.head(0, 0).len()..];
    for (count, next) in [(2, "\"c\""), (1, "\"b\""), (0, "\"a\"")] {
        let bytes = [&raw.head(count, 2), body].concat();
        refused(&bytes, Malformed, &[&format!("tensor count {count} is too small"), next]);
    }
    // Weights and padding are not taken for an info, and neither is the end of the file.
    for filler in [0, 1, 255] {
        let mut bytes = whole.clone();
        let data = bytes.len() - raw.data;
        bytes[data..].fill(filler);
        accepted(&bytes);
    }
}

#[test]
fn keys_that_are_too_long_empty_double_or_not_text() {
    for len in [1 << 48, u64::MAX, u64::MAX - 7, 60] {
        let raw = [Raw::good().head(0, 1), len.to_le_bytes().into(), vec![b'k'; 20]].concat();
        refused(&raw, Truncated, &["key length", "past the end"]);
    }
    let long = "k".repeat(65536);
    refused(
        &Raw::good().with_key(key(&long, U32, &[0; 4])).bytes(),
        Malformed,
        &["key", "length 65536", "65535"],
    );
    accepted(&Raw::good().with_key(key(&long[1..], U32, &[0; 4])).bytes());
    refused(&Raw::good().with_key(key("", U32, &[0; 4])).bytes(), Malformed, &["empty key"]);
    refused(
        &Raw::good().with_key(key(b"x.\xff\x1b", U32, &[0; 4])).bytes(),
        Malformed,
        &["key", "UTF-8", "\\u{1b}"],
    );
    refused(
        &Raw::good().with_key(key("n", U32, &[9, 0, 0, 0])).bytes(),
        Malformed,
        &["duplicate key \"n\": u32 7 and u32 9"],
    );
}

#[test]
fn values_that_are_too_long_or_of_no_type() {
    for len in [1000, 1 << 40, u64::MAX] {
        let value = [&len.to_le_bytes()[..], b"llama"].concat();
        let raw = [Raw::good().head(0, 1), key("general.architecture", STRING, &value)].concat();
        refused(&raw, Truncated, &["general.architecture", "past the end", "truncated", "5 left"]);
    }
    for ty in [13, 99, u32::MAX] {
        refused(
            &Raw::good().with_key(key("x.y", ty, &[0; 8])).bytes(),
            Malformed,
            &["\"x.y\"", "type", &ty.to_string()],
        );
    }
    let raw = Raw::good().with_key(key("x.flag", BOOL, &[2]));
    refused(&raw.bytes(), Malformed, &["\"x.flag\"", "bool", "found 2"]);
    let raw = Raw::good().with_key(key("x.flags", ARRAY, &array(BOOL, 5, &[0, 1, 0, 3, 0])));
    refused(&raw.bytes(), Malformed, &["\"x.flags\"", "bool", "found 3"]);
}

#[test]
fn arrays_whose_length_cannot_be() {
    for (element, len) in
        [(U32, 1 << 58), (10, 1 << 61), (STRING, 1 << 40), (0, u64::MAX), (ARRAY, 1 << 62), (BOOL, 1 << 50)]
    {
        let raw = Raw::good().with_key(key("x.list", ARRAY, &array(element, len, &[0; 40])));
        let error = Header::parse(&raw.bytes(), &Limits::default()).unwrap_err();
        let line = error.to_string();
        assert!(matches!(error.kind(), Malformed | Truncated), "{line}");
        assert!(line.contains("\"x.list\"") && line.contains("past the end of file"), "{line}");
    }
    // The lengths of strings are the file's word too.
    let strings = [text("ab"), u64::MAX.to_le_bytes().into()].concat();
    let raw = Raw::good().with_key(key("x.list", ARRAY, &array(STRING, 2, &strings)));
    refused(&raw.bytes(), Truncated, &["string 1 of 2", "\"x.list\"", "past the end"]);
    refused(
        &Raw::good().with_key(key("x.list", ARRAY, &array(99, 0, &[]))).bytes(),
        Malformed,
        &["\"x.list\"", "type 99"],
    );
}

#[test]
fn arrays_in_arrays_have_a_bottom() {
    let inner = [array(U32, 1, &[1, 0, 0, 0]), array(STRING, 1, &text("x"))].concat();
    let header = accepted(&Raw::good().with_key(key("x.two", ARRAY, &array(ARRAY, 2, &inner))).bytes());
    assert_eq!(header.metadata().array("x.two").unwrap().unwrap().len, 2);
    assert_eq!(header.tensors().len(), 3);

    let deep = array(ARRAY, 1, &[]).repeat(200_000);
    refused(&Raw::good().with_key(key("x.deep", ARRAY, &deep)).bytes(), Limit, &["\"x.deep\"", "nested"]);
}

#[test]
fn alignments() {
    let with = |ty, value: &[u8], alignment| {
        let raw = Raw { alignment, ..Raw::good() }.with_key(key("general.alignment", ty, value));
        Raw { infos: vec![info("a", &[4], 0, 0)], ..raw }.bytes()
    };
    for bad in [0u32, 13, 20, 1 << 30, u32::MAX] {
        refused(&with(U32, &bad.to_le_bytes(), 32), Malformed, &["general.alignment", &bad.to_string()]);
    }
    refused(&with(I32, &(-32i32).to_le_bytes(), 32), WrongType, &["general.alignment", "-32"]);
    refused(&with(F32, &32f32.to_le_bytes(), 32), WrongType, &["general.alignment", "f32"]);
    refused(&with(STRING, &text("32"), 32), WrongType, &["general.alignment", "string \"32\""]);
    for good in [1u32, 4, 8, 24, 64, 4096] {
        let header = accepted(&with(U32, &good.to_le_bytes(), good as usize));
        assert_eq!(header.tensors()[0].offset % u64::from(good), 0);
    }
}

#[test]
fn dimensions() {
    let five = info("b", &[1, 1, 1, 1, 1], 0, 64);
    refused(&Raw::good().with_b(five).bytes(), Malformed, &["\"b\"", "5 dimensions"]);
    let mut many = info("b", &[4], 0, 64);
    many[9..13].fill(0xff);
    refused(&Raw::good().with_b(many).bytes(), Malformed, &["\"b\"", "4294967295 dimensions"]);
    refused(&Raw::good().with_b(info("b", &[], 0, 64)).bytes(), Malformed, &["\"b\"", "0 dimensions"]);
    for dims in [[0, 4], [4, 0], [4, u64::MAX - 63], [1 << 63, 2]] {
        refused(&Raw::good().with_b(info("b", &dims, 0, 64)).bytes(), Malformed, &["\"b\"", "dimension"]);
    }
    // Products that wrap to 0, and to the right size; and one where only the bytes wrap.
    for dims in [vec![1 << 32, 1 << 32], vec![(1 << 62) + 4, 4, 4], vec![1 << 62]] {
        refused(&Raw::good().with_b(info("b", &dims, 0, 64)).bytes(), Malformed, &["\"b\"", "overflow"]);
    }
}

#[test]
fn rows_are_whole_blocks() {
    for (ty, cols, block) in [(12, 64, "256"), (8, 80, "32"), (40, 32, "64"), (20, 31, "32")] {
        let b = info("b", &[cols, 256], ty, 64);
        refused(&Raw::good().with_b(b).bytes(), Malformed, &["\"b\"", "block", block, &cols.to_string()]);
    }
}

#[test]
fn offsets_and_ranges() {
    for offset in [1, 48, 65] {
        let b = info("b", &[16], 0, offset);
        refused(&Raw::good().with_b(b).bytes(), Malformed, &["\"b\"", "offset", "align"]);
    }
    for offset in [2 << 20, 1 << 62] {
        let b = info("b", &[16], 0, offset);
        refused(&Raw::good().with_b(b).bytes(), Malformed, &["\"b\"", "past the end", "damaged"]);
    }
    for offset in [u64::MAX - 63, u64::MAX - 4095] {
        let b = info("b", &[16], 0, offset);
        refused(&Raw::good().with_b(b).bytes(), Malformed, &["\"b\"", "past the end"]);
    }
    let tall = info("b", &[16, 100], 0, 64);
    refused(&Raw::good().with_b(tall).bytes(), Malformed, &["\"b\"", "past the end", "damaged"]);
    // Two that are sound alone and wrap together.
    let mut raw = Raw::good();
    raw.infos.push(info("x.a", &[(1 << 63) - 64], 24, 160));
    raw.infos.push(info("x.b", &[(1 << 63) - 64], 24, (1 << 63) + 96));
    refused(&raw.bytes(), Malformed, &["x.b", "overflow"]);
    raw.infos.pop();
    refused(&raw.bytes(), Truncated, &["x.a", "past the end"]);
}

#[test]
fn tensors_share_no_byte() {
    for offset in [0, 32, 128] {
        let b = info("b", &[8], 0, offset);
        refused(&Raw::good().with_b(b).bytes(), Malformed, &["\"b\"", "overlap"]);
    }
    let error = refused(&Raw::good().with_b(info("b", &[16], 0, 32)).bytes(), Malformed, &["\"a\"", "\"b\""]);
    assert_eq!(error.path(), None);
}

#[test]
fn order_gaps_and_tails_do_not_matter() {
    let mut raw = Raw::good();
    raw.infos.reverse();
    accepted(&raw.bytes());
    raw.infos[0] = info("c", &[8], 0, 4096);
    raw.data = 4096 + 32 + 77;
    assert_eq!(accepted(&raw.bytes()).tensors()[0].name, "c");
    // Infos that already end on the alignment get no padding.
    let mut aligned = Raw::good();
    let short = aligned.bytes().len() - aligned.data;
    let unpadded: usize = 24 + aligned.keys.iter().chain(&aligned.infos).map(Vec::len).sum::<usize>();
    aligned.keys[0] =
        key("general.architecture", STRING, &text(format!("llama{}", "x".repeat(short - unpadded))));
    let header = accepted(&aligned.bytes());
    assert_eq!(header.data_start() as usize, short);
}

#[test]
fn names_that_are_too_long_empty_double_or_not_text() {
    let name = "n".repeat(72);
    refused(
        &Raw::good().with_b(info(&name, &[16], 0, 64)).bytes(),
        Malformed,
        &["tensor name", "length 72", "64", "nnn"],
    );
    accepted(&Raw::good().with_b(info(&name[..64], &[16], 0, 64)).bytes());
    refused(&Raw::good().with_b(info("", &[16], 0, 64)).bytes(), Malformed, &["tensor name", "empty"]);
    refused(
        &Raw::good().with_b(info(b"b\xfe\n", &[16], 0, 64)).bytes(),
        Malformed,
        &["tensor name", "UTF-8", "\\n"],
    );
    refused(&Raw::good().with_b(info("c", &[16], 0, 64)).bytes(), Malformed, &["duplicate tensor \"c\""]);
}

#[test]
fn types_that_nobody_reads_are_named_together() {
    let mut raw = Raw::good();
    raw.infos[0] = info("a", &[32, 4], 31, 0);
    raw.infos[2] = info("c", &[32], 105, 128);
    refused(
        &raw.bytes(),
        Unsupported,
        &["\"a\" (type 31: Q4_0_4_4, removed)", "\"c\" (type 105: unknown)", "requantise"],
    );
    for ty in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        refused(
            &Raw::good().with_b(info("b", &[32], ty, 64)).bytes(),
            Unsupported,
            &["\"b\"", &ty.to_string()],
        );
    }
    // Forty of them are one line still.
    raw.infos = (0..40).map(|i| info(format!("blk.{i}"), &[32], 200, 0)).collect();
    refused(&raw.bytes(), Unsupported, &["\"blk.0\"", "\"blk.15\"", "and 24 more"]);
    // Known ones are no matter of this crate.
    for ty in [16, 23, 34, 39, 40, 41, 42] {
        let raw = Raw { data: 4096, ..Raw::good() }.with_b(info("b", &[256], ty, 192));
        assert_eq!(accepted(&raw.bytes()).tensors()[1].ty.id(), ty);
    }
}

#[test]
fn cut_anywhere_it_is_refused() {
    let whole = Raw::good().bytes();
    for len in 0..whole.len() {
        let error = Header::parse(&&whole[..len], &Limits::default()).expect_err("cut");
        let line = error.to_string();
        assert!(len < 4 || error.kind() == Truncated, "{len}: {line}");
        assert!(len < 4 || line.contains("truncated"), "{len}: {line}");
    }
    refused(&[], Truncated, &["empty"]);
    refused(b"GGUF", Truncated, &["too short", "truncated"]);
    let short = &whole[..whole.len() - 1];
    refused(short, Truncated, &["\"c\"", "incomplete", "truncated", "past the end", "download it again"]);
}

#[test]
fn versions_and_byte_order() {
    for version in [0u32, 1, 4, 77] {
        refused(&Raw { version, ..Raw::good() }.bytes(), Unsupported, &[&format!("version {version}")]);
    }
    refused(&Raw { version: 3 << 24, ..Raw::good() }.bytes(), Unsupported, &["big-endian", "version 3"]);
    assert_eq!(accepted(&Raw { version: 2, ..Raw::good() }.bytes()).version(), 2);
}

#[test]
fn a_vocabulary_alone_will_do() {
    // Nothing after the infos, not even padding.
    let mut raw = Raw { infos: vec![], ..Raw::good() }.bytes();
    let keys: usize = Raw::good().keys.iter().map(Vec::len).sum();
    raw.truncate(24 + keys);
    assert!(accepted(&raw).tensors().is_empty());
}

#[test]
fn limits_are_kept() {
    let bytes = Raw::good().with_key(key("long", STRING, &text(vec![b'x'; 1000]))).bytes();
    let parse = |change: &dyn Fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        Header::parse(&bytes, &limits).map_err(|e| (e.kind(), e.to_string()))
    };
    assert!(parse(&|_| ()).is_ok());
    for change in [
        (|l: &mut Limits| l.header_bytes = 100) as fn(&mut Limits),
        |l| l.keys = 2,
        |l| l.metadata_bytes = 900,
        |l| l.metadata_bytes = 0,
        |l| l.tensors = 2,
    ] {
        let (kind, line) = parse(&change).unwrap_err();
        assert_eq!(kind, Limit, "{line}");
        assert!(line.contains("Limits::"), "{line}");
    }
    assert!(parse(&|l| l.key_bytes = 3).is_err());
    assert!(parse(&|l| l.name_bytes = 0).is_err());
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| Gguf::open(path).unwrap_err();
    let error = open(folder.path());
    assert!(error.to_string().contains("directory"), "{error}");
    let error = open(&folder.path().join("no\nsuch.gguf"));
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("no\\nsuch.gguf: cannot open: "), "{error}");
    // A device is one of the things that would be read for ever.
    let error = open("/dev/zero".as_ref());
    assert!(error.to_string().contains("no regular file"), "{error}");

    let path = folder.path().join("page.gguf");
    std::fs::write(&path, "<!DOCTYPE html><title>Sign in</title>").unwrap();
    let error = open(&path);
    assert_eq!((error.kind(), error.path()), (Unsupported, Some(path.as_path())));
    assert!(error.to_string().contains("page.gguf: not a GGUF file: it looks like a web page"), "{error}");
}
