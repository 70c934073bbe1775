//! The metadata of a source commit. It tells where to start when a lost store is rebuilt.

use super::field_values;
use crate::model::protocol::progress::Progress;
use crate::model::shard::{Offset, SourceIdentity};
use std::fmt;

/// The metadata of a committed offset, as one line of text:
/// `v1 low=17 done=<48 hex digits> id=<identity or ->`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitMetadata {
    /// No message below this offset is pending. It may be too low, never too high.
    pub(crate) lowest_pending: Offset,
    pub(crate) delivered: Progress,
    /// The incarnation of the partition that was read. `None` if the broker has no identities.
    pub(crate) identity: Option<SourceIdentity>,
}

impl CommitMetadata {
    /// `None` if the text was not written by a known version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let [low, done, id] = field_values(text.strip_prefix("v1 ")?, ["low", "done", "id"])?;
        Some(Self {
            lowest_pending: Offset(low.parse().ok()?),
            delivered: Progress::from_hex(done)?,
            identity: (id != "-").then(|| SourceIdentity(id.into())),
        })
    }
}

impl fmt::Display for CommitMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, done) = (self.lowest_pending, self.delivered.to_hex());
        let id = self.identity.as_ref().map_or("-", |identity| &*identity.0);
        write!(f, "v1 low={low} done={done} id={id}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_metadata_reads_back() {
        for identity in [None, Some(SourceIdentity("q83vEjRWeJA".into()))] {
            let committed = CommitMetadata {
                lowest_pending: Offset(17),
                delivered: Progress::START,
                identity,
            };
            assert_eq!(
                CommitMetadata::parse(&committed.to_string()),
                Some(committed)
            );
        }
    }

    #[test]
    fn foreign_metadata_is_ignored() {
        for text in ["", "v2 low=1 done=0 id=-", "hello", "v1 low=1 done=zz id=-"] {
            assert_eq!(CommitMetadata::parse(text), None, "{text:?}");
        }
    }
}
