//! A dead letter that is read from the dead-letter topic, and the record that sends it through its source once more.

use super::dialect::Dialect;
use super::headers::header::{Headers, push_header};
use super::headers::header_name::{
    BY_REFERENCE, ControlHeader, DUE, ERROR, ERROR_DETAIL, FIRST_DUE, FIRST_ORIGIN, ORIGIN,
    stays_on_dead_letter, stays_on_delivery,
};
use super::headers::origin::OriginFormat;
use super::message::Record;
use super::parsing::dead_letter_reason::DeadLetterReason;
use super::parsing::parse_record::{ParsedRecord, parse_record};
use super::parsing::rejection::Rejection;
use super::routing::routing_rules::RoutingRules;
use super::shard::{Offset, Partition, ShardId};
use super::time::Timestamp;

/// Bytes of a code or an origin, more than Postdate writes.
const TEXT_BYTES_MAX: usize = 1_024;

/// A dead letter of one route.
#[derive(Clone, Debug)]
pub(crate) struct DeadLetter<'a> {
    record: Record<'a>,
    /// The code of a [`DeadLetterReason`], of this or another version.
    pub(crate) code: &'a str,
    pub(crate) detail: &'a str,
    /// The origin of the record that failed.
    pub(crate) origin: &'a str,
    /// The source partition of that record.
    pub(crate) source: Partition,
    /// `None`: the record was refused before its due time was known.
    pub(crate) due: Option<Timestamp>,
}

/// A record for the source partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedrivenRecord<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    /// The block of [`Headers`].
    pub(crate) headers: Vec<u8>,
}

impl<'a> DeadLetter<'a> {
    /// `None`: the record is not a dead letter, or belongs to another route.
    pub(crate) fn parse(record: Record<'a>, deployment: &str, route: &str) -> Option<Self> {
        let headers = record.headers;
        let short = |text: &&str| text.len() <= TEXT_BYTES_MAX;
        let origin = headers.text(ORIGIN).filter(short)?;
        let own = origin.strip_prefix(deployment)?.strip_prefix('/')?;
        let mut parts = own.strip_prefix(route)?.strip_prefix('/')?.rsplitn(3, '/');
        let _offset: u64 = parts.next()?.parse().ok()?;
        let index: i32 = parts.next()?.parse().ok()?;
        let due = headers.text(DUE).and_then(|due| due.parse().ok());
        Some(Self {
            record,
            code: headers.text(ERROR).filter(short)?,
            detail: headers.text(ERROR_DETAIL).unwrap_or_default(),
            origin,
            source: Partition::new(parts.next()?, index),
            due: due.map(Timestamp::from_millis),
        })
    }

    pub(crate) fn offset(&self) -> Offset {
        self.record.offset
    }

    /// The time at which the record became a dead letter.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.record.timestamp
    }

    pub(crate) fn key(&self) -> Option<&'a [u8]> {
        self.record.key
    }

    pub(crate) fn has_header(&self, name: &str, value: &str) -> bool {
        let mut headers = self.record.headers.iter();
        headers.any(|header| header == (name.as_bytes(), Some(value.as_bytes())))
    }

    /// The payload and the headers are only in the source.
    pub(crate) fn is_by_reference(&self) -> bool {
        self.record.payload.is_none() && self.detail.contains(BY_REFERENCE)
    }

    /// The record that sends the message once more. `Err`: the service would refuse it again.
    ///
    /// A message that had a due time is due at `now`, or at its own due time if that is later. It has no id, so it
    /// replaces nothing. A record that was refused before is sent as its producer wrote it.
    pub(crate) fn redriven(
        &self,
        deployment: &str,
        route: &str,
        rules: &RoutingRules,
        now: Timestamp,
    ) -> Result<RedrivenRecord<'a>, Rejection> {
        let shard = ShardId::new(route, self.source.clone());
        let origins = OriginFormat::new(deployment, &shard);
        let own = self.kept(stays_on_dead_letter);
        let record = self.with(self.record.key, &own, now);
        let Named { target, dialect } = parse(&record, &origins, rules)?;
        let (key, mut headers) = match self.due {
            None => (self.record.key, own),
            Some(due) => self.due_again(due, now, target.as_deref(), dialect),
        };
        self.push_first(&mut headers, FIRST_ORIGIN, self.origin);
        parse(&self.with(key, &headers, now), &origins, rules)?;
        Ok(RedrivenRecord {
            key,
            payload: self.record.payload,
            headers,
        })
    }

    /// The record with this key and these headers, written now.
    fn with<'b>(&self, key: Option<&'b [u8]>, block: &'b [u8], now: Timestamp) -> Record<'b>
    where
        'a: 'b,
    {
        Record {
            offset: Offset(0),
            timestamp: Some(now),
            key,
            payload: self.record.payload,
            headers: Headers::from_block(block),
        }
    }

    /// Key and headers as they would be delivered, with a due time and the target.
    fn due_again(
        &self,
        due: Timestamp,
        now: Timestamp,
        target: Option<&str>,
        dialect: Option<Dialect>,
    ) -> (Option<&'a [u8]>, Vec<u8>) {
        let Record { key, headers, .. } = self.record;
        let (key, stays) = match dialect {
            Some(dialect) => (
                dialect.key_on_delivery(key, headers),
                dialect.stays_on_delivery(),
            ),
            None => (key, stays_on_delivery as fn(&[u8]) -> bool),
        };
        let mut block = self.kept(stays);
        push(&mut block, ControlHeader::At.name(), &millis(due.max(now)));
        if let Some(target) = target {
            push(&mut block, ControlHeader::To.name(), target);
        }
        self.push_first(&mut block, FIRST_DUE, &millis(due));
        (key, block)
    }

    fn kept(&self, stays: fn(&[u8]) -> bool) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in self.record.headers.iter().filter(|(name, _)| stays(name)) {
            push_header(&mut block, name, value);
        }
        block
    }

    /// Keeps the value of an earlier redrive.
    fn push_first(&self, block: &mut Vec<u8>, name: &str, value: &str) {
        if self.record.headers.get(name).is_none() {
            push(block, name, value);
        }
    }
}

