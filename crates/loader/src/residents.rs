//! The residents of a stream: who is there, found by the number of their step.
//!
//! A pass over a model that stays looks up thousands of them, each once, while the weights themselves take all that memory
//! gives. So they lie in the order of steps, one behind the other, and finding one touches two lines of cache.

use crate::schedule::Schedule;
use crate::state::Place;

/// Residents that are in memory, or on their way.
pub(crate) struct Residents {
    /// 64 steps each: those that are resident, and how many are before them.
    ranks: Vec<(u64, u32)>,
    /// By rank; none until the first is admitted.
    places: Vec<Option<Resident>>,
    kept: u64,
}

pub(crate) struct Resident {
    pub step: u32,
    pub place: Place,
    pub uses: usize, // entries of the window that look here
}

impl Residents {
    pub fn new(schedule: &Schedule) -> Self {
        let mut before = 0;
        let ranks = schedule.steps().chunks(64).map(|steps| {
            let bits = steps.iter().rev().fold(0, |bits, step| bits << 1 | u64::from(step.resident));
            before += bits.count_ones();
            (bits, before - bits.count_ones())
        });
        Residents { ranks: ranks.collect(), places: Vec::new(), kept: 0 }
    }

    /// Bytes of those that are here, or on their way.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Where a step stands among the residents, if it is one.
    fn rank(&self, step: u32) -> Option<usize> {
        let (bits, before) = *self.ranks.get(step as usize / 64)?;
        let bit = 1 << (step % 64);
        (bits & bit != 0).then(|| before as usize + (bits & (bit - 1)).count_ones() as usize)
    }

    pub fn get(&self, step: u32) -> Option<&Resident> {
        self.places.get(self.rank(step)?)?.as_ref()
    }

    pub fn get_mut(&mut self, step: u32) -> Option<&mut Resident> {
        let rank = self.rank(step)?;
        self.places.get_mut(rank)?.as_mut()
    }

    /// Makes room for a step of `len` bytes, which one entry of the window looks at.
    ///
    /// # Panics
    /// When the schedule says that it is no resident.
    pub fn admit(&mut self, step: u32, len: usize) {
        if self.places.is_empty() {
            let all = self.ranks.last().map_or(0, |(bits, before)| (before + bits.count_ones()) as usize);
            self.places.resize_with(all, || None);
        }
        let rank = self.rank(step).expect("a resident step");
        self.places[rank] = Some(Resident { step, place: Place::Submitting, uses: 1 });
        self.kept += len as u64;
    }

    /// Takes out a step of `len` bytes.
    pub fn remove(&mut self, step: u32, len: usize) -> Option<Place> {
        let rank = self.rank(step)?;
        let resident = self.places.get_mut(rank)?.take()?;
        self.kept -= len as u64;
        Some(resident.place)
    }

    /// All that are here, in the order of steps.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Resident> {
        self.places.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteRange, FileIndex, Step};

    #[test]
    fn each_resident_has_a_place_of_its_own_and_others_have_none() {
        let resident = |i: u64| i % 7 < 3 || i % 64 == 63;
        let steps = (0..200).map(|i| {
            let range = ByteRange { file: FileIndex(0), offset: i, len: 1 };
            Step { range, loans: 1, resident: resident(i) }
        });
        let schedule = Schedule::new(steps.collect(), vec![(0..200).collect()]).unwrap();
        let mut residents = Residents::new(&schedule);
        let ranks: Vec<usize> = (0..200).filter_map(|step| residents.rank(step)).collect();
        let count = (0..200).filter(|&i| resident(i)).count();
        assert_eq!(ranks, (0..count).collect::<Vec<_>>());
        assert!((0..201).all(|step| residents.get(step).is_none()), "nobody is here yet");
        [63, 0, 198].into_iter().for_each(|step| residents.admit(step, 5));
        let here: Vec<u32> = residents.iter_mut().map(|resident| resident.step).collect();
        assert_eq!((here, residents.kept()), (vec![0, 63, 198], 15));
        assert_eq!(residents.get(63).map(|resident| resident.uses), Some(1));
        assert!(matches!(residents.remove(63, 5), Some(Place::Submitting)));
        assert!(residents.get_mut(63).is_none() && residents.remove(63, 5).is_none());
        assert_eq!(residents.kept(), 10);
    }
}
