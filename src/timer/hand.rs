//! Handing claimed messages to the targets, one after the other, and what follows when one did not arrive.

use super::RouteOptions;
use super::flying::{ClaimedBatch, Destination, RecordBuilder, RecordContext, Reroute, Ticket};
use super::lease::LeaseDeadline;
use super::outlet::{Producers, Via};
use super::retrier::{self, FailureAction};
use crate::broker::{DeliveryFailure, FailureKind, SendResult};
use crate::limit::RESEND_DELAY_MAX;
use crate::model::{
    Cursor, Disposition, Message, OriginFormat, Reason, Rejection, ShardId, TemplateInput,
    Timestamp,
};
use crate::store::OutcomeCounts;
use crate::trace::{Span, SpanOperation};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// What it takes to hand records of one shard over.
pub(super) struct ShardSender<'a> {
    pub(super) shard: &'a ShardId,
    pub(super) origins: &'a OriginFormat,
    pub(super) route: &'a RouteOptions,
    pub(super) producers: &'a mut Producers,
    pub(super) via: Via,
    pub(super) record_builder: &'a mut RecordBuilder,
    pub(super) slot: u16,
    pub(super) lease_deadline: &'a LeaseDeadline,
    pub(super) now: Timestamp,
    /// So many more may be handed over now.
    pub(super) room: usize,
}

/// What became of handing one record over.
pub(super) enum SendOutcome {
    Accepted,
    /// Its fate is settled already: it was cancelled.
    Cancelled,
    /// It is to be sent again after a while.
    RetryAfter(Duration),
    /// It, and what comes after it, must wait: it is not due by the clock of this moment, or the client takes nothing for now.
    Blocked,
}

impl ShardSender<'_> {
    /// The rest of a flight, in order, up to a place that belongs to another flight. Answers how many messages are settled with that, and
    /// whether one must wait before all others.
    pub(super) fn send_batch(
        &mut self,
        (aloft, number): (&mut ClaimedBatch, u32),
        until: Option<Cursor>,
        again: &mut BinaryHeap<Reverse<(Instant, u64)>>,
    ) -> (usize, bool) {
        let mut settled = 0;
        while let Some(place) = aloft.next_unsent_place()
            && until.is_none_or(|until| place <= until)
        {
            if self.room == 0 {
                return (settled, true);
            }
            match self.send_next(aloft, number) {
                SendOutcome::Accepted => self.room -= 1,
                SendOutcome::Cancelled => settled += 1,
                SendOutcome::RetryAfter(wait) => again.push(Reverse((
                    Instant::now() + wait,
                    self.ticket(number, aloft.next_unsent),
                ))),
                SendOutcome::Blocked => return (settled, true),
            }
            aloft.next_unsent += 1;
        }
        (settled, false)
    }

    fn ticket(&self, flight: u32, index: usize) -> u64 {
        let index = u16::try_from(index).expect("a claim holds fewer than 65,536 messages");
        Ticket {
            slot: self.slot,
            batch: flight,
            index,
        }
        .pack()
    }

    /// The next of a flight. It was claimed ahead of its due, and the clock may have stepped back since (G1).
    pub(super) fn send_next(&mut self, aloft: &mut ClaimedBatch, flight: u32) -> SendOutcome {
        let place = aloft.place(aloft.next_unsent);
        // A process may be frozen between any two messages.
        if place.due > self.now && !fault!(NoDueCheckAtSend)
            || self.lease_deadline.has_passed(Instant::now())
        {
            return SendOutcome::Blocked;
        }
        if aloft.is_cancelled(place) {
            return SendOutcome::Cancelled;
        }
        self.dead_letter_if_overdue(aloft, place);
        let handed = self.send(aloft, flight, aloft.next_unsent);
        if matches!(handed, SendOutcome::Accepted) {
            aloft.on_sent(&self.route.tracer, self.now);
        }
        handed
    }

    /// The next of a flight is a dead letter if it is handed over too late for its route. Only what had a due of its own can be.
    fn dead_letter_if_overdue(&self, aloft: &mut ClaimedBatch, place: Cursor) {
        let Some(after) = self.route.overdue_after else {
            return;
        };
        let (index, late) = (aloft.next_unsent, self.now.since(place.due));
        if late < after || !aloft.is_first_delivery(index) || aloft.reroutes.contains_key(&index) {
            return;
        }
        let detail = format!(
            "it was due {} and is {} s late; overdue_after is {} s",
            place.due.to_rfc3339(),
            late.as_secs(),
            after.as_secs()
        );
        let diverted = Reroute {
            destination: Destination::DeadLetter,
            reason: Reason::Overdue,
            detail,
            failures: 0,
        };
        self.route
            .alerts
            .on_rerouted(self.shard, place.offset, &diverted);
        aloft.reroutes.insert(index, diverted);
    }

    pub(super) fn send(
        &mut self,
        aloft: &mut ClaimedBatch,
        flight: u32,
        index: usize,
    ) -> SendOutcome {
        let Some(message) = aloft.message(index) else {
            // The run's checksum held, so these bytes were written so: by a version that knows more.
            let place = aloft.place(index);
            tracing::error!(shard = %self.shard, ?place, "a stored message is of a kind that this version does not know: its shard waits for a newer one");
            return SendOutcome::RetryAfter(RESEND_DELAY_MAX);
        };
        let known = aloft.reroutes.get(&index);
        let (target, refused) = match resolve_target((self.route, self.origins), &message, known) {
            Ok(target) => (target, None),
            Err(refused) => (Cow::Borrowed(""), Some(refused)),
        };
        let diverted = known.or(refused.as_ref());
        let stage = diverted.map_or(Destination::Target, |diverted| diverted.destination);
        let ways = RecordContext {
            shard: self.shard,
            origins: self.origins,
            target: &target,
            dead_letter: &self.route.dead_letter,
        };
        let ticket = self.ticket(flight, index);
        let (outlets, way, by) = (&mut *self.producers, (self.route, stage), self.via);
        let sent = self
            .record_builder
            .build(ways, &message, diverted, |record| {
                outlets.send(way, by, record, ticket)
            });
        if let Some(refused) = refused {
            self.route
                .alerts
                .on_rerouted(self.shard, aloft.place(index).offset, &refused);
            aloft.reroutes.insert(index, refused);
        }
        match sent {
            SendResult::Accepted => SendOutcome::Accepted,
            SendResult::QueueFull => SendOutcome::Blocked,
            // The client is being replaced: what comes after it would overtake it (G4).
            SendResult::Failed(DeliveryFailure {
                kind: FailureKind::ClientFailed,
                ..
            }) => SendOutcome::Blocked,
            SendResult::Failed(failure) => SendOutcome::RetryAfter(on_failed(
                self.route,
                (self.shard, self.origins),
                (aloft, index),
                &failure,
                self.now,
            )),
        }
    }
}

