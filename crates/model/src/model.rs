//! A model as opened: header checked, vocabulary and small vectors in memory, matrices still in the file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sluice_gguf::Gguf;
use sluice_kernels::{ActBits, Format, Isa};

use crate::error::{Error, Result};
use crate::forward::Llama;
use crate::plan::{Chunk, Cut, Plan};
use crate::team::Team;
use crate::tokenizer::Tokenizer;
use crate::weights::Table;

/// A model that sessions can be opened on. The header is dropped once everything in it has been used.
pub struct Model {
    /// Shape, vectors, and numbers of the matrices.
    pub(crate) llama: Llama,
    pub(crate) table: Table,
    pub(crate) tokenizer: Tokenizer,
    /// All files of the model: one, or its shards in order.
    pub(crate) paths: Vec<PathBuf>,
    /// What those files were when their headers were read.
    identities: Vec<Identity>,
    pub(crate) file_bytes: u64,
    pub(crate) isa: Isa,
    name: Option<String>,
    warnings: Vec<String>,
}

impl Model {
    /// Opens the model at `path` (the first shard if it has several), with the vocabulary in it.
    ///
    /// # Errors
    /// For a file that is damaged, of another architecture, or of tensor types that cannot be computed.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, detected_isa()?)
    }

    /// As [`Model::open`], computing at the CPU level `isa`.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(path: &Path, isa: Isa) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        has_tensors(&gguf)?;
        let identities = gguf.files().iter().zip(gguf.paths()).map(|(file, path)| {
            Ok(Identity::of(&file.metadata().map_err(|source| unanswered(path, source))?))
        });
        let identities = identities.collect::<Result<_>>()?;
        let (llama, table, mut warnings) = Llama::load(&gguf, isa)?;
        let tokenizer = tokenizer(&gguf)?;
        if tokenizer.vocab_size() > llama.output.rows {
            return Err(Error::tensor(
                path,
                format!(
                    "tensor token_embd.weight has {} rows for the {} tokens of tokenizer.ggml.tokens; wanted a row for each",
                    llama.output.rows,
                    tokenizer.vocab_size()
                ),
            ));
        }
        warnings.extend(tokenizer.warnings().iter().cloned());
        Ok(Self {
            llama,
            table,
            tokenizer,
            paths: gguf.paths().to_vec(),
            identities,
            file_bytes: gguf.file_bytes(),
            isa,
            name: gguf.str("general.name")?.map(|n| n.to_string()),
            warnings,
        })
    }

    /// Whether the paths still lead to the files whose headers were read. To be asked after the weights' files were opened
    /// by path: in between another file may have been moved there, and its weights do not lie where this header says.
    pub(crate) fn check_files(&self) -> Result<()> {
        for (path, identity) in self.paths.iter().zip(&self.identities) {
            let now = std::fs::metadata(path).map_err(|source| unanswered(path, source))?;
            if Identity::of(&now) != *identity {
                let why = "another file took its place, or it was written to, after its header was read; start again";
                return Err(Error::tensor(path, why));
            }
        }
        Ok(())
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Positions that the model was trained for.
    pub fn longest_context(&self) -> usize {
        self.llama.config.context
    }

    /// How activations are rounded for products with quantised weights, unless `asked` says: with 16 bits for a small model, with
    /// 8 otherwise. It depends on nothing but the number of weights, so a model gives the same bits on every machine.
    pub fn act_bits(&self, asked: Option<ActBits>) -> ActBits {
        asked.unwrap_or_else(|| suited(&self.table))
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// `general.name`, or the file's name.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            self.path().file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
        })
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What a user should know about the file although it runs: one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Most weights of a small model. SmolLM2-135M loses 0.35 % of perplexity to 8 bits on average, and between -0.1 and +1.1 % over
/// 512 tokens depending on the file, at most 0.013 % to 16; with those, two cores still generate 200 to 240 tokens a second and take up 1360
/// to 1490 of a prompt (280 to 350 and 2150 to 2340 with 8 bits; llama.cpp 175 and 476). In proportion, which was not measured, that
/// is 70 and 460 at 400 million weights: still faster than anybody reads.
const SMALL: u64 = 400_000_000;

/// The bits of activations that suit a model with these matrices.
fn suited(table: &Table) -> ActBits {
    let weights: u64 = table.all().map(|(_, matrix)| matrix.rows as u64 * matrix.cols as u64).sum();
    if weights <= SMALL { ActBits::Sixteen } else { ActBits::Eight }
}

