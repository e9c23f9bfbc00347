//! What is written is read back, and no damage to a file makes the reader panic or misjudge a range.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_gguf::{ErrorKind, Header, Limits, Source, TensorType, Value, ValueType, Writer};

/// A file with every value type, arrays of several kinds and a few tensors.
fn specimen() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.key("u8", 200u8).key("i8", -3i8).key("u16", 60_000u16).key("i16", -300i16);
    writer.key("u32", 4_000_000_000u32).key("i32", -70_000i32).key("f32", 0.5f32).key("bool", true);
    writer.key("text", "héllo").key("u64", u64::MAX).key("i64", i64::MIN).key("f64", 1e300f64);
    writer.array("words", &["one", "", "three"]).array("ids", &[-1i32, 2, 3]).array("flags", &[true, false]);
    writer.array("scores", &[0.5f32, -2.0]).array("none", &[] as &[String]);
    writer.tensor("w", TensorType::Q8_0, &[32, 2]).tensor("v", TensorType::F16, &[3]).tensor(
        "q",
        TensorType::Q4_K,
        &[256],
    );
    let mut data = writer.begin(Vec::new()).unwrap();
    while let Some((_, left)) = data.expected() {
        data.write(&vec![7; left as usize]).unwrap();
    }
    data.finish().unwrap()
}

/// Parses, and reads everything that there is to read, also from bytes that differ from those that were parsed.
fn exercise(bytes: &[u8], streamed: &[u8]) {
    let header = match Header::parse(&bytes, &Limits::default()) {
        Ok(header) => header,
        Err(e) => {
            let line = e.to_string();
            assert!(!line.is_empty() && !line.contains(char::is_control), "{line:?}");
            return;
        }
    };
    for tensor in header.tensors() {
        assert!(tensor.offset >= header.data_start() && tensor.offset + tensor.len <= bytes.len() as u64);
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.len);
        assert_eq!(tensor.dims().iter().product::<u64>(), tensor.rows() * tensor.cols());
    }
    for (key, value) in header.metadata().iter() {
        assert!(!value.to_string().contains(char::is_control));
        let Value::Array(array) = value else { continue };
        let mut seen = 0;
        if let Ok(Some(mut strings)) = header.strings(&streamed, key) {
            while let Some(item) = strings.next() {
                seen += 1;
                assert!(item.is_ok() || streamed != bytes);
            }
        }
        for source in [bytes, streamed] {
            let ints = header.ints(&source, key).ok().flatten().map_or(0, Iterator::count);
            let floats = header.floats(&source, key).ok().flatten().map_or(0, Iterator::count);
            let scalars = header.scalars(&source, key).ok().flatten().map_or(0, Iterator::count);
            assert!((ints as u64).max(floats as u64).max(scalars as u64) <= array.len);
        }
        assert!(seen <= array.len);
    }
}

