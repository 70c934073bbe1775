//! Random call sequences have the same outcomes on the memory store and on another store.
//!
//! Because of this, the results of the simulation also hold for the other store.

use super::run_of;
use crate::clock::WallClock;
use crate::encryption::{KeyRing, StoredId, test_rings};
use crate::model::{
    Cursor, Lease, LeaseToken, Offset, Partition, Pause, PauseState, Progress, SessionId, ShardId,
    Slice, SourceIdentity, Timestamp, Watermark, WorkerEntry,
};
use crate::run::{Run, RunName};
use crate::store::{
    Acquire, Acquired, Advance, Advanced, Append, AppendEpoch, Fetch, Heartbeat, IdChange,
    IdChangeKind, Lineage, List, Listed, NewShard, OutcomeCounts, Quarantine, ReplaceRuns,
    SessionEnd, SessionHeartbeat, ShardStore, Store, Tail,
};
use crate::testing::store::memory::MemoryStore;
use async_trait::async_trait;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// One call. Its values are relative to the sequence so far.
#[derive(Clone, Debug)]
enum StoreCall {
    Open {
        watermark: u64,
        delivered: Pair,
        hold: u64,
    },
    EndHold,
    Append {
        ahead: i64,
        messages: Vec<Vec<Message>>,
        cancels: Vec<u8>,
        gap: u64,
        is_replay: bool,
    },
    Acquire {
        token: u8,
        ended: Option<u8>,
    },
    Release {
        token: u8,
    },
    List {
        from: Due,
        until: Due,
        limit: usize,
    },
    Fetch {
        runs: Vec<Index>,
    },
    Tail {
        after: i64,
        until: Due,
        limit: usize,
        bytes_max: usize,
    },
    Advance {
        token: u8,
        delivered: Option<Pair>,
        since: Option<Pair>,
        tally: u64,
        deletes: Vec<Index>,
        ids: Vec<(u8, Index)>,
        claim: Option<Pair>,
        seen: u64,
    },
    Quarantine {
        token: u8,
        runs: Vec<Index>,
    },
    Rewrite {
        token: u8,
        inputs: Vec<Index>,
        messages: Vec<Vec<Message>>,
        knows_all: bool,
    },
    Enrol {
        worker: u8,
        lasting: bool,
    },
    Resign {
        worker: u8,
    },
    Erase,
}

/// A due time as an hour. Below 0: at once. The last one lies far ahead of any clock.
type Due = i64;
type Pair = (Due, u64, u64);
/// Hour of the due time, millisecond in it, and an id.
type Message = (Due, i64, Option<u8>);

const FAR: Due = 6;

fn timestamp(due: Due, millis: i64) -> Timestamp {
    match due {
        FAR => Timestamp::from_millis(9_000_000_000_000 + millis),
        due if due < 0 => Timestamp::AT_ONCE,
        due => Timestamp::from_millis(due * 3_600_000 + millis),
    }
}

/// Some batches end with a control record, and few of these pause the shard.
fn pause(to: u64) -> Option<Pause> {
    let is_paused = to % 35 == 3;
    let state = PauseState {
        after: Watermark(to),
        is_paused,
        since: timestamp(0, 0),
        until: timestamp(1, 0),
        earlier: Duration::ZERO,
        at: timestamp(1, 0),
        note: "n".into(),
    };
    (is_paused || to.is_multiple_of(5)).then(|| state.into())
}

fn claim((due, offset, watermark): Pair) -> Progress {
    Progress::new(
        Cursor::new(timestamp(due, 1), Offset(offset)),
        Watermark(watermark),
    )
}

