//! Result of a check: items with a verdict each.

use serde::Serialize;

/// Verdict of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// It works now, but may fail later.
    Warn,
    Fail,
}

/// One checked fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Item {
    /// `kafka.<name>`, `nats.<name>`, `store` or `waiting`.
    pub(super) area: String,
    pub(super) subject: String,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// The remedy; `None` if there is no problem.
    pub(super) fix: Option<String>,
}

/// The document of `--json`. Fields are only added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Document {
    pub(super) deployment: String,
    pub(super) ok: usize,
    pub(super) warn: usize,
    pub(super) fail: usize,
    pub(super) items: Vec<Item>,
}

impl Item {
    pub(super) fn ok(area: &str, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            area: area.to_owned(),
            subject: subject.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            fix: None,
        }
    }

    pub(super) fn warn(
        area: &str,
        subject: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            fix: Some(fix.into()),
            ..Self::ok(area, subject, found)
        }
    }

    pub(super) fn fail(
        area: &str,
        subject: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail,
            fix: Some(fix.into()),
            ..Self::ok(area, subject, found)
        }
    }
}

impl Document {
    pub(super) fn new(deployment: &str, items: Vec<Item>) -> Self {
        let count = |verdict| items.iter().filter(|item| item.verdict == verdict).count();
        let (ok, warn, fail) = (
            count(Verdict::Ok),
            count(Verdict::Warn),
            count(Verdict::Fail),
        );
        Self {
            deployment: deployment.to_owned(),
            ok,
            warn,
            fail,
            items,
        }
    }
}
