//! The caller's side of one transactional producer: its client and the commands to its thread.

use super::ClusterContext;
use super::producer_thread::{Command, ProducerThread};
use crate::broker::kafka::admin::AdminHandle;
use crate::broker::kafka::ffi::ProduceRequest;
use crate::broker::kafka::limit::{
    KAFKA_SEND_LINGER, KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT, KAFKA_TRANSACTION_TIMEOUT,
};
use crate::broker::kafka::options::{
    ClientOptions, Cluster, PRODUCER_DEFAULTS, PRODUCER_ENFORCED, millis, queue_limits,
    set_single_record,
};
use crate::broker::kafka::producer_client::ProducerClient;
use crate::broker::{Error, OutgoingRecord, ProducerIdentity};
use rdkafka::config::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::mpsc::{SyncSender, sync_channel};

const OPTIONS: ClientOptions = ClientOptions {
    defaults: PRODUCER_DEFAULTS,
    limits: &[
        ("queue.buffering.max.ms", millis(KAFKA_SEND_LINGER)),
        // The coordinator answers the first request of a transaction that it is busy while it still
        // ends the previous transaction.
        ("retry.backoff.ms", 5),
    ],
    enforced: PRODUCER_ENFORCED,
};

/// Dropping it joins the thread.
pub(super) struct ProducerHandle {
    /// Declared before the client: a thread that waits for a command ends when this is dropped.
    commands: Option<SyncSender<Command>>,
    pub(super) client: ProducerClient,
    /// Sends each record in a batch of its own.
    pub(super) is_single_record: bool,
    pub(super) in_flight: usize,
}

impl ProducerHandle {
    /// Starts to connect. The producer waits for [`Command::Open`] before it fences its
    /// predecessor.
    pub(super) fn connect(
        context: &ClusterContext,
        identity: &ProducerIdentity,
        admin: AdminHandle,
    ) -> Result<Self, Error> {
        let single_record_until = context.single_record_until(&identity.transactional_id);
        let is_single_record = single_record_until.is_some();
        let budget = context.budget.clone();
        let config = config(
            &context.cluster,
            budget.records_max,
            &identity.transactional_id,
            is_single_record,
        );
        // The caller has one command in flight; the second place is a reserve.
        let (commands, command_receiver) = sync_channel(2);
        let (context, identity) = (context.clone(), identity.clone());
        let serve = move |native, stop| {
            let producer_thread = ProducerThread {
                number: None,
                context,
                identity,
                native,
                commands: command_receiver,
                admin,
                stop,
                single_record_until,
                batch_was_rejected: false,
            };
            producer_thread.serve();
        };
        Ok(Self {
            commands: Some(commands),
            client: ProducerClient::start(&config, budget, "kafka-transact", serve)?,
            is_single_record,
            in_flight: 0,
        })
    }

    /// Queues a command. Does nothing if the thread has ended, because it has reported that.
    pub(super) fn command(&self, command: Command) {
        if let (Some(commands), Some(native)) = (&self.commands, &self.client.native) {
            drop(commands.try_send(command));
            native.wake_poll();
        }
    }

    pub(super) fn send(&mut self, record: &OutgoingRecord<'_>, ticket: u64) -> Result<(), Code> {
        let request = ProduceRequest::new(record, ticket);
        self.client
            .send(record.topic, &request, record.all_headers())
    }

    /// Stops the thread, which gives up the records of the open transaction.
    pub(super) fn retire(&mut self) {
        self.commands = None;
        self.client.retire();
    }

    pub(super) async fn close(&mut self) {
        self.retire();
        self.client.close().await;
    }
}

fn config(
    cluster: &Cluster,
    records_max: usize,
    transactional_id: &str,
    is_single_record: bool,
) -> ClientConfig {
    let timeout = millis(KAFKA_TRANSACTION_TIMEOUT).to_string();
    let new_topic_timeout = millis(KAFKA_TRANSACTION_NEW_TOPIC_TIMEOUT).to_string();
    let [messages, bytes] = queue_limits(records_max);
    let enforced = [
        ("transactional.id", transactional_id.to_owned()),
        ("transaction.timeout.ms", timeout.clone()),
        ("message.timeout.ms", timeout),
        ("topic.metadata.propagation.max.ms", new_topic_timeout),
        messages,
        bytes,
    ];
    let mut config = cluster.config(&OPTIONS, &enforced);
    if is_single_record {
        set_single_record(&mut config);
        config.set("max.in.flight.requests.per.connection", "5");
    }
    config
}
