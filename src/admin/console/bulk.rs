//! A change of many waiting messages: a preview, then the change itself.

use super::frame::{Frame, Visit};
use crate::admin::api::PathParams;
use crate::admin::bulk_changes::{BulkAction, BulkBody, BulkReport};
use crate::admin::problem::Problem;
use crate::limit::{BULK_CALL_TIMEOUT, BULK_LIMIT_DEFAULT};
use crate::model::readable::several;
use askama::Template;
use axum::extract::Form;
use axum::extract::rejection::FormRejection;
use axum::response::Response;
use serde::Deserialize;
use tokio::time::Instant;
use url::form_urlencoded::Serializer;

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
    /// Messages that earlier calls have changed.
    done: String,
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

    /// The fields that are shown, with their names for people.
    fn facts(&self) -> Vec<(&'static str, &str)> {
        let facts = [
            ("Due from", self.due_from.as_str()),
            ("Due to", &self.due_to),
            ("Id", &self.id),
            ("Key", &self.key),
            ("Header", &self.header),
            ("Topic", &self.topic),
            ("Partition", &self.partition),
            ("New due time", &self.at),
            ("Per second", &self.rate),
        ];
        let facts = facts.into_iter();
        facts.filter(|(_, value)| !value.is_empty()).collect()
    }

    fn limit(&self) -> u64 {
        self.limit.parse().unwrap_or(BULK_LIMIT_DEFAULT as u64)
    }

    fn done(&self) -> u64 {
        self.done.parse().unwrap_or_default()
    }

    /// The form after a call. Its limit is the previewed number, unless more may follow: then it is the limit
    /// of the preview. After a change it is the rest.
    fn next(&self, report: &BulkReport) -> Option<Self> {
        let (left, after) = match report.dry_run {
            // The change starts where the dry run did.
            true if report.more => (self.limit(), self.after.clone()),
            true => (report.found, self.after.clone()),
            false if report.more => {
                let after = report.after.clone().unwrap_or_default();
                (self.limit().saturating_sub(report.changed), after)
            }
            false => return None,
        };
        let form = Self {
            limit: left.to_string(),
            after,
            done: (self.done() + report.changed).to_string(),
            ..self.clone()
        };
        let has_some = !report.dry_run || report.found > 0;
        (left > 0 && has_some).then_some(form)
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
    is_preview: bool,
    /// The button that changes messages.
    next: Option<Next>,
    /// The conditions, for the way back to the search.
    search: String,
}

