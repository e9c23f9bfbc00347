//! The rows of a group whose weights are all in memory, shared out to workers.

use crate::team::Deal;
use std::collections::VecDeque;

/// Kernels work on rows in groups; a run that is no multiple of this ends in a slower tail.
pub const ROW_GROUP: usize = 16;

/// Bytes of the shortest run that a worker takes: at the speed of memory one and a half microseconds, and taking it a
/// tenth of one. No worker is done much earlier than another.
const SHORTEST: usize = 32 << 10;

/// Bytes that a worker is called for, times the tokens: with less, waking it takes longer than what it is woken for.
const WORTH_A_WORKER: usize = 2 * SHORTEST;

/// Bytes of the longest run: how long an interrupt may have to wait, times the tokens.
const LONGEST: usize = 1 << 20;

/// A run is this part of what is left of its share, so that runs get shorter towards the end, and there is always
/// something left that a quicker one can take over.
const PART: usize = 4;

/// Rows of one matrix that follow one another, and where their results go.
pub struct Run<'a, M> {
    /// Which matrix.
    pub matrix: M,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// The rows.
    pub bytes: &'a [u8],
    /// As many results for each row.
    pub y: &'a mut [f32],
}

impl<M: Copy> Run<'_, M> {
    fn rows(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Takes `rows` rows off the front, or all there are.
    fn take_front(&mut self, rows: usize) -> Self {
        let rows = rows.min(self.rows());
        let results = self.y.len().checked_div(self.rows()).unwrap_or(0);
        let bytes = self.bytes.split_off(..rows * self.row_bytes).expect("as many rows");
        let y = self.y.split_off_mut(..rows * results).expect("results for every row");
        Self { bytes, y, ..*self }
    }
}

/// Rows shared out to workers: to each a part of as many bytes, or nearly so, cut into runs that it walks in ascending order.
/// Who has none left helps who has most, from the back: kernels ask for the next rows ahead of time, which is of use only
/// to who goes on there.
pub struct Shares<'a, M>(Deal<Run<'a, M>>);

impl<'a, M: Copy> Shares<'a, M> {
    /// As many shares as there are workers, at least one.
    pub fn new(runs: impl Iterator<Item = Run<'a, M>>, workers: usize) -> Self {
        let mut left: VecDeque<Run<'a, M>> = runs.collect();
        let total: usize = left.iter().map(|run| run.bytes.len()).sum();
        let workers = workers.max(1);
        let (mut cut, mut ends) = (Vec::with_capacity(workers * 16), Vec::with_capacity(workers));
        let mut before = 0;
        for worker in 1..=workers {
            let end = total * worker / workers;
            while let Some(run) = left.front_mut() {
                let share = end.saturating_sub(before);
                let room = if worker == workers {
                    usize::MAX
                } else {
                    share / run.row_bytes / ROW_GROUP * ROW_GROUP
                };
                let length = (share / PART).clamp(SHORTEST, LONGEST);
                let rows = (length / run.row_bytes).next_multiple_of(ROW_GROUP).min(room);
                if rows == 0 {
                    break;
                }
                // What would be left of it is not worth a turn of its own.
                let whole = run.rows() <= room && run.rows() < rows + ROW_GROUP;
                let taken = if whole { left.pop_front() } else { Some(run.take_front(rows)) };
                let Some(taken) = taken else { break };
                before += taken.bytes.len();
                cut.push(taken);
            }
            ends.push(cut.len());
        }
        Self(Deal::divided(cut, ends))
    }

    /// How many workers are worth it for so many bytes and tokens.
    pub fn worth(bytes: usize, tokens: usize) -> usize {
        (bytes.saturating_mul(tokens) / WORTH_A_WORKER).max(1)
    }

