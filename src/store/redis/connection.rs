//! The connection to one Redis server: login, the checks that come with it, pipelines, and what the server's errors mean. Knows no key
//! and no script's meaning.
//!
//! A connection that fails, or does not answer in time, is dropped, and the next call makes a new one with the same checks. Nothing is
//! sent twice: a request whose reply was lost is the caller's to repeat.

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
use std::time::Duration;

/// A reply that takes longer will not come: the longest script takes milliseconds. The client's own default, 500 ms, is shorter than a
/// server's fork or a slow disk can make it wait.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often scripts are loaded in one call before it is given up: only somebody who empties the cache all the time needs a second.
const SCRIPT_LOADS_MAX: u32 = 3;

/// The first version whose scripts have flags.
pub(crate) const VERSION_MIN: u32 = 7;

/// Where the server is and who we are to it.
#[derive(Clone)]
pub(crate) struct Options {
    /// `redis://host:port/db`, or `rediss://` for TLS.
    pub(crate) url: String,
    /// Takes precedence over the URL's.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Begins the name of every key.
    pub(crate) deployment: String,
}

/// Shows no secret: the URL may hold one too.
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

/// See the module's page.
pub(super) struct Connection {
    client: Client,
    /// Logs in by itself: a connection that listens takes no other commands.
    listener: Client,
    /// As messages name the server; holds no secret.
    address: String,
    login: Pipeline,
    /// Whether a server that may not hold our shards is refused.
    checks_server: bool,
    current: RefCell<Option<OpenConnection>>,
    /// How many connections were made, so that a late failure of one does not drop the next.
    connections_made: Cell<u64>,
}

#[derive(Clone)]
struct OpenConnection {
    number: u64,
    connection: MultiplexedConnection,
}

