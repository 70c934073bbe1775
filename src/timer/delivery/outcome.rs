//! A shard with its route: resolves the targets of its messages, counts deliveries, and reroutes
//! failed messages.

use super::in_flight::ClaimedBatch;
use super::record::{Destination, Reroute};
use crate::broker::{DeliveryFailure, FailureKind, ProducerIdentity};
use crate::encryption::KeyRing;
use crate::limit::{RESEND_DELAY_MAX, RESEND_DELAY_MIN};
use crate::model::{
    AnswerState, Body, DeadLetterReason, Disposition, Effect, Message, Offset, OriginFormat,
    OutcomeCounts, Partition, Rejection, ScheduleState, ShardId, Timestamp,
};
use crate::retry::backoff;
use crate::timer::RouteOptions;
use crate::trace::{Span, SpanOperation};
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

pub(crate) struct ShardContext {
    pub(crate) shard: ShardId,
    /// Hashes ids.
    pub(super) keys: KeyRing,
    pub(super) origins: OriginFormat,
    /// The transactional producer, if the route is exactly-once.
    pub(crate) producer: Option<ProducerIdentity>,
    pub(crate) route: Rc<RouteOptions>,
}

impl ShardContext {
    pub(crate) fn new(
        deployment: &str,
        keys: KeyRing,
        shard: ShardId,
        route: Rc<RouteOptions>,
    ) -> Self {
        let Partition { topic, index } = &shard.partition;
        let producer = route.marker_group.as_ref().map(|group| ProducerIdentity {
            transactional_id: format!("{deployment}.{}.{topic}.{index}", shard.route),
            offset_group: group.clone(),
            partition: shard.partition.clone(),
            target_topics: route.known_topics.clone(),
        });
        Self {
            origins: OriginFormat::new(deployment, &shard),
            producer,
            keys,
            shard,
            route,
        }
    }

