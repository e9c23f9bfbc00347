//! `sluice inspect`: what is in a file, how large each type is, what a pass would stream.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use serde::Serialize;
use sluice_model::gguf::{Gguf, Value, ValueType, escape};
use sluice_model::{DEFAULT_CHUNK_BYTES, DEFAULT_HEAD_ROWS, Error, StreamSummary};

use crate::args;
use crate::io::{Failure, one_line, print, print_bytes, print_json};

#[derive(Serialize)]
struct Document {
    files: Vec<String>,
    file_bytes: u64,
    version: u32,
    alignment: u64,
    /// Scalars as they are, strings lossily decoded, arrays as {"type", "len"}.
    metadata: serde_json::Map<String, serde_json::Value>,
    tensor_count: usize,
    types: Vec<TypeTotal>,
    /// Null when the model cannot be run; then `not_runnable` says why.
    stream: Option<Stream>,
    not_runnable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Tensor>>,
}

#[derive(Serialize)]
struct TypeTotal {
    #[serde(rename = "type")]
    name: &'static str,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Stream {
    layer_bytes: u64,
    head_bytes: u64,
    tied: bool,
    chunks: usize,
    longest_chunk_bytes: usize,
    /// The two before are those of eager backends: direct reads, io_uring.
    lazy: Lazy,
}

/// How mmap and pread through the page cache cut a pass.
#[derive(Serialize)]
struct Lazy {
    chunks: usize,
    longest_chunk_bytes: usize,
    /// As many as run takes when it is not told: the cut depends on it.
    threads: usize,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    ty: &'static str,
    dims: Vec<u64>,
    file: usize,
    offset: u64,
    bytes: u64,
}

pub fn run(args: &args::Inspect) -> Result<ExitCode, Failure> {
    let gguf = Gguf::open(&args.model)?;
    if let Some(key) = &args.key {
        print_value(&gguf, key)?;
        return Ok(ExitCode::SUCCESS);
    }
    let document = describe(&gguf, args.tensors);
    if args.json {
        print_json(&document)?;
    } else {
        print(&text(&gguf, &document))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The value of `key` and nothing else: a string byte for byte, whatever it holds.
fn print_value(gguf: &Gguf, key: &str) -> Result<(), Failure> {
    let unshown = |problem: String| {
        Failure::Error(Error::Key { path: gguf.paths()[0].clone(), key: key.into(), problem })
    };
    let value = gguf
        .get(key)
        .ok_or_else(|| unshown("not among the metadata; without --key inspect lists what there is".into()))?;
    match value {
        Value::String(bytes) => {
            print_bytes(bytes)?;
            if stdout().is_terminal() && !bytes.ends_with(b"\n") {
                print("\n")?;
            }
            Ok(())
        }
        Value::Array(a) if a.element == ValueType::Array => {
            Err(unshown(format!("holds {} arrays in an array; wanted a value or a plain array", a.len)))
        }
        Value::Array(a) if a.element == ValueType::String => {
            let mut lines = Lines::default();
            let mut strings = gguf.strings(key)?;
            while let Some(string) = strings.as_mut().and_then(|s| s.next()) {
                lines.add(escape(string?))?;
            }
            lines.finish()
        }
        Value::Array(_) => {
            let mut lines = Lines::default();
            for value in gguf.scalars(key)?.into_iter().flatten() {
                lines.add(value?)?;
            }
            lines.finish()
        }
        scalar => print(&format!("{scalar}\n")),
    }
}

/// Lines for stdout, written many at a time: vocabularies have a hundred thousand.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, line: impl Display) -> Result<(), Failure> {
        const ENOUGH: usize = 64 << 10; // a pipe takes as much at once
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
        if self.0.len() >= ENOUGH {
            print(&self.0)?;
            self.0.clear();
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        print(&self.0)
    }
}

fn describe(gguf: &Gguf, list_tensors: bool) -> Document {
    let mut totals: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
    for t in gguf.tensors() {
        let total = totals.entry(t.ty.name()).or_default();
        total.0 += 1;
        total.1 += t.len;
    }
    let mut types: Vec<TypeTotal> =
        totals.into_iter().map(|(name, (tensors, bytes))| TypeTotal { name, tensors, bytes }).collect();
    types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
    let (stream, not_runnable) = match StreamSummary::of(gguf, DEFAULT_CHUNK_BYTES, DEFAULT_HEAD_ROWS) {
        Ok(s) => {
            let stream = Stream {
                layer_bytes: s.layer_bytes,
                head_bytes: s.head_bytes,
                tied: s.tied,
                chunks: s.chunks,
                longest_chunk_bytes: s.longest_chunk,
                lazy: Lazy {
                    chunks: s.lazy_chunks,
                    longest_chunk_bytes: s.longest_lazy_chunk,
                    threads: s.workers,
                },
            };
            (Some(stream), None)
        }
        Err(e) => (None, Some(e.to_string())),
    };
    let tensors = list_tensors.then(|| {
        let tensor = |t: &sluice_model::gguf::TensorInfo| Tensor {
            name: t.name.clone(),
            ty: t.ty.name(),
            dims: t.dims().to_vec(),
            file: t.file,
            offset: t.offset,
            bytes: t.len,
        };
        gguf.tensors().iter().map(tensor).collect()
    });
    Document {
        files: gguf.paths().iter().map(|p| p.display().to_string()).collect(),
        file_bytes: gguf.file_bytes(),
        version: gguf.version(),
        alignment: gguf.alignment(),
        metadata: gguf.keys().map(|(k, v)| (k.to_owned(), json(v))).collect(),
        tensor_count: gguf.tensors().len(),
        types,
        stream,
        not_runnable,
        tensors,
    }
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(b) => (*b).into(),
        // JSON has no NaN and no infinity: from() makes them null.
        Value::F32(f) => (*f).into(),
        Value::F64(f) => (*f).into(),
        Value::String(s) => String::from_utf8_lossy(s).into(),
        Value::Array(a) => serde_json::json!({ "type": a.element.name(), "len": a.len }),
        Value::U64(n) => (*n).into(),
        other => other.integer().and_then(|n| i64::try_from(n).ok()).into(),
    }
}

