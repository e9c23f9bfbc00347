//! Models that are not there, not whole, not models, or have odd names: one line with the path, exit code 1.

#![allow(clippy::print_stderr, reason = "a skip must be seen")]

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{model, run, sluice, tiny, write};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sluice_fixtures::{Spec, TensorType};
use sluice_model::gguf::Writer;
use tempfile::TempDir;

const COMMANDS: [&[&str]; 4] =
    [&["run", "-p", "the", "-n", "2"], &["inspect"], &["tokenize", "-p", "the"], &["logits", "--ids", "1"]];

/// Every command on `model`.
fn everywhere(model: impl AsRef<OsStr>) -> impl Iterator<Item = common::Ran> {
    COMMANDS.iter().map(move |args| {
        sluice([OsStr::new(args[0]), model.as_ref()].into_iter().chain(args[1..].iter().map(OsStr::new)))
    })
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = TempDir::new().expect("a folder");
    let pipe = dir.path().join("pipe.gguf");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let dangling = dir.path().join("dangling.gguf");
    symlink("nowhere", &dangling).expect("a link");
    for (path, word) in [
        (Path::new("/nowhere/model.gguf"), "No such file"),
        (Path::new("~/model.gguf"), "No such file"),
        (dir.path(), "directory"),
        (&pipe, "pipe"),
        (&dangling, "No such file"),
        (Path::new("/dev/zero"), "device"),
        (Path::new("/dev/null"), "device"),
    ] {
        everywhere(path).for_each(|ran| drop(ran.refused(1, &[path.to_str().expect("plain"), word])));
    }
}

#[test]
fn a_file_that_may_not_be_read() {
    let (_dir, path) = model();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("our own file");
    if fs::File::open(&path).is_ok() {
        eprintln!("SKIPPED: this user may read everything");
        return;
    }
    for ran in everywhere(&path) {
        ran.refused(1, &["tiny.gguf", "ermission"]);
    }
}

#[test]
fn what_is_no_model_is_named_for_what_it_is() {
    let (_dir, path) = model();
    let whole = fs::read(&path).expect("the model");
    let mut zeros = whole.clone();
    zeros.fill(0);
    for (bytes, word) in [
        (&b""[..], "empty"),
        (&b"GGUF"[..], "too short"),
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"[..], "git lfs pull"),
        (&b"<!DOCTYPE html><html><head>"[..], "web page"),
        (&zeros, "not a GGUF"),
        (&whole[..whole.len() - 1], "bytes"),
        (&whole[..whole.len() / 2], "bytes"),
        (&whole[..1000], "end"),
    ] {
        fs::write(&path, bytes).expect("the file again");
        for ran in everywhere(&path) {
            ran.refused(1, &["tiny.gguf", word]);
        }
    }
}

#[test]
fn any_path_works_and_none_breaks_the_line() {
    let names: [&[u8]; 6] = [
        b"with space.gguf",
        b"-n.gguf",
        b"new\nline.gguf",
        b"\xff\xfe.gguf",
        b"esc\x1b[31m.gguf",
        "ü∎🦙.gguf".as_bytes(),
    ];
    for name in names {
        let name = OsString::from_vec(name.to_vec());
        let (dir, path) = write(&tiny(), &name);
        let ran = run(&path, "-p the -n 2 --json").ok();
        assert_eq!(ran.json()["generated_tokens"], 2);
        sluice([OsStr::new("inspect"), path.as_os_str()]).ok();
        sluice([OsStr::new("inspect"), path.as_os_str(), OsStr::new("--json")]).ok().json();
        fs::write(&path, "not a model").expect("the file again");
        for ran in everywhere(&path) {
            ran.refused(1, &["GGUF"]);
        }
        let failed = sluice([OsStr::new("inspect"), path.as_os_str(), OsStr::new("--json")]);
        assert_eq!((failed.code, &failed.json()["exit_code"]), (Some(1), &1.into()));
        drop(dir);
        for ran in everywhere(&path) {
            ran.refused(1, &[".gguf", "No such file"]);
        }
    }
}

