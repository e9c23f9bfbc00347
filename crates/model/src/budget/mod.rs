//! The planner: from what a session needs and a ceiling to what stays in memory. Pure arithmetic.
//!
//! A pass is a cycle, so a byte that stays saves as much reading wherever it is, and the only question is how many can stay.
//! Which ones is a matter of pace, see [`Order`].

mod ledger;
pub(crate) mod settle;

pub use ledger::{Ledger, mb};

use sluice_loader::spread;

use crate::options::Placement;

/// Tokens of a prompt that go through the model together at the least, where the size is left to us: with fewer, a prompt
/// takes as many passes as it has tokens; these cost 2 MB on a model of 8 billion weights.
pub const FEWEST: usize = 8;

/// Longest batch chosen by us where something is streamed: beyond it a pass is shared by so many tokens that reading is a
/// small part of it.
pub const MOST_STREAMED: usize = 512;

/// The same where all weights stay: as many tokens as the widest kernel unpacks a weight for once. Against 66 tokens that is
/// a fifth more speed, and longer batches gain nothing further.
pub const MOST_RESIDENT: usize = 264;

/// Most memory for a longer batch where all weights stay: 264 tokens take 30 MB on a model of 1.1 billion weights, 66 MB on
/// one of 8 billion.
const MOST_ACTIVATIONS: u64 = 64 << 20;

/// The same where something is streamed and nobody has said how much memory there may be: whoever streams wants little.
const MODEST_ACTIVATIONS: u64 = 8 << 20;

/// The share of what is left for batches and weights that may go into a longer batch: a prompt of 512 tokens then takes
/// 2 passes and not 64 long before weights stay in number, and weights lose an eighth of their room at most.
const BATCH_SHARE: u64 = 8;

/// Bytes of a page, in which memory is counted.
const PAGE: u64 = 4096;

/// Accounts that are kept of a chunk in a slot of its own: its place among the residents, its memory's handle, and its entry in
/// the window, which reaches over all residents in a row. With 7.7 thousand of them in a row (8 billion weights, 4 GB) a process
/// stays 0.9 MB below its budget, as it does with 1.9 thousand; when entries were 144 bytes instead of 32 it took 660 each.
const BESIDE_A_CHUNK: u64 = 256;

/// A fault through a mapping brings in up to a huge page of the page cache, at either end of a run of chunks.
const FOLIO: u64 = 2 << 20;

/// What a session takes whatever stays, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// [`Ledger::program`].
    pub program: u64,
    /// [`Ledger::tokenizer`].
    pub tokenizer: u64,
    /// [`Ledger::header`].
    pub header: u64,
    /// [`Ledger::threads`].
    pub threads: u64,
    /// [`Ledger::kv`].
    pub kv: u64,
    /// [`Ledger::logits`].
    pub logits: u64,
    /// Activations whatever the batch.
    pub scores: u64,
    /// Activations of each token in a batch.
    pub per_token: u64,
    /// [`Ledger::before`].
    pub before: u64,
    /// Positions of the context: no batch is longer.
    pub context: usize,
    /// Tokens in a batch, where the caller says.
    pub batch: Option<usize>,
    /// Nobody has set a budget: activations stay small beside the rest, whatever room there is.
    pub modest: bool,
}

impl Needs {
    /// Tokens in a batch at the least.
    fn fewest(&self) -> usize {
        self.batch.unwrap_or(FEWEST.min(self.context.max(1)))
    }

    /// Memory for the activations of `batch` tokens.
    fn activations(&self, batch: usize) -> u64 {
        self.scores.saturating_add(self.per_token.saturating_mul(batch as u64))
    }
}

impl Ledger {
    /// The least ledger with what `needs` says of another context.
    fn with_context(self, needs: &Needs) -> Self {
        Self { kv: needs.kv, activations: needs.activations(needs.fewest()), ..self }
    }
}