#[test]
fn every_type_is_read_back() {
    let bytes = specimen();
    let header = Header::parse(&bytes, &Limits::default()).unwrap();
    let meta = header.metadata();
    for (key, want) in [("u8", 200i128), ("i8", -3), ("u16", 60_000), ("i16", -300), ("u32", 4_000_000_000)] {
        assert_eq!(meta.get(key).unwrap().integer(), Some(want));
        assert_eq!(meta.int(key).unwrap(), Some(want as i64));
        assert_eq!(meta.uint(key).ok().flatten(), u64::try_from(want).ok());
        assert_eq!(meta.float(key).unwrap(), Some(want as f64));
    }
    assert_eq!(meta.uint("u64").unwrap(), Some(u64::MAX));
    assert_eq!(meta.int("i64").unwrap(), Some(i64::MIN));
    assert_eq!((meta.float("f32").unwrap(), meta.float("f64").unwrap()), (Some(0.5), Some(1e300)));
    assert_eq!((meta.bool("bool").unwrap(), meta.bool("absent").unwrap()), (Some(true), None));
    assert_eq!(meta.str("text").unwrap().unwrap(), "héllo");
    for (key, wrong) in [
        ("text", meta.uint("text").err()),
        ("f32", meta.uint("f32").err()),
        ("i8", meta.uint("i8").err()),
        ("u64", meta.int("u64").err()),
        ("bool", meta.uint("bool").err()),
        ("words", meta.str("words").err()),
        ("u8", meta.bool("u8").err()),
        ("i64", meta.float("i64").err()),
        ("u32", meta.array("u32").err()),
        ("ids", header.strings(&bytes, "ids").err()),
        ("words", header.ints(&bytes, "words").err()),
        ("scores", header.ints(&bytes, "scores").err()),
        ("flags", header.floats(&bytes, "flags").err()),
        ("words", header.scalars(&bytes, "words").err()),
    ] {
        let error = wrong.expect(key);
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(&format!("\"{key}\": wanted ")), "{error}");
    }

    let mut words = header.strings(&bytes, "words").unwrap().unwrap();
    assert_eq!((words.len(), words.is_empty()), (3, false));
    for want in ["one", "", "three"] {
        assert_eq!(words.next().unwrap().unwrap(), want.as_bytes());
    }
    assert!(words.next().is_none());
    let ids: Vec<i64> = header.ints(&bytes, "ids").unwrap().unwrap().map(Result::unwrap).collect();
    assert_eq!(ids, [-1, 2, 3]);
    let scores: Vec<f64> = header.floats(&bytes, "scores").unwrap().unwrap().map(Result::unwrap).collect();
    assert_eq!(scores, [0.5, -2.0]);
    let scalars =
        |key| -> Vec<Value> { header.scalars(&bytes, key).unwrap().unwrap().map(Result::unwrap).collect() };
    assert_eq!(scalars("scores"), [Value::F32(0.5), Value::F32(-2.0)]);
    assert!(scalars("flags").iter().all(|flag| flag.ty() == ValueType::Bool));
    assert_eq!(scalars("flags").len() as u64, meta.array("flags").unwrap().unwrap().len);
    assert!(header.strings(&bytes, "none").unwrap().unwrap().next().is_none());
    assert!(header.strings(&bytes, "absent").unwrap().is_none());
    assert_eq!(meta.array("none").unwrap().unwrap().element, ValueType::String);
}

#[test]
fn no_flip_and_no_cut_panics() {
    let whole = specimen();
    let header_len = Header::parse(&whole, &Limits::default()).unwrap().data_start() as usize;
    for at in 0..header_len {
        let mut bytes = whole.clone();
        for value in (0..8).map(|bit| whole[at] ^ (1 << bit)).chain([0, 0x7f, 0x80, 0xff]) {
            bytes[at] = value;
            exercise(&bytes, &whole);
            exercise(&whole, &bytes);
        }
    }
    for len in 0..whole.len() {
        exercise(&whole[..len], &whole);
        exercise(&whole, &whole[..len]);
    }
}

#[test]
fn strings_longer_than_the_buffer() {
    let long: Vec<String> = [70_000, 3, 200_000, 0, 65_536, 65_528].iter().map(|&n| "x".repeat(n)).collect();
    let mut writer = Writer::new();
    writer.array("long", &long).key("one", long[2].as_str());
    let bytes = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let header = Header::parse(&bytes, &Limits::default()).unwrap();
    let mut strings = header.strings(&bytes, "long").unwrap().unwrap();
    for want in &long {
        assert!(strings.next().unwrap().unwrap() == want.as_bytes());
    }
    assert!(header.metadata().bytes("one").unwrap().unwrap() == long[2].as_bytes());
    // Strings over the limit are refused while the array is walked, not when somebody reads it.
    let mut limits = Limits::default();
    limits.metadata_bytes = 100_000;
    assert_eq!(Header::parse(&bytes, &limits).unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let refused = |change: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new();
        writer.key("k", 1u32).tensor("t", TensorType::F32, &[2]);
        change(&mut writer);
        writer.begin(Vec::new()).err().map(|e| e.kind())
    };
    assert_eq!(refused(&|_| ()), None);
    let long = "n".repeat(70_000);
    let bad: [&dyn Fn(&mut Writer); 16] = [
        &|w| _ = w.version(1),
        &|w| _ = w.alignment(0),
        &|w| _ = w.alignment(12),
        &|w| _ = w.key("k", 2u32),
        &|w| _ = w.key("", 2u32),
        &|w| _ = w.key(&long, 2u32),
        &|w| _ = w.tensor("t", TensorType::F16, &[1]),
        &|w| _ = w.tensor("", TensorType::F16, &[1]),
        &|w| _ = w.tensor(&long[..65], TensorType::F16, &[1]),
        &|w| _ = w.tensor("u", TensorType::F16, &[]),
        &|w| _ = w.tensor("u", TensorType::F16, &[1, 0]),
        &|w| _ = w.tensor("u", TensorType::F16, &[1, 1, 1, 1, 1]),
        &|w| _ = w.tensor("u", TensorType::Q4_K, &[128]),
        &|w| _ = w.tensor("u", TensorType::Q4_2, &[16]),
        &|w| _ = w.tensor("u", TensorType::F32, &[1 << 40, 1 << 40]),
        &|w| _ = w.tensor("u", TensorType::I8, &[u64::MAX - 3]),
    ];
    for change in bad {
        assert_eq!(refused(change), Some(ErrorKind::Malformed));
    }

    let mut writer = Writer::new();
    writer.tensor("a", TensorType::F32, &[2]).tensor("b", TensorType::F32, &[1]);
    let mut data = writer.begin(Vec::new()).unwrap();
    assert!(data.tensor("b", &[0; 4]).is_err(), "out of order");
    assert!(data.tensor("a", &[0; 4]).is_err(), "too short");
    assert!(data.write(&[0; 9]).is_err(), "too long");
    data.write(&[0; 3]).unwrap();
    assert_eq!(data.expected(), Some(("a", 5)));
    data.write(&[0; 5]).unwrap();
    let error = data.finish().unwrap_err().to_string();
    assert!(error.contains("wanted 4 bytes of tensor \"b\", got the end"), "{error}");
}

