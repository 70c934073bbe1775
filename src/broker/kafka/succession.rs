//! One lane after the other: takes a new one when the producer of the last failed for good, and sees the old ones out. Not at every failure:
//! what made one fail may still be there.

use super::lane::{PlainProducer, ProducerOptions};
use super::raw::ProduceRequest;
use crate::broker::Error;
use crate::limit::{KAFKA_CLOSING_PRODUCERS_MAX, PRODUCER_REPLACE_INTERVAL};
use crate::model::header::Header;
use futures_util::future::join_all;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::Instant;

/// See the module's page.
pub(super) struct FailoverProducer {
    options: ProducerOptions,
    /// `None`: not needed yet, or closed.
    lane: Option<PlainProducer>,
    /// Failed ones, whose last reports are on their way.
    retired: Vec<PlainProducer>,
    /// When another one may be opened.
    next: Instant,
}

impl FailoverProducer {
    /// Its first lane is opened when it is needed.
    pub(super) fn new(options: ProducerOptions) -> Self {
        Self {
            options,
            lane: None,
            retired: Vec::new(),
            next: Instant::now(),
        }
    }

    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.lane = Some(PlainProducer::open(&self.options)?);
        Ok(())
    }

    /// `Fatal`: the lane has failed for good, and it is too soon for the next.
    pub(super) fn send<'h, H: Iterator<Item = Header<'h>>>(
        &mut self,
        topic: &str,
        record: &ProduceRequest<'_>,
        headers: impl Fn() -> H,
    ) -> Result<(), Code> {
        if let Some(lane) = &mut self.lane {
            match lane.send(topic, record, headers()) {
                Err(Code::Fatal) => {}
                answer => return answer,
            }
        }
        if !self.renew() {
            return Err(Code::Fatal);
        }
        self.lane
            .as_mut()
            .map_or(Err(Code::Fatal), |lane| lane.send(topic, record, headers()))
    }

    /// Why nothing can be sent now.
    pub(super) fn fatal(&self) -> Option<String> {
        self.lane.as_ref()?.fatal()
    }

    /// Lets go of lanes that have ended.
    pub(super) fn prune(&mut self) {
        self.retired.retain(|lane| !lane.has_ended());
    }

    fn renew(&mut self) -> bool {
        self.prune();
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + PRODUCER_REPLACE_INTERVAL;
        if self.retired.len() >= KAFKA_CLOSING_PRODUCERS_MAX {
            self.options.health.mark_broken("producers that failed for good do not end, so no more are made: restart the process".to_owned());
            return false;
        }
        let reason = self.fatal();
        match PlainProducer::open(&self.options) {
            Ok(lane) => {
                if let Some(mut failed) = self.lane.replace(lane) {
                    tracing::warn!(
                        reason,
                        "a kafka producer failed for good, and another takes its place"
                    );
                    failed.retire();
                    self.retired.push(failed);
                }
                true
            }
            Err(error) => {
                self.options.health.mark_broken(format!(
                    "a producer that failed for good cannot be replaced: {error}"
                ));
                false
            }
        }
    }

    /// Ends all lanes at the same time.
    pub(super) async fn end(&mut self) {
        join_all(
            self.lane
                .iter_mut()
                .chain(&mut self.retired)
                .map(PlainProducer::end),
        )
        .await;
        self.lane = None;
        self.retired.clear();
    }

    #[cfg(feature = "test-support")]
    pub(super) fn fail_for_good(&self) {
        if let Some(lane) = &self.lane {
            lane.fail_for_good();
        }
    }

    #[cfg(feature = "test-support")]
    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }
}
