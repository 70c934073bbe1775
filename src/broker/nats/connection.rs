//! One connection to a cluster: its options, its health, and the texts of its errors.

use super::limit::{
    NATS_CONNECTION_EVENTS_MAX, NATS_HEARTBEAT_INTERVAL, NATS_RECONNECT_DELAY_MAX,
    NATS_REQUEST_TIMEOUT,
};
use super::{Cluster, Login};
use crate::broker::Error;
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::retry::backoff;
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A connection. The first call opens it; later the client library reconnects it.
pub(super) struct Connection {
    pub(super) cluster: Cluster,
    pub(super) state: Arc<ConnectionState>,
    context: RefCell<Option<Context>>,
    /// Held while a caller connects, so that all callers share one connection.
    connecting: tokio::sync::Mutex<()>,
    /// Runs the client's tasks. `None`: the runtime of the first caller runs them.
    runtime: Option<ClientRuntime>,
}

/// The state that the client library's event callback updates.
pub(super) struct ConnectionState {
    cluster: Arc<str>,
    pub(super) part: HealthPart,
    /// Counts how often the connection was lost.
    pub(super) disconnects: watch::Sender<u64>,
    /// The server's error texts, most of them about permissions, and their last times. The request
    /// that caused one gets no reply and times out.
    server_errors: Mutex<BTreeMap<String, Instant>>,
}

impl ConnectionState {
    fn on_event(&self, event: &Event) {
        let cluster = &*self.cluster;
        match event {
            Event::Connected => self.part.set_ready(),
            Event::Disconnected => {
                let reason = format!("nats.{cluster} does not answer: the connection was lost");
                self.part.set_not_ready(reason);
                self.disconnects.send_modify(|count| *count += 1);
            }
            Event::ServerError(ServerError::AuthorizationViolation) => {
                let reason = format!("nats.{cluster} refuses: authorization violation");
                self.part.set_not_ready(reason);
            }
            Event::ServerError(error) => {
                let mut errors = self.server_errors();
                if errors.insert(error.to_string(), Instant::now()).is_none() {
                    tracing::warn!(cluster, %error, "the NATS server reports an error");
                }
                let oldest = errors.iter().min_by_key(|(_, at)| **at);
                if errors.len() > NATS_CONNECTION_EVENTS_MAX
                    && let Some(oldest) = oldest.map(|(text, _)| text.clone())
                {
                    errors.remove(&oldest);
                }
            }
            _ => {}
        }
    }

    fn server_errors(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.server_errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A runtime on its own thread. Dropping it stops both.
struct ClientRuntime {
    handle: Handle,
    /// Dropped before the thread, which waits for it.
    _stop: DropGuard,
    _thread: ClientThread,
}

impl ClientRuntime {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = ClientThread::start("nats-source", move || {
            runtime.block_on(stopped.cancelled());
            // Does not wait for a DNS lookup.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            _stop: stop.drop_guard(),
            _thread: thread,
        })
    }
}

impl Connection {
    pub(super) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        Self {
            cluster: cluster.clone(),
            state: Arc::new(ConnectionState {
                cluster: cluster.name.clone(),
                part,
                disconnects: watch::Sender::default(),
                server_errors: Mutex::default(),
            }),
            context: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            runtime: None,
        }
    }

    /// A connection whose client runs on its own thread. The row `nats` of the bench needs it:
    /// parsing messages costs as much CPU time as the ingress loop itself.
    pub(super) fn with_thread(cluster: &Cluster, part: HealthPart) -> Result<Self, Error> {
        let runtime = ClientRuntime::start().map_err(|error| {
            Error::Fatal(format!("nats.{}: no client thread: {error}", cluster.name))
        })?;
        Ok(Self {
            runtime: Some(runtime),
            ..Self::new(cluster, part)
        })
    }

    /// JetStream on this connection. The first call connects. Cancel-safe.
    #[expect(
        clippy::disallowed_methods,
        reason = "the client library runs its tasks where `connect` is polled"
    )]
    pub(super) async fn context(&self) -> Result<Context, Error> {
        if let Some(context) = self.connected() {
            return Ok(context);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(context) = self.connected() {
            return Ok(context);
        }
        let state = self.state.clone();
        let options = connect_options(&self.cluster)?
            .reconnect_delay_callback(|attempts| {
                let failures = u32::try_from(attempts).unwrap_or(u32::MAX);
                backoff(Duration::from_millis(5), NATS_RECONNECT_DELAY_MAX, failures)
            })
            .event_callback(move |event| {
                state.on_event(&event);
                std::future::ready(())
            });
        let urls = self.cluster.urls.clone();
        let connect = async move { options.connect(urls.as_slice()).await };
        let connected = match &self.runtime {
            None => connect.await,
            Some(runtime) => {
                let connected = runtime.handle.spawn(connect).await;
                connected.map_err(|error| Error::Fatal(error.to_string()))?
            }
        };
        let client = connected.map_err(|error| {
            let error = connect_error(&self.cluster, &error);
            self.state.part.set_not_ready(error.to_string());
            error
        })?;
        self.state.part.set_ready();
        let mut context = match &self.cluster.domain {
            Some(domain) => jetstream::with_domain(client, domain),
            None => jetstream::new(client),
        };
        context.set_timeout(NATS_REQUEST_TIMEOUT);
        *self.context.borrow_mut() = Some(context.clone());
        Ok(context)
    }

    fn connected(&self) -> Option<Context> {
        self.context.borrow().clone()
    }

    /// The error of a request without a reply. If the server reported an error recently, that is
    /// the likely reason.
    pub(super) fn request_error(&self, object: &str, error: &dyn std::error::Error) -> Error {
        let text = format!("{object}: {}", error_chain(error));
        let server_errors = self.state.server_errors();
        let last = server_errors.iter().max_by_key(|(_, at)| **at);
        match last.filter(|(_, at)| at.elapsed() < 2 * NATS_REQUEST_TIMEOUT) {
            Some((reason, _)) => Error::Rejected(format!("{text}; {reason}")),
            None => Error::Unavailable(text),
        }
    }

    /// Closes the connection by dropping the client.
    pub(super) fn close(&self) {
        self.context.borrow_mut().take();
    }
}

