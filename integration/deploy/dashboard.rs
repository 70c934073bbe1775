//! The dashboard: whole, and every query one that Prometheus understands. No Grafana runs here.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{file, folder, output};

fn panels() -> (Value, Vec<Value>) {
    let dashboard: Value = serde_json::from_str(&file("deploy/helm/postdate/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    (dashboard, panels)
}

#[test]
fn panels_have_ids_of_their_own_and_lie_beside_one_another() {
    let (dashboard, panels) = panels();
    assert_eq!((&dashboard["uid"], &dashboard["schemaVersion"]), (&"postdate".into(), &39.into()));
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in &panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24 && at("h") > 0 && at("w") > 0, "{panel}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{} lies on another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_panel_says_what_it_shows_and_asks_the_chosen_prometheus() {
    for panel in panels().1.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(
            !targets.is_empty() && ["title", "description"].iter().all(|key| panel[*key].as_str().is_some_and(|text| text.len() > 3)),
            "{panel}"
        );
        let references: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(references.len(), targets.len(), "{panel}");
        for asked in targets.iter().chain([panel]) {
            assert_eq!(asked["datasource"]["uid"], "${datasource}", "{asked}");
        }
    }
}

#[test]
fn every_query_is_one_that_prometheus_understands() {
    let (_, panels) = panels();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let query = |target: &Value| {
        let text = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m").replace("$__range", "6h");
        text.replace("$namespace", "shop").replace("$route", "orders")
    };
    let queries: Vec<_> = targets.map(query).collect();
    assert!(queries.len() > 40 && queries.iter().all(|query| !query.contains('$')), "{queries:#?}");
    // Recording rules take any query, and promtool reads rules.
    let rule = |(index, query): (usize, &String)| format!("  - record: q{index}\n    expr: {}\n", Value::from(query.as_str()));
    let rules = queries.iter().enumerate().map(rule).collect::<String>();
    let place = folder();
    let path = place.path().join("rules.yaml");
    std::fs::write(&path, format!("groups:\n- name: dashboard\n  rules:\n{rules}")).unwrap();
    output(Command::new("promtool").args(["check", "rules"]).arg(&path));
}
