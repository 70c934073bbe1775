//! Shares the partitions of a route between its processes, because NATS has no consumer groups.
//!
//! One key of the deployment's KV bucket holds the live members, each with a heartbeat counter, and
//! the owner of each partition. Every member rewrites it once a second by compare-and-set on the
//! key's revision. So a partition has one owner at a time.
//!
//! - A member whose counter did not change for [`NATS_GROUP_MEMBER_TIMEOUT`], by the observer's
//!   clock, is removed, and its partitions become free.
//! - Partitions are assigned to the members round robin, in the order of their names. The owner
//!   releases a partition first; the new owner takes it in a later step.
//! - Two processes may read one partition for a moment, after a live member was removed. That is
//!   harmless: the store accepts each offset once (I2).

use super::SourceOptions;
use crate::broker::Error;
use crate::broker::nats::connection::Connection;
use crate::broker::nats::kv::{self, KvBucket};
use crate::broker::nats::stream_info;
use crate::limit::{
    NATS_GROUP_MEMBER_TIMEOUT, NATS_GROUP_WRITE_ATTEMPTS_MAX, NATS_HEARTBEAT_INTERVAL,
};
use crate::model::{Partition, split_source_topic};
use async_nats::jetstream::kv::{CreateErrorKind, Store, UpdateErrorKind};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::time::Instant;

/// This process as a member of its group.
pub(super) struct GroupMember {
    connection: Rc<Connection>,
    pub(super) bucket: Rc<KvBucket>,
    key: String,
    options: SourceOptions,
    /// The counter of each member, and the time at which it last changed.
    last_changes: BTreeMap<String, (u64, Instant)>,
    owned: BTreeSet<Partition>,
    /// Streams whose rejection was reported already.
    reported_streams: BTreeSet<String>,
}

/// The result of one [`GroupMember::rebalance`].
#[derive(Default)]
pub(super) struct Rebalance {
    pub(super) assigned: Vec<Partition>,
    pub(super) revoked: Vec<Partition>,
    /// Rejections of streams that are missing or cannot be sources, each reported once.
    pub(super) errors: Vec<Error>,
    /// Why a stream is not read now.
    pub(super) problem: Option<String>,
    /// Partitions whose stream did not answer. Only their owners keep them.
    pub(super) unanswered: BTreeSet<Partition>,
}

/// The value of the key. It is stored as JSON.
#[derive(Default, Serialize, Deserialize)]
struct GroupState {
    /// The heartbeat counter of each member.
    members: BTreeMap<String, u64>,
    /// The owner of each partition.
    owners: BTreeMap<String, String>,
}

impl GroupMember {
    pub(super) fn new(connection: &Rc<Connection>, options: SourceOptions) -> Self {
        Self {
            connection: connection.clone(),
            bucket: Rc::new(KvBucket::new(connection.clone())),
            key: group_key(&options.group),
            options,
            last_changes: BTreeMap::new(),
            owned: BTreeSet::new(),
            reported_streams: BTreeSet::new(),
        }
    }

    /// Sends a heartbeat, takes free partitions, and releases those that another member should own.
    pub(super) async fn rebalance(&mut self) -> Result<Rebalance, Error> {
        let mut result = Rebalance::default();
        let partitions = self.readable_partitions(&mut result).await;
        let store = self.bucket.open().await?;
        for _ in 0..NATS_GROUP_WRITE_ATTEMPTS_MAX {
            let (mut state, revision) = self.load(&store).await?;
            if !self.owned.is_empty() && !state.members.contains_key(&self.options.member) {
                // This member was removed, or the bucket was recreated without its commits.
                self.bucket.restore_commits(&store).await?;
            }
            self.track_members(&state);
            let owned = self.assign(&mut state, &partitions, &result.unanswered);
            let group = &self.options.group;
            let revisions = self.bucket.unknown_revisions(&store, group, &owned);
            let revisions = revisions.await?;
            if self.compare_and_set(&store, &state, revision).await? {
                self.bucket.set_owned(group, &owned, revisions);
                result.assigned = owned.difference(&self.owned).cloned().collect();
                result.revoked = self.owned.difference(&owned).cloned().collect();
                self.owned = owned;
                return Ok(result);
            }
        }
        Err(Error::Unavailable(format!(
            "other members changed {} in the bucket {} at each of {} attempts",
            self.key, store.name, NATS_GROUP_WRITE_ATTEMPTS_MAX
        )))
    }

    /// Leaves the group and releases all partitions.
    pub(super) async fn leave(&mut self) -> Result<(), Error> {
        let store = self.bucket.open().await?;
        for _ in 0..NATS_GROUP_WRITE_ATTEMPTS_MAX {
            let (mut state, revision) = self.load(&store).await?;
            state.members.remove(&self.options.member);
            state
                .owners
                .retain(|_, owner| *owner != self.options.member);
            if self.compare_and_set(&store, &state, revision).await? {
                break;
            }
        }
        Ok(())
    }

