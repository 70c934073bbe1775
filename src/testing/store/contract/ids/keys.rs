//! Cases for encrypted runs and hashed ids. A store knows keys by the names of runs and by the hashes.

use super::super::fixture::{Fixture, due, place};
use super::super::run_of;
use crate::encryption::test_rings::{line, ring};
use crate::encryption::{KeyRing, StoredId};
use crate::model::{Cursor, Progress, Watermark};
use crate::run::{Run, RunName};
use crate::store::{Advance, Appended, FinishedIds, IdChange, IdChangeKind, Replaced, Restored};

fn keys(ids: &[(&str, u8)]) -> KeyRing {
    let lines = ids.iter().map(|(id, byte)| match *id {
        "plain" => "plain\n".to_owned(),
        id => line(id, *byte),
    });
    ring(&lines.collect::<String>())
}

pub(in super::super) fn a() -> KeyRing {
    keys(&[("a", 1)])
}

fn b_and_a() -> KeyRing {
    keys(&[("b", 2), ("a", 1)])
}

fn a_and_plain() -> KeyRing {
    keys(&[("a", 1), ("plain", 0)])
}

/// A run under the name of the key that writes.
pub(in super::super) fn encrypted(keys: &KeyRing, writer: &str, places: &[Cursor]) -> Run {
    let run = run_of(writer, places);
    let key = keys.writer().expect("a key writes");
    Run {
        name: RunName::new(format!("{}-{key}", run.name)),
        ..run
    }
}

fn id(t: &Fixture<'_>, keys: &KeyRing) -> StoredId {
    keys.stored_id(&t.shard, "id")
}

fn schedule(t: &Fixture<'_>, keys: &KeyRing, place: Cursor) -> IdChange {
    IdChange::new(id(t, keys), IdChangeKind::Schedule(place))
}

fn cancel(t: &Fixture<'_>, keys: &KeyRing) -> IdChange {
    IdChange::new(id(t, keys), IdChangeKind::Cancel)
}

fn done(cancelled: u32, missed: u32) -> Appended {
    Appended::Done {
        cancelled,
        missed,
        told: Vec::new(),
    }
}

/// The numbers of waiting messages by the ids of their keys.
async fn used(t: &Fixture<'_>) -> Vec<(String, u64)> {
    let state = t.state().await;
    let keys = state.keys.iter();
    let mut used: Vec<_> = keys
        .map(|(name, used)| (name.split_once('-').expect("a name").1.to_owned(), *used))
        .collect();
    used.sort();
    used
}

fn usage(uses: &[(&str, u64)]) -> Vec<(String, u64)> {
    let uses = uses.iter();
    uses.map(|(key, messages)| ((*key).to_owned(), *messages))
        .collect()
}

/// Removes the ids of finished messages, and the effects of finished requests.
pub(super) async fn remove_finished_ids(t: &Fixture<'_>) {
    let mut from = None;
    loop {
        let request = FinishedIds {
            shard: t.shard.clone(),
            from,
        };
        from = t
            .store()
            .remove_finished_ids(&[request])
            .await
            .unwrap()
            .remove(0);
        if from.is_none() {
            return;
        }
    }
}

/// The number of ids that each key of the ring has hashed.
async fn ids_of(t: &Fixture<'_>, keys: &KeyRing) -> Vec<u64> {
    let counts = t.survey().count_ids(&t.shard).await.unwrap();
    keys.names().map(|key| counts.under(key)).collect()
}

pub(in super::super) async fn messages_are_counted_by_the_key_of_their_run(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let places = |offsets: &[u64]| -> Vec<Cursor> {
        offsets.iter().map(|at| place(due(1, 0), *at)).collect()
    };
    let plain = run_of("plain", &places(&[0]));
    let first = encrypted(&a(), "first", &places(&[1, 2]));
    let second = encrypted(&a(), "second", &places(&[3]));
    let third = encrypted(&b_and_a(), "third", &places(&[4]));
    t.append_runs(0, 5, &[&plain, &first, &second, &third])
        .await;
    assert_eq!(used(t).await, usage(&[("a", 3), ("b", 1)]));
    let others = t.state().await.other_keys(&b_and_a());
    let counts = (others.known, others.missing);
    assert_eq!(counts, (3, 1), "plain data is missing");
    assert_eq!(t.state().await.lowest_pending.0, 0);
    t.take_lease(1).await;
    t.quarantine(1, &[&second]).await;
    assert_eq!(
        used(t).await,
        usage(&[("a", 2), ("b", 1)]),
        "without the quarantine"
    );
    let b = keys(&[("b", 2), ("plain", 0)]);
    assert_eq!(t.state().await.missing_keys(&b).count(), 1);
    let restored = encrypted(&b_and_a(), "restored", &places(&[3]));
    assert_eq!(t.restore(&second, &[&restored]).await, Restored::Done);
    assert_eq!(used(t).await, usage(&[("a", 2), ("b", 2)]));
    t.take_lease(1).await;
    let rewritten = encrypted(&b_and_a(), "rewritten", &places(&[1, 2]));
    assert_eq!(t.rewrite(1, &[&first], &[&rewritten]).await, Replaced::Done);
    assert_eq!(used(t).await, usage(&[("b", 4)]));
    t.quarantine(1, &[&third, &restored, &rewritten]).await;
    assert_eq!(used(t).await, []);
    let a = [(None, 1)];
    assert!(t.state().await.key_uses().eq(a), "only the plain one waits");
}

