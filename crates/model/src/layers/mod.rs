//! The parts of a transformer layer. They speak of weights by number and know nothing of where bytes come from.

pub mod attention;
pub mod ffn;
pub mod output;

use sluice_kernels::Isa;

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
