//! Checks the compose file against the schema of the Compose specification.
//!
//! Helm validates a chart's values against a schema, so the test wraps the compose file as the
//! values of a chart.

use super::{file, folder, output, tool};

fn judged(text: &str) -> std::process::Output {
    let chart = folder();
    std::fs::write(
        chart.path().join("Chart.yaml"),
        "apiVersion: v2\nname: compose\nversion: 0.0.0\n",
    )
    .unwrap();
    let schema = crate::env::servers().join("compose/compose-spec.json");
    std::fs::copy(&schema, chart.path().join("values.schema.json"))
        .unwrap_or_else(|error| panic!("{}: {error}: `make servers` brings it", schema.display()));
    std::fs::write(chart.path().join("compose.yaml"), text).unwrap();
    tool("helm")
        .arg("template")
        .arg(chart.path())
        .arg("--values")
        .arg(chart.path().join("compose.yaml"))
        .output()
        .unwrap()
}

#[test]
fn the_compose_file_matches_the_specification() {
    let text = file("deploy/compose.yaml");
    let verdict = judged(&text);
    assert!(
        verdict.status.success(),
        "{}",
        String::from_utf8_lossy(&verdict.stderr)
    );
    let broken = judged(&text.replace("    restart: unless-stopped", "    restart: [yes]"));
    assert!(
        !broken.status.success() && String::from_utf8_lossy(&broken.stderr).contains("restart"),
        "the schema judges at all"
    );
    for mentioned in [
        "../config/kafka.toml",
        "helm/postdate/files/alerts.yaml",
        "helm/postdate/files/dashboard.json",
    ] {
        assert!(text.contains(mentioned));
        file(&format!("deploy/{mentioned}"));
    }
}

#[test]
fn the_prometheus_of_the_compose_file_reads_the_alerts() {
    let text = file("deploy/compose.yaml");
    let (_, rest) = text
        .split_once("  prometheus:\n    content: |\n")
        .expect("Prometheus' configuration");
    let content: String = rest
        .lines()
        .take_while(|line| line.starts_with("      "))
        .map(|line| format!("{}\n", &line[6..]))
        .collect();
    let place = folder();
    let rules = place.path().join("alerts.yaml");
    std::fs::write(&rules, file("deploy/helm/postdate/files/alerts.yaml")).unwrap();
    let path = place.path().join("prometheus.yml");
    std::fs::write(
        &path,
        content.replace("/etc/prometheus/alerts.yaml", rules.to_str().unwrap()),
    )
    .unwrap();
    output(
        std::process::Command::new("promtool")
            .args(["check", "config"])
            .arg(&path),
    );
}

#[test]
fn the_service_accepts_the_configuration_of_the_compose_file() {
    let text = file("deploy/compose.yaml");
    let variables = text.lines().filter_map(|line| {
        line.trim()
            .split_once(": ")
            .filter(|(name, _)| name.starts_with("POSTDATE_"))
    });
    let variables: Vec<_> = variables
        .map(|(name, value)| (name, value.trim_matches('\'')))
        .collect();
    assert!(variables.len() > 3, "{variables:?}");
    // Use addresses without a listener: the test only checks whether the configuration is accepted.
    let elsewhere = |value: &str| {
        value
            .replace("//redis:6379", "//127.0.0.1:1")
            .replace("kafka:29092", "127.0.0.1:2")
    };
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_postdate"));
    check
        .args(["check", "--config", "config/kafka.toml"])
        .current_dir(super::root());
    check.envs(
        variables
            .iter()
            .map(|(name, value)| (name, elsewhere(value))),
    );
    let said = check.output().unwrap();
    assert_eq!(
        said.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    assert!(
        !String::from_utf8_lossy(&said.stderr).contains("a problem with the configuration"),
        "{said:?}"
    );
}
