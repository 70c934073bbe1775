//! The marker: the delivered pair inside a transaction, as the metadata of an offset commit.

use crate::model::protocol::outcome_counts::OutcomeCounts;
use crate::model::protocol::progress::Progress;
use crate::model::shard::SourceIdentity;
use std::fmt;

/// The delivered pair, and the outcomes that the store's ledger does not count yet. One line of
/// text:
/// `v1 done=<48 hex digits> id=<identity> since=<48 hex digits> tally=<delivered>,<cancelled>,<dead-lettered>,<retried>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveredMarker {
    pub(crate) delivered: Progress,
    /// The incarnation of the partition that the pair is about, as the store names it.
    pub(crate) identity: SourceIdentity,
    /// The delivered pair that the store knows. `uncounted` counts the outcomes since then.
    pub(crate) ledger_pair: Progress,
    pub(crate) uncounted: OutcomeCounts,
}

impl DeliveredMarker {
    /// `None` if the text was not written by a known version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != "v1" {
            return None;
        }
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let delivered = Self {
            delivered: Progress::from_hex(value("done")?)?,
            identity: SourceIdentity(value("id")?.into()),
            ledger_pair: Progress::from_hex(value("since")?)?,
            uncounted: parse_counts(value("tally")?)?,
        };
        words.next().is_none().then_some(delivered)
    }
}

impl fmt::Display for DeliveredMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            delivered: pair,
            identity,
            ledger_pair: since,
            uncounted:
                OutcomeCounts {
                    delivered,
                    cancelled,
                    dead_lettered,
                    retried: sent_back,
                },
        } = self;
        write!(
            f,
            "v1 done={} id={identity} since={} ",
            pair.to_hex(),
            since.to_hex()
        )?;
        write!(
            f,
            "tally={delivered},{cancelled},{dead_lettered},{sent_back}"
        )
    }
}

fn parse_counts(text: &str) -> Option<OutcomeCounts> {
    let mut numbers = text.split(',').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    let tally = OutcomeCounts {
        delivered: next()?,
        cancelled: next()?,
        dead_lettered: next()?,
        retried: next()?,
    };
    numbers.next().is_none().then_some(tally)
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
        for identity in ["q83vEjRWeJA", "-"] {
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
        }
        .to_string();
        assert!(DeliveredMarker::parse(&whole).is_some(), "{whole:?}");
        let (head, _) = whole.rsplit_once(' ').unwrap();
        for text in [
            head.to_owned(),
            format!("{head} tally=1,2,3"),
            format!("{head} tally=1,2,3,-4"),
            format!("{whole},5"),
            format!("{whole} more=1"),
        ] {
            assert_eq!(DeliveredMarker::parse(&text), None, "{text:?}");
        }
    }
}