pub(in super::super) async fn an_id_is_found_under_every_name_and_moves_to_the_first(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let plain = KeyRing::plain();
    let at = |offset| place(due(1, 0), offset);
    let runs = [0, 1, 2].map(|n| run_of(&format!("w{n}"), &[at(n)]));
    let scheduled = schedule(t, &plain, at(0));
    assert_eq!(t.append(0, 1, &[&runs[0]], &[scheduled]).await, done(0, 0));
    let moved = schedule(t, &a_and_plain(), at(1));
    assert_eq!(t.append(1, 2, &[&runs[1]], &[moved]).await, done(1, 0));
    assert_eq!(t.append(2, 3, &[], &[cancel(t, &plain)]).await, done(0, 1));
    let moved = schedule(t, &b_and_a(), at(2));
    assert_eq!(t.append(3, 4, &[&runs[2]], &[moved]).await, done(1, 0));
    assert_eq!(t.append(4, 5, &[], &[cancel(t, &a())]).await, done(0, 1));
    let wanted = [(t.shard.clone(), id(t, &b_and_a()))];
    let found = t.survey().find_ids(&wanted);
    assert_eq!(found.await.unwrap(), [Some(at(2))]);
    let b = keys(&[("b", 2)]);
    assert_eq!(t.append(5, 6, &[], &[cancel(t, &b)]).await, done(1, 0));
    assert_eq!(
        t.append(6, 7, &[], &[cancel(t, &b_and_a())]).await,
        done(0, 1)
    );
}

pub(in super::super) async fn a_delivered_id_is_removed_under_any_name(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let waits = place(due(1, 0), 0);
    let run = encrypted(&a(), "w", &[waits]);
    let scheduled = schedule(t, &a(), waits);
    t.append(0, 1, &[&run], &[scheduled]).await;
    t.take_lease(1).await;
    let delivered = Progress::new(waits, Watermark(1));
    let ids = vec![(id(t, &b_and_a()), waits)];
    t.advance(Advance {
        delivered: Some(delivered),
        delivered_ids: ids,
        ..t.empty_advance(1)
    })
    .await;
    let wanted = [(t.shard.clone(), id(t, &a()))];
    let found = t.survey().find_ids(&wanted);
    assert_eq!(found.await.unwrap(), [None]);
}

pub(in super::super) async fn ids_change_only_with_every_used_key(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let waits = place(due(1, 0), 0);
    let run = encrypted(&a(), "w", &[waits]);
    let scheduled = schedule(t, &a(), waits);
    assert_eq!(t.append(0, 1, &[&run], &[scheduled]).await, done(0, 0));
    let lacking = [KeyRing::plain(), keys(&[("b", 2)]), keys(&[("a", 9)])];
    for keys in &lacking {
        let appended = t.append(1, 2, &[], &[cancel(t, keys)]).await;
        assert_eq!(
            appended,
            Appended::Unknown,
            "no id changes without the key: {keys:?}"
        );
    }
    assert_eq!(t.append(1, 2, &[], &[]).await, done(0, 0), "no id changes");
    assert_eq!(
        t.append(2, 3, &[], &[cancel(t, &b_and_a())]).await,
        done(1, 0)
    );
}

pub(in super::super) async fn a_rewrite_renames_the_ids_of_its_messages(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (waits, replaced) = (place(due(1, 0), 0), place(due(1, 0), 9));
    let old = encrypted(&a(), "old", &[waits]);
    t.append(0, 1, &[&old], &[schedule(t, &a(), waits)]).await;
    t.take_lease(1).await;
    let new = encrypted(&b_and_a(), "new", &[waits]);
    let other = (b_and_a().stored_id(&t.shard, "other"), waits);
    let stale = (id(t, &b_and_a()), replaced);
    let ids = vec![stale, other, (id(t, &b_and_a()), waits)];
    assert_eq!(t.rewrite_with_ids(&old, &new, ids).await, Replaced::Done);
    let b = keys(&[("b", 2)]);
    let find = async |name: &str| {
        let id = b.stored_id(&t.shard, name);
        t.survey().find_ids(&[(t.shard.clone(), id)]).await.unwrap()
    };
    assert_eq!(find("id").await, [Some(waits)]);
    assert_eq!(find("other").await, [None], "no message waited under it");
    assert_eq!(t.append(1, 2, &[], &[cancel(t, &b)]).await, done(1, 0));
}

