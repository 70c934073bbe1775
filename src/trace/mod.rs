//! What is told of batches to a tracing system: a span when a batch is stored and one when a claim is delivered, each linked to the spans of
//! the producers whose messages are in it. Where spans go is telemetry's affair; that a message's own `traceparent` arrives as it was is the
//! messages'.
//!
//! A batch is traced if it holds a message whose producer sampled its trace. Of these traces one in so many is kept, chosen by the trace's own
//! id, so that what is seen stored is seen delivered.

mod traceparent;

use crate::limit::{SPAN_LINKS_MAX, SPANS_QUEUE_MAX};
use crate::metric;
use crate::model::{Headers, ShardId, Timestamp};
use std::sync::Arc;
use tokio::sync::mpsc;
pub(crate) use traceparent::TraceParent;

/// The header that W3C Trace Context gives a message.
const TRACEPARENT: &[u8] = b"traceparent";

/// Takes spans, and never waits: what finds the queue full is dropped, and counted.
#[derive(Clone, Default)]
pub(crate) struct Tracer(Option<Arc<SpanSink>>);

struct SpanSink {
    spans: mpsc::Sender<Span>,
    one_in: u32,
    dropped: metric::Counter,
}

/// What was done with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) shard: ShardId,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) links: Vec<TraceParent>,
    pub(crate) messages: u64,
    pub(crate) operation: SpanOperation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpanOperation {
    Stored,
    Delivered {
        /// If all went to one.
        target: Option<Box<str>>,
        dead_lettered: u64,
        sent_back: u64,
    },
}

/// The producers' spans that a batch under way will be linked to: the first of them, for a batch may have thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchLinks {
    started: Option<Timestamp>,
    parents: Vec<TraceParent>,
}

impl Tracer {
    /// A tracer, and where its spans arrive, until the last copy of it is dropped.
    pub(crate) fn new(one_in: u32, dropped: metric::Counter) -> (Self, mpsc::Receiver<Span>) {
        let (spans, taken) = mpsc::channel(SPANS_QUEUE_MAX);
        (
            Self(Some(Arc::new(SpanSink {
                spans,
                one_in,
                dropped,
            }))),
            taken,
        )
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// A message with these headers belongs to a batch that was begun, as far as the batch knows, at `now`.
    pub(crate) fn link_message(
        &self,
        links: &mut BatchLinks,
        headers: Headers<'_>,
        now: Timestamp,
    ) {
        let Some(way) = &self.0 else { return };
        links.started.get_or_insert(now);
        if links.parents.len() < SPAN_LINKS_MAX {
            let parent = headers
                .iter()
                .find(|(name, _)| *name == TRACEPARENT)
                .and_then(|(_, value)| TraceParent::parse(value?));
            links
                .parents
                .extend(parent.filter(|parent| parent.trace_id % u128::from(way.one_in) == 0));
        }
    }

    /// The batch is done: `span` makes the record of it from its beginning and its links, if it is traced.
    pub(crate) fn finish_batch(
        &self,
        links: BatchLinks,
        span: impl FnOnce(Timestamp, Vec<TraceParent>) -> Span,
    ) {
        let (Some(way), Some(since), false) = (&self.0, links.started, links.parents.is_empty())
        else {
            return;
        };
        if way.spans.try_send(span(since, links.parents)).is_err() {
            way.dropped.increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use crate::model::header::push_header;

    fn headers(trace: u128) -> Vec<u8> {
        let mut block = Vec::new();
        push_header(&mut block, b"own", Some(b"x"));
        push_header(
            &mut block,
            b"traceparent",
            Some(format!("00-{trace:032x}-00f067aa0ba902b7-01").as_bytes()),
        );
        block
    }

    fn span(start: Timestamp, links: Vec<TraceParent>) -> Span {
        let shard = ShardId::new("r", Partition::new("t", 0));
        Span {
            shard,
            start,
            end: Timestamp::from_millis(9),
            links,
            messages: 1,
            operation: SpanOperation::Stored,
        }
    }

    fn traces(links: &[TraceParent]) -> Vec<u128> {
        links.iter().map(|link| link.trace_id).collect()
    }

    #[test]
    fn a_batch_is_linked_to_the_traces_that_are_kept_and_else_not_told() {
        let (tracer, mut spans) = Tracer::new(3, metrics::Counter::noop());
        let mut links = BatchLinks::default();
        (1..=7).for_each(|trace| {
            tracer.link_message(
                &mut links,
                Headers::from_block(&headers(trace)),
                Timestamp::from_millis(5),
            )
        });
        tracer.link_message(&mut links, Headers::default(), Timestamp::from_millis(6));
        tracer.finish_batch(links, span);
        let told = spans.try_recv().unwrap();
        assert_eq!(
            (told.start, traces(&told.links)),
            (Timestamp::from_millis(5), vec![3, 6])
        );
        let mut links = BatchLinks::default();
        tracer.link_message(
            &mut links,
            Headers::from_block(&headers(1)),
            Timestamp::from_millis(5),
        );
        tracer.finish_batch(links, span);
        assert!(spans.try_recv().is_err(), "none of its traces is kept");
    }

    #[test]
    fn links_and_queue_are_bounded_and_nobody_waits() {
        let (tracer, mut spans) = Tracer::new(1, metrics::Counter::noop());
        let mut links = BatchLinks::default();
        (1..=SPAN_LINKS_MAX as u128 + 9).for_each(|trace| {
            tracer.link_message(
                &mut links,
                Headers::from_block(&headers(trace)),
                Timestamp::from_millis(5),
            )
        });
        assert_eq!(links.parents.len(), SPAN_LINKS_MAX);
        (0..SPANS_QUEUE_MAX + 9).for_each(|_| tracer.finish_batch(links.clone(), span));
        let taken = std::iter::from_fn(|| spans.try_recv().ok()).count();
        assert_eq!(taken, SPANS_QUEUE_MAX);
    }

    #[test]
    fn a_tracer_that_is_off_keeps_nothing() {
        let mut links = BatchLinks::default();
        Tracer::default().link_message(
            &mut links,
            Headers::from_block(&headers(1)),
            Timestamp::from_millis(5),
        );
        assert_eq!(links, BatchLinks::default());
    }
}
