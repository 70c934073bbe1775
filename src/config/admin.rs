//! `[admin]`: where the endpoint answers, and what it asks of who asks. Off this machine's own addresses it must ask for something.

use super::field::Field;
use super::read::Table;
use super::secret::Secret;
use crate::admin;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The admin endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// What a request has to bring, but for the probes.
    pub(crate) token: Option<Secret>,
    /// With it, nothing but TLS is spoken.
    pub(crate) tls: Option<TlsFiles>,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Whose certificates a request has to come by, but for the probes.
    pub(crate) client_ca: Option<PathBuf>,
}

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8088);
/// Sixteen random characters cannot be guessed; a header's value has room for the rest.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

pub(super) fn read(table: &Table<'_>) -> Admin {
    let is_guarded = ["token", "token_file", "client_ca"]
        .iter()
        .any(|key| table.field(key).is_some());
    Admin {
        listen: listen(table, is_guarded),
        token: token(table),
        tls: tls(table),
    }
}

fn listen(table: &Table<'_>, is_guarded: bool) -> SocketAddr {
    let Some((field, text)) = table
        .field("listen")
        .and_then(|field| field.text().map(|text| (field.clone(), text)))
    else {
        return LISTEN;
    };
    let Ok(listen) = text.parse::<SocketAddr>() else {
        let fix = "write an IP address and a port: \"127.0.0.1:8088\", or \"0.0.0.0:8088\" to be reached from elsewhere";
        field.refuse(
            format!("{:?} is not an address to listen on", field.shown()),
            fix,
        );
        return LISTEN;
    };
    if !listen.ip().to_canonical().is_loopback() && !is_guarded {
        refuse_open(&field);
    }
    listen
}

fn refuse_open(field: &Field<'_>) {
    let what = "this address can be reached from other machines, and whoever reaches it could read what waits";
    let fix = "add token_file with the path of a file that holds a secret of 16 characters or more, or certificate, certificate_key and \
               client_ca, or listen on 127.0.0.1";
    field.refuse(what, fix);
}

/// What is no header's value would never be let in.
fn token(table: &Table<'_>) -> Option<Secret> {
    let (field, token) = table.secret("token")?;
    let text = token.expose();
    if !text.is_empty()
        && (!TOKEN_BYTES.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let fix = "make one of 16 to 1024 letters, digits and signs, without spaces: `openssl rand -hex 32`";
        field.refuse("this is no token: it is too short, too long, or has characters that no header may have", fix);
    }
    Some(token)
}

fn tls(table: &Table<'_>) -> Option<TlsFiles> {
    let path = |key: &str| {
        table
            .field(key)
            .and_then(|field| field.text().map(PathBuf::from))
    };
    let (certificate, key, client_ca) = (
        path("certificate"),
        path("certificate_key"),
        path("client_ca"),
    );
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if client_ca.is_none() => return None,
        (None, _) => {
            table.missing(
                "certificate",
                "add the path of the endpoint's own certificate: without it there is no TLS",
            );
            return None;
        }
        (Some(_), None) => {
            table.missing("certificate_key", "add the path of the certificate's key");
            return None;
        }
    };
    if let Err(fault) = admin::Tls::new(&certificate, &key, client_ca.as_deref())
        && let Some(field) = table.field(fault.key)
    {
        field.refuse(
            fault.what,
            "give the path of a file in PEM that this user can read",
        );
    }
    Some(TlsFiles {
        certificate,
        key,
        client_ca,
    })
}
