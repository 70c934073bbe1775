//! Turns one record into a message of its shard, a change of the message with its id, or nothing.

use super::partition::AssignedPartition;
use crate::limit::{ANSWER_KEY_BYTES_MAX, CLOCK_SKEW_MAX, RECORD_BYTES_MAX};
use crate::metric;
use crate::model::{
    Body, Cursor, DeadLetterReason, Disposition, DraftKind, Headers, OnDuplicate, OutcomeDraft,
    ParsedRecord, Record, Rejection, Reply, Request, RoutingRules, Slice, Timestamp, id_of_offset,
    is_id_of_offset, parse_reply,
};
use crate::store::{IdChange, IdChangeKind};
use std::time::Duration;

/// Why the reading of a partition must stop in front of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// Only a newer version can read it. The text names the unknown part.
    Newer(&'static str),
    /// It pauses or resumes the shard, which must be committed first.
    Uncommitted,
}

/// Adds a record to the batch of its partition, and the answer that it asks for. Adds no message
/// for a cancel or a reschedule, nor for a message that was delivered before the store was lost. A rejected record
/// becomes a dead letter, usually at once. An error tells why the reading must stop in front of the record.
pub(super) fn admit_record(
    rules: &RoutingRules,
    metric: &metric::RouteMetrics,
    partition: &mut AssignedPartition,
    record: &Record<'_>,
    now: Timestamp,
) -> Result<(), Barrier> {
    let (rejection, without_payload, own_id);
    let (parsed, due_if_rejected) =
        (partition.rules).parse(record, &partition.origin_format, rules);
    let requester = Requester::of(rules, metric, partition, record);
    let (due, mut body) = match parsed {
        ParsedRecord::Cancel { id } => {
            requester.change_waiting(partition, id, IdChangeKind::Cancel, Request::Cancel, now);
            return Ok(());
        }
        ParsedRecord::Reschedule { id, due } => {
            let by = record.offset;
            let kind = IdChangeKind::Reschedule { by, due };
            requester.change_waiting(partition, id, kind, Request::Reschedule { due }, now);
            return Ok(());
        }
        ParsedRecord::Newer(found) => return Err(Barrier::Newer(found)),
        ParsedRecord::Control(control) => return partition.on_control(record.offset, control),
        _ if record.bytes() > RECORD_BYTES_MAX => {
            (without_payload, rejection) = reject_too_large(record);
            let body = Body::rejected(&without_payload, &rejection);
            (Timestamp::AT_ONCE, body)
        }
        ParsedRecord::Definition => return Ok(()),
        ParsedRecord::Message { body, .. } if partition.refuses(record.offset) && body.is_new() => {
            rejection = over_quota();
            (Timestamp::AT_ONCE, Body::rejected(record, &rejection))
        }
        ParsedRecord::Message { due, body } => {
            if due.is_suspicious_due() {
                metric.suspicious_due.increment(1);
            }
            (due, body)
        }
        ParsedRecord::Rejected(found) => {
            rejection = found;
            (due_if_rejected, Body::rejected(record, &rejection))
        }
    };
    if record.timestamp > Some(now.plus(CLOCK_SKEW_MAX)) {
        metric.timestamp_ahead.increment(1);
    }
    let id_rules = partition.rules.id_rules(record.offset, rules);
    if is_named_by_origin(id_rules, due, &body) {
        own_id = id_of_offset(record.offset);
        body.id = Some(&own_id);
    }
    let position = Cursor::new(due, record.offset);
    let change = id_change(id_rules.on_duplicate, record, position, &body);
    let request = match (body.disposition, change) {
        (Disposition::DeadLetter { reason, .. }, _) => Request::Refused(reason),
        (_, Some((_, IdChangeKind::KeepFirst { .. }))) => Request::ScheduleFirst { due },
        _ => Request::Schedule { due },
    };
    requester.add_answer(partition, request, body.id, now);
    // A rebuild skips delivered messages. The messages that they replaced stay cancelled.
    if partition.delivered.covers(position) {
        let change = change.and_then(|(id, kind)| requester.change_of_delivered(id, kind));
        if let Some(change) = change.filter(|_| !fault!(ForgetDeliveredReplacements)) {
            change_id(partition, change, Duration::ZERO);
        }
        return Ok(());
    }
    if let Some((id, kind)) = change {
        change_id(partition, requester.change(id, kind), due.since(now));
    } else {
        partition.flush_within(due.since(now));
    }
    if let Some(kind) = draft_kind(&body, request) {
        requester.add_draft(partition, kind, body.id, change.is_some());
    }
    partition.batch.add(Slice::of(due, now), position, &body);
    Ok(())
}

