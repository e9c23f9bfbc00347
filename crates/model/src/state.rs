//! The activations of a forward pass: every buffer, its shape beside it, allocated when a batch is the largest so far.

use sluice_kernels::{ActBits, Acts, Format, Isa};

use crate::config::Config;

/// Buffers for up to `batch` tokens. Products come out feature-major (rows × tokens), all else is token-major.
pub struct State {
    /// Hidden state, tokens × dim.
    pub x: Vec<f32>,
    /// Input of the matrices, in the forms that their formats want.
    pub acts: Acts,
    /// Cosines and sines of each token's position, tokens × rotated pairs.
    pub cos: Vec<f32>,
    /// As `cos`.
    pub sin: Vec<f32>,
    /// Queries, tokens × heads × key size.
    pub q: Vec<f32>,
    /// Keys, tokens × kv heads × key size.
    pub k: Vec<f32>,
    /// Values, tokens × kv heads × value size.
    pub v: Vec<f32>,
    /// Products before they are turned: the longest of the three inputs of attention, gate, up and dim, × tokens.
    pub y: [Vec<f32>; 3],
    /// Logits of the last pass with head, logit rows × vocabulary rows.
    pub logits: Vec<f32>,
}

impl State {
    /// Empty buffers; they grow to the largest batch fed and stay.
    pub fn new(bits: ActBits) -> Self {
        Self {
            x: Vec::new(),
            acts: Acts::with_bits(bits),
            cos: Vec::new(),
            sin: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            y: [const { Vec::new() }; 3],
            logits: Vec::new(),
        }
    }

    /// Makes room for a batch of `tokens` at once: buffers that grow from layer to layer would leave memory behind, which counts
    /// (0.13 MB with 8 tokens of a model of 1.1 billion weights).
    pub fn reserve(&mut self, config: &Config, tokens: usize) {
        let attended = config.heads * config.value_len;
        let widest = config.dim.max(config.ffn).max(attended);
        self.acts.reset(tokens, widest);
        scratch(&mut self.y[0], tokens * widest.max(config.heads * config.key_len));
        scratch(&mut self.y[1], tokens * config.ffn);
    }

    /// Bytes of all buffers but the logits.
    pub fn heap_bytes(&self) -> usize {
        let buffers = [&self.x, &self.cos, &self.sin, &self.q, &self.k, &self.v];
        let buffers = buffers.into_iter().chain(&self.y).map(Vec::capacity).sum::<usize>();
        buffers * size_of::<f32>() + self.acts.heap_bytes()
    }

    /// Bytes that one token of a batch takes in these buffers, for choosing a batch that fits. `inputs` are the widths of the
    /// matrices' inputs and the formats that they meet there: which 8-bit forms are built depends on them.
    pub fn bytes_per_token(
        config: &Config,
        isa: Isa,
        bits: ActBits,
        workers: usize,
        inputs: impl Iterator<Item = (Format, usize)>,
    ) -> usize {
        let kv_heads = config.kv_heads.iter().max().copied().unwrap_or(0);
        let q = config.heads * config.key_len;
        let k = kv_heads * config.key_len;
        let v = kv_heads * config.value_len;
        let attended = config.heads * config.value_len;
        let y = q.max(config.ffn).max(config.dim).max(attended) + k.max(config.ffn) + v;
        // Not by a formula that would have to know what the forms are made of: some tokens go through all of them, as many as
        // a level takes side by side.
        const TOGETHER: usize = 16;
        let mut acts = Acts::with_bits(bits);
        for (format, cols) in inputs {
            acts.reset(TOGETHER, cols);
            acts.prepare(isa, format);
        }
        let angles = config.rope.dim; // cosines and sines of half as many pairs
        (config.dim + q + k + v + y + angles) * size_of::<f32>()
            + acts.heap_bytes().div_ceil(TOGETHER)
            + workers * isa.scratch_bytes_per_token()
    }
}

/// A buffer of `len` values to be overwritten; what it holds before is unspecified.
pub fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.capacity() < len {
        // A vector that grows by itself takes up to twice as much, and holds both memories while it copies.
        *buffer = Vec::with_capacity(len);
    }
    buffer.resize(len, 0.0);
    &mut buffer[..]
}

/// The first `len` values of a buffer that products of several sizes go through; what they hold is unspecified.
pub fn scratch(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        sized(buffer, len);
    }
    &mut buffer[..len]
}

/// Adds `bias` (rows) to each token's column of a product (rows × tokens).
pub fn add_bias(y: &mut [f32], bias: Option<&[f32]>, tokens: usize) {
    let Some(bias) = bias else { return };
    if tokens > 0 {
        for (row, b) in y.chunks_exact_mut(tokens).zip(bias) {
            row.iter_mut().for_each(|v| *v += b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_what_they_need_and_no_more() {
        let mut buffer = Vec::new();
        for len in [1000, 1001, 10, 1001, 1500] {
            assert_eq!(sized(&mut buffer, len).len(), len);
        }
        assert_eq!(buffer.capacity(), 1500);
    }

    #[test]
    fn bias_goes_to_every_token_of_its_row() {
        let mut y = vec![0.0; 6];
        add_bias(&mut y, Some(&[1.0, 2.0, 3.0]), 2);
        assert_eq!(y, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    }
}
