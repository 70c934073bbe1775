//! One connection to a cluster, made when it is first needed and kept by the client from then on; its state is told to a health part. It may
//! have a thread of its own: reading from the network and taking it apart costs as much as what the loop that uses it does.

use super::{Cluster, Login, Tls};
use crate::broker::Error;
use crate::broker::thread::Thread;
use crate::health::Part;
use crate::limit::{
    NATS_ANSWER_MAX, NATS_CONNECT_MAX, NATS_NOTICES_MAX, NATS_PING_INTERVAL, NATS_RECONNECT_MAX,
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
pub(super) struct Link(Rc<Inner>);

struct Inner {
    cluster: Cluster,
    part: Arc<Part>,
    client: RefCell<Option<Client>>,
    /// Where the client does its work; `None`: on whichever runtime asks for it first.
    home: Option<Home>,
    /// How often the connection was lost.
    losses: Arc<watch::Sender<u64>>,
    denials: Arc<Mutex<Denials>>,
}

/// What the server said this client may not do. It says no more than that: whoever asked gets no answer.
#[derive(Default)]
struct Denials {
    /// All words that were logged.
    logged: BTreeSet<String>,
    last: Option<(Instant, String)>,
}

impl Denials {
    fn add(&mut self, cluster: &str, words: String) {
        if !self.logged.contains(&words) {
            tracing::warn!(cluster, "{words}");
            if self.logged.len() >= NATS_NOTICES_MAX {
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
            .filter(|(at, _)| at.elapsed() < 2 * NATS_ANSWER_MAX)
            .map(|(_, words)| words.as_str())
    }
}

/// A runtime on a thread of its own, until it is dropped.
struct Home {
    handle: Handle,
    stop: CancellationToken,
    _thread: Thread,
}

impl Home {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let thread = Thread::start("nats-source", move || {
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

impl Drop for Home {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Link {
    pub(super) fn new(cluster: &Cluster, part: Part) -> Self {
        Self::at(cluster, part, None)
    }

    /// With a thread of its own.
    pub(super) fn with_thread(cluster: &Cluster, part: Part) -> Result<Self, Error> {
        let home = Home::start()
            .map_err(|error| Error::Fatal(format!("nats.{}: no thread: {error}", cluster.name)))?;
        Ok(Self::at(cluster, part, Some(home)))
    }

    fn at(cluster: &Cluster, part: Part, home: Option<Home>) -> Self {
        let (cluster, part) = (cluster.clone(), Arc::new(part));
        Self(Rc::new(Inner {
            cluster,
            part,
            client: RefCell::default(),
            home,
            losses: Arc::default(),
            denials: Arc::default(),
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
            self.0.losses.clone(),
        );
        let denials = self.0.denials.clone();
        let options = options(&self.0.cluster)?
            .reconnect_delay_callback(pause)
            .event_callback(move |event| {
                heard(&part, &name, &denials, &event);
                if matches!(event, Event::Disconnected) {
                    losses.send_modify(|losses| *losses += 1);
                }
                std::future::ready(())
            });
        let urls = self.0.cluster.urls.clone();
        let connect = async move { options.connect(urls.as_slice()).await };
        let connected = match &self.0.home {
            Some(home) => home
                .handle
                .spawn(connect)
                .await
                .map_err(|error| Error::Fatal(error.to_string()))?,
            None => connect.await,
        };
        match connected {
            Ok(client) => {
                self.0.part.ready();
                *self.0.client.borrow_mut() = Some(client.clone());
                Ok(client)
            }
            Err(error) => {
                let error = unconnected(&self.0.cluster, &error);
                self.0.part.not_ready(error.to_string());
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
        context.set_timeout(NATS_ANSWER_MAX);
        Ok(context)
    }

    /// Why there was no answer: what the server said this client may not do, if it did just now.
    pub(super) fn unanswered(
        &self,
        what: &str,
        error: &(impl std::error::Error + 'static),
    ) -> Error {
        let words = format!("{what}: {}", chain(error));
        match self
            .0
            .denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recent()
        {
            Some(denial) => Error::Refused(format!("{words}; {denial}")),
            None => Error::Unavailable(words),
        }
    }

    pub(super) fn api(&self, question: &str) -> String {
        self.0.cluster.api(question)
    }

    pub(super) fn ready(&self) {
        self.0.part.ready();
    }

    pub(super) fn not_ready(&self, reason: String) {
        self.0.part.not_ready(reason);
    }

    /// Tells of each loss of the connection from here on.
    pub(super) fn losses(&self) -> watch::Receiver<u64> {
        self.0.losses.subscribe()
    }

    /// Ends the connection: without a client it is closed.
    pub(super) fn close(&self) {
        self.0.client.borrow_mut().take();
    }
}

/// As the client counts its attempts since it was last connected.
fn pause(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(10);
    if attempts <= 1 {
        Duration::ZERO
    } else {
        NATS_RECONNECT_MAX.min(Duration::from_millis(5 << doublings))
    }
}

fn heard(part: &Part, cluster: &str, denials: &Mutex<Denials>, event: &Event) {
    match event {
        Event::Connected => part.ready(),
        Event::Disconnected => part.not_ready(format!(
            "nats.{cluster} does not answer: the connection was lost"
        )),
        Event::ServerError(ServerError::AuthorizationViolation) => {
            part.not_ready(format!("nats.{cluster} refuses: authorization violation"));
        }
        Event::ServerError(error) => denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(cluster, error.to_string()),
        _ => {}
    }
}

/// The options that every client of a cluster has.
pub(super) fn options(cluster: &Cluster) -> Result<ConnectOptions, Error> {
    let options = ConnectOptions::new()
        .name("postdate")
        .connection_timeout(NATS_CONNECT_MAX)
        .request_timeout(Some(NATS_ANSWER_MAX))
        .ping_interval(NATS_PING_INTERVAL);
    let Tls { ca, own } = &cluster.tls;
    let options = ca.iter().fold(options, |options, ca| {
        options.add_root_certificates(ca.clone()).require_tls(true)
    });
    let options = own.iter().fold(options, |options, (certificate, key)| {
        options.add_client_certificate(certificate.clone(), key.clone())
    });
    Ok(match &cluster.login {
        Login::Nobody => options,
        Login::User { name, password } => options.user_and_password(name.clone(), password.clone()),
        Login::Token(token) => options.token(token.clone()),
        Login::Nkey(seed) => options.nkey(seed.clone()),
        // The client library wants a line's end behind the last block, which whoever writes such a file may have left out.
        Login::Credentials(text) => options.credentials(&format!("{text}\n")).map_err(|_| {
            Error::Refused(format!(
                "{}: the credentials are not those of a NATS credentials file",
                place(cluster)
            ))
        })?,
    })
}

/// Why there is no connection, in one line.
pub(super) fn unconnected(cluster: &Cluster, error: &async_nats::ConnectError) -> Error {
    let words = format!("{}: {}", place(cluster), chain(error));
    match error.kind() {
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::AuthorizationViolation => Error::Refused(words),
        ConnectErrorKind::Tls => Error::Refused(words),
        // The server's own words on a client's certificate come over a connection that was made.
        _ if words.contains("fatal alert") => Error::Refused(words),
        _ => Error::Unavailable(words),
    }
}

/// A cluster as a person finds it in the configuration, and on the network.
fn place(cluster: &Cluster) -> String {
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
pub(super) fn chain(error: &dyn std::error::Error) -> String {
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
