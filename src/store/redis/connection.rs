//! The connection to one Redis server: login, checks of the server, pipelines, and the meaning of
//! its errors.
//!
//! A connection that fails, or does not answer in time, is dropped. The next call opens a new one
//! with the same checks. The caller repeats a request whose reply was lost.

use super::script::{Call, Script};
use crate::store::Error;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, Pipeline, RedisConnectionInfo, ServerError,
    Value,
};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How old a connection must be before it is dropped because a newer one reached another server. So
/// an address that leads to two servers causes one new connection a second at most.
const KEPT_AT_LEAST: Duration = Duration::from_secs(1);

/// How often one call loads scripts. A second load is needed only if another client flushes the
/// cache.
const SCRIPT_LOADS_MAX: u32 = 3;

/// The first major version that supports flags of scripts.
pub(crate) const VERSION_MIN: u32 = 7;

/// Address, login and deployment.
#[derive(Clone)]
pub(crate) struct Options {
    /// `redis://host:port/db`, or `rediss://` for TLS.
    pub(crate) url: String,
    /// Overrides the user name in the URL.
    pub(crate) username: Option<String>,
    /// Overrides the password in the URL.
    pub(crate) password: Option<String>,
    /// First part of every key.
    pub(crate) deployment: String,
    /// For a reply, and for a new connection.
    pub(crate) response_timeout: Duration,
    /// Clones of the options share it.
    pub(crate) server: Arc<CurrentServer>,
}

/// The server that all connections of one process use: the one that the newest connection reached.
/// After a failover, an old primary may answer connections that only read, and never change again.
#[derive(Debug, Default)]
pub(crate) struct CurrentServer(Mutex<Option<String>>);

impl CurrentServer {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `run_id` is random and differs after each start of a server.
    fn set(&self, address: &str, run_id: &str) {
        let before = self.lock().replace(run_id.to_owned());
        if before.is_some_and(|before| before != run_id) {
            tracing::warn!(
                address,
                run_id,
                "connected to another Redis server, or it was restarted: connections to the old one are dropped"
            );
        }
    }

    fn is(&self, run_id: &str) -> bool {
        self.lock().as_deref() == Some(run_id) || fault!(KeepConnectionsToOldServer)
    }
}

/// Shows no secret. The URL may contain one.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self
            .url
            .as_str()
            .into_connection_info()
            .map_or_else(|_| "?".to_owned(), |info| info.addr().to_string());
        f.debug_struct("Options")
            .field("address", &address)
            .field("deployment", &self.deployment)
            .finish_non_exhaustive()
    }
}

/// Opens the connection with the first call, and again after a failure.
pub(super) struct Connection {
    client: Client,
    /// Client for subscriptions. It logs in by itself.
    listener: Client,
    /// Names the server in messages. Contains no secret.
    address: String,
    /// The first commands on every connection.
    login: Pipeline,
    /// Rejects an unsuitable server.
    checks_server: bool,
    response_timeout: Duration,
    server: Arc<CurrentServer>,
    current: RefCell<Option<Connected>>,
    /// True once the server has answered a call. A later refusal does not end the process,
    /// because a failover may have led to a server that an operator has still to repair.
    has_answered: Cell<bool>,
}

struct Connected {
    connection: MultiplexedConnection,
    /// `None`: the server was not checked.
    run_id: Option<String>,
    since: Instant,
}