/// The options of every client of a cluster.
pub(super) fn connect_options(cluster: &Cluster) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new()
        .name("postdate")
        .connection_timeout(NATS_REQUEST_TIMEOUT)
        .request_timeout(Some(NATS_REQUEST_TIMEOUT))
        .ping_interval(NATS_HEARTBEAT_INTERVAL);
    if let Some(ca) = &cluster.ca {
        options = options.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &cluster.client_certificate {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(match &cluster.login {
        Login::Anonymous => options,
        Login::User { name, password } => options.user_and_password(name.clone(), password.clone()),
        Login::Token(token) => options.token(token.clone()),
        Login::Nkey(seed) => options.nkey(seed.clone()),
        // The client library needs a line break after the last block, which the file may not have.
        Login::Credentials(text) => options.credentials(&format!("{text}\n")).map_err(|_| {
            Error::Rejected(format!(
                "{}: the credentials are not those of a NATS credentials file",
                cluster_label(cluster)
            ))
        })?,
    })
}

/// Why a connection cannot be opened, in one line.
pub(super) fn connect_error(cluster: &Cluster, error: &async_nats::ConnectError) -> Error {
    let text = format!("{}: {}", cluster_label(cluster), error_chain(error));
    match error.kind() {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Tls => Error::Rejected(text),
        // The server rejects a client certificate only after the TLS handshake.
        _ if text.contains("fatal alert") => Error::Rejected(text),
        _ => Error::Unavailable(text),
    }
}

/// The name of a cluster in the configuration, and its servers without their schemes.
fn cluster_label(cluster: &Cluster) -> String {
    let servers = cluster.urls.iter();
    let servers = servers.map(|url| url.split_once("://").map_or(&**url, |(_, server)| server));
    let servers = servers.collect::<Vec<_>>().join(", ");
    format!("nats.{} ({servers})", cluster.name)
}

/// An error and its sources. A source whose text is part of the text so far is left out.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for source in std::iter::successors(error.source(), |source| source.source()) {
        let source = source.to_string();
        if !text.contains(&source) {
            text = format!("{text}: {source}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;
    use futures_util::future::join_all;
    use std::cell::Cell;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;

    const INFO: &[u8] = b"INFO {\"server_id\":\"a\",\"server_name\":\"a\",\"version\":\"2.12.0\",\"host\":\"127.0.0.1\",\"port\":4222,\"headers\":true,\"max_payload\":1048576,\"proto\":1}\r\n";

    /// Otherwise a late one that fails would report a connection that works as not ready.
    #[tokio::test]
    async fn calls_at_the_same_time_share_one_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = Cluster {
            name: "main".into(),
            deployment: "d".into(),
            urls: vec![format!("nats://{}", listener.local_addr().unwrap())],
            domain: None,
            login: Login::Anonymous,
            ca: None,
            client_certificate: None,
        };
        let (accepted, mut open) = (Cell::new(0), Vec::new());
        let serve = async {
            loop {
                let mut stream = BufReader::new(listener.accept().await.unwrap().0);
                accepted.set(accepted.get() + 1);
                stream.get_mut().write_all(INFO).await.unwrap();
                let mut line = String::new();
                while line != "PING\r\n" {
                    line.clear();
                    assert!(stream.read_line(&mut line).await.unwrap() > 0);
                }
                stream.get_mut().write_all(b"PONG\r\n").await.unwrap();
                open.push(stream);
            }
        };
        let health = Health::new();
        let connection = Connection::new(&cluster, health.register("nats"));
        tokio::select! {
            () = serve => {}
            contexts = join_all((0..20).map(|_| connection.context())) => {
                assert!(contexts.iter().all(Result::is_ok));
            }
        }
        assert_eq!(accepted.get(), 1);
        assert_eq!(health.not_ready(), []);
    }
}
