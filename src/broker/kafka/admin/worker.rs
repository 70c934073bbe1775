//! A thread that sends admin requests to a cluster. It also watches topics for a recreation, and probes the
//! cluster if it owns the client.
//!
//! A request is polled if others must not wait for it: those of routes, and the watch. The others block the
//! thread of a client that reads no records.

use crate::broker::Error;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{CallContext, CallError, NativeClient, TopicDescription};
use crate::broker::kafka::group_offsets::broker_ids::BrokerIds;
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::limit::{
    KAFKA_ADMIN_REQUESTS_MAX, KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_SOURCE_REQUEST_TIMEOUT,
};
use crate::broker::kafka::options::{ASKING_LIMITS, ClientOptions, Cluster, NO_OPTIONS};
use crate::client_thread::ClientThread;
use crate::limit::PARTITION_DISCOVERY_INTERVAL;
use rdkafka::config::ClientConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Thread;
use tokio::sync::oneshot;
use tokio::time::Instant;

const OPTIONS: ClientOptions = ClientOptions {
    limits: ASKING_LIMITS,
    enforced: &[
        ("enable.auto.commit", "false"),
        ("isolation.level", "read_committed"),
    ],
    ..NO_OPTIONS
};

/// The caller's side of the thread.
pub(crate) struct AdminWorker {
    /// `None` once closed.
    handle: Option<AdminHandle>,
    /// Cancels the request in flight.
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

/// Queues requests. Another thread may have a copy.
#[derive(Clone)]
pub(crate) struct AdminHandle {
    requests: SyncSender<AdminRequest>,
    thread: Option<Thread>,
}

/// A request to run on the worker's thread. It sends its own answer, or returns what sends it later.
type AdminRequest = Box<dyn FnOnce(&mut WorkerThread) -> Option<OpenRequest> + Send>;

/// Returns whether the request has ended.
type OpenRequest = Box<dyn FnMut(&mut WorkerThread) -> bool>;

/// A request that waits for brokers while the thread serves others. Each answer of a broker unparks the
/// thread.
pub(crate) trait PolledRequest: 'static {
    type Answer: Send + 'static;

    /// `None`: a broker has not answered.
    fn poll(&mut self, worker: &mut WorkerThread) -> Result<Option<Self::Answer>, Error>;
}

impl AdminHandle {
    /// Queues a request. The thread skips it if the receiver is dropped before, and cancels it if the
    /// receiver is dropped meanwhile.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut WorkerThread) -> Result<T, Error> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        self.queue(Box::new(move |worker| {
            if reply.is_closed() {
                return None;
            }
            let reply = Arc::new(reply);
            let caller = reply.clone();
            worker.is_wanted = Box::new(move || !caller.is_closed());
            let answer = call(worker);
            worker.is_wanted = Box::new(|| true);
            if let Some(reply) = Arc::into_inner(reply) {
                drop(reply.send(answer));
            }
            None
        }))?;
        Ok(answer)
    }

    /// Queues a request that does not block the thread. `start` sends the first questions to brokers.
    fn start_polled<R: PolledRequest>(
        &self,
        start: impl FnOnce(&mut WorkerThread) -> Result<R, Error> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<R::Answer, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        self.queue(Box::new(move |worker| {
            if reply.is_closed() {
                return None;
            }
            let mut request = match start(worker) {
                Ok(request) => request,
                Err(error) => {
                    drop(reply.send(Err(error)));
                    return None;
                }
            };
            let mut reply = Some(reply);
            Some(Box::new(move |worker| {
                if reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
                    return true;
                }
                let answer = worker.client().and_then(|_| request.poll(worker));
                let Some(answer) = answer.transpose() else {
                    return false;
                };
                reply.take().map(|reply| reply.send(answer)).is_some()
            }))
        }))?;
        Ok(answer)
    }

    fn queue(&self, request: AdminRequest) -> Result<(), Error> {
        let queued = self.requests.try_send(request);
        self.thread.iter().for_each(Thread::unpark);
        queued.map_err(|error| match error {
            TrySendError::Full(_) => {
                Error::Unavailable("earlier requests are not answered yet".into())
            }
            TrySendError::Disconnected(_) => Error::Fatal("the admin thread has ended".into()),
        })
    }
}

impl AdminWorker {
    /// Starts with a client of its own, which joins no group. It can read the commits of `group`
    /// without another connection. `read_committed` makes it wait for open transactions.
    pub(crate) fn with_own_client(
        cluster: &Cluster,
        group: Option<&str>,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let mut config = cluster.config(&OPTIONS, &[]);
        if let Some(group) = group {
            config.set("group.id", group);
        }
        let native = NativeClient::admin_client(&config)?;
        let own = OwnedClient {
            probe: ClusterProbe::new(),
            config,
        };
        let native = Arc::new(native);
        Self::start(native, health, Some(own), None)
    }

