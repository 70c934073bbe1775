//! Cases for the audit list and for requests with an idempotency key.

use super::super::fixture::Fixture;
use crate::clock::{Clock as _, WallClock};
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::store::{AuditPart, AuditPosition, AuditRow, Error, RequestName};
use bytes::Bytes;
use std::time::Duration;

fn row(number: u32) -> AuditRow {
    row_of(AuditPart::Changes, number)
}

fn row_of(part: AuditPart, number: u32) -> AuditRow {
    let at = Timestamp::from_millis(1_000 + i64::from(number / 2));
    AuditRow {
        part,
        position: AuditPosition::new(at, 7, number),
        bytes: Bytes::from(format!("\u{0}line {number}\r\n")),
    }
}

pub(in super::super) async fn the_audit_list_has_the_last_lines_in_their_order(t: &Fixture<'_>) {
    let listed_of = async |part, before: Option<u32>, limit| {
        let before = before.map(|number| row(number).position);
        let rows = t.admin().audit_rows(part, before.as_ref(), limit).await;
        rows.unwrap()
    };
    let listed = async |before, limit| listed_of(AuditPart::Changes, before, limit).await;
    let first: Vec<_> = (0..3).map(row).collect();
    t.admin().add_audit_rows(&[]).await.unwrap();
    t.admin().add_audit_rows(&first[1..]).await.unwrap();
    t.admin().add_audit_rows(&first[..2]).await.unwrap();
    assert_eq!(listed(None, 9).await, [row(2), row(1), row(0)], "each once");
    assert_eq!(listed(None, 2).await, [row(2), row(1)]);
    assert_eq!(listed(Some(2), 9).await, [row(1), row(0)]);
    assert_eq!(listed(Some(0), 9).await, []);
    t.subject.set_full(true).await;
    let added = t.admin().add_audit_rows(&[row(3)]).await;
    assert!(matches!(added, Err(Error::Full)), "{added:?}");
    assert_eq!(listed(None, 1).await, [row(2)]);
    t.subject.set_full(false).await;
    let max = AUDIT_LINES_MAX as u32;
    let more: Vec<_> = (3..max + 2).map(row).collect();
    t.admin().add_audit_rows(&more).await.unwrap();
    let all = listed(None, 2 * AUDIT_LINES_MAX).await;
    assert_eq!(all.len(), AUDIT_LINES_MAX);
    assert_eq!(
        (&all[0], &all[AUDIT_LINES_MAX - 1]),
        (&row(max + 1), &row(2))
    );
    // Frequent lines have a bound of their own.
    let frequent = |number| row_of(AuditPart::Frequent, number);
    let more: Vec<_> = (max + 2..2 * max + 5).map(frequent).collect();
    t.admin().add_audit_rows(&more).await.unwrap();
    let late = [row(2 * max + 5), frequent(2 * max + 6)];
    t.admin().add_audit_rows(&late).await.unwrap();
    let all = listed(None, 2 * AUDIT_LINES_MAX).await;
    assert_eq!(all.len(), AUDIT_LINES_MAX, "publishes remove no change");
    assert_eq!(
        (&all[0], &all[AUDIT_LINES_MAX - 1]),
        (&row(2 * max + 5), &row(3))
    );
    let all = listed_of(AuditPart::Frequent, None, 2 * AUDIT_LINES_MAX).await;
    assert_eq!(all.len(), AUDIT_LINES_MAX);
    let newest = [frequent(2 * max + 6), frequent(2 * max + 4)];
    assert_eq!(all[..2], newest);
    let page = listed_of(AuditPart::Frequent, Some(2 * max + 5), 1).await;
    assert_eq!(page, newest[1..]);
}

const KEPT_FOR: Duration = Duration::from_secs(3_600);

fn name(number: usize) -> RequestName {
    RequestName::of_hash(&number.to_be_bytes())
}

pub(in super::super) async fn a_request_is_begun_once_until_it_is_forgotten_or_its_time_is_over(
    t: &Fixture<'_>,
) {
    let now = WallClock.now();
    let (until, past) = (now.plus(KEPT_FOR), now.minus(KEPT_FOR));
    let begin = async |state: &'static str| {
        let state = Bytes::from_static(state.as_bytes());
        t.admin()
            .begin_request(&name(1), &state, KEPT_FOR)
            .await
            .unwrap()
    };
    assert_eq!(begin("runs").await, None);
    assert_eq!(begin("other").await, Some("runs".into()));
    t.admin().forget_request(&name(1)).await.unwrap();
    t.admin().forget_request(&name(1)).await.unwrap();
    assert_eq!(begin("again").await, None, "it was forgotten");
    let ended = Bytes::from_static(b"ended");
    t.admin()
        .end_request(&name(1), &ended, until, 9)
        .await
        .unwrap();
    assert_eq!(begin("other").await, Some(ended.clone()));
    t.admin()
        .end_request(&name(1), &ended, past, 9)
        .await
        .unwrap();
    assert_eq!(begin("new").await, None, "its time is over");
    t.subject.set_full(true).await;
    let full = t.admin().begin_request(&name(2), &ended, KEPT_FOR).await;
    assert!(matches!(full, Err(Error::Full)), "{full:?}");
    let full = t.admin().end_request(&name(1), &ended, until, 9).await;
    assert!(matches!(full, Err(Error::Full)), "{full:?}");
    t.admin().forget_request(&name(1)).await.unwrap();
    t.subject.set_full(false).await;
    assert_eq!(begin("new").await, None);
    t.admin().forget_request(&name(1)).await.unwrap();
}

pub(in super::super) async fn the_last_requests_that_ended_are_kept(t: &Fixture<'_>) {
    const KEPT: usize = 3;
    let start = WallClock.now().plus(KEPT_FOR);
    let until = |number: usize| start.plus(Duration::from_millis(number as u64));
    let state = Bytes::from_static(b"ended");
    for number in 0..6 {
        let (name, until) = (name(number), until(number));
        let begun = t.admin().begin_request(&name, &state, KEPT_FOR).await;
        assert_eq!(begun.unwrap(), None, "{number}");
        let ended = t.admin().end_request(&name, &state, until, KEPT).await;
        ended.unwrap();
    }
    for number in (0..6).rev() {
        let begun = t
            .admin()
            .begin_request(&name(number), &state, KEPT_FOR)
            .await;
        let is_kept = begun.unwrap().is_some();
        assert_eq!(is_kept, number >= 6 - KEPT, "{number}");
    }
    for number in 0..6 {
        t.admin().forget_request(&name(number)).await.unwrap();
    }
}

pub(in super::super) async fn a_name_that_is_used_again_is_not_forgotten_as_an_old_one(
    t: &Fixture<'_>,
) {
    const KEPT: usize = 9;
    let (again, others) = (name(10), 11..=11 + KEPT);
    let soon = WallClock.now().plus(Duration::from_millis(50));
    let later = WallClock.now().plus(KEPT_FOR);
    let ended = Bytes::from_static(b"ended");
    let end = async |name: &RequestName, until| {
        let ended = t.admin().end_request(name, &ended, until, KEPT).await;
        ended.unwrap();
    };
    end(&again, soon).await;
    end(&name(11), later).await;
    let runs = Bytes::from_static(b"runs");
    let begin = async || {
        let begun = t.admin().begin_request(&again, &runs, 2 * KEPT_FOR).await;
        begun.unwrap()
    };
    while begin().await.is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for number in others.clone() {
        end(&name(number), later).await;
    }
    assert_eq!(begin().await, Some(runs.clone()));
    for number in others.chain([10]) {
        t.admin().forget_request(&name(number)).await.unwrap();
    }
}
