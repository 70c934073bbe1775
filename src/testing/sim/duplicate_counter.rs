//! Sums what all processes of a simulation count as possible duplicates.

use crate::metric::{POSSIBLE_DUPLICATES, RouteMetrics};
use crate::testing::sim::world::ROUTE;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Default)]
pub(crate) struct DuplicateCounter(Arc<AtomicU64>);

impl DuplicateCounter {
    /// Metrics of the simulated route that add to this counter.
    pub(crate) fn route_metrics(&self) -> RouteMetrics {
        with_local_recorder(self, || RouteMetrics::new(ROUTE))
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Recorder for DuplicateCounter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == POSSIBLE_DUPLICATES.name {
            Counter::from_arc(self.0.clone())
        } else {
            Counter::noop()
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
