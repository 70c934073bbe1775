//! One connection to a cluster, made when it is first needed and kept by the client from then on; its state is told to a health part. It may
//! have a thread of its own: reading from the network and taking it apart costs as much as what the loop that uses it does.

use super::{Cluster, Login, Tls};
use crate::broker::Error;
use crate::broker::client_thread::ClientThread;
use crate::health::HealthPart;
use crate::limit::{
    NATS_CONNECTION_EVENTS_MAX, NATS_PING_INTERVAL, NATS_RECONNECT_DELAY_MAX, NATS_REQUEST_TIMEOUT,
};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// See the module's page. Clones are the same connection.
#[derive(Clone)]
pub(super) struct Connection(Rc<Inner>);

struct Inner {
    cluster: Cluster,
    part: Arc<HealthPart>,
    client: RefCell<Option<Client>>,
    /// Where the client does its work; `None`: on whichever runtime asks for it first.
    runtime: Option<ClientRuntime>,
    /// How often the connection was lost.
    disconnects: Arc<watch::Sender<u64>>,
    permission_errors: Arc<Mutex<PermissionErrors>>,
}

/// What the server said this client may not do. It says no more than that: whoever asked gets no answer.
#[derive(Default)]
struct PermissionErrors {
    /// All words that were logged.
    logged: BTreeSet<String>,
    last: Option<(Instant, String)>,
}

impl PermissionErrors {
    fn add(&mut self, cluster: &str, words: String) {
        if !self.logged.contains(&words) {
            tracing::warn!(cluster, "{words}");
            if self.logged.len() >= NATS_CONNECTION_EVENTS_MAX {
                self.logged.clear();
            }
            self.logged.insert(words.clone());
        }
        self.last = Some((Instant::now(), words));
    }

    /// What may be why a question was not answered.
    fn recent(&self) -> Option<&str> {
        self.last
            .as_ref()
            .filter(|(at, _)| at.elapsed() < 2 * NATS_REQUEST_TIMEOUT)
            .map(|(_, words)| words.as_str())
    }
}

/// A runtime on a thread of its own, until it is dropped.
struct ClientRuntime {
    handle: Handle,
    stop: CancellationToken,
    _thread: ClientThread,
}

