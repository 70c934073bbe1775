//! `[admin]`: the address of the endpoint, and what requests must prove. An address that other
//! machines can reach requires a token, client certificates, or a proxy that names its users.

use super::check::At;
use super::decode::secret::Secret;
use crate::admin::{Credentials, Tls, TlsError, is_user_name};
use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE, FORWARDED, HOST, ORIGIN, REFERER, USER_AGENT};
use ipnet::IpNet;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Payloads of messages in answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Payloads {
    Hidden,
    Shown,
}

/// The colour of the environment in the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Colour {
    Red,
    Orange,
    Green,
    Blue,
    Purple,
    Grey,
}

impl Colour {
    /// The class of the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Orange => "orange",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Purple => "purple",
            Self::Grey => "grey",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// The token that requests must have, except probes.
    pub(crate) token: Option<Secret>,
    /// The token that gives the right to change something. Without it, the endpoint is read-only.
    pub(crate) operator_token: Option<Secret>,
    pub(crate) payloads: Payloads,
    /// The name that the console shows beside the deployment.
    pub(crate) environment: Option<String>,
    pub(crate) colour: Option<Colour>,
    /// PEM files. With them, the endpoint speaks TLS only.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) certificate_key: Option<PathBuf>,
    /// Authorities that must have signed the client certificates of requests, except probes.
    pub(crate) client_ca: Option<PathBuf>,
    /// The header in which a proxy names the user that it has authenticated.
    pub(crate) user_header: Option<String>,
    /// Networks of these proxies.
    pub(crate) proxies: Vec<String>,
    /// Users of the header that may change something.
    pub(crate) operators: Vec<String>,
    /// DNS names of client certificates that may change something.
    pub(crate) operator_certificates: Vec<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8088).into(),
            token: None,
            operator_token: None,
            payloads: Payloads::Hidden,
            environment: None,
            colour: None,
            certificate: None,
            certificate_key: None,
            client_ca: None,
            user_header: None,
            proxies: Vec::new(),
            operators: Vec::new(),
            operator_certificates: Vec::new(),
        }
    }
}

impl Admin {
    /// Reads the files. `None`: the endpoint speaks plain HTTP.
    pub(crate) fn tls(&self) -> Result<Option<Tls>, TlsError> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.certificate_key) else {
            return Ok(None);
        };
        Tls::new(certificate, key, self.client_ca.as_deref()).map(Some)
    }

    pub(crate) fn credentials(&self) -> Credentials {
        let text = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().into());
        Credentials {
            token: text(&self.token),
            operator_token: text(&self.operator_token),
            by_certificate: self.client_ca.is_some(),
            user_header: self.user_header.as_deref().and_then(user_header),
            proxies: self
                .proxies
                .iter()
                .filter_map(|text| network(text))
                .collect(),
            operators: self.operators.clone(),
            operator_certificates: self.operator_certificates.clone(),
        }
    }

    fn check_users(&self, at: &At<'_>) {
        let header = self.user_header.as_deref();
        if header.is_some_and(|name| user_header(name).is_none()) {
            at.key("user_header").refuse(
                "no proxy may name a user in this header",
                "write the name of a header of its own, such as \"X-Forwarded-Email\"",
            );
        }
        if header.is_some() && self.proxies.is_empty() {
            at.key("proxies").refuse(
                "missing, so nobody may name a user",
                "add the addresses of the proxies that set user_header",
            );
        }
        for (index, text) in self.proxies.iter().enumerate() {
            if network(text).is_none() {
                at.key("proxies").key(index).refuse(
                    format!("{text:?} is no address and no network of proxies"),
                    "write an address such as \"10.1.2.3\", or a network such as \"10.1.2.0/24\" without bits behind its prefix",
                );
            }
        }
        for (key, names, given, other) in [
            (
                "operators",
                &self.operators,
                header.is_some(),
                "user_header",
            ),
            (
                "operator_certificates",
                &self.operator_certificates,
                self.client_ca.is_some(),
                "client_ca",
            ),
        ] {
            if !names.is_empty() && !given {
                let fix = format!("add {other}, or use operator_token_file instead");
                at.key(key).refuse(format!("it needs {other}"), fix);
            }
            for (index, name) in names.iter().enumerate() {
                if !is_user_name(name) {
                    at.key(key).key(index).refuse(
                        format!("{name:?} names nobody"),
                        "write 1 to 256 ASCII characters without a comma, and not operator, reader or anyone",
                    );
                }
            }
        }
    }

    pub(super) fn check(&self, at: &At<'_>) {
        self.check_users(at);
        let is_guarded =
            self.token.is_some() || self.client_ca.is_some() || self.user_header.is_some();
        if !self.listen.ip().to_canonical().is_loopback() && !is_guarded {
            at.key("listen").refuse(
                "other machines can reach this address and could read the waiting messages",
                "add token_file with the path of a file that contains a secret of 16 characters or more, or certificate, \
                 certificate_key and client_ca, or listen on 127.0.0.1",
            );
        }
        for (key, token) in [
            ("token", &self.token),
            ("operator_token", &self.operator_token),
        ] {
            if token.as_ref().is_some_and(|token| !is_token(token)) {
                at.key(key).refuse(
                    "the token is too short, too long, or has characters that a header may not have",
                    "write 16 to 1024 letters, digits and signs, without spaces: `openssl rand -hex 32`",
                );
            }
        }
        let needs_certificate = self.certificate_key.is_some() || self.client_ca.is_some();
        if self.certificate.is_none() && needs_certificate {
            let fix = "add the path of the endpoint's certificate: TLS requires it";
            at.key("certificate").refuse("missing", fix);
        }
        if self.certificate.is_some() && self.certificate_key.is_none() {
            let fix = "add the path of the certificate's key";
            at.key("certificate_key").refuse("missing", fix);
        }
        if let Err(error) = self.tls() {
            let fix = "give the path of a PEM file that this user can read";
            at.key(error.key).refuse(error.what, fix);
        }
    }
}

/// `None`: the name is invalid, or the header has another meaning.
fn user_header(name: &str) -> Option<HeaderName> {
    let name: HeaderName = name.parse().ok()?;
    let is_standard = [
        AUTHORIZATION,
        COOKIE,
        FORWARDED,
        HOST,
        ORIGIN,
        REFERER,
        USER_AGENT,
    ]
    .contains(&name);
    let others = [
        "accept",
        "content-",
        "sec-",
        "postdate-",
        "ce-",
        "x-forwarded-for",
    ];
    let is_other = others.iter().any(|start| name.as_str().starts_with(start));
    (!is_standard && !is_other).then_some(name)
}

/// A network, or a single address. `None` also for all addresses, for an address with the mask of a
/// network, and for IPv4 addresses that are written as IPv6: no sender matches them.
fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network: IpNet = text.parse().ok().or_else(address)?;
    let is_canonical = network.addr().to_canonical() == network.addr();
    let is_network = network.prefix_len() > 0 && network.trunc() == network;
    (is_canonical && is_network).then_some(network)
}

/// A token must be a valid header value, or no request could send it. Sixteen random characters
/// cannot be guessed, and 1024 keep the header small.
fn is_token(token: &Secret) -> bool {
    let token = token.expose();
    token.bytes().all(|byte| byte.is_ascii_graphic()) && (16..=1024).contains(&token.len())
}
