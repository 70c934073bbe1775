//! `[store]`: the store in which messages wait. Only one of its tables may be set.

use super::check::At;
use super::decode::invalid;
use super::decode::secret::Secret;
use serde::Deserialize;
use std::path::PathBuf;
use url::Url;

/// The store that is used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "StoreTable")]
pub(crate) enum Store {
    Redis(Redis),
    Embedded(Embedded),
}

/// One Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Redis {
    /// `redis://` or `rediss://`. Secret, because it may contain a password.
    pub(crate) url: Secret,
    /// Set only with `password`. Both are unset if the URL contains a login.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// The embedded store: a folder that only this process uses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct Embedded {
    pub(crate) path: PathBuf,
}

impl Default for Embedded {
    fn default() -> Self {
        Self {
            path: "./postdate-data".into(),
        }
    }
}

/// `[store]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct StoreTable {
    redis: Option<Redis>,
    embedded: Option<Embedded>,
}

impl Default for Store {
    fn default() -> Self {
        Self::Embedded(Embedded::default())
    }
}

impl TryFrom<StoreTable> for Store {
    type Error = String;

    fn try_from(table: StoreTable) -> Result<Self, String> {
        match (table.redis, table.embedded) {
            (Some(redis), None) => Ok(Self::Redis(redis)),
            (None, embedded) => Ok(Self::Embedded(embedded.unwrap_or_default())),
            (Some(_), Some(_)) => Err(invalid(
                "[store.redis] and [store.embedded] are both set, and messages wait in one store only",
                "remove one of the two; waiting messages do not move to the other store",
            )),
        }
    }
}

const URL_FORM: &str = "write redis://host:port or rediss://host:port (TLS) with the address of a single server, and append /<number> for another database than 0";

impl Store {
    pub(super) fn check(&self, at: &At<'_>) {
        match self {
            Self::Redis(redis) => redis.check(&at.key("redis")),
            Self::Embedded(embedded) if embedded.path.as_os_str().is_empty() => {
                at.key("embedded").key("path").refuse(
                    "the path is empty",
                    "name a folder, which Postdate creates, or remove the key for \"./postdate-data\"",
                );
            }
            Self::Embedded(_) => {}
        }
    }
}

impl Redis {
    fn check(&self, at: &At<'_>) {
        if let Err((what, fix)) = self.check_url() {
            at.key("url").refuse(what, fix);
        }
        at.key("password").check_secret(self.password.as_ref());
        if self.username.is_some() && self.password.is_none() {
            at.key("username").refuse(
                "a username without a password",
                "add password or password_file, or remove the username",
            );
        }
    }

    /// Returns the cause and the fix of an address that cannot be used.
    fn check_url(&self) -> Result<(), (&'static str, &'static str)> {
        let Some((scheme, _)) = self.url.expose().split_once("://") else {
            return Err(("the address has no scheme", URL_FORM));
        };
        let what = match scheme {
            "redis" | "rediss" => "",
            "redis+cluster" | "rediss+cluster" | "redis-cluster" => {
                "Redis Cluster is not supported by this version"
            }
            "redis+sentinel" | "rediss+sentinel" | "redis-sentinel" | "sentinel" => {
                "Redis Sentinel is not supported by this version"
            }
            "unix" | "redis+unix" => "a Unix socket is not supported by this version",
            _ => "the address begins with neither redis:// nor rediss://",
        };
        if !what.is_empty() {
            return Err((what, URL_FORM));
        }
        let Ok(url) = Url::parse(self.url.expose()) else {
            let fix = "write redis://host:port; in a login, write @ : / # ? and % as %40 %3A %2F %23 %3F and %25";
            return Err(("the address is not understood", fix));
        };
        let database = url.path().trim_start_matches('/');
        let has_login = !url.username().is_empty() || url.password().is_some();
        if url.host_str().is_none_or(str::is_empty) {
            Err(("the address names no host", URL_FORM))
        } else if !database.is_empty() && database.parse::<u16>().is_err() {
            let what = "the address names a database that is not a number";
            Err((what, URL_FORM))
        } else if url.fragment().is_some() {
            let what = "the address has a part after #, which has no meaning";
            Err((what, "remove it; certificates are always verified"))
        } else if has_login && (self.username.is_some() || self.password.is_some()) {
            let what = "the address contains a login, and username or password is set, too";
            Err((what, "keep one of the two"))
        } else {
            Ok(())
        }
    }
}
