//! Who is let in: with a token, who brings it (`Authorization: Bearer ...`); where certificates are asked for, who has shown one; with neither,
//! everybody who reaches the address. The probes pass by it.

use super::tls::ClientInfo;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// What a request has to bring; never printed.
#[derive(Clone)]
pub(crate) struct Auth {
    token: Option<Arc<str>>,
    by_certificate: bool,
}

impl Auth {
    /// Of the two, each that is set is asked for.
    pub(crate) fn new(token: Option<&str>, by_certificate: bool) -> Self {
        Self {
            token: token.map(Arc::from),
            by_certificate,
        }
    }

    /// Puts itself before all that `router` answers, what it does not know included: a stranger does not learn which paths there are.
    pub(super) fn protect(self, router: Router) -> Router {
        if self.token.is_none() && !self.by_certificate {
            return router;
        }
        let check = move |request: Request, next: Next| {
            let refusal = self.reject(&request);
            async move {
                match refusal {
                    Some(refusal) => refusal,
                    None => next.run(request).await,
                }
            }
        };
        router.layer(from_fn(check))
    }

    fn reject(&self, request: &Request) -> Option<Response> {
        let caller = request.extensions().get::<ConnectInfo<ClientInfo>>();
        if self.by_certificate && !caller.is_some_and(|ConnectInfo(caller)| caller.has_certificate)
        {
            return Some(certificate_required());
        }
        let token = self.token.as_ref()?;
        (!has_token(request.headers(), token)).then(unauthorized)
    }
}

/// Takes as long for a token that differs in its first byte as for one that differs in its last: time tells a stranger only the length.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let brought = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, brought) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(brought)
    });
    brought.is_some_and(|brought| brought.ct_eq(token.as_bytes()).into())
}

fn unauthorized() -> Response {
    let error =
        "it asks for the token of admin.token: send the header `Authorization: Bearer <token>`";
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (WWW_AUTHENTICATE, "Bearer"),
    ];
    (
        StatusCode::UNAUTHORIZED,
        headers,
        json!({ "error": error }).to_string(),
    )
        .into_response()
}

fn certificate_required() -> Response {
    let error = "it asks for a client certificate that an authority of admin.client_ca has signed";
    (
        StatusCode::FORBIDDEN,
        [(CONTENT_TYPE, "application/json")],
        json!({ "error": error }).to_string(),
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_let_in() {
        let with =
            |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        let is_let_in = |headers| has_token(&headers, "0123456789abcdef");
        assert!(
            is_let_in(with("Bearer 0123456789abcdef"))
                && is_let_in(with("bearer 0123456789abcdef"))
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
            assert!(!is_let_in(with(value)), "{value:?}");
        }
        assert!(!is_let_in(with("Bearer 0123456789abcdef0")) && !is_let_in(HeaderMap::new()));
    }
}
