//! `[store]`: the store in which messages wait, and the keys that encrypt them. Only one store may be
//! set.

use super::check::At;
use super::decode::invalid;
use super::decode::secret::Secret;
use crate::encryption::KeyRing;
use serde::Deserialize;
use std::path::PathBuf;
use url::Url;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "StoreTable")]
pub(crate) struct StoreOptions {
    pub(crate) kind: Store,
    pub(crate) encryption: Option<Encryption>,
}

/// The keys that encrypt what the store keeps.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Encryption {
    /// The text of a [`KeyRing`].
    pub(crate) keys: Option<Secret>,
}

/// The store that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis(Box<Redis>),
    Embedded(Embedded),
}

/// One Redis server, a group of servers whose primary the sentinels name, or a Redis Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Redis {
    /// `redis://` or `rediss://`. Secret, because it may contain a password. Unset with `sentinel`
    /// or `cluster`.
    pub(crate) url: Option<Secret>,
    /// Set only with `password`. Both are unset if the URL contains a login.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    /// Certificates that are trusted instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) certificate_key: Option<PathBuf>,
    /// Only with `sentinel` or `cluster`: an address says it by its scheme.
    pub(crate) tls: Option<bool>,
    /// Only with `sentinel`: an address ends with it.
    pub(crate) database: Option<u16>,
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) cluster: Option<Cluster>,
}

/// Nodes of a Redis Cluster, which name the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Cluster {
    /// `host:port` of each node.
    pub(crate) servers: Vec<String>,
}

/// The sentinels of a Redis group, and the connection to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct Sentinel {
    /// `host:port` of each sentinel.
    pub(crate) servers: Vec<String>,
    /// The name under which the sentinels monitor the group.
    pub(crate) master: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) tls: Option<bool>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) certificate_key: Option<PathBuf>,
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
    encryption: Option<Encryption>,
}

impl Default for Store {
    fn default() -> Self {
        Self::Embedded(Embedded::default())
    }
}

impl TryFrom<StoreTable> for StoreOptions {
    type Error = String;

    fn try_from(table: StoreTable) -> Result<Self, String> {
        let kind = match (table.redis, table.embedded) {
            (Some(redis), None) => Store::Redis(Box::new(redis)),
            (None, embedded) => Store::Embedded(embedded.unwrap_or_default()),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "[store.redis] and [store.embedded] are both set, and messages wait in one store only",
                    "remove one of the two; waiting messages do not move to the other store",
                ));
            }
        };
        Ok(Self {
            kind,
            encryption: table.encryption,
        })
    }
}

impl StoreOptions {
    /// Says which store it is, and whether it is encrypted.
    pub(super) fn without_logins(&self) -> Self {
        let mut public = self.clone();
        if let Some(encryption) = &mut public.encryption {
            encryption.keys = None;
        }
        if let Store::Redis(redis) = &mut public.kind {
            redis.username = None;
            redis.password = None;
            redis.url = redis.url.as_ref().map(without_login);
            if let Some(sentinel) = &mut redis.sentinel {
                sentinel.username = None;
                sentinel.password = None;
            }
        }
        public
    }

    pub(super) fn check(&self, deployment: &str, at: &At<'_>) {
        self.kind.check(at);
        let at = at.key("encryption").key("keys");
        match self.encryption.as_ref().map(|options| &options.keys) {
            Some(None) => at.refuse("missing", "add keys_file with the path of a file of keys"),
            Some(Some(keys)) => {
                if let Err(error) = KeyRing::parse(deployment, keys.expose()) {
                    let fix = "write one key a line as <key id>:<32 bytes in base64>, the one that encrypts first: `openssl rand -base64 32`";
                    at.refuse(error.to_string(), fix);
                }
            }
            None => {}
        }
    }
}

fn without_login(url: &Secret) -> Secret {
    let Ok(mut address) = Url::parse(url.expose()) else {
        return url.clone();
    };
    // Both fail only for addresses that have no host.
    let _ = address.set_username("");
    let _ = address.set_password(None);
    Secret::new(String::from(address))
}

