//! Keys and values of past positions, in pages that are taken as positions are used.
//!
//! Rows are stored in a kernel format (f16 by default), so that reading them back is the same row lookup as
//! for any tensor, and attention sees f32 whatever the cache holds.

use sluice_kernels::attention::POSITIONS;
use sluice_kernels::{Format, Isa, QuantRows, dequantise, quantise};

use crate::config::Config;
use crate::error::{Error, Result};

/// Positions in a page: small, so that a short prompt on a model with many heads touches little more than it
/// uses, and long enough that a page is worth a loop.
pub const PAGE: usize = POSITIONS;

/// Bytes in which the system counts memory.
const SYSTEM_PAGE: usize = 4096;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    #[default]
    F16,
    /// 34 bytes for 32 elements.
    Q8_0,
}

impl KvFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8_0];

    /// The name that `--kv` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::Q8_0 => Format::Q8_0,
        }
    }
}

/// The cache of one sequence.
pub struct KvCache {
    layers: Vec<LayerKv>,
}

/// Keys and values of one layer.
pub struct LayerKv {
    kv_heads: usize,
    format: Format,
    key_len: usize,
    value_len: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Each page: for every kv head its `PAGE` key rows, then for every kv head its `PAGE` value rows.
    pages: Vec<Box<[u8]>>,
}

impl KvCache {
    /// An empty cache for the shape of `config`.
    ///
    /// # Errors
    /// When the format's blocks do not divide a head.
    pub fn new(config: &Config, format: KvFormat) -> Result<Self> {
        let row = |len: usize, what: &str| {
            format.format().row_bytes(len).map_err(|_| {
                Error::Usage(format!(
                    "--kv {} stores blocks of {} values, which do not divide this model's {what} heads of {len}; use --kv f16",
                    format.name(),
                    format.format().block_len(),
                ))
            })
        };
        let (key_bytes, value_bytes) = (row(config.key_len, "key")?, row(config.value_len, "value")?);
        let layers = config
            .kv_heads
            .iter()
            .map(|&kv_heads| LayerKv {
                kv_heads,
                format: format.format(),
                key_len: config.key_len,
                value_len: config.value_len,
                key_bytes,
                value_bytes,
                pages: Vec::new(),
            })
            .collect();
        Ok(Self { layers })
    }

    /// Bytes that `positions` positions take; the largest number there is where that is more.
    pub fn bytes_for(&self, positions: usize) -> usize {
        let pages = positions.div_ceil(PAGE);
        self.layers
            .iter()
            .map(|layer| layer.page_bytes().saturating_mul(pages))
            .fold(0, usize::saturating_add)
    }

    /// Bytes of memory that are touched when `positions` positions are used: of the last page of each head only the rows
    /// that are, in whole pages of the system's.
    pub fn touched_by(&self, positions: usize) -> u64 {
        let whole = positions / PAGE * PAGE;
        let rest = positions - whole;
        let part = |layer: &LayerKv| -> usize {
            // A page more, as rows need not begin where a page does.
            let rows =
                |bytes: usize| ((rest * bytes).next_multiple_of(SYSTEM_PAGE) + SYSTEM_PAGE).min(PAGE * bytes);
            if rest == 0 { 0 } else { layer.kv_heads * (rows(layer.key_bytes) + rows(layer.value_bytes)) }
        };
        (self.bytes_for(whole) as u64).saturating_add(self.layers.iter().map(part).sum::<usize>() as u64)
    }

    /// The part of one layer.
    pub fn layer(&mut self, layer: usize) -> &mut LayerKv {
        &mut self.layers[layer]
    }
}

impl LayerKv {
    /// Stores `keys` (tokens × kv heads × key size) and `values` (tokens × kv heads × value size) for positions
    /// from `first` on, taking new pages as needed.
    pub fn store(&mut self, first: usize, keys: &[f32], values: &[f32]) {
        let (key_row, value_row) = (self.kv_heads * self.key_len, self.kv_heads * self.value_len);
        for (i, (k, v)) in keys.chunks_exact(key_row).zip(values.chunks_exact(value_row)).enumerate() {
            let (page, slot) = ((first + i) / PAGE, (first + i) % PAGE);
            while self.pages.len() <= page {
                // Zeroed memory of this size comes untouched from the system: only rows that are used count.
                self.pages.push(vec![0; self.page_bytes()].into());
            }
            for head in 0..self.kv_heads {
                let at = self.key_at(head) + slot * self.key_bytes;
                quantise(
                    self.format,
                    &k[head * self.key_len..][..self.key_len],
                    &mut self.pages[page][at..at + self.key_bytes],
                );
                let at = self.value_at(head) + slot * self.value_bytes;
                quantise(
                    self.format,
                    &v[head * self.value_len..][..self.value_len],
                    &mut self.pages[page][at..at + self.value_bytes],
                );
            }
        }
    }

    /// Keys of `head` for the first `count` positions of `page`, decoded to `out` (count × key size).
    pub fn keys(&self, isa: Isa, page: usize, head: usize, count: usize, out: &mut [f32]) {
        self.decode(isa, page, self.key_at(head), self.key_bytes, self.key_len, count, out);
    }

