//! Cases for advance (I4, I5), pauses and quarantine.

use super::fixture::{Fixture, cancel, due, key_of, listing, place, run_of, schedule};
use crate::model::{Cursor, Offset, Pause, PauseState, Progress, Timestamp, Watermark};
use crate::run::Run;
use crate::store::{Advance, Advanced, Append, Appended, NewShard, Opened, Restored, Tailed};
use std::time::Duration;

fn pair(due_millis: i64, offset: u64, watermark: u64) -> Progress {
    Progress::new(place(due(1, due_millis), offset), Watermark(watermark))
}

pub(super) async fn the_delivered_pair_never_moves_back(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    for (told, wanted) in [
        (pair(5, 5, 5), pair(5, 5, 5)),
        (pair(9, 1, 7), pair(9, 1, 7)),
        (pair(5, 5, 5), pair(9, 1, 7)),
    ] {
        t.acknowledge(1, told).await;
        assert_eq!(t.state().await.delivered, wanted);
    }
    t.advance(t.empty_advance(1)).await;
    assert_eq!(t.state().await.delivered, pair(9, 1, 7));
}

pub(super) async fn the_delivered_pair_moves_only_to_a_pair_that_includes_it(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.acknowledge(1, pair(5, 5, 5)).await;
    // Neither pair includes the other. The maximum of both would cover messages that neither
    // covers.
    for told in [pair(6, 0, 4), pair(4, 9, 6), pair(5, 4, 9)] {
        t.acknowledge(1, told).await;
        assert_eq!(t.state().await.delivered, pair(5, 5, 5));
    }
}

pub(super) async fn the_claimed_pair_moves_forward_by_component(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    for (told, wanted) in [
        (pair(5, 5, 5), pair(5, 5, 5)),
        (pair(3, 9, 8), pair(5, 5, 8)),
        (pair(6, 0, 2), pair(6, 0, 8)),
        (pair(1, 1, 1), pair(6, 0, 8)),
    ] {
        t.claim(1, told).await;
        let claimed = t.state().await.claimed;
        assert_eq!(claimed, wanted, "the claimed pair moves only forward");
    }
    t.take_lease(1).await;
    t.take_over(2, 1).await;
    t.claim(2, pair(1, 1, 1)).await;
    assert_eq!(
        t.state().await.claimed,
        pair(6, 0, 8),
        "a new owner starts behind the old one's claim and leaves it"
    );
}

pub(super) async fn an_old_token_changes_nothing(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    t.append(0, 1, &[&run], &[schedule("id", place(due(1, 0), 0))])
        .await;
    t.take_lease(1).await;
    t.take_over(2, 1).await;
    let before = t.state().await;
    let advance = Advance {
        delivered: Some(pair(9, 9, 9)),
        deletes: vec![key_of(&run)],
        delivered_ids: vec![("id".into(), place(due(1, 0), 0))],
        claimed_answers: vec![],
        delivered_answers: vec![],
        claim: Some(pair(9, 9, 9)),
        ..t.empty_advance(1)
    };
    assert_eq!(t.advance(advance).await, Advanced::Fenced);
    assert_eq!(t.quarantine(1, &[&run]).await, 0);
    assert_eq!(t.state().await, before);
    assert_eq!(t.fetch(&[&run]).await, [Some(run.bytes.clone())]);
    assert_eq!(
        t.append(1, 2, &[], &[cancel("id")]).await,
        Appended::Done {
            cancelled: 1,
            missed: 0,
            told: Vec::new(),
        }
    );
}

