//! One connection to a cluster: its options, its health, and the texts of its errors.
//!
//! The connection is opened by the first call and then reconnected by the client library. A source
//! gives it a thread of its own, because reading and parsing messages costs as much CPU time as the
//! ingress loop itself.

use super::{Cluster, Login, Tls};
use crate::broker::Error;
use crate::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::{
    NATS_CONNECTION_EVENTS_MAX, NATS_PING_INTERVAL, NATS_RECONNECT_DELAY_MAX, NATS_REQUEST_TIMEOUT,
};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A connection. Clones share it.
#[derive(Clone)]
pub(super) struct Connection(Rc<Inner>);

struct Inner {
    cluster: Cluster,
    part: Arc<HealthPart>,
    client: RefCell<Option<Client>>,
    /// Runs the client's tasks. `None`: the runtime of the first caller runs them.
    runtime: Option<ClientRuntime>,
    /// Counts how often the connection was lost.
    disconnects: Arc<watch::Sender<u64>>,
    permission_errors: Arc<Mutex<PermissionErrors>>,
}

/// The server's permission errors. The request that caused one gets no reply and times out.
#[derive(Default)]
struct PermissionErrors {
    /// The texts that were logged. Each is logged once.
    logged: BTreeSet<String>,
    last: Option<(Instant, String)>,
}

impl PermissionErrors {
    fn add(&mut self, cluster: &str, text: String) {
        if !self.logged.contains(&text) {
            tracing::warn!(cluster, "{text}");
            if self.logged.len() >= NATS_CONNECTION_EVENTS_MAX {
                self.logged.clear();
            }
            self.logged.insert(text.clone());
        }
        self.last = Some((Instant::now(), text));
    }

    /// The last error, if it can be the reason why a request has timed out now.
    fn recent(&self) -> Option<&str> {
        self.last
            .as_ref()
            .filter(|(at, _)| at.elapsed() < 2 * NATS_REQUEST_TIMEOUT)
            .map(|(_, text)| text.as_str())
    }
}

/// A runtime on its own thread. Dropping it stops both.
struct ClientRuntime {
    handle: Handle,
    stop: CancellationToken,
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
            stop,
            _thread: thread,
        })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the client library runs its tasks where `connect` is polled"
    )]
    async fn connect(&self, options: ConnectOptions, urls: Vec<String>) -> ConnectResult {
        let connect = async move { options.connect(urls.as_slice()).await };
        self.handle
            .spawn(connect)
            .await
            .map_err(|error| Error::Fatal(error.to_string()))
    }
}