/// What tells a file from another one at the same path, and from itself after a write.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    changed: Option<SystemTime>,
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        let changed = file.modified().ok();
        Self { device: file.dev(), inode: file.ino(), length: file.len(), changed }
    }
}

fn unanswered(path: &Path, source: std::io::Error) -> Error {
    Error::Machine { what: format!("{}: cannot ask what file it is", path.display()), source }
}

/// Only the vocabulary of the file at `path`, which need not hold any tensors.
///
/// # Errors
/// When the file is damaged or has no vocabulary of a known kind.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer> {
    tokenizer(&Gguf::open(path)?)
}

/// Refuses files that hold a vocabulary and nothing else, before their missing tensors are told one by one.
fn has_tensors(gguf: &Gguf) -> Result<()> {
    if !gguf.tensors().is_empty() {
        return Ok(());
    }
    let problem = if gguf.get("tokenizer.ggml.tokens").is_some() {
        "holds a vocabulary only (no tensors): tokenize works on it, run does not"
    } else {
        "holds no tensors; wanted a whole model"
    };
    Err(Error::tensor(&gguf.paths()[0], problem))
}

fn detected_isa() -> Result<Isa> {
    Isa::detect().map_err(|e| Error::Usage(e.to_string()))
}

fn tokenizer(gguf: &Gguf) -> Result<Tokenizer> {
    Tokenizer::from_gguf(gguf).map_err(|source| Error::Vocabulary { path: gguf.paths()[0].clone(), source })
}

/// What a forward pass over a file would stream: for `sluice inspect`.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSummary {
    /// Bytes of the layers' matrices, read in every pass when streamed.
    pub layer_bytes: u64,
    /// Bytes of the output projection.
    pub head_bytes: u64,
    /// The head is the embedding table.
    pub tied: bool,
    /// Chunks of a pass as eager backends read them (direct reads, io_uring).
    pub chunks: usize,
    /// The longest of them in bytes.
    pub longest_chunk: usize,
    /// Chunks of a pass as lazy backends read them (mmap, pread through the page cache): pieces that a core works on,
    /// which depends on the number of workers.
    pub lazy_chunks: usize,
    /// The longest of them in bytes.
    pub longest_lazy_chunk: usize,
    /// The workers that share them: those of a session that is not told how many.
    pub workers: usize,
}

impl StreamSummary {
    /// Computes it for an opened header.
    ///
    /// # Errors
    /// When the model cannot be run; the message says why.
    pub fn of(gguf: &Gguf, chunk_bytes: usize, head_rows: usize) -> Result<Self> {
        has_tensors(gguf)?;
        let isa = detected_isa()?;
        let (llama, table, _) = Llama::load(gguf, isa)?;
        let head = llama.output.head.weight;
        let passes = llama.record(isa)?;
        let workers = Team::default_workers();
        let plan = |chunk_is_band| {
            let cut = Cut { chunk_bytes, head_rows, workers, chunk_is_band };
            Plan::new(&passes, &table, head, &cut)
        };
        let (eager, lazy) = (plan(false), plan(true));
        let length = |c: &Chunk| c.rows.len() * table.get(c.weight).row_bytes;
        let bytes = |head_wanted: bool| {
            let steps = eager.passes[0].steps.iter().map(|s| &eager.chunks[*s as usize]);
            steps.filter(|c| (c.weight == head) == head_wanted).map(|c| length(c) as u64).sum()
        };
        let longest = |plan: &Plan| plan.chunks.iter().map(length).max().unwrap_or(0);
        Ok(Self {
            layer_bytes: bytes(false),
            head_bytes: bytes(true),
            tied: head == llama.embedding,
            chunks: eager.passes[0].steps.len(),
            longest_chunk: longest(&eager),
            lazy_chunks: lazy.passes[0].steps.len(),
            longest_lazy_chunk: longest(&lazy),
            workers,
        })
    }
}

/// Names of the formats that can be computed, for messages and `inspect`.
pub fn supported_formats() -> Vec<&'static str> {
    Format::ALL.iter().map(|f| f.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Matrix;

    #[test]
    fn small_models_have_exact_activations() {
        let bits = |rows: &[usize]| {
            let matrix = |rows: &usize| Matrix::new("m", Format::Q4_0, *rows, 20_000, 0, 0);
            suited(&Table::new(rows.iter().map(matrix).collect()))
        };
        assert_eq!([bits(&[]), bits(&[20_000]), bits(&[10_000, 10_000])], [ActBits::Sixteen; 3]);
        assert_eq!([bits(&[20_001]), bits(&[10_000, 10_001])], [ActBits::Eight; 2]);
    }
}