    /// Starts with a client that another thread serves.
    pub(crate) fn sharing(
        native: Arc<NativeClient>,
        health: ClusterHealth,
        watch: TopicWatch,
    ) -> Result<Self, Error> {
        Self::start(native, health, None, Some(watch))
    }

    fn start(
        native: Arc<NativeClient>,
        health: ClusterHealth,
        own: Option<OwnedClient>,
        watch: Option<TopicWatch>,
    ) -> Result<Self, Error> {
        let (requests, receiver) = sync_channel(KAFKA_ADMIN_REQUESTS_MAX);
        let stop = Arc::<AtomicBool>::default();
        let worker_thread = WorkerThread {
            brokers: BrokerIds::default(),
            native,
            health,
            stop: stop.clone(),
            own,
            watch,
            is_wanted: Box::new(|| true),
        };
        let thread = ClientThread::start("kafka-catalog", move || worker_thread.serve(&receiver))
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            handle: Some(AdminHandle {
                requests,
                thread: thread.thread().cloned(),
            }),
            stop,
            thread,
        })
    }

    /// A handle for another thread. Its requests end without an answer once the worker is closed.
    pub(crate) fn handle(&self) -> Result<AdminHandle, Error> {
        let handle = self.handle.clone();
        handle.ok_or_else(|| Error::Fatal("the Kafka adapter is closed".to_owned()))
    }

    /// Queues a request. The answer may be dropped.
    pub(crate) fn request<T, F>(
        &self,
        call: F,
    ) -> impl Future<Output = Result<T, Error>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&mut WorkerThread) -> Result<T, Error> + Send + 'static,
    {
        let started = self.handle().and_then(|handle| handle.start(call));
        async move {
            let ended = |_| Err(Error::Fatal("the admin thread has ended".into()));
            started?.await.unwrap_or_else(ended)
        }
    }

    /// Queues a request that does not block the thread. The answer may be dropped.
    pub(crate) fn polled_request<R, F>(
        &self,
        start: F,
    ) -> impl Future<Output = Result<R::Answer, Error>> + use<R, F>
    where
        R: PolledRequest,
        F: FnOnce(&mut WorkerThread) -> Result<R, Error> + Send + 'static,
    {
        let started = self.handle().and_then(|handle| handle.start_polled(start));
        async move {
            let ended = |_| Err(Error::Fatal("the admin thread has ended".into()));
            started?.await.unwrap_or_else(ended)
        }
    }

    pub(crate) async fn close(&mut self) {
        self.stop();
        self.thread.join().await;
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.handle = None;
        self.thread.unpark();
    }
}

impl Drop for AdminWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state of the worker's thread.
pub(crate) struct WorkerThread {
    /// The first of them is asked to describe topics. Without any, the controller is. Dropped before the
    /// client.
    pub(super) brokers: BrokerIds,
    native: Arc<NativeClient>,
    health: ClusterHealth,
    stop: Arc<AtomicBool>,
    /// `None`: another thread serves the client.
    own: Option<OwnedClient>,
    pub(super) watch: Option<TopicWatch>,
    /// The caller of the current request waits for its answer.
    is_wanted: Box<dyn Fn() -> bool + Send>,
}

struct OwnedClient {
    probe: ClusterProbe,
    /// Its `group.id` is the group whose commits the client can read.
    config: ClientConfig,
}