fn tensor_type() -> impl Strategy<Value = TensorType> {
    let known: Vec<TensorType> = TensorType::all().filter(|ty| !ty.is_removed()).collect();
    prop::sample::select(known)
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        version in 2u32..=3,
        alignment in prop::sample::select(vec![1u32, 8, 24, 32, 256]),
        text in vec(any::<u8>(), 0..50),
        words in vec(vec(any::<u8>(), 0..12), 0..40),
        numbers in vec(any::<i64>(), 0..40),
        shapes in vec((tensor_type(), vec(1u64..4, 1..=4)), 0..6),
    ) {
        let mut writer = Writer::new();
        writer.version(version).alignment(alignment).key("text", text.clone()).array("words", &words);
        writer.array("numbers", &numbers);
        let dims = |ty: TensorType, dims: &[u64]| [&[dims[0] * ty.block_len()], &dims[1..]].concat();
        for (i, (ty, shape)) in shapes.iter().enumerate() {
            writer.tensor(&format!("t.{i}"), *ty, &dims(*ty, shape));
        }
        let mut data = writer.begin(Vec::new()).unwrap();
        let mut i = 0u8;
        while let Some((name, left)) = data.expected().map(|(name, left)| (name.to_owned(), left)) {
            data.tensor(&name, &vec![i; left as usize]).unwrap();
            i += 1;
        }
        let bytes = data.finish().unwrap();
        prop_assert_eq!(bytes.byte_len().unwrap(), writer.file_len().unwrap());

        let header = Header::parse(&bytes, &Limits::default()).unwrap();
        prop_assert_eq!((header.version(), header.alignment()), (version, alignment.into()));
        prop_assert_eq!(header.metadata().bytes("text").unwrap(), Some(text.as_slice()));
        let mut strings = header.strings(&bytes, "words").unwrap().unwrap();
        for word in &words {
            prop_assert_eq!(strings.next().unwrap().unwrap(), word.as_slice());
        }
        prop_assert!(strings.next().is_none());
        let read: Vec<i64> = header.ints(&bytes, "numbers").unwrap().unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(read, numbers);
        prop_assert_eq!(header.tensors().len(), shapes.len());
        for (i, ((ty, shape), tensor)) in shapes.iter().zip(header.tensors()).enumerate() {
            let want = dims(*ty, shape);
            prop_assert_eq!((tensor.ty, tensor.dims()), (*ty, want.as_slice()));
            let data = &bytes[tensor.offset as usize..][..tensor.len as usize];
            prop_assert!(data.iter().all(|&b| b as usize == i));
        }
    }

    #[test]
    fn no_damage_panics(
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = specimen();
        let mut bytes = whole.clone();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(&bytes, &whole);
        exercise(&whole, &bytes);
        bytes.truncate(cut.index(bytes.len()));
        exercise(&bytes, &whole);
    }

    #[test]
    fn nonsense_behind_a_good_beginning_never_panics(tail in vec(any::<u8>(), 0..300), tensors in 0u64..3, keys in 0u64..3) {
        let head = [b"GGUF".as_slice(), &[3, 0, 0, 0], &tensors.to_le_bytes(), &keys.to_le_bytes(), &tail].concat();
        exercise(&head, &head);
    }
}
