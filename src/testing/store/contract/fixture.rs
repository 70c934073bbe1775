//! The fixture of one case: its own shard, and the calls of the port with one request each.

use super::StoreUnderTest;
use crate::encryption::StoredId;
use crate::model::{
    Cursor, Lease, LeaseToken, Offset, Progress, SessionId, ShardId, Slice, SourceIdentity,
    Timestamp, Watermark, WorkerEntry,
};
use crate::run::{Run, RunName, RunSummary};
use crate::store::{
    Acquire, Acquired, AdminStore, Advance, Advanced, Append, AppendEpoch, Appended, CopyStore,
    Fetch, Heartbeat, Hold, IdChange, IdChangeKind, Lineage, List, Listed, NewShard, Opened,
    OutcomeCounts, Quarantine, ReplaceRuns, Replaced, Restore, Restored, RunEntry, SessionEnd,
    SessionHeartbeat, ShardPosition, Store, StoredShard, Tail, TailRun, Tailed,
};
use bytes::Bytes;
use std::time::Duration;

pub(crate) struct Fixture<'a> {
    pub(crate) subject: &'a dyn StoreUnderTest,
    pub(crate) shard: ShardId,
}

/// A due time by hour and millisecond. It is in the past of every store, so no claim is ahead of
/// the store's clock.
pub(super) fn due(hour: i64, millis: i64) -> Timestamp {
    Timestamp::from_millis((450_000 + hour) * 3_600_000 + millis)
}

pub(super) fn place(due: Timestamp, offset: u64) -> Cursor {
    Cursor::new(due, Offset(offset))
}

/// A run of messages at these places, which must be in order.
pub(crate) fn run_of(writer: &str, places: &[Cursor]) -> Run {
    let (first, last) = (places[0], places[places.len() - 1]);
    let offsets = || places.iter().map(|place| place.offset);
    let (least, greatest) = (
        offsets().min().unwrap_or_default(),
        offsets().max().unwrap_or_default(),
    );
    let slice = Slice::of(
        first.due,
        if first.due.is_at_once() {
            due(0, 0)
        } else {
            Timestamp::AT_ONCE
        },
    );
    Run {
        name: RunName::new(format!("{writer}-0-{:x}-{:x}", places.len(), least.0)),
        slice,
        summary: RunSummary {
            count: u32::try_from(places.len()).expect("a case has few messages"),
            first,
            last,
            least_offset: least,
            greatest_offset: greatest,
        },
        bytes: Bytes::from(format!("\u{0}bytes of {writer}\r\n")),
    }
}

pub(super) fn schedule(id: &str, place: Cursor) -> IdChange {
    IdChange::new(id, IdChangeKind::Schedule(place))
}

pub(super) fn cancel(id: &str) -> IdChange {
    IdChange::new(id, IdChangeKind::Cancel)
}

pub(super) fn listing(run: &Run) -> RunEntry {
    RunEntry {
        slice: run.slice,
        name: run.name.clone(),
        least_due: run.summary.least_due(),
    }
}

pub(super) fn key_of(run: &Run) -> (Slice, RunName) {
    (run.slice, run.name.clone())
}

pub(super) const HOUR: Duration = Duration::from_secs(3_600);

