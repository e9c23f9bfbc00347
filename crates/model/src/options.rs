//! What a session is opened with.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use sluice_kernels::ActBits;
pub use sluice_loader::{Choice as BackendChoice, Direct};

use crate::kv::KvFormat;

/// Rows of the output projection in a chunk, unless asked for otherwise: 1024 rows of a 4096-wide Q6_K head are
/// 3.4 MB, a good size for a direct read.
pub const DEFAULT_HEAD_ROWS: usize = 1024;

/// Bytes in a chunk for backends that read, unless asked for otherwise or a budget wants less.
pub const DEFAULT_CHUNK_BYTES: usize = sluice_loader::READ_CHUNK;

/// Whether weights stay in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Resident when everything fits into the memory that is available, else streamed.
    #[default]
    Auto,
    /// Read once, kept.
    Resident,
    /// Read in every pass.
    Stream,
}

/// Most memory for the whole process, as the kernel counts it (VmHWM).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// What is available: all weights stay if they fit, else as many as leave the machine well.
    #[default]
    Auto,
    /// The least that works for any prompt that fits the context.
    Min,
    /// So many bytes.
    Bytes(u64),
}

/// Memory, reading, and threads of a session. Nothing but `kv` and `act_bits` changes a bit of the result.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions in the context; at most the model's own.
    pub context: usize,
    /// Workers; None for what the machine gives this process.
    pub threads: Option<usize>,
    /// How bytes reach memory.
    pub backend: BackendChoice,
    /// Past the page cache or through it.
    pub direct: Direct,
    /// Most bytes in a chunk; None for what suits the backend and the budget.
    pub chunk_bytes: Option<usize>,
    /// Most memory for the process.
    pub budget: Budget,
    /// The layers' matrices.
    pub layers: Placement,
    /// The output projection.
    pub head: Placement,
    /// Most rows in a chunk of the output projection.
    pub head_rows: usize,
    /// Tokens of a prompt that go through the model together; None to choose by what the activations take.
    pub prompt_batch: Option<usize>,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// How activations are rounded for products with quantised weights; None for what suits the model's size, see
    /// [`Model::act_bits`](crate::Model::act_bits).
    pub act_bits: Option<ActBits>,
    /// Raised by the caller to end a pass between two bands; the pass then fails with [`crate::Error::Interrupted`].
    pub cancel: Arc<AtomicBool>,
}

impl Options {
    /// Defaults for a context of `context` positions.
    pub fn new(context: usize) -> Self {
        Self {
            context,
            threads: None,
            backend: BackendChoice::Auto,
            direct: Direct::Auto,
            chunk_bytes: None,
            budget: Budget::Auto,
            layers: Placement::Auto,
            head: Placement::Auto,
            head_rows: DEFAULT_HEAD_ROWS,
            prompt_batch: None,
            kv: KvFormat::default(),
            act_bits: None,
            cancel: Arc::default(),
        }
    }
}
