//! Random sequences of calls have the same outcomes on the memory store and on any other: so what the simulation shows on the one holds for
//! the other.

use super::run_of;
use crate::clock::WallClock;
use crate::model::{
    Claim, Cursor, Identity, Lease, Offset, Partition, ShardId, Slice, Timestamp, Token, Watermark,
    Worker,
};
use crate::run::{Name, Run};
use crate::store::memory::Memory;
use crate::store::{
    Acquired, Advance, Advanced, Append, Birth, Change, ChangeKind, Fetch, History, List, Listed,
    Quarantine, Reading, Renewed, Rewrite, Store, Tail, Tally,
};
use async_trait::async_trait;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// One call, in terms of what the sequence has done so far.
#[derive(Clone, Debug)]
enum Call {
    Open {
        watermark: u64,
        delivered: Pair,
    },
    Append {
        ahead: i64,
        messages: Vec<Vec<Message>>,
        cancels: Vec<u8>,
        gap: u64,
    },
    Acquire {
        token: u8,
        lasting: bool,
    },
    Renew {
        token: u8,
        lasting: bool,
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
    },
    Advance {
        token: u8,
        delivered: Option<Pair>,
        since: Option<Pair>,
        tally: u64,
        deletes: Vec<Index>,
        ids: Vec<(u8, Index)>,
        claim: Option<Pair>,
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

/// A due by its hour; below 0 at once, and the last one far ahead of any clock.
type Due = i64;
type Pair = (Due, u64, u64);
/// Hour of the due, millisecond in it, and an id.
type Message = (Due, i64, Option<u8>);

const FAR: Due = 6;

fn timestamp(due: Due, millis: i64) -> Timestamp {
    match due {
        FAR => Timestamp::from_millis(9_000_000_000_000 + millis),
        due if due < 0 => Timestamp::AT_ONCE,
        due => Timestamp::from_millis(due * 3_600_000 + millis),
    }
}

fn claim((due, offset, watermark): Pair) -> Claim {
    Claim::new(
        Cursor::new(timestamp(due, 1), Offset(offset)),
        Watermark(watermark),
    )
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let due = || -1..=FAR;
    let pair = move || (due(), 0..40u64, 0..40u64);
    let message = (due(), 0..3i64, prop::option::of(0..4u8));
    let messages = prop::collection::vec(prop::collection::vec(message, 1..4), 0..4);
    let runs = || prop::collection::vec(any::<Index>(), 0..4);
    let ids = prop::collection::vec((0..4u8, any::<Index>()), 0..3);
    let token = || prop_oneof![4 => Just(1u8), 1 => Just(2u8)];
    let lasting = || prop::bool::weighted(0.8);
    let call = prop_oneof![
        2 => (0..3u64, pair()).prop_map(|(watermark, delivered)| Call::Open { watermark, delivered }),
        8 => (prop_oneof![6 => Just(0), 1 => -3..3i64], messages.clone(), prop::collection::vec(0..4u8, 0..3), 0..3u64)
            .prop_map(|(ahead, messages, cancels, gap)| Call::Append { ahead, messages, cancels, gap }),
        3 => (token(), lasting()).prop_map(|(token, lasting)| Call::Acquire { token, lasting }),
        1 => (token(), lasting()).prop_map(|(token, lasting)| Call::Renew { token, lasting }),
        1 => token().prop_map(|token| Call::Release { token }),
        3 => (due(), due(), 0..9usize).prop_map(|(from, until, limit)| Call::List { from, until, limit }),
        2 => runs().prop_map(|runs| Call::Fetch { runs }),
        3 => (-9..2i64, due(), 0..9usize).prop_map(|(after, until, limit)| Call::Tail { after, until, limit }),
        6 => (token(), prop::option::of(pair()), (prop::option::of(pair()), 0..3u64), runs(), ids, prop::option::of(pair()))
            .prop_map(|(token, delivered, (since, tally), deletes, ids, claim)| Call::Advance { token, delivered, since, tally, deletes, ids, claim }),
        1 => (token(), runs()).prop_map(|(token, runs)| Call::Quarantine { token, runs }),
        2 => (token(), runs(), messages, prop::bool::weighted(0.8))
            .prop_map(|(token, inputs, messages, knows_all)| Call::Rewrite { token, inputs, messages, knows_all }),
        2 => (0..3u8, lasting()).prop_map(|(worker, lasting)| Call::Enrol { worker, lasting }),
        1 => (0..3u8).prop_map(|worker| Call::Resign { worker }),
        1 => Just(Call::Erase),
    ];
    prop::collection::vec(call, 1..40).prop_map(|mut calls| {
        calls.insert(
            0,
            Call::Open {
                watermark: 0,
                delivered: (-1, u64::MAX, 0),
            },
        );
        calls.insert(
            1,
            Call::Acquire {
                token: 1,
                lasting: true,
            },
        );
        calls
    })
}

/// What a sequence has put in so far.
struct World {
    shard: ShardId,
    runs: Vec<Run>,
    places: Vec<Cursor>,
}

impl World {
    fn lease(&self, token: u8) -> Lease {
        crate::store::lease(&self.shard, Token(token.into()))
    }

    /// The roll is common to all sequences, which come one after the other: each has workers of its own.
    fn worker(&self, number: u8) -> Worker {
        Worker(self.shard.partition.index as u128 * 256 + u128::from(number))
    }

    fn named(&self, picks: &[Index]) -> Vec<(Slice, Name)> {
        let runs = picks
            .iter()
            .filter(|_| !self.runs.is_empty())
            .map(|pick| pick.get(&self.runs));
        runs.map(|run| (run.slice, run.name.clone())).collect()
    }

    fn place(&self, pick: Index) -> Cursor {
        if self.places.is_empty() {
            Cursor::START
        } else {
            *pick.get(&self.places)
        }
    }

    fn append(&mut self, from: u64, messages: &[Vec<Message>], cancels: &[u8], gap: u64) -> Append {
        let mut changes: Vec<Change> = cancels
            .iter()
            .map(|id| Change {
                id: format!("id{id}").into(),
                kind: ChangeKind::Cancel,
            })
            .collect();
        let (runs, to) = self.runs(from, messages, &mut changes);
        // Several of each reading, and readings that come back.
        let reading = Reading {
            writer: 1,
            number: self.places.len() as u64 / 8 % 5,
        };
        Append {
            shard: self.shard.clone(),
            reading,
            from: Watermark(from),
            to: Watermark(to + gap),
            runs,
            changes,
        }
    }

    /// New runs, from that offset on. Answers also the next offset.
    fn runs(
        &mut self,
        from: u64,
        messages: &[Vec<Message>],
        changes: &mut Vec<Change>,
    ) -> (Vec<Run>, u64) {
        let (mut offset, mut runs) = (from, Vec::new());
        for some in messages {
            let mut places = Vec::new();
            for (due, millis, id) in some {
                let place = Cursor::new(timestamp(*due, *millis), Offset(offset));
                changes.extend(id.map(|id| Change {
                    id: format!("id{id}").into(),
                    kind: ChangeKind::Schedule(place),
                }));
                places.push(place);
                offset += 1;
            }
            places.sort();
            self.places.extend(&places);
            runs.push(run_of(
                &format!("w{}", self.runs.len() + runs.len()),
                &places,
            ));
        }
        self.runs.extend(runs.iter().cloned());
        (runs, offset)
    }
}

fn length(lasting: bool) -> Duration {
    Duration::from_secs(if lasting { 3_600 } else { 0 })
}

/// What a call brings that was not there before.
#[derive(Default)]
struct New {
    appends: Vec<Append>,
    outputs: Vec<Run>,
    after: u64,
}

/// Makes the call and answers its outcome as text, without the store's time.
async fn outcome(
    store: &dyn Store,
    call: &Call,
    world: &World,
    new: &New,
    (watermark, known): (u64, Claim),
) -> String {
    let shard = world.shard.clone();
    let runs = |picks: &[Index]| world.named(picks);
    match call {
        Call::Open {
            watermark,
            delivered,
        } => {
            let watermark = Watermark(*watermark);
            let birth = Birth {
                shard,
                identity: Identity("id".into()),
                watermark,
                delivered: claim(*delivered),
            };
            format!("{:?}", store.open(&[birth]).await)
        }
        Call::Append { .. } => format!("{:?}", store.append(&new.appends).await),
        Call::Acquire { token, lasting } => match store
            .acquire(&[world.lease(*token)], length(*lasting))
            .await
            .unwrap()
            .remove(0)
        {
            Acquired::Granted { state, .. } => format!("{state:?}"),
            other => format!("{other:?}"),
        },
        Call::Renew { token, lasting } => match store
            .renew(&[world.lease(*token)], length(*lasting))
            .await
            .unwrap()
            .remove(0)
        {
            Renewed::Renewed { .. } => "renewed".to_owned(),
            other => format!("{other:?}"),
        },
        Call::Release { token } => format!("{:?}", store.release(&[world.lease(*token)]).await),
        Call::List { from, until, limit } => {
            let list = List {
                shard,
                from: timestamp(*from, 1),
                until: timestamp(*until, 1),
                limit: *limit,
            };
            format!("{:?}", store.list(&[list]).await)
        }
        Call::Fetch { runs: picks } => format!(
            "{:?}",
            store
                .fetch(&[Fetch {
                    shard,
                    runs: runs(picks)
                }])
                .await
        ),
        Call::Tail {
            after,
            until,
            limit,
        } => {
            let after = Watermark(watermark.saturating_add_signed(*after));
            format!(
                "{:?}",
                store
                    .tail(&[Tail {
                        shard,
                        after,
                        until: timestamp(*until, 1),
                        limit: *limit
                    }])
                    .await
            )
        }
        Call::Advance {
            token,
            delivered,
            since,
            tally,
            deletes,
            ids,
            claim: next,
        } => {
            let advance = Advance {
                lease: world.lease(*token),
                delivered: delivered.map(claim),
                since: since.map_or(known, claim),
                tally: Tally {
                    delivered: *tally,
                    cancelled: tally / 2,
                    dead_lettered: 0,
                    sent_back: tally % 2,
                },
                deletes: runs(deletes),
                ids: ids
                    .iter()
                    .map(|(id, pick)| (format!("id{id}").into(), world.place(*pick)))
                    .collect(),
                claim: next.map(claim),
                skew_max: Duration::from_secs(2),
            };
            match store.advance(&[advance]).await.unwrap().remove(0) {
                Advanced::Ahead { watermark, .. } => format!("ahead {watermark}"),
                other => format!("{other:?}"),
            }
        }
        Call::Quarantine { token, runs: picks } => {
            format!(
                "{:?}",
                store
                    .quarantine(&[Quarantine {
                        lease: world.lease(*token),
                        runs: runs(picks)
                    }])
                    .await
            )
        }
        Call::Rewrite { token, inputs, .. } => {
            let rewrite = Rewrite {
                lease: world.lease(*token),
                after: new.after,
                inputs: runs(inputs),
                outputs: new.outputs.clone(),
            };
            format!("{:?}", store.rewrite(&[rewrite]).await)
        }
        Call::Enrol { worker, lasting } => {
            let peers = store
                .enrol(world.worker(*worker), length(*lasting))
                .await
                .unwrap();
            let own = peers
                .iter()
                .map(|peer| peer.worker)
                .filter(|worker| (0..3).any(|number| world.worker(number) == *worker));
            format!("{:?}", own.collect::<Vec<_>>())
        }
        Call::Resign { worker } => format!("{:?}", store.resign(world.worker(*worker)).await),
        Call::Erase => format!("{:?}", store.erase(&[shard]).await),
    }
}

/// All that the port shows of a shard. Lowest pending may be too low, so it is not compared but held against what waits.
async fn shown(store: &dyn Store, world: &World) -> String {
    let mut state = store
        .state(std::slice::from_ref(&world.shard))
        .await
        .unwrap()
        .remove(0);
    let all = List {
        shard: world.shard.clone(),
        from: Timestamp::AT_ONCE,
        until: Timestamp::MAX,
        limit: 1_000,
    };
    let mut listed = store.list(&[all]).await.unwrap().remove(0);
    if let Listed::Runs { history, .. } = &mut listed {
        // That outlives no restart everywhere.
        *history = History::default();
    }
    if let (Some(state), Listed::Runs { runs, .. }) = (&mut state, &listed) {
        let least = runs
            .iter()
            .map(|run| run.name.least_offset())
            .min()
            .unwrap_or(state.watermark.offset());
        assert!(state.lowest_pending <= least);
    }
    let runs = world
        .runs
        .iter()
        .map(|run| (run.slice, run.name.clone()))
        .collect();
    let fetched = store
        .fetch(&[Fetch {
            shard: world.shard.clone(),
            runs,
        }])
        .await;
    format!("{state:?} {listed:?} {fetched:?}")
}

/// What every id and every cancelled place of a shard still do, told by cancelling all and by claiming everything. Changes the shard.
async fn hidden(store: &dyn Store, world: &World) -> String {
    let known = store
        .state(std::slice::from_ref(&world.shard))
        .await
        .unwrap()
        .remove(0);
    let Some(watermark) = known.map(|state| state.watermark) else {
        return String::new();
    };
    let changes = (0..4)
        .map(|id| Change {
            id: format!("id{id}").into(),
            kind: ChangeKind::Cancel,
        })
        .collect();
    let to = Watermark(watermark.0 + 1);
    let (shard, reading) = (world.shard.clone(), Reading::default());
    let cancels = Append {
        shard,
        reading,
        from: watermark,
        to,
        runs: Vec::new(),
        changes,
    };
    let appended = store.append(&[cancels]).await.unwrap();
    for token in 1..3 {
        store.release(&[world.lease(token)]).await.unwrap();
    }
    store
        .acquire(&[world.lease(1)], length(true))
        .await
        .unwrap();
    let claim = Some(claim((FAR - 1, u64::MAX, u64::MAX)));
    let skew_max = Duration::ZERO;
    let (since, tally) = (Claim::START, Tally::default());
    let advance = Advance {
        lease: world.lease(1),
        delivered: None,
        since,
        tally,
        deletes: Vec::new(),
        ids: Vec::new(),
        claim,
        skew_max,
    };
    format!(
        "{appended:?} {:?}",
        store.advance(&[advance]).await.unwrap()
    )
}

/// A store under this test.
#[async_trait(?Send)]
pub(crate) trait Counterpart {
    fn store(&self) -> &dyn Store;

    /// Ends what it has open and begins anew with what it keeps; answers whether it can.
    async fn restart(&mut self) -> bool;
}

async fn check(
    memory: &Memory,
    other: &mut dyn Counterpart,
    shard: ShardId,
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let mut world = World {
        shard,
        runs: Vec::new(),
        places: Vec::new(),
    };
    for call in calls {
        let known = memory
            .state(std::slice::from_ref(&world.shard))
            .await
            .unwrap()
            .remove(0);
        let stands = known.map_or((0, Claim::START), |state| {
            (state.watermark.0, state.delivered)
        });
        let watermark = stands.0;
        let new = match call {
            Call::Append {
                ahead,
                messages,
                cancels,
                gap,
            } => {
                let append = world.append(
                    watermark.saturating_add_signed(*ahead),
                    messages,
                    cancels,
                    *gap,
                );
                New {
                    appends: vec![append],
                    ..New::default()
                }
            }
            Call::Rewrite {
                messages,
                knows_all,
                ..
            } => {
                let glance = memory
                    .glance(std::slice::from_ref(&world.shard))
                    .await
                    .unwrap()
                    .remove(0);
                let after =
                    glance.map_or(0, |glance| glance.history.rewrites) + u64::from(!knows_all);
                New {
                    outputs: world.runs(watermark, messages, &mut Vec::new()).0,
                    after,
                    ..New::default()
                }
            }
            _ => New::default(),
        };
        let in_memory = outcome(memory, call, &world, &new, stands).await;
        let in_other = outcome(other.store(), call, &world, &new, stands).await;
        prop_assert_eq!(in_memory, in_other, "{:?}", call);
        prop_assert_eq!(
            shown(memory, &world).await,
            shown(other.store(), &world).await,
            "after {:?}",
            call
        );
    }
    if other.restart().await {
        prop_assert_eq!(
            shown(memory, &world).await,
            shown(other.store(), &world).await,
            "after a restart"
        );
        prop_assert_eq!(
            hidden(memory, &world).await,
            hidden(other.store(), &world).await,
            "after a restart"
        );
    }
    Ok(())
}

/// Runs so many sequences on both stores.
pub(crate) fn same_as_memory(
    other: &mut dyn Counterpart,
    runtime: &tokio::runtime::Runtime,
    cases: u32,
) {
    let memory = Memory::new(Rc::new(WallClock));
    let (sequence, other) = (Cell::new(0), RefCell::new(other));
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&calls(), |calls| {
        sequence.set(sequence.get() + 1);
        let shard = ShardId::new("model", Partition::new("sequence", sequence.get()));
        runtime.block_on(check(&memory, &mut **other.borrow_mut(), shard, &calls))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
