//! The schedules of a recurring route, and one of them with its changes.

use super::frame::{Frame, Moment, Visit};
use super::messages::cut;
use crate::admin::api::{Params, PathParams};
use crate::admin::problem::Problem;
use crate::admin::schedules::change_api::{self, ScheduleChanges};
use crate::admin::schedules::show::{ScheduleParams, ScheduleReport};
use crate::admin::schedules::{
    PreviewTime, Schedule, ScheduleState, SchedulesParams, SchedulesReport,
};
use crate::model::Timestamp;
use crate::model::readable::size;
use askama::Template;
use axum::Json;
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

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    frame: Frame,
    report: ScheduleReport,
    written: Option<Moment>,
    times: Vec<(Moment, PreviewTime)>,
    size: String,
    is_cut: bool,
    may_change: bool,
}

impl SchedulePage {
    fn new(frame: Frame, mut report: ScheduleReport, may_change: bool) -> Self {
        let now = Timestamp::from_millis(report.at_ms);
        let times = report.preview.iter().flat_map(|preview| &preview.next);
        let times = times.map(|time| {
            let due = Timestamp::from_millis(time.due_ms);
            (Moment::new(due, now), time.clone())
        });
        Self {
            frame,
            written: Moment::of(report.timestamp_ms, now),
            times: times.collect(),
            size: size(report.payload_bytes),
            is_cut: cut(&mut report.headers, &mut report.payload),
            // A wrong definition can only be replaced by its producer.
            may_change: may_change && report.schedule.state != ScheduleState::Wrong,
            report,
        }
    }
}

pub(super) async fn show(
    visit: Visit,
    PathParams((route, id)): PathParams<(String, String)>,
    params: Result<Params<ScheduleParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let name = params.name(route, id);
        let schedules = &visit.console.schedules;
        let report = schedules.report_of(&visit.actor, &name).await?;
        let frame = visit.frame("overview", format!("Schedule {}", name.id));
        Ok(SchedulePage::new(frame, report, visit.actor.may_change))
    };
    visit.show(page.await)
}

#[derive(Template)]
#[template(path = "schedule_changed.html")]
struct ScheduleChangedPage {
    frame: Frame,
    route: String,
    id: String,
    topic: String,
    partition: i32,
    text: &'static str,
}

pub(super) async fn change(
    visit: Visit,
    PathParams((route, id, action)): PathParams<(String, String, String)>,
    params: Result<Params<ScheduleParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let name = params.name(route.clone(), id.clone());
        let console = &visit.console;
        let (schedules, changes) = (console.schedules.clone(), console.changes.changes.clone());
        let (api, actor) = (
            ScheduleChanges::new(schedules, changes),
            visit.actor.clone(),
        );
        let (changed, text) = match action.as_str() {
            "pause" => (
                change_api::pause(api, actor, name).await,
                "The schedule is paused.",
            ),
            "resume" => (
                change_api::resume(api, actor, name).await,
                "The schedule is resumed.",
            ),
            "fire" => (
                change_api::fire(api, actor, name).await,
                "The schedule is about to be delivered once more.",
            ),
            _ => return Err(Problem::not_found("no such action")),
        };
        let Json(receipt) = changed?;
        Ok(ScheduleChangedPage {
            frame: visit.frame("overview", format!("Schedule {id}")),
            route,
            id,
            topic: receipt.topic,
            partition: receipt.partition,
            text,
        })
    };
    visit.show(page.await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::schedules::DefinitionRecord;
    use crate::model::Watermark;
    use crate::model::header::block_of_lines;

    #[test]
    fn a_page_marks_what_daylight_saving_moves() {
        let headers = [
            "postdate-cron: 30 2 * * *",
            "postdate-zone: America/New_York",
            "note: <b>",
        ];
        let record = DefinitionRecord {
            timestamp: Some(Timestamp::from_millis(1_804_939_200_000)),
            payload: b"secret".to_vec(),
            headers: block_of_lines(&headers),
            read_to: Watermark(1),
        };
        let schedule = Schedule {
            id: "invoices".to_owned(),
            topic: "schedules".to_owned(),
            partition: 3,
            offset: 7,
            state: ScheduleState::Active,
            schedule: None,
            next_ms: None,
            next: None,
            error: None,
            record: Some(Box::new(record)),
        };
        let report = SchedulesReport {
            // 2027-03-13T12:00:00Z, the day before the clock goes forward.
            at_ms: 1_804_939_200_000,
            ..SchedulesReport::default()
        };
        let report = ScheduleReport::new(&report, schedule).unwrap();
        let page = |may_change| {
            let page = SchedulePage::new(Frame::example("Schedule"), report.clone(), may_change);
            page.render().unwrap()
        };
        let reader = page(false);
        assert_eq!(reader.matches("the clock skips").count(), 1, "{reader}");
        for text in [
            "at 02:30, America/New_York",
            "2027-03-15T02:30:00-04:00[America/New_York]",
            "2027-03-15T06:30:00Z",
            "&#60;b&#62;",
        ] {
            assert!(reader.contains(text), "{text}: {reader}");
        }
        assert!(
            !reader.contains("secret") && !reader.contains("data-confirm"),
            "{reader}"
        );
        assert!(page(true).contains("schedules/invoices/fire?topic=schedules&amp;partition=3"));
    }
}
