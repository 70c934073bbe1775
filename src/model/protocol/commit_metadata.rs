//! The metadata of a source commit. It tells where to start when a lost store is rebuilt.

use super::format_level::readable_level;
use super::{field_values, is_versioned, text_version};
use crate::model::protocol::pause::Pause;
use crate::model::protocol::progress::Progress;
use crate::model::protocol::rules_history::RulesHistory;
use crate::model::shard::{Offset, SourceIdentity, Watermark};
use std::fmt;

/// The metadata of a committed offset, as one line of text:
/// `v2 low=17 done=<48 hex digits> stored=40 id=<identity or -> end=<offset or -> rules=<text or ->`.
/// With a pause it begins with `v3` and ends with ` pause=<text>`. So an older version waits, and does not
/// deliver.
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
    /// Needed only while the shard is paused, or a message waits that was read before the end of the pause.
    pub(crate) pause: Option<Pause>,
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
        let (version, fields) = text_version(text)?;
        let keys = ["low", "done", "stored", "id", "end", "rules"];
        let ([low, done, stored, id, end, rules], pause) = match version {
            1 => {
                let [low, done, id] = field_values(fields, ["low", "done", "id"])?;
                ([low, done, "0", id, "-", "-"], None)
            }
            2 => (field_values(fields, keys)?, None),
            3 if readable_level() > 0 => {
                let (fields, pause) = fields.rsplit_once(" pause=")?;
                (field_values(fields, keys)?, Some(Pause::parse(pause)?))
            }
            _ => return None,
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
            pause,
        })
    }

    /// The pause that a commit with this lowest pending offset must have. After a store loss, reading starts at
    /// that offset. A control record behind it would apply again, unless the commit has the state after it or later.
    pub(crate) fn needed_pause(pause: Option<&Pause>, lowest_pending: Offset) -> Option<Pause> {
        let is_needed = |it: &&Pause| it.is_paused || it.after.covers(lowest_pending);
        pause.filter(is_needed).cloned()
    }
}

impl fmt::Display for CommitMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, done) = (self.lowest_pending, self.delivered.to_hex());
        let id = self.identity.as_ref().map_or("-", |identity| &*identity.0);
        let stored = self.stored.0;
        let version = if self.pause.is_some() { 3 } else { 2 };
        write!(
            f,
            "v{version} low={low} done={done} stored={stored} id={id} end="
        )?;
        match self.end {
            Some(end) => write!(f, "{end}")?,
            None => f.write_str("-")?,
        }
        write!(f, " rules={}", self.rules)?;
        match &self.pause {
            Some(pause) => write!(f, " pause={pause}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::protocol::pause::tests::pause;

    fn committed() -> CommitMetadata {
        CommitMetadata {
            lowest_pending: Offset(17),
            delivered: Progress::START,
            stored: Watermark(0),
            identity: None,
            end: None,
            rules: RulesHistory::default(),
            pause: None,
        }
    }

    #[test]
    fn committed_metadata_reads_back() {
        for identity in [None, Some(SourceIdentity("q83vEjRWeJA".into()))] {
            for end in [None, Some(Offset(40))] {
                for pause in [None, Some(pause(17, true))] {
                    let identity = identity.clone();
                    let committed = CommitMetadata {
                        stored: Watermark(30),
                        identity,
                        end,
                        pause,
                        ..committed()
                    };
                    assert_eq!(
                        CommitMetadata::parse(&committed.to_string()),
                        Ok(Some(committed))
                    );
                }
            }
        }
    }

    #[test]
    fn a_commit_has_a_pause_while_it_is_needed() {
        let kept = |is_paused, lowest_pending| {
            let pause = pause(17, is_paused);
            CommitMetadata::needed_pause(Some(&pause), Offset(lowest_pending)).is_some()
        };
        assert!(kept(true, 100), "paused");
        assert!(kept(false, 17), "a message waits that was read before");
        assert!(!kept(false, 18));
        let text = CommitMetadata {
            pause: Some(pause(17, true)),
            ..committed()
        };
        let text = text.to_string();
        assert!(text.starts_with("v3 low=17 ") && text.contains(" rules=- pause="));
        // An older version.
        assert!(committed().to_string().starts_with("v2 "));
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
            &format!("v3 low=1 done={done} stored=2 id=- end=- rules=-"),
            &format!("v3 low=1 done={done} stored=2 id=- end=- rules=- pause=-"),
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