/// The id of a message that is stored at this place, and its effect on the message that waits under it.
fn id_change<'a>(
    on_duplicate: OnDuplicate,
    record: &Record<'_>,
    place: Cursor,
    body: &Body<'a>,
) -> Option<(&'a str, IdChangeKind)> {
    let id = body.id?;
    let kind = match (body.disposition, on_duplicate) {
        (Disposition::Retry(_), _) => match body.replaces {
            Some(of) => IdChangeKind::TakePlace { place, of },
            None => IdChangeKind::Retry(place),
        },
        (_, OnDuplicate::Replace) => IdChangeKind::Schedule(place),
        (_, OnDuplicate::KeepFirst) => IdChangeKind::KeepFirst {
            place,
            timestamp: record.timestamp.unwrap_or(Timestamp::YEAR_2000),
        },
    };
    Some((id, kind))
}

/// The part of the record in the outcome records. `None`: only its end has one.
fn draft_kind(body: &Body<'_>, request: Request) -> Option<DraftKind> {
    match body.disposition {
        Disposition::Deliver | Disposition::Relay { .. } => Some(DraftKind::Request(request)),
        Disposition::Retry(retry) if body.replaces.is_some() => {
            Some(DraftKind::Copied(retry.into()))
        }
        Disposition::Retry(retry) => Some(DraftKind::SentBack(retry.into())),
        _ => None,
    }
}

/// True if the message gets an id from its origin. A message that does not wait needs none.
fn is_named_by_origin(rules: &RoutingRules, due: Timestamp, body: &Body<'_>) -> bool {
    let is_message = body.disposition == Disposition::Deliver && body.id.is_none();
    rules.change_by_origin && is_message && !due.is_at_once()
}

/// Adds the effect of a record on the message that waits under its id.
fn change_id(partition: &mut AssignedPartition, change: IdChange<Box<str>>, wait: Duration) {
    // The cancelled message may be due at any moment. An id from an origin cancels nothing.
    let is_new = matches!(
        change.kind,
        IdChangeKind::Schedule(_) | IdChangeKind::KeepFirst { .. }
    ) && is_id_of_offset(&change.id);
    partition.flush_within(if is_new { wait } else { Duration::ZERO });
    partition.batch.changes.push(change);
}

/// The record as a request, and where its answer goes.
struct Requester<'a> {
    record: &'a Record<'a>,
    reply: Option<Reply<'a>>,
    /// A request is answered once. Its effect on the named message is applied again.
    is_answered: bool,
    changes_claimed: bool,
    /// Its outcome records are made when the append is acknowledged. An answer of an exactly-once route is decided
    /// later, so the timer makes them. Before a loss of the store they were made, from other effects.
    has_draft: bool,
}

impl<'a> Requester<'a> {
    fn of(
        rules: &RoutingRules,
        metric: &metric::RouteMetrics,
        partition: &AssignedPartition,
        record: &'a Record<'a>,
    ) -> Self {
        let reply = parse_reply(record.headers, rules).unwrap_or_else(|_rejection| {
            metric.answers_missing.increment(1);
            None
        });
        let is_exactly_once = (rules.replies.as_ref()).is_some_and(|it| it.is_exactly_once);
        let timer_decides = is_exactly_once && reply.is_some();
        let was_stored = partition.was_stored(record.offset) && !fault!(TellStoredAgain);
        Self {
            record,
            reply,
            is_answered: partition.delivered.covers(Cursor::of_answer(record.offset)),
            changes_claimed: timer_decides && !fault!(ChangeUnclaimedOnly),
            has_draft: partition.tells_outcomes && !timer_decides && !was_stored,
        }
    }

