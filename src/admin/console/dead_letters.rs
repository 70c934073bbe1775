//! The dead letters of a route by code, and the form that redrives them.

use super::frame::{Frame, Moment, Visit};
use crate::admin::api::{Params, PathParams};
use crate::admin::dead_letters::{
    DeadLetterGroup, DeadLetterSample, DeadLettersParams, DeadLettersReport,
};
use crate::admin::problem::Problem;
use crate::model::Timestamp;
use crate::model::readable::{count, several};
use askama::Template;
use axum::extract::Form;
use axum::extract::rejection::FormRejection;
use axum::response::Response;
use url::form_urlencoded::Serializer;

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    route: String,
    filter: Filter,
    topic: String,
    groups: Vec<Group>,
    samples: Vec<Sample>,
    scanned: String,
    /// The parameters of the next page.
    next: Option<String>,
    /// The outcome of a redrive.
    outcome: Option<String>,
    may_redrive: bool,
    /// The place from which the form continues.
    after: String,
}

/// The values of the form. Empty: no condition.
#[derive(Clone, Default)]
struct Filter {
    code: String,
    key: String,
    header: String,
    origin: String,
    from: String,
    to: String,
}

struct Group {
    code: String,
    count: String,
    redrivable: String,
    by_reference: u64,
    refused: u64,
}

struct Sample {
    code: String,
    dead: Option<Moment>,
    sample: DeadLetterSample,
}

impl Filter {
    fn new(params: &DeadLettersParams) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            code: text(&params.code),
            key: text(&params.key),
            header: text(&params.header),
            origin: text(&params.origin),
            from: text(&params.from),
            to: text(&params.to),
        }
    }

    fn pairs(&self) -> [(&'static str, &str); 6] {
        [
            ("code", &self.code),
            ("key", &self.key),
            ("header", &self.header),
            ("origin", &self.origin),
            ("from", &self.from),
            ("to", &self.to),
        ]
    }

    fn line(&self, after: &str) -> String {
        let mut line = Serializer::new(String::new());
        for (name, value) in self.pairs().into_iter().chain([("after", after)]) {
            if !value.is_empty() {
                line.append_pair(name, value);
            }
        }
        line.finish()
    }
}

pub(super) async fn list(
    visit: Visit,
    PathParams(route): PathParams<String>,
    params: Result<Params<DeadLettersParams>, Problem>,
) -> Response {
    let page = async {
        let Params(params) = params?;
        let filter = Filter::new(&params);
        let after = params.after.clone().unwrap_or_default();
        let dead_letters = &visit.console.dead_letters;
        let report = dead_letters.list(visit.actor, route, params).await?;
        Ok(page(&visit, (filter, after), report))
    };
    visit.show(page.await)
}

pub(super) async fn redrive(
    visit: Visit,
    PathParams(route): PathParams<String>,
    params: Result<Form<DeadLettersParams>, FormRejection>,
) -> Response {
    let page = async {
        let wrong = |error: FormRejection| Problem::bad_request(error.body_text());
        let Form(params) = params.map_err(wrong)?;
        let filter = Filter::new(&params);
        let mut after = params.after.clone().unwrap_or_default();
        let dead_letters = &visit.console.dead_letters;
        let report = dead_letters.redrive(visit.actor, route, params).await?;
        let has_sent = report.redrive.as_ref().is_some_and(|it| !it.dry_run);
        if has_sent {
            after = report.after.clone().unwrap_or_default();
        }
        Ok(page(&visit, (filter, after), report))
    };
    visit.show(page.await)
}

fn page(
    visit: &Visit,
    (filter, start): (Filter, String),
    report: DeadLettersReport,
) -> DeadLettersPage {
    let now = Timestamp::from_millis(report.at_ms);
    let outcome = report.redrive.as_ref().map(|redrive| {
        let messages = several(redrive.redriven, "message");
        let more = if report.more { " More may follow." } else { "" };
        match redrive.dry_run {
            true => format!("{messages} would be sent again. Nothing was sent.{more}"),
            false => format!("Sent again: {}.{more}", count(redrive.redriven)),
        }
    });
    let is_list = report.redrive.is_none();
    let after = report.after.filter(|_| report.more && is_list);
    let samples = report.codes.iter().flat_map(|group| {
        group.samples.iter().map(|sample| Sample {
            code: group.code.clone(),
            dead: Moment::of(sample.dead_ms, now),
            sample: sample.clone(),
        })
    });
    DeadLettersPage {
        frame: visit.frame("overview", format!("Dead letters of {}", report.route)),
        samples: samples.collect(),
        groups: report.codes.iter().map(Group::new).collect(),
        scanned: count(report.scanned),
        next: after.map(|after| filter.line(&after)),
        may_redrive: visit.actor.may_change(),
        after: start,
        route: report.route,
        topic: report.topic,
        outcome,
        filter,
    }
}

impl Group {
    fn new(group: &DeadLetterGroup) -> Self {
        Self {
            code: group.code.clone(),
            count: count(group.count),
            redrivable: count(group.redrivable()),
            by_reference: group.by_reference,
            refused: group.refused,
        }
    }
}
