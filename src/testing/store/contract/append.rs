//! Cases for append: compare and append, all or nothing (I2).

use super::fixture::{Fixture, cancel, due, key_of, listing, place, run_of, schedule};
use crate::model::{
    Cursor, Offset, Partition, Progress, ShardId, SourceIdentity, Timestamp, Watermark,
};
use crate::run::Run;
use crate::store::{
    Advance, Append, AppendEpoch, Appended, IdChange, Lineage, NewShard, Replaced, due_by,
};

pub(super) async fn an_append_at_the_watermark_moves_it_and_adds_runs(t: &Fixture<'_>) {
    t.create_shard(10).await;
    let near = run_of("near", &[place(due(1, 0), 10), place(due(1, 7), 12)]);
    let far = run_of("far", &[place(due(5, 0), 11)]);
    t.append_runs(10, 13, &[&near, &far]).await;
    assert_eq!(
        t.list_all().await,
        (Watermark(13), vec![listing(&near), listing(&far)])
    );
    assert_eq!(
        t.fetch(&[&far, &near]).await,
        [Some(far.bytes.clone()), Some(near.bytes.clone())]
    );
    let state = t.state().await;
    assert_eq!(
        (state.watermark, state.lowest_pending, state.pending()),
        (Watermark(13), Offset(10), 3)
    );
    assert_eq!(
        state.stored_bytes(),
        (near.bytes.len() + far.bytes.len()) as u64
    );
    let due_before = |hour| due_by(&state.slices, due(hour, 0), Timestamp::from_millis(0));
    assert_eq!([1, 2, 5, 6].map(due_before), [0, 2, 2, 3]);
}

pub(super) async fn a_repeated_append_returns_the_watermark_and_adds_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    let changes = [schedule("id", place(due(1, 0), 0)), cancel("none")];
    assert_eq!(
        t.append(0, 1, &[&run], &changes).await,
        Appended::Done {
            cancelled: 0,
            missed: 1,
            told: Vec::new(),
        }
    );
    let before = t.state().await;
    assert_eq!(
        t.append(0, 1, &[&run], &changes).await,
        Appended::WatermarkMismatch(Watermark(1))
    );
    assert_eq!(t.state().await, before);
    assert_eq!(t.list_all().await, (Watermark(1), vec![listing(&run)]));
}

pub(super) async fn an_append_behind_or_ahead_of_the_watermark_writes_nothing(t: &Fixture<'_>) {
    t.create_shard(5).await;
    let before = t.state().await;
    for (from, to) in [(4, 6), (6, 7), (0, 5), (4, 4)] {
        let run = run_of("a", &[place(due(1, 0), from)]);
        let changes = [schedule("id", place(due(1, 0), from))];
        assert_eq!(
            t.append(from, to, &[&run], &changes).await,
            Appended::WatermarkMismatch(Watermark(5))
        );
        assert_eq!(t.fetch(&[&run]).await, [None]);
    }
    assert_eq!(t.state().await, before);
    assert_eq!(t.list_all().await, (Watermark(5), vec![]));
    assert_eq!(
        t.append(5, 6, &[], &[cancel("id")]).await,
        Appended::Done {
            cancelled: 0,
            missed: 1,
            told: Vec::new(),
        }
    );
}

pub(super) async fn an_empty_append_moves_the_watermark_over_a_gap(t: &Fixture<'_>) {
    t.create_shard(5).await;
    t.append_runs(5, 90, &[]).await;
    let state = t.state().await;
    assert_eq!(
        (state.watermark, state.lowest_pending),
        (Watermark(90), Offset(90))
    );
    t.append_runs(90, 91, &[]).await;
}

pub(super) async fn the_lineage_names_the_last_append_epoch_and_its_start(t: &Fixture<'_>) {
    t.create_shard(0).await;
    assert_eq!(t.history().await, Lineage::default());
    let reading = |number| AppendEpoch {
        process: u64::MAX,
        number,
    };
    let append = async |number, from, to| {
        let append = Append {
            epoch: reading(number),
            ..t.append_request(from, to, &[], &[])
        };
        t.store().append(&[append]).await.unwrap().remove(0)
    };
    let done = Appended::Done {
        cancelled: 0,
        missed: 0,
        told: Vec::new(),
    };
    assert_eq!(
        (append(1, 0, 5).await, append(1, 5, 9).await),
        (done.clone(), done.clone())
    );
    let mut history = Lineage::default();
    history.appended(reading(1), Watermark(0));
    assert_eq!(t.history().await, history);
    assert_eq!(
        append(2, 5, 9).await,
        Appended::WatermarkMismatch(Watermark(9))
    );
    assert_eq!(t.history().await, history, "it has stored nothing");
    let run = run_of("a", &[place(due(1, 0), 9)]);
    t.take_lease(1).await;
    assert_eq!(t.rewrite(1, &[], &[&run]).await, Replaced::Done);
    assert_eq!(
        (append(2, 9, 10).await, append(2, 10, 11).await),
        (done.clone(), done.clone())
    );
    history.replacements = 1;
    history.appended(reading(2), Watermark(9));
    assert_eq!(t.history().await, history);
    for number in 3..9 {
        let from = number + 8;
        assert_eq!(append(number, from, from + 1).await, done);
        history.appended(reading(number), Watermark(from));
        assert_eq!(t.history().await, history);
    }
}