impl ClientRuntime {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let thread = ClientThread::start("nats-source", move || {
            runtime.block_on(stopped.cancelled());
            // A name that is being looked up holds nobody up.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            stop,
            _thread: thread,
        })
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Connection {
    pub(super) fn new(cluster: &Cluster, part: HealthPart) -> Self {
        Self::with_runtime(cluster, part, None)
    }

    /// With a thread of its own.
    pub(super) fn with_thread(cluster: &Cluster, part: HealthPart) -> Result<Self, Error> {
        let home = ClientRuntime::start()
            .map_err(|error| Error::Fatal(format!("nats.{}: no thread: {error}", cluster.name)))?;
        Ok(Self::with_runtime(cluster, part, Some(home)))
    }

    fn with_runtime(cluster: &Cluster, part: HealthPart, home: Option<ClientRuntime>) -> Self {
        let (cluster, part) = (cluster.clone(), Arc::new(part));
        Self(Rc::new(Inner {
            cluster,
            part,
            client: RefCell::default(),
            runtime: home,
            disconnects: Arc::default(),
            permission_errors: Arc::default(),
        }))
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// Connects, the first time. Safe to drop.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let made = self.0.client.borrow().clone();
        if let Some(client) = made {
            return Ok(client);
        }
        let (part, name, losses) = (
            self.0.part.clone(),
            self.0.cluster.name.clone(),
            self.0.disconnects.clone(),
        );
        let denials = self.0.permission_errors.clone();
        let options = connect_options(&self.0.cluster)?
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(move |event| {
                on_client_event(&part, &name, &denials, &event);
                if matches!(event, Event::Disconnected) {
                    losses.send_modify(|losses| *losses += 1);
                }
                std::future::ready(())
            });
        let urls = self.0.cluster.urls.clone();
        let connect = async move { options.connect(urls.as_slice()).await };
        let connected = match &self.0.runtime {
            Some(home) => home
                .handle
                .spawn(connect)
                .await
                .map_err(|error| Error::Fatal(error.to_string()))?,
            None => connect.await,
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

    pub(super) async fn context(&self) -> Result<Context, Error> {
        let client = self.client().await?;
        let mut context = match &self.0.cluster.domain {
            Some(domain) => jetstream::with_domain(client, domain),
            None => jetstream::new(client),
        };
        context.set_timeout(NATS_REQUEST_TIMEOUT);
        Ok(context)
    }

    /// Why there was no answer: what the server said this client may not do, if it did just now.
    pub(super) fn request_error(
        &self,
        what: &str,
        error: &(impl std::error::Error + 'static),
    ) -> Error {
        let words = format!("{what}: {}", error_chain(error));
        match self
            .0
            .permission_errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recent()
        {
            Some(denial) => Error::Rejected(format!("{words}; {denial}")),
            None => Error::Unavailable(words),
        }
    }

    pub(super) fn api_subject(&self, question: &str) -> String {
        self.0.cluster.api_subject(question)
    }

    pub(super) fn set_ready(&self) {
        self.0.part.set_ready();
    }

    pub(super) fn set_not_ready(&self, reason: String) {
        self.0.part.set_not_ready(reason);
    }

    /// Tells of each loss of the connection from here on.
    pub(super) fn disconnects(&self) -> watch::Receiver<u64> {
        self.0.disconnects.subscribe()
    }

    /// Ends the connection: without a client it is closed.
    pub(super) fn close(&self) {
        self.0.client.borrow_mut().take();
    }
}

/// As the client counts its attempts since it was last connected.
fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(10);
    if attempts <= 1 {
        Duration::ZERO
    } else {
        NATS_RECONNECT_DELAY_MAX.min(Duration::from_millis(5 << doublings))
    }
}

fn on_client_event(
    part: &HealthPart,
    cluster: &str,
    denials: &Mutex<PermissionErrors>,
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
        Event::ServerError(error) => denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(cluster, error.to_string()),
        _ => {}
    }
}

/// The options that every client of a cluster has.
pub(super) fn connect_options(cluster: &Cluster) -> Result<ConnectOptions, Error> {
    let options = ConnectOptions::new()
        .name("postdate")
        .connection_timeout(NATS_REQUEST_TIMEOUT)
        .request_timeout(Some(NATS_REQUEST_TIMEOUT))
        .ping_interval(NATS_PING_INTERVAL);
    let Tls {
        ca,
        client_certificate: own,
    } = &cluster.tls;
    let options = ca.iter().fold(options, |options, ca| {
        options.add_root_certificates(ca.clone()).require_tls(true)
    });
    let options = own.iter().fold(options, |options, (certificate, key)| {
        options.add_client_certificate(certificate.clone(), key.clone())
    });
    Ok(match &cluster.login {
        Login::Anonymous => options,
        Login::User { name, password } => options.user_and_password(name.clone(), password.clone()),
        Login::Token(token) => options.token(token.clone()),
        Login::Nkey(seed) => options.nkey(seed.clone()),
        // The client library wants a line's end behind the last block, which whoever writes such a file may have left out.
        Login::Credentials(text) => options.credentials(&format!("{text}\n")).map_err(|_| {
            Error::Rejected(format!(
                "{}: the credentials are not those of a NATS credentials file",
                cluster_label(cluster)
            ))
        })?,
    })
}

/// Why there is no connection, in one line.
pub(super) fn connect_error(cluster: &Cluster, error: &async_nats::ConnectError) -> Error {
    let words = format!("{}: {}", cluster_label(cluster), error_chain(error));
    match error.kind() {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation => Error::Rejected(words),
        ConnectErrorKind::Tls => Error::Rejected(words),
        // The server's own words on a client's certificate come over a connection that was made.
        _ if words.contains("fatal alert") => Error::Rejected(words),
        _ => Error::Unavailable(words),
    }
}

/// A cluster as a person finds it in the configuration, and on the network.
fn cluster_label(cluster: &Cluster) -> String {
    let servers = cluster.urls.iter().map(|url| {
        url.split_once("://")
            .map_or(url.as_str(), |(_, server)| server)
    });
    format!(
        "nats.{} ({})",
        cluster.name,
        servers.collect::<Vec<_>>().join(", ")
    )
}

/// An error and what it comes from; what a text repeats of the one below it is said once.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let text = error.to_string();
        if !words.contains(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        below = error.source();
    }
    words
}