    /// Values of `head` for the first `count` positions of `page`, decoded to `out` (count × value size).
    pub fn values(&self, isa: Isa, page: usize, head: usize, count: usize, out: &mut [f32]) {
        self.decode(isa, page, self.value_at(head), self.value_bytes, self.value_len, count, out);
    }

    fn decode(
        &self,
        isa: Isa,
        page: usize,
        at: usize,
        row_bytes: usize,
        len: usize,
        count: usize,
        out: &mut [f32],
    ) {
        let bytes = &self.pages[page][at..at + count * row_bytes];
        let rows = QuantRows::new(self.format, len, bytes).expect("whole rows of a checked length");
        dequantise(isa, rows, &mut out[..count * len]);
    }

    fn key_at(&self, head: usize) -> usize {
        head * PAGE * self.key_bytes
    }

    fn value_at(&self, head: usize) -> usize {
        self.key_at(self.kv_heads) + head * PAGE * self.value_bytes
    }

    fn page_bytes(&self) -> usize {
        self.value_at(self.kv_heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RopeConfig;
    use sluice_kernels::RopeStyle;

    fn config(key_len: usize, value_len: usize, kv_heads: &[usize]) -> Config {
        Config {
            arch: "llama".into(),
            dim: 64,
            ffn: 64,
            heads: 4,
            kv_heads: kv_heads.to_vec(),
            key_len,
            value_len,
            eps: 1e-5,
            context: 128,
            rope: RopeConfig { style: RopeStyle::Interleaved, dim: key_len, base: 1e4, linear_factor: 1.0 },
        }
    }

    /// A number that tells layer, position, head and element apart and that every format stores exactly.
    fn mark(layer: usize, position: usize, head: usize, element: usize) -> f32 {
        ((layer * 7 + position * 13 + head * 5 + element) % 100) as f32
    }

    #[test]
    fn rows_come_back_from_every_page_whatever_the_batches() {
        let (key_len, value_len) = (32, 64);
        let kv_heads = [2, 4];
        let config = config(key_len, value_len, &kv_heads);
        for format in KvFormat::ALL {
            let mut cache = KvCache::new(&config, format).expect("whole blocks");
            let rows = |layer: usize, first: usize, count: usize, len: usize| -> Vec<f32> {
                let at = |i: usize| (first + i / (kv_heads[layer] * len), i / len % kv_heads[layer], i % len);
                (0..count * kv_heads[layer] * len)
                    .map(|i| {
                        let (position, head, element) = at(i);
                        mark(layer, position, head, element)
                    })
                    .collect()
            };
            let isa = Isa::scalar();
            for layer in 0..2 {
                let mut first = 0;
                for count in [1, PAGE - 1, 1, 2 * PAGE + 3] {
                    let (k, v) = (rows(layer, first, count, key_len), rows(layer, first, count, value_len));
                    cache.layer(layer).store(first, &k, &v);
                    first += count;
                }
                let mut out = vec![0.0; PAGE * value_len];
                for position in 0..first {
                    let (page, slot) = (position / PAGE, position % PAGE);
                    for head in 0..kv_heads[layer] {
                        // Q8_0 is exact to 1/254 of the largest in its block, and rounds its scale to f16.
                        let close = |found: f32, wanted: f32| {
                            let bound = if format == KvFormat::Q8_0 { 0.5 } else { 0.0 };
                            assert!(
                                (found - wanted).abs() <= bound,
                                "{format:?} {layer} {position} {head}: {found} {wanted}"
                            );
                        };
                        cache.layer(layer).keys(isa, page, head, slot + 1, &mut out);
                        (0..key_len)
                            .for_each(|e| close(out[slot * key_len + e], mark(layer, position, head, e)));
                        cache.layer(layer).values(isa, page, head, slot + 1, &mut out);
                        (0..value_len)
                            .for_each(|e| close(out[slot * value_len + e], mark(layer, position, head, e)));
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_are_whole_pages_and_blocks_must_divide_heads() {
        let cache = KvCache::new(&config(32, 64, &[2, 4]), KvFormat::F16).expect("any length will do");
        assert_eq!(cache.bytes_for(0), 0);
        assert_eq!(cache.bytes_for(1), PAGE * 6 * 96 * 2);
        assert_eq!(cache.bytes_for(PAGE + 1), 2 * PAGE * 6 * 96 * 2);
        assert_eq!(cache.touched_by(PAGE), cache.bytes_for(PAGE) as u64);
        assert_eq!(cache.touched_by(2 * PAGE + 1), (2 * cache.bytes_for(PAGE) + PAGE * 6 * 96 * 2) as u64);
        assert_eq!(cache.touched_by(usize::MAX), u64::MAX);
        assert_eq!(cache.bytes_for(usize::MAX), usize::MAX, "no number is too large for a note");
        let Err(error) = KvCache::new(&config(48, 48, &[2]), KvFormat::Q8_0) else {
            panic!("48 is no whole block")
        };
        assert!(error.is_usage() && error.to_string().contains("--kv q8_0"), "{error}");
    }
}
