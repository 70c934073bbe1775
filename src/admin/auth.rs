//! Rights of requests. A token (`Authorization: Bearer ...`, or the cookie of the console), a user whom
//! a trusted proxy names, and a client certificate are required if they are configured. The operator
//! token, the users in `admin.operators`, and the certificates in `admin.operator_certificates` may
//! change something. Probes are always answered.

use super::audit::Audit;
use super::console;
use super::problem::Problem;
use super::server::Client;
use axum::Router;
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use ipnet::IpNet;
use ring::hmac;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The cookie of the console.
pub(super) const COOKIE_NAME: &str = "postdate";
const FETCH_SITE: &str = "sec-fetch-site";

/// The longest name of a user.
const USER_BYTES_MAX: usize = 256;

/// Who sent a request with the operator token, with the reader's, and without a login. No user has
/// such a name.
const OPERATOR: &str = "operator";
const READER: &str = "reader";
const ANYONE: &str = "anyone";

/// The configured credentials. Never printed.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    /// The token that may read.
    pub(crate) token: Option<Arc<str>>,
    /// The token that may read and change something.
    pub(crate) operator_token: Option<Arc<str>>,
    /// Requests must have a client certificate.
    pub(crate) by_certificate: bool,
    /// The header in which a proxy names the user that it has authenticated.
    pub(crate) user_header: Option<HeaderName>,
    /// The addresses of these proxies. The header of others is ignored.
    pub(crate) proxies: Vec<IpNet>,
    /// Users of the header that may change something.
    pub(crate) operators: Vec<String>,
    /// DNS names of client certificates that may change something.
    pub(crate) operator_certificates: Vec<String>,
}

/// The required credentials.
#[derive(Clone)]
pub(crate) struct Auth {
    reader: Option<Token>,
    operator: Option<Token>,
    credentials: Arc<Credentials>,
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
    /// For the audit log: the name of a user or of a certificate, `operator` or `reader` by a token, or
    /// `anyone`.
    pub(super) name: Arc<str>,
    /// Has the right to change something.
    pub(super) may_change: bool,
    pub(super) address: Option<SocketAddr>,
    /// No token was needed to read, but one is needed to change something.
    pub(super) may_log_in: bool,
    /// The right comes from a token, which the browser may have in a cookie.
    pub(super) may_log_out: bool,
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
            None => self.name.to_string(),
        }
    }
}

impl Auth {
    /// Requires each credential that is set. The right to change something is a right to read, too.
    pub(crate) fn new(credentials: Credentials, audit: Audit) -> Self {
        Self {
            reader: credentials.token.as_deref().map(Token::new),
            operator: credentials.operator_token.as_deref().map(Token::new),
            credentials: Arc::new(credentials),
            audit,
        }
    }

    /// Without a login anyone may read.
    fn needs_login(&self) -> bool {
        self.reader.is_some() || self.credentials.user_header.is_some()
    }

