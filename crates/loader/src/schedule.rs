//! The fixed order: which byte ranges there are, which stay, and the order of each kind of pass.

use crate::ByteRange;
use crate::error::{Error, ErrorKind, Result};

/// One chunk as the schedule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The bytes.
    pub range: ByteRange,
    /// How many loans are taken in every pass; the step is done when that many have been given back. At least 1.
    pub loans: u32,
    /// Read once, when first met, and kept for the whole run in a slot of its own, unless [`crate::Stream::keep`] says less.
    pub resident: bool,
}

/// Steps and the order in which each kind of pass takes them, checked once.
#[derive(Clone, Debug)]
pub struct Schedule {
    steps: Vec<Step>,
    passes: Vec<Vec<u32>>,
    needs: Vec<u64>, // by step: resident bytes that must be allowed for it to stay; for streamed ones 2^64 - 1
}

/// Where number `i` stands in an order of which every beginning is spread evenly over the numbers: multiples of the golden
/// ratio modulo 1, in 64 bits. Those below any bound leave gaps of at most three lengths (the three-gap theorem, Sós 1958).
pub fn spread(i: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
    i.wrapping_mul(GOLDEN)
}

impl Schedule {
    /// `passes[kind]` lists indices into `steps`. A step may appear in several kinds, or in none.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a pass without steps, an index out of bounds, a step without bytes or loans, or a range
    /// whose end does not fit into 64 bits.
    pub fn new(steps: Vec<Step>, passes: Vec<Vec<u32>>) -> Result<Self> {
        let wrong = |what: String| Err(Error::new(ErrorKind::Usage, "build the schedule").note(what));
        for (index, step) in steps.iter().enumerate() {
            if step.range.len == 0 || step.range.end().is_none() {
                let ByteRange { offset, len, .. } = step.range;
                return wrong(format!(
                    "step {index} is {len} bytes at {offset}; wanted at least 1 byte below 2^64"
                ));
            }
            if step.loans == 0 {
                return wrong(format!("step {index} is never lent; wanted at least 1 loan"));
            }
        }
        for (kind, pass) in passes.iter().enumerate() {
            if pass.is_empty() {
                return wrong(format!("pass kind {kind} has no steps"));
            }
            if let Some(index) = pass.iter().find(|&&index| index as usize >= steps.len()) {
                return wrong(format!("pass kind {kind} has step {index} of {}", steps.len()));
            }
        }
        let needs = needs(&steps, &passes);
        Ok(Schedule { steps, passes, needs })
    }

    /// All steps, by index.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Number of kinds of pass.
    pub fn kinds(&self) -> usize {
        self.passes.len()
    }

    /// The steps of a pass of this kind, in order, as indices into [`Schedule::steps`].
    ///
    /// # Panics
    /// When there is no such kind.
    pub fn pass(&self, kind: usize) -> &[u32] {
        &self.passes[kind]
    }

    /// Bytes that stay in memory: the residents that appear in some pass, each once.
    pub fn resident_bytes(&self) -> u64 {
        // The last one to stay needs all the others too.
        self.steps
            .iter()
            .zip(&self.needs)
            .filter(|(step, _)| step.resident)
            .map(|(_, &n)| n)
            .max()
            .unwrap_or(0)
    }

    /// Whether a step is resident and stays when at most `limit` bytes of residents may. Those that go first leave the others
    /// spread evenly over the pass, and whatever stays under a limit also stays under a higher one.
    ///
    /// # Panics
    /// When there is no such step.
    pub fn stays(&self, step: u32, limit: u64) -> bool {
        self.steps[step as usize].resident && self.needs[step as usize] <= limit
    }

    /// Bytes read by every pass of this kind, without padding.
    ///
    /// # Panics
    /// When there is no such kind.
    pub fn streamed_bytes(&self, kind: usize) -> u64 {
        let steps = self.passes[kind].iter().map(|&index| &self.steps[index as usize]);
        steps.filter(|step| !step.resident).map(|step| step.range.len as u64).sum()
    }

    /// Length in bytes of the longest streamed step: what every slot must hold. 0 when nothing is streamed.
    pub fn longest_streamed(&self) -> usize {
        let steps = self.passes.iter().flatten().map(|&index| &self.steps[index as usize]);
        steps.filter(|step| !step.resident).map(|step| step.range.len).max().unwrap_or(0)
    }

