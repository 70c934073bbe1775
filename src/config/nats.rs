//! Decodes `[nats.<name>]`: the servers of a NATS cluster, the login, and the trusted certificates.

use super::decode::At;
use super::secret::Secret;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::path::PathBuf;
use url::Url;

/// One NATS cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nats {
    /// Addresses of some servers, separated by commas. Secret, because they may contain a login.
    pub(crate) url: Secret,
    /// The JetStream domain, if it is not the domain of these servers.
    pub(crate) domain: Option<String>,
    pub(crate) login: Login,
    /// Certificates that are trusted besides the system's.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// How a client logs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Login {
    #[default]
    Anonymous,
    User {
        name: String,
        password: Secret,
    },
    Token(Secret),
    Nkey(Secret),
    Credentials(Secret),
}

const URL_FORM: &str =
    "write nats://host:port or tls://host:port, several with commas between them";

/// `[nats.<name>]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NatsTable {
    url: Option<Secret>,
    url_file: Option<String>,
    domain: Option<String>,
    username: Option<String>,
    password: Option<Secret>,
    password_file: Option<String>,
    token: Option<Secret>,
    token_file: Option<String>,
    nkey: Option<Secret>,
    nkey_file: Option<String>,
    credentials: Option<Secret>,
    credentials_file: Option<String>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    certificate_key: Option<PathBuf>,
}

impl Nats {
    /// The addresses of the servers without a login.
    pub(crate) fn urls(&self) -> impl Iterator<Item = String> {
        addresses(&self.url).map(|url| format!("{}://{}", url.scheme(), host_port(&url)))
    }

    /// Host and port of the servers, which are no secret.
    pub(crate) fn host_ports(&self) -> impl Iterator<Item = String> {
        addresses(&self.url).map(|url| host_port(&url))
    }
}

fn addresses(url: &Secret) -> impl Iterator<Item = Url> {
    let urls = url.expose().split(',');
    urls.filter_map(|url| Url::parse(url.trim()).ok())
}

fn host_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    format!("{host}:{}", url.port().unwrap_or(4222))
}

pub(super) fn check(at: &At<'_>, mut table: NatsTable) -> Nats {
    let url = at
        .key("url")
        .secret(table.url.take(), table.url_file.take());
    if let Some((at, url)) = &url {
        for url in url.expose().split(',') {
            check_url(at, url.trim());
        }
    } else if !at.key("url_file").is_set() {
        at.key("url")
            .missing("add url = \"nats://127.0.0.1:4222\", or url_file with the path of a file that contains it");
    }
    let certificate = match (table.certificate.take(), table.certificate_key.take()) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            at.key("certificate_key")
                .missing("add the path of the certificate's key");
            None
        }
        (None, Some(_)) => {
            at.key("certificate")
                .missing("add the path of the key's certificate");
            None
        }
    };
    if table
        .domain
        .as_deref()
        .is_some_and(|domain| !is_domain(domain))
    {
        at.key("domain").refuse(
            "no domain has this name",
            "write the server's jetstream.domain: 1 or more of A-Z a-z 0-9 _ -",
        );
    }
    Nats {
        domain: table.domain.take(),
        ca: table.ca.take(),
        certificate,
        login: check_login(at, url.as_ref(), table),
        url: url.map(|(_, url)| url).unwrap_or_default(),
    }
}

/// Returns whether the domain is exactly one token of a subject.
fn is_domain(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// The login of the first address that has one: a user with a password, or a token.
fn login_of(url: &Secret) -> Option<Login> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let url = addresses(url).find(|url| !url.username().is_empty())?;
    let name = decoded(url.username());
    Some(match url.password() {
        Some(password) => Login::User {
            name,
            password: Secret::new(decoded(password)),
        },
        None => Login::Token(Secret::new(name)),
    })
}

fn check_login(at: &At<'_>, url: Option<&(At<'_>, Secret)>, table: NatsTable) -> Login {
    let trimmed = |secret: Secret| Secret::new(secret.expose().trim());
    let in_url = url.and_then(|(at, url)| Some((at.clone(), login_of(url)?)));
    let password = at
        .key("password")
        .secret(table.password, table.password_file);
    let token = at.key("token").secret(table.token, table.token_file);
    let nkey = at.key("nkey").secret(table.nkey, table.nkey_file);
    let credentials = at
        .key("credentials")
        .secret(table.credentials, table.credentials_file);
    let user = match (table.username, password) {
        (Some(name), Some((_, password))) => {
            Some((at.key("username"), Login::User { name, password }))
        }
        (Some(_), None) => {
            at.key("username").refuse(
                "a username without a password",
                "add password or password_file, or remove the username",
            );
            None
        }
        (None, Some((at, _))) => {
            at.refuse(
                "a password without a username",
                "add username, or remove the password",
            );
            None
        }
        (None, None) => None,
    };
    let logins = [
        in_url,
        user,
        token.map(|(at, token)| (at, Login::Token(trimmed(token)))),
        nkey.map(|(at, seed)| (at, Login::Nkey(trimmed(seed)))),
        credentials.map(|(at, text)| (at, Login::Credentials(text))),
    ];
    let mut logins = logins.into_iter().flatten();
    let first = logins.next();
    if let Some((at, _)) = logins.next() {
        at.refuse(
            "there are two ways to log in",
            "keep one: in the address, username and password, token, nkey or credentials",
        );
    }
    first.map(|(_, login)| login).unwrap_or_default()
}

fn check_url(at: &At<'_>, url: &str) {
    let Ok(url) = Url::parse(url) else {
        return at.refuse("an address is not understood", URL_FORM);
    };
    if !["nats", "tls"].contains(&url.scheme()) {
        at.refuse(
            "an address begins with neither nats:// nor tls://",
            URL_FORM,
        );
    } else if url.host_str().is_none_or(str::is_empty) {
        at.refuse("an address names no host", URL_FORM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_in_an_address_is_decoded_and_removed() {
        let secret = |text: &str| Secret::new(text);
        let user = Login::User {
            name: "a@b".to_owned(),
            password: secret("p:%"),
        };
        assert_eq!(login_of(&secret("nats://a%40b:p%3A%25@h:1")), Some(user));
        assert_eq!(
            login_of(&secret("nats://h, tls://token@h2:3")),
            Some(Login::Token(secret("token")))
        );
        assert_eq!(login_of(&secret("nats://h")), None);
        let nats = Nats {
            url: secret("nats://u:p@h:1, tls://h2"),
            ..Nats::default()
        };
        assert_eq!(
            nats.urls().collect::<Vec<_>>(),
            ["nats://h:1", "tls://h2:4222"]
        );
    }
}
