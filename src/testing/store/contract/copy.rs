//! Cases for copies of shards between this store and one in memory.

use super::advance::pause;
use super::fixture::{Fixture, cancel, due, key_of, place, run_of, schedule};
use super::ids::keys::{a, encrypted};
use crate::clock::WallClock;
use crate::command::{Copied, ShardCopy, begin_shard_copy};
use crate::model::{Cursor, Level, Offset, OutcomeCounts, Progress, Slice, Timestamp, Watermark};
use crate::run::Run;
use crate::store::rules::ShardMeta;
use crate::store::{
    Acquired, Advance, Appended, CopyNumber, CopyState, CopyStore, Error, IdChange, IdChangeKind,
    Lineage, NewShard, Opened, ShardEntry, ShardPart, StoredRun,
};
use crate::testing::store::memory::MemoryStore;
use std::rc::Rc;

const COPY: CopyNumber = CopyNumber(7);
/// More than one part. Half of the messages are cancelled.
const IDS: u64 = 2_200;
const CANCELLED: u64 = IDS / 2;
/// The first offset of the changes.
const CHANGES: u64 = IDS + 5;
/// The watermark of the filled shard.
const END: u64 = CHANGES + CANCELLED + 4;

fn memory() -> MemoryStore {
    MemoryStore::new(Rc::new(WallClock))
}

fn run_in(level: Level, writer: &str, places: &[Cursor]) -> Run {
    let slice = Slice::at(level, places[0].due);
    Run {
        slice,
        ..run_of(writer, places)
    }
}

/// A request with an answer.
fn request(change: IdChange, offset: u64) -> IdChange {
    IdChange {
        request: Some(Offset(offset)),
        ..change
    }
}

/// Appends the runs, and the changes in several batches: a large one delays other calls of a server.
async fn append(t: &Fixture<'_>, from: u64, to: u64, runs: &[&Run], changes: &[IdChange]) {
    t.append(from, from + 1, runs, &[]).await;
    let mut at = from + 1;
    for batch in changes.chunks(200) {
        t.append(at, at + 1, &[], batch).await;
        at += 1;
    }
    t.append(at, to, &[], &[]).await;
}

/// Fills a shard with everything that a shard can hold.
async fn fill(t: &Fixture<'_>) {
    let opened = t
        .open(NewShard {
            hold: Watermark(40),
            possibly_delivered: Progress::new(place(due(7, 7), 7), Watermark(77)),
            pause: Some(pause(3, false)),
            ..t.new_shard(0, Progress::START)
        })
        .await;
    assert!(matches!(opened, Opened::Created(_)), "{opened:?}");
    let [done, claimed] = [place(due(0, 0), 0), place(due(1, 0), 1)];
    let done_run = run_in(Level::Hour, "done", &[done]);
    let claimed_run = run_in(Level::Minute, "claimed", &[claimed]);
    let damaged = run_in(Level::Hour, "damaged", &[place(due(2, 0), 2)]);
    let ids = [schedule("done", done), schedule("claimed", claimed)];
    let runs = [&done_run, &claimed_run, &damaged];
    t.append(0, 3, &runs, &ids).await;
    t.take_lease(1).await;
    t.claim(1, Progress::new(claimed, Watermark(3))).await;
    let delivered = Progress::new(done, Watermark(3));
    let counts = OutcomeCounts::from_array([1, 0, 0, 0]);
    t.acknowledge_outcomes((Progress::START, delivered), counts, &[&done_run])
        .await;
    assert_eq!(t.quarantine(1, &[&damaged]).await, 1);

    let many: Vec<Cursor> = (0..IDS).map(|i| place(due(3, i as i64), 3 + i)).collect();
    let ids = many.iter().enumerate();
    let ids: Vec<_> = ids.map(|(i, it)| schedule(&format!("m{i}"), *it)).collect();
    let at_once = place(Timestamp::AT_ONCE, CHANGES - 2);
    let at_once = run_in(Level::Now, "at once", &[at_once]);
    let late = run_in(Level::Day, "late", &[place(due(0, 5), CHANGES - 1)]);
    let many = run_in(Level::Far, "many", &many);
    append(t, 3, CHANGES, &[&many, &at_once, &late], &ids).await;

    let mut changes = vec![request(cancel("claimed"), CHANGES)];
    for i in 0..CANCELLED {
        let it = cancel(&format!("m{i}"));
        let offset = CHANGES + 1 + i;
        changes.push(if i % 2 == 0 { it } else { request(it, offset) });
    }
    for (i, by) in [(CANCELLED, END - 3), (CANCELLED + 1, END - 2)] {
        let kind = IdChangeKind::Reschedule {
            by: Offset(by),
            due: due(30, 0),
        };
        let moved = IdChange::new(&*format!("m{i}"), kind);
        changes.push(if by % 2 == 0 {
            moved
        } else {
            request(moved, by)
        });
    }
    append(t, CHANGES, END - 1, &[], &changes).await;
    let far = encrypted(&a(), "far", &[place(due(9_000, 0), END - 1)]);
    t.append(END - 1, END, &[&far], &[]).await;
    t.store()
        .end_holds(std::slice::from_ref(&t.shard))
        .await
        .unwrap();
}

