//! Read and write GGUF headers: where every tensor's bytes are, and what the metadata says.
//!
//! A GGUF file is a header (metadata keys with values, then one info per tensor), padding, and the tensors' bytes. This
//! crate parses and checks the header and never touches the data: [`TensorInfo`] gives each tensor's type, shape and
//! absolute byte range, already compared with the length of the file. Metadata arrays (a vocabulary is one) are walked
//! and checked once, and stay in the file; [`Gguf::strings`], [`Gguf::ints`] and [`Gguf::floats`] stream them.
//!
//! ```no_run
//! let model = sluice_gguf::Gguf::open("model.gguf".as_ref())?;
//! println!("{} layers", model.uint("llama.block_count")?.unwrap_or(0));
//! for tensor in model.tensors() {
//!     println!("{} {} {:?} at {}", tensor.name, tensor.ty, tensor.dims(), tensor.offset);
//! }
//! // Arrays come piece by piece. Strings are lent, so there is no `for` over them; integers and floats are iterators.
//! if let Some(mut tokens) = model.strings("tokenizer.ggml.tokens")? {
//!     while let Some(token) = tokens.next() {
//!         println!("{}", String::from_utf8_lossy(token?));
//!     }
//! }
//! # Ok::<(), sluice_gguf::Error>(())
//! ```
//!
//! # What is accepted
//!
//! Where the written specification and common readers differ, this crate does the following.
//!
//! | point | here |
//! |---|---|
//! | version | 2 and 3; 0, 1, 4 and later, and big-endian files are refused by name |
//! | `general.alignment` | any integer type; a power of two or a multiple of 8, at most [`Limits::alignment`] |
//! | nested arrays | walked down to [`Limits::array_depth`] levels |
//! | order of tensor infos, gaps and trailing bytes in the data | any; overlaps are refused |
//! | dimensions | 1 to 4, none of them 0; a row must be whole blocks |
//! | tensor offset | a multiple of the alignment |
//! | tensor name | UTF-8, 1 to 64 bytes, unique over all shards |
//! | key | UTF-8, 1 to 65535 bytes, unique |
//! | string value | any bytes; shown lossily and with control characters escaped |
//! | boolean | 0 or 1; another byte means damage and is refused |
//! | tensor type | every ggml type whose geometry is known; unknown and removed ones are named together in one error |
//! | shards | the whole set, found by file name from the first shard |
//!
//! # Bad input
//!
//! No input makes this crate panic, hang or allocate out of proportion: all arithmetic on numbers from the file is
//! checked, counts are compared with the bytes that are left, and [`Limits`] are charged before memory is taken. An
//! [`Error`] is one line that names the file and the key or tensor, what was wanted, what was found and what to do.
#![forbid(unsafe_code)]

mod arrays;
mod error;
mod foreign;
mod header;
mod limits;
mod metadata;
mod model;
mod read;
mod split;
mod tensor;
mod types;
mod value;
mod write;

pub use arrays::{Floats, Ints, Scalars, Strings};
pub use error::{Error, ErrorKind, Escaped, Result, escape};
pub use header::Header;
pub use limits::Limits;
pub use metadata::Metadata;
pub use model::Gguf;
pub use read::Source;
pub use tensor::TensorInfo;
pub use types::TensorType;
pub use value::{ArrayInfo, Value, ValueType};
pub use write::{Element, TensorWriter, Writer};
