//! Rights of requests. A token (`Authorization: Bearer ...`, or the cookie of the console) and a
//! client certificate are required if they are configured. Only the operator token may change
//! something. Probes are always answered.

use super::audit::Audit;
use super::console;
use super::problem::Problem;
use super::server::Client;
use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use ring::hmac;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The cookie of the console.
pub(super) const COOKIE_NAME: &str = "postdate";
const FETCH_SITE: &str = "sec-fetch-site";

/// The required credentials. Never printed.
#[derive(Clone)]
pub(crate) struct Auth {
    reader: Option<Token>,
    operator: Option<Token>,
    by_certificate: bool,
    audit: Audit,
}

/// A token, and the value of the cookie that proves it.
#[derive(Clone)]
struct Token {
    token: Arc<str>,
    cookie: Arc<str>,
}

impl Token {
    fn new(token: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
        let tag = hmac::sign(&key, b"postdate console");
        let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
        Self {
            token: token.into(),
            cookie: hex.collect::<String>().into(),
        }
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, sent) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(sent)
        });
        let cookies = headers.get_all(COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|line| line.split("; "));
        let cookie = pairs.find_map(|pair| pair.strip_prefix(COOKIE_NAME)?.strip_prefix('='));
        bearer.is_some_and(|sent| is_equal(sent, &self.token))
            || cookie.is_some_and(|sent| is_equal(sent.as_bytes(), &self.cookie))
    }
}

/// Compares in constant time, so that the response time reveals only the length.
fn is_equal(sent: &[u8], expected: &str) -> bool {
    sent.ct_eq(expected.as_bytes()).into()
}

/// The sender of a request, with its right.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    /// For the audit log: `operator`, `reader`, or `anyone` without tokens.
    pub(super) name: &'static str,
    pub(super) address: Option<SocketAddr>,
    /// No token was needed to read, but one is needed to change something.
    pub(super) may_log_in: bool,
    pub(super) audit: Audit,
}

impl Actor {
    /// Empty: unknown.
    pub(super) fn address_text(&self) -> String {
        let address = self.address.map(|address| address.to_string());
        address.unwrap_or_default()
    }

    /// Name and address.
    pub(super) fn text(&self) -> String {
        match self.address {
            Some(address) => format!("{}, {}", self.name, address.ip()),
            None => self.name.to_owned(),
        }
    }
}

impl Auth {
    /// Requires each credential that is set. An operator token gives the right to read, too.
    pub(crate) fn new(
        (reader, operator): (Option<&str>, Option<&str>),
        by_certificate: bool,
        audit: Audit,
    ) -> Self {
        Self {
            reader: reader.map(Token::new),
            operator: operator.map(Token::new),
            by_certificate,
            audit,
        }
    }

    /// Checks requests before all routes of `router`, unknown paths included, so that an
    /// unauthenticated client does not learn which paths exist.
    pub(super) fn protect(self, router: Router) -> Router {
        let check = move |mut request: Request, next: Next| {
            let actor = self.actor(&request);
            async move {
                match actor {
                    Ok(actor) => {
                        request.extensions_mut().insert(actor);
                        next.run(request).await
                    }
                    Err(problem) if problem.status_code() == StatusCode::UNAUTHORIZED => {
                        let login = console::to_login(&request);
                        login.unwrap_or_else(|| {
                            ([(WWW_AUTHENTICATE, "Bearer")], problem).into_response()
                        })
                    }
                    Err(problem) => problem.into_response(),
                }
            }
        };
        router.layer(from_fn(check))
    }

    /// The cookie that proves a token.
    pub(super) fn cookie(&self, token: &str) -> Option<&str> {
        let mut tokens = self.reader.iter().chain(&self.operator);
        let found = tokens.find(|known| is_equal(token.as_bytes(), &known.token));
        found.map(|token| &*token.cookie)
    }

