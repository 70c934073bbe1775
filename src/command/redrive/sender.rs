//! Sends redriven messages to the source, and commits the position in the dead-letter topic.
//!
//! | source and dead letters | a batch of messages and its position |
//! |---|---|
//! | in one Kafka cluster | one transaction: both or none |
//! | elsewhere | the position follows the acknowledgements, so a batch may be sent again after a failure |
//!
//! JetStream drops the repeats within the duplicate window of the source, because their message ids are equal.

use crate::broker::{
    DeliveryReport, GroupAdmin, OffsetCommit, OutgoingRecord, ProducerEvent, ProducerIdentity,
    SendResult, Target, TransactionalProducers, TxnOffset,
};
use crate::limit::{COMMAND_REPORT_TIMEOUT, REDRIVE_TRANSACTION_TIMEOUT};
use crate::model::header_name::ORIGIN;
use crate::model::{Headers, Partition, RedrivePosition};
use anyhow::{Context as _, Result, anyhow, bail};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::timeout;

/// A message for its source partition.
pub(crate) struct Redriven {
    pub(crate) source: Partition,
    /// The origin of the dead letter, from which JetStream gets the message id.
    pub(crate) origin: String,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) headers: Vec<u8>,
}

pub(crate) struct Sender {
    client: Client,
    /// The group that holds the positions.
    group: String,
    source_topics: Arc<[String]>,
    in_flight: usize,
    /// Events of the open producer that were not handled.
    events: VecDeque<ProducerEvent>,
}

pub(crate) enum Client {
    Transactions {
        producers: Box<dyn TransactionalProducers>,
        /// The number of the open producer.
        number: u64,
    },
    Target(Box<dyn Target>),
}

impl Sender {
    pub(crate) fn new(client: Client, group: &str, source_topics: &[String]) -> Self {
        Self {
            client,
            group: group.to_owned(),
            source_topics: source_topics.into(),
            in_flight: 0,
            events: VecDeque::new(),
        }
    }

    /// Begins to redrive a partition of the dead-letter topic, and reads its position. In transactions, another redrive of the
    /// partition can commit nothing after this.
    pub(crate) async fn open(
        &mut self,
        partition: &Partition,
        positions: &mut dyn GroupAdmin,
    ) -> Result<Option<String>> {
        let Client::Transactions { producers, number } = &mut self.client else {
            let partitions = std::slice::from_ref(partition);
            let committed = positions.committed_metadata(&self.group, partitions).await;
            return Ok(committed?.pop().flatten());
        };
        producers.discard(*number);
        *number += 1;
        self.events.clear();
        let Partition { topic, index } = partition;
        let identity = ProducerIdentity {
            transactional_id: format!("{}.{topic}.{index}", self.group),
            offset_group: self.group.clone(),
            partition: partition.clone(),
            target_topics: self.source_topics.clone(),
        };
        producers.open(*number, &identity);
        loop {
            match self.next_event().await? {
                ProducerEvent::Opened(committed) => return Ok(committed),
                ProducerEvent::Failed { reason, .. } => {
                    bail!("cannot begin a transaction: {reason}")
                }
                _ => {}
            }
        }
    }

    /// Sends a batch to the source, and commits the position that contains it. After an error, a transaction has no effect
    /// unless the broker did not confirm its end.
    pub(crate) async fn send(
        &mut self,
        batch: &[Redriven],
        (partition, position): (&Partition, &RedrivePosition),
        positions: &mut dyn GroupAdmin,
    ) -> Result<()> {
        let mut sent = Ok(());
        for message in batch {
            sent = self.copy(message).await;
            if sent.is_err() {
                break;
            }
        }
        while sent.is_ok() && self.in_flight > 0 {
            sent = self.await_reports().await;
        }
        if sent.is_err() {
            self.abort().await;
            return sent;
        }
        let (offset, mut metadata) = (position.first_open(), position.to_string());
        if fault!(RedriveWithoutPosition) {
            metadata.clear();
        }
        let Client::Transactions { producers, number } = &mut self.client else {
            let commit = OffsetCommit {
                partition: partition.clone(),
                offset,
                metadata,
            };
            let written = positions.commit_unused(&self.group, &[commit]).await;
            return written.context("the last batch was sent, but its position was not stored");
        };
        producers.commit(*number, TxnOffset { offset, metadata });
        match self.next_event().await? {
            ProducerEvent::Committed => Ok(()),
            ProducerEvent::Failed {
                reason,
                is_fenced: false,
            } => bail!("the broker has not confirmed the last batch: {reason}. Repeat the redrive"),
            ProducerEvent::Failed { .. } => Err(fenced()),
            _ => bail!("the broker aborted the last batch: repeat the redrive"),
        }
    }

