//! Tests the dashboard: Grafana's schema covers it, and Prometheus accepts every query.
//!
//! Each query must also find data of a running service. The tests do not run Grafana.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{file, folder, output};
use crate::env::{Postdate, Prometheus, eventually, kafka, redis, servers};
use crate::verdict::{LIMIT, Scene};

fn panels() -> (Value, Vec<Value>) {
    let dashboard: Value =
        serde_json::from_str(&file("deploy/helm/postdate/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    (dashboard, panels)
}

#[test]
fn grafanas_schema_covers_the_dashboard() {
    let place = folder();
    let path = place.path().join("dashboard.json");
    let judge = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/integration/deploy/dashboard.py"
        );
        let judged = Command::new("python3")
            .arg(script)
            .arg(&path)
            .env("PYTHONPATH", servers().join("grafana"))
            .output()
            .unwrap();
        (
            judged.status.success(),
            String::from_utf8_lossy(&judged.stderr).into_owned(),
        )
    };
    let ours = file("deploy/helm/postdate/files/dashboard.json");
    let (is_fine, said) = judge(&ours);
    assert!(is_fine, "{said}");
    let (is_fine, said) = judge(&ours.replace("\"fieldConfig\"", "\"fieldsConfig\""));
    assert!(
        !is_fine && said.contains("fieldsConfig: the schema does not know it"),
        "{said}"
    );
}

#[test]
fn panels_have_unique_ids_and_do_not_overlap() {
    let (dashboard, panels) = panels();
    assert_eq!(
        (&dashboard["uid"], &dashboard["schemaVersion"]),
        (&"postdate".into(), &39.into())
    );
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in &panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(
            at("x") + at("w") <= 24 && at("h") > 0 && at("w") > 0,
            "{panel}"
        );
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{} lies on another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_panel_has_a_description_and_uses_the_selected_prometheus() {
    for panel in panels().1.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(
            !targets.is_empty()
                && ["title", "description"]
                    .iter()
                    .all(|key| panel[*key].as_str().is_some_and(|text| text.len() > 3)),
            "{panel}"
        );
        let references: BTreeSet<_> = targets
            .iter()
            .map(|target| target["refId"].as_str().unwrap())
            .collect();
        assert_eq!(references.len(), targets.len(), "{panel}");
        for asked in targets.iter().chain([panel]) {
            assert_eq!(asked["datasource"]["uid"], "${datasource}", "{asked}");
        }
    }
}

#[test]
fn the_dashboard_shows_one_installation_at_a_time() {
    let (dashboard, panels) = panels();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let namespace = variables
        .iter()
        .find(|variable| variable["name"] == "namespace")
        .expect("a variable");
    assert_eq!(
        (&namespace["multi"], &namespace["includeAll"]),
        (&false.into(), &false.into()),
        "{namespace}"
    );
    let unbound = regex_lite::Regex::new(r#"postdate_\w+(\{namespace="\$namespace")?"#).unwrap();
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
    {
        let query = target["expr"].as_str().unwrap();
        assert!(
            unbound
                .captures_iter(query)
                .all(|found| found.get(1).is_some()),
            "{query}"
        );
    }
}

/// Every query of every panel as Grafana sends it, with its variables filled in.
fn queries() -> Vec<String> {
    let (_, panels) = panels();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let query = |target: &Value| {
        let text = target["expr"]
            .as_str()
            .unwrap()
            .replace("$__rate_interval", "5m")
            .replace("$__range", "6h");
        text.replace("$namespace", "shop").replace("$route", "r")
    };
    let queries: Vec<_> = targets.map(query).collect();
    assert!(
        queries.len() > 40 && queries.iter().all(|query| !query.contains('$')),
        "{queries:#?}"
    );
    queries
}

#[test]
fn prometheus_accepts_every_query() {
    // promtool reads only rules, so wrap each query in a recording rule.
    let rule = |(index, query): (usize, &String)| {
        format!(
            "  - record: q{index}\n    expr: {}\n",
            Value::from(query.as_str())
        )
    };
    let rules = queries().iter().enumerate().map(rule).collect::<String>();
    let place = folder();
    let path = place.path().join("rules.yaml");
    std::fs::write(
        &path,
        format!("groups:\n- name: dashboard\n  rules:\n{rules}"),
    )
    .unwrap();
    output(Command::new("promtool").args(["check", "rules"]).arg(&path));
}

#[test]
fn every_panel_shows_data_of_a_running_service() {
    let mut scene = Scene::new(kafka(), "shown", 2);
    let sink = scene.sink();
    let service = Postdate::ready_with(&scene.config_with(redis(), "delivery = \"exactly-once\""));
    let prometheus = Prometheus::start(service.port());
    let counted = |count: u64| {
        let query = format!("sum(postdate_delivered_total) >= {count}");
        eventually("Prometheus has counted them", LIMIT, || {
            prometheus.query(&query).pop()
        })
    };
    counted(0);
    // A rate needs several samples, so send in rounds and wait until Prometheus has scraped each.
    for round in 1..=3 {
        scene.send(20, 500..1_000);
        scene.all_arrive(&sink);
        counted(20 * round);
    }
    let is_shown = |query: &str| {
        let shows = |series: &Value| {
            series["value"][1]
                .as_str()
                .is_some_and(|value| value != "NaN")
        };
        prometheus.query(query).iter().any(shows)
    };
    for query in queries() {
        // Some panels show a series only on a problem. The series must exist, and the query with
        // its condition must be valid.
        let bare = query
            .strip_suffix(" > 0")
            .or(query.strip_suffix(" != 0"))
            .unwrap_or(&query);
        prometheus.query(&query);
        eventually(&format!("{bare} finds something"), LIMIT, || {
            is_shown(bare).then_some(())
        });
    }
    for (metric, label, value) in [
        ("postdate_ready", "namespace", "shop"),
        ("postdate_accepted_total", "route", "r"),
    ] {
        let values = prometheus.ask(
            &format!("label/{label}/values"),
            &format!("match[]={metric}"),
        );
        assert_eq!(
            values,
            serde_json::json!([value]),
            "what the dashboard's variables choose from"
        );
    }
}
