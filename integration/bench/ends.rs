//! Defines the operations that a measurement needs from a broker, so that the same stages run on
//! each broker.

use crate::feeder::Control;
use crate::row::System;
use crate::workload::Message;

pub(crate) trait Ends {
    /// Postdate on this broker.
    const SYSTEM: System;

    type Feeder<'f>: Feed
    where
        Self: 'f;

    /// Creates a topic whose records carry the broker's timestamp. Returns its unique name.
    fn make(&self, name: &str) -> String;

    /// Number of records in a topic. Retention deletes none during a measurement.
    fn held(&self, topic: &str) -> usize;

    /// Creates a client that sends messages to the topic.
    fn feeder<'f>(&'f self, topic: &str, message: &'f Message) -> Self::Feeder<'f>;

    /// Reads a topic from its start to its current end. Stops early if no record arrives for a long
    /// time.
    fn read(&self, topic: &str, each: impl FnMut(&Arrived<'_>));

    /// The lines of the configuration that define the broker and a route from source to target.
    fn route(&self, names: &Names<'_>) -> String;

    /// The store's names of the source's shards: topic and partition.
    fn shards(&self, source: &str) -> Vec<String>;

    /// Number of stored records of a shard with this watermark.
    fn stored(&self, shard: usize, watermark: usize) -> usize;
}

/// The topics and the delivery guarantee of a route.
pub(crate) struct Names<'a> {
    pub(crate) source: &'a str,
    pub(crate) target: &'a str,
    pub(crate) dead: &'a str,
    pub(crate) delivery: &'a str,
}

/// A client that sends the load.
pub(crate) trait Feed {
    /// Sends message `number` with the control header and its own headers. Waits while the client's
    /// queue is full.
    fn send(&self, number: usize, control: Control);

    /// Handles the acknowledgements that arrived.
    fn serve(&self);

    /// Waits until the broker has acknowledged every message.
    fn finish(self);
}

/// A record that was read.
pub(crate) struct Arrived<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// The broker's timestamp, in epoch milliseconds.
    pub(crate) stamp: i64,
}
