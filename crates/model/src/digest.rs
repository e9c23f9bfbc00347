//! A 64-bit digest of logits, so that two runs can be compared bit for bit by comparing one number.

/// Hash of every logits row's bits, in order. Two runs have the same digest when they computed the same bits.
///
/// Each 32-bit pattern is mixed in with a multiplication by an odd constant and a rotation, and the result is
/// finished with the 64-bit mixer of SplitMix64 (Steele, Lea, Flood 2014). It guards against differences,
/// not against an adversary.
#[derive(Clone, Debug)]
pub struct Digest {
    state: u64,
    rows: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self { state: Self::START, rows: 0 }
    }
}

impl Digest {
    /// Any non-zero value would do; this is the golden ratio in 64 bits, which has no structure.
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    /// An odd multiplier with well-spread bits (from SplitMix64's finisher).
    const STEP: u64 = 0xbf58_476d_1ce4_e5b9;

    /// Adds one row of logits.
    pub fn add(&mut self, row: &[f32]) {
        let mut h = self.state ^ (row.len() as u64);
        for v in row {
            h = (h ^ u64::from(v.to_bits())).wrapping_mul(Self::STEP).rotate_left(29);
        }
        self.state = h;
        self.rows += 1;
    }

    /// The digest so far.
    pub fn finish(&self) -> u64 {
        let mut z = self.state ^ self.rows;
        z = (z ^ (z >> 30)).wrapping_mul(Self::STEP);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
    }
}
