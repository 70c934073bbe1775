//! Many seeds of a simulation: the first that breaks a promise is shown, with all that happened in it.

use super::Outcome;
use crate::mutant::{self, Mutant};
use std::ops::Range;

/// Lines of the trace that are shown: its end is where the promise broke, or was found broken.
const SHOWN: usize = 400;

/// Panics with the trace of the first seed that breaks a promise. Who wants to see more of it runs that seed alone: it repeats to the letter.
#[track_caller]
pub(super) fn assert_kept(seeds: Range<u64>, run: impl Fn(u64) -> Outcome) {
    for seed in seeds {
        let Outcome { trace, broken } = run(seed);
        let left_out = trace.len().saturating_sub(SHOWN);
        assert!(
            broken.is_empty(),
            "seed {seed} breaks {} promises:\n  {}\nwhat happened ({left_out} lines before it left out):\n  {}",
            broken.len(),
            broken.join("\n  "),
            trace[left_out..].join("\n  "),
        );
    }
}

/// Whether one of the seeds shows the fault.
pub(super) fn is_broken_by(mutant: Mutant, mut seeds: Range<u64>, run: impl Fn(u64) -> Outcome) -> bool {
    mutant::with(Some(mutant), || seeds.any(|seed| !run(seed).broken.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "seed 7 breaks 1 promises:\n  lost: a\nwhat happened (0 lines before it left out):\n  0 ms killed")]
    fn a_seed_that_breaks_a_promise_is_shown_with_what_happened() {
        let broken = |seed| if seed == 7 { vec!["lost: a".to_owned()] } else { Vec::new() };
        assert_kept(5..9, |seed| Outcome { trace: vec!["0 ms killed".to_owned()], broken: broken(seed) });
    }
}
