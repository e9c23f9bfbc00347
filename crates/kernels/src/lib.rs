//! Quantised matrix products and the vector functions of a transformer, the same bits on every CPU level.
//!
//! The crate computes `y = W·x` where the rows of `W` are quantised blocks exactly as they lie in a GGUF file. It does no
//! I/O, owns no threads and keeps no globals: a caller with several threads gives each one a run of rows.
//!
//! ```
//! use sluice_kernels::{Acts, Format, Isa, QuantRows, matmul};
//!
//! let isa = Isa::detect()?;
//! // Two rows of 32 weights, all zero but for the scales: 34 bytes per block of Q8_0.
//! let bytes = [0u8; 2 * 34];
//! let w = QuantRows::new(Format::Q8_0, 32, &bytes)?;
//! let mut x = Acts::new();
//! x.fill(&[1.0; 3 * 32], 32); // three tokens
//! x.prepare(isa, Format::Q8_0);
//! let mut y = [1.0; 2 * 3]; // (rows, tokens)
//! matmul(isa, w, &x, &mut y);
//! assert_eq!(y, [0.0; 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which bits
//!
//! [`reference`](mod@reference) defines the formats, in f64 and a few lines each. The scalar level defines the bits of every
//! result; all other levels give exactly these, for any number of tokens and any split of the rows. A result that is not a
//! number is always the same quiet NaN, because hardware picks a payload by the order of operands.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod acts;
pub mod attention;
mod blocks;
mod convert;
mod format;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod in_place;
mod isa;
mod matmul;
mod numbers;
pub mod reference;
pub mod rope;
mod rows;
mod scalar;
mod transcendental;
pub mod transpose;
mod tuning;
pub mod vector;
mod wide;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use acts::{ActBits, Acts, Part};
pub use convert::{dequantise, quantise};
pub use format::{Format, ShapeError};
pub use isa::{Isa, IsaError};
pub use matmul::matmul;
pub use rope::{RopeError, RopeFreqs, RopeStyle};
pub use rows::QuantRows;
pub use tuning::{HINTS, Hint, Tuning, TuningError};
