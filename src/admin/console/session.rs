//! The login page: a token becomes a cookie that proves it. Without this cookie, a browser is sent here.

use super::frame::{accepts_pages, render, root_of};
use super::{SCRIPT, STYLE, asset};
use crate::admin::auth::{Auth, COOKIE_NAME};
use askama::Template;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, Query, Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use url::form_urlencoded::Serializer;

/// Bytes of the login form.
const LOGIN_BYTES_MAX: usize = 4096;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    is_wrong: bool,
    /// The page that the visitor asked for, relative to the login page.
    to: String,
}

#[derive(Clone)]
struct Session {
    auth: Auth,
    /// Ends the cookie of an endpoint with TLS.
    secure: &'static str,
}

/// The pages that need no login.
pub(in crate::admin) fn login_router(auth: Auth, has_tls: bool) -> Router {
    let secure = if has_tls { "; Secure" } else { "" };
    Router::new()
        .route("/login", get(show).post(login))
        .route("/logout", post(logout))
        .route("/console.css", get(|| async { asset("text/css", STYLE) }))
        .route(
            "/console.js",
            get(|| async { asset("text/javascript", SCRIPT) }),
        )
        .with_state(Session {
            auth: auth.clone(),
            secure,
        })
        .layer(DefaultBodyLimit::max(LOGIN_BYTES_MAX))
        .layer(from_fn(move |request: Request, next: Next| {
            let checked = auth.check_sender(&request);
            async move {
                match checked {
                    Ok(()) => next.run(request).await,
                    Err(problem) => problem.into_response(),
                }
            }
        }))
}

/// A redirect to the login page, for a browser without a valid cookie. A form is lost.
pub(in crate::admin) fn to_login(request: &Request) -> Option<Response> {
    if !accepts_pages(request.headers()) {
        return None;
    }
    let mut place = root_of(request.uri().path()) + "login";
    let wanted = request.uri().path_and_query();
    let wanted = wanted.map_or("", |wanted| wanted.as_str().trim_start_matches('/'));
    if request.method() == Method::GET && !wanted.is_empty() {
        let mut query = Serializer::new(String::new());
        query.append_pair("to", wanted);
        place = format!("{place}?{}", query.finish());
    }
    Some(redirect(&place))
}

fn redirect(place: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoginForm {
    token: String,
    to: String,
}

async fn show(Query(LoginForm { to, .. }): Query<LoginForm>) -> Response {
    let is_wrong = false;
    render(&LoginPage { is_wrong, to }, StatusCode::OK)
}

/// The cookie has no path, so it belongs to the folder of the login page, behind any prefix.
async fn login(State(session): State<Session>, Form(form): Form<LoginForm>) -> Response {
    let LoginForm { token, to } = form;
    let Some(proof) = session.auth.cookie(token.trim()) else {
        let is_wrong = true;
        return render(&LoginPage { is_wrong, to }, StatusCode::UNAUTHORIZED);
    };
    let secure = session.secure;
    let cookie = format!("{COOKIE_NAME}={proof}; HttpOnly; SameSite=Strict{secure}");
    ([(SET_COOKIE, cookie)], redirect(&place_after_login(&to))).into_response()
}

/// Always a page of this server, because `./` is in front.
fn place_after_login(to: &str) -> String {
    let is_text = HeaderValue::from_str(to).is_ok();
    format!("./{}", if is_text { to } else { "" })
}

async fn logout() -> Response {
    let cookie = format!("{COOKIE_NAME}=; HttpOnly; SameSite=Strict; Max-Age=0");
    ([(SET_COOKIE, cookie)], redirect("login")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_the_wanted_page_of_this_server() {
        for (to, place) in [
            ("", "./"),
            ("routes/r?id=a", "./routes/r?id=a"),
            ("https://evil.example", "./https://evil.example"),
            ("//evil.example", ".///evil.example"),
            ("a\r\nset-cookie: b", "./"),
        ] {
            assert_eq!(place_after_login(to), place);
        }
    }
}
