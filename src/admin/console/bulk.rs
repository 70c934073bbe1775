//! A change of many waiting messages: a preview, then the change itself.

use super::frame::{Frame, Visit};
use crate::admin::api::PathParams;
use crate::admin::bulk_changes::{BulkAction, BulkBody, BulkReport};
use crate::admin::problem::Problem;
use crate::limit::{BULK_LIMIT_DEFAULT, SEARCH_CALLS_MAX};
use crate::model::readable::{count, several};
use askama::Template;
use axum::extract::Form;
use axum::extract::rejection::FormRejection;
use axum::response::Response;
use serde::Deserialize;

/// The form. An empty value is an absent one.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct BulkForm {
    due_from: String,
    due_to: String,
    id: String,
    key: String,
    header: String,
    topic: String,
    partition: String,
    action: String,
    at: String,
    limit: String,
    rate: String,
    after: String,
    dry_run: Option<bool>,
}

impl BulkForm {
    /// The fields that the next form sends again.
    fn pairs(&self) -> [(&'static str, &str); 11] {
        [
            ("due_from", self.due_from.as_str()),
            ("due_to", &self.due_to),
            ("id", &self.id),
            ("key", &self.key),
            ("header", &self.header),
            ("topic", &self.topic),
            ("partition", &self.partition),
            ("action", &self.action),
            ("at", &self.at),
            ("limit", &self.limit),
            ("rate", &self.rate),
        ]
    }

    /// The action. A purge has no condition.
    fn action(&self) -> Result<BulkAction, Problem> {
        let conditions = &self.pairs()[..7];
        match self.action.as_str() {
            "cancel" if conditions.iter().all(|(_, value)| value.is_empty()) => {
                Ok(BulkAction::Purge)
            }
            "cancel" => Ok(BulkAction::Cancel),
            "reschedule" => Ok(BulkAction::Reschedule),
            "fire" => Ok(BulkAction::Fire),
            _ => Err(Problem::bad_request("action: choose one")),
        }
    }

    fn body(&self) -> Result<BulkBody, Problem> {
        fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, Problem> {
            let wrong = |_| Problem::bad_request(format!("{name}: write a number"));
            match text {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(wrong),
            }
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        // Only a reschedule takes a due time, and the form always has the field.
        let at = given(&self.at).filter(|_| self.action == "reschedule");
        Ok(BulkBody {
            due_from: given(&self.due_from),
            due_to: given(&self.due_to),
            id: given(&self.id),
            key: given(&self.key),
            header: given(&self.header),
            topic: given(&self.topic),
            partition: number("partition", &self.partition)?,
            at,
            delay: None,
            dry_run: self.dry_run,
            limit: number("limit", &self.limit)?,
            rate: number("rate", &self.rate)?,
            after: given(&self.after),
        })
    }
}

#[derive(Template)]
#[template(path = "bulk.html")]
struct BulkPage {
    frame: Frame,
    route: String,
    form: BulkForm,
    text: String,
    notes: Vec<String>,
    /// The text of the button that changes messages. `None`: there is nothing to change.
    button: Option<String>,
    /// The place from which the next call starts.
    after: String,
}

pub(super) async fn change(
    visit: Visit,
    PathParams(route): PathParams<String>,
    form: Result<Form<BulkForm>, FormRejection>,
) -> Response {
    let page = async {
        let wrong = |error: FormRejection| Problem::bad_request(error.body_text());
        let Form(form) = form.map_err(wrong)?;
        let report = answer(&visit, &route, &form).await?;
        Ok(page(&visit, route, form, &report))
    };
    visit.show(page.await)
}

/// One call of the API. A dry run continues, so that a reader sees the whole number.
async fn answer(visit: &Visit, route: &str, form: &BulkForm) -> Result<BulkReport, Problem> {
    let (action, mut body) = (form.action()?, form.body()?);
    let limit = body.limit.unwrap_or(BULK_LIMIT_DEFAULT) as u64;
    let api = &visit.console.changes;
    let mut total = BulkReport::default();
    for _ in 0..SEARCH_CALLS_MAX {
        let report = api.change_many(visit.actor, route, action, body.clone());
        let report = report.await?;
        let is_last = !report.dry_run || !report.more;
        body.after.clone_from(&report.after);
        total = total.plus(report);
        if is_last || total.found >= limit {
            break;
        }
    }
    Ok(total)
}

fn page(visit: &Visit, route: String, form: BulkForm, report: &BulkReport) -> BulkPage {
    let verb = match report.action.as_str() {
        "cancel" => "cancelled",
        "fire" => "delivered now",
        _ => "rescheduled",
    };
    let text = match report.dry_run {
        true => format!(
            "{} would be {verb}. Nothing was changed.",
            several(report.found, "message")
        ),
        false => format!("Records written: {}.", count(report.changed)),
    };
    // After a dry run the change starts where the dry run did.
    let (button, after) = match (report.dry_run, report.after.clone()) {
        (true, _) if report.found > 0 => (Some("Change them"), form.after.clone()),
        (false, Some(after)) if report.more => (Some("Continue"), after),
        _ => (None, String::new()),
    };
    BulkPage {
        frame: visit.frame("overview", format!("Change messages of {route}")),
        notes: report.notes(),
        button: button.map(str::to_owned),
        route,
        form,
        text,
        after,
    }
}