pub(super) async fn an_epoch_that_another_has_followed_stores_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let append = async |process, from, to| {
        let append = Append {
            epoch: AppendEpoch { process, number: 1 },
            ..t.append_request(from, to, &[], &[])
        };
        t.store().append(&[append]).await.unwrap().remove(0)
    };
    let done = Appended::Done {
        cancelled: 0,
        missed: 0,
        told: Vec::new(),
    };
    assert_eq!(append(1, 0, 5).await, done);
    assert_eq!(
        append(2, 5, 5).await,
        done,
        "an epoch starts without records"
    );
    let history = t.history().await;
    assert_eq!(
        append(1, 5, 9).await,
        Appended::WatermarkMismatch(Watermark(5))
    );
    assert_eq!(t.history().await, history, "it has stored nothing");
    assert_eq!(append(2, 5, 9).await, done);
    assert_eq!(append(3, 9, 9).await, done);
    assert_eq!(append(3, 9, 10).await, done);
    for earlier in [1, 2] {
        assert_eq!(
            append(earlier, 10, 12).await,
            Appended::WatermarkMismatch(Watermark(10)),
            "epoch {earlier}"
        );
    }
}

pub(super) async fn requests_of_one_call_are_independent(t: &Fixture<'_>) {
    let at = |index| Fixture {
        subject: t.subject,
        shard: ShardId::new(
            "contract",
            Partition::new(t.shard.partition.topic.clone(), index),
        ),
    };
    let shards: Vec<Fixture<'_>> = (0..20).map(at).collect();
    let births: Vec<NewShard> = shards
        .iter()
        .enumerate()
        .filter(|(i, _)| i % 5 != 0)
        .map(|(i, s)| s.new_shard(i as u64, Progress::START))
        .collect();
    assert_eq!(t.store().open(&births).await.unwrap().len(), 16);
    let run = run_of("a", &[place(due(1, 0), 7)]);
    // Every third request has the wrong watermark, and every fifth shard does not exist.
    let from = |i: usize| if i.is_multiple_of(3) { 1_000 } else { i as u64 };
    let appends: Vec<_> = shards
        .iter()
        .enumerate()
        .map(|(i, s)| s.append_request(from(i), 2_000, &[&run], &[]))
        .collect();
    let wanted: Vec<_> = (0..20usize)
        .map(|i| match i {
            _ if i.is_multiple_of(5) => Appended::Unknown,
            _ if i.is_multiple_of(3) => Appended::WatermarkMismatch(Watermark(i as u64)),
            _ => Appended::Done {
                cancelled: 0,
                missed: 0,
                told: Vec::new(),
            },
        })
        .collect();
    assert_eq!(t.store().append(&appends).await.unwrap(), wanted);
    for (shard, outcome) in shards.iter().zip(wanted) {
        let pending = shard.state_if_created().await.map(|state| state.pending());
        assert_eq!(
            pending,
            (outcome != Appended::Unknown)
                .then_some(u64::from(matches!(outcome, Appended::Done { .. })))
        );
    }
}