/// The target and the dialect of a message.
struct Named {
    target: Option<String>,
    dialect: Option<Dialect>,
}

fn parse(
    record: &Record<'_>,
    origins: &OriginFormat,
    rules: &RoutingRules,
) -> Result<Named, Rejection> {
    match parse_record(record, origins, rules) {
        ParsedRecord::Message { body, .. } => Ok(Named {
            target: body.target.map(str::to_owned),
            dialect: body.dialect,
        }),
        ParsedRecord::Rejected(rejection) => Err(rejection),
        ParsedRecord::Definition => Err(Rejection::new(
            DeadLetterReason::InvalidSchedule,
            "the route is recurring: send the definition of the schedule again",
        )),
        ParsedRecord::Cancel { .. }
        | ParsedRecord::Reschedule { .. }
        | ParsedRecord::Control(_)
        | ParsedRecord::Newer(_) => Err(Rejection::new(
            DeadLetterReason::InvalidOp,
            "the record is a cancel or a reschedule, which is not sent again",
        )),
    }
}

fn push(block: &mut Vec<u8>, name: &str, value: &str) {
    push_header(block, name.as_bytes(), Some(value.as_bytes()));
}

fn millis(time: Timestamp) -> String {
    time.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Dialects, Naming, RetryKeys, TargetRules, WithoutDelay};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const LATER: i64 = 1_800_000_900_000;

    fn rules(allow: &[&str], dialects: Dialects) -> RoutingRules {
        let allow = allow.iter().copied();
        RoutingRules {
            targets: TargetRules::new(Naming::Topic, Some("orders"), allow, Vec::<String>::new()),
            replies: None,
            max_delay: Duration::from_secs(86_400),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::DeadLetter,
            on_duplicate: crate::model::OnDuplicate::Replace,
            change_by_origin: false,
            dialects,
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        }
    }

    fn block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in headers {
            push(&mut block, name, value);
        }
        block
    }

    fn record(block: &[u8]) -> Record<'_> {
        Record {
            offset: Offset(7),
            timestamp: Some(NOW),
            key: Some(b"k"),
            payload: Some(b"p"),
            headers: Headers::from_block(block),
        }
    }

    const FAILED: [(&str, &str); 3] = [
        ("postdate-origin", "prod/r/orders.delayed/2/41"),
        ("postdate-error", "unknown_target"),
        ("postdate-error-detail", "no topic"),
    ];

    fn redrive(
        headers: &[(&str, &str)],
        rules: &RoutingRules,
    ) -> Result<Vec<(String, String)>, Rejection> {
        let block = block(&[headers, &FAILED].concat());
        let found =
            DeadLetter::parse(record(&block), "prod", "r").expect("a dead letter of the route");
        assert_eq!(found.source, Partition::new("orders.delayed", 2));
        let sent = found.redriven("prod", "r", rules, NOW)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let headers = Headers::from_block(&sent.headers);
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (text(name), text(value.unwrap())))
            .collect();
        headers.sort();
        Ok(headers)
    }

    fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
        headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn only_dead_letters_of_the_route_are_found() {
        let found = |deployment, route, headers: &[(&str, &str)]| {
            DeadLetter::parse(record(&block(headers)), deployment, route).is_some()
        };
        assert!(found("prod", "r", &FAILED));
        for (deployment, route) in [("pro", "r"), ("prod", "r2"), ("prod", ""), ("other", "r")] {
            assert!(!found(deployment, route, &FAILED), "{deployment} {route}");
        }
        assert!(
            !found("prod", "r", &FAILED[..1]),
            "a delivered record is no dead letter"
        );
        let broken = [("postdate-origin", "prod/r/orders.delayed/2/x"), FAILED[1]];
        assert!(!found("prod", "r", &broken));
    }

    #[test]
    fn a_message_that_was_due_is_due_again_now_without_its_id() {
        let was = [
            ("postdate-after", "1h"),
            ("postdate-id", "order-42"),
            ("postdate-to", "orders"),
            ("x", "1"),
            ("postdate-due", "1700000000000"),
        ];
        let expected = [
            ("postdate-at", "1800000000000"),
            ("postdate-first-due", "1700000000000"),
            ("postdate-first-origin", "prod/r/orders.delayed/2/41"),
            ("postdate-to", "orders"),
            ("x", "1"),
        ];
        assert_eq!(
            redrive(&was, &rules(&[], Dialects::default())).unwrap(),
            pairs(&expected)
        );
    }

    #[test]
    fn a_due_time_ahead_and_the_first_origin_are_kept() {
        let later = LATER.to_string();
        let was = [
            ("postdate-at", "1700000000000"),
            ("postdate-due", later.as_str()),
            ("postdate-first-due", "5"),
            ("postdate-first-origin", "prod/r/orders.delayed/0/3"),
        ];
        let expected = [
            ("postdate-at", later.as_str()),
            ("postdate-first-due", "5"),
            ("postdate-first-origin", "prod/r/orders.delayed/0/3"),
        ];
        assert_eq!(
            redrive(&was, &rules(&[], Dialects::default())).unwrap(),
            pairs(&expected)
        );
    }

    #[test]
    fn a_record_that_was_refused_is_sent_as_its_producer_wrote_it() {
        let was = [
            ("postdate-after", "1h"),
            ("postdate-id", "a"),
            ("postdate-to", "billing"),
        ];
        let refused = redrive(&was, &rules(&[], Dialects::default())).unwrap_err();
        assert_eq!(refused.reason, DeadLetterReason::TargetNotAllowed);
        let mut expected = pairs(&was);
        expected.insert(
            1,
            (
                "postdate-first-origin".into(),
                "prod/r/orders.delayed/2/41".into(),
            ),
        );
        assert_eq!(
            redrive(&was, &rules(&["billing"], Dialects::default())).unwrap(),
            expected
        );
        let refused = redrive(&[("x", "1")], &rules(&[], Dialects::default())).unwrap_err();
        assert_eq!(refused.reason, DeadLetterReason::MissingDue);
    }

    #[test]
    fn only_a_record_that_was_refused_asks_for_an_answer_again() {
        let refused = [("postdate-after", "1h"), ("postdate-reply-to", "replies")];
        let was_due = [("postdate-due", "1700000000000")];
        for (headers, asks) in [
            (refused.to_vec(), true),
            ([&refused[..], &was_due].concat(), false),
        ] {
            let sent = redrive(&headers, &rules(&[], Dialects::default())).unwrap();
            let found = sent.iter().any(|(name, _)| name == "postdate-reply-to");
            assert_eq!(found, asks, "{headers:?}");
        }
    }

    #[test]
    fn a_cancel_and_a_reschedule_are_not_sent_again() {
        for op in ["cancel", "reschedule"] {
            let was = [
                ("postdate-op", op),
                ("postdate-id", "a"),
                ("postdate-after", "1h"),
            ];
            let refused = redrive(&was, &rules(&[], Dialects::default())).unwrap_err();
            assert_eq!(refused.reason, DeadLetterReason::InvalidOp, "{op}");
        }
    }

    #[test]
    fn a_dead_letter_by_reference_is_recognised() {
        let detail = format!("too large{BY_REFERENCE}its payload has 5 bytes");
        let headers = [FAILED[0], FAILED[1], ("postdate-error-detail", &detail)];
        let block = block(&headers);
        let by_reference = |payload| {
            let record = Record {
                payload,
                ..record(&block)
            };
            DeadLetter::parse(record, "prod", "r")
                .unwrap()
                .is_by_reference()
        };
        assert!(by_reference(None) && !by_reference(Some(b"p")));
    }
}
