//! Collects the spans of batches: one when a batch is stored, and one when a claim is delivered.
//!
//! A span is linked to the producers' spans of the messages in the batch. A batch is traced if it
//! has a message whose producer sampled its trace. The tracer keeps one in `one_in` of these
//! traces. It selects them by trace id, so that storing and delivery of a message are kept or
//! dropped together. `telemetry` sends the spans. The `traceparent` header of a message is
//! delivered unchanged.

mod traceparent;

use crate::limit::{SPAN_LINKS_MAX, SPANS_QUEUE_MAX};
use crate::metric;
use crate::model::{Headers, ShardId, Timestamp};
use std::sync::Arc;
use tokio::sync::mpsc;
pub(crate) use traceparent::TraceParent;

const TRACEPARENT: &str = "traceparent";

/// Accepts spans without waiting. If the queue is full, the span is dropped and counted. The
/// default tracer is disabled.
#[derive(Clone, Default)]
pub(crate) struct Tracer(Option<Arc<SpanSink>>);

struct SpanSink {
    spans: mpsc::Sender<Span>,
    one_in: u32,
    dropped: metric::Counter,
}

/// One operation on a batch.
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
        /// The target, if all messages of the batch have the same.
        target: Option<Box<str>>,
        dead_lettered: u64,
        retried: u64,
    },
}

/// The producers' spans of a batch. A batch may have thousands of messages, so only the first
/// [`SPAN_LINKS_MAX`] are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchLinks {
    started: Option<Timestamp>,
    parents: Vec<TraceParent>,
}

impl Tracer {
    /// A tracer and the receiver of its spans. `one_in`: how many traces there are for each kept
    /// one.
    pub(crate) fn new(one_in: u32, dropped: metric::Counter) -> (Self, mpsc::Receiver<Span>) {
        let (spans, receiver) = mpsc::channel(SPANS_QUEUE_MAX);
        let sink = SpanSink {
            spans,
            one_in,
            dropped,
        };
        (Self(Some(Arc::new(sink))), receiver)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a message to a batch, by its headers. The first call sets the start of the span.
    pub(crate) fn link_message(
        &self,
        links: &mut BatchLinks,
        headers: Headers<'_>,
        now: Timestamp,
    ) {
        let Some(sink) = &self.0 else { return };
        links.started.get_or_insert(now);
        if links.parents.len() < SPAN_LINKS_MAX {
            let parent = headers.get(TRACEPARENT).flatten();
            let parent = parent.and_then(TraceParent::parse);
            let is_kept =
                |parent: &TraceParent| parent.trace_id.is_multiple_of(u128::from(sink.one_in));
            links.parents.extend(parent.filter(is_kept));
        }
    }

    /// Records the span of a finished batch, if the batch is traced. `span` builds it from its
    /// start and its links.
    pub(crate) fn finish_batch(
        &self,
        links: BatchLinks,
        span: impl FnOnce(Timestamp, Vec<TraceParent>) -> Span,
    ) {
        let (Some(sink), Some(started)) = (&self.0, links.started) else {
            return;
        };
        if links.parents.is_empty() {
            return;
        }
        if sink.spans.try_send(span(started, links.parents)).is_err() {
            sink.dropped.increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Partition;
    use crate::model::header::push_header;

    fn headers(trace_id: u128) -> Vec<u8> {
        let mut block = Vec::new();
        push_header(&mut block, b"own", Some(b"x"));
        let traceparent = format!("00-{trace_id:032x}-00f067aa0ba902b7-01");
        push_header(&mut block, b"traceparent", Some(traceparent.as_bytes()));
        block
    }

    /// Adds one message of each trace.
    fn link(tracer: &Tracer, links: &mut BatchLinks, traces: impl Iterator<Item = u128>) {
        for trace_id in traces {
            let block = headers(trace_id);
            let now = Timestamp::from_millis(5);
            tracer.link_message(links, Headers::from_block(&block), now);
        }
    }

    fn span(start: Timestamp, links: Vec<TraceParent>) -> Span {
        Span {
            shard: ShardId::new("r", Partition::new("t", 0)),
            start,
            end: Timestamp::from_millis(9),
            links,
            messages: 1,
            operation: SpanOperation::Stored,
        }
    }

    #[test]
    fn a_batch_is_linked_to_its_kept_traces() {
        let (tracer, mut spans) = Tracer::new(3, metrics::Counter::noop());
        let mut links = BatchLinks::default();
        link(&tracer, &mut links, 1..=7);
        tracer.link_message(&mut links, Headers::default(), Timestamp::from_millis(6));
        tracer.finish_batch(links, span);
        let span = spans.try_recv().unwrap();
        let traces: Vec<u128> = span.links.iter().map(|link| link.trace_id).collect();
        assert_eq!(span.start, Timestamp::from_millis(5));
        assert_eq!(traces, [3, 6]);
    }

    #[test]
    fn a_batch_without_kept_traces_has_no_span() {
        let (tracer, mut spans) = Tracer::new(3, metrics::Counter::noop());
        let mut links = BatchLinks::default();
        link(&tracer, &mut links, 1..=1);
        tracer.finish_batch(links, span);
        assert!(spans.try_recv().is_err());
    }

    #[test]
    fn links_and_queue_are_bounded() {
        let (tracer, mut spans) = Tracer::new(1, metrics::Counter::noop());
        let mut links = BatchLinks::default();
        link(&tracer, &mut links, 1..=SPAN_LINKS_MAX as u128 + 9);
        assert_eq!(links.parents.len(), SPAN_LINKS_MAX);
        for _ in 0..SPANS_QUEUE_MAX + 9 {
            tracer.finish_batch(links.clone(), span);
        }
        let received = std::iter::from_fn(|| spans.try_recv().ok()).count();
        assert_eq!(received, SPANS_QUEUE_MAX);
    }

    #[test]
    fn a_disabled_tracer_keeps_nothing() {
        let mut links = BatchLinks::default();
        link(&Tracer::default(), &mut links, 1..=1);
        assert_eq!(links, BatchLinks::default());
    }
}