pub(super) async fn positions_beyond_the_precision_of_a_double_are_exact(t: &Fixture<'_>) {
    // Two neighbours that round to the same double, and a due time whose hex digits some locales
    // sort differently.
    let base = 0x7faa_ddff_9000_0001;
    t.create_shard(base).await;
    let place = place(Timestamp::from_millis(0xaadd_ffaa), base + 1);
    let run = run_of("a", &[place]);
    assert_eq!(
        t.append(base + 1, base + 2, &[&run], &[]).await,
        Appended::WatermarkMismatch(Watermark(base))
    );
    t.append_runs(base, base + 1, &[]).await;
    assert_eq!(
        t.append(base + 1, base + 2, &[&run], &[schedule("id", place)])
            .await,
        Appended::Done {
            cancelled: 0,
            missed: 0,
            told: Vec::new(),
        }
    );
    assert_eq!(t.tail_runs(base + 1, Timestamp::MAX, 9).await.2.len(), 1);
    assert_eq!(t.tail_runs(base + 2, Timestamp::MAX, 9).await.2.len(), 0);

    t.take_lease(1).await;
    // A claim up to the offset of the message does not cover it, so the message can be cancelled.
    assert_eq!(
        t.claim(1, Progress::new(place, Watermark(base + 1))).await,
        []
    );
    assert_eq!(
        t.append(base + 2, base + 3, &[], &[cancel("id")]).await,
        Appended::Done {
            cancelled: 1,
            missed: 0,
            told: Vec::new(),
        }
    );
    let claim = Progress::new(place, Watermark(base + 2));
    assert_eq!(t.claim(1, claim).await, [place]);
    let state = t.state().await;
    assert_eq!(
        (state.watermark, state.claimed, state.lowest_pending),
        (Watermark(base + 3), claim, Offset(base + 1))
    );
}

pub(super) async fn lowest_pending_is_the_least_offset_of_the_waiting_messages(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let first = run_of("first", &[place(due(9, 0), 0), place(due(9, 0), 3)]);
    let second = run_of("second", &[place(due(1, 0), 1), place(due(1, 0), 2)]);
    let third = run_of("third", &[place(due(9, 5), 4)]);
    t.append_runs(0, 4, &[&second, &first]).await;
    t.append_runs(4, 5, &[&third]).await;
    t.take_lease(1).await;
    let delete = async |run: &Run| {
        t.advance(Advance {
            deletes: vec![key_of(run)],
            ..t.empty_advance(1)
        })
        .await;
        t.state().await.lowest_pending
    };
    assert_eq!(t.state().await.lowest_pending, Offset(0));
    assert_eq!(delete(&second).await, Offset(0));
    // The value may be too low while the slice holds another run, but never too high.
    assert!(delete(&first).await <= Offset(4));
    assert_eq!(delete(&third).await, Offset(5));
}

pub(super) async fn a_batch_may_have_more_changes_and_runs_than_a_lua_stack(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let count = 10_000;
    let at = |offset: u64| place(due(i64::try_from(offset % 900).unwrap_or(0), 0), offset);
    let runs: Vec<Run> = (0..900)
        .map(|offset| run_of(&format!("r{offset}"), &[at(offset)]))
        .collect();
    let runs: Vec<&Run> = runs.iter().collect();
    let ids: Vec<String> = (0..count).map(|offset| format!("id{offset}")).collect();
    let changes: Vec<IdChange> = ids
        .iter()
        .zip(0..)
        .map(|(id, offset)| schedule(id, at(offset)))
        .collect();
    assert_eq!(
        t.append(0, count, &runs, &changes).await,
        Appended::Done {
            cancelled: 0,
            missed: 0,
            told: Vec::new(),
        }
    );
    let cancels: Vec<IdChange> = ids.iter().map(|id| cancel(id)).collect();
    assert_eq!(
        t.append(count, count + 1, &[], &cancels).await,
        Appended::Done {
            cancelled: 10_000,
            missed: 0,
            told: Vec::new(),
        }
    );
    assert_eq!(t.list_all().await.1.len(), 900);

    t.take_lease(1).await;
    let all = Progress::new(place(due(900, 0), u64::MAX), Watermark(count + 1));
    let told = t.claim(1, all).await;
    let mut places: Vec<Cursor> = (0..count).map(at).collect();
    places.sort();
    assert_eq!(told, places);
    let ids = ids
        .iter()
        .zip(0..)
        .map(|(id, offset)| (id.as_str().into(), at(offset)))
        .collect();
    t.advance(Advance {
        delivered: Some(all),
        deletes: runs.iter().map(|run| key_of(run)).collect(),
        delivered_ids: ids,
        claimed_answers: vec![],
        delivered_answers: vec![],
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(t.state().await.pending(), 0);
    assert_eq!(t.list_all().await, (Watermark(count + 1), vec![]));
}

pub(super) async fn an_append_from_another_source_is_for_an_unknown_shard(t: &Fixture<'_>) {
    t.create_shard(3).await;
    let before = t.state().await;
    let append = Append {
        identity: SourceIdentity("topic id 2".into()),
        ..t.append_request(3, 5, &[&run_of("a", &[place(due(1, 0), 3)])], &[])
    };
    let appended = t.store().append(&[append]).await.unwrap();
    assert_eq!(
        (appended, t.state().await),
        (vec![Appended::Unknown], before)
    );
}