pub(super) async fn delivered_runs_are_deleted_by_name_and_subtracted_from_the_counts(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let near = run_of("near", &[place(due(1, 0), 0), place(due(1, 3), 1)]);
    let next = run_of("next", &[place(due(1, 9), 2)]);
    let far = run_of("far", &[place(due(8, 0), 3)]);
    t.append_runs(0, 4, &[&near, &next, &far]).await;
    t.take_lease(1).await;
    let never = run_of("never", &[place(due(44, 0), 1)]);
    let elsewhere = (far.slice, next.name.clone());
    let deletes = vec![key_of(&never), key_of(&near), key_of(&near), elsewhere];
    let done = t
        .advance(Advance {
            delivered: Some(pair(3, 1, 4)),
            deletes: deletes.clone(),
            ..t.empty_advance(1)
        })
        .await;
    assert_eq!(
        done,
        Advanced::Done {
            watermark: Watermark(4),
            cancelled: vec![],
            effects: vec![]
        }
    );
    assert_eq!(t.state().await.pending(), 2);
    assert_eq!(t.list_all().await.1, [listing(&next), listing(&far)]);
    assert_eq!(
        t.fetch(&[&near, &next, &far]).await,
        [None, Some(next.bytes.clone()), Some(far.bytes.clone())]
    );
    // Runs of an earlier pair can be deleted without a pair.
    t.advance(Advance {
        deletes: vec![key_of(&next), key_of(&far)],
        ..t.empty_advance(1)
    })
    .await;
    assert_eq!(t.state().await.pending(), 0);
    assert_eq!(t.state().await.lowest_pending, Offset(4));
}

pub(super) async fn an_id_is_removed_only_if_it_names_the_delivered_place(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (first, second) = (place(due(1, 0), 0), place(due(5, 0), 1));
    t.append(
        0,
        1,
        &[&run_of("a", &[first])],
        &[schedule("id", first), schedule("other", first)],
    )
    .await;
    t.take_lease(1).await;
    t.claim(1, pair(0, 0, 1)).await;
    t.append(1, 2, &[&run_of("b", &[second])], &[schedule("id", second)])
        .await;
    let ids = vec![
        ("id".into(), first),
        ("other".into(), first),
        ("none".into(), first),
    ];
    t.advance(Advance {
        delivered: Some(pair(0, 0, 1)),
        delivered_ids: ids,
        claimed_answers: vec![],
        delivered_answers: vec![],
        ..t.empty_advance(1)
    })
    .await;
    // `id` names the second message now. `other` named only the first.
    assert_eq!(
        t.append(2, 3, &[], &[cancel("id"), cancel("other")]).await,
        Appended::Done {
            cancelled: 1,
            missed: 1,
            told: Vec::new(),
        }
    );
}

pub(super) async fn a_claim_returns_the_cancelled_places_inside_it(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let places: Vec<Cursor> = [
        (Timestamp::AT_ONCE, 5),
        (due(1, 0), 2),
        (due(1, 0), 4),
        (due(2, 0), 1),
        (due(3, 0), 0),
    ]
    .map(|(due, offset)| place(due, offset))
    .to_vec();
    let ids = ["a", "b", "c", "d", "e"];
    let changes: Vec<_> = ids
        .iter()
        .zip(&places)
        .map(|(id, place)| schedule(id, *place))
        .collect();
    let runs: Vec<_> = places
        .iter()
        .map(|place| run_of(&format!("r{}", place.offset), &[*place]))
        .collect();
    t.append(0, 6, &runs.iter().collect::<Vec<_>>(), &changes)
        .await;
    assert_eq!(
        t.append(6, 7, &[], &ids.map(cancel)).await,
        Appended::Done {
            cancelled: 5,
            missed: 0,
            told: Vec::new(),
        }
    );
    t.take_lease(1).await;

    let hour_two =
        |offset, watermark| Progress::new(place(due(2, 0), offset), Watermark(watermark));
    assert_eq!(
        t.claim(1, hour_two(1, 4)).await,
        [places[1], places[3]],
        "nothing past W"
    );
    assert_eq!(
        t.claim(1, hour_two(0, 6)).await,
        [places[0], places[1], places[2]],
        "nothing past C"
    );
    assert_eq!(t.claim(1, hour_two(1, 6)).await, places[..4]);
    // Places inside the delivered pair are not reported again, neither in this call nor later.
    let delivered = Progress::new(place(due(1, 0), 2), Watermark(5));
    let advance = Advance {
        delivered: Some(delivered),
        claim: Some(hour_two(1, 6)),
        ..t.empty_advance(1)
    };
    let wanted = Advanced::Done {
        watermark: Watermark(7),
        cancelled: vec![places[0], places[2], places[3]],
        effects: vec![],
    };
    assert_eq!(t.advance(advance).await, wanted);
    let everything = Progress::new(place(due(9, 0), 9), Watermark(7));
    assert_eq!(
        t.claim(1, everything).await,
        [places[0], places[2], places[3], places[4]]
    );
    t.acknowledge(1, everything).await;
    assert_eq!(t.claim(1, everything).await, []);
}