impl Connection {
    /// Reads the options; connects with the first call.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        let info = options.url.as_str().into_connection_info().map_err(|_| {
            Error::Unusable("the url is not one of a Redis server: write redis://host:port, or rediss://host:port for TLS".to_owned())
        })?;
        let address = info.addr().to_string();
        let login = login_commands(options, info.redis_settings());
        let listener = listener_settings(options, info.redis_settings());
        // We log in ourselves, below: the client does not say why a login failed.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let open = |settings| {
            let client = Client::open(info.clone().set_redis_settings(settings));
            client.map_err(|error| Error::Unusable(format!("{address}: {error}")))
        };
        let (client, listener) = (
            open(RedisConnectionInfo::default().set_skip_set_lib_name())?,
            open(listener)?,
        );
        Ok(Self {
            client,
            listener,
            address,
            login,
            checks_server: true,
            current: RefCell::new(None),
            connections_made: Cell::new(0),
        })
    }

    /// To any server that takes the login.
    pub(super) fn unchecked(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            checks_server: false,
            ..Self::new(options)?
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends the commands in one go and answers a value each. Of the server's refusals only those that concern one key are among the
    /// values; any other fails the call.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Error> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let mut live = self.current_or_connect().await?;
        match live
            .connection
            .send_packed_commands(pipeline, 0, pipeline.len())
            .await
        {
            Ok(values) => match values.iter().find_map(fatal_error) {
                None => Ok(values),
                Some(refused) => {
                    if needs_reconnect(refused) {
                        self.drop_connection(live.number);
                    }
                    Err(self.server_error(refused))
                }
            },
            Err(error) => {
                self.drop_connection(live.number);
                Err(self.client_error(&error))
            }
        }
    }

    /// Calls scripts, all in one pipeline, and answers a value each. Scripts that the server does not know - it was restarted, failed over
    /// or told to forget them - are loaded and called again.
    pub(super) async fn call(&self, calls: &[Call]) -> Result<Vec<Value>, Error> {
        let mut values = self.send(&pipeline(calls.iter())).await?;
        for _ in 0..SCRIPT_LOADS_MAX {
            let unknown: Vec<usize> = (0..calls.len())
                .filter(|&at| is_error(&values[at], "NOSCRIPT"))
                .collect();
            if unknown.is_empty() {
                return Ok(values);
            }
            let mut scripts: Vec<Script> = Vec::new();
            for &at in &unknown {
                if !scripts.contains(&calls[at].script) {
                    scripts.push(calls[at].script);
                }
            }
            let mut again = Pipeline::new();
            for script in &scripts {
                again.add_command(script.load());
            }
            for &at in &unknown {
                again.add_command(calls[at].command.clone());
            }
            let answers = self.send(&again).await?;
            for (at, value) in unknown
                .into_iter()
                .zip(answers.into_iter().skip(scripts.len()))
            {
                values[at] = value;
            }
        }
        Err(Error::Unavailable(format!(
            "{} forgets scripts as soon as they are loaded",
            self.address
        )))
    }

    /// Connects, unless it is connected.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.current_or_connect().await.map(drop)
    }

    /// What is published on a channel from now on, by a connection of its own.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, Error> {
        let subscribed = async {
            let mut listener = self.listener.get_async_pubsub().await?;
            listener.subscribe(channel).await?;
            Ok(listener.into_on_message())
        };
        let timely = tokio::time::timeout(CONNECT_TIMEOUT, subscribed).await;
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

    async fn current_or_connect(&self) -> Result<OpenConnection, Error> {
        if let Some(live) = &*self.current.borrow() {
            return Ok(live.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| self.client_error(&error))?;
        let answers = connection
            .send_packed_commands(&self.login, 0, self.login.len())
            .await
            .map_err(|error| self.client_error(&error))?;
        self.check_server(&answers)?;
        self.connections_made.set(self.connections_made.get() + 1);
        let live = OpenConnection {
            number: self.connections_made.get(),
            connection,
        };
        *self.current.borrow_mut() = Some(live.clone());
        Ok(live)
    }

    fn drop_connection(&self, number: u64) {
        self.current
            .borrow_mut()
            .take_if(|live| live.number == number);
    }

    /// Whether a server that answered the login so may hold our shards.
    fn check_server(&self, answers: &[Value]) -> Result<(), Error> {
        if let Some(refused) = answers.iter().find_map(fatal_error) {
            return Err(self.server_error(refused));
        }
        if !self.checks_server {
            return Ok(());
        }
        let info: String = answers
            .iter()
            .filter_map(|value| super::reply::text(value.clone()))
            .collect();
        let address = &self.address;
        let version = info_field(&info, "redis_version").unwrap_or("unknown");
        if version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .is_none_or(|major: u32| major < VERSION_MIN)
        {
            return Err(Error::Unusable(format!(
                "{address} is Redis {version}, and Postdate needs {VERSION_MIN}.0 or newer: upgrade it"
            )));
        }
        if info_field(&info, "redis_mode") == Some("cluster") {
            return Err(Error::Unusable(format!(
                "{address} is a node of a Redis Cluster, which this version of Postdate cannot use: give it a single Redis server"
            )));
        }
        let policy = info_field(&info, "maxmemory_policy").unwrap_or("unknown");
        if policy != "noeviction" {
            return Err(Error::Unusable(format!(
                "{address} has maxmemory-policy {policy}, under which Redis drops waiting messages when memory runs out: \
                 run `CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too"
            )));
        }
        Ok(())
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
            "{} does not allow its user what Postdate needs ({detail}): grant it what deploy/redis/users.acl has, or more roughly \
             `~pd:* &pd:* +@read +@write +@scripting +info +time +select +publish +subscribe`",
            self.address
        ))
    }

    /// What an error of the server means for the caller.
    fn server_error(&self, error: &ServerError) -> Error {
        let (address, code, detail) = (
            &self.address,
            error.code(),
            error.details().unwrap_or_default(),
        );
        match code {
            "OOM" => Error::Full,
            "NOAUTH" => Error::Unusable(format!(
                "{address} demands a password: set store.redis.password or password_file"
            )),
            "WRONGPASS" => Error::Unusable(format!(
                "{address} refuses the user or the password: check store.redis.username and store.redis.password or password_file"
            )),
            "NOPERM" => self.missing_permission(detail),
            // So a script is told, and not which of its commands it was: `ACL LOG` knows.
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

/// The commands of every new connection; their answers are read by [`Connection::check`].
fn login_commands(options: &Options, url: &RedisConnectionInfo) -> Pipeline {
    let mut login = Pipeline::new();
    let username = options.username.as_deref().or(url.username());
    if let Some(password) = options.password.as_deref().or(url.password()) {
        login.cmd("AUTH").arg(username).arg(password);
    }
    if url.db() != 0 {
        login.cmd("SELECT").arg(url.db());
    }
    // Two calls: Redis before 7 takes one section only, and is to be told by its version.
    login.cmd("INFO").arg("server");
    login.cmd("INFO").arg("memory");
    login
}

/// The same login, as the client does it.
fn listener_settings(options: &Options, url: &RedisConnectionInfo) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default()
        .set_skip_set_lib_name()
        .set_db(url.db());
    if let Some(password) = options.password.as_deref().or(url.password()) {
        settings = settings.set_password(password);
        if let Some(username) = options.username.as_deref().or(url.username()) {
            settings = settings.set_username(username);
        }
    }
    settings
}

fn pipeline<'a>(calls: impl Iterator<Item = &'a Call>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for call in calls {
        pipeline.add_command(call.command.clone());
    }
    pipeline
}

pub(super) fn is_error(value: &Value, code: &str) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == code)
}

/// The error in a value, unless it concerns only the key or the script that was named.
fn fatal_error(value: &Value) -> Option<&ServerError> {
    match value {
        Value::ServerError(error) if !matches!(error.code(), "WRONGTYPE" | "NOSCRIPT") => {
            Some(error)
        }
        _ => None,
    }
}

/// After these the same connection will answer no better: the server became a replica, or wants another login.
fn needs_reconnect(error: &ServerError) -> bool {
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "NOAUTH")
}

/// A field of INFO.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}
