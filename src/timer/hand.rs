//! Handing claimed messages to the targets, one after the other, and what follows when one did not arrive.

use super::RouteOptions;
use super::flying::{Aloft, Diverted, Labels, Stage, Ticket, Ways};
use super::outlet::{By, Outlets};
use super::retrier::{self, Next};
use super::term::Term;
use crate::broker::{Failure, FailureKind, Sent};
use crate::limit::RESEND_MAX;
use crate::metric::Arrivals;
use crate::model::{
    CameBy, Cursor, Disposition, Message, Origins, Reason, Refusal, ShardId, Timestamp,
};
use crate::mutant::{self, Mutant};
use crate::store::Tally;
use crate::trace::{Deed, Span};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// What it takes to hand records of one shard over.
pub(super) struct Hand<'a> {
    pub(super) shard: &'a ShardId,
    pub(super) origins: &'a Origins,
    pub(super) route: &'a RouteOptions,
    pub(super) outlets: &'a mut Outlets,
    pub(super) by: By,
    pub(super) labels: &'a mut Labels,
    pub(super) slot: u16,
    pub(super) term: &'a Term,
    pub(super) now: Timestamp,
    /// So many more may be handed over now.
    pub(super) room: usize,
}

/// What became of handing one record over.
pub(super) enum Handed {
    Taken,
    /// Its fate is settled already: it was cancelled.
    Settled,
    /// It is to be sent again after a while.
    Again(Duration),
    /// It, and what comes after it, must wait: it is not due by the clock of this moment, or the client takes nothing for now.
    NotYet,
}

