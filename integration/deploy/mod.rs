//! Tests the files in `deploy/` with the tools that read them.
//!
//! Helm renders the chart, promtool checks the alerts, and the schema checks the compose file. The
//! service runs confined in the image's file system. Tests that need a control plane are in
//! `integration/kube/` (`make kube`).

mod alerts;
mod chart;
mod commands;
mod compose;
mod dashboard;
mod image;
mod package;
mod recorded;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use regex_lite::Regex;

use crate::env::{Postdate, eventually, kafka, redis};
use crate::verdict::{LIMIT, Scene};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn file(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("postdate-test-")
        .tempdir()
        .unwrap()
}

/// A tool that `make servers` built, or else the tool of this name in `PATH`.
fn tool(name: &str) -> Command {
    let built: PathBuf = crate::env::servers().join("go/bin").join(name);
    Command::new(if built.exists() {
        built.into_os_string()
    } else {
        name.into()
    })
}

/// Runs a command that must succeed and returns its standard output.
fn output(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(
        status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).unwrap()
}

/// The metrics that a text names. The series of a histogram count as the histogram.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let name = Regex::new("postdate_[a-z_]+[a-z]").unwrap();
    let own = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name)
            .to_owned()
    };
    name.find_iter(text)
        .map(|found| own(found.as_str()))
        .collect()
}

#[test]
fn a_running_service_exports_every_metric_of_the_alerts_and_the_dashboard() {
    let named: BTreeSet<_> = ["alerts.yaml", "dashboard.json"]
        .iter()
        .map(|name| file(&format!("deploy/helm/postdate/files/{name}")))
        .collect();
    let named = metrics_in(&named.into_iter().collect::<String>());
    assert!(named.len() > 30, "{named:?}");
    let mut scene = Scene::new(kafka(), "observed", 2);
    let sink = scene.sink();
    let service = Postdate::ready_with(&scene.config_with(redis(), ""));
    scene.send(10, 500..1_000);
    scene.all_arrive(&sink);
    eventually("all metrics are there", LIMIT, || {
        let metrics = service.metrics();
        let is_there =
            |name: &String| metrics.contains(name) || metrics.contains(&format!("{name}_count"));
        named.iter().all(is_there).then_some(()).or_else(|| {
            eprintln!(
                "missing: {:?}",
                named
                    .iter()
                    .filter(|name| !is_there(name))
                    .collect::<Vec<_>>()
            );
            None
        })
    });
}

#[test]
fn metrics_forecast_due_messages_and_report_the_ingress_lag() {
    let mut scene = Scene::new(kafka(), "forecast", 2);
    let service = Postdate::ready_with(&scene.config(redis()));
    let sum = |name: &str| service.metrics().sum(name) as u64;
    // 40 messages are due in the next minute and 60 in three hours.
    scene.send(40, 55_000..60_000);
    scene.send(60, 3 * 3_600_000..3 * 3_600_000 + 1_000);
    eventually("all of it waits", LIMIT, || {
        (sum("postdate_pending_messages") == 100).then_some(())
    });
    // Until the runs of an hour are split, counts are known by hour only. The forecast has the
    // right size but is not exact.
    eventually("some of it is due soon", LIMIT, || {
        (1..=40)
            .contains(&sum("postdate_due_soon_messages"))
            .then_some(())
    });
    eventually("nothing lags", LIMIT, || {
        (sum("postdate_ingress_lag_messages") == 0).then_some(())
    });
    let started = service.metrics().sum("postdate_start_time_seconds");
    let now = crate::env::now_ms() as f64 / 1_000.0;
    assert!((now - started) < 600.0 && started <= now, "{started} {now}");
    assert_eq!(
        (
            sum("postdate_ready"),
            sum("postdate_degraded"),
            sum("postdate_early_total")
        ),
        (1, 0, 0)
    );
}

#[test]
fn systemd_accepts_the_unit_file() {
    let text = file("deploy/systemd/postdate.service");
    let folder = folder();
    let path = folder.path().join("postdate.service");
    std::fs::write(
        &path,
        text.replace("/usr/local/bin/postdate", env!("CARGO_BIN_EXE_postdate")),
    )
    .unwrap();
    let verdict = Command::new("systemd-analyze")
        .arg("verify")
        .arg("--man=no")
        .arg(&path)
        .output()
        .expect("systemd-analyze, of Debian's systemd");
    let said = String::from_utf8_lossy(&verdict.stderr);
    let about: Vec<_> = said
        .lines()
        .filter(|line| line.contains("postdate.service"))
        .collect();
    assert!(about.is_empty(), "{said}");
}
