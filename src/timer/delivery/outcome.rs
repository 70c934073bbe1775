//! Handles the outcome of each message: resolves its target, counts deliveries, and decides what
//! follows a failure.

use super::in_flight::ClaimedBatch;
use super::record::{Destination, Reroute};
use super::retry::{self, FailureAction};
use crate::broker::{DeliveryFailure, FailureKind};
use crate::limit::RESEND_DELAY_MAX;
use crate::model::{
    Disposition, Message, OriginFormat, OutcomeCounts, Reason, Rejection, ShardId, TemplateInput,
    Timestamp,
};
use crate::timer::RouteOptions;
use crate::trace::{Span, SpanOperation};
use std::borrow::Cow;
use std::time::Duration;

/// The shard of a message and its route.
#[derive(Clone, Copy)]
pub(crate) struct ShardContext<'a> {
    pub(crate) shard: &'a ShardId,
    pub(crate) origins: &'a OriginFormat,
    pub(crate) route: &'a RouteOptions,
}

impl ShardContext<'_> {
    /// The target of a message that has no reroute yet. A message without an allowed target is
    /// rerouted to the dead-letter topic.
    pub(crate) fn first_target<'m>(
        &'m self,
        message: &Message<'m>,
    ) -> Result<Cow<'m, str>, Reroute> {
        if let Disposition::DeadLetter { reason, detail } = message.body.disposition {
            return Err(Reroute::dead_letter(reason, detail.to_owned()));
        }
        self.allowed_target(message)
            .map_err(|rejection| Reroute::dead_letter(rejection.reason, rejection.detail))
    }

    fn allowed_target<'m>(&'m self, message: &Message<'m>) -> Result<Cow<'m, str>, Rejection> {
        let input = TemplateInput {
            topic: self.origins.topic(),
            headers: message.body.headers,
        };
        self.route.rules.resolve_target(message.body.target, input)
    }

    /// Counts an acknowledged message by its destination.
    pub(crate) fn on_delivered(&self, batch: &ClaimedBatch, index: usize, now: Timestamp) {
        let route = self.route;
        route
            .alerts
            .on_delivered(self.shard, batch.position(index).offset);
        let Some(reroute) = batch.reroute(index) else {
            route.metric.delivered.increment(1);
            if let Some(due) = batch.due_for_lateness(index) {
                let lateness = now.since(due).as_secs_f64();
                route.metric.lateness_seconds.record(lateness);
                if now < due {
                    route.metric.early.increment(1);
                }
            }
            self.clear_target_alert(batch, index);
            return;
        };
        if matches!(reroute.destination, Destination::RetryViaSource { .. }) {
            route.metric.retried.of(reroute.reason).increment(1);
        } else {
            route.metric.dead_lettered.of(reroute.reason).increment(1);
            self.write_audit_log(batch, index, reroute);
        }
    }

    fn clear_target_alert(&self, batch: &ClaimedBatch, index: usize) {
        if self.route.alerts.has_failing_targets()
            && let Some(message) = batch.message(index)
            && let Ok(target) = self.allowed_target(&message)
        {
            self.route.alerts.on_target_recovered(&target);
        }
    }

    /// Logs each message that named a target which its route does not allow. The log target is
    /// stable, so that operators can filter for it.
    fn write_audit_log(&self, batch: &ClaimedBatch, index: usize, reroute: &Reroute) {
        if reroute.reason != Reason::TargetNotAllowed {
            return;
        }
        let Some(message) = batch.message(index) else {
            return;
        };
        let mut origin = String::new();
        match message.body.disposition {
            Disposition::Retry(retry) => origin.push_str(retry.origin),
            _ => self
                .origins
                .append_origin(message.position.offset, &mut origin),
        }
        tracing::warn!(target: "postdate::audit", origin, "dead letter: {}", reroute.detail);
    }

    /// Decides what follows a failed attempt: reroutes the message, or leaves it as it is. Returns
    /// how long to wait before it is sent again.
    pub(crate) fn on_failed(
        &self,
        batch: &mut ClaimedBatch,
        index: usize,
        failure: &DeliveryFailure,
        now: Timestamp,
    ) -> Duration {
        let route = self.route;
        if matches!(
            failure.kind,
            FailureKind::MaybeDelivered | FailureKind::ClientFailed
        ) {
            route.metric.possible_duplicates.increment(1);
        }
        let (destination, failures) = batch
            .reroute(index)
            .map_or((Destination::Target, 0), |reroute| {
                (reroute.destination, reroute.failures)
            });
        let Some(message) = batch.message(index) else {
            return RESEND_DELAY_MAX;
        };
        let offset = message.position.offset;
        let disposition = &message.body.disposition;
        match retry::decide(
            &route.retry,
            disposition,
            destination,
            failures,
            failure,
            now,
        ) {
            FailureAction::Reroute(reroute) => {
                self.alert_rerouted(&message, destination, failure, &reroute, now);
                batch.set_reroute(index, reroute);
                Duration::ZERO
            }
            FailureAction::RetryAfter(wait) => {
                // A failed client reports its own readiness.
                if failure.kind != FailureKind::ClientFailed {
                    batch.count_failure(index);
                    let name = destination_name(route, destination);
                    route.alerts.on_blocked(self.shard, offset, name, failure);
                }
                wait
            }
        }
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
            Reason::UnknownTarget | Reason::TargetFull | Reason::TimedOut | Reason::Unauthorized
        );
        match self.allowed_target(message) {
            Ok(target) if failed == Destination::Target && target_failed => {
                let retry_in = match reroute.destination {
                    Destination::RetryViaSource { next, .. } => Some(next.since(now)),
                    _ => None,
                };
                alerts.on_target_failed(&target, failure, retry_in);
            }
            _ => alerts.on_rerouted(self.shard, message.position.offset, reroute),
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
        let target = default_target
            .filter(|_| !batch.names_target())
            .map(Into::into);
        let links = batch.take_trace_links();
        self.route.tracer.finish_batch(links, |start, links| Span {
            shard: self.shard.clone(),
            start,
            end,
            links,
            messages: delivered + dead_lettered + retried,
            operation: SpanOperation::Delivered {
                target,
                dead_lettered,
                retried,
            },
        });
    }
}

/// The name of a destination in logs and readiness reasons.
fn destination_name(route: &RouteOptions, destination: Destination) -> String {
    match destination {
        Destination::Target => "its target".to_owned(),
        Destination::RetryViaSource { .. } => "its source topic (for a retry)".to_owned(),
        Destination::DeadLetter
        | Destination::DeadLetterByReference
        | Destination::DeadLetterWithoutKey => {
            format!("its dead-letter topic {}", route.dead_letter)
        }
    }
}
