//! The login page: a token becomes a cookie that proves it. Without this cookie, a browser is sent here.

use super::frame::{render, root_of};
use super::{SCRIPT, STYLE, asset};
use crate::admin::auth::{Auth, COOKIE_NAME};
use askama::Template;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, Request, State};
use axum::http::header::{ACCEPT, LOCATION, SET_COOKIE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;

/// Bytes of the login form.
const LOGIN_BYTES_MAX: usize = 4096;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    is_wrong: bool,
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
        .route("/login", get(|| async { page(false) }).post(login))
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

/// A redirect to the login page, for a browser without a valid cookie.
pub(in crate::admin) fn to_login(request: &Request) -> Option<Response> {
    let accepts = request.headers().get(ACCEPT)?.to_str().ok()?;
    let is_page = request.method() == Method::GET && accepts.contains("text/html");
    is_page.then(|| redirect(&(root_of(request.uri().path()) + "login")))
}

fn redirect(place: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, place)]).into_response()
}

fn page(is_wrong: bool) -> Response {
    let status = match is_wrong {
        true => StatusCode::UNAUTHORIZED,
        false => StatusCode::OK,
    };
    render(&LoginPage { is_wrong }, status)
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
}

/// The cookie has no path, so it belongs to the folder of the login page, behind any prefix.
async fn login(State(session): State<Session>, Form(form): Form<LoginForm>) -> Response {
    let Some(proof) = session.auth.cookie(form.token.trim()) else {
        return page(true);
    };
    let secure = session.secure;
    let cookie = format!("{COOKIE_NAME}={proof}; HttpOnly; SameSite=Strict{secure}");
    ([(SET_COOKIE, cookie)], redirect("./")).into_response()
}

async fn logout() -> Response {
    let cookie = format!("{COOKIE_NAME}=; HttpOnly; SameSite=Strict; Max-Age=0");
    ([(SET_COOKIE, cookie)], redirect("login")).into_response()
}