    /// Requires the client certificate, and refuses a POST of another site. Without any credential,
    /// the host must be an address or `localhost`, so that no page of another site can pretend to be
    /// of this endpoint.
    pub(super) fn check_sender(&self, request: &Request) -> Result<(), Problem> {
        let forbidden = |text: &str| Err(Problem::new(StatusCode::FORBIDDEN, text));
        let client = request.extensions().get::<Client>();
        if self.by_certificate && !client.is_some_and(|client| client.has_certificate) {
            return forbidden(
                "a client certificate is required, signed by an authority of admin.client_ca",
            );
        }
        let headers = request.headers();
        if self.reader.is_none() && !self.by_certificate && !is_local_name(headers) {
            return forbidden(
                "without admin.token, only an IP address or localhost may name the server: use one of them, or set admin.token",
            );
        }
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if !is_read && !is_same_origin(headers) {
            return forbidden("a page of another site sent this request");
        }
        Ok(())
    }

    fn actor(&self, request: &Request) -> Result<Actor, Problem> {
        self.check_sender(request)?;
        let headers = request.headers();
        let proves =
            |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is_in(headers));
        let name = if proves(&self.operator) {
            "operator"
        } else if proves(&self.reader) {
            "reader"
        } else if self.reader.is_none() {
            "anyone"
        } else {
            let text = "the token of admin.token is required: send the header `Authorization: Bearer <token>`";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, text));
        };
        let client = request.extensions().get::<Client>();
        Ok(Actor {
            name,
            address: client.map(|client| client.address),
            may_log_in: name == "anyone" && self.operator.is_some(),
            audit: self.audit.clone(),
        })
    }
}

/// False if the request names the endpoint by a name that anyone can register.
fn is_local_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else {
        return true;
    };
    let authority = host.to_str().ok().and_then(|host| host.parse().ok());
    authority.is_some_and(|authority: Authority| {
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || address.parse::<IpAddr>().is_ok()
    })
}

/// False for a request that a page of another site made. Programs send none of these headers.
fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return true;
    };
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let (origin, host) = (text(origin), headers.get(HOST).and_then(text));
    let origin = origin
        .as_deref()
        .and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, name)| Some(name) == host.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let with =
            |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        let token = Token::new("0123456789abcdef");
        let is_accepted = |headers| token.is_in(&headers);
        assert!(
            is_accepted(with("Bearer 0123456789abcdef"))
                && is_accepted(with("bearer 0123456789abcdef"))
        );
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeX",
        ] {
            assert!(!is_accepted(with(value)), "{value:?}");
        }
        assert!(!is_accepted(with("Bearer 0123456789abcdef0")) && !is_accepted(HeaderMap::new()));
    }

    #[test]
    fn a_cookie_proves_its_token_only() {
        let (token, other) = (
            Token::new("0123456789abcdef"),
            Token::new("0123456789abcdeX"),
        );
        let with = |value: &str| HeaderMap::from_iter([(COOKIE, value.parse().unwrap())]);
        let cookie = format!("theme=dark; {COOKIE_NAME}={}", token.cookie);
        assert!(token.is_in(&with(&cookie)) && !other.is_in(&with(&cookie)));
        assert!(!token.is_in(&with(&format!("{COOKIE_NAME}=0123456789abcdef"))));
    }

    #[test]
    fn a_page_of_another_site_cannot_change_anything() {
        let of = |lines: &[(HeaderName, &'static str)]| {
            let lines = lines.iter().cloned();
            HeaderMap::from_iter(lines.map(|(name, value)| (name, value.parse().unwrap())))
        };
        let site = HeaderName::from_static(FETCH_SITE);
        for (lines, is_allowed) in [
            (vec![], true),
            (vec![(site.clone(), "same-origin")], true),
            (vec![(site.clone(), "cross-site")], false),
            (vec![(site, "same-site")], false),
            (vec![(HOST, "a:1"), (ORIGIN, "https://a:1")], true),
            (vec![(HOST, "a:1"), (ORIGIN, "https://b:1")], false),
            (vec![(HOST, "a:1"), (ORIGIN, "null")], false),
        ] {
            assert_eq!(is_same_origin(&of(&lines)), is_allowed, "{lines:?}");
        }
    }
}
