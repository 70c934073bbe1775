//! Judges the keys of the key ring: a missing one stops shards, and one that nothing uses can be removed.

use crate::broker::inspection::Finding;
use crate::encryption::{KeyRing, describe_key};
use crate::model::readable::several;
use crate::store::query::{KeyAmount, KeysReport};

/// No findings without encryption.
pub(super) fn judge(report: &Result<KeysReport, String>, keys: &KeyRing) -> Vec<Finding> {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let fix = "do not remove a key before this check succeeds";
            return vec![Finding::warn(
                "keys",
                format!("cannot count what uses them: {error}"),
                fix,
            )];
        }
    };
    let is_plain = |name: Option<&str>| name.is_none();
    if keys.names().all(is_plain) && report.keys.iter().all(|used| is_plain(used.key.as_deref())) {
        return Vec::new();
    }
    let known = keys.names().enumerate().map(|(at, name)| {
        let found = report.keys.iter().find(|used| used.key.as_deref() == name);
        let used = found.cloned().unwrap_or_default();
        judge_known(at == 0, subject(name), &used)
    });
    let is_missing = |used: &&KeyAmount| used.messages > 0 && !keys.reads(used.key.as_deref());
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

fn judge_known(writes: bool, subject: String, used: &KeyAmount) -> Finding {
    let (messages, ids) = (several(used.messages, "message"), several(used.ids, "id"));
    match used {
        _ if writes => Finding::ok(
            subject,
            format!("writes, and is needed for {messages} and {ids}"),
        ),
        KeyAmount {
            messages: 0,
            ids: 0,
            quarantined: 0,
            ..
        } => Finding::warn(
            subject,
            "nothing uses it",
            "keep a new key; if it was the first and another key has been the first in all processes for a minute, remove its line from keys_file",
        ),
        KeyAmount {
            messages: 0,
            ids: 0,
            quarantined,
            ..
        } => Finding::warn(
            subject,
            format!(
                "only {} in quarantine need it",
                several(*quarantined, "message")
            ),
            "restore them before you remove its line from keys_file: see postdate quarantine",
        ),
        _ => Finding::ok(
            subject,
            format!(
                "still needed for {messages} and {ids}: compaction moves them to the first key"
            ),
        ),
    }
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
            ..KeyAmount::default()
        });
        let report = KeysReport {
            keys: keys.collect(),
            ..KeysReport::default()
        };
        let findings = judge(&Result::Ok(report), &ring).into_iter();
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
    #[test]
    fn a_key_is_needed_for_its_ids_and_not_for_the_quarantine() {
        let ring = ring(&(line("b", 2) + &line("a", 1)));
        let found = |ids, quarantined| {
            let key = ring.names().nth(1).flatten().map(str::to_owned);
            let used = KeyAmount {
                key,
                ids,
                quarantined,
                messages: 0,
            };
            let report = KeysReport {
                keys: vec![used],
                ..KeysReport::default()
            };
            let finding = judge(&Result::Ok(report), &ring).remove(1);
            (finding.verdict, finding.found)
        };
        let (verdict, text) = found(5, 2);
        assert_eq!(verdict, Ok, "{text}");
        assert!(text.contains("0 messages and 5 ids"), "{text}");
        let (verdict, text) = found(0, 2);
        assert_eq!(
            (verdict, &*text),
            (Warn, "only 2 messages in quarantine need it")
        );
        assert_eq!(found(0, 0).1, "nothing uses it");
        let unknown = judge(&Err("no answer".to_owned()), &ring);
        assert_eq!(unknown[0].verdict, Warn);
    }
}