impl Connection {
    /// Parses the options. Connects with the first call.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let info = options.url.as_str().into_connection_info().map_err(|_| {
            Error::Unusable(
                "the url is not one of a Redis server: write redis://host:port, or \
                 rediss://host:port for TLS"
                    .to_owned(),
            )
        })?;
        let address = info.addr().to_string();
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(username) = &options.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &options.password {
            settings = settings.set_password(password);
        }
        let login = login_commands(&settings);
        // The client does not log in, because it would not report why a login failed.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let open = |settings| {
            let client = Client::open(info.clone().set_redis_settings(settings));
            client.map_err(|error| Error::Unusable(format!("{address}: {error}")))
        };
        let client = open(RedisConnectionInfo::default().set_skip_set_lib_name())?;
        let listener = open(settings)?;
        Ok(Self {
            client,
            listener,
            address,
            login,
            checks_server: true,
            response_timeout: options.response_timeout,
            server: options.server.clone(),
            current: RefCell::new(None),
            has_answered: Cell::new(false),
        })
    }

    /// Accepts any server that accepts the login.
    pub(super) fn unchecked(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            checks_server: false,
            ..Self::new(options)?
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
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
            self.client_error(&error)
        })?;
        if let Some(refused) = values.iter().find_map(fatal_error) {
            if needs_reconnect(refused) {
                self.drop_connection();
            }
            return Err(self.refused(self.server_error(refused)));
        }
        self.has_answered.set(true);
        Ok(values)
    }

    fn refused(&self, error: Error) -> Error {
        match error {
            Error::Unusable(text) if self.has_answered.get() && !fault!(EndAtLateRefusal) => {
                Error::Refused(text)
            }
            error => error,
        }
    }

    /// Calls scripts in one pipeline and returns one value each. Scripts that the server does not
    /// have in its cache (after a restart, a failover or a flush) are loaded and called again.
    pub(super) async fn call(&self, calls: &[Call]) -> Result<Vec<Value>, Error> {
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
            "{} loses scripts as soon as they are loaded: another client flushes its script cache",
            self.address
        )))
    }

    /// Connects, unless there is a connection.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.current_or_connect().await.map(drop)
    }

    /// Subscribes to a channel on a new connection.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, Error> {
        let subscribed = async {
            let mut listener = self.listener.get_async_pubsub().await?;
            listener.subscribe(channel).await?;
            Ok(listener.into_on_message())
        };
        let timely = tokio::time::timeout(self.response_timeout, subscribed).await;
        timely
            .map_err(|_| Error::Unavailable(format!("{} did not answer in time", self.address)))?
            .map_err(|error: redis::RedisError| {
                if error.code() == Some("NOPERM") {
                    self.missing_permission(error.detail().unwrap_or_default())
                } else {
                    self.client_error(&error)
                }
            })
    }

    async fn current_or_connect(&self) -> Result<MultiplexedConnection, Error> {
        if let Some(current) = &*self.current.borrow() {
            let is_outdated = (current.run_id.as_ref()).is_some_and(|id| !self.server.is(id));
            if !is_outdated || current.since.elapsed() < KEPT_AT_LEAST {
                return Ok(current.connection.clone());
            }
        }
        let connected = self.new_connection().await;
        let connected = connected.map_err(|error| self.refused(error))?;
        let connection = connected.connection.clone();
        self.current.replace(Some(connected));
        Ok(connection)
    }

    async fn new_connection(&self) -> Result<Connected, Error> {
        self.drop_connection();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.response_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| self.client_error(&error))?;
        let answers = connection
            .send_packed_commands(&self.login, 0, self.login.len())
            .await
            .map_err(|error| self.client_error(&error))?;
        let run_id = self.check_server(&answers)?;
        if let Some(run_id) = &run_id {
            self.server.set(&self.address, run_id);
        }
        Ok(Connected {
            connection,
            run_id,
            since: Instant::now(),
        })
    }

    fn drop_connection(&self) {
        self.current.borrow_mut().take();
    }

    /// Checks the replies to the login, and that the server is suitable. Returns its run id.
    fn check_server(&self, answers: &[Value]) -> Result<Option<String>, Error> {
        if let Some(refused) = answers.iter().find_map(fatal_error) {
            return Err(self.server_error(refused));
        }
        if !self.checks_server {
            return Ok(None);
        }
        let info: String = answers
            .iter()
            .filter_map(|value| super::reply::text(value.clone()))
            .collect();
        let address = &self.address;
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
        if info_field(&info, "redis_mode") == Some("cluster") {
            return Err(Error::Unusable(format!(
                "{address} is a node of a Redis Cluster, which this version of Postdate cannot use: give it a single Redis server"
            )));
        }
        if info_field(&info, "role") == Some("slave") {
            return Err(Error::Unavailable(format!(
                "{address} is a replica: store.redis.url must lead to the primary"
            )));
        }
        let policy = info_field(&info, "maxmemory_policy").unwrap_or("unknown");
        if policy != "noeviction" {
            return Err(Error::Unusable(format!(
                "{address} has maxmemory-policy {policy}, under which Redis drops waiting messages when memory runs out: \
                 run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too"
            )));
        }
        Ok(info_field(&info, "run_id").map(str::to_owned))
    }

    fn client_error(&self, error: &redis::RedisError) -> Error {
        match error.kind() {
            redis::ErrorKind::InvalidClientConfig => {
                Error::Unusable(format!("{}: {error}", self.address))
            }
            _ if error.is_timeout() => {
                Error::Unavailable(format!("{} did not answer in time", self.address))
            }
            _ => Error::Unavailable(format!("{}: {error}", self.address)),
        }
    }

    fn missing_permission(&self, detail: &str) -> Error {
        Error::Unusable(format!(
            "{} denies its user a permission that Postdate needs ({detail}): grant it what deploy/redis/users.acl has, or more broadly \
             `~pd:* &pd:* +@read +@write +@scripting +info +time +select +publish +subscribe`",
            self.address
        ))
    }

    /// Translates an error of the server.
    fn server_error(&self, error: &ServerError) -> Error {
        let address = &self.address;
        let code = error.code();
        let detail = error.details().unwrap_or_default();
        match code {
            "OOM" => Error::Full,
            "NOAUTH" => Error::Unusable(format!(
                "{address} demands a password: set store.redis.password or password_file"
            )),
            "WRONGPASS" => Error::Unusable(format!(
                "{address} refuses the user or the password: check store.redis.username and store.redis.password or password_file"
            )),
            "NOPERM" => self.missing_permission(detail),
            // A command inside a script was denied. Only `ACL LOG` names the command.
            "ERR" if detail.contains("can't run this command") => self.missing_permission(detail),
            "MOVED" | "ASK" | "CROSSSLOT" => Error::Unusable(format!(
                "{address} is a node of a Redis Cluster, which this version of Postdate cannot use ({code} {detail})"
            )),
            "LOADING" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY"
            | "MISCONF" | "NOREPLICAS" => Error::Unavailable(format!("{address}: {code} {detail}")),
            "ERR" if detail.starts_with("max number of clients") => {
                Error::Unavailable(format!("{address}: {detail}"))
            }
            _ => Error::Unusable(format!("{address}: {code} {detail}")),
        }
    }
}

/// The first commands on a connection. [`Connection::check_server`] reads the replies.
fn login_commands(settings: &RedisConnectionInfo) -> Pipeline {
    let mut login = Pipeline::new();
    if let Some(password) = settings.password() {
        login.cmd("AUTH").arg(settings.username()).arg(password);
    }
    if settings.db() != 0 {
        login.cmd("SELECT").arg(settings.db());
    }
    // A call for each, because Redis before 7 accepts one section only. Its version must be reported.
    for section in ["server", "memory", "replication"] {
        login.cmd("INFO").arg(section);
    }
    login
}

pub(super) fn is_error(value: &Value, code: &str) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == code)
}

/// The error in a value, unless it concerns only one key or script.
fn fatal_error(value: &Value) -> Option<&ServerError> {
    match value {
        Value::ServerError(error) if !matches!(error.code(), "WRONGTYPE" | "NOSCRIPT") => {
            Some(error)
        }
        _ => None,
    }
}

/// True if the same connection would fail again: the server is a replica now, or needs a login.
fn needs_reconnect(error: &ServerError) -> bool {
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "NOAUTH")
}

/// A field of INFO.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}