/// How weights lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every chunk is read into a slot.
    Copied {
        /// Slots that streamed chunks take turns in.
        slots: u64,
        /// Alignment of reads, to which a slot is widened at both ends.
        align: u64,
    },
    /// Chunks are pages of a mapping.
    Mapped {
        /// Pages that stay mapped around those in use.
        window: u64,
    },
}

impl Form {
    /// Memory of a slot for `bytes`.
    fn slot(align: u64, bytes: u64) -> u64 {
        let room = if align > 1 { (bytes + 2 * align - 2) / align * align } else { bytes };
        room.next_multiple_of(PAGE)
    }

    /// Memory of a chunk that stays.
    fn kept(self, bytes: u64) -> u64 {
        match self {
            Self::Copied { align, .. } => Self::slot(align, bytes) + BESIDE_A_CHUNK,
            Self::Mapped { .. } => bytes,
        }
    }

    /// Memory that streamed chunks of up to `longest` bytes go through.
    fn window(self, longest: u64) -> u64 {
        match self {
            Self::Copied { slots, align } => slots.saturating_mul(Self::slot(align, longest)),
            Self::Mapped { window } => window,
        }
    }
}

/// A chunk, as far as the planner cares: chunks come in the order of the pass.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its length.
    pub bytes: u64,
    /// What the caller says of it.
    pub placement: Placement,
}

/// Most memory for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// So many bytes.
    Bytes(u64),
    /// The least that works.
    Least,
    /// Nobody knows what there is: nothing stays that need not, and batches are of the usual length.
    Unknown,
}

/// Which chunks stay when not all can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Spread over the pass: for backends that read ahead. The disk has work while what stays is multiplied, and cores while it
    /// reads. Against a prefix, two threads, direct reads, 11 alternating pairs, medians of the ratios (and their range): 1.1
    /// billion weights with 350 MB 1.07 (1.02 to 1.11), with 500 MB 1.26 (1.13 to 1.37); 8 billion with 2500 MB, 5 pairs, 1.08
    /// (0.95 to 1.16).
    Spread,
    /// From its beginning on: for backends that copy a chunk when it is wanted, where nothing runs ahead, and groups that stay
    /// whole can be shared out beforehand. The same from the page cache, 1.1 billion weights, spread over prefix: 0.83 with 350 MB
    /// (0.78 to 0.99), 0.94 with 500 MB (0.87 to 1.00).
    Prefix,
}

/// What was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// What memory is for.
    pub ledger: Ledger,
    /// By chunk: whether it stays.
    pub stays: Vec<bool>,
    /// Tokens of a prompt that go through the model together.
    pub batch: usize,
}

impl Outline {
    /// Whether nothing is streamed.
    pub fn keeps_all(&self) -> bool {
        self.stays.iter().all(|stays| *stays)
    }
}

/// Plans a session within `ceiling`.
///
/// More memory never means more reading: chunks stay in one order, of which a higher ceiling takes more, and what a longer
/// batch may have grows with the ceiling by less than the ceiling does.
///
/// # Errors
/// The least ledger, when even that is above the ceiling.
pub fn plan(
    needs: &Needs,
    form: Form,
    pieces: &[Piece],
    ceiling: Ceiling,
    order: Order,
) -> Result<Outline, Box<Ledger>> {
    let must: Vec<bool> = pieces.iter().map(|p| p.placement == Placement::Resident).collect();
    let may: Vec<bool> = pieces.iter().map(|p| p.placement != Placement::Stream).collect();
    let most = |all: bool| if all { MOST_RESIDENT } else { MOST_STREAMED }.min(needs.context.max(1));
    let fewest = needs.fewest();
    let least = outline(needs, form, pieces, must, fewest);
    let whole = outline(needs, form, pieces, may, fewest);

    let ceiling = match ceiling {
        Ceiling::Bytes(bytes) => bytes,
        // What is small enough may take less when it stays than a window does.
        Ceiling::Least if whole.ledger.total() < least.ledger.total() => return Ok(whole),
        Ceiling::Least => return Ok(least),
        Ceiling::Unknown => {
            let all = least.keeps_all();
            return Ok(least.with_batch(needs, most(all), MODEST_ACTIVATIONS));
        }
    };
    if whole.ledger.total() <= ceiling {
        let room = ceiling - whole.ledger.total();
        let all = whole.keeps_all();
        let cap = if needs.modest && !all { MODEST_ACTIVATIONS } else { MOST_ACTIVATIONS };
        return Ok(whole.with_batch(needs, most(all), room.min(cap)));
    }
    let Some(free) = ceiling.checked_sub(least.ledger.total()) else {
        let less = if whole.ledger.total() < least.ledger.total() { whole } else { least };
        return Err(Box::new(less.ledger));
    };
    let longest = most(false).saturating_sub(fewest) as u64;
    let wanted = if needs.batch.is_some() { 0 } else { longest.saturating_mul(needs.per_token) };
    let share = wanted.min(free / BATCH_SHARE);
    let mut planned = least.with_batch(needs, most(false), share);
    // Where loading took more than all this together, there is more room than the total says.
    let room = ceiling - share - (least_sum(&planned, needs));
    planned.keep(form, pieces, room, order);
    Ok(planned)
}