impl Hand<'_> {
    /// The rest of a flight, in order, up to a place that belongs to another flight. Answers how many messages are settled with that, and
    /// whether one must wait before all others.
    pub(super) fn flight(
        &mut self,
        (aloft, number): (&mut Aloft, u32),
        until: Option<Cursor>,
        again: &mut BinaryHeap<Reverse<(Instant, u64)>>,
    ) -> (usize, bool) {
        let mut settled = 0;
        while let Some(place) = aloft.next_place()
            && until.is_none_or(|until| place <= until)
        {
            if self.room == 0 {
                return (settled, true);
            }
            match self.over(aloft, number) {
                Handed::Taken => self.room -= 1,
                Handed::Settled => settled += 1,
                Handed::Again(wait) => again.push(Reverse((
                    Instant::now() + wait,
                    self.ticket(number, aloft.next),
                ))),
                Handed::NotYet => return (settled, true),
            }
            aloft.next += 1;
        }
        (settled, false)
    }

    fn ticket(&self, flight: u32, index: usize) -> u64 {
        let index = u16::try_from(index).expect("a claim holds fewer than 65,536 messages");
        Ticket {
            slot: self.slot,
            flight,
            index,
        }
        .pack()
    }

    /// The next of a flight. It was claimed ahead of its due, and the clock may have stepped back since (G1).
    pub(super) fn over(&mut self, aloft: &mut Aloft, flight: u32) -> Handed {
        let place = aloft.place(aloft.next);
        // A process may be frozen between any two messages.
        if place.due > self.now && !mutant::active(Mutant::NoLastLook)
            || self.term.has_run_out(Instant::now())
        {
            return Handed::NotYet;
        }
        if aloft.is_cancelled(place) {
            return Handed::Settled;
        }
        self.set_aside_overdue(aloft, place);
        let handed = self.send(aloft, flight, aloft.next);
        if matches!(handed, Handed::Taken) {
            aloft.note(&self.route.tracer, self.now);
        }
        handed
    }

    /// The next of a flight is a dead letter if it is handed over too late for its route. Only what had a due of its own can be.
    fn set_aside_overdue(&self, aloft: &mut Aloft, place: Cursor) {
        let Some(after) = self.route.overdue_after else {
            return;
        };
        let (index, late) = (aloft.next, self.now.since(place.due));
        if late < after || !aloft.is_to_deliver(index) || aloft.diverted.contains_key(&index) {
            return;
        }
        let detail = format!(
            "it was due {} and is {} s late; overdue_after is {} s",
            place.due.to_rfc3339(),
            late.as_secs(),
            after.as_secs()
        );
        let diverted = Diverted {
            stage: Stage::DeadLetter,
            reason: Reason::Overdue,
            detail,
            failures: 0,
        };
        self.route
            .outcry
            .mention(self.shard, place.offset, &diverted);
        aloft.diverted.insert(index, diverted);
    }

    pub(super) fn send(&mut self, aloft: &mut Aloft, flight: u32, index: usize) -> Handed {
        let Some(message) = aloft.message(index) else {
            // The run's checksum held, so these bytes were written so: by a version that knows more.
            let place = aloft.place(index);
            tracing::error!(shard = %self.shard, ?place, "a stored message is of a kind that this version does not know: its shard waits for a newer one");
            return Handed::Again(RESEND_MAX);
        };
        let known = aloft.diverted.get(&index);
        let (target, refused) = match resolve((self.route, self.origins), &message, known) {
            Ok(target) => (target, None),
            Err(refused) => (Cow::Borrowed(""), Some(refused)),
        };
        let diverted = known.or(refused.as_ref());
        let stage = diverted.map_or(Stage::Target, |diverted| diverted.stage);
        let ways = Ways {
            shard: self.shard,
            origins: self.origins,
            target: &target,
            dead_letter: &self.route.dead_letter,
        };
        let ticket = self.ticket(flight, index);
        let (outlets, way, by) = (&mut *self.outlets, (self.route, stage), self.by);
        let sent = self.labels.record(ways, &message, diverted, |record| {
            outlets.send(way, by, record, ticket)
        });
        if let Some(refused) = refused {
            self.route
                .outcry
                .mention(self.shard, aloft.place(index).offset, &refused);
            aloft.diverted.insert(index, refused);
        }
        match sent {
            Sent::Taken => Handed::Taken,
            Sent::Full => Handed::NotYet,
            // The client is being replaced: what comes after it would overtake it (G4).
            Sent::Failed(Failure {
                kind: FailureKind::Closed,
                ..
            }) => Handed::NotYet,
            Sent::Failed(failure) => Handed::Again(failed(
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
fn resolve<'m>(
    way: (&'m RouteOptions, &Origins),
    message: &Message<'m>,
    known: Option<&Diverted>,
) -> Result<Cow<'m, str>, Diverted> {
    let dead = |reason, detail| Diverted {
        stage: Stage::DeadLetter,
        reason,
        detail,
        failures: 0,
    };
    match message.body.disposition {
        _ if known.is_some() => Ok(Cow::Borrowed("")),
        Disposition::DeadLetter { reason, detail } => Err(dead(reason, detail.to_owned())),
        _ => target(way, message).map_err(|refusal| dead(refusal.reason, refusal.detail)),
    }
}

/// The target that the route's rules allow the message.
fn target<'m>(
    (route, origins): (&'m RouteOptions, &Origins),
    message: &Message<'m>,
) -> Result<Cow<'m, str>, Refusal> {
    route.rules.target(
        message.body.target,
        CameBy {
            topic: origins.topic(),
            headers: message.body.headers,
        },
    )
}

/// A claim, or what of it went in a transaction, is delivered, the last of it just now.
pub(super) fn tell(
    route: &RouteOptions,
    shard: &ShardId,
    (aloft, tally): (&mut Aloft, Tally),
    end: Timestamp,
) {
    let Tally {
        delivered,
        dead_lettered,
        sent_back,
        ..
    } = tally;
    let target = route
        .rules
        .default_target
        .as_ref()
        .filter(|_| !aloft.names_target)
        .map(|default| default.name().into());
    route
        .tracer
        .tell(std::mem::take(&mut aloft.links), |start, links| {
            let (shard, messages) = (shard.clone(), delivered + dead_lettered + sent_back);
            Span {
                shard,
                start,
                end,
                links,
                messages,
                deed: Deed::Delivered {
                    target,
                    dead_lettered,
                    sent_back,
                },
            }
        });
}

/// Counts one that arrived, by the way it went: what was delivered in `arrivals`, which the caller tells.
pub(super) fn arrived(
    (route, arrivals): (&RouteOptions, &mut Arrivals),
    (shard, origins): (&ShardId, &Origins),
    (aloft, index): (&Aloft, usize),
    now: Timestamp,
) {
    route.outcry.calm(shard, aloft.place(index).offset);
    match aloft.diverted.get(&index) {
        None => {
            arrivals.delivered();
            if let Some(due) = aloft.due_ahead(index) {
                arrivals.late(now.since(due).as_secs_f64());
                if now < due {
                    arrivals.early();
                }
            }
            if route.outcry.is_amiss()
                && let Some(message) = aloft.message(index)
                && let Ok(target) = target((route, origins), &message)
            {
                route.outcry.reach(&target);
            }
        }
        Some(diverted @ Diverted { stage, reason, .. }) => match stage {
            Stage::Back { .. } => route.metric.retried.of(*reason).increment(1),
            _ => {
                route.metric.dead_lettered.of(*reason).increment(1);
                audit(origins, (aloft, index), diverted);
            }
        },
    }
}

/// One line, by a name that a log can be searched and filtered for, for each record that was to go where its route does not allow: a
/// producer's fault, or somebody who tries.
fn audit(origins: &Origins, (aloft, index): (&Aloft, usize), diverted: &Diverted) {
    if diverted.reason != Reason::TargetNotAllowed {
        return;
    }
    let Some(message) = aloft.message(index) else {
        return;
    };
    let mut origin = String::new();
    match message.body.disposition {
        Disposition::Retry(retry) => origin.push_str(retry.origin),
        _ => origins.write(message.place.offset, &mut origin),
    }
    tracing::warn!(target: "postdate::audit", origin, "dead letter: {}", diverted.detail);
}

/// Decides what comes next for a record that did not arrive; answers how long it waits.
pub(super) fn failed(
    route: &RouteOptions,
    (shard, origins): (&ShardId, &Origins),
    (aloft, index): (&mut Aloft, usize),
    failure: &Failure,
    now: Timestamp,
) -> Duration {
    if matches!(failure.kind, FailureKind::Unknown | FailureKind::Closed) {
        route.metric.possible_duplicates.increment(1);
    }
    let (stage, failures) = aloft
        .diverted
        .get(&index)
        .map_or((Stage::Target, 0), |diverted| {
            (diverted.stage, diverted.failures)
        });
    let Some(message) = aloft.message(index) else {
        return RESEND_MAX;
    };
    match retrier::decide(
        &route.retry,
        &message.body.disposition,
        (stage, failures),
        failure,
        now,
    ) {
        Next::Divert(diverted) => {
            let is_targets_fault = matches!(
                failure.reason,
                Reason::UnknownTarget
                    | Reason::TargetFull
                    | Reason::TimedOut
                    | Reason::Unauthorized
            );
            match target((route, origins), &message) {
                Ok(target) if stage == Stage::Target && is_targets_fault => {
                    let again = if let Stage::Back { next, .. } = diverted.stage {
                        Some(next.since(now))
                    } else {
                        None
                    };
                    route.outcry.miss(&target, failure, again);
                }
                _ => route.outcry.mention(shard, message.place.offset, &diverted),
            }
            aloft.diverted.insert(index, diverted);
            Duration::ZERO
        }
        Next::Again(wait) => {
            let offset = message.place.offset;
            // Of a client that can send nothing its own part tells, and when it can again.
            if failure.kind != FailureKind::Closed {
                if let Some(diverted) = aloft.diverted.get_mut(&index) {
                    diverted.failures += 1;
                }
                route
                    .outcry
                    .say((shard, offset), way(route, stage), failure);
            }
            wait
        }
    }
}

/// Where a record of a stage goes, as a person is told.
fn way(route: &RouteOptions, stage: Stage) -> String {
    match stage {
        Stage::Target => "its target".to_owned(),
        Stage::Back { .. } => "its source topic, for a retry,".to_owned(),
        Stage::DeadLetter | Stage::DeadLetterByReference | Stage::DeadLetterWithoutKey => {
            format!("its dead-letter topic {}", route.dead_letter)
        }
    }
}
