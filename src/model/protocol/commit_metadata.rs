//! The metadata of a source commit. It tells where to start when a lost store is rebuilt.

use super::{field_values, is_versioned};
use crate::model::protocol::progress::Progress;
use crate::model::protocol::rules_history::RulesHistory;
use crate::model::shard::{Offset, SourceIdentity, Watermark};
use std::fmt;

/// The metadata of a committed offset, as one line of text:
/// `v2 low=17 done=<48 hex digits> stored=40 id=<identity or -> end=<offset or -> rules=<text or ->`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitMetadata {
    /// No message below this offset is pending. It may be too low, never too high.
    pub(crate) lowest_pending: Offset,
    pub(crate) delivered: Progress,
    /// The greatest watermark that the store is known to have had. It never moves back, so it shows
    /// that a store lost writes.
    pub(crate) stored: Watermark,
    /// The incarnation of the partition that was read. `None` if the broker has no identities.
    pub(crate) identity: Option<SourceIdentity>,
    /// Set by an orderly shutdown: no record at or after this offset was ever stored. `None`: a
    /// later record may have been stored before the store lost it.
    pub(crate) end: Option<Offset>,
    pub(crate) rules: RulesHistory,
}

/// A newer version wrote the commit. Without it, this version would read and deliver messages
/// again that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the last offset commit of the group has a format that this version cannot read: run the newer \
     version, or choose another position with `postdate reset`"
)]
pub(crate) struct UnreadableCommit;

impl CommitMetadata {
    /// `None` for an empty or foreign text: a tool moved the position of the group.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, UnreadableCommit> {
        match Self::parse_known(text) {
            None if is_versioned(text) && !fault!(IgnoreNewerCommit) => Err(UnreadableCommit),
            parsed => Ok(parsed),
        }
    }

    fn parse_known(text: &str) -> Option<Self> {
        // Version 0.1.0 wrote no `stored`, no `end` and no `rules`.
        let [low, done, stored, id, end, rules] = match text.strip_prefix("v1 ") {
            Some(fields) => {
                let [low, done, id] = field_values(fields, ["low", "done", "id"])?;
                [low, done, "0", id, "-", "-"]
            }
            None => {
                let keys = ["low", "done", "stored", "id", "end", "rules"];
                field_values(text.strip_prefix("v2 ")?, keys)?
            }
        };
        Some(Self {
            lowest_pending: Offset(low.parse().ok()?),
            delivered: Progress::from_hex(done)?,
            stored: Watermark(stored.parse().ok()?),
            identity: (id != "-").then(|| SourceIdentity(id.into())),
            end: match end {
                "-" => None,
                end => Some(Offset(end.parse().ok()?)),
            },
            rules: RulesHistory::parse(rules)?,
        })
    }
}

impl fmt::Display for CommitMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, done) = (self.lowest_pending, self.delivered.to_hex());
        let id = self.identity.as_ref().map_or("-", |identity| &*identity.0);
        let stored = self.stored.0;
        write!(f, "v2 low={low} done={done} stored={stored} id={id} end=")?;
        match self.end {
            Some(end) => write!(f, "{end}")?,
            None => f.write_str("-")?,
        }
        write!(f, " rules={}", self.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed() -> CommitMetadata {
        CommitMetadata {
            lowest_pending: Offset(17),
            delivered: Progress::START,
            stored: Watermark(0),
            identity: None,
            end: None,
            rules: RulesHistory::default(),
        }
    }

    #[test]
    fn committed_metadata_reads_back() {
        for identity in [None, Some(SourceIdentity("q83vEjRWeJA".into()))] {
            for end in [None, Some(Offset(40))] {
                let identity = identity.clone();
                let committed = CommitMetadata {
                    stored: Watermark(30),
                    identity,
                    end,
                    ..committed()
                };
                assert_eq!(
                    CommitMetadata::parse(&committed.to_string()),
                    Ok(Some(committed))
                );
            }
        }
    }

    #[test]
    fn metadata_of_version_0_1_0_has_unknown_rules() {
        let done = Progress::START.to_hex();
        let text = format!("v1 low=17 done={done} id=-");
        assert_eq!(CommitMetadata::parse(&text), Ok(Some(committed())));
    }

    #[test]
    fn foreign_metadata_counts_as_none_and_that_of_a_newer_version_does_not() {
        for text in ["", "hello", "v", "v2", "vx low=1", "v-1 low=1"] {
            assert_eq!(CommitMetadata::parse(text), Ok(None), "{text:?}");
        }
        let done = Progress::START.to_hex();
        for text in [
            "v3 low=1 done=0 id=-",
            "v1 low=1 done=zz id=-",
            &format!("v2 low=1 done={done} stored=2 id=-"),
            &format!("v2 low=1 done={done} id=- end=- rules=-"),
            &format!("v2 low=1 done={done} stored=2 id=- end=x rules=-"),
            &format!("v2 low=1 done={done} stored=2 id=- end=- rules=x"),
            &format!("v2 low=1 done={done} stored=2 id=- end=- rules=- more=1"),
        ] {
            assert_eq!(
                CommitMetadata::parse(text),
                Err(UnreadableCommit),
                "{text:?}"
            );
        }
    }
}