/// Writes `spec` in two shards that each have half of the tensors.
fn shards(spec: &Spec, dir: &Path) -> [std::path::PathBuf; 2] {
    let tensors = spec.tensors();
    let (first, second) = tensors.split_at(tensors.len() / 2);
    [(0u16, spec.metadata(), first), (1, Writer::new(), second)].map(|(no, mut file, part)| {
        file.key("split.no", no).key("split.count", 2u16).key("split.tensors.count", tensors.len() as i32);
        for t in part {
            file.tensor(&t.name, t.ty, &t.dims);
        }
        let mut data = file.begin(Vec::new()).expect("a header");
        for t in part {
            data.tensor(&t.name, &t.bytes(spec.seed)).expect("a tensor");
        }
        let path = dir.join(format!("m-{:05}-of-00002.gguf", no + 1));
        fs::write(&path, data.finish().expect("a file")).expect("room for it");
        path
    })
}

#[test]
fn links_and_shards_give_the_text_of_the_plain_file() {
    let (dir, path) = model();
    let wanted = run(&path, "-p the -n 9").ok().stdout;
    let link = dir.path().join("link.gguf");
    symlink(&path, &link).expect("a link");
    assert_eq!(run(&link, "-p the -n 9").ok().stdout, wanted);

    let [first, second] = shards(&tiny(), dir.path());
    for flags in ["", " --backend pread --layers stream --stream-lm-head", " --backend mmap --layers stream"]
    {
        assert_eq!(run(&first, &format!("-p the -n 9{flags}")).ok().stdout, wanted, "{flags}");
    }
    // As a download cache has them: files named by hash, and links with the names.
    let names = TempDir::new().expect("a folder");
    for (i, shard) in [&first, &second].into_iter().enumerate() {
        let blob = dir.path().join(format!("blob{i}"));
        fs::rename(shard, &blob).expect("a new name");
        symlink(&blob, names.path().join(shard.file_name().expect("a name"))).expect("a link");
    }
    let linked = names.path().join("m-00001-of-00002.gguf");
    assert_eq!(run(&linked, "-p the -n 9").ok().stdout, wanted);
    run(&names.path().join("m-00002-of-00002.gguf"), "-p the")
        .refused(1, &["shard 2 of 2", "m-00001-of-00002.gguf"]);
    fs::remove_file(names.path().join("m-00002-of-00002.gguf")).expect("a link");
    run(&linked, "-p the").refused(1, &["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
}

/// A model of which `change` has edited the metadata, with the tensors that `keep` keeps.
fn edited(change: impl FnOnce(&mut Writer), keep: impl Fn(&str) -> bool) -> (TempDir, std::path::PathBuf) {
    let spec = tiny();
    let mut file = spec.metadata();
    change(&mut file);
    let tensors: Vec<_> = spec.tensors().into_iter().filter(|t| keep(&t.name)).collect();
    for t in &tensors {
        file.tensor(&t.name, t.ty, &t.dims);
    }
    let mut data = file.begin(Vec::new()).expect("a header");
    for t in &tensors {
        data.tensor(&t.name, &t.bytes(spec.seed)).expect("a tensor");
    }
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("edited.gguf");
    fs::write(&path, data.finish().expect("a file")).expect("room for it");
    (dir, path)
}

fn inspected(path: &Path) -> serde_json::Value {
    let text = sluice(["inspect".as_ref(), path.as_os_str()]).ok();
    assert!(String::from_utf8_lossy(&text.stdout).contains("cannot be run"), "{text:?}");
    sluice(["inspect".as_ref(), path.as_os_str(), "--json".as_ref(), "--tensors".as_ref()]).ok().json()
}

#[test]
fn what_cannot_be_run_can_be_looked_at() {
    let (_dir, path) = edited(|_| {}, |_| false);
    let d = inspected(&path);
    assert_eq!((&d["tensor_count"], &d["stream"]), (&0.into(), &serde_json::Value::Null));
    let (_whole, plain) = model();
    let ids = |path: &Path| {
        sluice(["tokenize".as_ref(), path.as_os_str(), "-p".as_ref(), "q".as_ref()]).ok().stdout
    };
    assert_eq!(ids(&path), ids(&plain));
    const VOCABULARY_ONLY: &str = "holds a vocabulary only (no tensors): tokenize works on it, run does not";
    assert!(d["not_runnable"].as_str().is_some_and(|why| why.ends_with(VOCABULARY_ONLY)), "{d}");
    run(&path, "-p the").refused(1, &["edited.gguf", VOCABULARY_ONLY]);
    sluice(["logits".as_ref(), path.as_os_str(), "--ids".as_ref(), "1".as_ref()])
        .refused(1, &["edited.gguf", VOCABULARY_ONLY]);

    let (_dir, path) = edited(|file| _ = file.key("llama.expert_count", 8u32), |_| true);
    let d = inspected(&path);
    assert!(d["not_runnable"].as_str().is_some_and(|why| why.contains("llama.expert_count")), "{d}");
    assert!(d["tensors"].as_array().is_some_and(|t| t.len() == 21), "{d}");
    run(&path, "-p the").refused(1, &["edited.gguf", "llama.expert_count"]);

    let (_dir, path) = edited(|_| {}, |name| name != "blk.1.ffn_down.weight");
    let d = inspected(&path);
    assert!(d["not_runnable"].as_str().is_some_and(|why| why.contains("blk.1.ffn_down.weight")), "{d}");
    run(&path, "-p the").refused(1, &["edited.gguf", "blk.1.ffn_down.weight"]);
}

#[test]
fn one_value_is_shown_whole() {
    let template = "{% for m in messages %}\n\u{1b}{{ m }}".repeat(50);
    let (_dir, path) = edited(
        |file| {
            file.key("x.template", template.as_str()).key("x.bytes", &b"\xff\n"[..]).key("x.rate", 0.5f32);
            file.array("x.words", &["a\nb", "", "∎"]).array("x.flags", &[true, false]);
            file.array("x.many", &(0..50_000u32).collect::<Vec<_>>());
        },
        |_| true,
    );
    let show = |key: &str| sluice(["inspect".as_ref(), path.as_os_str(), "--key".as_ref(), OsStr::new(key)]);
    let many: String = (0..50_000).map(|n| format!("{n}\n")).collect();
    for (key, wanted) in [
        ("x.template", template.as_bytes()),
        ("x.bytes", b"\xff\n"),
        ("x.rate", b"0.5\n"),
        ("x.words", "a\\nb\n\n∎\n".as_bytes()),
        ("x.flags", b"true\nfalse\n"),
        ("x.many", many.as_bytes()),
    ] {
        let ran = show(key).ok();
        assert!(ran.stdout == wanted && ran.stderr.is_empty(), "{key}: {ran:?}");
    }
    show("x.absent").refused(1, &["edited.gguf", "x.absent", "not among the metadata"]);
    let args = ["--key", "x.rate", "--json"].map(OsStr::new);
    let both = sluice([OsStr::new("inspect"), path.as_os_str()].into_iter().chain(args));
    assert_eq!(both.json()["exit_code"], 2, "{both:?}");
}

#[test]
fn both_ways_to_cut_a_pass_are_told() {
    // Layers that lazy backends share out in pieces smaller than an eager read.
    let (_dir, path) = write(&Spec { ffn: 4096, ..tiny() }, "wide.gguf");
    let d = sluice(["inspect".as_ref(), path.as_os_str(), "--json".as_ref()]).ok().json();
    let stream = &d["stream"];
    let eager = (&stream["chunks"], &stream["longest_chunk_bytes"]);
    let lazy = (&stream["lazy"]["chunks"], &stream["lazy"]["longest_chunk_bytes"]);
    assert!(lazy.0.as_u64() > eager.0.as_u64() && lazy.1.as_u64() < eager.1.as_u64(), "{d}");
    assert!(lazy.1.as_u64().is_some_and(|bytes| bytes <= 1 << 20), "{d}");
    assert!(stream["lazy"]["threads"].as_u64().is_some_and(|n| n > 0), "{d}");
    let text = sluice(["inspect".as_ref(), path.as_os_str()]).ok().stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    for line in
        [format!("  in {} chunks of at most ", eager.0), format!("  in {} chunks of at most ", lazy.0)]
    {
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
}

#[test]
fn hostile_text_in_a_file_is_escaped_where_it_is_shown() {
    let (_dir, path) =
        edited(|file| _ = file.key("x.note", "\u{1b}[31m\n\0").key("x.bytes", &b"\xff"[..]), |_| true);
    let plain = sluice(["inspect".as_ref(), path.as_os_str(), "--tensors".as_ref()]).ok();
    let text = String::from_utf8(plain.stdout).expect("UTF-8");
    assert!(text.contains("x.note = \\u{1b}[31m\\n\\u{0}\n"), "{text}");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    let d = sluice(["inspect".as_ref(), path.as_os_str(), "--json".as_ref()]).ok().json();
    assert_eq!(
        (&d["metadata"]["x.note"], &d["metadata"]["x.bytes"]),
        (&"\u{1b}[31m\n\0".into(), &"\u{fffd}".into())
    );
    assert_eq!(d["types"][0]["type"], TensorType::Q8_0.name());
    assert!(d["stream"]["layer_bytes"].as_u64() > d["stream"]["head_bytes"].as_u64(), "{d}");
}
