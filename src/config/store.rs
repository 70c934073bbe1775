//! Decodes `[store]`: the store in which messages wait. Only one of its tables may be set.

use super::decode::{At, Table};
use super::secret::Secret;
use serde::Deserialize;
use std::path::PathBuf;
use url::Url;

/// The store that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis(Redis),
    Embedded(Embedded),
}

/// One Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Redis {
    /// `redis://` or `rediss://`. Secret, because it may contain a password.
    pub(crate) url: Secret,
    /// Set only with `password`. Both are unset if the URL contains a login.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// The embedded store: a folder that only this process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) path: PathBuf,
}

const DEFAULT_PATH: &str = "./postdate-data";
const URL_FORM: &str = "write redis://host:port or rediss://host:port (TLS), and append /<number> for another database than 0";

/// `[store]` as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoreTable {
    redis: Option<Table<RedisTable>>,
    embedded: Table<EmbeddedTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RedisTable {
    url: Option<Secret>,
    url_file: Option<String>,
    username: Option<String>,
    password: Option<Secret>,
    password_file: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EmbeddedTable {
    path: Option<String>,
}

/// Checks the table. Without `[store.redis]`, messages wait in the embedded store.
pub(super) fn check(at: &At<'_>, store: StoreTable) -> Store {
    let embedded = at.key("embedded");
    let Some(Table(redis)) = store.redis else {
        return Store::Embedded(Embedded {
            path: embedded_path(&embedded.key("path"), store.embedded.0.path),
        });
    };
    if embedded.is_set() {
        embedded.refuse(
            "[store.redis] is set, too, and messages wait in one store only",
            "remove one of the two; waiting messages do not move to the other store",
        );
    }
    Store::Redis(check_redis(&at.key("redis"), redis))
}

fn embedded_path(at: &At<'_>, path: Option<String>) -> PathBuf {
    let path = path.unwrap_or_else(|| DEFAULT_PATH.to_owned());
    if path.is_empty() {
        let fix = format!(
            "name a folder, which Postdate creates, or remove the key for \"{DEFAULT_PATH}\""
        );
        at.refuse("the path is empty", fix);
    }
    path.into()
}

fn check_redis(at: &At<'_>, redis: RedisTable) -> Redis {
    let username_at = at.key("username");
    let password = at
        .key("password")
        .secret(redis.password, redis.password_file);
    let url = at.key("url").secret(redis.url, redis.url_file);
    if let Some((at, url)) = &url {
        check_url(at, url, username_at.is_set() || password.is_some());
    } else if !at.key("url_file").is_set() {
        at.key("url")
            .missing("add url = \"redis://127.0.0.1:6379\", or url_file with the path of a file that contains it");
    }
    let has_password = at.key("password").is_set() || at.key("password_file").is_set();
    if redis.username.is_some() && !has_password {
        username_at.refuse(
            "a username without a password",
            "add password or password_file, or remove the username",
        );
    }
    Redis {
        url: url.map(|(_, url)| url).unwrap_or_default(),
        username: redis.username,
        password: password.map(|(_, password)| password),
    }
}

fn check_url(at: &At<'_>, url: &Secret, has_login: bool) {
    let Some((scheme, _)) = url.expose().split_once("://") else {
        return at.refuse("the address has no scheme", URL_FORM);
    };
    if let Some(kind) = unsupported_kind(scheme) {
        return at.refuse(
            format!("{kind} is not supported by this version"),
            "give the address of a single server: redis://host:port or rediss://host:port",
        );
    }
    if !["redis", "rediss"].contains(&scheme) {
        let what = "the address begins with neither redis:// nor rediss://";
        return at.refuse(what, URL_FORM);
    }
    let Ok(url) = Url::parse(url.expose()) else {
        let fix =
            format!("{URL_FORM}; in a login, write @ : / # ? and % as %40 %3A %2F %23 %3F and %25");
        return at.refuse("the address is not understood", fix);
    };
    let database = url.path().trim_start_matches('/');
    if url.host_str().is_none_or(str::is_empty) {
        at.refuse("the address names no host", URL_FORM);
    } else if !database.is_empty() && database.parse::<u16>().is_err() {
        at.refuse(
            "the address names a database that is not a number",
            URL_FORM,
        );
    } else if url.fragment().is_some() {
        at.refuse(
            "the address has a part after #, which has no meaning",
            "remove it; certificates are always verified",
        );
    }
    if has_login && (!url.username().is_empty() || url.password().is_some()) {
        at.refuse(
            "the address contains a login, and username or password is set, too",
            "keep one of the two",
        );
    }
}

/// The kind of Redis that a scheme names and this version cannot use.
fn unsupported_kind(scheme: &str) -> Option<&'static str> {
    match scheme {
        "redis+cluster" | "rediss+cluster" | "redis-cluster" => Some("Redis Cluster"),
        "redis+sentinel" | "rediss+sentinel" | "redis-sentinel" | "sentinel" => {
            Some("Redis Sentinel")
        }
        "unix" | "redis+unix" => Some("a Unix socket"),
        _ => None,
    }
}