const URL_FORM: &str = "write redis://host:port or rediss://host:port (TLS) with the address of a single server, and append /<number> for another database than 0";
const SENTINEL_FORM: &str = "remove url, and add [store.redis.sentinel] with servers and master, as config/default.toml does";
const CLUSTER_FORM: &str =
    "remove url, and add [store.redis.cluster] with servers, as config/default.toml does";

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
        match (&self.url, &self.sentinel, &self.cluster) {
            (Some(url), None, None) => self.check_url(url, at),
            (None, Some(sentinel), None) => sentinel.check(&at.key("sentinel")),
            (None, None, Some(cluster)) => {
                check_servers(&cluster.servers, "Redis servers usually have port 6379", &at.key("cluster"));
                if self.database.is_some() {
                    at.key("database").refuse("a Redis Cluster has one database only", "remove it");
                }
            }
            (Some(_), Some(_), None) => at.key("url").refuse(
                "url and sentinel are both set",
                "remove url: the sentinels name the address of the primary",
            ),
            (Some(_), None, Some(_)) => at.key("url").refuse(
                "url and cluster are both set",
                "remove url: the nodes name the addresses of the primaries",
            ),
            (_, Some(_), Some(_)) => at.key("cluster").refuse(
                "sentinel and cluster are both set",
                "remove one of the two: a Redis Cluster has no sentinels",
            ),
            (None, None, None) => at.key("url").refuse(
                "missing",
                "add url = \"redis://127.0.0.1:6379\", or the key with _file appended and the path of a file that contains it, or [store.redis.sentinel], or [store.redis.cluster]",
            ),
        }
        check_login(at, self.username.as_ref(), self.password.as_ref());
        let is_tls = match &self.url {
            Some(url) => url.expose().starts_with("rediss://"),
            None => self.tls == Some(true),
        };
        let how = if self.url.is_some() {
            "write rediss:// in url, or remove it"
        } else {
            "add tls = true, or remove it"
        };
        at.check_certificates(
            [&self.ca, &self.certificate, &self.certificate_key],
            (!is_tls).then_some(how),
        );
    }

    fn check_url(&self, url: &Secret, at: &At<'_>) {
        if let Err((what, fix)) = self.check_address(url.expose()) {
            at.key("url").refuse(what, fix);
        }
        let without_effect = "with `url`, the address contains the value of this key";
        if self.tls.is_some() {
            at.key("tls")
                .refuse(without_effect, "remove it, and write rediss:// for TLS");
        }
        if self.database.is_some() {
            at.key("database")
                .refuse(without_effect, "remove it, and append /<number> to url");
        }
    }

    /// Returns the cause and the fix of an address that cannot be used.
    fn check_address(&self, address: &str) -> Result<(), (&'static str, &'static str)> {
        let Some((scheme, _)) = address.split_once("://") else {
            return Err(("the address has no scheme", URL_FORM));
        };
        let what = match scheme {
            "redis" | "rediss" => "",
            "redis+cluster" | "rediss+cluster" | "redis-cluster" => {
                return Err(("the address is one of a Redis Cluster", CLUSTER_FORM));
            }
            "redis+sentinel" | "rediss+sentinel" | "redis-sentinel" | "sentinel" => {
                return Err(("the address is one of sentinels", SENTINEL_FORM));
            }
            "unix" | "redis+unix" => "a Unix socket is not supported by this version",
            _ => "the address begins with neither redis:// nor rediss://",
        };
        if !what.is_empty() {
            return Err((what, URL_FORM));
        }
        let Ok(url) = Url::parse(address) else {
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

impl Sentinel {
    /// Host and port of each sentinel.
    pub(crate) fn host_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.servers.iter().filter_map(|server| host_port(server))
    }

    fn check(&self, at: &At<'_>) {
        check_servers(&self.servers, "sentinels usually have port 26379", at);
        if self.master.is_empty() || self.master.contains(char::is_whitespace) {
            at.key("master").refuse(
                "the name is empty or contains a blank",
                "write the name of `sentinel monitor <name> ...` in sentinel.conf",
            );
        }
        check_login(at, self.username.as_ref(), self.password.as_ref());
        let how = "add tls = true beside it, or remove it";
        at.check_certificates(
            [&self.ca, &self.certificate, &self.certificate_key],
            (self.tls != Some(true)).then_some(how),
        );
    }
}

impl Cluster {
    /// Host and port of each node.
    pub(crate) fn host_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.servers.iter().filter_map(|server| host_port(server))
    }
}

fn check_servers(servers: &[String], usual: &str, at: &At<'_>) {
    at.key("servers").check_list(servers);
    for (index, server) in servers.iter().enumerate() {
        if host_port(server).is_none() {
            let at = at.key("servers").key(index);
            at.refuse(
                "the address is not understood",
                format!("write host:port; {usual}"),
            );
        }
    }
}

fn check_login(at: &At<'_>, username: Option<&String>, password: Option<&Secret>) {
    at.key("password").check_secret(password);
    if username.is_some() && password.is_none() {
        at.key("username").refuse(
            "a username without a password",
            "add password or password_file, or remove the username",
        );
    }
}

/// Host and port of `host:port`. An IPv6 address has brackets, which are removed.
fn host_port(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_valid = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_host),
    };
    is_valid.then_some((inner.unwrap_or(host), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::host_port;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        assert_eq!(host_port("s1.example:26379"), Some(("s1.example", 26379)));
        assert_eq!(host_port("[::1]:26379"), Some(("::1", 26379)));
        for wrong in [
            "s1",
            "s1:",
            ":1",
            "redis://s1:1",
            "s1:99999",
            "::1:1",
            "u@s:1",
        ] {
            assert_eq!(host_port(wrong), None, "{wrong}");
        }
    }
}