/// The target of a message that is not diverted yet; an error diverts it to the dead letters.
fn resolve_target<'m>(
    way: (&'m RouteOptions, &OriginFormat),
    message: &Message<'m>,
    known: Option<&Reroute>,
) -> Result<Cow<'m, str>, Reroute> {
    let dead = |reason, detail| Reroute {
        destination: Destination::DeadLetter,
        reason,
        detail,
        failures: 0,
    };
    match message.body.disposition {
        _ if known.is_some() => Ok(Cow::Borrowed("")),
        Disposition::DeadLetter { reason, detail } => Err(dead(reason, detail.to_owned())),
        _ => allowed_target(way, message).map_err(|refusal| dead(refusal.reason, refusal.detail)),
    }
}

/// The target that the route's rules allow the message.
fn allowed_target<'m>(
    (route, origins): (&'m RouteOptions, &OriginFormat),
    message: &Message<'m>,
) -> Result<Cow<'m, str>, Rejection> {
    route.rules.resolve_target(
        message.body.target,
        TemplateInput {
            topic: origins.topic(),
            headers: message.body.headers,
        },
    )
}

/// A claim, or what of it went in a transaction, is delivered, the last of it just now.
pub(super) fn trace_delivery(
    route: &RouteOptions,
    shard: &ShardId,
    (aloft, tally): (&mut ClaimedBatch, OutcomeCounts),
    end: Timestamp,
) {
    let OutcomeCounts {
        delivered,
        dead_lettered,
        retried: sent_back,
        ..
    } = tally;
    let target = route
        .rules
        .targets
        .default_name()
        .filter(|_| !aloft.names_target)
        .map(Into::into);
    route
        .tracer
        .finish_batch(std::mem::take(&mut aloft.trace_links), |start, links| {
            let (shard, messages) = (shard.clone(), delivered + dead_lettered + sent_back);
            Span {
                shard,
                start,
                end,
                links,
                messages,
                operation: SpanOperation::Delivered {
                    target,
                    dead_lettered,
                    retried: sent_back,
                },
            }
        });
}