fn call_sequences() -> impl Strategy<Value = Vec<StoreCall>> {
    let due = || -1..=FAR;
    let pair = move || (due(), 0..40u64, 0..40u64);
    let message = (due(), 0..3i64, prop::option::of(0..4u8));
    let messages = prop::collection::vec(prop::collection::vec(message, 1..4), 0..4);
    let runs = || prop::collection::vec(any::<Index>(), 0..4);
    let ids = prop::collection::vec((0..4u8, any::<Index>()), 0..3);
    let token = || prop_oneof![4 => Just(1u8), 1 => Just(2u8)];
    let lasting = || prop::bool::weighted(0.8);
    let call = prop_oneof![
        2 => (0..3u64, pair(), 0..20u64).prop_map(|(watermark, delivered, hold)| StoreCall::Open { watermark, delivered, hold }),
        1 => Just(StoreCall::EndHold),
        8 => (prop_oneof![6 => Just(0), 1 => -3..3i64], messages.clone(), prop::collection::vec(0..4u8, 0..3), 0..3u64, any::<bool>())
            .prop_map(|(ahead, messages, cancels, gap, is_replay)| StoreCall::Append { ahead, messages, cancels, gap, is_replay }),
        3 => (token(), prop::option::of(token())).prop_map(|(token, ended)| StoreCall::Acquire { token, ended }),
        1 => token().prop_map(|token| StoreCall::Release { token }),
        3 => (due(), due(), 0..9usize).prop_map(|(from, until, limit)| StoreCall::List { from, until, limit }),
        2 => runs().prop_map(|runs| StoreCall::Fetch { runs }),
        3 => (-9..2i64, due(), 0..9usize, prop::sample::select(&[1, 400, usize::MAX]))
            .prop_map(|(after, until, limit, bytes_max)| StoreCall::Tail { after, until, limit, bytes_max }),
        6 => (token(), prop::option::of(pair()), (prop::option::of(pair()), 0..3u64), runs(), ids, (prop::option::of(pair()), 0..20u64))
            .prop_map(|(token, delivered, (since, tally), deletes, ids, (claim, seen))| StoreCall::Advance { token, delivered, since, tally, deletes, ids, claim, seen }),
        1 => (token(), runs()).prop_map(|(token, runs)| StoreCall::Quarantine { token, runs }),
        2 => (token(), runs(), messages, prop::bool::weighted(0.8))
            .prop_map(|(token, inputs, messages, knows_all)| StoreCall::Rewrite { token, inputs, messages, knows_all }),
        2 => (0..3u8, lasting()).prop_map(|(worker, lasting)| StoreCall::Enrol { worker, lasting }),
        1 => (0..3u8).prop_map(|worker| StoreCall::Resign { worker }),
        1 => Just(StoreCall::Erase),
    ];
    prop::collection::vec(call, 1..40).prop_map(|mut calls| {
        calls.insert(
            0,
            StoreCall::Open {
                watermark: 0,
                delivered: (-1, u64::MAX, 0),
                hold: 8,
            },
        );
        calls.insert(
            1,
            StoreCall::Acquire {
                token: 1,
                ended: None,
            },
        );
        calls
    })
}

/// A ring of one key and plain data, in either order.
fn ring(is_plain_first: bool) -> KeyRing {
    let key = test_rings::line("a", 1);
    test_rings::ring(&if is_plain_first {
        format!("plain\n{key}")
    } else {
        format!("{key}plain")
    })
}

/// The runs and messages that a sequence has stored so far.
struct Sequence {
    shard: ShardId,
    stored_runs: Vec<Run>,
    stored_places: Vec<Cursor>,
}

impl Sequence {
    /// An id in the form of one of two processes, which write it under different names.
    fn id(&self, id: u8) -> StoredId {
        ring(self.stored_places.len().is_multiple_of(2)).stored_id(&self.shard, &format!("id{id}"))
    }

    fn lease(&self, token: u8) -> Lease {
        crate::store::lease(&self.shard, LeaseToken::for_test(token.into()))
    }

    fn acquire(&self, token: u8, ended: Option<u8>) -> Acquire {
        Acquire {
            lease: self.lease(token),
            identity: SourceIdentity("id".into()),
            ended_holder: ended.map(|token| LeaseToken::for_test(token.into())),
        }
    }

    /// All sequences share the list of live workers, so each has its own workers.
    fn heartbeat(&self, number: u8) -> SessionHeartbeat {
        let name = format!("random {} {number}", self.shard.partition.index);
        let entry = WorkerEntry::for_test(&name);
        let worker = entry.id();
        SessionHeartbeat {
            session: SessionId { worker, number: 1 },
            heartbeats: 1,
            answered: 0,
            length: Duration::ZERO,
            entry,
        }
    }

    fn keys_of(&self, picks: &[Index]) -> Vec<(Slice, RunName)> {
        let runs = picks
            .iter()
            .filter(|_| !self.stored_runs.is_empty())
            .map(|pick| pick.get(&self.stored_runs));
        runs.map(|run| (run.slice, run.name.clone())).collect()
    }

