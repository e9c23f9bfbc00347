//! The ledger: what the memory of a run is for, item by item.

/// What a session's memory is for, in bytes. The sum is what the process is predicted to take at its peak (VmHWM).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The program, its libraries, and the rest of its heap.
    pub program: u64,
    /// The vocabulary.
    pub tokenizer: u64,
    /// What was kept of the header: norms, biases, tables, and the schedule of the pass.
    pub header: u64,
    /// Stacks, and what the C library keeps for each thread.
    pub threads: u64,
    /// Keys and values of the whole context.
    pub kv: u64,
    /// Activations of a prompt batch, and scores of attention.
    pub activations: u64,
    /// One row of logits.
    pub logits: u64,
    /// Memory that streamed chunks go through.
    pub window: u64,
    /// Chunks that stay.
    pub resident: u64,
    /// The most that was ever taken before this was written: reading the header takes memory that is given back.
    pub before: u64,
}

impl Ledger {
    /// What the items come to, or the peak that loading reached already where that is more.
    pub fn total(&self) -> u64 {
        self.sum().max(self.before)
    }

    fn sum(&self) -> u64 {
        self.parts().iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// The items by name, in bytes. They add up to [`Ledger::total`]: `loading` is what reading the header once took beyond
    /// all that comes later, and mostly 0.
    pub fn items(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let loading = ("loading", self.before.saturating_sub(self.sum()));
        self.parts().into_iter().chain([loading])
    }

    fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("program", self.program),
            ("tokenizer", self.tokenizer),
            ("header", self.header),
            ("threads", self.threads),
            ("kv", self.kv),
            ("activations", self.activations),
            ("logits", self.logits),
            ("window", self.window),
            ("resident", self.resident),
        ]
    }

    /// The items that are not 0 on one line, in MB.
    pub fn line(&self) -> String {
        let items = self.items().filter(|(_, bytes)| *bytes > 0);
        let items: Vec<String> = items.map(|(name, bytes)| format!("{name} {}", mb(bytes))).collect();
        items.join(", ")
    }
}

/// `bytes` in MB of 10^6 with one decimal.
pub fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_add_up_to_the_total() {
        let ledger = Ledger { program: 3_000_000, kv: 500_000, resident: 1_000_000, ..Ledger::default() };
        assert_eq!(ledger.total(), 4_500_000);
        assert_eq!(ledger.line(), "program 3.0, kv 0.5, resident 1.0");
        let loaded = Ledger { before: 5_000_000, ..ledger };
        for ledger in [ledger, loaded] {
            assert_eq!(ledger.items().map(|(_, bytes)| bytes).sum::<u64>(), ledger.total());
        }
        assert_eq!(loaded.line(), "program 3.0, kv 0.5, resident 1.0, loading 0.5");
        let absurd = Ledger { kv: u64::MAX, ..ledger };
        assert_eq!(absurd.total(), u64::MAX, "no number is too large for a refusal");
    }
}
