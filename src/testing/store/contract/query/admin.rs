//! Cases for the audit list.

use super::super::fixture::Fixture;
use crate::limit::AUDIT_LINES_MAX;
use crate::model::Timestamp;
use crate::store::{AuditPosition, AuditRow, Error};
use bytes::Bytes;

fn row(number: u32) -> AuditRow {
    let at = Timestamp::from_millis(1_000 + i64::from(number / 2));
    AuditRow {
        position: AuditPosition::new(at, 7, number),
        bytes: Bytes::from(format!("\u{0}line {number}\r\n")),
    }
}

pub(in super::super) async fn the_audit_list_has_the_last_lines_in_their_order(t: &Fixture<'_>) {
    let listed = async |before: Option<u32>, limit| {
        let before = before.map(|number| row(number).position);
        let rows = t.admin().audit_rows(before.as_ref(), limit).await;
        rows.unwrap()
    };
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
}
