//! The output projection: the final norm, and logits over the vocabulary.

use crate::error::Result;
use crate::layers::{Linear, Pass, turn};
use crate::state::{add_bias, sized};
use crate::weights::Weights;

/// Whose logits a pass is to leave in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Nobody's: the pass has no head.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// Weights of the output projection. A tied model names its embedding table here; it is a matrix like any other.
#[derive(Clone, Debug)]
pub struct Output {
    /// RMSNorm before it, dim values.
    pub norm: Vec<f32>,
    /// Vocabulary × dim.
    pub head: Linear,
    /// Rows of the head.
    pub rows: usize,
}

impl Output {
    /// Leaves the wanted logits in the state, logit rows × vocabulary rows.
    pub fn run<W: Weights>(&self, pass: &mut Pass<'_, W>, wanted: Logits) -> Result<()> {
        let first = match wanted {
            Logits::None => return Ok(()),
            Logits::Last => pass.tokens.saturating_sub(1),
            Logits::All => 0,
        };
        let tokens = pass.tokens - first;
        pass.norm(&self.norm, first);
        let s = &mut *pass.state;
        let logits = sized(&mut s.logits, self.rows * tokens);
        if tokens <= 1 {
            pass.weights.matmul(&[self.head.weight], &mut s.acts, &mut [logits])?;
            add_bias(logits, self.head.bias.as_deref(), tokens);
        } else {
            let y = sized(&mut s.y[0], self.rows * tokens);
            pass.weights.matmul(&[self.head.weight], &mut s.acts, &mut [y])?;
            add_bias(y, self.head.bias.as_deref(), tokens);
            turn(pass.team, pass.isa, y, tokens, logits);
        }
        Ok(())
    }
}
