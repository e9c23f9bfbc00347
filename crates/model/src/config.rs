//! The shape of a model, read from its metadata and checked for contradictions before anything is sized by it.

use std::path::Path;

use sluice_gguf::{Gguf, Value};
use sluice_kernels::RopeStyle;

use crate::error::{Error, Result};

/// More layers, heads, rows or columns than any model has; beyond them a count is a broken file, and refusing here
/// keeps every product below far from overflow.
pub(crate) const MOST: u64 = 1 << 24;

/// Shape and constants of a Llama-family model. Sizes are in elements unless a name says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`: `llama` or `qwen2`.
    pub arch: String,
    /// Width of the hidden state.
    pub dim: usize,
    /// Width inside the feed-forward network.
    pub ffn: usize,
    /// Attention heads of a layer.
    pub heads: usize,
    /// Key/value heads of each layer; its length is the number of layers.
    pub kv_heads: Vec<usize>,
    /// Size of a query or key head.
    pub key_len: usize,
    /// Size of a value head.
    pub value_len: usize,
    /// Added to the mean square in RMSNorm.
    pub eps: f32,
    /// Positions that the model was trained for.
    pub context: usize,
    /// How rotary embedding turns the heads.
    pub rope: RopeConfig,
}

/// Rotary position embedding as the metadata describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Which elements of a head form a pair.
    pub style: RopeStyle,
    /// How many leading elements of a head are rotated; even.
    pub dim: usize,
    /// Base of the geometric series of frequencies.
    pub base: f64,
    /// Positions are divided by this (linear scaling); 1 for none.
    pub linear_factor: f64,
}

impl Config {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.kv_heads.len()
    }

    /// Reads and checks the metadata of `gguf`.
    ///
    /// # Errors
    /// For an architecture that is not of the family, a missing or impossible count, and every feature that would
    /// change the result and is not supported: mixture of experts, rope scaling other than linear.
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let path = gguf.paths()[0].as_path();
        let Some(arch) = gguf.str("general.architecture")?.map(|s| s.to_string()) else {
            return Err(Error::key(
                path,
                "general.architecture",
                "missing; this file does not say what model it holds",
            ));
        };
        let style = match arch.as_str() {
            "llama" => RopeStyle::Interleaved,
            "qwen2" => RopeStyle::HalfSplit,
            other => {
                return Err(Error::key(
                    path,
                    "general.architecture",
                    format!(
                        "architecture '{}' is not supported; wanted llama or qwen2",
                        other.escape_default()
                    ),
                ));
            }
        };
        let keys = Keys { gguf, path, arch: &arch };
        keys.refuse_experts()?;
        let layers = keys.count("block_count")?;
        // Vectors are made by this count, so the file must bear it out; that each layer is whole is seen later.
        let tensors = gguf.tensors().len();
        if layers > tensors {
            return Err(keys.wrong(
                "block_count",
                format!(
                    "found {layers} layers, but the file has only {tensors} tensors; every layer has several"
                ),
            ));
        }
        let dim = keys.count("embedding_length")?;
        let heads = keys.count("attention.head_count")?;
        let kv_heads = keys.kv_heads(layers, heads)?;
        let key_len = match keys.optional_count("attention.key_length")? {
            Some(n) => n,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => {
                return Err(keys.wrong(
                    "attention.head_count",
                    format!("{heads} heads do not divide embedding_length {dim}, and there is no attention.key_length"),
                ));
            }
        };
        let value_len = keys.optional_count("attention.value_length")?.unwrap_or(key_len);
        let eps_key = "attention.layer_norm_rms_epsilon";
        let eps = match keys.gguf.float(&keys.full(eps_key))? {
            Some(e) if (0.0..1.0).contains(&e) => e as f32,
            Some(e) => {
                return Err(keys.wrong(eps_key, format!("wanted a number from 0 to 1, found {e}")));
            }
            None => {
                return Err(keys.wrong(eps_key, "missing; without it every norm would be a guess"));
            }
        };
        let context = keys.count_up_to("context_length", u64::from(u32::MAX))?;
        let rope = keys.rope(style, key_len)?;
        Ok(Self {
            ffn: keys.count("feed_forward_length")?,
            arch: arch.clone(),
            dim,
            heads,
            kv_heads,
            key_len,
            value_len,
            eps,
            context,
            rope,
        })
    }
}

/// Getters for `<arch>.<name>` that turn a missing or impossible value into an error with the full key.
struct Keys<'a> {
    gguf: &'a Gguf,
    path: &'a Path,
    arch: &'a str,
}

