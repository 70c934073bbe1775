//! Address, login and certificates, as the configuration has them.

use super::access::{Access, Address, Certificates};
use super::cluster::Cluster;
use super::current_server::CurrentServer;
use super::sentinel::Sentinels;
use super::slots::CurrentSlots;
use super::{Connection, Connections, Primary};
use crate::store::Error;
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) servers: Servers,
    /// Overrides the user name in the URL.
    pub(crate) username: Option<String>,
    /// Overrides the password in the URL.
    pub(crate) password: Option<String>,
    /// For TLS with the Redis servers.
    pub(crate) certificates: Certificates,
    /// First part of every key.
    pub(crate) deployment: String,
    /// For a reply, and for a new connection.
    pub(crate) response_timeout: Duration,
    /// Clones of the options share it.
    pub(crate) server: Arc<CurrentServer>,
    /// Clones of the options share it.
    pub(crate) slots: Arc<CurrentSlots>,
}

#[derive(Clone)]
pub(crate) enum Servers {
    /// `redis://host:port/db`, or `rediss://` for TLS.
    Url(String),
    Sentinel(SentinelOptions),
    Cluster(ClusterOptions),
}

/// Nodes of a cluster, which name the others.
#[derive(Clone)]
pub(crate) struct ClusterOptions {
    pub(crate) addresses: Vec<Address>,
    /// True if the nodes need TLS.
    pub(crate) needs_tls: bool,
}

/// The sentinels of a group, and what an address says otherwise.
#[derive(Clone)]
pub(crate) struct SentinelOptions {
    pub(crate) addresses: Vec<Address>,
    /// The name of the group.
    pub(crate) master: String,
    /// The login at the sentinels.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// `None`: no TLS with the sentinels.
    pub(crate) tls: Option<Certificates>,
    /// True if the Redis servers need TLS.
    pub(crate) primary_needs_tls: bool,
    /// The number of the database.
    pub(crate) database: u16,
}

impl Options {
    #[cfg(test)]
    pub(crate) fn of_url(url: &str, deployment: &str) -> Self {
        Self {
            servers: Servers::Url(url.to_owned()),
            username: None,
            password: None,
            certificates: Certificates::default(),
            deployment: deployment.to_owned(),
            response_timeout: crate::limit::STORE_RESPONSE_TIMEOUT,
            server: Arc::default(),
            slots: Arc::default(),
        }
    }

    /// The connections to these servers. Connects with the first call.
    pub(super) fn connections(&self, checks_servers: bool) -> Result<Connections, Error> {
        let login = RedisConnectionInfo::default();
        let (primary, access) = match &self.servers {
            Servers::Url(url) => {
                let (address, login, needs_tls) = parse_url(url)?;
                (Primary::At(address), self.access(login, needs_tls))
            }
            Servers::Sentinel(options) => {
                let login = login.set_db(i64::from(options.database));
                let access = self.access(login, options.primary_needs_tls);
                (Primary::NamedBy(options.sentinels()), access)
            }
            Servers::Cluster(options) => {
                let access = self.access(login, options.needs_tls);
                let cluster = Cluster::new(options.addresses.clone(), access, self, checks_servers);
                return Ok(Connections::Cluster(Box::new(cluster)));
            }
        };
        let connection = Connection::new(primary, access, self, checks_servers);
        Ok(Connections::One(Arc::new(connection)))
    }

    fn access(&self, login: RedisConnectionInfo, needs_tls: bool) -> Access {
        Access {
            login: with_login(login, self.username.as_ref(), self.password.as_ref()),
            tls: needs_tls.then(|| self.certificates.clone()),
            table: "store.redis",
        }
    }
}

impl SentinelOptions {
    fn sentinels(&self) -> Sentinels {
        let login = RedisConnectionInfo::default();
        Sentinels {
            addresses: self.addresses.clone(),
            access: Access {
                login: with_login(login, self.username.as_ref(), self.password.as_ref()),
                tls: self.tls.clone(),
                table: "store.redis.sentinel",
            },
            master: self.master.clone(),
        }
    }
}

fn with_login(
    mut login: RedisConnectionInfo,
    username: Option<&String>,
    password: Option<&String>,
) -> RedisConnectionInfo {
    if let Some(username) = username {
        login = login.set_username(username);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// Returns the address, the login, and whether the server needs TLS.
fn parse_url(url: &str) -> Result<(Address, RedisConnectionInfo, bool), Error> {
    let info = url.into_connection_info().ok();
    let parsed = info.and_then(|info| {
        let login = info.redis_settings().clone();
        match info.addr().clone() {
            ConnectionAddr::Tcp(host, port) => Some((Address { host, port }, login, false)),
            ConnectionAddr::TcpTls { host, port, .. } => {
                Some((Address { host, port }, login, true))
            }
            _ => None,
        }
    });
    parsed.ok_or_else(|| {
        Error::Unusable(
            "the url is not one of a Redis server: write redis://host:port, or rediss://host:port for TLS"
                .to_owned(),
        )
    })
}

/// Shows no secret. The URL may contain one.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = match &self.servers {
            Servers::Url(url) => {
                parse_url(url).map_or_else(|_| "?".to_owned(), |(at, ..)| at.to_string())
            }
            Servers::Sentinel(options) => format!("{} of {:?}", options.master, options.addresses),
            Servers::Cluster(options) => format!("cluster of {:?}", options.addresses),
        };
        f.debug_struct("Options")
            .field("servers", &servers)
            .field("deployment", &self.deployment)
            .finish_non_exhaustive()
    }
}
