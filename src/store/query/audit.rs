//! The audit list: the JSON of `GET /v1/audit` and `postdate audit --output json`, and of the lines that the store keeps. Fields are
//! never renamed or removed.

use super::{QueryContext, StoreQuery};
use crate::encryption::KeyRing;
use crate::limit::AUDIT_TEXT_BYTES_MAX;
use crate::model::Timestamp;
use crate::store::{AuditPart, AuditPosition, AuditRow, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change that was requested, or payloads that were shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct AuditLine {
    pub(crate) at_ms: i64,
    /// The name of a user or of a certificate, `operator` or `reader` by a token, or `anyone`.
    pub(crate) actor: String,
    /// The address of the client. Empty: unknown.
    pub(crate) address: String,
    /// Like `cancel` or `redrive`; `show` for payloads.
    pub(crate) action: String,
    pub(crate) route: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) partition: Option<i32>,
    pub(crate) offset: Option<u64>,
    pub(crate) id: Option<String>,
    /// The origin of a message without an id.
    pub(crate) of: Option<String>,
    /// The conditions of a call for many messages.
    pub(crate) filter: Option<String>,
    /// The new due time.
    pub(crate) due_ms: Option<i64>,
    pub(crate) note: Option<String>,
    pub(crate) dry_run: Option<bool>,
    pub(crate) limit: Option<u64>,
    /// Changes per second.
    pub(crate) rate: Option<u32>,
    /// Where the search of the call began.
    pub(crate) after: Option<String>,
    /// Where the next call continues.
    pub(crate) next: Option<String>,
    /// Messages that can be changed.
    pub(crate) found: Option<u64>,
    /// Records that the broker has acknowledged.
    pub(crate) changed: Option<u64>,
    pub(crate) refused: Option<u64>,
    /// Records that were sent besides those of `changed`, and may have arrived.
    pub(crate) unconfirmed: Option<u64>,
    /// Messages whose payloads were shown.
    pub(crate) shown: Option<u64>,
    /// `written`, `repeated`, `refused`, `failed`, `done` or `interrupted`; absent for `show`.
    pub(crate) outcome: Option<String>,
}

impl AuditLine {
    /// The first line of a call for many messages is a change. A call that continues it, and a dry run, are frequent.
    pub(crate) fn part(&self) -> AuditPart {
        let is_frequent = matches!(&*self.action, "publish" | "show")
            || self.after.is_some()
            || self.dry_run == Some(true);
        match is_frequent {
            true => AuditPart::Frequent,
            false => AuditPart::Changes,
        }
    }

    /// Cuts long texts, so that a line is small.
    pub(crate) fn cut(&mut self) {
        let texts = [
            &mut self.route,
            &mut self.topic,
            &mut self.id,
            &mut self.of,
            &mut self.filter,
            &mut self.note,
            &mut self.after,
            &mut self.next,
        ];
        for text in texts.into_iter().flatten() {
            if text.len() > AUDIT_TEXT_BYTES_MAX {
                text.truncate(text.floor_char_boundary(AUDIT_TEXT_BYTES_MAX));
                text.push('…');
                text.shrink_to_fit();
            }
        }
    }

    /// The stored form.
    pub(crate) fn row(&self, position: AuditPosition, keys: &KeyRing) -> AuditRow {
        let json = serde_json::to_vec(self).expect("a line has only numbers and texts");
        let bytes = keys.seal_value(&place(&position), json).into();
        AuditRow {
            part: self.part(),
            position,
            bytes,
        }
    }

    /// `None`: no line of this ring.
    fn of_row(row: &AuditRow, keys: &KeyRing) -> Option<Self> {
        let json = keys.open_value(&place(&row.position), &row.bytes)?;
        serde_json::from_slice(&json).ok()
    }

