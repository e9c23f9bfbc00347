//! Choices that change the speed of a product and never its bits: one table, a row per kind of CPU.

use core::fmt;

/// Environment variable that forces choices, such as `hint=t1,twice=on`; what it does not name stays as the table has it.
const VARIABLE: &str = "SLUICE_TUNE";

/// Which caches a prefetch brings a line into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Level 1, to be used once; on Intel it also stays out of levels 2 and 3.
    Nta,
    /// All levels.
    T0,
    /// Level 2 and beyond.
    T1,
    /// No prefetch instructions: the hardware prefetcher alone.
    None,
}

/// The choices for one kind of CPU. All values give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Which row of the table this is, or `forced` where the environment changed it.
    pub kind: &'static str,
    /// Where prefetches bring lines.
    pub hint: Hint,
    /// Whether lines are asked for twice, the first time [`Tuning::distance`] bytes further on.
    pub twice: bool,
    /// Bytes between the first and the second request.
    pub distance: usize,
    /// Whether the level with a tile unit (AMX) is taken where the CPU has one and nobody asks for a level.
    pub tiles: bool,
    /// Tokens from which the tile unit multiplies at that level.
    pub tile_tokens: usize,
}

/// Figures for each row: docs/kernels.md, "Choices".
const ZEN: Tuning =
    Tuning { kind: "amd", hint: Hint::Nta, twice: true, distance: 4 << 10, tiles: false, tile_tokens: 16 };
const INTEL: Tuning =
    Tuning { kind: "intel", hint: Hint::T0, twice: false, distance: 4 << 10, tiles: false, tile_tokens: 16 };
/// For CPUs that nobody has measured: T0 is nowhere the worst.
const OTHER: Tuning = Tuning { kind: "other", hint: Hint::T0, ..ZEN };

/// The hints that the environment and the bench know, with their names.
pub const HINTS: [(&str, Hint); 4] =
    [("nta", Hint::Nta), ("t0", Hint::T0), ("t1", Hint::T1), ("none", Hint::None)];

impl Tuning {
    /// The row for a CPU whose `cpuid` vendor string this is (empty where there is none).
    pub const fn of_vendor(vendor: &str) -> Self {
        match vendor.as_bytes() {
            b"AuthenticAMD" | b"HygonGenuine" => ZEN,
            b"GenuineIntel" => INTEL,
            _ => OTHER,
        }
    }

    /// The row for this CPU.
    pub fn of_this_cpu() -> Self {
        Self::of_vendor(&vendor())
    }

    /// The row for this CPU, changed by the environment variable `SLUICE_TUNE` where that is set.
    ///
    /// # Errors
    /// When the variable names no choice or no value of it.
    pub fn detect() -> Result<Self, TuningError> {
        let here = Self::of_this_cpu();
        match std::env::var_os(VARIABLE) {
            Some(text) => here.with(&text.to_string_lossy()),
            None => Ok(here),
        }
    }

    /// These choices with those in `text` (`key=value,…`) instead.
    ///
    /// # Errors
    /// As [`Tuning::detect`].
    pub fn with(mut self, text: &str) -> Result<Self, TuningError> {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let error = || TuningError { part: part.to_owned() };
            let (key, value) = part.split_once('=').ok_or_else(error)?;
            let known = match key {
                "kind" => [ZEN, INTEL, OTHER].iter().find(|row| row.kind == value).map(|row| self = *row),
                "hint" => find(&HINTS, value).map(|hint| self.hint = hint),
                "twice" => find(&SWITCH, value).map(|twice| self.twice = twice),
                "tiles" => find(&SWITCH, value).map(|tiles| self.tiles = tiles),
                "distance" => number(value, 0, MOST_DISTANCE).map(|bytes| self.distance = bytes),
                "tile-tokens" => number(value, 1, usize::MAX).map(|tokens| self.tile_tokens = tokens),
                _ => None,
            };
            known.ok_or_else(error)?;
            self.kind = "forced";
        }
        Ok(self)
    }
}

/// The values of a choice between yes and no.
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

/// The row for CPUs that nobody has measured.
impl Default for Tuning {
    fn default() -> Self {
        OTHER
    }
}

/// More than a level-2 cache holds could only hurt.
const MOST_DISTANCE: usize = 1 << 20;

fn find<T: Copy>(values: &[(&str, T)], name: &str) -> Option<T> {
    values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn number(text: &str, least: usize, most: usize) -> Option<usize> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

/// The vendor string of this CPU.
#[cfg(target_arch = "x86_64")]
fn vendor() -> String {
    let leaf = crate::x86::cpuid(0, 0);
    let bytes = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    String::from_utf8_lossy(bytes.as_flattened()).into_owned()
}

/// Nothing to tell CPUs apart by.
#[cfg(not(target_arch = "x86_64"))]
fn vendor() -> String {
    String::new()
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = HINTS.iter().find(|(_, hint)| *hint == self.hint).map_or("", |(name, _)| name);
        let switch = |on: bool| if on { "on" } else { "off" };
        let (twice, tiles) = (switch(self.twice), switch(self.tiles));
        let Self { kind, distance, tile_tokens, .. } = self;
        write!(
            f,
            "{kind}: hint={hint},twice={twice},distance={distance},tiles={tiles},tile-tokens={tile_tokens}"
        )
    }
}

/// The environment asks for a choice that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningError {
    part: String,
}

impl fmt::Display for TuningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{VARIABLE} has {:?}: wanted kind=amd|intel|other, hint=nta|t0|t1|none, twice=on|off, tiles=on|off, \
             distance=BYTES (at most {MOST_DISTANCE}) or tile-tokens=N, separated by commas; unset it to take the table's choices",
            self.part
        )
    }
}

impl core::error::Error for TuningError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_forced() {
        for vendor in ["AuthenticAMD", "GenuineIntel", "", "CentaurHauls"] {
            let tuning = Tuning::of_vendor(vendor);
            let text = tuning.to_string();
            let (kind, choices) = text.split_once(": ").unwrap();
            assert_eq!(kind, tuning.kind);
            let forced = OTHER.with(choices).unwrap();
            assert_eq!(forced, Tuning { kind: "forced", ..tuning });
            assert_eq!(ZEN.with(&format!("kind={kind}")).unwrap(), forced);
        }
    }

    #[test]
    fn kinds_differ_where_they_were_measured_to() {
        assert_eq!(Tuning::of_vendor("AuthenticAMD").hint, Hint::Nta);
        assert_ne!(Tuning::of_vendor("GenuineIntel").hint, Hint::Nta);
    }

    #[test]
    fn unknown_choices_are_named() {
        for text in ["hint=t9", "speed=on", "hint", "distance=-1", "distance=9999999999", "tile-tokens=0"] {
            let error = ZEN.with(&format!("twice=off,{text}")).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("SLUICE_TUNE"), "{error}");
        }
        assert_eq!(ZEN.with(""), Ok(ZEN));
    }
}
