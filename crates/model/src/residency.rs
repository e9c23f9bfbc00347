//! What stays in memory: as the caller says, or by what the machine has left.

use crate::kv::KvCache;
use crate::model::Model;
use crate::options::{Options, Placement};
use crate::plan::Residency;
use crate::state::State;

/// What the process takes beside weights, cache and activations: the program, its libraries and threads (about 6 MB as
/// measured), a window of chunks, and room for what the estimate does not see.
const BESIDE: u64 = 32 << 20;

/// Bytes that a session takes beside weights that stay.
pub fn beside(model: &Model, options: &Options, kv: &KvCache, batch: usize) -> u64 {
    let logits = model.llama.output.rows * size_of::<f32>();
    let activations = State::bytes_per_token(&model.llama.config).saturating_mul(batch).saturating_add(logits);
    (kv.bytes_for(options.context) as u64)
        .saturating_add(activations as u64)
        .saturating_add(model.tokenizer.heap_bytes() as u64)
        .saturating_add(BESIDE)
}

/// Decides what stays for a session with `kv` and prompt batches of `batch` tokens on a machine that has `left` bytes (None
/// where it does not say), and says why in `notes`.
pub fn decide(
    model: &Model,
    options: &Options,
    kv: &KvCache,
    batch: usize,
    left: Option<u64>,
    notes: &mut Vec<String>,
) -> Residency {
    let head = model.llama.output.head.weight;
    let bytes = |is_head: bool| -> u64 {
        let of_the_part = model.table.all().filter(|(id, _)| {
            // A table of embeddings that is not the head is read by the row.
            (*id == head) == is_head && (is_head || *id != model.llama.embedding)
        });
        of_the_part.map(|(_, m)| (m.rows * m.row_bytes) as u64).sum()
    };
    let (layers, head) = (bytes(false), bytes(true));
    let beside = beside(model, options, kv, batch);
    let needs = |r: Residency| {
        let part = |stays, bytes| if stays { bytes } else { 0 };
        beside.saturating_add(part(r.layers, layers)).saturating_add(part(r.head, head))
    };

    let may = |placement, stays: bool| match placement {
        Placement::Auto => true,
        Placement::Resident => stays,
        Placement::Stream => !stays,
    };
    // A byte that stays saves the same reading wherever it is, so the largest part that fits is the best.
    let mut wanted = [(true, true), (true, false), (false, true), (false, false)]
        .map(|(layers, head)| Residency { layers, head })
        .into_iter()
        .filter(|r| may(options.layers, r.layers) && may(options.head, r.head))
        .peekable();
    // Where the kernel does not say, streaming is the choice that always works.
    let fits = |r: &Residency| left.is_some_and(|left| needs(*r) <= left);
    let mut last = Residency { layers: false, head: false };
    let chosen = loop {
        match wanted.next() {
            None => break last,
            Some(r) if fits(&r) => break r,
            Some(r) => last = r,
        }
    };
    if options.layers == Placement::Auto || options.head == Placement::Auto {
        let mb = |bytes: u64| bytes.div_ceil(1_000_000);
        let word = |stays| if stays { "stay in memory" } else { "are streamed" };
        let available =
            left.map_or("the system does not say how much is".into(), |b| format!("{} MB are", mb(b)));
        notes.push(format!(
            "layers ({} MB) {}, head ({} MB) {}; with them about {} MB are needed, {available} available",
            mb(layers),
            word(chosen.layers),
            mb(head),
            if chosen.head { "stays in memory" } else { "is streamed" },
            mb(needs(chosen)),
        ));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fixtures::{Spec, TensorType};

    #[test]
    fn the_largest_part_that_fits_stays_unless_the_caller_says_otherwise() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // 2.1 MB of layers and 8.4 MB of head, embeddings of the same size apart.
        let spec = Spec { vocab: 32_000, ..Spec::tiny(TensorType::Q8_0) };
        spec.write_to(&file).expect("room for a small model");
        let model = Model::open(file.path()).expect("a good model");
        let (layers, head) = (1_250_000, 8_700_000);
        let kv = KvCache::new(&model.llama.config, Default::default()).expect("f16 always fits");
        let stays = |options: Options, left: Option<u64>| {
            let r = decide(&model, &options, &kv, 16, left, &mut Vec::new());
            (r.layers, r.head)
        };
        let auto = || Options::new(64);
        let beside = BESIDE + 4_000_000; // and the cache, activations, vocabulary: under 4 MB
        assert_eq!(stays(auto(), None), (false, false));
        assert_eq!(stays(auto(), Some(0)), (false, false));
        assert_eq!(stays(auto(), Some(beside + layers)), (true, false));
        assert_eq!(stays(auto(), Some(beside + layers + head)), (true, true));
        let resident = || Options { layers: Placement::Resident, ..auto() };
        assert_eq!(stays(resident(), Some(0)), (true, false), "as asked for");
        let streamed = || Options { layers: Placement::Stream, ..auto() };
        assert_eq!(stays(streamed(), Some(1 << 40)), (false, true));
        assert_eq!(stays(streamed(), Some(beside)), (false, false));
        // A context that alone would take more than there is leaves no room for weights.
        let long = Options { context: 1 << 20, ..auto() };
        assert_eq!(stays(long, Some(beside + layers + head)), (false, false));
    }
}
