//! What becomes of one record: an entry of its shard, a change of an id, or nothing.

use super::partition::AssignedPartition;
use crate::limit::{CLOCK_SKEW_MAX, RECORD_BYTES_MAX};
use crate::metric;
use crate::model::{
    Body, Cursor, Headers, ParsedRecord, Reason, Record, Rejection, RoutingRules, Slice, Timestamp,
    Warning, parse_record,
};
use crate::store::{IdChange, IdChangeKind};
use std::time::Duration;

/// Makes a record an entry of its shard, or nothing (a cancel, or what was delivered before the store was lost).
pub(super) fn admit_record(
    rules: &RoutingRules,
    metric: &metric::RouteMetrics,
    intake: &mut AssignedPartition,
    record: &Record<'_>,
    now: Timestamp,
) {
    let (refusal, reference);
    let (due, body) = match parse_record(record, &intake.origin_format, rules) {
        ParsedRecord::Cancel { id } => {
            intake.batch.add_change(IdChange {
                id: id.into(),
                kind: IdChangeKind::Cancel,
            });
            // What it cancels may be due at any moment.
            intake.flush_within(Duration::ZERO);
            return;
        }
        _ if record_bytes(record) > RECORD_BYTES_MAX => {
            (reference, refusal) = without_payload(record);
            (Timestamp::AT_ONCE, Body::rejected(&reference, &refusal))
        }
        ParsedRecord::Message { due, body, warning } => {
            if warning == Some(Warning::DueBefore2000) {
                metric.suspicious_due.increment(1);
            }
            (due, body)
        }
        ParsedRecord::Rejected(refused_for) => {
            refusal = refused_for;
            (Timestamp::AT_ONCE, Body::rejected(record, &refusal))
        }
    };
    if record
        .timestamp
        .is_some_and(|timestamp| timestamp > now.plus(CLOCK_SKEW_MAX))
    {
        metric.timestamp_ahead.increment(1);
    }
    let place = Cursor::new(due, record.offset);
    if intake.delivered.covers(place) {
        return;
    }
    if intake
        .rebuild
        .is_some_and(|rebuilt| rebuilt.may_be_duplicate(place))
    {
        metric.possible_duplicates.increment(1);
    }
    if let Some(id) = body.id {
        intake.batch.add_change(IdChange {
            id: id.into(),
            kind: IdChangeKind::Schedule(place),
        });
    }
    // So may what a message with an id replaces.
    intake.flush_within(if body.id.is_some() {
        Duration::ZERO
    } else {
        due.since(now)
    });
    intake.batch.add(Slice::of(due, now), place, &body);
}

fn record_bytes(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len)
        + record.payload.map_or(0, <[u8]>::len)
        + record.headers.as_block().len()
}

/// What is stored of a record that is larger than a run can hold: its key, unless that is what is too large.
fn without_payload<'a>(record: &Record<'a>) -> (Record<'a>, Rejection) {
    let sizes = [record.key, record.payload].map(|part| part.map_or(0, <[u8]>::len));
    let detail = format!(
        "the record has {} bytes, and at most {RECORD_BYTES_MAX} can be stored; sent by reference: its key has {} bytes, its payload {}, its \
         headers {}",
        record_bytes(record),
        sizes[0],
        sizes[1],
        record.headers.as_block().len()
    );
    let key = record.key.filter(|key| key.len() <= RECORD_BYTES_MAX);
    (
        Record {
            key,
            payload: None,
            headers: Headers::from_block(&[]),
            ..*record
        },
        Rejection::new(Reason::TooLarge, detail),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::header::push_header;
    use crate::model::{
        AllowList, Dialects, Disposition, Naming, Offset, Partition, ShardId, WithoutDelay,
    };
    use crate::run::{FarTarget, RunBuilder, RunDecoder, ThinHours};
    use std::collections::BTreeSet;
    use tokio::time::Instant;

    fn rules() -> RoutingRules {
        RoutingRules {
            target_naming: Naming::Topic,
            default_target: Some("orders".into()),
            allowed_targets: AllowList::new(Vec::<String>::new()),
            sources: BTreeSet::from(["orders.delayed".to_owned()]),
            max_delay: Duration::from_secs(3_600),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::Relay,
            dialects: Dialects::default(),
        }
    }

    /// What is stored of a record with that key, payload and headers: reason, detail, key, and whether the payload is there.
    fn stored(
        key: &[u8],
        payload: &[u8],
        headers: &[(&str, &str)],
    ) -> Option<(Option<Reason>, String, Option<usize>, bool)> {
        let mut block = Vec::new();
        headers.iter().for_each(|(name, value)| {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()))
        });
        let (now, offset) = (Timestamp::YEAR_2000, Offset(7));
        let record = Record {
            offset,
            timestamp: Some(now),
            key: Some(key),
            payload: Some(payload),
            headers: Headers::from_block(&block),
        };
        let mut intake = AssignedPartition::new(
            "prod",
            ShardId::new("r", Partition::new("orders.delayed", 0)),
            Instant::now(),
        );
        admit_record(
            &rules(),
            &metric::RouteMetrics::new("r"),
            &mut intake,
            &record,
            now,
        );
        let (runs, _) = intake.batch.build_runs(
            &mut RunBuilder::new(1),
            FarTarget::at(now, ThinHours::DEFAULT),
        );
        let run = runs.first()?;
        let run = RunDecoder::new()
            .decode(run.name.clone(), run.slice, &run.bytes)
            .unwrap();
        let body = run.message(0).unwrap().body;
        let (reason, detail) = match body.disposition {
            Disposition::DeadLetter { reason, detail } => (Some(reason), detail),
            _ => (None, ""),
        };
        Some((
            reason,
            detail.to_owned(),
            body.key.map(<[u8]>::len),
            body.payload.is_some(),
        ))
    }

    #[test]
    fn a_record_that_no_run_can_hold_is_a_dead_letter_by_reference_and_does_not_end_the_process() {
        // Of memory that is never written to none is used.
        let giant = vec![0; RECORD_BYTES_MAX + 1];
        let delay = [("postdate-after", "1m")];
        for headers in [&delay[..], &[("postdate-after", "never")], &[]] {
            let (reason, detail, key, has_payload) = stored(b"key", &giant, headers).unwrap();
            assert_eq!(
                (reason, key, has_payload),
                (Some(Reason::TooLarge), Some(3), false)
            );
            assert!(
                detail.contains(&format!("its payload {}", giant.len()))
                    && detail.contains("its key has 3 bytes"),
                "{detail}"
            );
        }
        assert_eq!(
            stored(&giant, b"", &delay).map(|(reason, _, key, _)| (reason, key)),
            Some((Some(Reason::TooLarge), None))
        );
        assert_eq!(
            stored(b"key", b"small", &delay).map(|(reason, ..)| reason),
            Some(None)
        );
        let cancel = [("postdate-op", "cancel"), ("postdate-id", "a")];
        assert!(
            stored(b"key", &giant, &cancel).is_none(),
            "nothing is stored of a cancel"
        );
    }
}