struct Next {
    form: BulkForm,
    button: String,
    /// The question that the browser asks before the change. `None`: the script continues by itself.
    question: Option<String>,
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

/// Calls the API until the limit, the end or a timeout is reached, so that few pages show a large change.
async fn answer(visit: &Visit, route: &str, form: &BulkForm) -> Result<BulkReport, Problem> {
    let (action, mut body) = (form.action()?, form.body()?);
    let limit = body.limit.unwrap_or(BULK_LIMIT_DEFAULT);
    let api = &visit.console.changes;
    let end = Instant::now() + BULK_CALL_TIMEOUT;
    let mut total = BulkReport::default();
    loop {
        let report = api.change_many(visit.actor.clone(), route, action, body.clone());
        let report = report.await.map_err(|problem| match total.changed {
            0 => problem,
            changed => {
                let text = format!("{} (before this: {changed} changed)", problem.detail);
                Problem::new(problem.status_code(), text)
            }
        })?;
        total = total.plus(report);
        let used = match total.dry_run {
            true => total.found,
            false => total.changed,
        };
        let left = limit.saturating_sub(used as usize);
        if !total.more || left == 0 || Instant::now() >= end {
            return Ok(total);
        }
        body.after.clone_from(&total.after);
        body.limit = Some(left);
    }
}

fn page(
    visit: &Visit,
    route: String,
    form: BulkForm,
    report: &BulkReport,
) -> Result<BulkPage, Problem> {
    let words = Words::of(form.action()?);
    let title = format!("{} of {route}{}", words.title, words.title_end);
    let next = form.next(report);
    let changed = several(form.done() + report.changed, "message");
    let text = match (report.dry_run, report.more) {
        (true, false) => format!("{} {}.", several(report.found, "message"), words.would),
        (true, true) => {
            let found = several(report.found, "message");
            format!("At least {found} {}. There may be more.", words.would)
        }
        (false, _) if next.is_some() => format!("{} {changed} so far.", words.done),
        (false, _) => format!("{} {changed}.", words.done),
    };
    let mut notes = report.notes();
    if !report.dry_run && report.more && next.is_none() {
        let text = "This was the number of the preview. The search shows if more is left.";
        notes.push(text.to_owned());
    }
    let next = next.map(|next| {
        let (messages, end) = (several(next.limit(), "message"), words.button_end);
        let up_to = if report.more { "up to " } else { "" };
        let asked = format!("{} {up_to}{messages}{end}", words.button);
        Next {
            button: match report.dry_run {
                true => asked.clone(),
                false => "Continue".to_owned(),
            },
            question: (report.dry_run).then(|| format!("{asked}? {}", words.consequence)),
            form: next,
        }
    });
    let mut search = Serializer::new(String::new());
    let conditions = &form.pairs()[..7];
    for (name, value) in conditions.iter().filter(|(_, value)| !value.is_empty()) {
        search.append_pair(name, value);
    }
    Ok(BulkPage {
        frame: visit.frame("overview", title),
        notes,
        is_preview: report.dry_run,
        search: search.finish(),
        next,
        route,
        form,
        text,
    })
}

/// The texts about an action.
struct Words {
    title: &'static str,
    title_end: &'static str,
    would: &'static str,
    done: &'static str,
    button: &'static str,
    button_end: &'static str,
    consequence: &'static str,
}

impl Words {
    fn of(action: BulkAction) -> Self {
        let cancel = Self {
            title: "Cancel messages",
            title_end: "",
            would: "would be cancelled",
            done: "Cancel requested for",
            button: "Cancel",
            button_end: "",
            consequence: "They will not be delivered.",
        };
        match action {
            BulkAction::Cancel => cancel,
            BulkAction::Purge => Self {
                title: "Cancel ALL waiting messages",
                consequence: "These are ALL waiting messages of the route. They will not be delivered.",
                ..cancel
            },
            BulkAction::Reschedule => Self {
                title: "Reschedule messages",
                would: "would get the new due time",
                done: "New due time requested for",
                button: "Reschedule",
                consequence: "They get the new due time.",
                ..cancel
            },
            BulkAction::Fire => Self {
                title: "Deliver messages",
                title_end: " now",
                would: "would be delivered now",
                done: "Delivery now requested for",
                button: "Deliver",
                button_end: " now",
                consequence: "They do not wait for their due time.",
            },
        }
    }
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

    fn next(form: &BulkForm, report: &BulkReport) -> Option<(String, String)> {
        let next = form.next(report);
        next.map(|form| (form.limit, form.after))
    }

    fn of(limit: &str, after: &str) -> Option<(String, String)> {
        Some((limit.to_owned(), after.to_owned()))
    }

    #[test]
    fn a_change_is_bounded_by_its_preview() {
        let report = |found, more| BulkReport {
            found,
            more,
            after: more.then(|| "b".to_owned()),
            ..BulkReport::new("orders", Action::Cancel, true)
        };
        let found = next(&form("1000", "a"), &report(7, false));
        assert_eq!(found, of("7", "a"));
        assert_eq!(next(&form("1000", ""), &report(0, false)), None);
        // The preview could not count all of them.
        let found = next(&form("1000000", "a"), &report(20_000, true));
        assert_eq!(found, of("1000000", "a"));
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
        assert_eq!(found, of("6", "b"));
        // It has ended on its first page.
        assert_eq!(next(&form, &report(4, true, None)), of("6", ""));
        assert_eq!(next(&form, &report(10, true, Some("b"))), None);
        assert_eq!(next(&form, &report(4, false, None)), None);
    }
}
