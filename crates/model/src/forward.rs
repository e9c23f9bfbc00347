//! The forward pass of a Llama-family model: which matrices in which order, and the arithmetic between them.
//!
//! It runs over anything that is [`Weights`]: streamed ones to compute, a recorder to learn the order.

use sluice_gguf::Gguf;
use sluice_kernels::{ActBits, Isa, RopeFreqs};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::kv::{KvCache, KvFormat};
use crate::layers::attention::Attention;
use crate::layers::ffn::FeedForward;
use crate::layers::output::{Logits, Output};
use crate::layers::{Linear, Pass};
use crate::plan::Recorder;
use crate::state::{State, sized};
use crate::stream::PassKind;
use crate::team::Team;
use crate::weights::{Finder, Table, WeightId, Weights};

/// A model's shape, its small vectors, and the numbers of its matrices.
#[derive(Clone, Debug)]
pub struct Llama {
    /// Shape and constants.
    pub config: Config,
    /// Row i is the embedding of token i.
    pub embedding: WeightId,
    /// The layers in order.
    pub layers: Vec<Layer>,
    /// Final norm and head.
    pub output: Output,
    freqs: RopeFreqs,
}

/// One transformer layer.
#[derive(Clone, Debug)]
pub struct Layer {
    attention: Attention,
    ffn: FeedForward,
}

impl Llama {
    /// Finds every tensor of the architecture in `gguf` and checks its shape; reads the vectors.
    ///
    /// Also returns the table of matrices and warnings about what was found beside them.
    ///
    /// # Errors
    /// For a missing tensor, a wrong shape, or types that cannot be computed (all of them in one message).
    pub fn load(gguf: &Gguf, isa: Isa) -> Result<(Self, Table, Vec<String>)> {
        let config = Config::read(gguf)?;
        let mut find = Finder::new(gguf, isa);
        let embedding = find.matrix("token_embd.weight", None, config.dim)?;
        let mut layers = Vec::new();
        for (i, kv_heads) in config.kv_heads.iter().enumerate() {
            layers.push(Layer::find(&mut find, &config, i, *kv_heads)?);
        }
        let norm = find.norm("output_norm.weight", config.dim)?;
        let tied = !find.has("output.weight");
        let head = if tied { embedding } else { find.matrix("output.weight", None, config.dim)? };
        let rows = find.rows(head);
        let embeddings = find.rows(embedding);
        if rows != embeddings {
            return Err(Error::tensor(
                &gguf.paths()[0],
                format!(
                    "tensor output.weight has {rows} rows, token_embd.weight has {embeddings}; wanted as many"
                ),
            ));
        }
        let bias = find.optional_vector("output.bias", rows)?;
        let rope = &config.rope;
        let divisors = find.optional_vector("rope_freqs.weight", rope.dim / 2)?;
        let (table, warnings) = find.finish(config.layers())?;
        // Not before the layers were found: their shapes bear out the head size, and with it the length made here.
        let freqs = RopeFreqs::new(rope.base, rope.dim, rope.linear_factor, divisors.as_deref())
            // The metadata was checked before: what is left to be wrong is a divisor.
            .map_err(|e| Error::tensor(&gguf.paths()[0], format!("tensor rope_freqs.weight: {e}")))?;
        let output = Output { norm, head: Linear { weight: head, bias }, rows };
        Ok((Self { config, embedding, layers, output, freqs }, table, warnings))
    }

    /// Bytes of the vectors that are kept.
    pub fn heap_bytes(&self) -> usize {
        let linear = |linear: &Linear| linear.bias.as_ref().map_or(0, Vec::len);
        let layer = |Layer { attention: a, ffn: f }: &Layer| {
            let biases = [&a.q, &a.k, &a.v, &a.out, &f.gate, &f.up, &f.down];
            a.norm.len() + f.norm.len() + biases.into_iter().map(linear).sum::<usize>()
        };
        let values = self.layers.iter().map(layer).sum::<usize>() + self.output.norm.len();
        (values + linear(&self.output.head)) * size_of::<f32>()
    }

