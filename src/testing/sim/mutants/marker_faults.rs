//! Injected faults in the marker of exactly-once delivery, as producers that change it on its way.

use crate::broker::{
    OutgoingRecord, ProducerEvent, ProducerIdentity, SendResult, TransactionalProducers, TxnOffset,
};
use crate::model::{DeliveredMarker, Progress, Watermark};
use async_trait::async_trait;
use std::collections::BTreeMap;

/// Producers that change markers if a fault is injected.
pub(crate) struct MarkerFaults {
    inner: Box<dyn TransactionalProducers>,
    /// The delivered pair in the last marker of each producer.
    last_pairs: BTreeMap<u64, Progress>,
    /// Markers that a second transaction has to commit.
    delayed: BTreeMap<u64, TxnOffset>,
}

impl MarkerFaults {
    pub(crate) fn new(inner: Box<dyn TransactionalProducers>) -> Self {
        Self {
            inner,
            last_pairs: BTreeMap::new(),
            delayed: BTreeMap::new(),
        }
    }

    fn on_opened(&mut self, number: u64, metadata: Option<String>) -> Option<String> {
        let mut marker = metadata.as_deref().and_then(DeliveredMarker::parse);
        if let Some(marker) = &mut marker {
            self.last_pairs.insert(number, marker.delivered);
            if fault!(MarkerWithoutWatermark) {
                let cursor = marker.delivered.cursor;
                marker.delivered = Progress::new(cursor, Watermark(i64::MAX.unsigned_abs()));
                return Some(marker.to_string());
            }
        }
        metadata.filter(|_| !fault!(IgnoreMarker))
    }

    /// Returns the event for the caller; `None` if the producer still has to commit the marker.
    fn on_event(&mut self, number: u64, event: ProducerEvent) -> Option<ProducerEvent> {
        match event {
            ProducerEvent::Opened(metadata) => {
                Some(ProducerEvent::Opened(self.on_opened(number, metadata)))
            }
            ProducerEvent::Committed => {
                let Some(offset) = self.delayed.remove(&number) else {
                    return Some(ProducerEvent::Committed);
                };
                self.inner.commit(number, offset);
                None
            }
            other => Some(other),
        }
    }
}

#[async_trait(?Send)]
impl TransactionalProducers for MarkerFaults {
    fn preconnect(&mut self, identity: &ProducerIdentity) {
        self.inner.preconnect(identity);
    }

    fn open(&mut self, number: u64, identity: &ProducerIdentity) {
        self.inner.open(number, identity);
    }

    fn send(&mut self, number: u64, record: &OutgoingRecord<'_>, ticket: u64) -> SendResult {
        self.inner.send(number, record, ticket)
    }

    fn commit(&mut self, number: u64, offset: TxnOffset) {
        let marker = DeliveredMarker::parse(&offset.metadata);
        let Some(mut marker) = marker.filter(|_| fault!(MarkerOutsideTransaction)) else {
            return self.inner.commit(number, offset);
        };
        let pair = std::mem::replace(
            &mut marker.delivered,
            self.last_pairs
                .get(&number)
                .copied()
                .unwrap_or(Progress::START),
        );
        self.last_pairs.insert(number, pair);
        let old = TxnOffset {
            offset: offset.offset,
            metadata: marker.to_string(),
        };
        self.delayed.insert(number, offset);
        self.inner.commit(number, old);
    }

    fn abort(&mut self, number: u64) {
        self.inner.abort(number);
    }

    fn discard(&mut self, number: u64) {
        self.delayed.remove(&number);
        self.inner.discard(number);
    }

    async fn next_events(&mut self) -> Vec<(u64, ProducerEvent)> {
        loop {
            let events = self.inner.next_events().await;
            let events: Vec<_> = events
                .into_iter()
                .filter_map(|(number, event)| Some((number, self.on_event(number, event)?)))
                .collect();
            if !events.is_empty() {
                return events;
            }
        }
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}
