//! The metrics recorder: counters and gauges of metrics-exporter-prometheus, and our own
//! histograms.
//!
//! The exporter's histogram cannot be used here. It buffers every sample (24 bytes, with a reading
//! of the clock) until the next upkeep call, so a drain fills memory without a bound (I6). Here a
//! sample is added to its bucket at once.

use crate::metric::{self, Instrument};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use metrics_exporter_prometheus::formatting::{
    write_help_line, write_metric_line, write_type_line,
};
use metrics_exporter_prometheus::{LabelSet, PrometheusBuilder, PrometheusRecorder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Records all metrics of the process, and renders them at any time. Clones share them.
#[derive(Clone)]
pub(crate) struct MetricsRecorder {
    /// Counters and gauges.
    inner: Arc<PrometheusRecorder>,
    histograms: Arc<[HistogramFamily]>,
}

impl MetricsRecorder {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(PrometheusBuilder::new().build_recorder()),
            histograms: metric::ALL
                .iter()
                .filter_map(HistogramFamily::for_instrument)
                .collect(),
        }
    }

    /// All metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut page = self.inner.handle().render();
        for family in self.histograms.iter() {
            family.render(&mut page);
        }
        page
    }
}

impl metrics::Recorder for MetricsRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_counter(name, unit, description);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_gauge(name, unit, description);
    }

    /// Does nothing: a histogram takes its description from its instrument.
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.inner.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    /// A histogram without an instrument has no bucket bounds, so it records nothing.
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.histograms
            .iter()
            .find(|family| family.instrument.name == key.name())
            .map_or_else(Histogram::noop, |family| {
                Histogram::from_arc(family.buckets(key))
            })
    }
}

/// One histogram instrument, with a series for each set of labels.
struct HistogramFamily {
    instrument: &'static Instrument,
    bounds: &'static [f64],
    series: Mutex<BTreeMap<Key, Arc<Buckets>>>,
}

impl HistogramFamily {
    fn for_instrument(instrument: &'static Instrument) -> Option<Self> {
        let metric::Kind::Histogram(bounds) = instrument.kind else {
            return None;
        };
        Some(Self {
            instrument,
            bounds,
            series: Mutex::default(),
        })
    }

    fn buckets(&self, key: &Key) -> Arc<Buckets> {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series
            .entry(key.clone())
            .or_insert_with(|| Arc::new(Buckets::new(self.bounds)))
            .clone()
    }

    fn render(&self, page: &mut String) {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if series.is_empty() {
            return;
        }
        let Instrument {
            name, description, ..
        } = self.instrument;
        write_help_line(page, name, None, None, description);
        write_type_line(page, name, None, None, "histogram");
        for (key, buckets) in &*series {
            let labels = LabelSet::from_key_and_global(key, &Default::default());
            buckets.render(name, &labels, page);
        }
        page.push('\n');
    }
}

/// The samples of one series, counted by bucket.
struct Buckets {
    /// The inclusive upper bound of each bucket, ascending. One more bucket has no bound.
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    /// The sum of all samples, as the bits of an `f64`.
    sum: AtomicU64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0f64.to_bits()),
        }
    }

    /// A sample that is recorded meanwhile may be in the sum and not in the buckets, or vice versa.
    fn render(&self, name: &str, labels: &LabelSet, page: &mut String) {
        let mut count = 0;
        let bounds = self
            .bounds
            .iter()
            .map(f64::to_string)
            .chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&self.counts) {
            count += bucket.load(Ordering::Relaxed);
            let le = Some(("le", bound));
            write_metric_line(page, name, Some("bucket"), labels, le, count, None);
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        write_metric_line::<&str, f64>(page, name, Some("sum"), labels, None, sum, None);
        write_metric_line::<&str, u64>(page, name, Some("count"), labels, None, count, None);
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::RouteMetrics;

    /// The rendered lines of the lateness histogram after `body`, without their common prefix.
    fn lateness(body: impl FnOnce()) -> Vec<String> {
        let recorder = MetricsRecorder::new();
        metrics::with_local_recorder(&recorder, body);
        recorder
            .render()
            .lines()
            .filter_map(|line| line.strip_prefix("postdate_lateness_seconds_"))
            .map(str::to_owned)
            .collect()
    }

    fn assert_contains(lines: &[String], expected: &[&str]) {
        for line in expected {
            assert!(
                lines.contains(&(*line).to_owned()),
                "{line} is not in {lines:#?}"
            );
        }
    }

    #[test]
    fn a_sample_counts_in_its_bucket_and_in_all_larger_ones() {
        let lines = lateness(|| {
            let route = RouteMetrics::new("orders");
            for sample in [0.3, 0.5, 0.500_001, 70.0, 70.0] {
                route.lateness_seconds.record(sample);
            }
        });
        assert_contains(
            &lines,
            &[
                "bucket{route=\"orders\",le=\"0.001\"} 0",
                "bucket{route=\"orders\",le=\"0.25\"} 0",
                "bucket{route=\"orders\",le=\"0.5\"} 2",
                "bucket{route=\"orders\",le=\"1\"} 3",
                "bucket{route=\"orders\",le=\"60\"} 3",
                "bucket{route=\"orders\",le=\"+Inf\"} 5",
                "sum{route=\"orders\"} 141.300001",
                "count{route=\"orders\"} 5",
            ],
        );
    }

    #[test]
    fn handles_with_the_same_labels_share_their_series() {
        let lines = lateness(|| {
            for route in ["a", "a", "b\"\\"] {
                RouteMetrics::new(route).lateness_seconds.record(0.1);
            }
        });
        let expected = ["count{route=\"a\"} 2", "count{route=\"b\\\"\\\\\"} 1"];
        assert_contains(&lines, &expected);
    }

    #[test]
    fn concurrent_samples_are_all_counted() {
        let buckets = Buckets::new(&[0.5]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| buckets.record(0.25)));
            }
        });
        let mut page = String::new();
        let labels = LabelSet::from_key_and_global(&Key::from_name("seconds"), &Default::default());
        buckets.render("seconds", &labels, &mut page);
        assert_eq!(
            page,
            "seconds_bucket{le=\"0.5\"} 40000\n\
             seconds_bucket{le=\"+Inf\"} 40000\n\
             seconds_sum 10000\n\
             seconds_count 40000\n"
        );
    }
}
