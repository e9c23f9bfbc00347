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
    /// Read once, when first met, and kept for the whole run in a slot of its own.
    pub resident: bool,
}

/// Steps and the order in which each kind of pass takes them, checked once.
#[derive(Clone, Debug)]
pub struct Schedule {
    steps: Vec<Step>,
    passes: Vec<Vec<u32>>,
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
        Ok(Schedule { steps, passes })
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
        let mut met = vec![false; self.steps.len()];
        let mut bytes = 0;
        for &index in self.passes.iter().flatten() {
            let step = &self.steps[index as usize];
            if step.resident && !std::mem::replace(&mut met[index as usize], true) {
                bytes += step.range.len as u64;
            }
        }
        bytes
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

    /// Number of steps in the longest kind of pass.
    pub(crate) fn longest_pass(&self) -> usize {
        self.passes.iter().map(Vec::len).max().unwrap_or(0)
    }
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
        assert_eq!(schedule.longest_pass(), 3);
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
