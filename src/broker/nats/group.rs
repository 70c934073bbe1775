//! How the processes of a route share its partitions, for NATS knows no consumer groups: one value of the bucket names the members that
//! live, each with a number that it raises every second, and who reads which partition. Every change is made only if nobody made another
//! since (the bucket's revision), so a partition has one owner at a time.
//!
//! A member whose number stood still for [`NATS_GROUP_MEMBER_TIMEOUT`], by the clock of whoever watches, is taken off, and its partitions are free.
//! Partitions go round the members in the order of their names. An owner gives up what another should have, and only then does that one
//! take it. Two that read one partition for a moment, where one was taken for dead, do no harm: the store takes each offset once.

use super::connection::Connection;
use super::kv::{self, KvBucket};
use super::source::SourceOptions;
use super::stream_info;
use crate::broker::Error;
use crate::limit::{NATS_GROUP_MEMBER_TIMEOUT, NATS_GROUP_WRITE_ATTEMPTS_MAX};
use crate::model::{Partition, split_source_topic};
use async_nats::jetstream::kv::{CreateErrorKind, Store, UpdateErrorKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// One member's view of its group.
pub(super) struct GroupMember {
    connection: Connection,
    bucket: KvBucket,
    key: String,
    member: String,
    topics: Vec<String>,
    /// Whether the headers of the server's own schedules are read.
    reads_schedules: bool,
    /// The others' numbers, and when each was seen to change.
    last_changes: BTreeMap<String, (u64, Instant)>,
    owned: BTreeSet<Partition>,
    /// Streams that are missing, or cannot be read for now, and were told of.
    reported_streams: BTreeSet<String>,
}

/// What a step came to.
#[derive(Debug, Default)]
pub(super) struct Rebalance {
    pub(super) gained: Vec<Partition>,
    pub(super) lost: Vec<Partition>,
    /// Streams that are newly found missing, or that cannot be sources.
    pub(super) faults: Vec<Error>,
}

/// The value in the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct GroupState {
    members: BTreeMap<String, u64>,
    owners: BTreeMap<String, String>,
}

impl GroupMember {
    pub(super) fn new(link: &Connection, reading: &SourceOptions) -> Self {
        Self {
            connection: link.clone(),
            bucket: KvBucket::new(link.clone()),
            key: format!("group.{}", kv::escape_key(&reading.group)),
            member: reading.member.clone(),
            topics: reading.topics.clone(),
            reads_schedules: reading.reads_schedules,
            last_changes: BTreeMap::new(),
            owned: BTreeSet::new(),
            reported_streams: BTreeSet::new(),
        }
    }

    /// Says that the member lives, and takes and gives up what it should.
    pub(super) async fn rebalance(&mut self) -> Result<Rebalance, Error> {
        let mut step = Rebalance::default();
        let partitions = self.readable_partitions(&mut step.faults).await?;
        let store = self.bucket.open().await?;
        for _ in 0..NATS_GROUP_WRITE_ATTEMPTS_MAX {
            let (mut roll, revision) = self.load(&store).await?;
            if !self.owned.is_empty() && !roll.members.contains_key(&self.member) {
                // Taken for dead, or a bucket that somebody made anew.
                self.bucket.restore_commits(&store).await?;
            }
            self.track_members(&roll);
            let owned = self.assign(&mut roll, &partitions);
            if self.compare_and_set(&store, &roll, revision).await? {
                step.gained = owned.difference(&self.owned).cloned().collect();
                step.lost = self.owned.difference(&owned).cloned().collect();
                self.owned = owned;
                return Ok(step);
            }
        }
        Err(Error::Unavailable(format!(
            "{} in the bucket {} changes too often",
            self.key, store.name
        )))
    }

    /// Gives up everything.
    pub(super) async fn leave(&mut self) -> Result<(), Error> {
        let store = self.bucket.open().await?;
        for _ in 0..NATS_GROUP_WRITE_ATTEMPTS_MAX {
            let (mut roll, revision) = self.load(&store).await?;
            roll.members.remove(&self.member);
            roll.owners.retain(|_, owner| *owner != self.member);
            if self.compare_and_set(&store, &roll, revision).await? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn bucket(&self) -> &KvBucket {
        &self.bucket
    }

    /// Those whose streams exist and can be sources.
    async fn readable_partitions(
        &mut self,
        faults: &mut Vec<Error>,
    ) -> Result<Vec<Partition>, Error> {
        let mut found = Vec::new();
        for topic in &self.topics {
            let Some((stream, _)) = split_source_topic(topic) else {
                continue;
            };
            match stream_info::fetch(&self.connection, stream).await? {
                None if self.reported_streams.insert(stream.to_owned()) => {
                    faults.push(Error::Rejected(format!(
                        "the stream {stream} of `{topic}` does not exist"
                    )));
                }
                None => {}
                Some(facts) => match (
                    facts.unusable_reason(),
                    facts.schedule_conflict().filter(|_| self.reads_schedules),
                ) {
                    (Some(fault), _) => faults.push(Error::Fatal(fault)),
                    // Somebody may take it back.
                    (None, Some(fault)) if self.reported_streams.insert(stream.to_owned()) => {
                        faults.push(Error::Rejected(fault))
                    }
                    (None, Some(_)) => {}
                    (None, None) => {
                        self.reported_streams.remove(stream);
                        found.push(Partition::new(topic.as_str(), 0));
                    }
                },
            }
        }
        found.sort();
        Ok(found)
    }

    async fn load(&self, store: &Store) -> Result<(GroupState, Option<u64>), Error> {
        let entry = store
            .entry(self.key.as_str())
            .await
            .map_err(|error| self.bucket.on_error(&error))?;
        Ok(match entry {
            None => (GroupState::default(), None),
            // What is not understood is written anew: it says nothing that the members would not say again within seconds.
            Some(entry) => (
                serde_json::from_slice(&entry.value).unwrap_or_default(),
                Some(entry.revision),
            ),
        })
    }

    /// Whether nobody wrote since `revision`.
    async fn compare_and_set(
        &self,
        store: &Store,
        roll: &GroupState,
        revision: Option<u64>,
    ) -> Result<bool, Error> {
        let value = serde_json::to_vec(roll)
            .expect("maps of text and numbers")
            .into();
        match revision {
            None => match store.create(&self.key, value).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(self.bucket.on_error(&error)),
            },
            Some(revision) => match store.update(&self.key, value, revision).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(false),
                Err(error) => Err(self.bucket.on_error(&error)),
            },
        }
    }