    /// The target of a message that has no reroute yet. A message without an allowed target is
    /// rerouted to the dead-letter topic.
    pub(super) fn first_target<'m>(
        &'m self,
        message: &Message<'m>,
    ) -> Result<Cow<'m, str>, Reroute> {
        if let Disposition::DeadLetter { reason, detail } = message.body.disposition {
            return Err(Reroute::dead_letter(reason, detail.to_owned()));
        }
        self.allowed_target(message).map_err(|rejection| {
            let Rejection { reason, detail } = rejection;
            let destination = Destination::Dropped;
            match message.body.is_answer() {
                true => Reroute::new(destination, reason, detail),
                false => Reroute::dead_letter(reason, detail),
            }
        })
    }

    /// Gives the message another destination. Counts a dropped message here, because it is passed again
    /// after an aborted transaction.
    pub(super) fn reroute(&self, batch: &mut ClaimedBatch, index: usize, reroute: Reroute) {
        let metric = &self.route.metric;
        match (reroute.destination, reroute.reason) {
            (Destination::Dropped, DeadLetterReason::Expired) => metric.expired.increment(1),
            (Destination::Dropped, _) => metric.answers_missing.increment(1),
            _ => {}
        }
        batch.reroutes.insert(index, reroute);
    }

    /// The reroute of a message whose `postdate-until` has passed.
    pub(super) fn expired(&self, message: &Message<'_>) -> Reroute {
        let until = message.body.until.map(Timestamp::to_rfc3339);
        let detail = format!("its postdate-until was {}", until.unwrap_or_default());
        let destination = match self.route.drops_expired {
            true => Destination::Dropped,
            false => Destination::DeadLetter,
        };
        Reroute::new(destination, DeadLetterReason::Expired, detail)
    }

    fn allowed_target<'m>(&'m self, message: &Message<'m>) -> Result<Cow<'m, str>, Rejection> {
        let Body {
            target, headers, ..
        } = message.body;
        let rules = &self.route.rules;
        let targets = match (&rules.replies, message.body.is_answer()) {
            (_, false) => &rules.targets,
            (Some(replies), true) => &replies.targets,
            (None, true) => {
                let detail = "the route has no allow_replies";
                return Err(Rejection::new(DeadLetterReason::TargetNotAllowed, detail));
            }
        };
        targets.resolve(target, self.origins.topic(), headers)
    }

    /// Appends the payload of an answer.
    pub(super) fn append_answer(
        &self,
        answer: &AnswerState<'_>,
        request: Offset,
        effect: Effect,
        json: &mut Vec<u8>,
    ) {
        let partition = self.shard.partition.index;
        answer.append_json(effect, request, partition, &self.origins, json);
    }

    /// Appends the origin of the first record, which is kept through all retries.
    pub(super) fn append_origin(&self, message: &Message<'_>, text: &mut String) {
        match message.body.disposition {
            Disposition::Retry(retry) | Disposition::RetriedAnswer(retry) => {
                text.push_str(retry.origin);
            }
            Disposition::Occurrence(ScheduleState {
                schedule, planned, ..
            }) => self.origins.append_occurrence(schedule, planned, text),
            _ => self.origins.append_origin(message.place.offset, text),
        }
    }

    pub(crate) fn on_delivered(&self, batch: &ClaimedBatch, index: usize, now: Timestamp) {
        let RouteOptions { metric, alerts, .. } = &*self.route;
        alerts.on_delivered(&self.shard, batch.place(index).offset);
        self.tell_outcome(batch, index);
        let Some(reroute) = batch.reroutes.get(&index) else {
            if batch.is_answer(index) {
                metric.answers.increment(1);
                return;
            }
            metric.delivered.increment(1);
            if let Some(due) = batch.due_for_lateness(index) {
                let by_rate = batch.lateness_by_rate(due);
                let lateness = batch.lateness(due, now).saturating_sub(by_rate);
                metric.lateness_seconds.record(lateness.as_secs_f64());
                if !by_rate.is_zero() {
                    metric.rate_lateness_seconds.record(by_rate.as_secs_f64());
                }
                if now < due {
                    metric.early.increment(1);
                }
            }
            if alerts.has_failing_targets()
                && let Some(message) = batch.message(index)
                && let Ok(target) = self.allowed_target(&message)
            {
                alerts.on_target_recovered(&target);
            }
            return;
        };
        match reroute.destination {
            Destination::RetryViaSource { .. } => {
                metric.retried.of(reroute.reason).increment(1);
                return;
            }
            Destination::Reschedule { .. } => {
                metric.rescheduled.increment(1);
                return;
            }
            // Counted when it was dropped.
            Destination::Dropped => return,
            _ => {}
        }
        metric.dead_lettered.of(reroute.reason).increment(1);
        if reroute.reason == DeadLetterReason::TargetNotAllowed
            && let Some(message) = batch.message(index)
        {
            let mut origin = String::new();
            self.append_origin(&message, &mut origin);
            // The log target is stable, so that operators can filter for it.
            tracing::warn!(target: "postdate::audit", origin, "dead letter: {}", reroute.detail);
        }
    }

    /// Reroutes a message that was not delivered, or leaves it as it is. Returns how long to wait
    /// before it is sent again.
    pub(crate) fn on_failed(
        &self,
        batch: &mut ClaimedBatch,
        index: usize,
        failure: &DeliveryFailure,
        now: Timestamp,
    ) -> Duration {
        let route = &*self.route;
        let is_client_failed = failure.kind == FailureKind::ClientFailed;
        if is_client_failed || failure.kind == FailureKind::MaybeDelivered {
            route.metric.possible_duplicates.increment(1);
        }
        let (failed, failures) = match batch.reroutes.get(&index) {
            Some(reroute) => (reroute.destination, reroute.failures),
            None => (Destination::Target, 0),
        };
        let Some(message) = batch.message(index) else {
            return RESEND_DELAY_MAX;
        };
        let disposition = &message.body.disposition;
        if let Some(next) = (route.retry).next_destination(disposition, failed, failure, now) {
            let reroute = match batch.reroutes.get(&index) {
                // The dead-letter topic refused it as it was. Its reason stays.
                Some(first) if next.is_dead_letter() && failed.is_dead_letter() => {
                    Reroute::new(next, first.reason, first.detail.clone())
                }
                _ => Reroute::new(next, failure.reason, failure.detail.clone()),
            };
            self.alert_rerouted(&message, failed, failure, &reroute, now);
            self.reroute(batch, index, reroute);
            return Duration::ZERO;
        }
        // A failed client reports its own readiness.
        if !is_client_failed {
            let name = match failed {
                Destination::Target => "its target".to_owned(),
                Destination::RetryViaSource { .. } => "its source topic (for a retry)".to_owned(),
                Destination::Reschedule { .. } => "its source topic (to reschedule)".to_owned(),
                _ => format!("its dead-letter topic {}", route.dead_letter),
            };
            let offset = message.place.offset;
            route.alerts.on_blocked(&self.shard, offset, name, failure);
            if let Some(reroute) = batch.reroutes.get_mut(&index) {
                reroute.failures += 1;
            }
        }
        backoff(RESEND_DELAY_MIN, RESEND_DELAY_MAX, failures)
    }

    fn alert_rerouted(
        &self,
        message: &Message<'_>,
        failed: Destination,
        failure: &DeliveryFailure,
        reroute: &Reroute,
        now: Timestamp,
    ) {
        let alerts = &self.route.alerts;
        let target_failed = matches!(
            failure.reason,
            DeadLetterReason::UnknownTarget
                | DeadLetterReason::TargetFull
                | DeadLetterReason::TimedOut
                | DeadLetterReason::Unauthorized
        );
        match self.allowed_target(message) {
            Ok(target) if failed == Destination::Target && target_failed => {
                let retry_in = match reroute.destination {
                    Destination::RetryViaSource { next, .. } => Some(next.since(now)),
                    _ => None,
                };
                alerts.on_target_failed(&target, failure, retry_in);
            }
            _ => alerts.on_rerouted(&self.shard, message.place.offset, reroute),
        }
    }

    /// Records a span for a batch, or for the part of it that a transaction delivered.
    pub(crate) fn trace_delivery(
        &self,
        batch: &mut ClaimedBatch,
        outcomes: OutcomeCounts,
        end: Timestamp,
    ) {
        let OutcomeCounts {
            delivered,
            dead_lettered,
            retried,
            ..
        } = outcomes;
        let default_target = self.route.rules.targets.default_name();
        let target = default_target.filter(|_| !batch.names_target);
        let links = std::mem::take(&mut batch.trace_links);
        self.route.tracer.finish_batch(links, |start, links| Span {
            shard: self.shard.clone(),
            start,
            end,
            links,
            messages: delivered + dead_lettered + retried,
            operation: SpanOperation::Delivered {
                target: target.map(Into::into),
                dead_lettered,
                retried,
            },
        });
    }
}