    /// The partitions whose streams exist and can be sources, or did not answer.
    async fn readable_partitions(&mut self, result: &mut Rebalance) -> Vec<Partition> {
        let (connection, options) = (&*self.connection, &self.options);
        let topics = options.topics.iter();
        let streams = topics.filter_map(|topic| Some((topic, split_source_topic(topic)?.0)));
        // Concurrently: a heartbeat must not wait for one silent stream after the other.
        let infos = streams.map(|(topic, stream)| async move {
            let info = stream_info::fetch(connection, stream).await;
            (topic, stream, info)
        });
        let mut found = Vec::new();
        for (topic, stream, info) in join_all(infos).await {
            let partition = Partition::new(topic.as_str(), 0);
            let problem = match info {
                Err(error) => {
                    let problem = format!("{partition} cannot be checked: {error}");
                    result.problem.get_or_insert(problem);
                    result.unanswered.insert(partition.clone());
                    found.push(partition);
                    continue;
                }
                Ok(None) => Some(format!("the stream {stream} of `{topic}` does not exist")),
                Ok(Some(info)) => {
                    let conflict = info.schedule_conflict();
                    let conflict = conflict.filter(|_| options.reads_schedules);
                    info.unusable_reason().or(conflict)
                }
            };
            // An operator can repair the stream, and the other streams are read meanwhile.
            if let Some(problem) = problem {
                if self.reported_streams.insert(stream.to_owned()) {
                    result.errors.push(Error::Rejected(problem.clone()));
                }
                result.problem.get_or_insert(problem);
                continue;
            }
            self.reported_streams.remove(stream);
            found.push(partition);
        }
        found.sort();
        found
    }

    /// The state of the group and the revision of its key. `None`: the key does not exist.
    async fn load(&self, store: &Store) -> Result<(GroupState, Option<u64>), Error> {
        let entry = store.entry(self.key.as_str()).await;
        let Some(entry) = self.bucket.checked(entry)? else {
            return Ok((GroupState::default(), None));
        };
        // A value that cannot be read is replaced: the members restore its content within seconds.
        let state = serde_json::from_slice(&entry.value).unwrap_or_default();
        Ok((state, Some(entry.revision)))
    }

    /// Writes the state if its key still has this revision. Returns whether it was written.
    async fn compare_and_set(
        &self,
        store: &Store,
        state: &GroupState,
        revision: Option<u64>,
    ) -> Result<bool, Error> {
        let value = serde_json::to_vec(state).expect("maps of text and numbers");
        match revision {
            None => match store.create(&self.key, value.into()).await {
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(false),
                created => self.bucket.checked(created).map(|_| true),
            },
            Some(revision) => match store.update(&self.key, value.into(), revision).await {
                Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(false),
                updated => self.bucket.checked(updated).map(|_| true),
            },
        }
    }

    /// Records when each member's heartbeat counter changed.
    fn track_members(&mut self, state: &GroupState) {
        let now = Instant::now();
        let members = &state.members;
        self.last_changes
            .retain(|member, (counter, _)| members.get(member) == Some(counter));
        for (member, counter) in members {
            let member = member.clone();
            self.last_changes.entry(member).or_insert((*counter, now));
        }
    }

    /// Updates the state for this member's heartbeat. Returns the partitions that it owns then.
    fn assign(
        &mut self,
        state: &mut GroupState,
        partitions: &[Partition],
        unanswered: &BTreeSet<Partition>,
    ) -> BTreeSet<Partition> {
        let GroupState { members, owners } = state;
        // A member that returns starts at counter 1, which may equal the counter seen last. So a
        // removed member is forgotten.
        self.last_changes.retain(|member, (_, at)| {
            let is_alive = at.elapsed() < NATS_GROUP_MEMBER_TIMEOUT;
            is_alive || *member == self.options.member
        });
        members.retain(|member, _| self.last_changes.contains_key(member));
        *members.entry(self.options.member.clone()).or_default() += 1;
        let mut owned = BTreeSet::new();
        let mut previous = std::mem::take(owners);
        let turns = members.keys().cycle();
        for (partition, next) in partitions.iter().zip(turns) {
            let name = partition.to_string();
            let owner = previous.remove(&name);
            match owner.filter(|owner| members.contains_key(owner)) {
                Some(owner) if owner != self.options.member => {
                    owners.insert(name, owner);
                }
                _ if *next == self.options.member
                    && (self.owned.contains(partition) || !unanswered.contains(partition)) =>
                {
                    owners.insert(name, self.options.member.clone());
                    owned.insert(partition.clone());
                }
                _ => {}
            }
        }
        owned
    }
}

