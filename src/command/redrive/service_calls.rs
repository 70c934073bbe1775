//! A redrive by a running service: call after call, each for some seconds.

use super::report;
use crate::admin::dead_letters::{DeadLettersReport, DeadLettersRequest};
use crate::command::pending::Server;
use crate::model::Timestamp;
use anyhow::Result;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use url::form_urlencoded::Serializer;

/// Adds the answers to the report until the end of the topic, or until the limit is reached.
pub(super) async fn redrive(
    server: &Server,
    request: &DeadLettersRequest,
    report: &mut DeadLettersReport,
    on_progress: &mut dyn FnMut(&DeadLettersReport),
) -> Result<()> {
    let limit = request.redrive.map_or(0, |redrive| redrive.limit);
    loop {
        let left = limit.saturating_sub(redriven(report));
        let path = path_of(request, left, report.after.as_deref());
        let (_, answer) = server.post(&path, &Value::Null).await?;
        report::add(report, answer);
        on_progress(report);
        if !report.more || redriven(report) >= limit {
            return Ok(());
        }
    }
}

fn redriven(report: &DeadLettersReport) -> u64 {
    let redrive = report.redrive.as_ref();
    redrive.map_or(0, |redrive| redrive.redriven)
}

/// The path and the parameters of a call that continues at `after`.
fn path_of(request: &DeadLettersRequest, limit: u64, after: Option<&str>) -> String {
    let filter = &request.filter;
    let time = |time: Option<Timestamp>| time.map(|time| time.as_millis().to_string());
    let header = filter.header.as_ref();
    let redrive = request.redrive;
    let parameters = [
        ("code", filter.code.clone()),
        ("key", filter.key.clone()),
        (
            "header",
            header.map(|(name, value)| format!("{name}:{value}")),
        ),
        ("origin", filter.origin.clone()),
        ("from", time(filter.from)),
        ("to", time(filter.to)),
        ("after", after.map(str::to_owned)),
        (
            "dry_run",
            redrive.map(|redrive| redrive.dry_run.to_string()),
        ),
        ("limit", Some(limit.to_string())),
        ("rate", redrive.map(|redrive| redrive.rate.to_string())),
    ];
    let given = parameters.into_iter();
    let given = given.filter_map(|(name, value)| Some((name, value?)));
    let line = Serializer::new(String::new()).extend_pairs(given).finish();
    let route = utf8_percent_encode(&request.route, NON_ALPHANUMERIC);
    format!("/v1/routes/{route}/dead-letters:redrive?{line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::dead_letters::{DeadLetterFilter, RedriveOptions};

    #[test]
    fn a_call_has_all_conditions_and_what_is_left_of_the_limit() {
        let request = DeadLettersRequest {
            route: "or/ders".to_owned(),
            filter: DeadLetterFilter {
                code: Some("timed_out".to_owned()),
                key: Some("a&b".to_owned()),
                header: Some(("x".to_owned(), "1 2".to_owned())),
                origin: Some("d/r/t/0/1".to_owned()),
                from: Some(Timestamp::from_millis(1)),
                to: Some(Timestamp::from_millis(2)),
            },
            after: None,
            redrive: Some(RedriveOptions {
                dry_run: false,
                limit: 9,
                rate: 7,
            }),
        };
        assert_eq!(
            path_of(&request, 4, Some("0-17")),
            "/v1/routes/or%2Fders/dead-letters:redrive?code=timed_out&key=a%26b&header=x%3A1+2&origin=d%2Fr%2Ft%2F0%2F1\
             &from=1&to=2&after=0-17&dry_run=false&limit=4&rate=7"
        );
    }
}
