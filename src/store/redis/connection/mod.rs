//! The connections to the Redis servers that are primaries: look-up, login, checks of the server, and
//! pipelines.
//!
//! | file | duty |
//! |---|---|
//! | `options` | address, login and certificates, as the configuration has them |
//! | `access` | login and TLS of one kind of server |
//! | `sentinel` | asks the sentinels for the primary |
//! | `cluster`, `slots` | sends each command to the primary of its slot |
//! | `current_server` | all connections of a process use one server |
//! | `errors` | meaning of errors |
//!
//! A connection that fails, or does not answer in time, is dropped. The next call looks up the
//! primary and opens a new connection with the same checks. The caller repeats a request whose reply
//! was lost.

mod access;
mod cluster;
mod current_server;
mod errors;
mod options;
mod sentinel;
mod slots;

pub(crate) use access::{Address, Certificates};
pub(super) use errors::is_error;
pub(crate) use options::{ClusterOptions, Options, SentinelOptions, Servers};
pub(crate) use sentinel::GroupView;
pub(super) use slots::{Slot, slot_of_key};

use super::script::{Call, Script};
use crate::limit::LOOKUP_TIMEOUT;
use crate::store::Error;
use access::Access;
use cluster::Cluster;
use current_server::CurrentServer;
use errors::{client_error, fatal_error, needs_reconnect, server_error};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Cmd, Pipeline, Value};
use sentinel::Sentinels;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How old a connection must be before it is dropped because a newer one reached another server. So
/// an address that leads to two servers causes one new connection a second at most.
const KEPT_AT_LEAST: Duration = Duration::from_secs(1);

/// How often one call loads scripts. A second load is needed only if another client flushes the
/// cache.
const SCRIPT_LOADS_MAX: u32 = 3;

const CLUSTER_FORM: &str = "remove store.redis.url and add [store.redis.cluster] with servers, as config/default.toml does";

/// The first major version that supports flags of scripts.
pub(crate) const VERSION_MIN: u32 = 7;

/// The connections of one loop: one, or one to each primary of a cluster.
pub(super) enum Connections {
    One(Arc<Connection>),
    Cluster(Box<Cluster>),
}

