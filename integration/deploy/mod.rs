//! What lies in `deploy/`, tried: the chart by Helm, the alerts by promtool, the compose file by its schema, the image's file system by running the
//! service confined in it. What needs a control plane is apart (`make kube`).

mod alerts;
mod chart;
mod commands;
mod compose;
mod dashboard;
mod image;
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

/// A tool that `make servers` built, or Debian's.
fn tool(name: &str) -> Command {
    let built: PathBuf = crate::env::servers().join("go/bin").join(name);
    Command::new(if built.exists() {
        built.into_os_string()
    } else {
        name.into()
    })
}

/// What a command wrote to standard output; it must end well.
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

/// The metrics that a text names, a histogram's by its own name.
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
fn every_metric_that_an_alert_or_the_dashboard_names_is_one_of_a_running_service() {
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
fn what_will_be_due_and_what_is_not_stored_are_told_beforehand() {
    let mut scene = Scene::new(kafka(), "forecast", 2);
    let service = Postdate::ready_with(&scene.config(redis()));
    let sum = |name: &str| service.metrics().sum(name) as u64;
    // In the next minute, and in three hours.
    scene.send(40, 55_000..60_000);
    scene.send(60, 3 * 3_600_000..3 * 3_600_000 + 1_000);
    eventually("all of it waits", LIMIT, || {
        (sum("postdate_pending_messages") == 100).then_some(())
    });
    // The counts go by the hour until the hour's runs are split, so that the forecast is of the right size, and no more exact than that.
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
fn the_unit_file_is_one_that_systemd_takes() {
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