    fn place(&self, pick: Index) -> Cursor {
        if self.stored_places.is_empty() {
            Cursor::START
        } else {
            *pick.get(&self.stored_places)
        }
    }

    fn append(
        &mut self,
        from: u64,
        messages: &[Vec<Message>],
        (cancels, kind): (&[u8], IdChangeKind),
        gap: u64,
    ) -> Append {
        let mut changes: Vec<IdChange> = cancels
            .iter()
            .map(|id| IdChange::new(self.id(*id), kind))
            .collect();
        let (runs, to) = self.new_runs(from, messages, &mut changes);
        // Each request has an offset of its own inside the batch.
        let to = to.max(from + changes.len() as u64);
        for (change, offset) in changes.iter_mut().zip(from..) {
            match change.kind {
                IdChangeKind::Cancel if matches!(offset % 4, 1 | 2) => {
                    let (by, due) = (Offset(offset), timestamp((offset % 8) as Due, 1));
                    change.kind = IdChangeKind::Reschedule { by, due };
                }
                IdChangeKind::Schedule(place) if place.offset.0 % 5 == 0 => {
                    change.kind = IdChangeKind::Retry(place);
                }
                IdChangeKind::Schedule(place) if place.offset.0 % 5 == 2 => {
                    let of = Offset(place.offset.0.saturating_sub(offset % 4));
                    change.kind = IdChangeKind::TakePlace { place, of };
                }
                IdChangeKind::Schedule(place) if place.offset.0 % 5 == 1 => {
                    let timestamp = timestamp((offset % 6) as Due, 0);
                    change.kind = IdChangeKind::KeepFirst { place, timestamp };
                }
                _ => {}
            }
            change.request = (offset % 2 == 0).then_some(Offset(offset));
            change.changes_claimed = offset % 3 == 0;
            change.tells_effect = offset % 3 == 1;
        }
        // Several appends share an epoch, and epochs come back.
        let reading = AppendEpoch {
            process: 1,
            number: self.stored_places.len() as u64 / 8 % 5,
        };
        Append {
            shard: self.shard.clone(),
            epoch: reading,
            identity: SourceIdentity("id".into()),
            from: Watermark(from),
            to: Watermark(to + gap),
            runs,
            changes,
            pause: pause(to),
        }
    }

    /// New runs from this offset on, and the next offset.
    fn new_runs(
        &mut self,
        from: u64,
        messages: &[Vec<Message>],
        changes: &mut Vec<IdChange>,
    ) -> (Vec<Run>, u64) {
        let (mut offset, mut runs) = (from, Vec::new());
        for some in messages {
            let mut places = Vec::new();
            for (due, millis, id) in some {
                let place = Cursor::new(timestamp(*due, *millis), Offset(offset));
                changes
                    .extend(id.map(|id| IdChange::new(self.id(id), IdChangeKind::Schedule(place))));
                places.push(place);
                offset += 1;
            }
            places.sort();
            self.stored_places.extend(&places);
            let number = self.stored_runs.len() + runs.len();
            let run = run_of(&format!("w{number}"), &places);
            // Some runs are encrypted with a key of `ring`, and others are not.
            let key = ring(false)
                .writer()
                .filter(|_| !number.is_multiple_of(3))
                .cloned();
            let name = key.map(|key| RunName::new(format!("{}-{key}", run.name)));
            runs.push(Run {
                name: name.unwrap_or(run.name.clone()),
                ..run
            });
        }
        self.stored_runs.extend(runs.iter().cloned());
        (runs, offset)
    }
}

fn lease_length(lasting: bool) -> Duration {
    Duration::from_secs(if lasting { 3_600 } else { 0 })
}

/// The new data of a call.
#[derive(Default)]
struct NewData {
    appends: Vec<Append>,
    outputs: Vec<Run>,
    after: u64,
}