    fn change(&self, id: &str, kind: IdChangeKind) -> IdChange<Box<str>> {
        let is_open = self.reply.is_some() && !self.is_answered;
        IdChange {
            request: is_open.then_some(self.record.offset),
            changes_claimed: self.changes_claimed,
            tells_effect: self.has_draft,
            ..IdChange::new(id, kind)
        }
    }

    /// Adds a cancel or a reschedule of the message that waits under the id, and its answer.
    fn change_waiting(
        &self,
        partition: &mut AssignedPartition,
        id: &str,
        kind: IdChangeKind,
        request: Request,
        now: Timestamp,
    ) {
        change_id(partition, self.change(id, kind), Duration::ZERO);
        self.add_draft(partition, DraftKind::Request(request), Some(id), true);
        self.add_answer(partition, request, Some(id), now);
    }

    /// Adds the draft of the outcome records. `has_change`: the last change of the batch is that of the record.
    fn add_draft(
        &self,
        partition: &mut AssignedPartition,
        kind: DraftKind,
        id: Option<&str>,
        has_change: bool,
    ) {
        if self.has_draft {
            let batch = &mut partition.batch;
            batch.drafts.push(OutcomeDraft {
                offset: self.record.offset,
                id: id.map(Box::from),
                kind,
                change: has_change.then(|| batch.changes.len() - 1),
            });
        }
    }

    /// The change of a record that the delivered pair covers. `None`: it cancels nothing.
    fn change_of_delivered(&self, id: &str, kind: IdChangeKind) -> Option<IdChange<Box<str>>> {
        match kind {
            IdChangeKind::Schedule(_) if !is_id_of_offset(id) => {
                Some(self.change(id, IdChangeKind::Delivered))
            }
            IdChangeKind::TakePlace { of, .. } => {
                Some(self.change(id, IdChangeKind::PlaceTaken { of }))
            }
            _ => None,
        }
    }

    /// Adds the answer, unless it was delivered before the store was lost.
    fn add_answer(
        &self,
        partition: &mut AssignedPartition,
        request: Request,
        id: Option<&str>,
        now: Timestamp,
    ) {
        let Some(reply) = self.reply.filter(|_| !self.is_answered) else {
            return;
        };
        let place = Cursor::of_answer(self.record.offset);
        let key = self.record.key;
        let key = key.filter(|key| key.len() <= ANSWER_KEY_BYTES_MAX);
        let body = Body::answer(key, reply, request, id);
        partition.flush_within(Duration::ZERO);
        partition.batch.add(Slice::of(place.due, now), place, &body);
    }
}

fn over_quota() -> Rejection {
    let detail = "max_waiting of the route is used up: send the record again later, or ask for a greater quota";
    Rejection::new(DeadLetterReason::Quota, detail)
}

fn part_sizes(record: &Record<'_>) -> [usize; 3] {
    let size = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
    let headers = record.headers.as_block().len();
    [size(record.key), size(record.payload), headers]
}

