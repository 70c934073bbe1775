//! Authentication of requests: by a token (`Authorization: Bearer ...`), by a client certificate,
//! or both. If neither is set, every request is answered. Probes always are.

use super::error_response;
use super::server::Client;
use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The required credentials. Never printed.
#[derive(Clone)]
pub(crate) struct Auth {
    token: Option<Arc<str>>,
    by_certificate: bool,
}

impl Auth {
    /// Requires each credential that is set.
    pub(crate) fn new(token: Option<&str>, by_certificate: bool) -> Self {
        Self {
            token: token.map(Arc::from),
            by_certificate,
        }
    }

    /// Checks requests before all routes of `router`, unknown paths included, so that an
    /// unauthenticated client does not learn which paths exist.
    pub(super) fn protect(self, router: Router) -> Router {
        if self.token.is_none() && !self.by_certificate {
            return router;
        }
        let check = move |request: Request, next: Next| {
            let rejection = self.reject(&request);
            async move {
                match rejection {
                    Some(rejection) => rejection,
                    None => next.run(request).await,
                }
            }
        };
        router.layer(from_fn(check))
    }

    fn reject(&self, request: &Request) -> Option<Response> {
        let client = request.extensions().get::<Client>();
        if self.by_certificate && !client.is_some_and(|client| client.has_certificate) {
            return Some(certificate_required());
        }
        let token = self.token.as_ref()?;
        (!has_token(request.headers(), token)).then(unauthorized)
    }
}

/// Compares in constant time, so that the response time reveals only the length of the token.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let sent = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, sent) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(sent)
    });
    sent.is_some_and(|sent| sent.ct_eq(token.as_bytes()).into())
}

fn unauthorized() -> Response {
    let error =
        "the token of admin.token is required: send the header `Authorization: Bearer <token>`";
    let response = error_response(StatusCode::UNAUTHORIZED, error);
    ([(WWW_AUTHENTICATE, "Bearer")], response).into_response()
}

fn certificate_required() -> Response {
    let error = "a client certificate is required, signed by an authority of admin.client_ca";
    error_response(StatusCode::FORBIDDEN, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let with =
            |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        let is_accepted = |headers| has_token(&headers, "0123456789abcdef");
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
}