    fn track_members(&mut self, roll: &GroupState) {
        let now = Instant::now();
        self.last_changes
            .retain(|member, _| roll.members.contains_key(member));
        for (member, number) in &roll.members {
            let seen = self
                .last_changes
                .entry(member.clone())
                .or_insert((*number, now));
            if seen.0 != *number {
                *seen = (*number, now);
            }
        }
    }

    /// Changes the roll as this member would have it, and answers what is its own in it.
    fn assign(&mut self, roll: &mut GroupState, partitions: &[Partition]) -> BTreeSet<Partition> {
        let now = Instant::now();
        let lives = |member: &String| {
            self.last_changes
                .get(member)
                .is_some_and(|(_, at)| now - *at < NATS_GROUP_MEMBER_TIMEOUT)
        };
        roll.members
            .retain(|member, _| *member == self.member || lives(member));
        // One that comes back counts from the start, and may be at the number at which it was last seen.
        self.last_changes
            .retain(|member, _| roll.members.contains_key(member));
        *roll.members.entry(self.member.clone()).or_default() += 1;
        let members: Vec<&String> = roll.members.keys().collect();
        let mut owned = BTreeSet::new();
        let mut owners = BTreeMap::new();
        for (turn, partition) in partitions.iter().enumerate() {
            let name = partition.to_string();
            let owner = roll
                .owners
                .remove(&name)
                .filter(|owner| roll.members.contains_key(owner));
            let is_to_be_ours = *members[turn % members.len()] == self.member;
            match owner {
                Some(owner) if owner != self.member => {
                    owners.insert(name, owner);
                }
                _ if is_to_be_ours => {
                    owners.insert(name, self.member.clone());
                    owned.insert(partition.clone());
                }
                _ => {}
            }
        }
        roll.owners = owners;
        owned
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cluster, Login, Tls};
    use super::*;
    use crate::health::Health;

    fn group(member: &str) -> GroupMember {
        let cluster = Cluster {
            name: "edge".into(),
            deployment: "d".into(),
            urls: vec!["nats://127.0.0.1:1".to_owned()],
            domain: None,
            login: Login::Anonymous,
            tls: Tls::default(),
        };
        let reading = SourceOptions {
            group: "g".to_owned(),
            topics: Vec::new(),
            member: member.to_owned(),
            reads_schedules: false,
        };
        GroupMember::new(
            &Connection::new(&cluster, Health::new().register("link")),
            &reading,
        )
    }

    fn partitions(count: usize) -> Vec<Partition> {
        (0..count)
            .map(|index| Partition::new(format!("S:p{index}"), 0))
            .collect()
    }

    fn step(group: &mut GroupMember, roll: &mut GroupState, partitions: &[Partition]) -> usize {
        group.track_members(roll);
        group.owned = group.assign(roll, partitions);
        group.owned.len()
    }

    #[tokio::test(start_paused = true)]
    async fn members_share_alike_and_never_own_the_same() {
        let (mut one, mut two, mut roll, all) =
            (group("a"), group("b"), GroupState::default(), partitions(5));
        assert_eq!(step(&mut one, &mut roll, &all), 5);
        assert_eq!(
            step(&mut two, &mut roll, &all),
            0,
            "the owner has not given anything up"
        );
        assert_eq!(step(&mut one, &mut roll, &all), 3);
        assert_eq!(step(&mut two, &mut roll, &all), 2);
        assert!(one.owned.is_disjoint(&two.owned));
        assert_eq!(step(&mut one, &mut roll, &all), 3, "it stays so");
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_silent_is_replaced_and_learns_it() {
        let (mut one, mut two, mut roll, all) =
            (group("a"), group("b"), GroupState::default(), partitions(2));
        step(&mut one, &mut roll, &all);
        step(&mut two, &mut roll, &all);
        tokio::time::advance(NATS_GROUP_MEMBER_TIMEOUT / 2).await;
        assert_eq!(step(&mut two, &mut roll, &all), 0);
        tokio::time::advance(NATS_GROUP_MEMBER_TIMEOUT / 2).await;
        assert_eq!(step(&mut two, &mut roll, &all), 2);
        assert_eq!(step(&mut one, &mut roll, &all), 0, "it is a new member now");
        assert_eq!(step(&mut two, &mut roll, &all), 1);
    }
}