impl Connections {
    /// Parses the options. Connects with the first call.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        options.connections(true)
    }

    /// Accepts all servers that accept the login.
    pub(super) fn unchecked(options: &Options) -> Result<Self, Error> {
        options.connections(false)
    }

    /// Connects, unless there are connections.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        for connection in self.primaries().await? {
            connection.current_or_connect().await?;
        }
        Ok(())
    }

    /// The connection to each primary.
    pub(super) async fn primaries(&self) -> Result<Vec<Arc<Connection>>, Error> {
        match self {
            Self::One(connection) => Ok(vec![connection.clone()]),
            Self::Cluster(cluster) => cluster.primaries().await,
        }
    }

    /// Sends the commands in one pipeline to each server, and returns one value each. An error that
    /// concerns only one key or script is among the values. Any other error fails the call.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        let cluster = match self {
            Self::One(connection) => return connection.send(pipeline).await,
            Self::Cluster(cluster) => cluster,
        };
        let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
        let send = async |connection: &Connection, part: &[usize]| {
            let mut pipeline = Pipeline::new();
            for &at in part {
                pipeline.add_command(commands[at].clone());
            }
            connection.send(&pipeline).await
        };
        cluster.route(&commands, send).await
    }

    /// Calls scripts in one pipeline to each server, and returns one value each.
    pub(super) async fn call(&self, calls: &[Call]) -> Result<Vec<Value>, Error> {
        let calls: Vec<&Call> = calls.iter().collect();
        let cluster = match self {
            Self::One(connection) => return connection.call(&calls).await,
            Self::Cluster(cluster) => cluster,
        };
        let commands: Vec<&Cmd> = calls.iter().map(|call| &call.command).collect();
        let send = async |connection: &Connection, part: &[usize]| {
            let part: Vec<&Call> = part.iter().map(|&at| calls[at]).collect();
            connection.call(&part).await
        };
        cluster.route(&commands, send).await
    }

    /// Subscribes to channels on a new connection, at the server of the first channel.
    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<PubSubStream, Error> {
        match self {
            Self::One(connection) => connection.subscribe(channels).await,
            Self::Cluster(cluster) => {
                let first = channels.first().map_or("", String::as_str);
                let connection = cluster.primary_of(first).await?;
                connection.subscribe(channels).await
            }
        }
    }

    /// Ends when another server has taken over for this channel.
    pub(super) async fn switched(&self, channel: &str) {
        match self {
            Self::One(connection) => connection.switched().await,
            Self::Cluster(cluster) => cluster.switched(channel).await,
        }
    }

    /// Names the servers in messages.
    pub(super) fn address(&self) -> String {
        match self {
            Self::One(connection) => connection.address(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }
}

/// Opens the connection with the first call, and again after a failure.
pub(super) struct Connection {
    primary: Primary,
    access: Access,
    /// Names the server in messages. Contains no secret.
    address: Mutex<String>,
    /// The first commands on every connection.
    login: Pipeline,
    /// Rejects an unsuitable server.
    checks_server: bool,
    response_timeout: Duration,
    server: Arc<CurrentServer>,
    current: Mutex<Option<Connected>>,
    /// True once the server, or another one of its cluster, has answered a call. A later refusal
    /// does not end the process, because a failover may have led to a server that an operator has
    /// still to repair.
    has_answered: Arc<AtomicBool>,
}

/// Where the primary is.
enum Primary {
    At(Address),
    NamedBy(Sentinels),
    /// A node of a cluster, which another node named as a primary.
    Node(Address),
}

struct Connected {
    connection: MultiplexedConnection,
    /// `None`: the server was not checked.
    run_id: Option<String>,
    since: Instant,
}

impl Connection {
    /// Connects with the first call.
    fn new(primary: Primary, access: Access, options: &Options, checks_server: bool) -> Self {
        let address = match &primary {
            Primary::At(address) | Primary::Node(address) => address.to_string(),
            Primary::NamedBy(sentinels) => format!("the primary of {}", sentinels.master),
        };
        let mut login = access.login_commands();
        // A call for each, because Redis before 7 accepts one section only. Its version must be reported.
        for section in ["server", "memory", "replication"] {
            login.cmd("INFO").arg(section);
        }
        Self {
            primary,
            access,
            address: Mutex::new(address),
            login,
            checks_server,
            response_timeout: options.response_timeout,
            server: options.server.clone(),
            current: Mutex::new(None),
            has_answered: Arc::default(),
        }
    }

    /// The address of the newest connection.
    pub(super) fn address(&self) -> String {
        lock(&self.address).clone()
    }

    /// The answer of each sentinel, if there are any.
    pub(super) async fn sentinel_views(&self) -> Vec<(Address, Result<GroupView, Error>)> {
        match &self.primary {
            Primary::At(_) | Primary::Node(_) => Vec::new(),
            Primary::NamedBy(sentinels) => sentinels.views().await,
        }
    }

    /// Ends when the sentinels announce another primary. All connections of the process then look
    /// it up.
    pub(super) async fn switched(&self) {
        match &self.primary {
            Primary::At(_) | Primary::Node(_) => std::future::pending().await,
            Primary::NamedBy(sentinels) => sentinels.switched().await,
        }
        tracing::info!("the sentinels announced another primary: all connections look it up");
        self.server.forget();
    }

    /// Sends the commands in one pipeline and returns one value each. An error that concerns only
    /// one key or script is among the values. Any other error fails the call.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.current_or_connect().await?;
        let sent = connection.send_packed_commands(pipeline, 0, pipeline.len());
        let values = sent.await.map_err(|error| {
            self.drop_connection();
            client_error(self.address(), &error)
        })?;
        let in_cluster = matches!(self.primary, Primary::Node(_));
        if let Some(refused) = values
            .iter()
            .find_map(|value| fatal_error(value, in_cluster))
        {
            if needs_reconnect(refused) {
                self.drop_connection();
            }
            let error = server_error(&self.address(), refused);
            return Err(late_refusal(error, &self.has_answered));
        }
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(values)
    }

    /// Calls scripts in one pipeline and returns one value each. Scripts that the server does not
    /// have in its cache (after a restart, a failover or a flush) are loaded and called again.
    pub(super) async fn call(&self, calls: &[&Call]) -> Result<Vec<Value>, Error> {
        let mut pipeline = Pipeline::new();
        for call in calls {
            pipeline.add_command(call.command.clone());
        }
        let mut values = self.send(&pipeline).await?;
        for _ in 0..SCRIPT_LOADS_MAX {
            let unknown: Vec<usize> = (0..calls.len())
                .filter(|&at| is_error(&values[at], "NOSCRIPT"))
                .collect();
            if unknown.is_empty() {
                return Ok(values);
            }
            let mut scripts: Vec<Script> = unknown.iter().map(|&at| calls[at].script).collect();
            scripts.sort_unstable();
            scripts.dedup();
            let mut reload = Pipeline::new();
            for script in &scripts {
                reload.add_command(script.load());
            }
            for &at in &unknown {
                reload.add_command(calls[at].command.clone());
            }
            let answers = self.send(&reload).await?;
            for (at, value) in unknown
                .into_iter()
                .zip(answers.into_iter().skip(scripts.len()))
            {
                values[at] = value;
            }
        }
        Err(Error::Unavailable(format!(
            "{} loses its scripts right after they are loaded: find the client that calls SCRIPT FLUSH, and stop it",
            self.address()
        )))
    }

    /// Subscribes to channels on a new connection.
    async fn subscribe(&self, channels: &[String]) -> Result<PubSubStream, Error> {
        let address = self.locate().await?;
        self.access
            .subscribe(&address, channels, self.response_timeout)
            .await
    }

    /// The address of the primary.
    async fn locate(&self) -> Result<Address, Error> {
        match &self.primary {
            Primary::At(address) | Primary::Node(address) => Ok(address.clone()),
            Primary::NamedBy(sentinels) => sentinels.primary().await,
        }
    }

    async fn current_or_connect(&self) -> Result<MultiplexedConnection, Error> {
        if let Some(current) = &*lock(&self.current) {
            let is_outdated = (current.run_id.as_ref()).is_some_and(|id| !self.server.is(id));
            if !is_outdated || current.since.elapsed() < KEPT_AT_LEAST {
                return Ok(current.connection.clone());
            }
        }
        let connected = self.new_connection().await;
        let connected = connected.map_err(|error| late_refusal(error, &self.has_answered))?;
        let connection = connected.connection.clone();
        lock(&self.current).replace(connected);
        Ok(connection)
    }

    async fn new_connection(&self) -> Result<Connected, Error> {
        self.drop_connection();
        let address = self.locate().await?;
        *lock(&self.address) = address.to_string();
        // A frozen server accepts connections. The others may name another primary by now.
        let patience = match &self.primary {
            Primary::At(_) => self.response_timeout,
            Primary::NamedBy(_) | Primary::Node(_) => self.response_timeout.min(LOOKUP_TIMEOUT),
        };
        let opened = (self.access).open(&address, &self.login, patience, self.response_timeout);
        let (connection, answers) = opened.await?;
        let run_id = self.check_server(&answers)?;
        if let Some(run_id) = &run_id {
            self.server.set(&address.to_string(), run_id);
        }
        Ok(Connected {
            connection,
            run_id,
            since: Instant::now(),
        })
    }

    fn drop_connection(&self) {
        lock(&self.current).take();
    }

    /// Checks the replies to the login, and that the server is suitable. Returns its run id, unless
    /// it is a node of a cluster: a node that is no primary any more refuses each command.
    fn check_server(&self, answers: &[Value]) -> Result<Option<String>, Error> {
        if let Some(refused) = answers.iter().find_map(|value| fatal_error(value, false)) {
            return Err(server_error(&self.address(), refused));
        }
        if !self.checks_server {
            return Ok(None);
        }
        let info: String = answers
            .iter()
            .filter_map(|value| super::reply::text(value.clone()))
            .collect();
        let address = self.address();
        let version = info_field(&info, "redis_version").unwrap_or("unknown");
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major < VERSION_MIN) {
            return Err(Error::Unusable(format!(
                "{address} is Redis {version}, and Postdate needs {VERSION_MIN}.0 or newer: upgrade it"
            )));
        }
        let in_cluster = matches!(self.primary, Primary::Node(_));
        if is_cluster_node(&info) && !in_cluster {
            return Err(Error::Unusable(format!(
                "{address} is a node of a Redis Cluster: {CLUSTER_FORM}"
            )));
        }
        if info_field(&info, "role") == Some("slave") {
            let advice = if in_cluster {
                "the next call asks the nodes for the primary"
            } else {
                "set store.redis.url to the primary, or wait if a failover is in progress"
            };
            return Err(Error::Unavailable(format!(
                "{address} is a replica: {advice}"
            )));
        }
        let policy = info_field(&info, "maxmemory_policy").unwrap_or("unknown");
        if policy != "noeviction" {
            return Err(Error::Unusable(format!(
                "{address} has maxmemory-policy {policy}, under which Redis drops waiting messages when memory runs out: \
                 run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too"
            )));
        }
        let run_id = info_field(&info, "run_id").filter(|_| !in_cluster);
        Ok(run_id.map(str::to_owned))
    }
}

/// A server that has answered before and refuses this process now does not end it.
fn late_refusal(error: Error, has_answered: &AtomicBool) -> Error {
    match error {
        Error::Unusable(text)
            if has_answered.load(Ordering::Relaxed) && !fault!(EndAtLateRefusal) =>
        {
            Error::Refused(text)
        }
        error => error,
    }
}

/// No value is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Valkey 8 and later has another name for the mode.
pub(super) fn is_cluster_node(info: &str) -> bool {
    let mode = info_field(info, "redis_mode").or_else(|| info_field(info, "server_mode"));
    mode == Some("cluster")
}

/// A field of INFO.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}