fn text(gguf: &Gguf, d: &Document) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    for file in &d.files {
        line(one_line(file));
    }
    line(format!(
        "GGUF version {}, alignment {}, {}, {} tensors",
        d.version,
        d.alignment,
        size(d.file_bytes),
        d.tensor_count
    ));
    line("\nmetadata".into());
    for (key, value) in gguf.keys() {
        // Templates run over pages; --key has them whole.
        const SHOWN: usize = 100;
        let value = value.to_string();
        let cut: String = value.chars().take(SHOWN).collect();
        let more = if cut.len() < value.len() { "…" } else { "" };
        line(format!("  {} = {cut}{more}", one_line(key)));
    }
    if !d.types.is_empty() {
        line("\ntypes".into());
    }
    for t in &d.types {
        line(format!("  {:<8} {:>5} tensors {:>12}", t.name, t.tensors, size(t.bytes)));
    }
    if let Some(tensors) = &d.tensors {
        line("\ntensors".into());
        for t in tensors {
            line(format!(
                "  {:<32} {:<8} {:<20} {:>12}",
                one_line(&t.name),
                t.ty,
                format!("{:?}", t.dims),
                size(t.bytes)
            ));
        }
    }
    match (&d.stream, &d.not_runnable) {
        (Some(s), _) => {
            let tied = if s.tied { " (the embedding table)" } else { "" };
            line("\na pass streams".into());
            line(format!("  layers {}, head {}{tied}", size(s.layer_bytes), size(s.head_bytes)));
            let cut =
                |chunks, longest: usize| format!("in {chunks} chunks of at most {}", size(longest as u64));
            line(format!("  {} by direct reads and io_uring", cut(s.chunks, s.longest_chunk_bytes)));
            let Lazy { chunks, longest_chunk_bytes, threads } = s.lazy;
            let cut = cut(chunks, longest_chunk_bytes);
            line(format!("  {cut} by mmap and pread through the page cache, with {threads} threads"));
        }
        (None, Some(why)) => line(format!("\ncannot be run: {}", one_line(why))),
        (None, None) => {}
    }
    out
}

/// Bytes in the unit that shows them best.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