/// Makes the call. Returns its outcome as text, without the store's time.
async fn outcome(
    store: &dyn Store,
    call: &StoreCall,
    sequence: &Sequence,
    new: &NewData,
    (watermark, known): (u64, Progress),
) -> String {
    let shard = sequence.shard.clone();
    match call {
        StoreCall::Open {
            watermark,
            delivered,
            hold,
        } => {
            let watermark = Watermark(*watermark);
            let birth = NewShard {
                shard,
                creates: true,
                identity: SourceIdentity("id".into()),
                watermark,
                delivered: claim(*delivered),
                hold: Watermark(*hold),
                possibly_delivered: claim(*delivered),
                pause: None,
            };
            format!("{:?}", store.open(&[birth]).await)
        }
        StoreCall::EndHold => format!("{:?}", store.end_holds(&[shard]).await),
        StoreCall::Append { .. } => format!("{:?}", store.append(&new.appends).await),
        StoreCall::Acquire { .. }
        | StoreCall::Release { .. }
        | StoreCall::Enrol { .. }
        | StoreCall::Resign { .. } => lease_outcome(store, call, sequence).await,
        StoreCall::List { .. } | StoreCall::Fetch { .. } | StoreCall::Tail { .. } => {
            read_outcome(store, call, sequence, watermark).await
        }
        StoreCall::Advance { .. } | StoreCall::Quarantine { .. } | StoreCall::Rewrite { .. } => {
            holder_outcome(store, call, sequence, new, known).await
        }
        StoreCall::Erase => format!("{:?}", store.erase(&[shard]).await),
    }
}

/// Makes a call with which the holder of the lease changes the shard.
async fn holder_outcome(
    store: &dyn Store,
    call: &StoreCall,
    sequence: &Sequence,
    new: &NewData,
    known: Progress,
) -> String {
    let runs = |picks: &[Index]| sequence.keys_of(picks);
    match call {
        StoreCall::Advance {
            token,
            delivered,
            since,
            tally,
            deletes,
            ids,
            claim: next,
            seen,
        } => {
            let advance = Advance {
                lease: sequence.lease(*token),
                delivered: delivered.map(claim),
                delivered_before: since.map_or(known, claim),
                outcomes: OutcomeCounts {
                    delivered: *tally,
                    cancelled: tally / 2,
                    dead_lettered: 0,
                    retried: tally % 2,
                },
                occurrences: tally / 3,
                deletes: runs(deletes),
                delivered_ids: ids
                    .iter()
                    .map(|(id, pick)| (sequence.id(*id), sequence.place(*pick)))
                    .collect(),
                claimed_answers: (0..64).map(Offset).collect(),
                delivered_answers: vec![Offset(*tally)],
                claim: next.map(claim),
                seen: Watermark(*seen),
                clock_skew_max: Duration::from_secs(2),
            };
            match store.advance(&[advance]).await.unwrap().remove(0) {
                Advanced::ClockAhead { watermark, .. } => format!("ahead {watermark}"),
                other => format!("{other:?}"),
            }
        }
        StoreCall::Quarantine { token, runs: picks } => {
            format!(
                "{:?}",
                store
                    .quarantine(&[Quarantine {
                        lease: sequence.lease(*token),
                        runs: runs(picks)
                    }])
                    .await
            )
        }
        StoreCall::Rewrite { token, inputs, .. } => {
            let rewrite = ReplaceRuns {
                lease: sequence.lease(*token),
                known_replacements: new.after,
                inputs: runs(inputs),
                outputs: new.outputs.clone(),
                renamed_ids: (inputs.iter().enumerate())
                    .map(|(id, pick)| (sequence.id(id as u8), sequence.place(*pick)))
                    .collect(),
            };
            format!("{:?}", store.replace_runs(&[rewrite]).await)
        }
        _ => unreachable!("a call of the holder of the lease"),
    }
}

/// Makes a call about leases or membership.
async fn lease_outcome(store: &dyn Store, call: &StoreCall, sequence: &Sequence) -> String {
    match call {
        StoreCall::Acquire { token, ended } => {
            let request = [sequence.acquire(*token, *ended)];
            match store.acquire(&request).await.unwrap().remove(0) {
                Acquired::Granted(state) => format!("{state:?}"),
                other => format!("{other:?}"),
            }
        }
        StoreCall::Release { token } => {
            format!("{:?}", store.release(&[sequence.lease(*token)]).await)
        }
        StoreCall::Enrol { worker, lasting } => {
            let request = SessionHeartbeat {
                length: lease_length(*lasting),
                ..sequence.heartbeat(*worker)
            };
            let heartbeat = store.heartbeat(&request).await.unwrap();
            let Heartbeat::Renewed { sessions, .. } = heartbeat else {
                panic!("it names no cluster: {heartbeat:?}")
            };
            let own = sessions
                .iter()
                .map(|session| session.id)
                .filter(|id| (0..3).any(|number| sequence.heartbeat(number).session == *id));
            format!("{:?}", own.collect::<Vec<_>>())
        }
        StoreCall::Resign { worker } => {
            let end = SessionEnd {
                session: sequence.heartbeat(*worker).session,
                heartbeats: None,
            };
            format!("{:?}", store.end_sessions(&[end]).await)
        }
        _ => unreachable!("a call about leases or membership"),
    }
}

