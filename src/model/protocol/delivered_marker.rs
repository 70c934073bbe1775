//! The marker: the delivered pair inside a transaction, as the metadata of an offset commit.

use super::field_values;
use crate::model::protocol::progress::Progress;
use crate::model::shard::SourceIdentity;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts of finished messages, as a timer counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct OutcomeCounts {
    /// The target acknowledged them.
    pub(crate) delivered: u64,
    /// Cancelled or replaced in time, and skipped at their due time.
    pub(crate) cancelled: u64,
    pub(crate) dead_lettered: u64,
    /// Sent back through the source for another attempt. There each of them is a new message.
    #[serde(rename = "sent_back")]
    pub(crate) retried: u64,
}

impl OutcomeCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.cancelled += other.cancelled;
        self.dead_lettered += other.dead_lettered;
        self.retried += other.retried;
    }

    pub(crate) fn total(&self) -> u64 {
        self.to_array().iter().sum()
    }

    /// In the order of the fields.
    pub(crate) fn to_array(self) -> [u64; 4] {
        [
            self.delivered,
            self.cancelled,
            self.dead_lettered,
            self.retried,
        ]
    }

    pub(crate) fn from_array([delivered, cancelled, dead_lettered, retried]: [u64; 4]) -> Self {
        Self {
            delivered,
            cancelled,
            dead_lettered,
            retried,
        }
    }
}

/// The delivered pair, and the outcomes that the store's ledger does not count yet. One line of
/// text:
/// `v1 done=<48 hex digits> id=<identity> since=<48 hex digits> tally=<delivered>,<cancelled>,<dead-lettered>,<retried>`.
/// If there are occurrences of schedules among them, their number follows: `,<occurrences>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredMarker {
    pub(crate) delivered: Progress,
    /// The incarnation of the partition that the pair is about, as the store names it.
    pub(crate) identity: SourceIdentity,
    /// The delivered pair that the store knows. `uncounted` counts the outcomes since then.
    pub(crate) ledger_pair: Progress,
    pub(crate) uncounted: OutcomeCounts,
    /// The occurrences of schedules among them. No append has counted them.
    pub(crate) uncounted_occurrences: u64,
}

impl DeliveredMarker {
    /// `None` if the text was not written by a known version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let keys = ["done", "id", "since", "tally"];
        let [done, id, since, tally] = field_values(text.strip_prefix("v1 ")?, keys)?;
        let counts: Result<Vec<u64>, _> = tally.split(',').map(str::parse).collect();
        let mut counts = counts.ok()?;
        let has_occurrences = counts.len() == 5;
        let uncounted_occurrences = counts.pop_if(|_| has_occurrences).unwrap_or(0);
        Some(Self {
            delivered: Progress::from_hex(done)?,
            identity: SourceIdentity(id.into()),
            ledger_pair: Progress::from_hex(since)?,
            uncounted: OutcomeCounts::from_array(counts.try_into().ok()?),
            uncounted_occurrences,
        })
    }
}

impl fmt::Display for DeliveredMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, since) = (self.delivered.to_hex(), self.ledger_pair.to_hex());
        let tally = self.uncounted.to_array().map(|count| count.to_string());
        write!(f, "v1 done={done} id={} since={since} ", self.identity)?;
        write!(f, "tally={}", tally.join(","))?;
        match self.uncounted_occurrences {
            0 => Ok(()),
            occurrences => write!(f, ",{occurrences}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Timestamp, Watermark};

    #[test]
    fn a_marker_reads_back() {
        let pair = Progress::new(
            Cursor::new(Timestamp::from_millis(1_795_136_390_000), Offset(17)),
            Watermark(40),
        );
        for (identity, uncounted_occurrences) in [("q83vEjRWeJA", 0), ("-", 0), ("-", 1_239)] {
            let since = Progress::new(
                Cursor::new(Timestamp::from_millis(1_795_136_380_000), Offset(3)),
                Watermark(9),
            );
            let tally = OutcomeCounts {
                delivered: 1_234,
                cancelled: 0,
                dead_lettered: 5,
                retried: 67,
            };
            let delivered = DeliveredMarker {
                delivered: pair,
                identity: SourceIdentity(identity.into()),
                ledger_pair: since,
                uncounted: tally,
                uncounted_occurrences,
            };
            assert_eq!(
                DeliveredMarker::parse(&delivered.to_string()),
                Some(delivered)
            );
        }
    }

    #[test]
    fn a_foreign_marker_is_not_guessed_at() {
        for text in [
            "",
            "v2 done=0 id=-",
            "hello",
            "v1 done=zz id=-",
            "v1 low=1 done=0 id=-",
        ] {
            assert_eq!(DeliveredMarker::parse(text), None, "{text:?}");
        }
        let (pair, since) = (Progress::START, Progress::START);
        let whole = DeliveredMarker {
            delivered: pair,
            identity: SourceIdentity("-".into()),
            ledger_pair: since,
            uncounted: OutcomeCounts::default(),
            uncounted_occurrences: 0,
        }
        .to_string();
        assert!(DeliveredMarker::parse(&whole).is_some(), "{whole:?}");
        let (head, _) = whole.rsplit_once(' ').unwrap();
        for text in [
            head.to_owned(),
            format!("{head} tally=1,2,3"),
            format!("{head} tally=1,2,3,-4"),
            format!("{whole},5,6"),
            format!("{whole} more=1"),
        ] {
            assert_eq!(DeliveredMarker::parse(&text), None, "{text:?}");
        }
    }
}
