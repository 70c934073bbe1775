//! Compares the formats that the live workers read with those of this version.

use crate::broker::inspection::Finding;
use crate::model::FORMAT_LEVEL;
use crate::model::readable::several;
use crate::store::query::WorkersReport;

const SUBJECT: &str = "formats";

/// No findings without live workers.
pub(super) fn judge(report: &Result<WorkersReport, String>) -> Vec<Finding> {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let found = format!("the formats that the workers read are not known: {error}");
            let fix = "do not set an option that writes a new format before this check succeeds";
            return vec![Finding::warn(SUBJECT, found, fix)];
        }
    };
    let workers = report.workers.iter();
    let live: Vec<_> = workers.filter(|it| it.expires_in_ms > 0).collect();
    let names = |is_such: fn(u32) -> bool| {
        let such = live.iter().filter(|it| is_such(it.format));
        let names: Vec<&str> = such.map(|it| it.name.as_str()).collect();
        names.join(", ")
    };
    let older = names(|level| level < FORMAT_LEVEL);
    let newer = names(|level| level > FORMAT_LEVEL);
    if live.is_empty() {
        return Vec::new();
    }
    vec![if !newer.is_empty() {
        Finding::warn(
            SUBJECT,
            format!("a newer version runs, which may write what this one cannot read: {newer}"),
            "run the check of the newer version",
        )
    } else if !older.is_empty() {
        Finding::warn(
            SUBJECT,
            format!("an older version runs, which cannot read every format of this one: {older}"),
            "finish the upgrade before you set an option that writes a new format: see docs/upgrade.md",
        )
    } else {
        let workers = several(live.len() as u64, "worker");
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

    fn found(formats: &[u32]) -> Vec<(Verdict, String)> {
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
        let findings = judge(&Ok(report)).into_iter();
        findings.map(|it| (it.verdict, it.found)).collect()
    }

    #[test]
    fn a_live_worker_of_another_version_is_named() {
        const OWN: u32 = FORMAT_LEVEL;
        assert!(found(&[]).is_empty());
        let (verdict, text) = found(&[OWN, OWN]).remove(0);
        assert_eq!(verdict, Verdict::Ok);
        assert!(text.ends_with("2 workers"), "{text}");
        for (formats, other) in [([OWN, OWN - 1], "older"), ([OWN - 1, OWN + 1], "newer")] {
            let (verdict, text) = found(&formats).remove(0);
            assert_eq!(verdict, Verdict::Warn);
            assert!(text.contains(other) && text.ends_with("w1"), "{text}");
        }
    }
}
