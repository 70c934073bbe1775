//! One producer, and the thread that serves its reports. Which records it is given is the target's affair, and who takes its place when it
//! failed for good that of `succession`.

use super::client_thread::ClientThread;
use super::health::{ClusterHealth, ClusterProbe};
use super::raw::{ClientEvent, Delivery, NativeProducer, ProduceRequest};
use super::succession::FailoverProducer;
use super::topics::Topics;
use super::{client_creation_error, failure};
pub(super) use crate::broker::delivery_reports::DeliveryReports;
use crate::broker::{DeliveryReport, Error};
use crate::limit::KAFKA_CLIENT_WAKE_INTERVAL;
use crate::model::Offset;
use crate::model::header::Header;
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a lane is made of, and another one in its place.
#[derive(Clone)]
pub(super) struct ProducerOptions {
    pub(super) config: ClientConfig,
    /// The options of a second lane, whose batches hold one record. What this lane's broker refuses with its whole batch goes there once
    /// more, and is refused only if it is refused there.
    pub(super) alone: Option<ClientConfig>,
    pub(super) reports: Arc<DeliveryReports>,
    pub(super) health: ClusterHealth,
}

/// Dropping it gives up what is under way and joins the thread.
pub(super) struct PlainProducer {
    topics: Topics,
    /// Given up before the thread is waited for: the last to hold it ends the client, which blocks, and that is to be the thread.
    sender: Option<Arc<NativeProducer>>,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

impl PlainProducer {
    pub(super) fn open(options: &ProducerOptions) -> Result<Self, Error> {
        let sender = Arc::new(
            NativeProducer::new(&options.config).map_err(|error| client_creation_error(&error))?,
        );
        let stop = Arc::new(AtomicBool::new(false));
        let alone = options.alone.clone().map(|config| {
            FailoverProducer::new(ProducerOptions {
                config,
                alone: None,
                ..options.clone()
            })
        });
        let name = if alone.is_some() {
            "kafka-target"
        } else {
            "kafka-alone"
        };
        let pump = ReportLoop {
            sender: sender.clone(),
            stop: stop.clone(),
            reports: options.reports.clone(),
            health: options.health.clone(),
            batch: Vec::new(),
            has_failed: false,
            alone,
        };
        let thread = ClientThread::start(name, move || pump.serve())
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            topics: Topics::new(),
            sender: Some(sender),
            stop,
            thread,
        })
    }

    pub(super) fn send<'h>(
        &mut self,
        topic: &str,
        record: &ProduceRequest<'_>,
        headers: impl Iterator<Item = Header<'h>>,
    ) -> Result<(), Code> {
        let Some(sender) = &self.sender else {
            return Err(Code::DestroyBroker);
        };
        sender.send(self.topics.of_sender(sender, topic)?, record, headers)
    }

    /// Why nothing can be sent by this lane any more.
    pub(super) fn fatal(&self) -> Option<String> {
        self.sender.as_ref()?.fatal()
    }

    /// Gives up what is under way, and takes nothing any more; reports still come.
    pub(super) fn retire(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.topics.clear();
        if let Some(sender) = self.sender.take() {
            sender.wake_poll();
        }
    }

    /// Of a retired lane: all has been reported, and its client is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    pub(super) async fn end(&mut self) {
        self.retire();
        self.thread.join().await;
    }

    #[cfg(feature = "test-support")]
    pub(super) fn fail_for_good(&self) {
        if let Some(sender) = &self.sender {
            sender.fail_for_good();
        }
    }
}

impl Drop for PlainProducer {
    fn drop(&mut self) {
        self.retire();
    }
}

/// What runs on the lane's thread.
struct ReportLoop {
    sender: Arc<NativeProducer>,
    stop: Arc<AtomicBool>,
    reports: Arc<DeliveryReports>,
    health: ClusterHealth,
    batch: Vec<DeliveryReport>,
    /// For good: librdkafka keeps what it holds until that times out, though none of it will be sent.
    has_failed: bool,
    alone: Option<FailoverProducer>,
}

impl ReportLoop {
    fn serve(mut self) {
        // One of the two lanes asks for both.
        let mut probe = self.alone.is_some().then(ClusterProbe::new);
        while !self.stop.load(Ordering::Relaxed) {
            let could_send = !self.has_failed;
            self.turn();
            if self.has_failed && could_send {
                self.sender.purge();
            }
            if let Some(probe) = probe.as_mut().filter(|_| could_send) {
                probe.serve(&self.health, |ping| self.sender.native().probe(ping));
            }
        }
        self.sender.purge();
        while self.sender.queued_events() > 0 && self.turn() > 0 {}
    }

    fn turn(&mut self) -> usize {
        let Self {
            sender,
            reports,
            health,
            batch,
            has_failed,
            alone,
            ..
        } = self;
        let mut hear = |notice| {
            *has_failed |= matches!(
                notice,
                ClientEvent::Error {
                    code: Code::Fatal,
                    ..
                }
            );
            health.on_client_event(notice);
        };
        let served = sender.poll(KAFKA_CLIENT_WAKE_INTERVAL, &mut hear, |delivery| {
            if let Some(report) = judge(delivery, sender, alone.as_mut(), health) {
                batch.push(report);
            }
        });
        reports.push(batch);
        served
    }
}

/// `None`: tried again alone, which will report.
fn judge(
    delivery: &Delivery<'_>,
    sender: &NativeProducer,
    alone: Option<&mut FailoverProducer>,
    health: &ClusterHealth,
) -> Option<DeliveryReport> {
    let Some(code) = delivery.error else {
        health.record_response();
        // Of what a repeat found delivered already, the broker does not say where.
        let offset = u64::try_from(delivery.message.offset()).ok().map(Offset);
        let place = offset.map(|offset| (delivery.message.partition(), offset));
        return Some(DeliveryReport {
            ticket: delivery.ticket,
            position: place,
            outcome: Ok(()),
        });
    };
    let failure = match alone
        .filter(|_| failure::is_batch_rejection(code))
        .map(|alone| send_alone(delivery, alone))
    {
        Some(Ok(())) => return None,
        // Nothing is known of this record: the refusal may be its neighbour's.
        Some(Err(code)) => failure::client_failed(format!(
            "it was refused with its batch, and cannot be sent alone for now: {code}"
        )),
        None => failure::delivery_failure(code, delivery.status(), delivery.words()),
    };
    let failure =
        failure::or_client_failed(failure, sender.fatal().or_else(|| health.recent_outage()));
    Some(DeliveryReport {
        ticket: delivery.ticket,
        position: None,
        outcome: Err(failure),
    })
}

fn send_alone(delivery: &Delivery<'_>, alone: &mut FailoverProducer) -> Result<(), Code> {
    let message = &delivery.message;
    let record = ProduceRequest {
        partition: Some(message.partition()).filter(|partition| *partition >= 0),
        key: message.key(),
        payload: message.payload(),
        ticket: delivery.ticket,
    };
    alone.send(message.topic(), &record, || message.headers())
}