/// Returns whether a member of the group sends heartbeats. Takes two of their intervals, unless the
/// group is empty.
pub(in crate::broker::nats) async fn has_live_member(
    bucket: &KvBucket,
    group: &str,
) -> Result<bool, Error> {
    let members = async || {
        let store = bucket.open().await?;
        let value = bucket.checked(store.get(group_key(group)).await)?;
        let state: Option<GroupState> = value.and_then(|it| serde_json::from_slice(&it).ok());
        Ok::<_, Error>(state.unwrap_or_default().members)
    };
    let before = members().await?;
    if before.is_empty() {
        return Ok(false);
    }
    tokio::time::sleep(2 * NATS_HEARTBEAT_INTERVAL).await;
    let after = members().await?;
    Ok(after
        .iter()
        .any(|(member, counter)| before.get(member) != Some(counter)))
}

fn group_key(group: &str) -> String {
    format!("group.{}", kv::escape_key(group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::nats::{Cluster, Login};
    use crate::health::Health;

    fn member(name: &str) -> GroupMember {
        let cluster = Cluster {
            name: "edge".into(),
            deployment: "d".into(),
            urls: vec!["nats://127.0.0.1:1".to_owned()],
            domain: None,
            login: Login::Anonymous,
            ca: None,
            client_certificate: None,
        };
        let options = SourceOptions {
            group: "g".to_owned(),
            topics: Vec::new(),
            member: name.to_owned(),
            fetched_bytes_max: 1 << 24,
            reads_schedules: false,
        };
        let connection = Rc::new(Connection::new(&cluster, Health::new().register("nats")));
        GroupMember::new(&connection, options)
    }

    fn partitions(count: usize) -> Vec<Partition> {
        (0..count)
            .map(|index| Partition::new(format!("S:p{index}"), 0))
            .collect()
    }

    /// One step of a member, without a server. Returns how many partitions it owns.
    fn step(member: &mut GroupMember, state: &mut GroupState, partitions: &[Partition]) -> usize {
        step_without(member, state, partitions, &[])
    }

    /// A step in which the streams of some partitions do not answer.
    fn step_without(
        member: &mut GroupMember,
        state: &mut GroupState,
        partitions: &[Partition],
        silent: &[Partition],
    ) -> usize {
        let unanswered = silent.iter().cloned().collect();
        member.track_members(state);
        member.owned = member.assign(state, partitions, &unanswered);
        member.owned.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_of_a_silent_stream_stays_with_its_owner_and_is_not_taken() {
        let (mut one, mut two) = (member("a"), member("b"));
        let (mut state, all) = (GroupState::default(), partitions(3));
        let silent = &all[..1];
        assert_eq!(step_without(&mut one, &mut state, &all, silent), 2);
        assert_eq!(step(&mut one, &mut state, &all), 3);
        assert_eq!(step_without(&mut one, &mut state, &all, silent), 3);
        assert_eq!(step_without(&mut two, &mut state, &all, silent), 0);
        assert_eq!(step_without(&mut one, &mut state, &all, silent), 2);
        assert!(one.owned.contains(&all[0]), "its owner keeps it");
        assert_eq!(step(&mut two, &mut state, &all), 1, "the others move");
    }

    #[tokio::test(start_paused = true)]
    async fn members_share_partitions_evenly_and_never_own_the_same_one() {
        let (mut one, mut two) = (member("a"), member("b"));
        let (mut state, all) = (GroupState::default(), partitions(5));
        assert_eq!(step(&mut one, &mut state, &all), 5);
        assert_eq!(
            step(&mut two, &mut state, &all),
            0,
            "the owner has released nothing yet"
        );
        assert_eq!(step(&mut one, &mut state, &all), 3);
        assert_eq!(step(&mut two, &mut state, &all), 2);
        assert!(one.owned.is_disjoint(&two.owned));
        assert_eq!(
            step(&mut one, &mut state, &all),
            3,
            "the assignment is stable"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_member_is_removed_and_rejoins_as_a_new_one() {
        let (mut one, mut two) = (member("a"), member("b"));
        let (mut state, all) = (GroupState::default(), partitions(2));
        step(&mut one, &mut state, &all);
        step(&mut two, &mut state, &all);
        tokio::time::advance(NATS_GROUP_MEMBER_TIMEOUT / 2).await;
        assert_eq!(step(&mut two, &mut state, &all), 0);
        tokio::time::advance(NATS_GROUP_MEMBER_TIMEOUT / 2).await;
        assert_eq!(step(&mut two, &mut state, &all), 2);
        assert_eq!(
            step(&mut one, &mut state, &all),
            0,
            "it is a new member now"
        );
        assert_eq!(step(&mut two, &mut state, &all), 1);
    }
}