    /// Length in bytes of the longest step, residents included.
    pub(crate) fn longest(&self) -> usize {
        let steps = self.passes.iter().flatten().map(|&index| &self.steps[index as usize]);
        steps.map(|step| step.range.len).max().unwrap_or(0)
    }

    /// Number of steps in the longest kind of pass.
    pub(crate) fn longest_pass(&self) -> usize {
        self.passes.iter().map(Vec::len).max().unwrap_or(0)
    }
}

/// See [`Schedule::stays`]: residents in the order in which they would be taken, with the bytes up to and with each.
fn needs(steps: &[Step], passes: &[Vec<u32>]) -> Vec<u64> {
    let mut met = vec![false; steps.len()];
    let mut residents: Vec<u32> = Vec::new();
    for &index in passes.iter().flatten() {
        if steps[index as usize].resident && !std::mem::replace(&mut met[index as usize], true) {
            residents.push(index);
        }
    }
    let mut ranked: Vec<(u64, u32)> = (0..).map(spread).zip(residents).collect();
    ranked.sort_unstable();
    let mut needs: Vec<u64> = steps.iter().map(|step| if step.resident { 0 } else { u64::MAX }).collect();
    let mut bytes = 0u64;
    for (_, index) in ranked {
        bytes = bytes.saturating_add(steps[index as usize].range.len as u64);
        needs[index as usize] = bytes;
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileIndex;

    fn step(offset: u64, len: usize, resident: bool) -> Step {
        Step { range: ByteRange { file: FileIndex(0), offset, len }, loans: 1, resident }
    }

    #[test]
    fn sums() {
        let steps = vec![step(0, 10, false), step(10, 50, true), step(60, 20, false), step(80, 99, false)];
        let schedule = Schedule::new(steps, vec![vec![0, 1], vec![0, 1, 2]]).unwrap();
        assert_eq!(schedule.resident_bytes(), 50);
        assert_eq!((schedule.streamed_bytes(0), schedule.streamed_bytes(1)), (10, 30));
        assert_eq!(schedule.longest_streamed(), 20, "a step in no pass needs no slot");
        assert_eq!(schedule.longest(), 50);
        assert_eq!(schedule.longest_pass(), 3);
    }

    #[test]
    fn what_stays_under_a_limit_is_spread_evenly_and_grows_with_it() {
        for count in [1, 2, 7, 100, 1000] {
            let steps: Vec<Step> = (0..2 * count).map(|i| step(i * 10, 10, i % 2 == 1)).collect();
            let schedule = Schedule::new(steps, vec![(0..2 * count as u32).collect()]).unwrap();
            assert_eq!(schedule.resident_bytes(), 10 * count);
            let stay = |limit| -> Vec<u32> {
                (0..2 * count as u32).filter(|&step| schedule.stays(step, limit)).collect()
            };
            assert_eq!(stay(u64::MAX).len() as u64, count);
            let mut before = Vec::new();
            for limit in 0..=10 * count {
                let now = stay(limit);
                assert_eq!(now.len() as u64, limit / 10, "filled up to one step");
                assert!(before.iter().all(|step| now.contains(step)));
                if limit % 10 == 0 && limit > 0 {
                    // In any stretch as long as so many gaps on average there are so many, give or take two.
                    let gap = 2.0 * count as f64 / now.len() as f64;
                    for (i, &step) in now.iter().enumerate() {
                        assert!((f64::from(step) / gap - i as f64).abs() < 3.0, "{limit}: {now:?}");
                    }
                }
                before = now;
            }
        }
    }

    #[test]
    fn nonsense_is_named() {
        let cases = [
            (vec![step(0, 0, false)], vec![vec![0]], "step 0 is 0 bytes"),
            (vec![step(u64::MAX, 2, false)], vec![vec![0]], "below 2^64"),
            (vec![Step { loans: 0, ..step(0, 1, false) }], vec![vec![0]], "never lent"),
            (vec![step(0, 1, false)], vec![vec![]], "no steps"),
            (vec![step(0, 1, false)], vec![vec![0], vec![0, 1]], "kind 1 has step 1 of 1"),
        ];
        for (steps, passes, said) in cases {
            let error = Schedule::new(steps, passes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
