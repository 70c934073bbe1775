//! What is under way with a target, on the target's thread: published and not confirmed, by one connection after the other.
//!
//! Only the answer of a stream proves that it has a record. A record that has none when the connection is lost, or after
//! [`NATS_CONFIRM_MAX`], is sent again by another connection, along with all behind it and in their order. Each bears a `Nats-Msg-Id`, so that what the
//! stream has already is a no-op for as long as its duplicate window lasts. What stays unanswered by a cluster that does answer others is
//! given up after [`NATS_SEND_MAX`]; while the cluster is away, nothing is.

use super::doubt::Doubts;
use super::header::Carried;
use super::wire::{Heard, Wire};
use super::{Cluster, failure};
use crate::broker::reports::Reports;
use crate::broker::{Failure, Report};
use crate::health::Part;
use crate::limit::{
    NATS_CONFIRM_MAX, NATS_RECONNECT_MAX, NATS_REPORTS_MAX, NATS_RETRY, NATS_SEND_MAX,
    NATS_WINDOW_MAX,
};
use crate::model::{Offset, Reason};
use async_nats::Subject;
use bytes::Bytes;
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A record that is not settled.
pub(super) struct Pending {
    pub(super) ticket: u64,
    pub(super) subject: Subject,
    pub(super) headers: Carried,
    pub(super) payload: Bytes,
    pub(super) length: usize,
    /// When it was sent first, over the connections of a cluster that answers.
    pub(super) since: Option<Instant>,
    /// When it was sent by this connection.
    pub(super) sent: Instant,
    /// Whether some program answered to it that is no stream.
    pub(super) has_foreign_answer: bool,
}

/// What runs on the target's thread.
pub(super) struct Window {
    pub(super) cluster: Cluster,
    pub(super) part: Part,
    pub(super) incoming: mpsc::Receiver<Pending>,
    pub(super) reports: Arc<Reports>,
    pub(super) stop: CancellationToken,
    pub(super) bytes: Arc<AtomicUsize>,
    pub(super) max_payload: Arc<AtomicUsize>,
    /// By their numbers, in the order in which they were sent.
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) last: u64,
    pub(super) settled: Vec<Report>,
    pub(super) doubts: Doubts,
}

/// Why a connection is given up.
enum End {
    Stopped,
    Lost(String),
    /// There was none.
    Unmade(String),
    /// It is there, and the stream of what was sent first does not confirm it.
    Unconfirmed,
}

