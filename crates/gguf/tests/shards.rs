//! Models in several files: the whole set, or an error that says which file is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use sluice_gguf::{Error, ErrorKind, Gguf, Limits, TensorType, Writer};

/// One shard of a set that is written to a folder.
#[derive(Clone)]
struct Shard {
    name: &'static str,
    no: Option<u16>,
    count: u16,
    total: Option<i32>,
    tensors: Vec<&'static str>,
}

fn set() -> Vec<Shard> {
    let names = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
    let tensors = [vec!["a", "b"], vec!["c"], vec!["d", "e"]];
    let shards = names.into_iter().zip(tensors).zip(0..);
    shards
        .map(|((name, tensors), no)| Shard { name, no: Some(no), count: 3, total: Some(5), tensors })
        .collect()
}

fn write(folder: &Path, shards: &[Shard]) {
    for shard in shards {
        let mut writer = Writer::new();
        if shard.no == Some(0) {
            writer.key("general.architecture", "llama").array("x.words", &["one", "two"]);
        } else {
            writer.alignment(64); // each file has its own
        }
        if let Some(no) = shard.no {
            writer.key("split.no", no);
        }
        writer.key("split.count", shard.count);
        if let Some(total) = shard.total {
            writer.key("split.tensors.count", total);
        }
        for tensor in &shard.tensors {
            writer.tensor(tensor, TensorType::F32, &[3]);
        }
        let mut data = writer.begin(Vec::new()).unwrap();
        for tensor in &shard.tensors {
            data.tensor(tensor, &[tensor.as_bytes()[0]; 12]).unwrap();
        }
        fs::write(folder.join(shard.name), data.finish().unwrap()).unwrap();
    }
}

/// Writes the set and opens one of its files.
fn open(shards: &[Shard], which: &str) -> Result<Gguf, Error> {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), shards);
    Gguf::open(&folder.path().join(which))
}

#[track_caller]
fn refused(shards: &[Shard], which: &str, kind: ErrorKind, words: &[&str]) {
    let error = open(shards, which).expect_err("must be refused");
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    assert!(line.contains("split") || line.contains("shard"), "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
}

const FIRST: &str = "m-00001-of-00003.gguf";
use ErrorKind::{Limit, Malformed, Missing, WrongType};

#[test]
fn a_whole_set_is_one_model() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &set());
    let model = Gguf::open(&folder.path().join(FIRST)).unwrap();
    let paths: Vec<PathBuf> = set().iter().map(|s| folder.path().join(s.name)).collect();
    assert_eq!(model.paths(), paths);
    assert_eq!(model.file_bytes(), paths.iter().map(|p| p.metadata().unwrap().len()).sum::<u64>());
    let names: Vec<_> = model.tensors().iter().map(|t| (t.name.as_str(), t.file)).collect();
    assert_eq!(names, [("a", 0), ("b", 0), ("c", 1), ("d", 2), ("e", 2)]);
    for tensor in model.tensors() {
        let bytes = fs::read(&model.paths()[tensor.file]).unwrap();
        let data = &bytes[tensor.offset as usize..][..tensor.len as usize];
        assert_eq!(data, [tensor.name.as_bytes()[0]; 12]);
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
    }
    assert_eq!(model.tensor("f"), None);
    assert_eq!(model.str("general.architecture").unwrap().as_deref(), Some("llama"));
    assert_eq!(model.strings("x.words").unwrap().unwrap().next().unwrap().unwrap(), b"one");
}

#[test]
fn links_are_followed_by_their_own_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &set());
    let (blobs, links) = (folder.path().join("blobs"), folder.path().join("links"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&links).unwrap();
    for (i, shard) in set().iter().enumerate() {
        let blob = blobs.join(format!("{i:064x}"));
        fs::rename(folder.path().join(shard.name), &blob).unwrap();
        std::os::unix::fs::symlink(&blob, links.join(shard.name)).unwrap();
    }
    assert_eq!(Gguf::open(&links.join(FIRST)).unwrap().tensors().len(), 5);
}

#[test]
fn another_shard_than_the_first() {
    for other in &set()[1..] {
        let words = [other.name, "of 3", "give the first", FIRST];
        refused(&set(), other.name, Malformed, &words);
    }
}

#[test]
fn a_shard_that_is_missing_or_renamed() {
    refused(&set()[..2], FIRST, Missing, &["shard 3 of 3", "m-00003-of-00003.gguf", "missing"]);
    refused(&set()[..1], FIRST, Missing, &["shard 2 of 3", "m-00002-of-00003.gguf"]);
    for name in ["model.gguf", "m-00002-of-00003.gguf", "m-00001-of-00004.gguf", "m-00001-of-00003.bin"] {
        let mut shards = set();
        shards[1].name = "elsewhere.gguf";
        shards[0].name = name;
        refused(&shards, name, Malformed, &["renamed", "-00001-of-00003.gguf", name]);
    }
}

#[test]
fn shards_that_disagree() {
    let mut shards = set();
    shards[1].count = 2;
    refused(&shards, FIRST, Malformed, &["m-00002-of-00003.gguf: split.count", "wanted 3", "found 2"]);
    let mut shards = set();
    shards[2].no = Some(1);
    refused(&shards, FIRST, Malformed, &["m-00003-of-00003.gguf: split.no", "wanted 2", "found 1"]);
    let mut shards = set();
    shards[2].no = None;
    refused(&shards, FIRST, Malformed, &["split.no", "wanted 2", "found nothing"]);
    let mut shards = set();
    shards[0].no = None;
    refused(&shards, FIRST, Malformed, &["split.no"]);
    let mut shards = set();
    shards[0].no = Some(3);
    refused(&shards, FIRST, Malformed, &["split.no is 3", "3"]);
    let mut shards = set();
    shards[0].total = Some(99);
    refused(&shards, FIRST, Malformed, &["split.tensors.count is 99", "5 tensors"]);
    let mut shards = set();
    shards[0].total = Some(-1);
    refused(&shards, FIRST, WrongType, &["split.tensors.count", "-1"]);
    let mut shards = set();
    shards[0].count = 60_000;
    refused(&shards, FIRST, Limit, &["60000", "Limits::shards"]);
}

#[test]
fn a_tensor_in_two_shards() {
    let mut shards = set();
    shards[2].tensors[0] = "b";
    refused(&shards, FIRST, Malformed, &["duplicate tensor \"b\"", "m-00003-of-00003.gguf", FIRST]);
}

#[test]
fn damage_in_a_later_shard_names_that_shard() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &set());
    let second = folder.path().join("m-00002-of-00003.gguf");
    let bytes = fs::read(&second).unwrap();
    fs::write(&second, &bytes[..bytes.len() - 60]).unwrap();
    let error = Gguf::open(&folder.path().join(FIRST)).unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Truncated, Some(second.as_path())));
}

#[test]
fn one_file_of_a_merged_set_is_a_plain_model() {
    for count in [0, 1] {
        let shard = Shard { name: "merged.gguf", no: Some(0), count, total: Some(5), tensors: vec!["a"] };
        assert_eq!(open(&[shard], "merged.gguf").unwrap().tensors().len(), 1);
    }
    // The total is optional, and limits are per file.
    let mut shards = set();
    shards.iter_mut().for_each(|s| s.total = None);
    assert_eq!(open(&shards, FIRST).unwrap().tensors().len(), 5);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &set());
    let mut limits = Limits::default();
    limits.tensors = 2;
    assert!(Gguf::open_with(&folder.path().join(FIRST), &limits).is_ok());
}
