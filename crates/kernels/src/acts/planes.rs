//! Activations of 16 tokens as a unit that multiplies tiles of bytes takes them: shifts folded in, split in two bytes.
//!
//! An activation in units of its group's scale, a = q·2^shift, is low + 64·high with −32 ≤ low < 32. The third plane holds
//! low + high; see `x86::amx` for what it is good for.

/// Bytes into which an activation is split.
pub(crate) const PLANES: usize = 3;
/// Tokens in a tile.
pub(crate) const TILE_TOKENS: usize = 16;

/// One block of 256 columns of 16 tokens.
#[repr(C, align(64))]
#[derive(Clone, Debug)]
pub(crate) struct BlockPlanes {
    /// By plane and 64 columns: four columns of each token, then the next four.
    pub q: [[[i8; 64 * TILE_TOKENS]; 4]; PLANES],
    /// Per token, the sums of two neighbouring groups of 16 activations, 16 bits wide.
    pub sums: [[i32; TILE_TOKENS]; 8],
}

/// All tokens, token-tile-major; lanes without a token hold zeros.
#[derive(Debug, Default)]
pub(crate) struct Planes {
    /// Tiles × blocks; empty where there is no unit for them, or too few tokens.
    pub blocks: Vec<BlockPlanes>,
}

impl Planes {
    /// Block `at` of all.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tile(&self, at: usize) -> &BlockPlanes {
        &self.blocks[at]
    }

    /// Makes room, exactly.
    pub(super) fn resize(&mut self, len: usize) {
        const NONE: BlockPlanes =
            BlockPlanes { q: [[[0; 64 * TILE_TOKENS]; 4]; PLANES], sums: [[0; TILE_TOKENS]; 8] };
        self.blocks.truncate(len);
        self.blocks.reserve_exact(len - self.blocks.len());
        while self.blocks.len() < len {
            self.blocks.push(NONE);
        }
    }
}

impl BlockPlanes {
    /// Puts one token's block in its place.
    #[inline(always)]
    pub(super) fn put(&mut self, token: usize, q: &[i8; 256], shifts: &[u8; 8], sums: &[i16; 16]) {
        let mut planes = [[0i8; 256]; PLANES];
        let [low, high, both] = &mut planes;
        for (part, q) in q.as_chunks::<32>().0.iter().enumerate() {
            for i in 0..32 {
                let a = i16::from(q[i]) << shifts[part];
                let l = ((a + 32) & 63) - 32;
                low[32 * part + i] = l as i8;
                high[32 * part + i] = ((a - l) >> 6) as i8;
            }
        }
        for i in 0..256 {
            both[i] = low[i] + high[i];
        }
        for (to, plane) in self.q.iter_mut().zip(&planes) {
            let fours = to.as_flattened_mut().as_chunks_mut::<4>().0.chunks_exact_mut(TILE_TOKENS);
            for (to, four) in fours.zip(plane.as_chunks::<4>().0) {
                to[token] = *four;
            }
        }
        for (to, [first, second]) in self.sums.iter_mut().zip(sums.as_chunks().0) {
            to[token] = i32::from(*first) & 0xffff | i32::from(*second) << 16;
        }
    }

    /// No token in this lane.
    #[inline(always)]
    pub(super) fn clear(&mut self, token: usize) {
        self.put(token, &[0; 256], &[0; 8], &[0; 16]);
    }
}