impl Keys<'_> {
    fn full(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn wrong(&self, name: &str, problem: impl Into<String>) -> Error {
        Error::key(self.path, self.full(name), problem)
    }

    fn optional_count(&self, name: &str) -> Result<Option<usize>> {
        self.checked_count(name, MOST)
    }

    fn count(&self, name: &str) -> Result<usize> {
        self.count_up_to(name, MOST)
    }

    fn count_up_to(&self, name: &str, most: u64) -> Result<usize> {
        self.checked_count(name, most)?
            .ok_or_else(|| self.wrong(name, format!("missing; wanted a count from 1 to {most}")))
    }

    fn checked_count(&self, name: &str, most: u64) -> Result<Option<usize>> {
        match self.gguf.uint(&self.full(name))? {
            None => Ok(None),
            Some(n) if (1..=most).contains(&n) => Ok(Some(n as usize)),
            Some(n) => Err(self.wrong(name, format!("wanted a count from 1 to {most}, found {n}"))),
        }
    }

    /// Key/value heads per layer: a scalar for all, an array with one entry per layer, or absent for as many
    /// as there are heads.
    fn kv_heads(&self, layers: usize, heads: usize) -> Result<Vec<usize>> {
        let name = "attention.head_count_kv";
        let full = self.full(name);
        let per_layer = if let Some(Value::Array(array)) = self.gguf.get(&full) {
            let found = array.len;
            if found != layers as u64 {
                return Err(self.wrong(
                    name,
                    format!("wanted one entry per layer ({layers}), found an array of {found}"),
                ));
            }
            self.gguf.ints(&full)?.into_iter().flatten().collect::<Result<Vec<i64>, _>>()?
        } else {
            let all = self.optional_count(name)?.unwrap_or(heads);
            vec![all as i64; layers]
        };
        per_layer
            .into_iter()
            .map(|n| match usize::try_from(n) {
                Ok(n) if n > 0 && heads.is_multiple_of(n) => Ok(n),
                _ => {
                    Err(self
                        .wrong(name, format!("wanted a divisor of the {heads} attention heads, found {n}")))
                }
            })
            .collect()
    }

    fn refuse_experts(&self) -> Result<()> {
        let name = "expert_count";
        match self.gguf.uint(&self.full(name))? {
            None | Some(0) => Ok(()),
            Some(n) => Err(self.wrong(
                name,
                format!("this is a mixture of {n} experts (MoE), which is not supported; use a dense model"),
            )),
        }
    }

    fn rope(&self, style: RopeStyle, key_len: usize) -> Result<RopeConfig> {
        let name = "rope.dimension_count";
        let dim = match self.gguf.uint(&self.full(name))? {
            None => key_len,
            Some(n) if n > 0 && n <= key_len as u64 => n as usize,
            Some(n) => {
                return Err(self.wrong(name, format!("wanted 1 to the head size {key_len}, found {n}")));
            }
        };
        if !dim.is_multiple_of(2) {
            return Err(
                self.wrong(name, format!("rotation works on pairs: wanted an even number, found {dim}"))
            );
        }
        let name = "rope.freq_base";
        // 10000 is the base of the original rotary embedding, and what a file means that does not name one.
        let base = self.gguf.float(&self.full(name))?.unwrap_or(10_000.0);
        if !(base.is_finite() && base > 0.0) {
            return Err(self.wrong(name, format!("wanted a positive number, found {base}")));
        }
        Ok(RopeConfig { style, dim, base, linear_factor: self.linear_factor()? })
    }

    /// Linear scaling: `rope.scaling.type` linear (or unsaid) with a factor, or the older `rope.scale_linear`.
    fn linear_factor(&self) -> Result<f64> {
        let name = "rope.scaling.type";
        match self.gguf.str(&self.full(name))?.as_deref() {
            None | Some("linear") => {}
            Some("none") => return Ok(1.0),
            Some(other) => {
                return Err(self.wrong(
                    name,
                    format!(
                        "rope scaling '{}' is not supported; wanted linear or none",
                        other.escape_default()
                    ),
                ));
            }
        }
        for name in ["rope.scaling.factor", "rope.scale_linear"] {
            match self.gguf.float(&self.full(name))? {
                None => continue,
                // Converters write 0 for "no scaling".
                Some(0.0) => return Ok(1.0),
                Some(f) if f.is_finite() && f > 0.0 => return Ok(f),
                Some(f) => {
                    return Err(self.wrong(name, format!("wanted a positive factor, found {f}")));
                }
            }
        }
        Ok(1.0)
    }
}
