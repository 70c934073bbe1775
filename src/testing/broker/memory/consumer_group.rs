//! One consumer group: its members, their partitions and the commits. Partitions move only as far
//! as balance requires.

use crate::broker::{Event, OffsetCommit};
use crate::model::{Offset, Partition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Default)]
pub(super) struct Group {
    members: BTreeMap<u64, Member>,
    commits: BTreeMap<Partition, (Offset, String)>,
}

#[derive(Default)]
struct Member {
    topics: Vec<String>,
    owned: BTreeSet<Partition>,
    /// Events that the member has not read yet.
    events: VecDeque<Event>,
    /// True if the member has received an answer since it joined or lost partitions.
    knows_its_share: bool,
    is_dead: bool,
    /// True if other members own its partitions and it has not been notified.
    is_expired: bool,
}

impl Group {
    pub(super) fn join(&mut self, id: u64, topics: &[String]) {
        self.members.insert(
            id,
            Member {
                topics: topics.to_vec(),
                ..Member::default()
            },
        );
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.members.remove(&id);
    }

    pub(super) fn has_members(&self) -> bool {
        self.members.values().any(|member| !member.is_dead)
    }

    /// Its partitions stay assigned until [`Group::expire_dead`].
    pub(super) fn mark_dead(&mut self, id: u64) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_dead = true;
        }
    }

    pub(super) fn expire_dead(&mut self) {
        self.members.retain(|_, member| !member.is_dead);
    }

    pub(super) fn next_event(&mut self, id: u64) -> Option<Event> {
        self.members.get_mut(&id)?.events.pop_front()
    }

    /// Returns `false` if another member owns one of the partitions.
    pub(super) fn commit_all(&mut self, id: u64, commits: &[OffsetCommit]) -> bool {
        let owns = |commit: &OffsetCommit| {
            self.members
                .get(&id)
                .is_some_and(|member| member.owned.contains(&commit.partition))
        };
        let owns_all = commits.iter().all(owns);
        if owns_all {
            self.commit_unchecked(commits);
        }
        owns_all
    }

    /// Commits without a check of the owner.
    pub(super) fn commit_unchecked(&mut self, commits: &[OffsetCommit]) {
        for OffsetCommit {
            partition,
            offset,
            metadata,
        } in commits
        {
            self.commits
                .insert(partition.clone(), (*offset, metadata.clone()));
        }
    }

    /// Expires the lease of the `nth` member. Its partitions move, but it continues until it is
    /// notified.
    pub(super) fn expire_silently(&mut self, nth: usize) {
        let nth = nth % self.members.len().max(1);
        self.members
            .values_mut()
            .skip(nth)
            .take(1)
            .for_each(|member| member.is_expired = true);
    }

    pub(super) fn notify_expired(&mut self) {
        for member in self.members.values_mut().filter(|member| member.is_expired) {
            let lost: Vec<_> = std::mem::take(&mut member.owned).into_iter().collect();
            member
                .events
                .extend((!lost.is_empty()).then_some(Event::Revoked(lost)));
            (member.is_expired, member.knows_its_share) = (false, false);
        }
    }

    /// Commits as part of a transaction, for a group without members.
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

    /// Assigns the partitions that exist now. `partitions` lists the partitions of topics.
    pub(super) fn rebalance(&mut self, partitions: impl Fn(&[String]) -> Vec<Partition>) {
        let all: BTreeSet<Partition> = self
            .members
            .values()
            .flat_map(|member| partitions(&member.topics))
            .collect();
        // As in Kafka, a member of which no topic exists receives no answer.
        let waits = |member: &Member| partitions(&member.topics).is_empty();
        let mut free = all.clone();
        let share = all.len().div_ceil(
            self.members
                .values()
                .filter(|member| !member.is_expired)
                .count()
                .max(1),
        );
        let mut lost: BTreeMap<u64, Vec<Partition>> = BTreeMap::new();
        for (id, member) in self
            .members
            .iter_mut()
            .filter(|(_, member)| !member.is_expired)
        {
            let keeps: BTreeSet<Partition> = member
                .owned
                .iter()
                .filter(|partition| all.contains(*partition))
                .take(share)
                .cloned()
                .collect();
            free.retain(|partition| !keeps.contains(partition));
            lost.insert(*id, member.owned.difference(&keeps).cloned().collect());
            member.owned = keeps;
        }
        let mut gained: BTreeMap<u64, Vec<Partition>> = BTreeMap::new();
        for partition in free {
            let wants = |member: &Member| {
                !member.is_dead
                    && !member.is_expired
                    && member
                        .topics
                        .iter()
                        .any(|topic| **topic == *partition.topic)
            };
            let least = self
                .members
                .iter_mut()
                .filter(|(_, member)| wants(member))
                .min_by_key(|(id, member)| (member.owned.len(), **id));
            if let Some((id, member)) = least {
                member.owned.insert(partition.clone());
                gained.entry(*id).or_default().push(partition);
            }
        }
        for (id, member) in self
            .members
            .iter_mut()
            .filter(|(_, member)| !member.is_expired)
        {
            let lost = lost
                .remove(id)
                .filter(|lost| !lost.is_empty())
                .map(Event::Revoked);
            member.knows_its_share &= lost.is_none();
            let none = (!member.knows_its_share && !waits(member)).then(Vec::new);
            let gained = gained.remove(id).or(none).map(Event::Assigned);
            member.knows_its_share |= gained.is_some();
            member.events.extend(lost.into_iter().chain(gained));
        }
    }
}
