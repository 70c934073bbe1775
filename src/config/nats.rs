//! `[nats.<name>]`: a cluster's servers, how to log in and whom to trust. Speaks no NATS; only the addresses are looked at.

use super::field::Field;
use super::read::Table;
use super::secret::Secret;
use std::path::PathBuf;
use url::Url;

/// One NATS cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nats {
    /// Of some servers, with commas between them; the others are learned from them. Secret, for it may hold a login.
    pub(crate) url: Secret,
    /// The JetStream domain, where it is another than that of the servers connected to.
    pub(crate) domain: Option<String>,
    pub(crate) login: Login,
    /// Certificates to trust besides the system's own.
    pub(crate) ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// How a client says who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Login {
    /// Not at all, or as the address says.
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

const FORM: &str = "write nats://host:port or tls://host:port, several with commas between them";

impl Nats {
    /// The addresses of its servers, one by one, without a login.
    pub(crate) fn urls(&self) -> impl Iterator<Item = String> {
        self.addresses()
            .map(|url| format!("{}://{}", url.scheme(), server(&url)))
    }

    /// Host and port of its servers, which are no secret.
    pub(crate) fn host_ports(&self) -> impl Iterator<Item = String> {
        self.addresses().map(|url| server(&url))
    }

    fn addresses(&self) -> impl Iterator<Item = Url> {
        addresses(&self.url)
    }
}

fn addresses(url: &Secret) -> impl Iterator<Item = Url> {
    url.expose()
        .split(',')
        .filter_map(|url| Url::parse(url.trim()).ok())
}

fn server(url: &Url) -> String {
    format!(
        "{}:{}",
        url.host_str().unwrap_or_default(),
        url.port().unwrap_or(4222)
    )
}

pub(super) fn read(table: &Table<'_>) -> Nats {
    let url = table.secret("url");
    match &url {
        Some((field, url)) => url
            .expose()
            .split(',')
            .for_each(|url| check_url(field, url.trim())),
        None if table
            .field("url")
            .or_else(|| table.field("url_file"))
            .is_none() =>
        {
            table.missing("url", "add url = \"nats://127.0.0.1:4222\", or url_file with the path of a file that holds it");
        }
        None => {}
    }
    let path = |key: &str| {
        table
            .field(key)
            .and_then(|field| field.text().map(PathBuf::from))
    };
    let certificate = match (path("certificate"), path("certificate_key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            table.missing("certificate_key", "add the path of the certificate's key");
            None
        }
        (None, Some(_)) => {
            table.missing("certificate", "add the path of the key's certificate");
            None
        }
    };
    let domain = table.field("domain").and_then(|field| {
        let domain = field.text().map(str::to_owned);
        if domain.as_deref().is_some_and(|domain| !is_domain(domain)) {
            field.refuse(
                "this is no name of a domain",
                "write what the server has as jetstream.domain: 1 or more of A-Z a-z 0-9 _ -",
            );
        }
        domain
    });
    let login = login(table, url.as_ref());
    Nats {
        url: url.map(|(_, url)| url).unwrap_or_default(),
        domain,
        login,
        ca: path("ca"),
        certificate,
    }
}

/// What is one token of a subject and cannot be taken for more.
fn is_domain(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The login in the first address that has one: a user with a password, or a token.
fn login_of(url: &Secret) -> Option<Login> {
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

/// With `%` and two hex digits read as the byte they stand for.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|_| *first == b'%')
        {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn login(table: &Table<'_>, url: Option<&(Field<'_>, Secret)>) -> Login {
    let of_url = url.and_then(|(field, url)| Some((field.clone(), login_of(url)?)));
    let username = table
        .field("username")
        .and_then(|field| field.text().map(|name| (field.clone(), name.to_owned())));
    let password = table.secret("password");
    let token = table.secret("token");
    let nkey = table.secret("nkey");
    let credentials = table.secret("credentials");
    let user = match (username, password) {
        (Some((field, name)), Some((_, password))) => Some((field, Login::User { name, password })),
        (Some((field, _)), None) => {
            field.refuse(
                "a username without a password",
                "add password or password_file, or remove the username",
            );
            None
        }
        (None, Some((field, _))) => {
            field.refuse(
                "a password without a username",
                "add username, or remove the password",
            );
            None
        }
        (None, None) => None,
    };
    let trimmed = |secret: Secret| Secret::new(secret.expose().trim().to_owned());
    let ways = [
        of_url,
        user,
        token.map(|(field, token)| (field, Login::Token(trimmed(token)))),
        nkey.map(|(field, seed)| (field, Login::Nkey(trimmed(seed)))),
        credentials.map(|(field, text)| (field, Login::Credentials(text))),
    ];
    let mut ways = ways.into_iter().flatten();
    let first = ways.next();
    if let Some((field, _)) = ways.next() {
        field.refuse(
            "there are two ways to log in",
            "keep one: in the address, username and password, token, nkey or credentials",
        );
    }
    first.map(|(_, login)| login).unwrap_or_default()
}

fn check_url(field: &Field<'_>, url: &str) {
    let Ok(url) = Url::parse(url) else {
        return field.refuse("an address is not understood", FORM);
    };
    if !["nats", "tls"].contains(&url.scheme()) {
        field.refuse("an address begins with neither nats:// nor tls://", FORM);
    } else if url.host_str().is_none_or(str::is_empty) {
        field.refuse("an address names no host", FORM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_in_an_address_is_read_and_taken_off() {
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
