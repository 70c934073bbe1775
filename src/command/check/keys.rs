//! Judges the keys of the key ring: a missing one stops shards, and one that nothing uses can be removed.

use crate::broker::inspection::Finding;
use crate::encryption::{KeyRing, describe_key};
use crate::model::readable::several;
use crate::store::query::{KeyAmount, PendingReport};

/// No findings without encryption.
pub(super) fn judge(report: &PendingReport, keys: &KeyRing) -> Vec<Finding> {
    let is_encrypted = keys.writer().is_some() || report.keys.iter().any(|used| used.key.is_some());
    let is_rotated = keys.names().count() > 1;
    if !is_encrypted && !is_rotated {
        return Vec::new();
    }
    let used = |name: Option<&str>| {
        let found = report.keys.iter().find(|used| used.key.as_deref() == name);
        found.map_or(0, |used| used.messages)
    };
    let known = keys.names().enumerate().map(|(at, name)| {
        let subject = subject(name);
        let messages = several(used(name), "message");
        match (at, used(name)) {
            (0, _) => Finding::ok(subject, format!("writes, and is needed for {messages}")),
            (_, 0) => Finding::warn(
                subject,
                "no message uses it",
                "keep a new key; if it was the first and another key has been the first in all processes for a minute, remove its line from keys_file",
            ),
            _ => Finding::ok(
                subject,
                format!("still needed for {messages}: compaction encrypts them with the first key"),
            ),
        }
    });
    let is_missing = |used: &&KeyAmount| !keys.reads(used.key.as_deref());
    let missing = report.keys.iter().filter(is_missing).map(|used| {
        let messages = several(used.messages, "message");
        Finding::fail(
            subject(used.key.as_deref()),
            format!("{messages} wait for it, and keys_file does not have it"),
            "add it to store.encryption.keys_file, and restart",
        )
    });
    known.chain(missing).collect()
}

fn subject(name: Option<&str>) -> String {
    match name {
        Some(_) => describe_key(name),
        None => "plain data".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict::{self, Fail, Ok, Warn};
    use crate::encryption::test_rings::{line, ring};

    fn verdicts(ring_text: &str, used: &[Option<&str>]) -> Vec<(String, Verdict)> {
        let (ring, all) = (ring(ring_text), ring(&(line("a", 1) + &line("b", 2))));
        let full_name = |id: &str| {
            let mut names = all.names().flatten();
            names.find(|name| name.ends_with(id)).map(str::to_owned)
        };
        let keys = used.iter().map(|id| KeyAmount {
            key: id.and_then(full_name),
            messages: 3,
            bytes: 9,
        });
        let report = PendingReport {
            keys: keys.collect(),
            ..PendingReport::default()
        };
        let findings = judge(&report, &ring).into_iter();
        let short = |subject: &str| subject.split(" with").next().unwrap_or_default().to_owned();
        findings
            .map(|finding| (short(&finding.subject), finding.verdict))
            .collect()
    }

    fn expected(findings: &[(&str, Verdict)]) -> Vec<(String, Verdict)> {
        let findings = findings.iter();
        findings
            .map(|(subject, verdict)| ((*subject).to_owned(), *verdict))
            .collect()
    }

    #[test]
    fn a_key_is_needed_unused_or_missing() {
        let (a, b) = (line("a", 1), line("b", 2));
        let b_a = format!("{b}{a}plain");
        let (key_a, key_b) = ("key `a`", "key `b`");
        assert_eq!(
            verdicts(&b_a, &[Some("a"), Some("b")]),
            expected(&[(key_b, Ok), (key_a, Ok), ("plain data", Warn)])
        );
        assert_eq!(
            verdicts(&b_a, &[None]),
            expected(&[(key_b, Ok), (key_a, Warn), ("plain data", Ok)])
        );
        assert_eq!(
            verdicts(&b, &[Some("a"), None]),
            expected(&[(key_b, Ok), (key_a, Fail), ("plain data", Fail)])
        );
        assert_eq!(
            verdicts("plain", &[Some("a")]),
            expected(&[("plain data", Ok), (key_a, Fail)])
        );
        assert_eq!(verdicts("plain", &[None]), []);
    }
}