/// Counts one delivered message, by its destination.
pub(super) fn on_delivered(
    route: &RouteOptions,
    (shard, origins): (&ShardId, &OriginFormat),
    (aloft, index): (&ClaimedBatch, usize),
    now: Timestamp,
) {
    route.alerts.on_delivered(shard, aloft.place(index).offset);
    match aloft.reroutes.get(&index) {
        None => {
            route.metric.delivered.increment(1);
            if let Some(due) = aloft.due_for_lateness(index) {
                let lateness = now.since(due).as_secs_f64();
                route.metric.lateness_seconds.record(lateness);
                if now < due {
                    route.metric.early.increment(1);
                }
            }
            if route.alerts.has_failing_targets()
                && let Some(message) = aloft.message(index)
                && let Ok(target) = allowed_target((route, origins), &message)
            {
                route.alerts.on_target_recovered(&target);
            }
        }
        Some(
            diverted @ Reroute {
                destination: stage,
                reason,
                ..
            },
        ) => match stage {
            Destination::RetryViaSource { .. } => route.metric.retried.of(*reason).increment(1),
            _ => {
                route.metric.dead_lettered.of(*reason).increment(1);
                write_audit_log(origins, (aloft, index), diverted);
            }
        },
    }
}

/// One line, by a name that a log can be searched and filtered for, for each record that was to go where its route does not allow: a
/// producer's fault, or somebody who tries.
fn write_audit_log(
    origins: &OriginFormat,
    (aloft, index): (&ClaimedBatch, usize),
    diverted: &Reroute,
) {
    if diverted.reason != Reason::TargetNotAllowed {
        return;
    }
    let Some(message) = aloft.message(index) else {
        return;
    };
    let mut origin = String::new();
    match message.body.disposition {
        Disposition::Retry(retry) => origin.push_str(retry.origin),
        _ => origins.append_origin(message.position.offset, &mut origin),
    }
    tracing::warn!(target: "postdate::audit", origin, "dead letter: {}", diverted.detail);
}

/// Decides what comes next for a record that did not arrive; answers how long it waits.
pub(super) fn on_failed(
    route: &RouteOptions,
    (shard, origins): (&ShardId, &OriginFormat),
    (aloft, index): (&mut ClaimedBatch, usize),
    failure: &DeliveryFailure,
    now: Timestamp,
) -> Duration {
    if matches!(
        failure.kind,
        FailureKind::MaybeDelivered | FailureKind::ClientFailed
    ) {
        route.metric.possible_duplicates.increment(1);
    }
    let (stage, failures) = aloft
        .reroutes
        .get(&index)
        .map_or((Destination::Target, 0), |diverted| {
            (diverted.destination, diverted.failures)
        });
    let Some(message) = aloft.message(index) else {
        return RESEND_DELAY_MAX;
    };
    match retrier::decide(
        &route.retry,
        &message.body.disposition,
        (stage, failures),
        failure,
        now,
    ) {
        FailureAction::Reroute(diverted) => {
            let is_targets_fault = matches!(
                failure.reason,
                Reason::UnknownTarget
                    | Reason::TargetFull
                    | Reason::TimedOut
                    | Reason::Unauthorized
            );
            match allowed_target((route, origins), &message) {
                Ok(target) if stage == Destination::Target && is_targets_fault => {
                    let again =
                        if let Destination::RetryViaSource { next, .. } = diverted.destination {
                            Some(next.since(now))
                        } else {
                            None
                        };
                    route.alerts.on_target_failed(&target, failure, again);
                }
                _ => route
                    .alerts
                    .on_rerouted(shard, message.position.offset, &diverted),
            }
            aloft.reroutes.insert(index, diverted);
            Duration::ZERO
        }
        FailureAction::RetryAfter(wait) => {
            let offset = message.position.offset;
            // Of a client that can send nothing its own part tells, and when it can again.
            if failure.kind != FailureKind::ClientFailed {
                if let Some(diverted) = aloft.reroutes.get_mut(&index) {
                    diverted.failures += 1;
                }
                route
                    .alerts
                    .on_blocked((shard, offset), destination_name(route, stage), failure);
            }
            wait
        }
    }
}

/// Where a record of a stage goes, as a person is told.
fn destination_name(route: &RouteOptions, stage: Destination) -> String {
    match stage {
        Destination::Target => "its target".to_owned(),
        Destination::RetryViaSource { .. } => "its source topic, for a retry,".to_owned(),
        Destination::DeadLetter
        | Destination::DeadLetterByReference
        | Destination::DeadLetterWithoutKey => {
            format!("its dead-letter topic {}", route.dead_letter)
        }
    }
}
