//! Login and TLS of connections to one kind of server: the Redis servers, or their sentinels.

use crate::store::Error;
use redis::aio::MultiplexedConnection;
use redis::aio::PubSubStream;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, TlsCertificates, Value,
};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::errors::{client_error, missing_permission};

/// Paths of PEM files. They are read for each new connection, so a renewed file needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// Authorities that are trusted instead of the system's.
    pub(crate) ca: Option<PathBuf>,
    /// The client's own certificate, and its key. Both are set, or none.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How to connect to a server of one kind.
#[derive(Clone)]
pub(super) struct Access {
    /// User, password and database.
    pub(super) login: RedisConnectionInfo,
    /// `None`: no TLS.
    pub(super) tls: Option<Certificates>,
    /// The table of the configuration, for messages.
    pub(super) table: &'static str,
}

impl Access {
    /// Connects and sends the first commands, which begin with [`Self::login_commands`]. Returns the
    /// connection and a value for each command. `patience` is for the first answer, and `timeout`
    /// for all others.
    pub(super) async fn open(
        &self,
        address: &Address,
        first_commands: &Pipeline,
        patience: Duration,
        timeout: Duration,
    ) -> Result<(MultiplexedConnection, Vec<Value>), Error> {
        let opened = async {
            let mut connection = self.connect(address, timeout).await?;
            let commands = first_commands.len();
            let answers = connection.send_packed_commands(first_commands, 0, commands);
            let answers = answers.await.map_err(|error| {
                let is_nameless = (self.tls.as_ref()).is_some_and(|tls| tls.certificate.is_none());
                match client_error(address, &error) {
                    // A server refuses the client only after the handshake.
                    Error::Unavailable(text) if is_nameless => Error::Unavailable(format!(
                        "{text} (if it demands a client certificate, set {}.certificate and certificate_key)",
                        self.table
                    )),
                    error => error,
                }
            })?;
            Ok((connection, answers))
        };
        let opened = tokio::time::timeout(patience, opened).await;
        opened.map_err(|_| Error::Unavailable(format!("{address} did not answer in time")))?
    }

    async fn connect(
        &self,
        address: &Address,
        timeout: Duration,
    ) -> Result<MultiplexedConnection, Error> {
        // The client does not log in, because it would not report why a login failed.
        let client = self.client(
            address,
            RedisConnectionInfo::default().set_skip_set_lib_name(),
        )?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout));
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| client_error(address, &error))
    }

    /// Logs in, and subscribes to channels on a new connection.
    pub(super) async fn subscribe(
        &self,
        address: &Address,
        channels: &[String],
        timeout: Duration,
    ) -> Result<PubSubStream, Error> {
        let client = self.client(address, self.login.clone().set_skip_set_lib_name())?;
        let subscribed = async {
            let mut listener = client.get_async_pubsub().await?;
            listener.subscribe(channels).await?;
            Ok(listener.into_on_message())
        };
        let timely = tokio::time::timeout(timeout, subscribed).await;
        timely
            .map_err(|_| Error::Unavailable(format!("{address} did not answer in time")))?
            .map_err(|error: redis::RedisError| {
                if error.code() == Some("NOPERM") {
                    missing_permission(address, error.detail().unwrap_or_default())
                } else {
                    client_error(address, &error)
                }
            })
    }

    pub(super) fn login_commands(&self) -> Pipeline {
        let mut commands = Pipeline::new();
        if let Some(password) = self.login.password() {
            commands
                .cmd("AUTH")
                .arg(self.login.username())
                .arg(password);
        }
        if self.login.db() != 0 {
            commands.cmd("SELECT").arg(self.login.db());
        }
        commands
    }

    fn client(&self, address: &Address, login: RedisConnectionInfo) -> Result<Client, Error> {
        let Address { host, port } = address.clone();
        let Some(tls) = &self.tls else {
            return Self::checked(address, Client::open, (host, port), login);
        };
        let certificates = self.read(tls)?;
        let secure = ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        };
        let build = |info| Client::build_with_tls(info, certificates);
        Self::checked(address, build, secure, login)
    }

    fn checked(
        address: &Address,
        build: impl FnOnce(redis::ConnectionInfo) -> redis::RedisResult<Client>,
        addr: impl IntoConnectionInfo,
        login: RedisConnectionInfo,
    ) -> Result<Client, Error> {
        let built = addr.into_connection_info().and_then(|info| {
            let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
            build(info.set_redis_settings(login))
        });
        built.map_err(|error| Error::Unusable(format!("{address}: {error}")))
    }

    fn read(&self, tls: &Certificates) -> Result<TlsCertificates, Error> {
        let read = |key: &str, path: &Option<PathBuf>| {
            let read = path.as_deref().map(|path| self.read_pem(key, path));
            read.transpose()
        };
        let certificate = read("certificate", &tls.certificate)?;
        let key = read("certificate_key", &tls.key)?;
        Ok(TlsCertificates {
            client_tls: certificate
                .zip(key)
                .map(|(client_cert, client_key)| ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
            root_cert: read("ca", &tls.ca)?,
        })
    }

    fn read_pem(&self, key: &str, path: &Path) -> Result<Vec<u8>, Error> {
        let unusable = |what: &str| {
            let file = path.display();
            Error::Unusable(format!("the file {file} of {}.{key} {what}", self.table))
        };
        let bytes =
            std::fs::read(path).map_err(|error| unusable(&format!("cannot be read: {error}")))?;
        let is_pem = String::from_utf8_lossy(&bytes).contains("-----BEGIN ");
        if is_pem {
            Ok(bytes)
        } else {
            Err(unusable("is not a PEM file"))
        }
    }
}