/// Copies the shard. Returns false if the copy was interrupted at this step.
async fn copy(from: &Fixture<'_>, to: &Fixture<'_>, stop_at: Option<usize>) -> bool {
    let mut steps = 0;
    let mut on_step = |_| {
        steps += 1;
        anyhow::ensure!(Some(steps) != stop_at, "interrupted");
        Ok(())
    };
    let before = to.survey().copy_state(&to.shard).await.unwrap();
    let begun = begin_shard_copy(to.survey(), &to.shard, COPY, &before).await;
    begun.unwrap();
    let copy = ShardCopy {
        source: from.survey(),
        target: to.survey(),
        shard: &from.shard,
        number: COPY,
        on_step: &mut on_step,
        copied: Copied::default(),
    };
    match copy.run().await {
        Ok(copied) => {
            assert_eq!(copied.messages, IDS + 5);
            true
        }
        Err(error) => {
            assert_eq!(error.to_string(), "interrupted");
            false
        }
    }
}

async fn entries(t: &Fixture<'_>) -> Vec<ShardEntry> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let (entries, next) = t.survey().entries(&t.shard, from.as_ref()).await.unwrap();
        all.extend(entries);
        if next.is_none() {
            all.sort();
            all.dedup();
            return all;
        }
        from = next;
    }
}

/// All runs with their bytes, and those in quarantine.
async fn runs(t: &Fixture<'_>) -> Vec<StoredRun> {
    let mut all = Vec::new();
    for listed in t.list_all().await.1 {
        let run = Run {
            name: listed.name.clone(),
            slice: listed.slice,
            ..run_of("any", &[place(listed.least_due, 0)])
        };
        let bytes = t.fetch(&[&run]).await.remove(0).expect("it is stored");
        all.push(StoredRun {
            slice: Some(listed.slice),
            name: listed.name,
            least_due: listed.least_due,
            bytes,
        });
    }
    for name in t.survey().quarantined_runs(&t.shard).await.unwrap() {
        let bytes = t.survey().quarantined_bytes(&t.shard, &name).await;
        all.push(StoredRun {
            slice: None,
            name,
            least_due: Timestamp::AT_ONCE,
            bytes: bytes.unwrap().expect("it is stored"),
        });
    }
    all
}

async fn assert_equal(from: &Fixture<'_>, to: &Fixture<'_>) {
    let meta = async |t: &Fixture<'_>| {
        let meta = t.survey().shard_meta(&t.shard).await.unwrap();
        meta.map(|meta| ShardMeta {
            lineage: Lineage::default(),
            ..meta
        })
    };
    let lineage = to.position().await.map(|it| it.lineage);
    assert_eq!(lineage, Some(Lineage::default()));
    let counts = async |t: &Fixture<'_>| t.survey().count_parts(&t.shard).await.unwrap();
    assert_eq!(to.state().await, from.state().await);
    assert_eq!(meta(to).await, meta(from).await);
    assert_eq!(
        meta(to).await.and_then(|meta| meta.hold),
        None,
        "it was ended"
    );
    assert_eq!(counts(to).await, counts(from).await);
    assert_eq!(runs(to).await, runs(from).await);
    let (copied, original) = (entries(to).await, entries(from).await);
    assert_eq!(copied, original);
    let parts = IDS - 2 + CANCELLED / 2;
    assert!(original.len() as u64 > parts, "{}", original.len());
}

/// Continues on both shards: the claims and the appends have the same outcomes.
async fn assert_continue_alike(from: &Fixture<'_>, to: &Fixture<'_>) {
    let mut outcomes = Vec::new();
    for t in [from, to] {
        t.take_over(2, 1).await;
        let all = Progress::new(place(due(5, 0), u64::MAX), Watermark(END));
        let advance = Advance {
            claim: Some(all),
            claimed_answers: vec![Offset(CHANGES), Offset(END - 3), Offset(END - 2)],
            ..t.empty_advance(2)
        };
        let advanced = t.advance(advance).await;
        let next = run_of("next", &[place(due(8, 0), END)]);
        t.append_runs(END, END + 1, &[&next]).await;
        assert_eq!(t.tail_runs(END, due(9, 0), 10).await.2.len(), 1);
        let state = t.state().await;
        outcomes.push((advanced, state, t.fetch(&[&next]).await));
    }
    assert_eq!(outcomes[0], outcomes[1]);
}

