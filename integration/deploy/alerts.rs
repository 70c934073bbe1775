//! Tests the alerts: each fires on its series and not on healthy ones, and links to an existing
//! runbook section.

use std::collections::BTreeSet;
use std::process::Command;

use regex_lite::Regex;

use super::{file, output, root};

const RULES: &str = "deploy/helm/postdate/files/alerts.yaml";

fn promtool(arguments: &[&str]) -> String {
    output(Command::new("promtool").args(arguments).current_dir(root()))
}

fn all<'t>(text: &'t str, pattern: &str) -> Vec<&'t str> {
    let pattern = Regex::new(pattern).unwrap();
    pattern
        .captures_iter(text)
        .map(|found| found.get(1).unwrap().as_str())
        .collect()
}

#[test]
fn each_alert_fires_on_its_series_and_never_on_a_healthy_fleet() {
    promtool(&["check", "rules", RULES]);
    promtool(&["test", "rules", "integration/deploy/alerts_test.yaml"]);
    let (rules, tests) = (file(RULES), file("integration/deploy/alerts_test.yaml"));
    let alerts: BTreeSet<_> = all(&rules, r"- alert: (\w+)").into_iter().collect();
    assert!(alerts.len() > 20);
    let firing: BTreeSet<_> = all(
        &tests,
        r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n",
    )
    .into_iter()
    .collect();
    let silent: BTreeSet<_> = all(
        &tests,
        r"- \{ alertname: (\w+), eval_time: \w+, exp_alerts: \[\] \}",
    )
    .into_iter()
    .collect();
    assert_eq!(
        (&firing, &silent),
        (&alerts, &alerts),
        "each alert is tried both ways"
    );
}

#[test]
fn each_alert_links_to_a_section_of_the_runbook() {
    let (rules, page) = (file(RULES), file("docs/runbook.md"));
    let anchor = |heading: &str| {
        let kept = heading
            .to_lowercase()
            .chars()
            .filter(|char| char.is_alphanumeric() || " -_".contains(*char))
            .collect::<String>();
        kept.trim().replace(' ', "-")
    };
    let anchors: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect();
    let named = all(&rules, r"runbook: docs/runbook\.md#(\S+)");
    assert_eq!(
        named.len(),
        all(&rules, r"- alert: (\w+)").len(),
        "each names one"
    );
    let missing: Vec<_> = named
        .into_iter()
        .filter(|name| !anchors.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/runbook.md lacks {missing:?}; it has {anchors:#?}"
    );
}

#[test]
fn alerts_never_add_up_two_installations() {
    promtool(&[
        "test",
        "rules",
        "integration/deploy/installations_test.yaml",
    ]);
    let rules = file(RULES);
    let kept = all(&rules, r"by \((\w+)");
    assert!(
        kept.len() > 25 && kept.iter().all(|first| *first == "namespace"),
        "{kept:?}"
    );
    // An expression without an aggregation keeps every label, so only aggregations must group by
    // namespace.
    let ungrouped = Regex::new(r"\b(sum|max|min|count|avg)\(").unwrap();
    let found: Vec<_> = rules
        .lines()
        .filter(|line| ungrouped.is_match(line))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
