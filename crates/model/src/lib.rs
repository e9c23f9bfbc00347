//! Llama-family models over streamed weights: tokenizer, forward pass, sampling, sessions.
//!
//! The only crate that translates between its leaves: tensor names and shapes (`sluice-gguf`) become chunks
//! (`sluice-loader`), and their bytes become quantised rows (`sluice-kernels`). Data flows one way:
//!
//! ```text
//! header ─▶ config, weights ─▶ plan ─▶ schedule                          once, at start
//! file bytes ─▶ loan ─▶ quantised rows ─▶ activations ─▶ logits          every pass
//! ```
//!
//! A caller opens a [`Model`], a [`Session`] on it, and calls [`generate()`]:
//!
//! ```no_run
//! use sluice_model::{GenerateOptions, Model, Options, Sampler, SamplerOptions, Session, generate};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.gguf".as_ref())?;
//! let prompt = model.tokenizer().encode(b"The capital of France is", true, true);
//! let mut session = Session::open(&model, &Options::new(prompt.len() + 32))?;
//! let options = GenerateOptions { max_tokens: 32, sampler: SamplerOptions::default(), stop: Vec::new() };
//! let mut sampler = Sampler::new(options.sampler.clone())?;
//! let out = generate(&mut session, model.tokenizer(), &prompt, &options, &mut sampler, |text| {
//!     print!("{text}");
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! println!("\n{}", out.stop_reason.name());
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]
#![cfg(not(loom))] // the model checker gets the team alone, in tests/loom.rs

mod available;
mod budget;
pub mod config;
mod digest;
mod error;
mod forward;
mod generate;
mod kv;
mod layers;
mod memory;
mod model;
mod options;
pub mod plan;
mod pressure;
mod sample;
mod session;
mod shares;
pub mod speed;
mod state;
mod stop;
mod stream;
mod sync;
#[allow(unsafe_code)] // the one file with some: the border between a region and those who work in it
mod team;
pub mod tokenizer;
pub mod weights;

pub use budget::Ledger;
pub use error::{Error, Result};
pub use generate::{GenerateOptions, Outcome, StopReason, generate};
pub use kv::KvFormat;
pub use memory::ProcessMemory;
pub use model::{Model, StreamSummary, open_tokenizer, supported_formats};
pub use options::{
    ActBits, BackendChoice, Budget, DEFAULT_CHUNK_BYTES, DEFAULT_HEAD_ROWS, Direct, Options, Placement,
};
pub use sample::{Sampler, SamplerOptions};
pub use session::{Report, Session, SyncReport};
/// The header reader, for callers that look at a file without running it.
pub use sluice_gguf as gguf;
/// CPU levels, for [`Model::open_with`].
pub use sluice_kernels::Isa;
/// The loader, for [`Session::with_backend`].
pub use sluice_loader as loader;
pub use stop::StopFilter;