type ConnectResult = Result<Result<Client, async_nats::ConnectError>, Error>;

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Connection {
    pub(super) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        Self::with_runtime(cluster, part, None)
    }

    /// A connection whose client runs on its own thread.
    pub(super) fn with_thread(cluster: &Cluster, part: HealthPart) -> Result<Self, Error> {
        let runtime = ClientRuntime::start()
            .map_err(|error| Error::Fatal(format!("nats.{}: no thread: {error}", cluster.name)))?;
        Ok(Self::with_runtime(cluster, part, Some(runtime)))
    }

    fn with_runtime(cluster: &Cluster, part: HealthPart, runtime: Option<ClientRuntime>) -> Self {
        Self(Rc::new(Inner {
            cluster: cluster.clone(),
            part: Arc::new(part),
            client: RefCell::default(),
            runtime,
            disconnects: Arc::default(),
            permission_errors: Arc::default(),
        }))
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// The client. The first call connects. Safe to drop.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let existing = self.0.client.borrow().clone();
        if let Some(client) = existing {
            return Ok(client);
        }
        let options = self.client_options()?;
        let urls = self.0.cluster.urls.clone();
        let connected = match &self.0.runtime {
            Some(runtime) => runtime.connect(options, urls).await?,
            None => options.connect(urls.as_slice()).await,
        };
        match connected {
            Ok(client) => {
                self.0.part.set_ready();
                *self.0.client.borrow_mut() = Some(client.clone());
                Ok(client)
            }
            Err(error) => {
                let error = connect_error(&self.0.cluster, &error);
                self.0.part.set_not_ready(error.to_string());
                Err(error)
            }
        }
    }

    fn client_options(&self) -> Result<ConnectOptions, Error> {
        let part = self.0.part.clone();
        let cluster = self.0.cluster.name.clone();
        let disconnects = self.0.disconnects.clone();
        let permission_errors = self.0.permission_errors.clone();
        let options = connect_options(&self.0.cluster)?
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(move |event| {
                on_client_event(&part, &cluster, &permission_errors, &event);
                if matches!(event, Event::Disconnected) {
                    disconnects.send_modify(|count| *count += 1);
                }
                std::future::ready(())
            });
        Ok(options)
    }

    pub(super) async fn context(&self) -> Result<Context, Error> {
        let client = self.client().await?;
        let mut context = match &self.0.cluster.domain {
            Some(domain) => jetstream::with_domain(client, domain),
            None => jetstream::new(client),
        };
        context.set_timeout(NATS_REQUEST_TIMEOUT);
        Ok(context)
    }

    /// The error of a request without a reply. If the server reported a permission error recently,
    /// that is the likely reason.
    pub(super) fn request_error(
        &self,
        what: &str,
        error: &(impl std::error::Error + 'static),
    ) -> Error {
        let text = format!("{what}: {}", error_chain(error));
        match lock(&self.0.permission_errors).recent() {
            Some(reason) => Error::Rejected(format!("{text}; {reason}")),
            None => Error::Unavailable(text),
        }
    }

    pub(super) fn api_subject(&self, request: &str) -> String {
        self.0.cluster.api_subject(request)
    }

    pub(super) fn set_ready(&self) {
        self.0.part.set_ready();
    }

    pub(super) fn set_not_ready(&self, reason: String) {
        self.0.part.set_not_ready(reason);
    }

    /// Changes each time the connection is lost from now on.
    pub(super) fn disconnects(&self) -> watch::Receiver<u64> {
        self.0.disconnects.subscribe()
    }

    /// Closes the connection by dropping the client.
    pub(super) fn close(&self) {
        self.0.client.borrow_mut().take();
    }
}

/// The delay before a connection attempt. `attempts` counts since the client was last connected.
fn reconnect_delay(attempts: usize) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let doublings = u32::try_from(attempts - 1).unwrap_or(u32::MAX).min(10);
    NATS_RECONNECT_DELAY_MAX.min(Duration::from_millis(5 << doublings))
}

fn on_client_event(
    part: &HealthPart,
    cluster: &str,
    permission_errors: &Mutex<PermissionErrors>,
    event: &Event,
) {
    match event {
        Event::Connected => part.set_ready(),
        Event::Disconnected => part.set_not_ready(format!(
            "nats.{cluster} does not answer: the connection was lost"
        )),
        Event::ServerError(ServerError::AuthorizationViolation) => {
            part.set_not_ready(format!("nats.{cluster} refuses: authorization violation"));
        }
        Event::ServerError(error) => lock(permission_errors).add(cluster, error.to_string()),
        _ => {}
    }
}

fn lock(errors: &Mutex<PermissionErrors>) -> MutexGuard<'_, PermissionErrors> {
    errors.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The options of every client of a cluster.
pub(super) fn connect_options(cluster: &Cluster) -> Result<ConnectOptions, Error> {
    let mut options = ConnectOptions::new()
        .name("postdate")
        .connection_timeout(NATS_REQUEST_TIMEOUT)
        .request_timeout(Some(NATS_REQUEST_TIMEOUT))
        .ping_interval(NATS_PING_INTERVAL);
    let Tls {
        ca,
        client_certificate,
    } = &cluster.tls;
    if let Some(ca) = ca {
        options = options.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = client_certificate {
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

/// The name of a cluster in the configuration, and its servers.
fn cluster_label(cluster: &Cluster) -> String {
    let servers: Vec<&str> = cluster
        .urls
        .iter()
        .map(|url| {
            url.split_once("://")
                .map_or(url.as_str(), |(_, server)| server)
        })
        .collect();
    format!("nats.{} ({})", cluster.name, servers.join(", "))
}

/// An error and its sources. A source whose text is part of the text so far is left out.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}
