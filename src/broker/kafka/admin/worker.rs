//! A thread that sends admin requests to a cluster, one after the other. Between requests it
//! watches topics for a recreation and probes the cluster.

use super::describe::describe_cluster;
use super::requests::{committed_metadata, describe_partitions, partitions, topics};
use crate::broker::describe::ClusterInfo;
use crate::broker::kafka::error::client_creation_error;
use crate::broker::kafka::ffi::{CallContext, NativeClient, TopicDescription};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::options::{ClientOptions, Cluster};
use crate::broker::{Error, PartitionInfo};
use crate::client_thread::ClientThread;
use crate::limit::{
    KAFKA_ADMIN_REQUESTS_MAX, KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_COMMITTED_REQUEST_TIMEOUT,
    KAFKA_REQUEST_TIMEOUT, KAFKA_TOPIC_ID_CHECK_INTERVAL,
};
use crate::model::Partition;
use rdkafka::config::ClientConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

const OPTIONS: ClientOptions = ClientOptions {
    defaults: &[],
    limits: &[],
    enforced: &[
        ("enable.auto.commit", "false"),
        ("isolation.level", "read_committed"),
    ],
};

/// The caller's side of the thread.
pub(crate) struct AdminWorker {
    /// `None` once closed: the thread ends when no sender is left.
    requests: Option<SyncSender<AdminRequest>>,
    /// Cancels the request in flight.
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

/// Sends requests from a thread that polls for the answer.
#[derive(Clone)]
pub(crate) struct AdminHandle(SyncSender<AdminRequest>);

impl AdminHandle {
    /// The metadata that a group committed for one partition. Has a short timeout: the broker does
    /// not answer while a transaction is open, and other requests wait behind this one.
    pub(crate) fn committed_metadata(
        &self,
        group: &str,
        partition: &Partition,
    ) -> Result<PendingAnswer, Error> {
        let group = group.to_owned();
        let partitions = vec![partition.clone()];
        let (request, answer) = new_request(move |worker| {
            worker.committed_metadata(&group, &partitions, KAFKA_COMMITTED_REQUEST_TIMEOUT)
        });
        self.0.try_send(request).map_err(|_| busy())?;
        Ok(PendingAnswer(answer))
    }
}

/// Dropping it cancels the request, unless it is in flight.
pub(crate) struct PendingAnswer(oneshot::Receiver<Result<Vec<Option<String>>, Error>>);

impl PendingAnswer {
    /// `None`: the answer has not arrived.
    pub(crate) fn try_take(&mut self) -> Option<Result<Option<String>, Error>> {
        match self.0.try_recv() {
            Ok(found) => Some(found.map(|found| found.into_iter().next().flatten())),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(thread_ended())),
        }
    }
}

fn busy() -> Error {
    Error::Unavailable("earlier requests are not answered yet".into())
}

fn thread_ended() -> Error {
    Error::Fatal("the admin thread has ended".into())
}

/// A request to run on the worker's thread. It sends its own answer.
type AdminRequest = Box<dyn FnOnce(&mut WorkerThread) + Send>;

/// Pairs a call with the channel for its answer. It is skipped if its caller was cancelled.
fn new_request<T: Send + 'static>(
    call: impl FnOnce(&mut WorkerThread) -> Result<T, Error> + Send + 'static,
) -> (AdminRequest, oneshot::Receiver<Result<T, Error>>) {
    let (reply, answer) = oneshot::channel();
    let request = Box::new(move |worker: &mut WorkerThread| {
        if !reply.is_closed() {
            drop(reply.send(call(worker)));
        }
    });
    (request, answer)
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
            next_check: Instant::now() + KAFKA_TOPIC_ID_CHECK_INTERVAL,
            on_recreated: Box::new(on_recreated),
        }
    }

    fn update<'a>(&mut self, found: impl Iterator<Item = &'a TopicDescription>) {
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

impl AdminWorker {
    /// Starts with a client of its own, which reads committed records only and is a member of no
    /// group. It connects for `group` from the start.
    pub(crate) fn with_own_client(
        cluster: &Cluster,
        group: Option<&str>,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let mut config = cluster.config(&OPTIONS, &[]);
        if let Some(group) = group {
            config.set("group.id", group);
        }
        let native =
            NativeClient::admin_client(&config).map_err(|error| client_creation_error(&error))?;
        let own = OwnedClient {
            probe: ClusterProbe::new(),
            config,
        };
        Self::start(Arc::new(native), health, Some(own), None)
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
        let stop = Arc::new(AtomicBool::new(false));
        let worker_thread = WorkerThread {
            service: ClientService {
                native,
                health,
                stop: stop.clone(),
                own,
            },
            watch,
        };
        let thread = ClientThread::start("kafka-catalog", move || worker_thread.serve(&receiver))
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            requests: Some(requests),
            stop,
            thread,
        })
    }

    pub(super) async fn partitions(&self, topics: &[String]) -> Result<Vec<Partition>, Error> {
        let topics = topics.to_vec();
        self.request(move |worker| worker.service.call(|context| partitions(context, &topics)))
            .await
    }

    pub(crate) async fn describe(
        &self,
        partitions: &[Partition],
    ) -> Result<Vec<PartitionInfo>, Error> {
        let partitions = partitions.to_vec();
        self.request(move |worker| worker.describe_partitions(&partitions))
            .await
    }

    pub(crate) async fn committed_metadata(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        let group = group.to_owned();
        let partitions = partitions.to_vec();
        self.request(move |worker| {
            worker.committed_metadata(&group, &partitions, KAFKA_REQUEST_TIMEOUT)
        })
        .await
    }

    pub(super) async fn describe_cluster(&self, topics: &[String]) -> Result<ClusterInfo, Error> {
        let topics = topics.to_vec();
        self.request(move |worker| {
            worker
                .service
                .call(|context| describe_cluster(context, &topics))
        })
        .await
    }

    async fn request<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut WorkerThread) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (request, answer) = new_request(call);
        let requests = self.requests.as_ref().ok_or_else(busy)?;
        requests.try_send(request).map_err(|_| busy())?;
        answer.await.unwrap_or_else(|_| Err(thread_ended()))
    }

    /// A handle for another thread. The worker's thread ends only when all handles are dropped.
    pub(crate) fn handle(&self) -> Option<AdminHandle> {
        self.requests.clone().map(AdminHandle)
    }

    pub(crate) async fn close(&mut self) {
        self.stop();
        self.thread.join().await;
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.requests = None;
    }
}