    /// The groups of matrices that each kind of pass asks for, in the order of [`PassKind::ALL`]: the pass run
    /// once over a recorder, with no tokens.
    pub fn record(&self, isa: Isa) -> Result<[Vec<Vec<WeightId>>; 2]> {
        let team = Team::new(1)?;
        let mut kv = KvCache::new(&self.config, KvFormat::F32)?;
        let mut state = State::new(ActBits::Eight);
        let mut record = |kind| -> Result<Vec<Vec<WeightId>>> {
            let mut recorder = Recorder::default();
            let mut pass = Pass {
                config: &self.config,
                weights: &mut recorder,
                team: &team,
                isa,
                state: &mut state,
                kv: &mut kv,
                first: 0,
                tokens: 0,
            };
            let wanted = match kind {
                PassKind::WithHead => Logits::Last,
                PassKind::WithoutHead => Logits::None,
            };
            self.run(&mut pass, wanted)?;
            Ok(recorder.into_groups())
        };
        Ok([record(PassKind::ALL[0])?, record(PassKind::ALL[1])?])
    }

    /// The forward pass.
    ///
    /// # Errors
    /// As the weights' [`matmul`](Weights::matmul).
    pub fn run<W: Weights>(&self, pass: &mut Pass<'_, W>, wanted: Logits) -> Result<()> {
        self.set_angles(pass);
        for (i, layer) in self.layers.iter().enumerate() {
            layer.attention.run(pass, i)?;
            layer.ffn.run(pass)?;
        }
        self.output.run(pass, wanted)
    }

    /// Fills the state's rotations for the positions of this pass.
    fn set_angles<W>(&self, pass: &mut Pass<'_, W>) {
        let pairs = self.freqs.pairs();
        let cos = sized(&mut pass.state.cos, pass.tokens * pairs);
        let sin = sized(&mut pass.state.sin, pass.tokens * pairs);
        for (t, (cos, sin)) in cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs)).enumerate() {
            self.freqs.angles(pass.first + t, cos, sin);
        }
    }
}

impl Layer {
    fn find(find: &mut Finder<'_>, config: &Config, layer: usize, kv_heads: usize) -> Result<Self> {
        let (dim, ffn) = (config.dim, config.ffn);
        let (q, o) = (config.heads * config.key_len, config.heads * config.value_len);
        let (k, v) = (kv_heads * config.key_len, kv_heads * config.value_len);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let linear = |find: &mut Finder<'_>, part: &str, rows, cols| -> Result<Linear> {
            let weight = find.matrix(&name(&format!("{part}.weight")), Some(rows), cols)?;
            let bias = find.optional_vector(&name(&format!("{part}.bias")), rows)?;
            Ok(Linear { weight, bias })
        };
        let attention = Attention {
            norm: find.norm(&name("attn_norm.weight"), dim)?,
            q: linear(find, "attn_q", q, dim)?,
            k: linear(find, "attn_k", k, dim)?,
            v: linear(find, "attn_v", v, dim)?,
            out: linear(find, "attn_output", dim, o)?,
        };
        let ffn = FeedForward {
            norm: find.norm(&name("ffn_norm.weight"), dim)?,
            gate: linear(find, "ffn_gate", ffn, dim)?,
            up: linear(find, "ffn_up", ffn, dim)?,
            down: linear(find, "ffn_down", dim, ffn)?,
        };
        Ok(Self { attention, ffn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fixtures::{Spec, TensorType};

    #[test]
    fn matrices_that_share_their_input_are_asked_for_together_and_a_tied_table_last() {
        let spec = Spec { tied: true, ..Spec::tiny(TensorType::Q8_0) };
        let dir = tempfile::TempDir::new().expect("a temporary folder");
        let path = dir.path().join("tiny.gguf");
        std::fs::write(&path, spec.to_bytes().expect("a valid spec")).expect("room for a tiny model");
        let gguf = Gguf::open(&path).expect("a good header");
        let (llama, table, _) = Llama::load(&gguf, Isa::scalar()).expect("a whole model");
        let [with_head, without] = llama.record(Isa::scalar()).expect("two kinds of pass");
        let name = |id: &WeightId| table.get(*id).name.trim_end_matches(".weight");
        let names: Vec<Vec<&str>> = with_head.iter().map(|group| group.iter().map(name).collect()).collect();
        let mut wanted: Vec<Vec<String>> = Vec::new();
        for layer in 0..2 {
            for group in ["attn_q attn_k attn_v", "attn_output", "ffn_gate ffn_up", "ffn_down"] {
                wanted.push(group.split(' ').map(|part| format!("blk.{layer}.{part}")).collect());
            }
        }
        wanted.push(vec!["token_embd".into()]);
        assert_eq!(names, wanted);
        assert_eq!(without, with_head[..with_head.len() - 1]);
    }
}
