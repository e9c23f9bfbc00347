//! The feed-forward network: down(silu(gate(x)) · up(x)).

use sluice_kernels::vector::{rms_norm, silu_mul};

use crate::error::Result;
use crate::layers::{Linear, Pass};
use crate::state::{add_bias, add_product, sized, to_token_major};
use crate::weights::Weights;

/// Weights of one feed-forward network.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// RMSNorm before it, dim values.
    pub norm: Vec<f32>,
    /// ffn × dim.
    pub gate: Linear,
    /// ffn × dim.
    pub up: Linear,
    /// dim × ffn.
    pub down: Linear,
}

impl FeedForward {
    /// Adds the network's result to the hidden state.
    pub fn run<W: Weights>(&self, pass: &mut Pass<'_, W>) -> Result<()> {
        let (dim, ffn, tokens, isa) = (pass.config.dim, pass.config.ffn, pass.tokens, pass.isa);
        let s = &mut *pass.state;
        rms_norm(isa, &s.x, &self.norm, pass.config.eps, sized(&mut s.normed, tokens * dim));
        s.acts.fill(&s.normed, dim);
        let [gate, up, turned] = &mut s.y;
        let (gate, up) = (sized(gate, ffn * tokens), sized(up, ffn * tokens));
        pass.weights.matmul(&[self.gate.weight, self.up.weight], &mut s.acts, &mut [gate, up])?;
        add_bias(gate, self.gate.bias.as_deref(), tokens);
        add_bias(up, self.up.bias.as_deref(), tokens);
        silu_mul(isa, gate, up);
        // One token is token-major already.
        if tokens == 1 {
            s.acts.fill(gate, ffn);
        } else {
            let turned = sized(turned, tokens * ffn);
            to_token_major(gate, tokens, turned);
            s.acts.fill(turned, ffn);
        }
        let down = sized(&mut s.y[0], dim * tokens);
        pass.weights.matmul(&[self.down.weight], &mut s.acts, &mut [down])?;
        add_bias(down, self.down.bias.as_deref(), tokens);
        add_product(&mut s.x, down, tokens);
        Ok(())
    }
}
