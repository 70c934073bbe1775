//! What counts: the exporter's recorder, with histograms of our own in place of its own, which read the clock for each sample and keep 24 bytes
//! of it until somebody collects them. Here a sample is counted into its bucket when it comes.

use crate::metric::{self, Instrument};
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use metrics_exporter_prometheus::formatting::{
    write_help_line, write_metric_line, write_type_line,
};
use metrics_exporter_prometheus::{
    LabelSet, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module's page.
pub(crate) struct MetricsRecorder {
    inner: PrometheusRecorder,
    histograms: Arc<[HistogramFamily]>,
}

/// All that was counted, to be read at any time.
#[derive(Clone)]
pub(crate) struct MetricsHandle {
    inner: PrometheusHandle,
    histograms: Arc<[HistogramFamily]>,
}

impl MetricsRecorder {
    /// With the buckets that `metric` wants.
    pub(crate) fn new() -> Self {
        Self {
            inner: PrometheusBuilder::new().build_recorder(),
            histograms: metric::ALL
                .iter()
                .filter_map(HistogramFamily::for_instrument)
                .collect(),
        }
    }

    pub(crate) fn handle(&self) -> MetricsHandle {
        MetricsHandle {
            inner: self.inner.handle(),
            histograms: self.histograms.clone(),
        }
    }
}

impl MetricsHandle {
    /// The page that Prometheus reads, in its text format.
    pub(crate) fn render(&self) -> String {
        let mut page = self.inner.render();
        self.histograms
            .iter()
            .for_each(|family| family.render(&mut page));
        page
    }
}

impl metrics::Recorder for MetricsRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.inner.describe_counter(name, unit, meaning);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.inner.describe_gauge(name, unit, meaning);
    }

    /// The instrument says what it means.
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.inner.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    /// One that is no instrument counts nothing: nobody said what its buckets are.
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let family = self
            .histograms
            .iter()
            .find(|family| family.name == key.name());
        family.map_or_else(Histogram::noop, |family| {
            Histogram::from_arc(family.buckets(key))
        })
    }
}

/// One instrument, with whatever labels.
struct HistogramFamily {
    name: &'static str,
    meaning: &'static str,
    bounds: &'static [f64],
    series: Mutex<BTreeMap<Key, Arc<Buckets>>>,
}

impl HistogramFamily {
    fn for_instrument(instrument: &Instrument) -> Option<Self> {
        let metric::Kind::Histogram(bounds) = instrument.kind else {
            return None;
        };
        Some(Self {
            name: instrument.name,
            meaning: instrument.meaning,
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
        write_help_line(page, self.name, None, None, self.meaning);
        write_type_line(page, self.name, None, None, "histogram");
        for (key, buckets) in &*series {
            buckets.render(
                self.name,
                &LabelSet::from_key_and_global(key, &Default::default()),
                page,
            );
        }
        page.push('\n');
    }
}

/// Samples by where they fall.
struct Buckets {
    /// The greatest that falls into each, ascending; one more bucket takes all beyond.
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    /// The bits of a double.
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

    /// Samples that come meanwhile may be in the sum and not in the buckets, or the other way round.
    fn render(&self, name: &str, labels: &LabelSet, page: &mut String) {
        let mut count = 0;
        let bounds = self
            .bounds
            .iter()
            .map(f64::to_string)
            .chain(["+Inf".to_owned()]);
        for (bound, more) in bounds.zip(&self.counts) {
            count += more.load(Ordering::Relaxed);
            write_metric_line(
                page,
                name,
                Some("bucket"),
                labels,
                Some(("le", bound)),
                count,
                None,
            );
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        write_metric_line::<&str, f64>(page, name, Some("sum"), labels, None, sum, None);
        write_metric_line::<&str, u64>(page, name, Some("count"), labels, None, count, None);
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(count as u64, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value * count as f64).to_bits());
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::RouteMetrics;

    /// The lines of lateness after `body`, without what is the same in all of them.
    fn lateness(body: impl FnOnce()) -> Vec<String> {
        let recorder = MetricsRecorder::new();
        metrics::with_local_recorder(&recorder, body);
        let page = recorder.handle().render();
        let lines = page
            .lines()
            .filter_map(|line| line.strip_prefix("postdate_lateness_seconds_"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_sample_counts_in_its_bucket_and_all_above_and_one_at_the_bound_below_it() {
        let lines = lateness(|| {
            let route = RouteMetrics::new("orders");
            [0.3, 0.5, 0.500_001]
                .into_iter()
                .for_each(|sample| route.lateness_seconds.record(sample));
            route.lateness_seconds.record_many(70.0, 4);
        });
        for line in [
            "bucket{route=\"orders\",le=\"0.001\"} 0",
            "bucket{route=\"orders\",le=\"0.25\"} 0",
            "bucket{route=\"orders\",le=\"0.5\"} 2",
            "bucket{route=\"orders\",le=\"1\"} 3",
            "bucket{route=\"orders\",le=\"60\"} 3",
            "bucket{route=\"orders\",le=\"+Inf\"} 7",
            "sum{route=\"orders\"} 281.300001",
            "count{route=\"orders\"} 7",
        ] {
            assert!(
                lines.contains(&line.to_owned()),
                "{line} is not in {lines:#?}"
            );
        }
    }

    #[test]
    fn handles_of_the_same_labels_share_their_numbers_and_others_do_not() {
        let lines = lateness(|| {
            ["a", "a", "b\"\\"]
                .into_iter()
                .for_each(|route| RouteMetrics::new(route).lateness_seconds.record(0.1));
        });
        for line in ["count{route=\"a\"} 2", "count{route=\"b\\\"\\\\\"} 1"] {
            assert!(
                lines.contains(&line.to_owned()),
                "{line} is not in {lines:#?}"
            );
        }
    }

    #[test]
    fn no_sample_is_lost_between_threads() {
        let buckets = Buckets::new(&[0.5]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| buckets.record(0.25)));
            }
        });
        let mut page = String::new();
        buckets.render(
            "seconds",
            &LabelSet::from_key_and_global(&Key::from_name("seconds"), &Default::default()),
            &mut page,
        );
        assert_eq!(
            page,
            "seconds_bucket{le=\"0.5\"} 40000\nseconds_bucket{le=\"+Inf\"} 40000\nseconds_sum 10000\nseconds_count 40000\n"
        );
    }
}