    /// The message or the conditions, for people.
    pub(crate) fn object(&self) -> String {
        let named =
            |name: &str, value: Option<String>| value.map(|value| format!("{name} {value}"));
        let partition = self.partition.map(|partition| match self.offset {
            Some(offset) => format!("message {partition}/{offset}"),
            None => format!("partition {partition}"),
        });
        let parts = [
            partition,
            named("id", self.id.clone()),
            named("origin", self.of.clone()),
            self.filter.clone().filter(|filter| !filter.is_empty()),
            named(
                "new due time",
                self.due_ms
                    .map(|due| Timestamp::from_millis(due).to_rfc3339()),
            ),
            self.note.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The outcome and the numbers, for people.
    pub(crate) fn result(&self) -> String {
        let number =
            |number: Option<u64>, text: &str| number.map(|number| format!("{number} {text}"));
        let parts = [
            self.outcome.clone(),
            (self.dry_run == Some(true)).then(|| "dry run".to_owned()),
            number(self.changed, "changed"),
            number(self.refused.filter(|refused| *refused > 0), "refused"),
            number(self.unconfirmed.filter(|count| *count > 0), "unconfirmed"),
            number(self.shown, "shown"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn place(position: &AuditPosition) -> Vec<u8> {
    [b"audit ", position.as_str().as_bytes()].concat()
}

/// Lines of the audit list, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditReport {
    pub(crate) deployment: String,
    pub(crate) store: String,
    pub(crate) at_ms: i64,
    pub(crate) items: Vec<AuditLine>,
    /// Lines that this process cannot read, for example because it does not have their key.
    pub(crate) unreadable: u64,
    /// True if older lines follow: `after` continues the list.
    pub(crate) more: bool,
    pub(crate) after: Option<String>,
}

pub(super) async fn audit_report(
    store: &dyn StoreQuery,
    context: &QueryContext,
    parts: &[AuditPart],
    after: Option<&AuditPosition>,
    limit: usize,
    now: Timestamp,
) -> Result<AuditReport, Error> {
    // One row more than the limit shows that there are more.
    let mut rows = Vec::new();
    for part in parts {
        rows.extend(store.audit_rows(*part, after, limit + 1).await?);
    }
    let mut rows = AuditRow::newest(rows, limit + 1);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().filter(|_| more);
    let read = |row| AuditLine::of_row(row, &context.keys);
    let items: Vec<_> = rows.iter().filter_map(read).collect();
    Ok(AuditReport {
        deployment: context.deployment.clone(),
        store: context.store.clone(),
        at_ms: now.as_millis(),
        unreadable: (rows.len() - items.len()) as u64,
        items,
        more,
        after: last.map(|row| row.position.as_str().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallClock;
    use crate::encryption::test_rings::{line, ring};
    use crate::store::AdminStore as _;
    use crate::testing::store::memory::MemoryStore;
    use std::rc::Rc;

    fn row(number: u32, keys: &KeyRing) -> AuditRow {
        let mut line = AuditLine {
            at_ms: i64::from(number),
            note: Some("é".repeat(AUDIT_TEXT_BYTES_MAX)),
            ..AuditLine::default()
        };
        line.cut();
        let at = Timestamp::from_millis(line.at_ms);
        line.row(AuditPosition::new(at, 1, number), keys)
    }

    #[tokio::test]
    async fn a_report_has_pages_and_counts_lines_of_other_keys() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let keys = ring(&line("a", 1));
        let other = ring(&line("b", 2));
        let mut rows: Vec<_> = (0..5).map(|number| row(number, &keys)).collect();
        rows[3] = row(3, &other);
        store.add_audit_rows(&rows).await.unwrap();
        let context = QueryContext {
            keys,
            ..QueryContext::default()
        };
        let mut after = None;
        let mut pages = Vec::new();
        loop {
            let now = Timestamp::from_millis(9);
            let after_this = after.as_ref();
            let report = audit_report(&store, &context, &AuditPart::ALL, after_this, 2, now).await;
            let report = report.unwrap();
            let times: Vec<_> = report.items.iter().map(|line| line.at_ms).collect();
            pages.push((times, report.unreadable));
            assert_eq!(report.more, report.after.is_some());
            let Some(next) = report.after else { break };
            after = AuditPosition::parse(&next);
        }
        assert_eq!(pages, [(vec![4], 1), (vec![2, 1], 0), (vec![0], 0)]);
    }

    #[tokio::test]
    async fn a_report_has_the_parts_in_the_order_of_time_or_only_the_changes() {
        let store = MemoryStore::new(Rc::new(WallClock));
        let context = QueryContext::default();
        let row = |number: u32| AuditRow {
            part: AuditPart::ALL[number as usize % 2],
            ..row(number, &context.keys)
        };
        let rows: Vec<_> = (0..6).map(row).collect();
        store.add_audit_rows(&rows).await.unwrap();
        for (parts, expected) in [
            (&AuditPart::ALL[..], [5, 4, 3]),
            (&[AuditPart::Changes], [4, 2, 0]),
        ] {
            let now = Timestamp::from_millis(9);
            let report = audit_report(&store, &context, parts, None, 3, now).await;
            let report = report.unwrap();
            let times: Vec<_> = report.items.iter().map(|line| line.at_ms).collect();
            assert_eq!((times, report.more), (expected.into(), parts.len() > 1));
        }
    }

    #[test]
    fn lines_that_programs_cause_often_are_in_a_part_of_their_own() {
        let line = |action: &str| AuditLine {
            action: action.to_owned(),
            ..AuditLine::default()
        };
        for change in ["cancel", "purge", "pause", "redrive"] {
            assert_eq!(line(change).part(), AuditPart::Changes, "{change}");
            let next = AuditLine {
                after: Some("place".to_owned()),
                ..line(change)
            };
            let dry = AuditLine {
                dry_run: Some(true),
                ..line(change)
            };
            for frequent in [next, dry, line("publish"), line("show")] {
                assert_eq!(frequent.part(), AuditPart::Frequent, "{frequent:?}");
            }
        }
    }

    #[test]
    fn a_long_text_is_cut_with_a_mark_and_frees_its_memory() {
        let mut line = AuditLine {
            id: Some("é".repeat(AUDIT_TEXT_BYTES_MAX)),
            of: Some("short".to_owned()),
            ..AuditLine::default()
        };
        line.cut();
        let id = line.id.unwrap();
        assert!(id.ends_with("é…") && id.len() <= AUDIT_TEXT_BYTES_MAX + 3);
        assert!(id.capacity() < 2 * AUDIT_TEXT_BYTES_MAX);
        assert_eq!(line.of.as_deref(), Some("short"));
    }

    #[test]
    fn a_line_tells_what_was_done() {
        let line = AuditLine {
            partition: Some(3),
            offset: Some(4711),
            id: Some("order-42".to_owned()),
            due_ms: Some(1_795_302_005_000),
            outcome: Some("written".to_owned()),
            ..AuditLine::default()
        };
        assert_eq!(
            line.object(),
            "message 3/4711, id order-42, new due time 2026-11-21T23:00:05Z"
        );
        assert_eq!(line.result(), "written");
        let line = AuditLine {
            filter: Some("header campaign:black-friday".to_owned()),
            dry_run: Some(false),
            changed: Some(812),
            refused: Some(0),
            unconfirmed: Some(1),
            outcome: Some("failed".to_owned()),
            ..AuditLine::default()
        };
        assert_eq!(line.object(), "header campaign:black-friday");
        assert_eq!(line.result(), "failed, 812 changed, 1 unconfirmed");
    }
}
