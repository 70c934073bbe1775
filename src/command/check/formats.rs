//! Compares the formats that the live workers read with those of this version, and with those that the
//! configuration writes.

use crate::broker::inspection::Finding;
use crate::config::Config;
use crate::model::readable::several;
use crate::model::{FORMAT_LEVEL, PositionRules};
use crate::role::routing_rules;
use crate::store::query::WorkersReport;

const SUBJECT: &str = "formats";

/// The options that are set and write formats of level 1. A process of level 0 waits in front of them.
pub(super) fn options_of_new_formats(config: &Config) -> Vec<String> {
    let encryption = config.store.encryption.as_ref();
    let encryption = encryption.map(|_| "store.encryption".to_owned());
    let replies = config.routes.iter().flat_map(|(name, route)| {
        let set = [
            ("allow_replies", route.allow_replies.is_some()),
            ("outcomes", route.outcomes.is_some()),
        ];
        let set = set.into_iter().filter(|(_, is_set)| *is_set);
        set.map(move |(key, _)| format!("route.{name}.{key}"))
    });
    let rules = config.routes.keys();
    let rules = rules
        .filter(|name| PositionRules::of(&routing_rules(config, name)).format_level() > 0)
        .map(|name| format!("route.{name} (recurring, on_duplicate or change_by_origin)"));
    encryption.into_iter().chain(replies).chain(rules).collect()
}

/// No findings without live workers. `options` are those of [`options_of_new_formats`].
pub(super) fn judge(report: &Result<WorkersReport, String>, options: &[String]) -> Vec<Finding> {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let found = format!("the formats that the workers read are not known: {error}");
            let fix = "do not set an option that writes a new format before this check succeeds";
            return vec![Finding::warn(SUBJECT, found, fix)];
        }
    };
    let live = report.live().count();
    let older = report.names_of_level(|level| level < FORMAT_LEVEL);
    let newer = report.names_of_level(|level| level > FORMAT_LEVEL);
    if live == 0 {
        return Vec::new();
    }
    vec![if !newer.is_empty() {
        Finding::warn(
            SUBJECT,
            format!("a newer version runs, which may write what this one cannot read: {newer}"),
            "run the check of the newer version",
        )
    } else if !older.is_empty() && !options.is_empty() {
        Finding::fail(
            SUBJECT,
            format!(
                "an older version runs, which cannot read what these options write: {older}. The options: {}",
                options.join(", ")
            ),
            "remove these options until the upgrade is finished: see docs/upgrade.md",
        )
    } else if !older.is_empty() {
        Finding::warn(
            SUBJECT,
            format!("an older version runs, which cannot read every format of this one: {older}"),
            "finish the upgrade before you set an option that writes a new format: see docs/upgrade.md",
        )
    } else {
        let workers = several(live as u64, "worker");
        Finding::ok(
            SUBJECT,
            format!("level {FORMAT_LEVEL}, in this version and in {workers}"),
        )
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict;
    use crate::store::query::WorkerReport;

    fn found(formats: &[u32], options: &[String]) -> Vec<(Verdict, String)> {
        let worker = |(at, format): (usize, &u32)| WorkerReport {
            name: format!("w{at}"),
            format: *format,
            expires_in_ms: 5,
            ..WorkerReport::default()
        };
        let expired = WorkerReport::default();
        let workers = formats.iter().enumerate().map(worker).chain([expired]);
        let report = WorkersReport {
            workers: workers.collect(),
            ..WorkersReport::default()
        };
        let findings = judge(&Ok(report), options).into_iter();
        findings.map(|it| (it.verdict, it.found)).collect()
    }

    #[test]
    fn a_live_worker_of_another_version_is_named() {
        const OWN: u32 = FORMAT_LEVEL;
        assert!(found(&[], &[]).is_empty());
        let (verdict, text) = found(&[OWN, OWN], &[]).remove(0);
        assert_eq!(verdict, Verdict::Ok);
        assert!(text.ends_with("2 workers"), "{text}");
        for (formats, other) in [([OWN, OWN - 1], "older"), ([OWN - 1, OWN + 1], "newer")] {
            let (verdict, text) = found(&formats, &[]).remove(0);
            assert_eq!(verdict, Verdict::Warn);
            assert!(text.contains(other) && text.ends_with("w1"), "{text}");
        }
    }

    #[test]
    fn an_option_that_is_set_before_the_upgrade_is_finished_fails() {
        let option = ["route.r.allow_replies".to_owned()];
        let (verdict, text) = found(&[FORMAT_LEVEL, FORMAT_LEVEL - 1], &option).remove(0);
        assert_eq!(verdict, Verdict::Fail);
        assert!(
            text.contains("w1. The options: route.r.allow_replies"),
            "{text}"
        );
        let (verdict, _) = found(&[FORMAT_LEVEL], &option).remove(0);
        assert_eq!(verdict, Verdict::Ok);
    }

    #[test]
    fn each_option_of_a_new_format_is_named() {
        let options = |option: &str| {
            let route = r#"
                deployment = "d"
                [kafka.main]
                brokers = ["b:9092"]
                [route.r]
                source = { kafka = "main", topics = ["in"] }
                target = { kafka = "main", topic = "out" }
                dead_letter = { kafka = "main", topic = "dead" }
            "#;
            let config = Config::parse_builtin(&format!("{route}\n{option}"));
            options_of_new_formats(&config.expect("it is valid"))
        };
        assert_eq!(options(""), [""; 0]);
        for (option, name) in [
            (r#"allow_replies = ["a"]"#, "route.r.allow_replies"),
            (r#"outcomes = "audit""#, "route.r.outcomes"),
            (r#"on_duplicate = "keep-first""#, "route.r (recurring"),
            ("change_by_origin = true", "route.r (recurring"),
            ("recurring = true", "route.r (recurring"),
        ] {
            let found = options(option);
            assert!(found.len() == 1 && found[0].starts_with(name), "{found:?}");
        }
    }
}
