//! What is committed along with what was delivered exactly once, so that whoever takes a shard over knows it to the message.

use super::claim::Claim;
use super::shard::Identity;
use super::tally::Tally;
use std::fmt;

/// The delivered pair, and what the store's ledger has not been told yet, as one line of text: `v1 done=<48 hex digits> id=<identity>
/// since=<48 hex digits> tally=<delivered>,<cancelled>,<dead-lettered>,<sent back>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) pair: Claim,
    /// The incarnation of the partition that the pair speaks of, as the store names it.
    pub(crate) identity: Identity,
    /// The pair that the store was told last, and what was settled since.
    pub(crate) since: Claim,
    pub(crate) tally: Tally,
}

impl Delivered {
    /// `None`: not written by a version that this one knows.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != "v1" {
            return None;
        }
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let delivered = Self {
            pair: Claim::from_hex(value("done")?)?,
            identity: Identity(value("id")?.into()),
            since: Claim::from_hex(value("since")?)?,
            tally: tally(value("tally")?)?,
        };
        words.next().is_none().then_some(delivered)
    }
}

impl fmt::Display for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pair,
            identity,
            since,
            tally:
                Tally {
                    delivered,
                    cancelled,
                    dead_lettered,
                    sent_back,
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

fn tally(text: &str) -> Option<Tally> {
    let mut numbers = text.split(',').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    let tally = Tally {
        delivered: next()?,
        cancelled: next()?,
        dead_lettered: next()?,
        sent_back: next()?,
    };
    numbers.next().is_none().then_some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cursor, Offset, Timestamp, Watermark};

    #[test]
    fn a_marker_reads_back() {
        let pair = Claim::new(
            Cursor::new(Timestamp::from_millis(1_795_136_390_000), Offset(17)),
            Watermark(40),
        );
        for identity in ["q83vEjRWeJA", "-"] {
            let since = Claim::new(
                Cursor::new(Timestamp::from_millis(1_795_136_380_000), Offset(3)),
                Watermark(9),
            );
            let tally = Tally {
                delivered: 1_234,
                cancelled: 0,
                dead_lettered: 5,
                sent_back: 67,
            };
            let delivered = Delivered {
                pair,
                identity: Identity(identity.into()),
                since,
                tally,
            };
            assert_eq!(Delivered::parse(&delivered.to_string()), Some(delivered));
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
            assert_eq!(Delivered::parse(text), None, "{text:?}");
        }
        let (pair, since) = (Claim::START, Claim::START);
        let whole = Delivered {
            pair,
            identity: Identity("-".into()),
            since,
            tally: Tally::default(),
        }
        .to_string();
        assert!(Delivered::parse(&whole).is_some(), "{whole:?}");
        let (head, _) = whole.rsplit_once(' ').unwrap();
        for text in [
            head.to_owned(),
            format!("{head} tally=1,2,3"),
            format!("{head} tally=1,2,3,-4"),
            format!("{whole},5"),
            format!("{whole} more=1"),
        ] {
            assert_eq!(Delivered::parse(&text), None, "{text:?}");
        }
    }
}
