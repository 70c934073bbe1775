//! What all pages have in common: names, navigation, times and errors.

use super::Console;
use crate::admin::auth::Actor;
use crate::admin::problem::Problem;
use crate::model::Timestamp;
use crate::model::readable::{moment, relative};
use crate::store::query::FoundMessage;
use askama::Template;
use axum::Extension;
use axum::extract::FromRequestParts;
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};

/// The request of a page.
pub(super) struct Visit {
    pub(super) console: Console,
    pub(super) actor: Actor,
    root: String,
}

impl FromRequestParts<Console> for Visit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Problem> {
        let actor = Extension::<Actor>::from_request_parts(parts, console).await;
        let Ok(Extension(actor)) = actor else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "unknown visitor"));
        };
        Ok(Self {
            console: console.clone(),
            actor,
            root: root_of(parts.uri.path()),
        })
    }
}

/// The relative way from a page to the first one: `../` for `/routes/orders`.
pub(super) fn root_of(path: &str) -> String {
    let depth = path.matches('/').count().saturating_sub(1);
    match depth {
        0 => "./".to_owned(),
        _ => "../".repeat(depth),
    }
}

/// The part of a page around its content.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) section: &'static str,
    pub(super) root: String,
    pub(super) deployment: String,
    pub(super) environment: Option<String>,
    pub(super) colour: &'static str,
    pub(super) actor: String,
    pub(super) may_change: bool,
    pub(super) offers_login: bool,
    pub(super) may_log_out: bool,
}

#[cfg(test)]
impl Frame {
    /// For tests of a page.
    pub(super) fn example(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            section: "overview",
            root: "./".to_owned(),
            deployment: "prod".to_owned(),
            environment: Some("production".to_owned()),
            colour: "red",
            actor: "operator".to_owned(),
            may_change: true,
            offers_login: false,
            may_log_out: true,
        }
    }
}

impl Visit {
    pub(super) fn frame(&self, section: &'static str, title: impl Into<String>) -> Frame {
        let options = &self.console.options;
        Frame {
            title: title.into(),
            section,
            root: self.root.clone(),
            deployment: options.deployment.clone(),
            environment: options.environment.clone(),
            colour: options.colour,
            actor: self.actor.name.to_string(),
            may_change: self.actor.may_change,
            offers_login: self.actor.may_log_in,
            may_log_out: self.actor.may_log_out,
        }
    }

    /// The relative way to the page of a message.
    pub(super) fn way_to(&self, message: &FoundMessage) -> String {
        let FoundMessage {
            route,
            topic,
            partition,
            offset,
            ..
        } = message;
        let root = &self.root;
        format!("{root}routes/{route}/messages/{partition}/{offset}?topic={topic}")
    }

    /// Renders a page, or the page of an error.
    pub(super) fn show(&self, page: Result<impl Template, Problem>) -> Response {
        match page {
            Ok(page) => render(&page, StatusCode::OK),
            Err(problem) => self.show_problem(problem),
        }
    }

    fn show_problem(&self, problem: Problem) -> Response {
        let status = problem.status_code();
        let page = ErrorPage {
            frame: self.frame("", title(status)),
            detail: problem.detail,
        };
        render(&page, status)
    }

    fn refuse(&self, headers: &HeaderMap, problem: Problem) -> Response {
        match accepts_pages(headers) {
            true => self.show_problem(problem),
            false => problem.into_response(),
        }
    }
}

/// True for a browser that opens a page, false for a program.
pub(super) fn accepts_pages(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|kinds| kinds.contains("text/html"))
}

pub(super) async fn unknown_path(visit: Visit, headers: HeaderMap) -> Response {
    let problem = Problem::not_found("unknown path: see /v1/openapi.json");
    visit.refuse(&headers, problem)
}

pub(super) async fn wrong_method(visit: Visit, headers: HeaderMap) -> Response {
    let text = "this path takes another method. In the console: use the form of its page";
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, text);
    visit.refuse(&headers, problem)
}

/// The start of a long text. A page must stay small, and the API has the whole text.
pub(super) fn clipped(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn render(page: &impl Template, status: StatusCode) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    frame: Frame,
    detail: String,
}

/// The name of an error for people.
fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "Wrong input",
        StatusCode::FORBIDDEN => "Not allowed",
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::CONFLICT => "Not possible",
        StatusCode::UNPROCESSABLE_ENTITY => "Refused",
        StatusCode::SERVICE_UNAVAILABLE => "Not available now",
        StatusCode::GATEWAY_TIMEOUT => "No answer in time",
        _ => "This did not work",
    }
}

/// A time for people: UTC, and how far it is away. The script shows it in the chosen zone.
pub(super) struct Moment {
    pub(super) datetime: String,
    pub(super) text: String,
    pub(super) distance: String,
}

impl Moment {
    pub(super) fn new(instant: Timestamp, now: Timestamp) -> Self {
        Self {
            datetime: instant.to_rfc3339(),
            text: moment(instant),
            distance: relative(instant, now),
        }
    }

    /// `None`: at once.
    pub(super) fn of(due_ms: Option<i64>, now: Timestamp) -> Option<Self> {
        due_ms.map(|due| Self::new(Timestamp::from_millis(due), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_first_page_is_relative() {
        assert_eq!(root_of("/"), "./");
        assert_eq!(root_of("/workers"), "./");
        assert_eq!(root_of("/routes/orders"), "../");
        assert_eq!(root_of("/routes/orders/messages/3/7"), "../../../../");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clipped("grüß", 4), "grüß");
        assert_eq!(clipped("grüße", 4), "grüß…");
    }
}
