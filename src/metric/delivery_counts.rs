//! Messages of one route whose acknowledgements came together: counted apart, and told at once, so that one costs no shared memory.

use super::{LATENESS_BOUNDS, RouteMetrics};

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct DeliveryCounts {
    delivered: u64,
    early: u64,
    /// By bucket of lateness: how many, and their sum in seconds.
    lateness_buckets: [(u32, f64); LATENESS_BOUNDS.len() + 1],
}

impl DeliveryCounts {
    /// One more was delivered.
    pub(crate) fn add_delivered(&mut self) {
        self.delivered += 1;
    }

    /// It was stored ahead of its due, and came so many seconds after it.
    pub(crate) fn add_lateness(&mut self, seconds: f64) {
        let (count, sum) =
            &mut self.lateness_buckets[LATENESS_BOUNDS.partition_point(|bound| *bound < seconds)];
        *count += 1;
        *sum += seconds;
    }

    /// It came before its due.
    pub(crate) fn add_early(&mut self) {
        self.early += 1;
    }

    /// Counts them, each lateness as the mean of its bucket: neither buckets nor sum are other ones by that, but for what is rounded. A mean
    /// that is rounded up beyond its bucket is the bucket's bound.
    pub(crate) fn flush(self, route: &RouteMetrics) {
        if self.delivered > 0 {
            route.delivered.increment(self.delivered);
        }
        if self.early > 0 {
            route.early.increment(self.early);
        }
        let bounds = LATENESS_BOUNDS.iter().copied().chain([f64::INFINITY]);
        for ((count, sum), bound) in self
            .lateness_buckets
            .into_iter()
            .zip(bounds)
            .filter(|((count, _), _)| *count > 0)
        {
            route
                .lateness_seconds
                .record_many((sum / f64::from(count)).min(bound), count as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::MetricsRecorder;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What is read of a route after `body`, in no order, and the sum of lateness.
    fn read(body: impl FnOnce(&RouteMetrics)) -> (BTreeSet<String>, f64) {
        let recorder = MetricsRecorder::new();
        metrics::with_local_recorder(&recorder, || body(&RouteMetrics::new("orders")));
        let page = recorder.handle().render();
        let (sums, lines): (Vec<&str>, Vec<&str>) = page
            .lines()
            .partition(|line| line.starts_with("postdate_lateness_seconds_sum"));
        (
            lines.into_iter().map(str::to_owned).collect(),
            sums[0].rsplit_once(' ').unwrap().1.parse().unwrap(),
        )
    }

    #[test]
    fn nothing_that_arrived_counts_nothing() {
        assert_eq!(
            read(|route| DeliveryCounts::default().flush(route)),
            read(|_| ())
        );
    }

    /// Mostly many of the same, as of one due that are acknowledged together, and often at a bucket's bound.
    fn millis() -> impl Strategy<Value = Vec<u32>> {
        let bound = prop::sample::select(LATENESS_BOUNDS)
            .prop_map(|seconds| (seconds * 1_000.0).round() as u32);
        let alike = (prop_oneof![bound, 0..70_000u32], 1..40usize)
            .prop_map(|(millis, count)| vec![millis; count]);
        prop::collection::vec(alike, 0..6).prop_map(|groups| groups.concat())
    }

    proptest! {
        #[test]
        fn what_is_told_at_once_reads_as_what_is_counted_one_by_one(millis in millis(), early in 0..3u64) {
            let seconds = || millis.iter().map(|millis| f64::from(*millis) / 1_000.0);
            let (lines, sum) = read(|route| {
                seconds().for_each(|seconds| route.lateness_seconds.record(seconds));
                route.delivered.increment(millis.len() as u64);
                route.early.increment(early);
            });
            let (other_lines, other_sum) = read(|route| {
                let mut arrivals = DeliveryCounts::default();
                seconds().for_each(|seconds| arrivals.add_lateness(seconds));
                millis.iter().for_each(|_| arrivals.add_delivered());
                (0..early).for_each(|_| arrivals.add_early());
                arrivals.flush(route);
            });
            prop_assert_eq!(lines, other_lines);
            prop_assert!((sum - other_sum).abs() < 1e-6, "{} is not {}", sum, other_sum);
        }
    }
}