    /// Checks requests before all routes of `router`, unknown paths included, so that an
    /// unauthenticated client does not learn which paths exist.
    pub(super) fn protect(self, router: Router) -> Router {
        let has_token = self.reader.is_some();
        let check = move |mut request: Request, next: Next| {
            let actor = self.actor(&request);
            async move {
                match actor {
                    Ok(actor) => {
                        request.extensions_mut().insert(actor);
                        next.run(request).await
                    }
                    Err(problem) if problem.status_code() == StatusCode::UNAUTHORIZED => {
                        // Without a token, only the proxy can log a user in.
                        let login = has_token.then(|| console::to_login(&request));
                        login.flatten().unwrap_or_else(|| {
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
        let by_certificate = self.credentials.by_certificate;
        if by_certificate && client.is_none_or(|client| client.certificate.is_none()) {
            return forbidden(
                "a client certificate is required, signed by an authority of admin.client_ca",
            );
        }
        let headers = request.headers();
        if !self.needs_login() && !by_certificate && !is_local_name(headers) {
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
        let client = request.extensions().get::<Client>();
        let Credentials {
            operators,
            operator_certificates,
            ..
        } = &*self.credentials;
        let proxied = client.filter(|client| self.is_proxy(client.address.ip()));
        let user = proxied.and_then(|_| self.user(headers));
        // The certificate of a proxy gives none of its users a right.
        let direct = client.filter(|_| proxied.is_none());
        let certificate = direct.and_then(|client| client.certificate.as_ref());
        let certificate_name = certificate.and_then(|certificate| {
            let mut names = operator_certificates.iter();
            names.find(|name| has_dns_name(certificate, name))
        });
        let (name, may_change) = if proves(&self.operator) {
            (OPERATOR, true)
        } else if let Some(user) = user {
            (user, operators.iter().any(|name| name == user))
        } else if let Some(name) = certificate_name {
            (name.as_str(), true)
        } else if proves(&self.reader) {
            (READER, false)
        } else if self.needs_login() {
            let text = match &self.reader {
                Some(_) => {
                    "the token of admin.token is required: send the header `Authorization: Bearer <token>`"
                }
                None => {
                    "a login is required: open this address through the proxy that names its users in admin.user_header"
                }
            };
            return Err(Problem::new(StatusCode::UNAUTHORIZED, text));
        } else {
            (ANYONE, false)
        };
        Ok(Actor {
            name: name.into(),
            may_change,
            address: client.map(|client| client.address),
            may_log_in: name == ANYONE && self.operator.is_some(),
            may_log_out: [OPERATOR, READER].contains(&name),
            audit: self.audit.clone(),
        })
    }

    /// Returns whether the user header of this sender is trusted.
    fn is_proxy(&self, sender: IpAddr) -> bool {
        let mut proxies = self.credentials.proxies.iter();
        let sender = sender.to_canonical();
        self.credentials.user_header.is_some() && proxies.any(|proxy| proxy.contains(&sender))
    }

    /// The user that a trusted proxy names.
    fn user<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let header = self.credentials.user_header.as_ref()?;
        let mut values = headers.get_all(header).iter();
        // A proxy that appends to the header of its client would give two, or a comma.
        let (value, None) = (values.next()?, values.next()) else {
            return None;
        };
        let user = value.to_str().ok()?;
        is_user_name(user).then_some(user)
    }
}

/// Returns whether a user may have this name.
pub(crate) fn is_user_name(name: &str) -> bool {
    let is_reserved = [OPERATOR, READER, ANYONE].contains(&name);
    let is_text = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    let is_valid = |byte: u8| is_text(byte) && byte != b',';
    !name.is_empty() && name.len() <= USER_BYTES_MAX && !is_reserved && name.bytes().all(is_valid)
}

/// Returns whether a valid certificate has exactly this DNS name. A wildcard is no name.
fn has_dns_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let certificate = webpki::EndEntityCert::try_from(certificate);
    certificate.is_ok_and(|certificate| {
        let mut names = certificate.valid_dns_names();
        names.any(|found| !found.contains('*') && found.eq_ignore_ascii_case(name))
    })
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
    use crate::admin::audit;
    use axum::body::Body;

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

    /// The actor of a request with these values of the user header. `None`: it needs a login.
    fn actor(credentials: &Credentials, sender: &str, users: &[&str]) -> Option<(String, bool)> {
        let auth = Auth::new(credentials.clone(), audit::channel().0);
        let mut request = Request::builder().uri("/v1/routes");
        for user in users {
            request = request.header("x-user", *user);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Client {
            address: SocketAddr::new(sender.parse().unwrap(), 1),
            certificate: None,
        });
        let actor = auth.actor(&request).ok()?;
        Some((actor.name.to_string(), actor.may_change))
    }

    #[test]
    fn only_a_trusted_proxy_names_its_users() {
        let credentials = Credentials {
            user_header: Some(HeaderName::from_static("x-user")),
            proxies: vec!["10.1.0.0/16".parse().unwrap()],
            operators: vec!["ada@example.com".to_owned()],
            ..Credentials::default()
        };
        let named = |name: &str, may_change| Some((name.to_owned(), may_change));
        for (sender, users, expected) in [
            (
                "10.1.2.3",
                &["ada@example.com"][..],
                named("ada@example.com", true),
            ),
            (
                "::ffff:10.1.2.3",
                &["bob@example.com"],
                named("bob@example.com", false),
            ),
            ("10.2.2.3", &["ada@example.com"], None),
            ("10.1.2.3", &[], None),
            ("10.1.2.3", &[""], None),
            ("10.1.2.3", &["bob@example.com", "ada@example.com"], None),
            ("10.1.2.3", &["bob@example.com,ada@example.com"], None),
            ("10.1.2.3", &["operator"], None),
        ] {
            assert_eq!(
                actor(&credentials, sender, users),
                expected,
                "{sender} {users:?}"
            );
        }
        let without_header = Credentials {
            user_header: None,
            ..credentials
        };
        let ignored = actor(&without_header, "10.1.2.3", &["ada@example.com"]);
        assert_eq!(ignored, named("anyone", false));
    }
}
