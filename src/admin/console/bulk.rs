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

    /// The button after a call, and the form that it sends. Its limit is the previewed number, or what is
    /// left of that.
    fn next(&self, report: &BulkReport) -> Option<(&'static str, Self)> {
        let (button, left, after) = match report.dry_run {
            // The change starts where the dry run did.
            true => ("Change them", report.found, self.after.clone()),
            false if report.more => {
                let limit = self.limit.parse().unwrap_or(BULK_LIMIT_DEFAULT as u64);
                let after = report.after.clone().unwrap_or_default();
                ("Continue", limit.saturating_sub(report.changed), after)
            }
            false => return None,
        };
        let form = Self {
            limit: left.to_string(),
            after,
            ..self.clone()
        };
        (left > 0).then_some((button, form))
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
    /// The question that the browser asks before the change.
    question: String,
    /// The text of the button that changes messages. `None`: there is nothing to change.
    button: Option<&'static str>,
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
        page(&visit, route, form, &report)
    };
    visit.show(page.await)
}

/// One call of the API. A dry run continues, so that a reader sees the whole number.
async fn answer(visit: &Visit, route: &str, form: &BulkForm) -> Result<BulkReport, Problem> {
    let (action, mut body) = (form.action()?, form.body()?);
    let limit = body.limit.unwrap_or(BULK_LIMIT_DEFAULT);
    let api = &visit.console.changes;
    let mut total = BulkReport::default();
    for _ in 0..SEARCH_CALLS_MAX {
        let report = api.change_many(visit.actor, route, action, body.clone());
        let report = report.await?;
        let is_last = !report.dry_run || !report.more;
        body.after.clone_from(&report.after);
        total = total.plus(report);
        let left = limit.saturating_sub(total.found as usize);
        if is_last || left == 0 {
            break;
        }
        body.limit = Some(left);
    }
    Ok(total)
}

fn page(
    visit: &Visit,
    route: String,
    form: BulkForm,
    report: &BulkReport,
) -> Result<BulkPage, Problem> {
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
    let is_purge = form.action()? == BulkAction::Purge;
    let (title, question) = match is_purge {
        true => (
            format!("Cancel ALL waiting messages of {route}"),
            format!("Cancel ALL waiting messages of {route}?"),
        ),
        false => (
            format!("Change messages of {route}"),
            "Change all messages that meet these conditions?".to_owned(),
        ),
    };
    let next = form.next(report);
    let (button, form) = match next {
        Some((button, next)) => (Some(button), next),
        None => (None, form),
    };
    Ok(BulkPage {
        frame: visit.frame("overview", title),
        notes: report.notes(),
        question,
        button,
        route,
        form,
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::message_change::Action;

    fn form(limit: &str, after: &str) -> BulkForm {
        BulkForm {
            limit: limit.to_owned(),
            after: after.to_owned(),
            ..BulkForm::default()
        }
    }

    fn next(form: &BulkForm, report: &BulkReport) -> Option<(&'static str, String, String)> {
        let next = form.next(report);
        next.map(|(button, form)| (button, form.limit, form.after))
    }

    fn of(
        button: &'static str,
        limit: &str,
        after: &str,
    ) -> Option<(&'static str, String, String)> {
        Some((button, limit.to_owned(), after.to_owned()))
    }

    #[test]
    fn a_change_is_bounded_by_its_preview() {
        let report = |found| BulkReport {
            found,
            more: true,
            after: Some("b".to_owned()),
            ..BulkReport::new("orders", Action::Cancel, true)
        };
        let found = next(&form("1000", "a"), &report(7));
        assert_eq!(found, of("Change them", "7", "a"));
        assert_eq!(next(&form("1000", ""), &report(0)), None);
    }

    #[test]
    fn a_change_continues_with_what_is_left_of_its_limit() {
        let report = |changed, more, after: Option<&str>| BulkReport {
            changed,
            more,
            after: after.map(str::to_owned),
            ..BulkReport::new("orders", Action::Cancel, false)
        };
        let form = form("10", "a");
        let found = next(&form, &report(4, true, Some("b")));
        assert_eq!(found, of("Continue", "6", "b"));
        // It has ended on its first page.
        assert_eq!(next(&form, &report(4, true, None)), of("Continue", "6", ""));
        assert_eq!(next(&form, &report(10, true, Some("b"))), None);
        assert_eq!(next(&form, &report(4, false, None)), None);
    }
}
