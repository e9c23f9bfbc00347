//! Stop strings: text is held back while it could be the beginning of one.

/// Watches generated text for strings that end it.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What [`StopFilter::push`] lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text to show now.
    pub text: String,
    /// A stop string came; it and all that follows is dropped.
    pub stopped: bool,
}

impl StopFilter {
    /// Stops at any of `stops`; empty strings never stop.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    /// Adds `text` and returns what cannot be part of a stop string any more.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(at);
            return Passed { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.stops.iter().map(|s| longest_overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// What was held back, when nothing follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `stop`.
fn longest_overlap(text: &str, stop: &str) -> usize {
    stop.char_indices().map(|(i, _)| i).rev().find(|&i| text.ends_with(&stop[..i])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], parts: &[&str]) -> (Vec<String>, bool, String) {
        let mut filter = StopFilter::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let mut out = Vec::new();
        for part in parts {
            let passed = filter.push(part);
            out.push(passed.text);
            if passed.stopped {
                return (out, true, String::new());
            }
        }
        (out, false, filter.finish())
    }

    #[test]
    fn text_passes_at_once_when_it_cannot_be_a_stop() {
        let (out, stopped, rest) = run(&["###"], &["ab", "c#", "d"]);
        assert_eq!((out, stopped, rest.as_str()), (vec!["ab".into(), "c".into(), "#d".into()], false, ""));
    }

    #[test]
    fn a_stop_over_several_pieces_is_never_shown() {
        let (out, stopped, _) = run(&["END", "ÄÖ"], &["a E", "N", "Dxyz"]);
        assert_eq!((out, stopped), (vec!["a ".into(), String::new(), String::new()], true));
        let (out, stopped, _) = run(&["END", "ÄÖ"], &["aÄ", "Ö"]);
        assert_eq!((out, stopped), (vec!["a".into(), String::new()], true));
    }

    #[test]
    fn the_first_of_several_stops_counts_and_the_tail_is_flushed() {
        let (out, stopped, _) = run(&["bc", "b"], &["abcd"]);
        assert_eq!((out, stopped), (vec!["a".into()], true));
        let (_, stopped, rest) = run(&["xyz", ""], &["wxy"]);
        assert_eq!((stopped, rest.as_str()), (false, "xy"));
    }
}
