//! Decodes `[admin]`: the address of the endpoint, and what requests must prove. An address that
//! other machines can reach requires a token or client certificates.

use super::decode::At;
use super::secret::Secret;
use crate::admin;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The admin endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// The token that requests must have, except probes.
    pub(crate) token: Option<Secret>,
    /// If set, the endpoint speaks TLS only.
    pub(crate) tls: Option<TlsFiles>,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Authorities that must have signed the client certificates of requests, except probes.
    pub(crate) client_ca: Option<PathBuf>,
}

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8088);
/// Sixteen random characters cannot be guessed; more than 1024 do not fit into a header.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 16..=1024;

/// `[admin]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdminTable {
    listen: Option<String>,
    token: Option<Secret>,
    token_file: Option<String>,
    certificate: Option<PathBuf>,
    certificate_key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
}

pub(super) fn check(at: &At<'_>, table: AdminTable) -> Admin {
    let token = at.key("token").secret(table.token, table.token_file);
    if let Some((at, token)) = &token {
        check_token(at, token.expose());
    }
    let is_guarded = ["token", "token_file", "client_ca"]
        .iter()
        .any(|key| at.key(key).is_set());
    Admin {
        listen: check_listen(&at.key("listen"), table.listen, is_guarded),
        token: token.map(|(_, token)| token),
        tls: check_tls(
            at,
            table.certificate,
            table.certificate_key,
            table.client_ca,
        ),
    }
}

fn check_listen(at: &At<'_>, listen: Option<String>, is_guarded: bool) -> SocketAddr {
    let Some(text) = listen else {
        return DEFAULT_LISTEN;
    };
    let Ok(listen) = text.parse::<SocketAddr>() else {
        at.refuse(
            format!("{:?} is not an address to listen on", at.shown()),
            "write an IP address and a port: \"127.0.0.1:8088\", or \"0.0.0.0:8088\" for requests from other machines",
        );
        return DEFAULT_LISTEN;
    };
    if !listen.ip().to_canonical().is_loopback() && !is_guarded {
        at.refuse(
            "other machines can reach this address and could read the waiting messages",
            "add token_file with the path of a file that contains a secret of 16 characters or more, or certificate, \
             certificate_key and client_ca, or listen on 127.0.0.1",
        );
    }
    listen
}

/// A token must be a header value: no request could send another one.
fn check_token(at: &At<'_>, token: &str) {
    let is_graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
    let is_usable = is_graphic && TOKEN_LENGTH.contains(&token.len());
    if !token.is_empty() && !is_usable {
        at.refuse(
            "the token is too short, too long, or has characters that a header may not have",
            "write 16 to 1024 letters, digits and signs, without spaces: `openssl rand -hex 32`",
        );
    }
}

fn check_tls(
    at: &At<'_>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Option<TlsFiles> {
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if client_ca.is_none() => return None,
        (None, _) => {
            at.key("certificate")
                .missing("add the path of the endpoint's certificate: TLS requires it");
            return None;
        }
        (Some(_), None) => {
            at.key("certificate_key")
                .missing("add the path of the certificate's key");
            return None;
        }
    };
    if let Err(error) = admin::Tls::new(&certificate, &key, client_ca.as_deref()) {
        at.key(error.key).refuse(
            error.what,
            "give the path of a PEM file that this user can read",
        );
    }
    Some(TlsFiles {
        certificate,
        key,
        client_ca,
    })
}
