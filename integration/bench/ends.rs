//! What a measurement asks of the broker at both ends of it: the same of each broker, so that the same stages are measured on each.

use crate::feeder::Control;
use crate::row::System;
use crate::workload::Message;

pub(crate) trait Ends {
    /// The service on this broker.
    const SYSTEM: System;

    type Feeder<'f>: Feed
    where
        Self: 'f;

    /// A new topic, whose records bear the broker's own time of their arrival.
    fn make(&self, name: &str) -> String;

    /// How many records it holds: nothing is deleted.
    fn held(&self, topic: &str) -> usize;

    /// Sends to it.
    fn feeder<'f>(&'f self, topic: &str, message: &'f Message) -> Self::Feeder<'f>;

    /// Reads it from its start to where it ends now, or until nothing has come for long.
    fn read(&self, topic: &str, each: impl FnMut(&Arrived<'_>));

    /// The lines of a configuration that name the broker, and a route from source to target.
    fn route(&self, names: &Names<'_>) -> String;

    /// As the store names the shards of a source: topic and partition.
    fn shards(&self, source: &str) -> Vec<String>;

    /// How many records of that shard are stored when its watermark stands there.
    fn stored(&self, shard: usize, watermark: usize) -> usize;
}

/// Of a route.
pub(crate) struct Names<'a> {
    pub(crate) source: &'a str,
    pub(crate) target: &'a str,
    pub(crate) dead: &'a str,
    pub(crate) delivery: &'a str,
}

/// A client that sends the load.
pub(crate) trait Feed {
    /// Message `number`, its own headers beside the control header; waits while the client is full.
    fn send(&self, number: usize, control: Control);

    /// Takes in what the broker answered.
    fn serve(&self);

    /// Waits until the broker has taken everything.
    fn finish(self);
}

/// A record that was read.
pub(crate) struct Arrived<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) payload: &'a [u8],
    /// In epoch milliseconds: the broker's.
    pub(crate) stamp: i64,
}
