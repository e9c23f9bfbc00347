//! The parts of a transformer layer. They speak of weights by number and know nothing of where bytes come from.

pub mod attention;
pub mod ffn;
pub mod output;

use std::ops::Range;

use sluice_kernels::Isa;
use sluice_kernels::transpose::{add_transposed, transpose};
use sluice_kernels::vector::rms_norm;

use crate::config::Config;
use crate::kv::KvCache;
use crate::state::State;
use crate::team::Team;
use crate::weights::WeightId;

/// A matrix with the bias that is added to its product, where the file has one.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The matrix.
    pub weight: WeightId,
    /// One value per row.
    pub bias: Option<Vec<f32>>,
}

/// What the layers of one forward pass work on.
pub struct Pass<'a, W> {
    /// Shape and constants.
    pub config: &'a Config,
    /// Where matrices come from.
    pub weights: &'a mut W,
    /// Workers for attention.
    pub team: &'a Team,
    /// CPU level.
    pub isa: Isa,
    /// Activations; `x` holds the tokens' embeddings when the pass begins.
    pub state: &'a mut State,
    /// Keys and values of the sequence.
    pub kv: &'a mut KvCache,
    /// Position of the first token.
    pub first: usize,
    /// Number of tokens.
    pub tokens: usize,
}

impl<W> Pass<'_, W> {
    /// The normed hidden state of the tokens from `first` on becomes the input of the next product.
    fn norm(&mut self, weight: &[f32], first: usize) {
        let (isa, eps, dim) = (self.isa, self.config.eps, self.config.dim);
        let tokens = self.tokens - first;
        let normed = self.state.acts.reset(tokens, dim);
        let each = self.team.tokens_each(tokens) * dim;
        let tasks = self.state.x[first * dim..].chunks(each.max(1)).zip(normed.chunks_mut(each.max(1)));
        self.team.share(tasks, |(x, normed)| rms_norm(isa, x, weight, eps, normed));
    }

    /// Adds the product in the first of the buffers (dim × tokens) to the hidden state.
    fn add_product(&mut self) {
        let (isa, tokens, dim) = (self.isa, self.tokens, self.config.dim);
        let y = &self.state.y[0][..dim * tokens];
        by_tokens(self.team, tokens, &mut self.state.x, dim, |range, x| {
            add_transposed(isa, y, tokens, range, x);
        });
    }
}

/// Turns a product (rows × tokens) to `out` (tokens × rows).
fn turn(team: &Team, isa: Isa, y: &[f32], tokens: usize, out: &mut [f32]) {
    let rows = y.len().checked_div(tokens).unwrap_or(0);
    by_tokens(team, tokens, out, rows, |range, out| transpose(isa, y, tokens, range, out));
}

/// One parallel region over ranges of tokens and their rows of `out` (tokens × width).
fn by_tokens(
    team: &Team,
    tokens: usize,
    out: &mut [f32],
    width: usize,
    work: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let each = team.tokens_each(tokens);
    let tasks = out.chunks_mut(each * width).enumerate();
    team.share(tasks, |(i, out)| work(i * each..(i * each + out.len() / width), out));
}