impl Fixture<'_> {
    /// The same shard in another store.
    pub(super) fn on<'b>(&self, subject: &'b dyn StoreUnderTest) -> Fixture<'b> {
        Fixture {
            subject,
            shard: self.shard.clone(),
        }
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.subject.store()
    }

    pub(super) fn survey(&self) -> &dyn CopyStore {
        self.subject.survey()
    }

    pub(super) fn admin(&self) -> &dyn AdminStore {
        self.subject.admin()
    }

    pub(super) fn lease(&self, token: u64) -> Lease {
        crate::store::lease(&self.shard, LeaseToken::for_test(token))
    }

    pub(super) fn new_shard(&self, watermark: u64, delivered: Progress) -> NewShard {
        let identity = SourceIdentity("topic id 1".into());
        NewShard {
            shard: self.shard.clone(),
            creates: true,
            identity,
            watermark: Watermark(watermark),
            delivered,
            hold: Watermark(0),
            possibly_delivered: Progress::START,
            pause: None,
        }
    }

    pub(super) async fn open(&self, birth: NewShard) -> Opened {
        self.store().open(&[birth]).await.unwrap().remove(0)
    }

    /// Creates the shard with the first offset `watermark` and nothing delivered.
    pub(super) async fn create_shard(&self, watermark: u64) {
        let opened = self.open(self.new_shard(watermark, Progress::START)).await;
        assert!(matches!(opened, Opened::Created(_)), "{opened:?}");
    }

    pub(super) fn append_request(
        &self,
        from: u64,
        to: u64,
        runs: &[&Run],
        changes: &[IdChange],
    ) -> Append {
        Append {
            shard: self.shard.clone(),
            epoch: AppendEpoch {
                process: 1,
                number: 1,
            },
            identity: SourceIdentity("topic id 1".into()),
            from: Watermark(from),
            to: Watermark(to),
            runs: runs.iter().map(|&run| run.clone()).collect(),
            changes: changes.to_vec(),
            pause: None,
        }
    }

    pub(super) async fn append(
        &self,
        from: u64,
        to: u64,
        runs: &[&Run],
        changes: &[IdChange],
    ) -> Appended {
        self.store()
            .append(&[self.append_request(from, to, runs, changes)])
            .await
            .unwrap()
            .remove(0)
    }

    pub(super) async fn append_runs(&self, from: u64, to: u64, runs: &[&Run]) {
        assert_eq!(
            self.append(from, to, runs, &[]).await,
            Appended::Done {
                cancelled: 0,
                missed: 0,
                told: Vec::new(),
            }
        );
    }

    pub(super) async fn state_if_created(&self) -> Option<StoredShard> {
        self.store()
            .state(std::slice::from_ref(&self.shard))
            .await
            .unwrap()
            .remove(0)
    }

    /// Also checks that the position check returns the same positions.
    pub(super) async fn state(&self) -> StoredShard {
        let state = self.state_if_created().await.expect("the shard exists");
        let ShardPosition {
            watermark,
            delivered,
            ..
        } = self.position().await.expect("the shard exists");
        assert_eq!((state.watermark, state.delivered), (watermark, delivered));
        state
    }

    pub(super) async fn position(&self) -> Option<ShardPosition> {
        self.store()
            .positions(std::slice::from_ref(&self.shard))
            .await
            .unwrap()
            .remove(0)
    }

    /// Also checks that list and tail return the same lineage.
    pub(super) async fn history(&self) -> Lineage {
        let ShardPosition {
            watermark,
            lineage: history,
            ..
        } = self.position().await.expect("the shard exists");
        let listed = self.list(Timestamp::AT_ONCE, Timestamp::AT_ONCE, 1).await;
        assert!(
            matches!(listed, Listed::Runs { lineage: told, .. } if told == history),
            "{listed:?}"
        );
        let tailed = self.tail(watermark.0, Timestamp::AT_ONCE, 1).await;
        assert_eq!(
            tailed,
            Tailed::Runs {
                watermark,
                complete_to: watermark,
                lineage: history,
                hold: Hold::Until(Watermark(0)),
                pause: None,
                runs: Vec::new()
            }
        );
        history
    }

    pub(super) async fn acquire(&self, token: u64) -> Acquired {
        self.acquire_for("topic id 1", token, None).await
    }

    /// Acquires the lease for a worker that reads this source.
    pub(super) async fn acquire_for(
        &self,
        identity: &str,
        token: u64,
        ended: Option<u64>,
    ) -> Acquired {
        let request = Acquire {
            lease: self.lease(token),
            identity: SourceIdentity(identity.into()),
            ended_holder: ended.map(LeaseToken::for_test),
        };
        self.store().acquire(&[request]).await.unwrap().remove(0)
    }

    pub(super) async fn take_lease(&self, token: u64) {
        let acquired = self.acquire(token).await;
        assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    }

    /// The store's time, from the answer to a heartbeat.
    pub(super) async fn store_time(&self) -> Timestamp {
        let entry = WorkerEntry::for_test("asks for the time");
        let session = SessionId::first(entry.id(), 1);
        let (heartbeats, answered, length) = (1, 0, HOUR);
        let request = SessionHeartbeat {
            session,
            heartbeats,
            answered,
            length,
            entry,
        };
        let heartbeat = self.store().heartbeat(&request).await.unwrap();
        let end = SessionEnd {
            session,
            heartbeats: None,
        };
        self.store().end_sessions(&[end]).await.unwrap();
        match heartbeat {
            Heartbeat::Renewed { now, .. } => now,
            other => panic!("no session forbids it: {other:?}"),
        }
    }

    /// Acquires the lease of a token whose session has ended.
    pub(super) async fn take_over(&self, token: u64, ended: u64) {
        let acquired = self.acquire_for("topic id 1", token, Some(ended)).await;
        assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
    }

    pub(super) async fn is_held_by(&self, token: u64) -> bool {
        let advanced = self.advance(self.empty_advance(token)).await;
        matches!(advanced, Advanced::Done { .. })
    }

    pub(super) async fn holder(&self) -> Option<LeaseToken> {
        let shards = [self.shard.clone()];
        self.survey().holders(&shards).await.unwrap().remove(0)
    }

    pub(super) async fn release(&self, token: u64) {
        self.store().release(&[self.lease(token)]).await.unwrap();
    }

    pub(super) async fn list(&self, from: Timestamp, until: Timestamp, limit: usize) -> Listed {
        self.store()
            .list(&[List {
                shard: self.shard.clone(),
                from,
                until,
                limit,
            }])
            .await
            .unwrap()
            .remove(0)
    }

    /// All runs that are listed, and the watermark.
    pub(super) async fn list_all(&self) -> (Watermark, Vec<RunEntry>) {
        match self.list(Timestamp::AT_ONCE, Timestamp::MAX, 10_000).await {
            Listed::Runs {
                watermark,
                runs,
                has_more: false,
                ..
            } => (watermark, runs),
            other => panic!("expected fewer runs than the limit: {other:?}"),
        }
    }

    pub(super) async fn fetch(&self, runs: &[&Run]) -> Vec<Option<Bytes>> {
        let runs = runs.iter().map(|run| key_of(run)).collect();
        self.store()
            .fetch(&[Fetch {
                shard: self.shard.clone(),
                runs,
            }])
            .await
            .unwrap()
            .remove(0)
    }

    pub(super) async fn tail(&self, after: u64, until: Timestamp, limit: usize) -> Tailed {
        self.tail_within(after, until, limit, usize::MAX).await
    }

    pub(super) async fn tail_within(
        &self,
        after: u64,
        until: Timestamp,
        limit: usize,
        bytes_max: usize,
    ) -> Tailed {
        self.store()
            .tail(&[Tail {
                shard: self.shard.clone(),
                after: Watermark(after),
                until,
                limit,
                bytes_max,
            }])
            .await
            .unwrap()
            .remove(0)
    }

    /// The watermark, the watermark that the reply reaches, and the runs by batch and name.
    pub(super) async fn tail_runs(
        &self,
        after: u64,
        until: Timestamp,
        limit: usize,
    ) -> (u64, u64, Vec<TailRun>) {
        match self.tail(after, until, limit).await {
            Tailed::Runs {
                watermark,
                complete_to: seen,
                runs,
                ..
            } => (watermark.0, seen.0, runs),
            other => panic!("the tail should reach back to {after}: {other:?}"),
        }
    }

    /// An advance without any change.
    pub(super) fn empty_advance(&self, token: u64) -> Advance {
        Advance {
            lease: self.lease(token),
            delivered: None,
            delivered_before: Progress::START,
            outcomes: OutcomeCounts::default(),
            occurrences: 0,
            deletes: Vec::new(),
            delivered_ids: Vec::new(),
            claimed_answers: vec![],
            delivered_answers: vec![],
            claim: None,
            seen: Watermark(0),
            clock_skew_max: Duration::from_secs(2),
        }
    }

    pub(super) async fn advance(&self, advance: Advance) -> Advanced {
        self.store().advance(&[advance]).await.unwrap().remove(0)
    }

    /// Claims. Returns the cancelled places inside the claim.
    pub(super) async fn claim(&self, token: u64, claim: Progress) -> Vec<Cursor> {
        match self
            .advance(Advance {
                claim: Some(claim),
                ..self.empty_advance(token)
            })
            .await
        {
            Advanced::Done { cancelled, .. } => cancelled,
            other => panic!("the claim should be accepted: {other:?}"),
        }
    }

    pub(super) async fn acknowledge(&self, token: u64, delivered: Progress) {
        let watermark = self.state().await.watermark;
        let advanced = self
            .advance(Advance {
                delivered: Some(delivered),
                ..self.empty_advance(token)
            })
            .await;
        assert_eq!(
            advanced,
            Advanced::Done {
                watermark,
                cancelled: Vec::new(),
                effects: vec![]
            }
        );
    }

    /// Moves the delivered pair, reports the outcomes since the other pair, and deletes runs.
    pub(super) async fn acknowledge_outcomes(
        &self,
        (since, to): (Progress, Progress),
        tally: OutcomeCounts,
        deletes: &[&Run],
    ) -> Advanced {
        let deletes = deletes.iter().map(|run| key_of(run)).collect();
        self.advance(Advance {
            delivered: Some(to),
            delivered_before: since,
            outcomes: tally,
            deletes,
            ..self.empty_advance(1)
        })
        .await
    }

    pub(super) async fn quarantine(&self, token: u64, runs: &[&Run]) -> usize {
        let runs = runs.iter().map(|run| key_of(run)).collect();
        self.store()
            .quarantine(&[Quarantine {
                lease: self.lease(token),
                runs,
            }])
            .await
            .unwrap()
            .remove(0)
    }

    pub(super) async fn restore(&self, quarantined: &Run, runs: &[&Run]) -> Restored {
        let request = Restore {
            shard: self.shard.clone(),
            quarantined: quarantined.name.clone(),
            runs: runs.iter().map(|run| (*run).clone()).collect(),
        };
        self.survey().restore(&request).await.unwrap()
    }

    /// Rewrites with the current rewrite count.
    pub(super) async fn rewrite(&self, token: u64, inputs: &[&Run], outputs: &[&Run]) -> Replaced {
        let known = self.rewrite_count().await;
        self.rewrite_with_count(token, known, inputs, outputs).await
    }

    async fn rewrite_count(&self) -> u64 {
        let position = self.position().await;
        position.map_or(0, |position| position.lineage.replacements)
    }

    /// Rewrites with the current rewrite count, and renames ids.
    pub(super) async fn rewrite_with_ids(
        &self,
        input: &Run,
        output: &Run,
        renamed_ids: Vec<(StoredId, Cursor)>,
    ) -> Replaced {
        let request = ReplaceRuns {
            lease: self.lease(1),
            known_replacements: self.rewrite_count().await,
            inputs: vec![key_of(input)],
            outputs: vec![output.clone()],
            renamed_ids,
        };
        self.store()
            .replace_runs(&[request])
            .await
            .unwrap()
            .remove(0)
    }

    pub(super) async fn rewrite_with_count(
        &self,
        token: u64,
        after: u64,
        inputs: &[&Run],
        outputs: &[&Run],
    ) -> Replaced {
        let (inputs, outputs) = (
            inputs.iter().map(|run| key_of(run)).collect(),
            outputs.iter().map(|run| (*run).clone()).collect(),
        );
        self.store()
            .replace_runs(&[ReplaceRuns {
                lease: self.lease(token),
                known_replacements: after,
                inputs,
                outputs,
                renamed_ids: Vec::new(),
            }])
            .await
            .unwrap()
            .remove(0)
    }

    /// The answer of a query. `None`: the shard does not exist.
    pub(super) async fn queried_state(&self) -> Option<StoredShard> {
        self.survey()
            .states(std::slice::from_ref(&self.shard))
            .await
            .unwrap()
            .remove(0)
    }
}