impl Drop for AdminWorker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state of the worker's thread.
struct WorkerThread {
    service: ClientService,
    watch: Option<TopicWatch>,
}

/// Serves the client while a request waits for its answer.
struct ClientService {
    native: Arc<NativeClient>,
    health: ClusterHealth,
    stop: Arc<AtomicBool>,
    /// `None`: another thread serves the client.
    own: Option<OwnedClient>,
}

struct OwnedClient {
    probe: ClusterProbe,
    /// Its `group.id` is the group whose commits the client can read.
    config: ClientConfig,
}

impl ClientService {
    fn poll(&mut self) {
        let Self {
            native,
            health,
            stop,
            own,
        } = self;
        if let Some(OwnedClient { probe, .. }) = own {
            while native.poll(Duration::ZERO, &mut |event| health.on_client_event(event)) > 0 {}
            probe.serve(health, |target| {
                !stop.load(Ordering::Relaxed) && native.probe(target)
            });
        }
    }

    /// Replaces the client if it belongs to another group. A shared client has the right one.
    fn use_group(&mut self, group: &str) -> Result<(), Error> {
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        if own.config.get("group.id") != Some(group) {
            own.config.set("group.id", group);
            let native = NativeClient::admin_client(&own.config)
                .map_err(|error| client_creation_error(&error))?;
            self.native = Arc::new(native);
        }
        Ok(())
    }

    /// Makes a call, unless the cluster is down. Cancels it when the cluster goes down or the
    /// worker stops.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut CallContext<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(reason) = self.health.outage_reason() {
            return Err(Error::Unavailable(reason));
        }
        let native = self.native.clone();
        let mut keep_waiting = || {
            self.poll();
            !self.stop.load(Ordering::Relaxed) && self.health.outage_reason().is_none()
        };
        let answer = call(&mut CallContext {
            native: &native,
            keep_waiting: &mut keep_waiting,
        });
        match answer {
            Ok(answer) => {
                self.health.record_response();
                Ok(answer)
            }
            Err(error) => Err(self
                .health
                .outage_reason()
                .map_or(error, Error::Unavailable)),
        }
    }
}

impl WorkerThread {
    fn serve(mut self, requests: &Receiver<AdminRequest>) {
        loop {
            let request = requests.recv_timeout(KAFKA_CLIENT_WAKE_INTERVAL);
            self.service.poll();
            match request {
                Ok(request) => request(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.check_topics();
        }
    }

    fn describe_partitions(
        &mut self,
        partitions: &[Partition],
    ) -> Result<Vec<PartitionInfo>, Error> {
        let Self { service, watch } = self;
        service.call(|context| {
            describe_partitions(context, partitions, |topics| {
                if let Some(watch) = watch {
                    watch.update(topics.values());
                }
            })
        })
    }

    fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Vec<Option<String>>, Error> {
        self.service.use_group(group)?;
        self.service
            .call(|context| committed_metadata(context, partitions, timeout))
    }

    fn check_topics(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let now = Instant::now();
        if now < watch.next_check {
            return;
        }
        watch.next_check = now + KAFKA_TOPIC_ID_CHECK_INTERVAL;
        let names: Vec<String> = watch.ids.keys().cloned().collect();
        // Readiness reports a cluster that does not answer.
        let found = self
            .service
            .call(|context| topics(context, names.iter().map(String::as_str)));
        if let Ok(found) = found {
            watch.update(found.iter());
        }
    }
}
