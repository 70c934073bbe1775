//! The thread that reads the records of all routes of a client.

use super::partition_reader::PartitionReader;
use super::{RouteShared, batch_bytes};
use crate::broker::kafka::ffi::{NativeConsumer, RecordQueue};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::limit::KAFKA_SOURCE_WAKE_INTERVAL;
use crate::broker::{Error, Event};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// The state of the thread.
pub(super) struct ReaderThread {
    /// Declared before the consumer, whose client must outlive their queues.
    routes: Vec<RouteReader>,
    consumer: NativeConsumer,
    stop: Arc<AtomicBool>,
    health: ClusterHealth,
}

/// The thread's side of one route.
pub(super) struct RouteReader {
    reader: PartitionReader,
    shared: Arc<RouteShared>,
    events: EventSender,
    /// Bytes in the record queue at which nothing is read; one read may exceed it.
    queued_bytes_max: usize,
}

/// The channel to the caller, and the events that wait for room in it. While events wait, the
/// thread reads no records of the route.
struct EventSender {
    channel: mpsc::Sender<Result<Event, Error>>,
    waiting: VecDeque<Result<Event, Error>>,
}

impl EventSender {
    fn push(&mut self, events: impl IntoIterator<Item = Event>) {
        self.waiting.extend(events.into_iter().map(Ok));
    }

    fn push_error(&mut self, outcome: Result<(), Error>) {
        self.waiting.extend(outcome.err().map(Err));
    }

    /// Moves waiting events into the channel. Returns whether none is left.
    fn flush(&mut self) -> bool {
        while let Ok(permit) = self.channel.try_reserve() {
            let Some(event) = self.waiting.pop_front() else {
                return true;
            };
            permit.send(event);
        }
        self.waiting.is_empty()
    }
}

impl ReaderThread {
    pub(super) fn new(
        routes: Vec<RouteReader>,
        consumer: NativeConsumer,
        stop: Arc<AtomicBool>,
        health: ClusterHealth,
    ) -> Self {
        Self {
            routes,
            consumer,
            stop,
            health,
        }
    }

    /// Each turn reads one batch of each route that has records and room. So a route with a backlog
    /// delays the others by one batch.
    pub(super) fn serve(mut self) {
        let thread = std::thread::current();
        self.consumer.set_waker(thread.clone());
        for route in &mut self.routes {
            let is_ready = route.shared.is_ready.clone();
            route.reader.set_waker(thread.clone(), is_ready);
        }
        let mut probe = ClusterProbe::new();
        while !self.stop.load(Ordering::Relaxed) {
            let native = &self.consumer.native;
            native.serve_events(|event| self.health.on_client_event(event));
            probe.serve(&self.health, |target| native.probe(target));
            self.serve_errors();
            let mut has_more = false;
            for route in &mut self.routes {
                if route.is_due() {
                    has_more |= route.serve(&mut self.consumer);
                }
            }
            if !has_more {
                std::thread::park_timeout(KAFKA_SOURCE_WAKE_INTERVAL);
            }
        }
        if self.health.outage_reason().is_some() {
            // The process ends now. The destruction of the client would wait for the broker.
            std::mem::forget(self.consumer.native.clone());
        }
    }

    /// Takes the errors of the client that belong to no partition, such as those of its group. A
    /// request for a group reports its own errors.
    fn serve_errors(&mut self) {
        let health = &self.health;
        self.consumer.read(|message| {
            if let Some((code, text)) = message.error() {
                health.record_error(code, text);
            }
        });
    }
}

impl RouteReader {
    pub(super) fn new(
        queue: RecordQueue,
        shared: Arc<RouteShared>,
        channel: mpsc::Sender<Result<Event, Error>>,
        queued_bytes_max: usize,
        health: &ClusterHealth,
    ) -> Self {
        Self {
            reader: PartitionReader::new(queue, health.clone()),
            shared,
            events: EventSender {
                channel,
                waiting: VecDeque::new(),
            },
            queued_bytes_max,
        }
    }

    fn is_due(&self) -> bool {
        self.shared.is_ready.swap(false, Ordering::Acquire) || self.reader.has_failed_partitions()
    }

    /// Serves commands, and reads a batch of records. Returns whether more are available at once.
    fn serve(&mut self, consumer: &mut NativeConsumer) -> bool {
        self.serve_commands(consumer);
        let has_more = self.serve_records(consumer);
        if has_more {
            self.shared.is_ready.store(true, Ordering::Release);
        }
        has_more
    }

    fn serve_commands(&mut self, consumer: &NativeConsumer) {
        let mut commands = self.shared.commands();
        let starts = std::mem::take(&mut commands.starts);
        let recreated_topics = std::mem::take(&mut commands.recreated_topics);
        drop(commands);
        let mut events = VecDeque::new();
        for topic in recreated_topics {
            tracing::error!(
                topic,
                "the source topic was recreated. To read the new one, stop all processes of the deployment. Then run \
                 postdate reset --config FILE --route ROUTE --topic {topic}, and start them again"
            );
            let abandoned = self.reader.abandon_topic(consumer, &topic, &mut events);
            self.events.push_error(abandoned);
        }
        self.events.push(events);
        if !starts.is_empty() {
            let applied = self.reader.apply(consumer, starts);
            self.events.push_error(applied);
        }
    }

    fn serve_records(&mut self, consumer: &mut NativeConsumer) -> bool {
        let queued_bytes = &self.shared.queued_bytes;
        if !self.events.flush() || queued_bytes.load(Ordering::Relaxed) >= self.queued_bytes_max {
            return false;
        }
        let mut events = VecDeque::new();
        let result = self.reader.read(consumer, &mut events);
        let bytes = events.iter().map(batch_bytes).sum();
        queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.events.push(events);
        let has_more = result.unwrap_or_else(|error| {
            self.events.push_error(Err(error));
            false
        });
        self.events.flush();
        has_more
    }
}