#[cfg(test)]
impl ShardContext {
    /// A context with the simplest route.
    pub(crate) fn for_test(shard: ShardId) -> Self {
        use crate::model::{Dialects, Naming, RetryKeys, RoutingRules, TargetRules, WithoutDelay};
        let metric = crate::metric::RouteMetrics::new(&shard.route);
        let health = crate::health::Health::new().register("deliveries");
        let route = RouteOptions {
            rules: RoutingRules {
                targets: TargetRules::new(
                    Naming::Topic,
                    Some("target"),
                    Vec::<String>::new(),
                    ["source"],
                ),
                replies: None,
                max_delay: Duration::from_secs(3_600),
                max_retry_wait: Duration::from_secs(1),
                without_delay: WithoutDelay::Relay,
                on_duplicate: crate::model::OnDuplicate::Replace,
                change_by_origin: false,
                dialects: Dialects::default(),
                is_recurring: false,
                retry_keys: RetryKeys::default(),
            },
            dead_letter: "dead".to_owned(),
            retry: crate::timer::RetryPolicy {
                max_attempts: 3,
                backoff: Duration::from_secs(1),
                backoff_max: Duration::from_secs(3),
            },
            overdue_after: None,
            drops_expired: false,
            rate: tokio::sync::watch::channel(None).1,
            catch_up_rate: tokio::sync::watch::channel(None).1,
            source_cluster: "main".to_owned(),
            target_cluster: "main".to_owned(),
            dead_letter_cluster: "main".to_owned(),
            marker_group: None,
            known_topics: std::sync::Arc::default(),
            metric,
            tracer: crate::trace::Tracer::default(),
            outcomes: None,
            alerts: crate::timer::DeliveryAlerts::new(health),
        };
        Self::new("d", KeyRing::plain(), shard, Rc::new(route))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Cursor;
    use metrics::Counter;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::time::Instant;

    #[test]
    fn a_dropped_message_is_counted_when_it_gets_its_reroute() {
        let shard = ShardId::new("r", Partition::new("t", 0));
        let mut context = ShardContext::for_test(shard);
        let [expired, missing] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let route = Rc::get_mut(&mut context.route).expect("one owner");
        route.drops_expired = true;
        route.metric.expired = Counter::from_arc(expired.clone());
        route.metric.answers_missing = Counter::from_arc(missing.clone());
        let mut batch = ClaimedBatch::new(Vec::new(), Vec::new(), Vec::new(), Instant::now());
        let counts = || [&expired, &missing].map(|count| count.load(Ordering::Relaxed));
        let message = Message {
            place: Cursor::new(Timestamp::from_millis(5), Offset(1)),
            body: Body::default(),
        };
        context.reroute(&mut batch, 0, context.expired(&message));
        assert_eq!(counts(), [1, 0]);
        let reason = DeadLetterReason::TimedOut;
        let answer = Reroute::new(Destination::Dropped, reason, String::new());
        context.reroute(&mut batch, 1, answer);
        assert_eq!(counts(), [1, 1]);
        let refused = Reroute::dead_letter(DeadLetterReason::Expired, String::new());
        context.reroute(&mut batch, 2, refused);
        assert_eq!(counts(), [1, 1]);
        // An aborted transaction is sent again by the same reroutes.
        batch.rewind_uncommitted();
        assert_eq!(batch.reroutes.len(), 3);
    }
}
