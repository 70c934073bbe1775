//! Runs many seeds. A failure shows the first seed that breaks a promise, its trace, and the
//! command to repeat it.

use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::{Outcome, trace};
use std::ops::Range;
use std::str::FromStr;

/// Environment variable: run only this seed, in all ranges that contain it.
const ONLY: &str = "POSTDATE_SEED";

/// Environment variable: run this many times as many seeds of each range. It is 0.05 for `make test`
/// and 200 for `make nightly`.
const FACTOR: &str = "POSTDATE_SEEDS";

/// The number of broken promises that a failure shows.
const BROKEN_MAX: usize = 20;

/// Panics with the trace of the first seed that breaks a promise.
#[track_caller]
pub(crate) fn assert_promises_kept(seeds: Range<u64>, run: impl Fn(u64) -> Outcome) {
    for seed in chosen(seeds) {
        let outcome = run(seed);
        assert!(outcome.broken.is_empty(), "{}", failure(seed, &outcome));
    }
}

/// The seeds to run instead of this range, as the environment says.
pub(crate) fn chosen(seeds: Range<u64>) -> impl Iterator<Item = u64> {
    let only = number::<u64>(ONLY);
    let factor = number::<f64>(FACTOR).unwrap_or(1.0);
    let count = ((seeds.end - seeds.start) as f64 * factor).ceil() as u64;
    (seeds.start..seeds.start + count).filter(move |seed| only.is_none_or(|only| only == *seed))
}

/// The number in an environment variable that is set.
fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: give a number")),
    )
}

/// The failure text for a seed that breaks promises.
fn failure(seed: u64, Outcome { trace, broken }: &Outcome) -> String {
    let more = broken.len().saturating_sub(BROKEN_MAX);
    let listed = broken[..broken.len() - more].join("\n  ");
    let (command, shown) = (command(seed), trace::render(trace, broken));
    format!(
        "seed {seed} breaks {} promises ({more} of them not listed):\n  {listed}\n{shown}\nthis seed alone: {command}",
        broken.len()
    )
}

fn command(seed: u64) -> String {
    // libtest names a thread after its test, unless it runs only one test.
    let tests = std::thread::current()
        .name()
        .filter(|name| name.contains("::"))
        .map(|name| format!("{name} -- --exact"));
    let factor = number::<f64>(FACTOR).map(|factor| format!("{FACTOR}={factor} "));
    format!(
        "{}{ONLY}={seed} cargo test --features test-support --lib {}",
        factor.unwrap_or_default(),
        tests.unwrap_or_else(|| "testing::sim::".to_owned())
    )
}

/// Returns whether one of the seeds reveals the faults, which are injected together.
pub(crate) fn breaks_promises(
    injected: &[InjectedFault],
    mut seeds: Range<u64>,
    run: impl Fn(u64) -> Outcome,
) -> bool {
    fault_injection::with(injected.iter().copied(), || {
        seeds.any(|seed| !run(seed).broken.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim::faults::fleet::FleetFaults;
    use crate::testing::sim::fleet;
    use crate::testing::sim::trace::TraceLine;
    use std::time::Duration;

    fn outcome(broken: &str) -> Outcome {
        Outcome {
            trace: vec![TraceLine {
                at: 5,
                uid: None,
                what: "killed".to_owned(),
            }],
            broken: vec![broken.to_owned()],
        }
    }

    #[test]
    #[should_panic(
        expected = "seed 7 breaks 1 promises (0 of them not listed):\n  lost: a\nevents"
    )]
    fn a_seed_that_breaks_a_promise_is_shown_with_its_trace() {
        // A fraction of the seeds includes the first one.
        assert_promises_kept(7..9, |seed| {
            if seed == 7 {
                outcome("lost: a")
            } else {
                Outcome {
                    trace: Vec::new(),
                    broken: Vec::new(),
                }
            }
        });
    }

    #[test]
    fn a_failure_ends_with_the_command_that_runs_its_seed_alone() {
        let name =
            "testing::sim::seeds::tests::a_failure_ends_with_the_command_that_runs_its_seed_alone";
        let text = failure(7, &outcome("lost: a"));
        let factor = number::<f64>(FACTOR).map(|factor| format!("{FACTOR}={factor} "));
        let factor = factor.unwrap_or_default();
        let command = format!(
            "this seed alone: {factor}POSTDATE_SEED=7 cargo test --features test-support --lib"
        );
        let exact = format!("{name} -- --exact");
        assert!(
            [exact.as_str(), "testing::sim::"]
                .iter()
                .any(|tests| text.ends_with(&format!("{command} {tests}"))),
            "{text}"
        );
    }

    /// A frozen worker continues with a shard that another worker holds by then.
    #[test]
    fn a_failure_shows_the_fault_and_the_events_of_the_accused_message_in_time_order() {
        let run = |seed| {
            (
                seed,
                fleet::run(seed, Duration::from_secs(20), FleetFaults::All),
            )
        };
        let accused = |broken: &String| {
            Some(
                broken
                    .split_once(" delivered ")?
                    .1
                    .split_once(" although ")?
                    .0
                    .to_owned(),
            )
        };
        let found = fault_injection::with([InjectedFault::IgnoreLeaseExpiry], || {
            (2_000..2_100).map(run).find_map(|(seed, outcome)| {
                Some((
                    failure(seed, &outcome),
                    outcome.broken.iter().find_map(accused)?,
                ))
            })
        });
        let (text, uid) = found.expect("the injected fault is caught");
        let (_, happened) = text
            .split_once("events by millisecond")
            .expect("it is shown");
        let lines: Vec<&str> = happened
            .lines()
            .skip(1)
            .take_while(|line| !line.starts_with("this seed alone"))
            .collect();
        let times: Vec<i64> = lines
            .iter()
            .map(|line| {
                line.trim_start()
                    .split(' ')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        assert!(times.is_sorted(), "{text}");
        let at = |words: &[&str]| {
            lines
                .iter()
                .position(|line| words.iter().all(|words| line.contains(words)))
        };
        let (sent, accusing) = (
            at(&[&format!("{uid} is sent")]),
            at(&[&format!("delivered {uid} although")]),
        );
        let (handed, arrived) = (
            at(&[&format!(" delivers {uid} ")]),
            at(&[&format!("{uid} arrives")]),
        );
        assert!(
            sent.is_some() && sent < handed && handed.is_some() && arrived.is_some(),
            "{text}"
        );
        let fault = lines
            .iter()
            .take(accusing.expect("the violation is shown"))
            .any(|line| line.contains(" is frozen") || line.contains(" is cut off"));
        assert!(fault, "{text}");
    }
}