/// Makes a call that only reads.
async fn read_outcome(
    store: &dyn Store,
    call: &StoreCall,
    sequence: &Sequence,
    watermark: u64,
) -> String {
    let shard = sequence.shard.clone();
    let runs = |picks: &[Index]| sequence.keys_of(picks);
    match call {
        StoreCall::List { from, until, limit } => {
            let list = List {
                shard,
                from: timestamp(*from, 1),
                until: timestamp(*until, 1),
                limit: *limit,
            };
            format!("{:?}", store.list(&[list]).await)
        }
        StoreCall::Fetch { runs: picks } => format!(
            "{:?}",
            store
                .fetch(&[Fetch {
                    shard,
                    runs: runs(picks)
                }])
                .await
        ),
        StoreCall::Tail {
            after,
            until,
            limit,
            bytes_max,
        } => {
            let after = Watermark(watermark.saturating_add_signed(*after));
            format!(
                "{:?}",
                store
                    .tail(&[Tail {
                        shard,
                        after,
                        until: timestamp(*until, 1),
                        limit: *limit,
                        bytes_max: *bytes_max,
                    }])
                    .await
            )
        }
        _ => unreachable!("a call that only reads"),
    }
}

/// Everything that the port shows of a shard. The lowest pending offset may be too low, so it is
/// only checked against the pending messages.
async fn visible_state(store: &dyn Store, sequence: &Sequence) -> String {
    let mut state = store
        .state(std::slice::from_ref(&sequence.shard))
        .await
        .unwrap()
        .remove(0);
    let all = List {
        shard: sequence.shard.clone(),
        from: Timestamp::AT_ONCE,
        until: Timestamp::MAX,
        limit: 1_000,
    };
    let mut listed = store.list(&[all]).await.unwrap().remove(0);
    if let Listed::Runs {
        lineage: history, ..
    } = &mut listed
    {
        // Not every store keeps it through a restart.
        *history = Lineage::default();
    }
    if let (Some(state), Listed::Runs { runs, .. }) = (&mut state, &listed) {
        let least = runs
            .iter()
            .map(|run| run.name.least_offset())
            .min()
            .unwrap_or(state.watermark.offset());
        assert!(state.lowest_pending <= least);
    }
    let runs = sequence
        .stored_runs
        .iter()
        .map(|run| (run.slice, run.name.clone()))
        .collect();
    let fetched = store
        .fetch(&[Fetch {
            shard: sequence.shard.clone(),
            runs,
        }])
        .await;
    format!("{state:?} {listed:?} {fetched:?}")
}

/// The effect of every id and cancelled place: cancels all ids and claims everything. Changes the
/// shard.
async fn hidden_state(store: &dyn Store, sequence: &Sequence) -> String {
    let known = store
        .state(std::slice::from_ref(&sequence.shard))
        .await
        .unwrap()
        .remove(0);
    let Some(watermark) = known.map(|state| state.watermark) else {
        return String::new();
    };
    let changes = (0..4_u8)
        .map(|id| IdChange::new(sequence.id(id), IdChangeKind::Cancel))
        .collect();
    let to = Watermark(watermark.0 + 1);
    // No other append had this epoch.
    let reading = AppendEpoch {
        process: 2,
        number: 0,
    };
    let shard = sequence.shard.clone();
    let cancels = Append {
        shard,
        epoch: reading,
        identity: SourceIdentity("id".into()),
        from: watermark,
        to,
        runs: Vec::new(),
        changes,
        pause: None,
    };
    let appended = store.append(&[cancels]).await.unwrap();
    for token in 1..3 {
        store.release(&[sequence.lease(token)]).await.unwrap();
    }
    store.acquire(&[sequence.acquire(1, None)]).await.unwrap();
    let claim = Some(claim((FAR - 1, u64::MAX, u64::MAX)));
    let skew_max = Duration::ZERO;
    let (since, tally) = (Progress::START, OutcomeCounts::default());
    let advance = Advance {
        lease: sequence.lease(1),
        delivered: None,
        delivered_before: since,
        outcomes: tally,
        occurrences: 0,
        deletes: Vec::new(),
        delivered_ids: Vec::new(),
        claimed_answers: vec![],
        delivered_answers: vec![],
        claim,
        seen: Watermark(0),
        clock_skew_max: skew_max,
    };
    format!(
        "{appended:?} {:?}",
        store.advance(&[advance]).await.unwrap()
    )
}