pub(super) async fn a_claim_ahead_of_the_stores_time_is_rejected_but_the_rest_is_stored(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    t.append_runs(0, 1, &[&run]).await;
    t.take_lease(1).await;
    let now = t.store_time().await;
    for ahead in [now.plus(Duration::from_secs(600)), Timestamp::MAX] {
        let claim = Some(Progress::new(place(ahead, 0), Watermark(1)));
        let advance = Advance {
            delivered: Some(pair(0, 0, 1)),
            deletes: vec![key_of(&run)],
            claim,
            ..t.empty_advance(1)
        };
        let Advanced::ClockAhead {
            watermark,
            now: then,
        } = t.advance(advance).await
        else {
            panic!("{ahead} is ahead of {now}")
        };
        assert_eq!(watermark, Watermark(1));
        assert!(then >= now && then < now.plus(Duration::from_secs(60)));
        let state = t.state().await;
        assert_eq!(
            (state.delivered, state.claimed, state.pending()),
            (pair(0, 0, 1), Progress::START, 0)
        );
    }
}

pub(super) async fn a_claim_within_the_allowed_skew_is_accepted(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    let now = t.store_time().await;
    let claim = Progress::new(place(now.plus(Duration::from_secs(600)), 0), Watermark(0));
    let advanced = t
        .advance(Advance {
            claim: Some(claim),
            clock_skew_max: Duration::from_secs(601),
            ..t.empty_advance(1)
        })
        .await;
    assert_eq!(
        advanced,
        Advanced::Done {
            watermark: Watermark(0),
            cancelled: vec![],
            effects: vec![]
        }
    );
    assert_eq!(t.state().await.claimed, claim);
}

pub(super) async fn a_repeated_advance_changes_nothing_more(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (a, b) = (
        run_of("a", &[place(due(1, 0), 0)]),
        run_of("b", &[place(due(1, 9), 1)]),
    );
    t.append(0, 2, &[&a, &b], &[schedule("id", place(due(1, 9), 1))])
        .await;
    t.take_lease(1).await;
    t.append(2, 3, &[], &[cancel("id")]).await;
    let advance = Advance {
        delivered: Some(pair(0, 0, 2)),
        deletes: vec![key_of(&a)],
        claim: Some(pair(9, 1, 2)),
        ..t.empty_advance(1)
    };
    let first = t.advance(advance.clone()).await;
    let state = t.state().await;
    assert_eq!(
        first,
        Advanced::Done {
            watermark: Watermark(3),
            cancelled: vec![place(due(1, 9), 1)],
            effects: vec![],
        }
    );
    assert_eq!(t.advance(advance).await, first);
    assert_eq!(t.state().await, state);
    assert_eq!(t.list_all().await.1, [listing(&b)]);
}

pub(super) async fn a_quarantined_run_leaves_its_slice_and_still_limits_the_lowest_pending_offset(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    let bad = run_of("bad", &[place(due(1, 0), 1), place(due(1, 0), 2)]);
    let good = run_of("good", &[place(due(1, 0), 0), place(due(1, 0), 3)]);
    let gone = run_of("gone", &[place(due(6, 0), 4)]);
    t.append_runs(0, 5, &[&bad, &good, &gone]).await;
    t.take_lease(1).await;
    assert_eq!(t.quarantine(1, &[&bad, &gone]).await, 2);
    assert_eq!(t.list_all().await.1, [listing(&good)]);
    assert_eq!(t.fetch(&[&bad]).await, [None]);
    let state = t.state().await;
    assert_eq!(
        (state.pending(), state.quarantined, state.lowest_pending),
        (2, 3, Offset(0))
    );
    t.advance(Advance {
        deletes: vec![key_of(&good), key_of(&bad)],
        ..t.empty_advance(1)
    })
    .await;
    let state = t.state().await;
    assert_eq!(
        (state.pending(), state.quarantined, state.lowest_pending),
        (0, 3, Offset(1))
    );
}

