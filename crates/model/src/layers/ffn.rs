//! The feed-forward network: down(silu(gate(x)) · up(x)).

use sluice_kernels::vector::silu_mul;

use crate::error::Result;
use crate::layers::{Linear, Pass, turn};
use crate::state::{add_bias, scratch};
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
        let (dim, ffn, tokens, isa, team) =
            (pass.config.dim, pass.config.ffn, pass.tokens, pass.isa, pass.team);
        pass.norm(&self.norm, 0);
        let s = &mut *pass.state;
        let [gate, up, _] = &mut s.y;
        let (gate, up) = (scratch(gate, ffn * tokens), scratch(up, ffn * tokens));
        pass.weights.matmul(&[self.gate.weight, self.up.weight], &mut s.acts, &mut [gate, up])?;
        add_bias(gate, self.gate.bias.as_deref(), tokens);
        add_bias(up, self.up.bias.as_deref(), tokens);
        // The same number of values as by tokens; here any will do.
        let each = (team.tokens_each(tokens) * ffn).max(1);
        team.share(gate.chunks_mut(each).zip(up.chunks(each)), |(gate, up)| silu_mul(isa, gate, up));
        turn(team, isa, gate, tokens, s.acts.reset(tokens, ffn));
        let down = scratch(&mut s.y[0], dim * tokens);
        pass.weights.matmul(&[self.down.weight], &mut s.acts, &mut [down])?;
        add_bias(down, self.down.bias.as_deref(), tokens);
        pass.add_product();
        Ok(())
    }
}
