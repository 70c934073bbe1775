//! The dead letters of a route by code, and the form that redrives them.

use super::frame::{Frame, Moment, Visit};
use crate::admin::api::{Params, PathParams};
use crate::admin::dead_letters::{
    DeadLetterGroup, DeadLetterSample, DeadLettersParams, DeadLettersReport, LIMIT_DEFAULT,
    RATE_DEFAULT,
};
use crate::admin::problem::Problem;
use crate::model::readable::{count, several};
use crate::model::{DeadLetterReason, Timestamp};
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
    limit: u64,
    rate: u32,
    /// True if the script sends the form again, because the redrive has not reached its limit.
    continues: bool,
    codes: Vec<&'static str>,
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
        let form = RedriveForm::new(&params);
        let dead_letters = &visit.console.dead_letters;
        let report = dead_letters
            .list(visit.actor.clone(), route, params)
            .await?;
        Ok(page(&visit, form, report))
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
        let form = RedriveForm::new(&params);
        let dead_letters = &visit.console.dead_letters;
        let report = dead_letters
            .redrive(visit.actor.clone(), route, params)
            .await?;
        Ok(page(&visit, form.after(&report), report))
    };
    visit.show(page.await)
}

/// The form that redrives.
struct RedriveForm {
    filter: Filter,
    after: String,
    limit: u64,
    rate: u32,
    continues: bool,
}

impl RedriveForm {
    fn new(params: &DeadLettersParams) -> Self {
        Self {
            filter: Filter::new(params),
            after: params.after.clone().unwrap_or_default(),
            limit: params.limit.unwrap_or(LIMIT_DEFAULT),
            rate: params.rate.unwrap_or(RATE_DEFAULT),
            continues: false,
        }
    }

    /// The form after a redrive. A redrive that has ended before its limit continues with the rest.
    fn after(self, report: &DeadLettersReport) -> Self {
        let sent = report.redrive.as_ref().filter(|redrive| !redrive.dry_run);
        let Some(sent) = sent else {
            return self;
        };
        let left = self.limit.saturating_sub(sent.redriven);
        let continues = report.more && left > 0;
        Self {
            after: report.after.clone().unwrap_or_default(),
            limit: if continues { left } else { self.limit },
            continues,
            ..self
        }
    }
}

fn page(visit: &Visit, form: RedriveForm, report: DeadLettersReport) -> DeadLettersPage {
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
        next: after.map(|after| form.filter.line(&after)),
        may_redrive: visit.actor.may_change,
        after: form.after,
        limit: form.limit,
        rate: form.rate,
        continues: form.continues,
        codes: DeadLetterReason::ALL
            .iter()
            .map(|reason| reason.code())
            .collect(),
        route: report.route,
        topic: report.topic,
        outcome,
        filter: form.filter,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::dead_letters::RedriveReport;

    #[test]
    fn a_redrive_continues_until_its_limit() {
        let params = DeadLettersParams {
            limit: Some(10),
            ..DeadLettersParams::default()
        };
        let after = |redriven, more, dry_run| {
            let report = DeadLettersReport {
                more,
                after: more.then(|| "0-7".to_owned()),
                redrive: Some(RedriveReport { dry_run, redriven }),
                ..DeadLettersReport::default()
            };
            let form = RedriveForm::new(&params).after(&report);
            (form.continues, form.limit, form.after)
        };
        assert_eq!(after(4, true, false), (true, 6, "0-7".to_owned()));
        assert_eq!(after(10, true, false), (false, 10, "0-7".to_owned()));
        assert_eq!(after(4, false, false), (false, 10, String::new()));
        assert_eq!(after(4, true, true), (false, 10, String::new()));
    }
}
