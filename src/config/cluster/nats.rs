//! `[nats.<name>]`: the servers of a NATS cluster, the login, and the trusted certificates.

use crate::broker::{Cluster, nats};
use crate::config::ClusterTable;
use crate::config::check::At;
use crate::config::decode::secret::Secret;
use crate::config::name::is_alphanumeric_or;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::path::PathBuf;
use url::Url;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Nats {
    /// Addresses of some servers, separated by commas. Secret, because they may contain a login.
    pub(crate) url: Secret,
    /// The JetStream domain, if it is not the domain of these servers.
    pub(crate) domain: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) token: Option<Secret>,
    pub(crate) nkey: Option<Secret>,
    pub(crate) credentials: Option<Secret>,
    /// Certificates that are trusted besides the system's.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) certificate_key: Option<PathBuf>,
}

const URL_FORM: &str =
    "write nats://host:port or tls://host:port, several with commas between them";

impl ClusterTable for Nats {
    fn check(&self, at: &At<'_>) {
        for url in self.url.expose().split(',') {
            check_url(&at.key("url"), url.trim());
        }
        // A domain is one token of a subject.
        let is_domain = |name: &String| !name.is_empty() && is_alphanumeric_or(name, "_-");
        if !self.domain.as_ref().is_none_or(is_domain) {
            at.key("domain").refuse(
                "no domain has this name",
                "write the server's jetstream.domain: 1 or more of A-Z a-z 0-9 _ -",
            );
        }
        at.check_certificates([&self.ca, &self.certificate, &self.certificate_key], None);
        self.check_login(at);
    }

    fn addresses(&self) -> Vec<String> {
        let address = |url: Url| {
            let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
            format!("{scheme}://{host}:{}", url.port().unwrap_or(4222))
        };
        self.urls().map(address).collect()
    }

    fn cluster(&self, name: &str, deployment: &str) -> Box<dyn Cluster> {
        Box::new(self.nats_cluster(name, deployment))
    }
}

impl Nats {
    pub(crate) fn nats_cluster(&self, name: &str, deployment: &str) -> nats::Cluster {
        nats::Cluster {
            name: name.into(),
            deployment: deployment.into(),
            urls: self.addresses(),
            domain: self.domain.clone(),
            login: self.login(),
            ca: self.ca.clone(),
            client_certificate: self.certificate.clone().zip(self.certificate_key.clone()),
        }
    }

    /// The configuration has at most one login.
    fn login(&self) -> nats::Login {
        let trimmed = |secret: &Secret| secret.expose().trim().to_owned();
        let in_url = self.url_login().map(|(name, password)| match password {
            Some(password) => nats::Login::User { name, password },
            None => nats::Login::Token(name),
        });
        let user = self.username.clone().zip(self.password.as_ref());
        let user = user.map(|(name, password)| nats::Login::User {
            name,
            password: password.expose().to_owned(),
        });
        let credentials = self.credentials.as_ref();
        in_url
            .or(user)
            .or(self.token.as_ref().map(trimmed).map(nats::Login::Token))
            .or(self.nkey.as_ref().map(trimmed).map(nats::Login::Nkey))
            .or(credentials.map(|text| nats::Login::Credentials(text.expose().to_owned())))
            .unwrap_or(nats::Login::Anonymous)
    }

    fn urls(&self) -> impl Iterator<Item = Url> {
        let urls = self.url.expose().split(',');
        urls.filter_map(|url| Url::parse(url.trim()).ok())
    }

    /// The login of the first address that has one: a user with a password, or a token.
    fn url_login(&self) -> Option<(String, Option<String>)> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let url = self.urls().find(|url| !url.username().is_empty())?;
        Some((decoded(url.username()), url.password().map(decoded)))
    }

    fn check_login(&self, at: &At<'_>) {
        at.key("password").check_secret(self.password.as_ref());
        if self.username.is_some() && self.password.is_none() {
            at.key("username").refuse(
                "a username without a password",
                "add password or password_file, or remove the username",
            );
        }
        if self.username.is_none() && self.password.is_some() {
            at.key("password").refuse(
                "a password without a username",
                "add username, or remove the password",
            );
        }
        let mut logins = vec![];
        logins.extend(self.url_login().map(|_| "url"));
        logins.extend(self.username.as_ref().map(|_| "username"));
        for (key, secret) in [
            ("token", &self.token),
            ("nkey", &self.nkey),
            ("credentials", &self.credentials),
        ] {
            at.key(key).check_secret(secret.as_ref());
            logins.extend(secret.as_ref().map(|_| key));
        }
        if let Some(second) = logins.get(1) {
            at.key(second).refuse(
                "there are two ways to log in",
                "keep one: in the address, username and password, token, nkey or credentials",
            );
        }
    }
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
        let nats = |url: &str| Nats {
            url: Secret::new(url),
            ..Nats::default()
        };
        let user = ("a@b".to_owned(), Some("p:%".to_owned()));
        assert_eq!(nats("nats://a%40b:p%3A%25@h:1").url_login(), Some(user));
        assert_eq!(
            nats("nats://h, tls://token@h2:3").url_login(),
            Some(("token".to_owned(), None))
        );
        assert_eq!(nats("nats://h").url_login(), None);
        assert_eq!(
            nats("nats://u:p@h:1, tls://h2").addresses(),
            ["nats://h:1", "tls://h2:4222"]
        );
    }
}