pub(super) async fn quarantine_skips_deleted_runs(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let run = run_of("a", &[place(due(1, 0), 0)]);
    t.append_runs(0, 1, &[&run]).await;
    t.take_lease(1).await;
    assert_eq!(
        t.quarantine(1, &[&run, &run, &run_of("never", &[place(due(5, 0), 0)])])
            .await,
        1
    );
    assert_eq!(t.quarantine(1, &[&run]).await, 0);
    assert_eq!(t.state().await.quarantined, 1);
}

/// Two runs in quarantine, and a third one beside them.
async fn two_in_quarantine(t: &Fixture<'_>) -> [Run; 3] {
    t.create_shard(0).await;
    let runs = [1, 2, 3].map(|n| run_of(&format!("r{n}"), &[place(due(n, 0), n as u64 - 1)]));
    t.append_runs(0, 3, &[&runs[0], &runs[1], &runs[2]]).await;
    t.take_lease(1).await;
    assert_eq!(t.quarantine(1, &[&runs[0], &runs[1]]).await, 2);
    runs
}

pub(super) async fn a_quarantined_run_is_listed_with_its_bytes(t: &Fixture<'_>) {
    let runs = two_in_quarantine(t).await;
    let mut names = t.survey().quarantined_runs(&t.shard).await.unwrap();
    names.sort();
    assert_eq!(names, [runs[0].name.clone(), runs[1].name.clone()]);
    let bytes = async |run: &Run| {
        let bytes = t.survey().quarantined_bytes(&t.shard, &run.name);
        bytes.await.unwrap()
    };
    assert_eq!(bytes(&runs[1]).await, Some(runs[1].bytes.clone()));
    assert_eq!(bytes(&runs[2]).await, None);
}

pub(super) async fn a_restored_run_is_pending_again_and_its_shard_has_no_owner(t: &Fixture<'_>) {
    let runs = two_in_quarantine(t).await;
    let new = run_of("new", &[place(due(77, 0), 0)]);
    assert_eq!(t.restore(&runs[0], &[&new]).await, Restored::Done);
    assert_eq!(t.list_all().await.1, [listing(&runs[2]), listing(&new)]);
    assert_eq!(t.fetch(&[&new]).await, [Some(new.bytes.clone())]);
    let state = t.state().await;
    let counts = (state.pending(), state.quarantined, state.lowest_pending);
    assert_eq!(counts, (2, 1, Offset(0)));
    let slice = state.slices.iter().find(|count| count.slice == new.slice);
    assert_eq!(
        slice.map(|count| (count.messages, count.bytes)),
        Some((1, new.bytes.len() as u64))
    );
    assert!(!t.is_held_by(1).await);
    t.take_lease(2).await;
}

pub(super) async fn a_repeated_restore_changes_nothing_more(t: &Fixture<'_>) {
    let runs = two_in_quarantine(t).await;
    let new = run_of("new", &[place(due(77, 0), 0)]);
    assert_eq!(t.restore(&runs[0], &[&new]).await, Restored::Done);
    t.take_lease(2).await;
    let before = (t.state().await, t.list_all().await);
    assert_eq!(t.restore(&runs[0], &[&new]).await, Restored::Gone);
    assert_eq!(t.restore(&runs[2], &[&new]).await, Restored::Gone);
    assert_eq!((t.state().await, t.list_all().await), before);
    assert!(t.is_held_by(2).await);
    let again = run_of("again", &[place(due(78, 0), 1)]);
    assert_eq!(t.restore(&runs[1], &[&again]).await, Restored::Done);
    assert_eq!(t.state().await.quarantined, 0);
}

pub(super) async fn a_restore_inside_the_claimed_pair_writes_nothing(t: &Fixture<'_>) {
    let runs = two_in_quarantine(t).await;
    let cursor = place(due(5, 0), 9);
    t.claim(1, Progress::new(cursor, Watermark(3))).await;
    let before = (t.state().await, t.list_all().await);
    let later = place(due(9, 0), 0);
    for first in [cursor, place(due(4, 0), 0)] {
        let new = [run_of("first", &[first]), run_of("later", &[later])];
        let restored = t.restore(&runs[0], &[&new[1], &new[0]]).await;
        assert_eq!(restored, Restored::TooEarly);
    }
    assert_eq!((t.state().await, t.list_all().await), before);
    assert!(t.is_held_by(1).await);
}