    /// Copies a message into the queue of the client.
    async fn copy(&mut self, message: &Redriven) -> Result<()> {
        let extra_headers = [(ORIGIN, message.origin.as_bytes())];
        let record = OutgoingRecord {
            topic: &message.source.topic,
            partition: Some(message.source.index),
            key: message.key.as_deref(),
            payload: message.payload.as_deref(),
            headers: Headers::from_block(&message.headers),
            keep_header: |_| true,
            extra_headers: &extra_headers,
        };
        loop {
            let sent = match &mut self.client {
                Client::Transactions { producers, number } => producers.send(*number, &record, 0),
                Client::Target(target) => target.send(&record, 0),
            };
            match sent {
                SendResult::Accepted => {
                    self.in_flight += 1;
                    return Ok(());
                }
                SendResult::QueueFull => self.await_reports().await?,
                SendResult::Failed(failure) => {
                    let origin = &message.origin;
                    bail!(
                        "the source does not take the copy of {origin}: {}",
                        failure.detail
                    )
                }
            }
        }
    }

    async fn await_reports(&mut self) -> Result<()> {
        let reports = match &mut self.client {
            Client::Target(target) => {
                let reports = timeout(COMMAND_REPORT_TIMEOUT, target.next_reports()).await;
                reports.context("the source has not confirmed a message in time")?
            }
            Client::Transactions { .. } => match self.next_event().await? {
                ProducerEvent::Reports(reports) => reports,
                ProducerEvent::Failed {
                    is_fenced: true, ..
                } => return Err(fenced()),
                ProducerEvent::Failed { reason, .. } => bail!("the producer failed: {reason}"),
                _ => Vec::new(),
            },
        };
        self.in_flight -= reports.len();
        for DeliveryReport { outcome, .. } in reports {
            if let Err(failure) = outcome {
                bail!("the source does not take a message: {}", failure.detail);
            }
        }
        Ok(())
    }

    /// Ends the open transaction. Until then, the ingress would not read what follows in the source. If this fails, the
    /// transaction timeout ends it.
    async fn abort(&mut self) {
        let Client::Transactions { producers, number } = &mut self.client else {
            return;
        };
        producers.abort(*number);
        while let Ok(event) = self.next_event().await {
            if matches!(event, ProducerEvent::Aborted | ProducerEvent::Failed { .. }) {
                return;
            }
        }
    }

    /// The next event of the open producer.
    async fn next_event(&mut self) -> Result<ProducerEvent> {
        let Client::Transactions { producers, number } = &mut self.client else {
            bail!("there is no producer");
        };
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let events = timeout(REDRIVE_TRANSACTION_TIMEOUT, producers.next_events()).await;
            let events = events.context("the broker does not answer in time")?;
            let own = events.into_iter().filter(|(of, _)| of == number);
            self.events.extend(own.map(|(_, event)| event));
        }
    }

    pub(crate) async fn close(self) {
        match self.client {
            Client::Transactions { mut producers, .. } => producers.close().await,
            Client::Target(mut target) => target.close().await,
        }
    }
}

fn fenced() -> anyhow::Error {
    anyhow!("another redrive of this route runs, so this one ends")
}
