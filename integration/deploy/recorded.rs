//! Tests the alerts with recorded series of real services. promtool treats each recorded moment as
//! one minute.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use super::{folder, output, root};
use crate::env::{Outgoing, Postdate, Producer, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

/// Real time between two recorded moments. Alert rules look back for minutes, so one moment counts
/// as a minute.
const MOMENT: Duration = Duration::from_millis(250);

/// Alerts that depend on the speed of the machine. A slow machine fires them while the service is
/// healthy.
const OF_THE_MACHINE: &str = "PostdateLateness.*|PostdateStoreSlow";

/// The scraped series with the labels of their target. `_` marks a moment without a sample.
#[derive(Default)]
struct Recording {
    series: BTreeMap<String, Vec<String>>,
    moments: usize,
}

impl Recording {
    fn note(&mut self, series: String, value: String) {
        let values = self.series.entry(series).or_default();
        values.resize(self.moments, "_".to_owned());
        values.push(value);
    }

    /// Records one moment of these services, each under its instance name. A service without an
    /// answer is down.
    fn take(&mut self, services: &[(&str, &Postdate)]) {
        std::thread::sleep(MOMENT);
        for (instance, service) in services {
            let target = format!("namespace=\"shop\",job=\"postdate\",instance=\"{instance}\"");
            let answer = service.get("/metrics").filter(|(status, _)| *status == 200);
            self.note(
                format!("up{{{target}}}"),
                u8::from(answer.is_some()).to_string(),
            );
            let text = answer.map(|(_, text)| text).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with("postdate_")) {
                let (series, value) = line.rsplit_once(' ').expect("a sample");
                let series = match series.split_once('{') {
                    Some((name, labels)) => format!("{name}{{{target},{labels}"),
                    None => format!("{series}{{{target}}}"),
                };
                // Prometheus's test format allows no exponents, so write plain decimals.
                self.note(series, value.parse::<f64>().expect("a number").to_string());
            }
        }
        self.moments += 1;
    }

    /// Runs promtool on `(moment, label selector, number of firing alerts)` and fails on a
    /// difference.
    fn judge(&self, expected: &[(usize, &str, usize)]) {
        let mut test = format!(
            "rule_files: [{}]\n",
            root()
                .join("deploy/helm/postdate/files/alerts.yaml")
                .display()
        );
        test += "evaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n";
        for (series, values) in &self.series {
            test += &format!(
                "  - {{ series: '{series}', values: '{}' }}\n",
                values.join(" ")
            );
        }
        test += "  promql_expr_test:\n";
        for (moment, labels, count) in expected {
            let samples = if *count == 0 {
                "[]".to_owned()
            } else {
                format!("[{{ labels: '{{}}', value: {count} }}]")
            };
            let query = format!("count(ALERTS{{alertstate=\"firing\",{labels}}})");
            test += &format!(
                "  - {{ expr: '{query}', eval_time: {moment}m, exp_samples: {samples} }}\n"
            );
        }
        let place = folder();
        let path = place.path().join("recorded_test.yaml");
        std::fs::write(&path, test).unwrap();
        output(Command::new("promtool").args(["test", "rules"]).arg(&path));
    }
}

#[test]
fn alerts_fire_on_recorded_faults_and_not_on_healthy_services() {
    let mut scene = Scene::new(kafka(), "recorded", 2);
    let sink = scene.sink();
    let missing = format!("{}.missing", scene.deployment);
    let config = scene.config_with(redis(), &format!("allow = [\"{missing}\"]"));
    let only =
        |role: &str| Postdate::start_with(&config, &[("POSTDATE_ROLES", &format!("[\"{role}\"]"))]);
    let (mut ingress, mut timer) = (only("ingress"), only("timer"));
    timer.wait_until_ready();
    eventually("the timer has its shards", LIMIT, || {
        (timer.metrics().sum("postdate_leases_held") as usize == 2).then_some(())
    });
    let mut recording = Recording::default();
    for _ in 0..30 {
        scene.send(4, 100..400);
        recording.take(&[("a:8088", &ingress), ("b:8088", &timer)]);
    }
    scene.all_arrive(&sink);
    let well = recording.moments - 1;

    // The timer is down, so nothing is delivered. Its last samples leave Prometheus's lookback
    // after five minutes.
    timer.terminate();
    for _ in 0..15 {
        recording.take(&[("a:8088", &ingress), ("b:8088", &timer)]);
    }
    let unowned = recording.moments - 1;

    // The target of the next message does not exist, so its deliveries fail and are retried.
    timer.restart();
    timer.wait_until_ready();
    let producer = Producer::start(kafka().addr());
    let to_nowhere = |number: i32| {
        Outgoing::to(&scene.source)
            .partition(number % 2)
            .header("postdate-after", "1")
            .header("postdate-to", &missing)
    };
    for _ in 0..40 {
        (0..4).for_each(|number| producer.send(&to_nowhere(number)));
        producer.flush();
        recording.take(&[("a:8088", &ingress), ("b:8088", &timer)]);
    }
    let refused = recording.moments - 1;

    // The ingress is down, so the source has no reader.
    ingress.terminate();
    for _ in 0..15 {
        recording.take(&[("a:8088", &ingress), ("b:8088", &timer)]);
    }
    let unread = recording.moments - 1;
    recording.judge(&[
        (well, &format!("alertname!~\"{OF_THE_MACHINE}\""), 0),
        (unowned, &format!("alertname=\"PostdateShardWithoutOwner\",namespace=\"shop\",route=\"r\",topic=\"{}\"", scene.source), 2),
        (unowned, "alertname=\"PostdateDown\",namespace=\"shop\",instance=\"b:8088\"", 1),
        (unowned, "alertname=\"PostdateNotReady\"", 0),
        (refused, "alertname=\"PostdateRetriesGrow\",namespace=\"shop\",route=\"r\",reason=\"unknown_target\"", 1),
        (refused, "alertname=\"PostdateDegraded\",namespace=\"shop\",instance=\"b:8088\"", 1),
        (refused, "alertname=~\"PostdateShard.*|PostdatePartition.*|PostdateDown\"", 0),
        (unread, &format!("alertname=\"PostdatePartitionWithoutReader\",namespace=\"shop\",route=\"r\",topic=\"{}\"", scene.source), 2),
    ]);
}