/// A process that did not have the first key of a later ring has left a name that the next process finds first.
async fn shard_with_two_names(t: &Fixture<'_>) -> (KeyRing, Cursor, Cursor) {
    t.create_shard(0).await;
    let (earlier, later) = (place(due(1, 0), 0), place(due(2, 0), 1));
    let (plain, b) = (KeyRing::plain(), keys(&[("b", 2)]));
    let runs = [run_of("earlier", &[earlier]), run_of("later", &[later])];
    let changes = [schedule(t, &plain, earlier), schedule(t, &b, later)];
    t.append(0, 1, &[&runs[0]], &changes[..1]).await;
    t.append(1, 2, &[&runs[1]], &changes[1..]).await;
    t.take_lease(1).await;
    (keys(&[("plain", 0), ("b", 2)]), earlier, later)
}

pub(in super::super) async fn a_stale_name_hides_no_waiting_message(t: &Fixture<'_>) {
    let (both, earlier, later) = shard_with_two_names(t).await;
    t.acknowledge(1, Progress::new(earlier, Watermark(1))).await;
    let wanted = [(t.shard.clone(), id(t, &both))];
    let found = t.survey().find_ids(&wanted).await.unwrap();
    assert_eq!(found, [Some(later)]);
    assert_eq!(t.append(2, 3, &[], &[cancel(t, &both)]).await, done(1, 0));
    let everything = Progress::new(place(due(9, 0), 9), Watermark(9));
    assert_eq!(t.claim(1, everything).await, [later]);
}

pub(in super::super) async fn a_cancel_and_a_replacement_reach_every_name(t: &Fixture<'_>) {
    let (both, earlier, later) = shard_with_two_names(t).await;
    let next = place(due(3, 0), 2);
    let run = run_of("next", &[next]);
    let scheduled = schedule(t, &both, next);
    assert_eq!(t.append(2, 3, &[&run], &[scheduled]).await, done(2, 0));
    assert_eq!(ids_of(t, &both).await, [1, 0]);
    assert_eq!(t.append(3, 4, &[], &[cancel(t, &both)]).await, done(1, 0));
    assert_eq!(ids_of(t, &both).await, [0, 0]);
    let everything = Progress::new(place(due(9, 0), 9), Watermark(9));
    assert_eq!(t.claim(1, everything).await, [earlier, later, next]);
}

pub(in super::super) async fn a_delivered_message_leaves_the_other_names_of_its_id(
    t: &Fixture<'_>,
) {
    let (both, earlier, later) = shard_with_two_names(t).await;
    t.advance(Advance {
        delivered: Some(Progress::new(earlier, Watermark(2))),
        delivered_ids: vec![(id(t, &both), later), (id(t, &both), earlier)],
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(ids_of(t, &both).await, [0, 0]);
}

pub(in super::super) async fn an_id_is_renamed_to_a_name_only_if_it_is_free(t: &Fixture<'_>) {
    let (both, earlier, later) = shard_with_two_names(t).await;
    let rewrite = async |old: &str, new: &str| {
        let (old, new) = (run_of(old, &[later]), run_of(new, &[later]));
        t.rewrite_with_ids(&old, &new, vec![(id(t, &both), later)])
            .await
    };
    assert_eq!(rewrite("later", "later2").await, Replaced::Done);
    assert_eq!(ids_of(t, &both).await, [1, 1], "a message waits under it");
    t.acknowledge(1, Progress::new(earlier, Watermark(2))).await;
    assert_eq!(rewrite("later2", "later3").await, Replaced::Done);
    assert_eq!(ids_of(t, &both).await, [1, 0]);
    let wanted = [(t.shard.clone(), id(t, &both))];
    let found = t.survey().find_ids(&wanted).await.unwrap();
    assert_eq!(found, [Some(later)]);
}

/// A timer that stops may leave ids of messages that it has delivered.
pub(in super::super) async fn ids_of_finished_messages_are_removed_and_others_stay(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let ring = keys(&[("a", 1), ("b", 2), ("plain", 0)]);
    let (a, b) = (a(), keys(&[("b", 2)]));
    let count = 3_000;
    let places: Vec<_> = (0..count).map(|at| place(due(1, 0), at)).collect();
    let change = |(at, place): (usize, &Cursor)| {
        let text = format!("id {at}");
        let keys = if at % 2 == 0 { &a } else { &b };
        let id = keys.stored_id(&t.shard, &text);
        IdChange::new(id, IdChangeKind::Schedule(*place))
    };
    let changes: Vec<_> = places.iter().enumerate().map(change).collect();
    t.append(0, count, &[&run_of("w", &places)], &changes).await;
    assert_eq!(ids_of(t, &ring).await, [1_500, 1_500, 0]);
    remove_finished_ids(t).await;
    assert_eq!(
        ids_of(t, &ring).await,
        [1_500, 1_500, 0],
        "all of them wait"
    );
    t.take_lease(1).await;
    let last = places.len() - 1;
    t.claim(1, Progress::new(places[last], Watermark(count)))
        .await;
    remove_finished_ids(t).await;
    assert_eq!(
        ids_of(t, &ring).await,
        [1_500, 1_500, 0],
        "none is delivered"
    );
    t.acknowledge(1, Progress::new(places[last - 1], Watermark(count)))
        .await;
    remove_finished_ids(t).await;
    assert_eq!(ids_of(t, &ring).await, [0, 1, 0]);
}