/// A store that is compared with the memory store.
#[async_trait(?Send)]
pub(crate) trait ComparedStore {
    fn store(&self) -> &dyn Store;

    /// Reopens the store with its durable data. Returns whether it supports this.
    async fn restart(&mut self) -> bool;
}

/// The new data of the next call, which the sequence stores from now on.
async fn new_data(
    memory: &MemoryStore,
    call: &StoreCall,
    sequence: &mut Sequence,
    watermark: u64,
) -> NewData {
    match call {
        StoreCall::Append {
            ahead,
            messages,
            cancels,
            gap,
            is_replay,
        } => {
            let kind = match is_replay {
                true => IdChangeKind::Delivered,
                false => IdChangeKind::Cancel,
            };
            let append = sequence.append(
                watermark.saturating_add_signed(*ahead),
                messages,
                (cancels, kind),
                *gap,
            );
            NewData {
                appends: vec![append],
                ..NewData::default()
            }
        }
        StoreCall::Rewrite {
            messages,
            knows_all,
            ..
        } => {
            let position = memory
                .positions(std::slice::from_ref(&sequence.shard))
                .await
                .unwrap()
                .remove(0);
            let after = position.map_or(0, |position| position.lineage.replacements)
                + u64::from(!knows_all);
            NewData {
                outputs: sequence.new_runs(watermark, messages, &mut Vec::new()).0,
                after,
                ..NewData::default()
            }
        }
        _ => NewData::default(),
    }
}

async fn compare_sequence(
    memory: &MemoryStore,
    other: &mut dyn ComparedStore,
    shard: ShardId,
    calls: &[StoreCall],
) -> Result<(), TestCaseError> {
    let mut sequence = Sequence {
        shard,
        stored_runs: Vec::new(),
        stored_places: Vec::new(),
    };
    for call in calls {
        let known = memory
            .state(std::slice::from_ref(&sequence.shard))
            .await
            .unwrap()
            .remove(0);
        let stands = known.map_or((0, Progress::START), |state| {
            (state.watermark.0, state.delivered)
        });
        let new = new_data(memory, call, &mut sequence, stands.0).await;
        let in_memory = outcome(memory, call, &sequence, &new, stands).await;
        let in_other = outcome(other.store(), call, &sequence, &new, stands).await;
        prop_assert_eq!(in_memory, in_other, "{:?}", call);
        prop_assert_eq!(
            visible_state(memory, &sequence).await,
            visible_state(other.store(), &sequence).await,
            "after {:?}",
            call
        );
    }
    if other.restart().await {
        prop_assert_eq!(
            visible_state(memory, &sequence).await,
            visible_state(other.store(), &sequence).await,
            "after a restart"
        );
        prop_assert_eq!(
            hidden_state(memory, &sequence).await,
            hidden_state(other.store(), &sequence).await,
            "after a restart"
        );
    }
    Ok(())
}

/// Runs this many sequences on both stores.
pub(crate) fn assert_same_as_memory(
    other: &mut dyn ComparedStore,
    runtime: &tokio::runtime::Runtime,
    cases: u32,
) {
    let memory = MemoryStore::new(Rc::new(WallClock));
    let (sequence, other) = (Cell::new(0), RefCell::new(other));
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&call_sequences(), |calls| {
        sequence.set(sequence.get() + 1);
        let shard = ShardId::new("model", Partition::new("sequence", sequence.get()));
        runtime.block_on(compare_sequence(
            &memory,
            &mut **other.borrow_mut(),
            shard,
            &calls,
        ))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