pub(super) async fn a_copy_from_memory_equals_its_source_and_continues_alike(t: &Fixture<'_>) {
    let memory = memory();
    let source = t.on(&memory);
    fill(&source).await;
    assert!(copy(&source, t, None).await);
    assert_equal(&source, t).await;
    assert_continue_alike(&source, t).await;
}

pub(super) async fn a_copy_to_memory_equals_its_source_and_continues_alike(t: &Fixture<'_>) {
    let memory = memory();
    let target = t.on(&memory);
    fill(t).await;
    assert!(copy(t, &target, None).await);
    assert_equal(t, &target).await;
    assert_continue_alike(t, &target).await;
}

pub(super) async fn a_copy_that_is_interrupted_at_any_step_and_repeated_ends_the_same(
    t: &Fixture<'_>,
) {
    let memory = memory();
    let source = t.on(&memory);
    fill(&source).await;
    let before = source.state().await;
    let survey = t.survey();
    for stop_at in 1..100 {
        let is_done = copy(&source, t, Some(stop_at)).await;
        if !matches!(survey.copy_state(&t.shard).await.unwrap(), CopyState::Begun) {
            assert!(!is_done && stop_at > 5, "{stop_at} is the last step");
            assert_equal(&source, t).await;
            assert_eq!(source.state().await, before);
            return;
        }
        assert_eq!(t.state_if_created().await, None);
        let opened = t.open(t.new_shard(0, Progress::START)).await;
        assert!(matches!(opened, Opened::Incompatible(_)), "{opened:?}");
        assert_eq!(t.append(0, 1, &[], &[]).await, Appended::Unknown);
        assert_eq!(t.acquire(1).await, Acquired::Unknown);
    }
    panic!("the copy does not end");
}

pub(super) async fn a_repeated_part_of_a_copy_changes_nothing_more(t: &Fixture<'_>) {
    let memory = memory();
    let source = t.on(&memory);
    fill(&source).await;
    let survey = t.survey();
    assert!(survey.begin_copy(&t.shard, COPY).await.unwrap());
    let part = ShardPart {
        runs: runs(&source).await,
        entries: entries(&source).await,
    };
    let other = CopyNumber(8);
    assert!(
        !survey
            .add_to_copy(&t.shard, other, part.clone())
            .await
            .unwrap()
    );
    for _ in 0..2 {
        assert!(
            survey
                .add_to_copy(&t.shard, COPY, part.clone())
                .await
                .unwrap()
        );
    }
    let meta = memory.shard_meta(&t.shard).await.unwrap().unwrap();
    assert!(!survey.end_copy(&t.shard, other, &meta).await.unwrap());
    assert!(survey.end_copy(&t.shard, COPY, &meta).await.unwrap());
    assert_equal(&source, t).await;
    assert!(!survey.end_copy(&t.shard, COPY, &meta).await.unwrap());
    assert!(!survey.add_to_copy(&t.shard, COPY, part).await.unwrap());
    assert_equal(&source, t).await;
}

pub(super) async fn a_copy_begins_only_where_nothing_is_stored(t: &Fixture<'_>) {
    t.create_shard(3).await;
    let survey = t.survey();
    assert!(!survey.begin_copy(&t.shard, COPY).await.unwrap());
    let refused = begin_shard_copy(survey, &t.shard, COPY, &CopyState::Begun).await;
    assert!(refused.is_err(), "it has other data than was planned");
    assert_eq!(t.state().await.watermark, Watermark(3));
    let shards = std::slice::from_ref(&t.shard);
    t.store().erase(shards).await.unwrap();
    assert_eq!(
        survey.copy_state(&t.shard).await.unwrap(),
        CopyState::Absent
    );
    assert!(survey.begin_copy(&t.shard, COPY).await.unwrap());
    assert!(!survey.begin_copy(&t.shard, COPY).await.unwrap());
    // A copy that is given up leaves nothing.
    t.store().erase(shards).await.unwrap();
    t.create_shard(5).await;
    assert_eq!(t.list_all().await.1, []);
}

pub(super) async fn a_full_store_refuses_parts_of_a_copy(t: &Fixture<'_>) {
    let survey = t.survey();
    assert!(survey.begin_copy(&t.shard, COPY).await.unwrap());
    t.subject.set_full(true).await;
    let run = run_of("r", &[place(due(1, 0), 0)]);
    let (slice, name) = key_of(&run);
    let part = ShardPart {
        runs: vec![StoredRun {
            slice: Some(slice),
            name,
            least_due: due(1, 0),
            bytes: run.bytes,
        }],
        entries: Vec::new(),
    };
    let added = survey.add_to_copy(&t.shard, COPY, part.clone()).await;
    assert!(matches!(added, Err(Error::Full)), "{added:?}");
    t.subject.set_full(false).await;
    assert!(survey.add_to_copy(&t.shard, COPY, part).await.unwrap());
    assert_eq!(survey.count_parts(&t.shard).await.unwrap().runs, 1);
}
