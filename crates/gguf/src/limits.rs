//! What a header may cost: every limit is charged before the memory is taken or the time is spent.

/// How much a header may ask for before it is refused.
///
/// The defaults leave several times the room of the largest files in circulation. Raise one when a file that is known
/// to be good runs into it; the error names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes before the tensor data, default 1 GiB. Headers of 30 MB exist (a 260k-token vocabulary with its merges); a
    /// gigabyte is walked in about a second, and a hostile file of 100 GB must not take minutes.
    pub header_bytes: u64,
    /// Metadata keys, default 65,536. Real files have 20 to 60.
    pub keys: u64,
    /// Bytes of one key, default 65,535: the specification's own bound.
    pub key_bytes: u64,
    /// Bytes of memory for all keys and string values together, and of the longest string in an array, default 64 MiB.
    /// Chat templates take 10 KB; the largest single value seen, a tokenizer embedded as JSON, takes 33 MB.
    pub metadata_bytes: u64,
    /// Levels of arrays in arrays, default 8. Each is a recursion; no writer goes beyond two.
    pub array_depth: u32,
    /// Tensors of one file, default 131,072, about 25 MB of infos. A model with experts as separate tensors has 20,000.
    pub tensors: u64,
    /// Bytes of a tensor name, default 64: the specification's own bound.
    pub name_bytes: u64,
    /// Largest `general.alignment`, default 2 MiB: a huge page is the most that anyone could have a use for.
    pub alignment: u64,
    /// Files of one model, default 512: each stays open, and processes usually may open 1024.
    pub shards: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 1 << 30,
            keys: 1 << 16,
            key_bytes: u16::MAX as u64,
            metadata_bytes: 64 << 20,
            array_depth: 8,
            tensors: 1 << 17,
            name_bytes: 64,
            alignment: 2 << 20,
            shards: 512,
        }
    }
}