/// Rejects a record that is larger than a run can hold. The dead letter keeps the key, unless the
/// key itself is too large.
fn reject_too_large<'a>(record: &Record<'a>) -> (Record<'a>, Rejection) {
    let [key, payload, headers] = part_sizes(record);
    let detail = format!(
        "the record has {} bytes, and at most {RECORD_BYTES_MAX} can be stored; sent by reference: \
         its key has {key} bytes, its payload {payload}, its headers {headers}",
        key + payload + headers
    );
    let stored = Record {
        key: record.key.filter(|key| key.len() <= RECORD_BYTES_MAX),
        payload: None,
        headers: Headers::from_block(&[]),
        ..*record
    };
    (stored, Rejection::new(DeadLetterReason::TooLarge, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::read_rules::ReadRules;
    use crate::model::header::push_header;
    use crate::model::{
        Dialects, Disposition, Naming, Offset, Partition, PositionRules, ReplyRules, RetryKeys,
        RulesHistory, ShardId, TargetRules, Watermark, WithoutDelay,
    };
    use crate::run::{FarTarget, LoadedRun, Run, RunBuilder, RunDecoder, ThinHours};
    use crate::testing::fault_injection::{self, InjectedFault};
    use tokio::time::Instant;

    fn rules() -> RoutingRules {
        RoutingRules {
            targets: TargetRules::new(
                Naming::Topic,
                Some("orders"),
                Vec::<String>::new(),
                ["orders.delayed"],
            ),
            replies: None,
            max_delay: Duration::from_secs(3_600),
            max_retry_wait: Duration::from_secs(1),
            without_delay: WithoutDelay::Relay,
            on_duplicate: OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialects::default(),
            is_recurring: false,
            retry_keys: RetryKeys::default(),
        }
    }

    fn partition() -> AssignedPartition {
        AssignedPartition::new(
            "prod",
            ShardId::new("r", Partition::new("orders.delayed", 0)),
            Instant::now(),
        )
    }

    /// The runs that the record adds.
    fn admitted(
        rules: &RoutingRules,
        key: &[u8],
        payload: &[u8],
        headers: &[(&str, &str)],
    ) -> Vec<LoadedRun> {
        admitted_to(partition(), rules, (key, payload), headers)
    }

    fn admitted_to(
        mut partition: AssignedPartition,
        rules: &RoutingRules,
        (key, payload): (&[u8], &[u8]),
        headers: &[(&str, &str)],
    ) -> Vec<LoadedRun> {
        let mut block = Vec::new();
        headers.iter().for_each(|(name, value)| {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        });
        let (now, offset) = (Timestamp::YEAR_2000, Offset(7));
        let record = Record {
            offset,
            timestamp: Some(now),
            key: Some(key),
            payload: Some(payload),
            headers: Headers::from_block(&block),
        };
        admit_record(
            rules,
            &metric::RouteMetrics::new("r"),
            &mut partition,
            &record,
            now,
        )
        .unwrap();
        let far = FarTarget::at(now, ThinHours::DEFAULT);
        let runs = partition
            .build_append(&mut RunBuilder::plain(1), far)
            .append
            .runs;
        let decode = |run: &Run| {
            let mut decoder = RunDecoder::plain();
            let decoded = decoder.decode(&partition.shard, run.name.clone(), run.slice, &run.bytes);
            decoded.unwrap()
        };
        runs.iter().map(decode).collect()
    }

    /// Reason, detail, key length, and presence of the payload of the stored message.
    fn stored(
        key: &[u8],
        payload: &[u8],
        headers: &[(&str, &str)],
    ) -> Option<(Option<DeadLetterReason>, String, Option<usize>, bool)> {
        let runs = admitted(&rules(), key, payload, headers);
        let body = runs.first()?.message(0).unwrap().body;
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
    fn a_record_that_is_too_large_for_a_run_becomes_a_dead_letter_without_payload() {
        // The system allocates no memory for zeroed pages that are never written.
        let giant = vec![0; RECORD_BYTES_MAX + 1];
        let delay = [("postdate-after", "1m")];
        for headers in [&delay[..], &[("postdate-after", "never")], &[]] {
            let (reason, detail, key, has_payload) = stored(b"key", &giant, headers).unwrap();
            assert_eq!(
                (reason, key, has_payload),
                (Some(DeadLetterReason::TooLarge), Some(3), false)
            );
            assert!(
                detail.contains(&format!("its payload {}", giant.len()))
                    && detail.contains("its key has 3 bytes"),
                "{detail}"
            );
        }
        assert_eq!(
            stored(&giant, b"", &delay).map(|(reason, _, key, _)| (reason, key)),
            Some((Some(DeadLetterReason::TooLarge), None))
        );
        assert_eq!(
            stored(b"key", b"small", &delay).map(|(reason, ..)| reason),
            Some(None)
        );
        let cancel = [("postdate-op", "cancel"), ("postdate-id", "a")];
        assert!(
            stored(b"key", &giant, &cancel).is_none(),
            "a cancel stores no message"
        );
    }

    /// The due time and the code of the record at offset 7, while the quota refuses messages. `stored`:
    /// the greatest watermark that the store had.
    fn over_quota(stored: u64, headers: &[(&str, &str)]) -> (Timestamp, Option<DeadLetterReason>) {
        let mut partition = partition();
        partition.refuses = true;
        partition.greatest_stored = Watermark(stored);
        let runs = admitted_to(partition, &rules(), (b"key", b"m"), headers);
        let message = runs[0].message(0).unwrap();
        let reason = match message.body.disposition {
            Disposition::DeadLetter { reason, .. } => Some(reason),
            _ => None,
        };
        (message.place.due, reason)
    }

    #[test]
    fn a_used_quota_refuses_new_messages_and_none_that_may_have_been_accepted_before() {
        let delay = [("postdate-after", "1m")];
        let due = Timestamp::YEAR_2000.plus(Duration::from_secs(60));
        let refused = (Timestamp::AT_ONCE, Some(DeadLetterReason::Quota));
        assert_eq!(over_quota(7, &delay), refused);
        assert_eq!(over_quota(8, &delay), (due, None));
        assert_eq!(over_quota(7, &[]).1, None, "it does not wait");
        fault_injection::with([InjectedFault::QuotaRefusesStored], || {
            assert_eq!(over_quota(8, &delay), refused);
        });
    }

    #[test]
    fn a_message_without_id_gets_one_from_its_offset() {
        let by_origin = RoutingRules {
            change_by_origin: true,
            ..rules()
        };
        let delayed = [("postdate-after", "1m")];
        let named = [("postdate-after", "1m"), ("postdate-id", "a")];
        for (rules, headers, expected) in [
            (&by_origin, &delayed[..], Some("/7")),
            (&by_origin, &named, Some("a")),
            (&by_origin, &[], None),
            (&rules(), &delayed, None),
        ] {
            let runs = admitted(rules, b"key", b"", headers);
            let id = runs[0].message(0).unwrap().body.id;
            assert_eq!(id, expected, "{headers:?}");
        }
    }

    #[test]
    fn a_message_without_id_is_named_by_the_rules_of_its_first_reading() {
        for by_origin in [true, false] {
            let then = RoutingRules {
                change_by_origin: by_origin,
                ..rules()
            };
            let today = RoutingRules {
                change_by_origin: !by_origin,
                ..rules()
            };
            let history = RulesHistory::default()
                .followed_by(&PositionRules::of(&then), Offset(0))
                .followed_by(&PositionRules::of(&today), Offset(8));
            let mut partition = partition();
            partition.rules = ReadRules::new(history, &today);
            let delayed = [("postdate-after", "1m")];
            let runs = admitted_to(partition, &today, (b"key", b""), &delayed);
            let id = runs[0].message(0).unwrap().body.id;
            assert_eq!(id, Some("/7").filter(|_| by_origin));
        }
    }

    #[test]
    fn an_answer_has_the_key_of_its_request_unless_the_key_is_giant() {
        let targets = TargetRules::replies(Naming::Topic, ["replies"], [""; 0]);
        let rules = RoutingRules {
            replies: Some(ReplyRules {
                targets,
                is_exactly_once: false,
            }),
            ..rules()
        };
        let cancel = [
            ("postdate-op", "cancel"),
            ("postdate-id", "a"),
            ("postdate-reply-to", "replies"),
        ];
        for (size, kept) in [(3, Some(3)), (ANSWER_KEY_BYTES_MAX + 1, None)] {
            let runs = admitted(&rules, &vec![0; size], b"", &cancel);
            let [run] = runs.as_slice() else {
                panic!("one run with the answer")
            };
            assert_eq!((run.len(), run.place(0)), (1, Cursor::of_answer(Offset(7))));
            let body = run.message(0).unwrap().body;
            assert_eq!(body.key.map(<[u8]>::len), kept);
            assert!(body.is_answer());
        }
        let foreign = [cancel[0], cancel[1], ("postdate-reply-to", "orders")];
        assert!(admitted(&rules, b"key", b"", &foreign).is_empty());
    }

    /// The draft of a record with these headers.
    fn draft(
        partition: &mut AssignedPartition,
        rules: &RoutingRules,
        headers: &[(&str, &str)],
    ) -> Option<OutcomeDraft> {
        let mut block = Vec::new();
        headers.iter().for_each(|(name, value)| {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        });
        let record = Record {
            offset: Offset(7),
            timestamp: Some(Timestamp::YEAR_2000),
            key: None,
            payload: Some(b""),
            headers: Headers::from_block(&block),
        };
        let metric = metric::RouteMetrics::new("r");
        admit_record(rules, &metric, partition, &record, Timestamp::YEAR_2000).unwrap();
        let job = partition.build_append(
            &mut RunBuilder::plain(1),
            FarTarget::at(Timestamp::YEAR_2000, ThinHours::DEFAULT),
        );
        let changes = &job.append.changes;
        let draft = job.drafts.into_iter().next();
        let asks = changes.first().is_some_and(|change| change.tells_effect);
        assert_eq!(
            draft.as_ref().and_then(|it| it.change),
            asks.then_some(0),
            "{headers:?}"
        );
        draft
    }

    fn with_outcomes() -> AssignedPartition {
        let mut partition = partition();
        partition.tells_outcomes = true;
        partition
    }

    #[test]
    fn each_accepted_record_of_a_route_with_an_outcome_topic_has_a_draft() {
        let rules = RoutingRules {
            retry_keys: RetryKeys::new("key", true),
            ..rules()
        };
        let retry = "v2 mac=- attempt=1 origin=prod/r/orders.delayed/0/5 due=1 target= \
                     error=timed_out at=946684800001";
        let (id, after) = (("postdate-id", "a"), ("postdate-after", "1m"));
        for (headers, has_draft) in [
            (&[after][..], true),
            (&[after, id], true),
            (&[], true),
            (&[("postdate-op", "cancel"), id], true),
            (&[("postdate-op", "reschedule"), id, after], true),
            (&[("postdate-retry", retry)], true),
            (&[("postdate-after", "never")], false),
        ] {
            let found = draft(&mut with_outcomes(), &rules, headers);
            assert_eq!(found.is_some(), has_draft, "{headers:?}");
            assert_eq!(
                draft(&mut partition(), &rules, headers),
                None,
                "{headers:?}"
            );
            // The record was stored before the store lost it.
            let mut rebuilt = with_outcomes();
            rebuilt.greatest_stored = Watermark(8);
            assert_eq!(draft(&mut rebuilt, &rules, headers), None, "{headers:?}");
        }
    }

    #[test]
    fn the_timer_of_an_exactly_once_route_tells_the_requests_with_answers() {
        for (is_exactly_once, has_draft) in [(false, true), (true, false)] {
            let rules = RoutingRules {
                replies: Some(ReplyRules {
                    targets: TargetRules::replies(Naming::Topic, ["replies"], [""; 0]),
                    is_exactly_once,
                }),
                ..rules()
            };
            let cancel = [("postdate-op", "cancel"), ("postdate-id", "a")];
            let with_reply = [cancel[0], cancel[1], ("postdate-reply-to", "replies")];
            assert!(draft(&mut with_outcomes(), &rules, &cancel).is_some());
            let found = draft(&mut with_outcomes(), &rules, &with_reply);
            assert_eq!(found.is_some(), has_draft);
        }
    }
}
