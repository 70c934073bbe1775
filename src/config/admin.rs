//! `[admin]`: the address of the endpoint, and what requests must prove. An address that other
//! machines can reach requires a token or client certificates.

use super::check::At;
use super::decode::secret::Secret;
use crate::admin::{Tls, TlsError};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
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

    pub(super) fn check(&self, at: &At<'_>) {
        let is_guarded = self.token.is_some() || self.client_ca.is_some();
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

/// A token must be a valid header value, or no request could send it. Sixteen random characters
/// cannot be guessed, and 1024 keep the header small.
fn is_token(token: &Secret) -> bool {
    let token = token.expose();
    token.bytes().all(|byte| byte.is_ascii_graphic()) && (16..=1024).contains(&token.len())
}