impl Window {
    pub(super) fn serve(mut self) {
        while !self.stop.is_cancelled() {
            // One for each connection: with it ends whatever the client library still has to do for one that is lost.
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => {
                    return self
                        .part
                        .not_ready(format!("nats.{}: no runtime: {error}", self.cluster.name));
                }
            };
            match runtime.block_on(self.serve_connection()) {
                End::Stopped => break,
                End::Unconfirmed => {}
                End::Lost(why) => self.pause(&runtime, why, NATS_RETRY),
                End::Unmade(why) => self.pause(&runtime, why, NATS_RECONNECT_MAX),
            }
        }
    }

    fn pause(&mut self, runtime: &Runtime, why: String, length: Duration) {
        self.part.not_ready(why);
        self.pending
            .values_mut()
            .for_each(|pending| pending.since = None);
        let stop = self.stop.clone();
        runtime.block_on(async move { stop.run_until_cancelled(tokio::time::sleep(length)).await });
    }

    /// Whatever it waits for can be dropped: with a stop all that is under way is given up.
    async fn serve_connection(&mut self) -> End {
        let stop = self.stop.clone();
        let served = async {
            match Wire::open(&self.cluster).await {
                Ok(wire) => self.serve_wire(wire).await,
                Err(error) => End::Unmade(error.to_string()),
            }
        };
        stop.run_until_cancelled(served)
            .await
            .unwrap_or(End::Stopped)
    }

    async fn serve_wire(&mut self, mut wire: Wire) -> End {
        self.part.ready();
        self.max_payload
            .store(wire.max_payload(), Ordering::Relaxed);
        self.doubts = Doubts::default();
        let mut records = Vec::new();
        let mut turned = self
            .publish_all(&wire, self.pending.keys().copied().collect())
            .await;
        loop {
            match turned {
                Ok(()) => turned = self.turn(&mut wire, &mut records).await,
                Err(end) => return end,
            }
        }
    }

    async fn turn(&mut self, wire: &mut Wire, records: &mut Vec<Pending>) -> Result<(), End> {
        self.reports.put(&mut self.settled);
        let room = NATS_WINDOW_MAX
            .saturating_sub(self.pending.len())
            .min(NATS_REPORTS_MAX);
        // What was sent first is to be confirmed first.
        let unconfirmed = self
            .pending
            .values()
            .next()
            .map_or_else(Instant::now, |pending| pending.sent)
            + NATS_CONFIRM_MAX;
        // Every arm is safe to drop.
        tokio::select! {
            biased;
            heard = wire.heard() => self.hear(wire, heard).await,
            count = self.incoming.recv_many(records, room), if room > 0 => {
                if count == 0 {
                    return Err(End::Stopped);
                }
                for record in records.drain(..) {
                    self.take(wire, record).await?;
                }
                Ok(())
            }
            () = tokio::time::sleep_until(self.doubts.next().unwrap_or(unconfirmed)), if self.doubts.next().is_some() => {
                self.publish_again(wire).await
            }
            () = tokio::time::sleep_until(unconfirmed), if !self.pending.is_empty() => {
                if self.give_up_on_foreign() {
                    return Ok(());
                }
                self.give_up();
                Err(End::Unconfirmed)
            }
        }
    }

    async fn take(&mut self, wire: &Wire, record: Pending) -> Result<(), End> {
        self.last += 1;
        let waits = self.doubts.holds(&record.subject, self.last);
        self.pending.insert(self.last, record);
        if waits {
            Ok(())
        } else {
            self.publish(wire, self.last).await
        }
    }

    async fn publish_all(&mut self, wire: &Wire, numbers: Vec<u64>) -> Result<(), End> {
        for number in numbers {
            self.publish(wire, number).await?;
        }
        Ok(())
    }

    async fn publish(&mut self, wire: &Wire, number: u64) -> Result<(), End> {
        let Some(pending) = self.pending.get_mut(&number) else {
            return Ok(());
        };
        pending.sent = Instant::now();
        pending.since.get_or_insert(pending.sent);
        let length = pending.length;
        let publish = wire.publish(
            number,
            &pending.subject,
            pending.headers.map(),
            pending.payload.clone(),
        );
        match tokio::time::timeout_at(pending.sent + NATS_CONFIRM_MAX, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(())) => self.settle(number, Err(too_large(length, wire.max_payload()))),
            Err(_) => {
                return Err(End::Lost(format!(
                    "nats.{} takes nothing",
                    self.cluster.name
                )));
            }
        }
        Ok(())
    }

    /// What no stream took, though there is one.
    async fn publish_again(&mut self, wire: &Wire) -> Result<(), End> {
        let now = Instant::now();
        for number in self.doubts.due(now) {
            if self.pending.get(&number).is_some_and(|pending| {
                pending
                    .since
                    .is_some_and(|since| since + NATS_SEND_MAX <= now)
            }) {
                self.settle(number, Err(failure::unanswered()));
            } else {
                self.publish(wire, number).await?;
            }
        }
        Ok(())
    }

    /// Whether there is a stream for the record, which the server says there is not.
    async fn doubt(&mut self, wire: &Wire, number: u64) {
        let Some(pending) = self.pending.get(&number) else {
            return;
        };
        if let Some(question) = self.doubts.doubt(&pending.subject, number) {
            // In vain where the connection takes nothing: that is noticed by what was sent over it.
            let _in_vain =
                tokio::time::timeout(NATS_CONFIRM_MAX, wire.ask(question, &pending.subject)).await;
        }
    }

    fn no_stream(&mut self, numbers: Vec<u64>) {
        for number in numbers {
            let failure = self
                .pending
                .get(&number)
                .map(|pending| failure::no_stream(&pending.subject));
            failure
                .into_iter()
                .for_each(|failure| self.settle(number, Err(failure)));
        }
    }

    /// Takes what was heard, and what else there is to hear at once.
    async fn hear(&mut self, wire: &mut Wire, first: Heard) -> Result<(), End> {
        let mut next = Some(first);
        while let Some(heard) = next.take() {
            match heard {
                Heard::Answer(number, answer) => self.settle(number, answer),
                Heard::Foreign(number) => self
                    .pending
                    .get_mut(&number)
                    .into_iter()
                    .for_each(|pending| pending.has_foreign_answer = true),
                Heard::NoStream(number) => self.doubt(wire, number).await,
                Heard::Taken(question, is_taken) => {
                    let failed = self.doubts.told(question, is_taken, Instant::now());
                    self.no_stream(failed);
                }
                Heard::Denied(subject) if wire.is_question(&subject) => {
                    let failed = self.doubts.untold();
                    self.no_stream(failed);
                }
                Heard::Denied(subject) => self.deny(&subject),
                Heard::Lost => {
                    return Err(End::Lost(format!(
                        "nats.{} does not answer: the connection was lost",
                        self.cluster.name
                    )));
                }
            }
            if self.settled.len() < NATS_REPORTS_MAX {
                next = wire.heard().now_or_never();
            }
        }
        Ok(())
    }

    fn deny(&mut self, subject: &str) {
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.subject.as_str() == subject)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let detail = format!("this client may not publish to {subject}");
            self.settle(number, Err(failure::refused(Reason::Unauthorized, detail)));
        }
    }

    /// What is waited for in vain because no stream, but some other program, answers on its subject. Whether there was any: so the connection is not
    /// the reason.
    fn give_up_on_foreign(&mut self) -> bool {
        let is_over = |pending: &Pending| {
            pending.has_foreign_answer && pending.sent.elapsed() >= NATS_CONFIRM_MAX
        };
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_over(pending))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .iter()
            .for_each(|number| self.settle(*number, Err(failure::not_a_stream())));
        !numbers.is_empty()
    }

    /// What nobody has confirmed for so long that another attempt is no better than a way back through the source.
    fn give_up(&mut self) {
        let is_given_up = |pending: &Pending| {
            pending
                .since
                .is_some_and(|since| since.elapsed() >= NATS_SEND_MAX)
        };
        let numbers: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_given_up(pending))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .into_iter()
            .for_each(|number| self.settle(number, Err(failure::unanswered())));
        self.reports.put(&mut self.settled);
    }

    fn settle(&mut self, number: u64, answer: Result<u64, Failure>) {
        let Some(Pending { ticket, length, .. }) = self.pending.remove(&number) else {
            return;
        };
        self.bytes.fetch_sub(length, Ordering::Relaxed);
        let (place, outcome) = match answer {
            Ok(sequence) => (Some((0, Offset(sequence))), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        self.settled.push(Report {
            ticket,
            place,
            outcome,
        });
    }
}

pub(super) fn too_large(length: usize, max: usize) -> Failure {
    failure::refused(
        Reason::TooLarge,
        format!("headers and payload have {length} bytes; the server takes {max} (max_payload)"),
    )
}