impl WorkerThread {
    fn serve(mut self, requests: &Receiver<AdminRequest>) {
        // Dropped before the client, which must outlive its calls. Each route has one question at most.
        let mut open: Vec<OpenRequest> = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            self.serve_client();
            open.retain_mut(|poll| !poll(&mut self));
            if let Ok(request) = requests.try_recv() {
                open.extend(request(&mut self));
                continue;
            }
            if let Some(names) = self.watch.as_mut().and_then(TopicWatch::due_names) {
                let names = names.iter().map(String::as_str).collect();
                let asked = self.ask_topics(&names, false, KAFKA_SOURCE_REQUEST_TIMEOUT);
                // Readiness reports a cluster that does not answer.
                let answered = asked.ok().map(|mut topics| -> OpenRequest {
                    Box::new(move |worker| !matches!(worker.take_topics(&mut topics), Ok(None)))
                });
                open.extend(answered);
            }
            std::thread::park_timeout(KAFKA_CLIENT_WAKE_INTERVAL);
        }
    }

    fn serve_client(&mut self) {
        let Self {
            native,
            health,
            stop,
            own,
            ..
        } = self;
        if let Some(OwnedClient { probe, .. }) = own {
            native.serve_events(|event| health.on_client_event(event));
            probe.serve(health, |target| {
                !stop.load(Ordering::Relaxed) && native.probe(target)
            });
        }
    }

    /// Replaces the client if it belongs to another group. A shared client has the right one.
    pub(super) fn use_group(&mut self, group: &str) -> Result<(), Error> {
        if let Some(OwnedClient { config, .. }) = &mut self.own
            && config.get("group.id") != Some(group)
        {
            config.set("group.id", group);
            self.native = Arc::new(NativeClient::admin_client(config)?);
        }
        Ok(())
    }

    pub(super) fn refresh_brokers(&mut self, topic: &str) {
        self.brokers.refresh(&self.native, topic, Instant::now());
    }

    pub(super) fn controller(&self) -> Option<i32> {
        self.native.controller()
    }

    pub(super) fn cluster_id(&self) -> Option<String> {
        self.native.cluster_id()
    }

    /// Notes the answer of a broker to a polled request, or explains its error.
    pub(super) fn record<T>(&self, answer: Result<T, CallError>) -> Result<T, Error> {
        if answer.is_ok() {
            self.health.record_response();
        }
        answer.map_err(|error| match self.health.outage_reason() {
            Some(reason) => Error::Unavailable(reason),
            None => call_error(error),
        })
    }

    /// The client, unless the cluster is down.
    pub(super) fn client(&self) -> Result<Arc<NativeClient>, Error> {
        match self.health.outage_reason() {
            Some(reason) => Err(Error::Unavailable(reason)),
            None => Ok(self.native.clone()),
        }
    }

    /// Makes a call, unless the cluster is down. Cancels it when the cluster goes down, the caller is
    /// gone, or the worker stops.
    pub(crate) fn call<T>(
        &mut self,
        call: impl FnOnce(&mut CallContext<'_>) -> Result<T, CallError>,
    ) -> Result<T, Error> {
        let native = self.client()?;
        let mut keep_waiting = || {
            self.serve_client();
            let is_stopped = self.stop.load(Ordering::Relaxed);
            !is_stopped && (self.is_wanted)() && self.health.outage_reason().is_none()
        };
        let answer = call(&mut CallContext {
            native: &native,
            keep_waiting: &mut keep_waiting,
        });
        self.record(answer)
    }
}

/// Watches topics for a deletion and recreation, which librdkafka does not notice.
pub(crate) struct TopicWatch {
    /// The last seen ids by topic name.
    ids: BTreeMap<String, Option<String>>,
    next_check: Instant,
    on_recreated: Box<dyn FnMut(&str) + Send>,
}

impl TopicWatch {
    pub(crate) fn new(topics: &[String], on_recreated: impl FnMut(&str) + Send + 'static) -> Self {
        Self {
            ids: topics.iter().map(|topic| (topic.clone(), None)).collect(),
            next_check: Instant::now() + PARTITION_DISCOVERY_INTERVAL,
            on_recreated: Box::new(on_recreated),
        }
    }

    /// The topics to describe now, if it is time.
    fn due_names(&mut self) -> Option<Vec<String>> {
        let now = Instant::now();
        (now >= self.next_check).then(|| {
            self.next_check = now + PARTITION_DISCOVERY_INTERVAL;
            self.ids.keys().cloned().collect()
        })
    }

    pub(super) fn update<'a>(&mut self, found: impl Iterator<Item = &'a TopicDescription>) {
        for topic in found.filter(|topic| topic.id.is_some()) {
            let Some(known) = self.ids.get_mut(&topic.name) else {
                continue;
            };
            if known.is_some() && *known != topic.id {
                (self.on_recreated)(&topic.name);
            }
            known.clone_from(&topic.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::InProcessKafka;
    use crate::health::Health;
    use std::collections::BTreeSet;

    #[tokio::test]
    async fn a_topic_that_may_not_be_described_hides_no_recreation_of_another() {
        let broker = InProcessKafka::start(&[("a", 1), ("b", 1)]).unwrap();
        broker.refuse_topic("a");
        let cluster = Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: BTreeMap::new(),
        };
        let health = ClusterHealth::new(&cluster.name, Health::new().register("admin"));
        let mut admin = AdminWorker::with_own_client(&cluster, None, health).unwrap();
        let seen = admin.request(|worker| {
            let (sender, recreated) = sync_channel(2);
            let mut watch =
                TopicWatch::new(&["a".to_owned(), "b".to_owned()], move |topic: &str| {
                    sender.send(topic.to_owned()).unwrap();
                });
            watch
                .ids
                .insert("b".to_owned(), Some("an earlier id".to_owned()));
            worker.watch = Some(watch);
            let topics = worker.topics_by_name(
                &BTreeSet::from(["a", "b"]),
                false,
                KAFKA_SOURCE_REQUEST_TIMEOUT,
            )?;
            assert!(matches!(topics["a"], Err(Error::Rejected(_))), "{topics:?}");
            assert!(matches!(topics["b"], Ok(Some(_))), "{topics:?}");
            Ok(recreated.try_iter().collect::<Vec<String>>())
        });
        assert_eq!(seen.await.unwrap(), ["b"]);
        admin.close().await;
    }
}
