//! The parts of a transformer layer. They speak of weights by number and know nothing of where bytes come from.

pub mod attention;
pub mod ffn;
pub mod output;

use crate::weights::WeightId;

/// A matrix with the bias that is added to its product, where the file has one.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The matrix.
    pub weight: WeightId,
    /// One value per row.
    pub bias: Option<Vec<f32>>,
}