/// The state after the control record at this offset.
pub(super) fn pause(offset: u64, is_paused: bool) -> Pause {
    let state = PauseState {
        after: Watermark(offset + 1),
        is_paused,
        since: Timestamp::from_millis(-7),
        until: Timestamp::from_millis(8),
        earlier: Duration::from_millis(3),
        at: Timestamp::from_millis(9),
        note: "why: \"ö\" (who)".into(),
    };
    state.into()
}

async fn append(t: &Fixture<'_>, from: u64, pause: Pause) {
    let append = Append {
        pause: Some(pause),
        ..t.append_request(from, from + 1, &[], &[])
    };
    let appended = t.store().append(&[append]).await.unwrap();
    assert!(matches!(appended[0], Appended::Done { .. }), "{appended:?}");
}

async fn pause_in_tail(t: &Fixture<'_>) -> Option<Pause> {
    let after = t.state().await.watermark.0;
    match t.tail(after, Timestamp::AT_ONCE, 1).await {
        Tailed::Runs { pause, .. } => pause,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_paused_shard_refuses_claims_but_the_rest_is_stored(t: &Fixture<'_>) {
    t.create_shard(0).await;
    let (first, second) = (place(due(1, 0), 0), place(due(1, 0), 1));
    t.append_runs(0, 2, &[&run_of("a", &[first, second])]).await;
    t.take_lease(1).await;
    let (before, next) = (
        Progress::new(first, Watermark(2)),
        Progress::new(second, Watermark(2)),
    );
    t.claim(1, before).await;
    append(t, 2, pause(2, true)).await;
    let advance = Advance {
        delivered: Some(before),
        claim: Some(next),
        ..t.empty_advance(1)
    };
    for _ in 0..2 {
        let refused = Advanced::Paused {
            watermark: Watermark(3),
            pause: pause(2, true),
        };
        assert_eq!(t.advance(advance.clone()).await, refused);
        let state = t.state().await;
        assert_eq!((state.delivered, state.claimed), (before, before));
    }
    append(t, 3, pause(3, false)).await;
    t.claim(1, next).await;
    assert_eq!(t.state().await.claimed, next);
}

pub(super) async fn a_shard_keeps_the_newest_pause(t: &Fixture<'_>) {
    t.create_shard(0).await;
    assert_eq!(t.state().await.pause, None);
    assert_eq!(pause_in_tail(t).await, None);
    append(t, 0, pause(0, true)).await;
    append(t, 1, pause(10, false)).await;
    // The reader had read it before the store lost writes.
    append(t, 2, pause(2, true)).await;
    assert_eq!(t.state().await.pause, Some(pause(10, false)));
    t.append_runs(3, 4, &[]).await;
    for newest in [pause(10, false), pause(12, true)] {
        let opened = t
            .open(NewShard {
                pause: Some(newest.clone()),
                ..t.new_shard(0, Progress::START)
            })
            .await;
        assert!(
            matches!(&opened, Opened::Existing(state) if state.pause.as_ref() == Some(&newest)),
            "{opened:?}"
        );
        assert_eq!(t.state().await.pause, Some(newest.clone()));
        assert_eq!(pause_in_tail(t).await, Some(newest));
    }
    t.open(t.new_shard(0, Progress::START)).await;
    assert_eq!(t.state().await.pause, Some(pause(12, true)));
}

pub(super) async fn a_shard_is_created_with_the_pause_of_its_commit(t: &Fixture<'_>) {
    let new = NewShard {
        pause: Some(pause(17, true)),
        ..t.new_shard(4, Progress::START)
    };
    t.open(new).await;
    assert_eq!(t.state().await.pause, Some(pause(17, true)));
    t.take_lease(1).await;
    let advance = Advance {
        claim: Some(Progress::new(place(due(1, 0), 4), Watermark(4))),
        ..t.empty_advance(1)
    };
    let refused = t.advance(advance).await;
    assert!(matches!(refused, Advanced::Paused { .. }), "{refused:?}");
}
