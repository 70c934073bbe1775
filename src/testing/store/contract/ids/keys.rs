//! Cases for encrypted runs and hashed ids. A store knows keys by the names of runs and by the hashes.

use super::super::fixture::{Fixture, due, place};
use super::super::run_of;
use crate::encryption::test_rings::{line, ring};
use crate::encryption::{KeyRing, StoredId};
use crate::model::{Cursor, Progress, Watermark};
use crate::run::{Run, RunName};
use crate::store::{Advance, Appended, IdChange, IdChangeKind, KeyUse, Replaced, Restored};

fn keys(ids: &[(&str, u8)]) -> KeyRing {
    let lines = ids.iter().map(|(id, byte)| match *id {
        "plain" => "plain\n".to_owned(),
        id => line(id, *byte),
    });
    ring(&lines.collect::<String>())
}

fn a() -> KeyRing {
    keys(&[("a", 1)])
}

fn b_and_a() -> KeyRing {
    keys(&[("b", 2), ("a", 1)])
}

fn a_and_plain() -> KeyRing {
    keys(&[("a", 1), ("plain", 0)])
}

/// A run under the name of the key that writes.
fn encrypted(keys: &KeyRing, writer: &str, places: &[Cursor]) -> Run {
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
    IdChange {
        id: id(t, keys),
        kind: IdChangeKind::Schedule(place),
    }
}

fn cancel(t: &Fixture<'_>, keys: &KeyRing) -> IdChange {
    IdChange {
        id: id(t, keys),
        kind: IdChangeKind::Cancel,
    }
}

fn done(cancelled: u32, missed: u32) -> Appended {
    Appended::Done { cancelled, missed }
}

async fn used(t: &Fixture<'_>) -> Vec<(String, KeyUse)> {
    let state = t.state().await;
    let keys = state.keys.iter();
    let mut used: Vec<_> = keys
        .map(|(name, used)| (name.split_once('-').expect("a name").1.to_owned(), *used))
        .collect();
    used.sort_by(|a, b| a.0.cmp(&b.0));
    used
}

fn usage(key: &str, messages: u64, runs: &[&Run]) -> (String, KeyUse) {
    let bytes = runs.iter().map(|run| run.bytes.len() as u64).sum();
    (key.to_owned(), KeyUse::new(messages, bytes))
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
    let b = usage("b", 1, &[&third]);
    let both = usage("a", 3, &[&first, &second]);
    assert_eq!(used(t).await, [both.clone(), b.clone()]);
    let others = t.state().await.other_keys(&b_and_a());
    assert_eq!(
        (others.old.messages, others.missing.messages),
        (3, 1),
        "plain data is missing"
    );
    assert_eq!(t.state().await.lowest_pending.0, 0);
    t.take_lease(1).await;
    t.quarantine(1, &[&second]).await;
    assert_eq!(used(t).await, [both, b], "a key is used in quarantine, too");
    let restored = encrypted(&b_and_a(), "restored", &places(&[3]));
    assert_eq!(t.restore(&second, &[&restored]).await, Restored::Done);
    t.take_lease(1).await;
    let rewritten = encrypted(&b_and_a(), "rewritten", &places(&[1, 2]));
    assert_eq!(t.rewrite(1, &[&first], &[&rewritten]).await, Replaced::Done);
    assert_eq!(
        used(t).await,
        [usage("b", 4, &[&third, &restored, &rewritten])]
    );
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
