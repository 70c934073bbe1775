//! The page of the audit list.

use super::frame::{Frame, Moment, Visit, clipped};
use crate::admin::api::Params;
use crate::admin::audit::AuditParams;
use crate::admin::problem::Problem;
use crate::model::Timestamp;
use crate::store::query::{AuditLine, AuditReport};
use askama::Template;
use axum::response::Response;

/// Lines of a page.
const LINES_SHOWN: usize = 50;
/// Characters of a text in a line. The API has the whole text.
const TEXT_MAX: usize = 200;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    rows: Vec<AuditRow>,
    unreadable: u64,
    changes_only: bool,
    /// The `after` of the next page.
    next: Option<String>,
}

struct AuditRow {
    at: Moment,
    actor: String,
    address: String,
    action: String,
    route: String,
    object: String,
    result: String,
    is_bad: bool,
}

impl AuditRow {
    fn new(line: &AuditLine, now: Timestamp) -> Self {
        let outcome = line.outcome.as_deref();
        Self {
            at: Moment::new(Timestamp::from_millis(line.at_ms), now),
            actor: line.actor.clone(),
            address: line.address.clone(),
            action: line.action.clone(),
            route: line.route.clone().unwrap_or_default(),
            object: clipped(&line.object(), TEXT_MAX),
            result: line.result(),
            is_bad: matches!(outcome, Some("refused" | "failed" | "interrupted")),
        }
    }
}

pub(super) async fn list(visit: Visit, params: Result<Params<AuditParams>, Problem>) -> Response {
    let page = async {
        let Params(params) = params?;
        let changes_only = params.changes;
        let params = AuditParams {
            limit: Some(LINES_SHOWN),
            ..params
        };
        let query = params.query()?;
        let report: AuditReport = visit.console.queries.report(query).await?;
        let now = Timestamp::from_millis(report.at_ms);
        let rows = report.items.iter().map(|line| AuditRow::new(line, now));
        Ok(AuditPage {
            frame: visit.frame("audit", "Audit"),
            rows: rows.collect(),
            unreadable: report.unreadable,
            changes_only,
            next: report.after,
        })
    };
    visit.show(page.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stays_small_with_long_texts() {
        let line = AuditLine {
            actor: "operator".to_owned(),
            address: "[2001:db8:0:0:0:0:0:1]:54321".to_owned(),
            action: "reschedule".to_owned(),
            route: Some("reminders".to_owned()),
            id: Some("<".repeat(500)),
            outcome: Some("failed".to_owned()),
            ..AuditLine::default()
        };
        let now = Timestamp::from_millis(5_000);
        let page = AuditPage {
            frame: Frame::example("Audit"),
            rows: (0..LINES_SHOWN)
                .map(|_| AuditRow::new(&line, now))
                .collect(),
            unreadable: 3,
            changes_only: true,
            next: Some("a".repeat(40)),
        };
        let page = page.render().unwrap();
        assert!(page.len() <= 100 * 1024, "{}", page.len());
        assert!(page.contains("audit?changes=true&amp;after=aaaa"));
    }
}