/// The items of a plan without a longer batch.
fn least_sum(planned: &Outline, needs: &Needs) -> u64 {
    let without = Ledger { before: 0, activations: 0, ..planned.ledger };
    without.total().saturating_add(needs.activations(needs.fewest()))
}

/// The plan in which `stays` stay.
fn outline(needs: &Needs, form: Form, pieces: &[Piece], stays: Vec<bool>, batch: usize) -> Outline {
    let streamed = pieces.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(piece, _)| piece.bytes);
    let window = streamed.max().map_or(0, |longest| form.window(longest));
    let kept =
        pieces.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(piece, _)| form.kept(piece.bytes));
    let mut resident: u64 = kept.sum();
    if matches!(form, Form::Mapped { .. }) {
        let runs = stays.chunk_by(|a, b| a == b).filter(|run| run[0]).count() as u64;
        resident += runs * FOLIO;
    }
    let ledger = Ledger {
        program: needs.program,
        tokenizer: needs.tokenizer,
        header: needs.header,
        threads: needs.threads,
        kv: needs.kv,
        activations: needs.activations(batch),
        logits: needs.logits,
        window,
        resident,
        before: needs.before,
    };
    Outline { ledger, stays, batch }
}

impl Outline {
    /// With a batch of up to `most` tokens, as far as `room` bytes allow, unless the caller has said how many.
    fn with_batch(mut self, needs: &Needs, most: usize, room: u64) -> Self {
        if needs.batch.is_none() {
            let more = room / needs.per_token.max(1);
            let more = usize::try_from(more).unwrap_or(usize::MAX);
            self.batch = self.batch.saturating_add(more).min(most).max(self.batch);
            self.ledger.activations = needs.activations(self.batch);
        }
        self
    }

    /// Keeps chunks that may stay, in `order`, until `room` bytes are used.
    fn keep(&mut self, form: Form, pieces: &[Piece], room: u64, order: Order) {
        // A mapping keeps promises only for long runs: dropping what was streamed unmaps whatever is near it, and a chunk
        // that stays is mapped again together with its neighbours.
        if matches!(form, Form::Mapped { .. }) {
            return;
        }
        let mut left = room;
        let candidates =
            (0..pieces.len()).filter(|&i| pieces[i].placement == Placement::Auto && !self.stays[i]);
        let mut candidates: Vec<usize> = candidates.collect();
        if order == Order::Spread {
            candidates.sort_by_key(|&i| spread(i as u64));
        }
        for i in candidates {
            let bytes = form.kept(pieces[i].bytes);
            match left.checked_sub(bytes) {
                // The first that does not fit ends it: then what stays with less room is a part of what stays with more.
                None => break,
                Some(after) => left = after,
            }
            self.stays[i] = true;
            self.ledger.resident += bytes;
        }
    }
}

#[cfg(test)]
mod tests;
