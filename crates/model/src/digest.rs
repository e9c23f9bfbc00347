//! A 64-bit digest of logits, so that two runs can be compared bit for bit by comparing one number.

/// Numbers that are mixed side by side. One chain would be a multiplication and a rotation behind the other, five cycles
/// or so a number; in eight lanes 128 thousand logits take 27 µs.
const LANES: usize = 8;

/// Hash of every logits row's bits, in order. Two runs have the same digest when they computed the same bits.
///
/// Number i of a row goes into lane i modulo 8: its 32-bit pattern is mixed in with a multiplication by an odd constant and a
/// rotation. In the end the lanes are mixed with one another in the same way, and the result is finished with the 64-bit mixer
/// of SplitMix64 (Steele, Lea, Flood 2014). It guards against differences, not against an adversary.
#[derive(Clone, Debug)]
pub struct Digest {
    lanes: [u64; LANES],
    rows: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { lanes: [Self::START; LANES], rows: 0 }
    }
}

impl Digest {
    /// Any non-zero value would do; this is the golden ratio in 64 bits, which has no structure.
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    /// An odd multiplier with well-spread bits (from SplitMix64's finisher).
    const STEP: u64 = 0xbf58_476d_1ce4_e5b9;

    /// Adds one row of logits.
    pub fn add(&mut self, row: &[f32]) {
        let mut lanes = self.lanes;
        lanes[0] ^= row.len() as u64;
        let (groups, rest) = row.as_chunks::<LANES>();
        for group in groups {
            for i in 0..LANES {
                lanes[i] = Self::mix(lanes[i], group[i].to_bits().into());
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = Self::mix(*lane, v.to_bits().into());
        }
        self.lanes = lanes;
        self.rows += 1;
    }

    /// The digest so far.
    pub fn finish(&self) -> u64 {
        let mut z = self.lanes.iter().fold(self.rows, |z, &lane| Self::mix(z, lane));
        z = (z ^ (z >> 30)).wrapping_mul(Self::STEP);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn mix(h: u64, bits: u64) -> u64 {
        (h ^ bits).wrapping_mul(Self::STEP).rotate_left(29)
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    fn of(rows: &[&[f32]]) -> u64 {
        let mut d = Digest::default();
        rows.iter().for_each(|r| d.add(r));
        d.finish()
    }

    #[test]
    fn every_bit_and_the_order_count() {
        let base = of(&[&[1.0, 2.0], &[3.0, 4.0]]);
        assert_eq!(base, of(&[&[1.0, 2.0], &[3.0, 4.0]]));
        assert_ne!(base, of(&[&[3.0, 4.0], &[1.0, 2.0]]));
        assert_ne!(base, of(&[&[1.0, 2.0, 3.0, 4.0]]));
        assert_ne!(base, of(&[&[1.0, 2.0], &[3.0, f32::from_bits(4.0f32.to_bits() ^ 1)]]));
        assert_ne!(of(&[&[0.0]]), of(&[&[-0.0]]));
        // Any two of a longer row exchanged, in one lane or not.
        let row: Vec<f32> = (0..21u8).map(f32::from).collect();
        for (i, j) in (0..21).flat_map(|j| (0..j).map(move |i| (i, j))) {
            let mut other = row.clone();
            other.swap(i, j);
            assert_ne!(of(&[&row]), of(&[&other]), "{i} and {j}");
        }
    }
}
