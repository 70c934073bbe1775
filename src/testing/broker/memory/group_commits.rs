//! The commits of a consumer group. Sources are no members.

use crate::broker::{Error, OffsetCommit};
use crate::model::{Offset, Partition};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Group {
    commits: BTreeMap<Partition, (Offset, String)>,
    /// Consumers of another program or version, which make the broker refuse other commits.
    pub(super) has_members: bool,
}

impl Group {
    pub(super) fn commit_all(&mut self, commits: &[OffsetCommit]) -> Result<(), Error> {
        if self.has_members {
            return Err(Error::Rejected("the group has members".to_owned()));
        }
        for OffsetCommit {
            partition,
            offset,
            metadata,
        } in commits
        {
            let commit = (*offset, metadata.clone());
            self.commits.insert(partition.clone(), commit);
        }
        Ok(())
    }

    /// Commits as part of a transaction.
    pub(super) fn commit_marker(&mut self, partition: Partition, offset: Offset, text: String) {
        self.commits.insert(partition, (offset, text));
    }

    pub(super) fn commit(&self, partition: &Partition) -> Option<&(Offset, String)> {
        self.commits.get(partition)
    }

    /// Removes the commits of a topic, as Kafka does when a topic is deleted.
    pub(super) fn forget_topic(&mut self, topic: &str) {
        self.commits
            .retain(|partition, _| &*partition.topic != topic);
    }
}