    /// The next run for this worker; `None` when nothing is left for anybody to take.
    pub fn next(&self, worker: usize) -> Option<Run<'a, M>> {
        let own = self.0.take_front(worker.min(self.0.spans() - 1));
        if own.is_some() {
            return own;
        }
        loop {
            let most = (0..self.0.spans()).max_by_key(|span| self.0.left(*span))?;
            if self.0.left(most) == 0 && self.is_empty() {
                return None;
            }
            // Its owner may have come first.
            let run = self.0.take_back(most);
            if run.is_some() {
                return run;
            }
        }
    }

    /// Whether all has been taken.
    pub fn is_empty(&self) -> bool {
        (0..self.0.spans()).all(|span| self.0.left(span) == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Rows of `lengths`, one byte each with the number of its row in it, and a result for each.
    fn runs<'a>(lengths: &[usize], bytes: &'a [u8], y: &'a mut [f32]) -> Vec<Run<'a, usize>> {
        let (mut bytes, mut y) = (bytes, y);
        let runs = lengths.iter().enumerate().map(|(matrix, &rows)| Run {
            matrix,
            row_bytes: 1,
            bytes: bytes.split_off(..rows).expect("as many bytes"),
            y: y.split_off_mut(..2 * rows).expect("as many results"),
        });
        runs.collect()
    }

    proptest! {
        /// However many take, every row is multiplied once and its results go where they belong.
        #[test]
        fn every_row_is_taken_once(lengths in prop::collection::vec(1..200_000usize, 0..6), workers in 0..5usize) {
            let total: usize = lengths.iter().sum();
            let bytes: Vec<u8> = (0..total).map(|row| row as u8).collect();
            let mut y = vec![0.0; 2 * total];
            let shares = Shares::new(runs(&lengths, &bytes, &mut y).into_iter(), workers);
            thread::scope(|scope| {
                for worker in 0..workers.max(1) + 1 {
                    let shares = &shares;
                    scope.spawn(move || {
                        while let Some(run) = shares.next(worker) {
                            let pairs = run.y.as_chunks_mut::<2>().0;
                            assert_eq!(pairs.len(), run.bytes.len());
                            for (pair, byte) in pairs.iter_mut().zip(run.bytes) {
                                *pair = [pair[0] + f32::from(*byte) + 1.0, pair[1] + run.matrix as f32];
                            }
                        }
                    });
                }
            });
            prop_assert!(shares.is_empty());
            drop(shares);
            let matrices = lengths.iter().enumerate().flat_map(|(matrix, &rows)| (0..rows).map(move |_| matrix));
            for ((pair, byte), matrix) in y.as_chunks::<2>().0.iter().zip(&bytes).zip(matrices) {
                prop_assert_eq!(*pair, [f32::from(*byte) + 1.0, matrix as f32]);
            }
        }
    }

    #[test]
    fn shares_are_neighbours_and_of_a_length_and_nobody_is_idle_while_there_is_work() {
        let lengths = [100_000, 250_000, 50_000];
        let bytes = vec![0; 400_000];
        let mut y = vec![0.0; 800_000];
        let start = bytes.as_ptr() as usize;
        let shares = Shares::new(runs(&lengths, &bytes, &mut y).into_iter(), 2);
        let take = |worker| {
            shares.next(worker).map(|run| {
                let first = run.bytes.as_ptr() as usize - start;
                (run.matrix, first..first + run.bytes.len())
            })
        };
        let Some((0, first)) = take(0) else { panic!("the first rows are the first worker's") };
        assert_eq!((first.start, first.len() % ROW_GROUP), (0, 0));
        assert!((SHORTEST..=200_000 / PART + ROW_GROUP).contains(&first.len()), "{first:?}");
        let Some((1, other)) = take(1) else { panic!("half of all rows lie before the second worker's") };
        assert!((200_000 - ROW_GROUP..=200_000).contains(&other.start), "{other:?}");
        let mut at = first.end;
        // The first worker walks its own rows, then helps the second from the end.
        let mut helped = Vec::new();
        while let Some((_, rows)) = take(0) {
            if rows.start < other.start {
                assert_eq!(rows.start, at, "in ascending order");
                at = rows.end;
            } else {
                helped.push(rows);
            }
        }
        assert_eq!(at, other.start);
        assert_eq!(
            (helped.first().map(|rows| rows.end), helped.last().map(|rows| rows.start)),
            (Some(400_000), Some(other.end))
        );
        assert!(helped.is_sorted_by(|one, next| next.end <= one.start));
        assert_eq!((take(0), take(1)), (None, None));
    }
}
