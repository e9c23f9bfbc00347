//! How long a tokenizer takes to load and to encode a megabyte, and what it keeps:
//! `cargo run --release -p sluice-model --example tokenize -- MODEL.gguf`

#![allow(clippy::print_stdout)] // measurements are what this prints

use std::time::Instant;

use sluice_model::open_tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: tokenize MODEL.gguf")?;
    let began = Instant::now();
    let tokenizer = open_tokenizer(path.as_ref())?;
    let seconds = began.elapsed().as_secs_f64();
    let heap = tokenizer.heap_bytes();
    println!("{} tokens, {heap} bytes, loaded in {seconds:.3} s", tokenizer.vocab_size());
    for warning in tokenizer.warnings() {
        println!("warning: {warning}");
    }
    let megabyte = |text: &str| text.repeat(1_000_000 / text.len());
    let words = "the quick brown fox jumps over 13 lazy dogs, isn't it?\n";
    for unit in ["a", " ", "<", "\n", "你", words] {
        let text = megabyte(unit);
        let began = Instant::now();
        let ids = tokenizer.encode(text.as_bytes(), true, true).len();
        let seconds = began.elapsed().as_secs_f64();
        println!("{:6.0} ms for 1 MB of {:.12?}: {ids} ids", seconds * 1e3, unit);
    }
    Ok(())
}
