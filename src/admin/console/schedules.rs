//! The schedules of a recurring route.

use super::frame::{Frame, Moment, Visit};
use crate::admin::api::{Params, PathParams};
use crate::admin::problem::Problem;
use crate::admin::schedules::{Schedule, ScheduleState, SchedulesParams, SchedulesReport};
use crate::model::Timestamp;
use askama::Template;
use axum::response::Response;
use url::form_urlencoded::Serializer;

#[derive(Template)]
#[template(path = "schedules.html")]
struct SchedulesPage {
    frame: Frame,
    route: String,
    id: String,
    rows: Vec<(Schedule, Option<Moment>)>,
    /// The parameters of the next page.
    next: Option<String>,
}

pub(super) async fn list(
    visit: Visit,
    PathParams(route): PathParams<String>,
    params: Result<Params<SchedulesParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let id = params.id.clone().unwrap_or_default();
        let report = visit.console.schedules.list(route, params).await?;
        Ok(page(&visit, id, report))
    };
    visit.show(page.await)
}

fn page(visit: &Visit, id: String, report: SchedulesReport) -> SchedulesPage {
    let now = Timestamp::from_millis(report.at_ms);
    let rows = report.schedules.into_iter().map(|schedule| {
        let next = Moment::of(schedule.next_ms, now);
        (schedule, next)
    });
    let next = report.after.map(|after| {
        let mut query = Serializer::new(String::new());
        query.append_pair("after", &after).finish()
    });
    SchedulesPage {
        frame: visit.frame("overview", format!("Schedules of {}", report.route)),
        rows: rows.collect(),
        route: report.route,
        next,
        id,
    }
}
