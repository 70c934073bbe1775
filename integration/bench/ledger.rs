//! Checks that each message arrived once, unchanged and not early.
//!
//! The check uses the numbers and due times of the load, not the service's own counts.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use crate::ends::Ends;
use crate::workload::Message;

/// The defects of the messages that arrived. If all counts except `count` are zero, the promises
/// were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) count: usize,
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) early: usize,
    /// Messages that arrived with another key or payload.
    pub(crate) changed: usize,
    /// Dead letters. The load contains no message that should become one.
    pub(crate) dead: usize,
}

impl Verdict {
    pub(crate) fn is_kept(&self) -> bool {
        let Verdict {
            lost,
            doubled,
            early,
            changed,
            dead,
            ..
        } = *self;
        lost + doubled + early + changed + dead == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            count,
            lost,
            doubled,
            early,
            changed,
            dead,
        } = *self;
        if self.is_kept() {
            return write!(f, "all {count}, once");
        }
        let faults = [
            (lost, "LOST"),
            (doubled, "DOUBLED"),
            (early, "EARLY"),
            (changed, "CHANGED"),
            (dead, "DEAD LETTERS"),
        ];
        let named: Vec<_> = faults
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} {name}"))
            .collect();
        write!(f, "of {count}: {}", named.join(", "))
    }
}

/// The load that was sent: `count` messages of this form.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) message: &'a Message,
    pub(crate) count: usize,
}

/// The messages in a target topic.
pub(crate) struct Arrivals {
    pub(crate) verdict: Verdict,
    /// The broker's timestamps by number, or `NEVER`.
    stamps: Vec<i64>,
}

/// The timestamp of a message that did not arrive.
const NEVER: i64 = i64::MIN;

impl Arrivals {
    /// The lateness in milliseconds of the messages that have a due time, ascending.
    pub(crate) fn lateness(&self, due: impl Fn(usize) -> Option<i64>) -> Vec<i64> {
        let came = self
            .stamps
            .iter()
            .enumerate()
            .filter(|(_, stamp)| **stamp != NEVER);
        let mut lateness: Vec<i64> = came
            .filter_map(|(number, stamp)| Some(stamp - due(number)?))
            .collect();
        lateness.sort_unstable();
        lateness
    }

    /// The number of messages that arrived before this broker timestamp.
    pub(crate) fn count_until(&self, end: i64) -> usize {
        let came = self.stamps.iter().filter(|stamp| **stamp != NEVER);
        came.filter(|stamp| **stamp < end).count()
    }

    /// The earliest broker timestamp of these messages.
    pub(crate) fn first(&self, numbers: Range<usize>) -> i64 {
        let came = self.stamps[numbers].iter().copied();
        came.filter(|stamp| *stamp != NEVER).min().unwrap_or(NEVER)
    }

    /// The latest broker timestamp of these messages.
    pub(crate) fn last(&self, numbers: Range<usize>) -> i64 {
        self.stamps[numbers].iter().copied().max().unwrap_or(NEVER)
    }
}

/// Reads a topic to its end and checks its messages. `due` returns a due time, or `None` for a
/// copy. A number of `count` or more should still wait in the store, so it counts as early.
pub(crate) fn judge(
    ends: &impl Ends,
    topic: &str,
    sent: Sent<'_>,
    due: impl Fn(usize) -> Option<i64>,
) -> Arrivals {
    let Sent {
        message: like,
        count,
    } = sent;
    let mut verdict = Verdict {
        count,
        ..Verdict::default()
    };
    let mut stamps = vec![NEVER; count];
    ends.read(topic, |arrived| {
        let Some(number) = Message::number(arrived.payload) else {
            verdict.changed += 1;
            return;
        };
        if number >= count {
            verdict.early += 1;
            return;
        }
        let same = arrived.payload == like.payload(number).as_bytes()
            && arrived.key == like.key(number).as_bytes();
        verdict.changed += usize::from(!same);
        verdict.doubled +=
            usize::from(std::mem::replace(&mut stamps[number], arrived.stamp) != NEVER);
        verdict.early += usize::from(due(number).is_some_and(|due| arrived.stamp < due));
    });
    verdict.lost = stamps.iter().filter(|stamp| **stamp == NEVER).count();
    Arrivals { verdict, stamps }
}
