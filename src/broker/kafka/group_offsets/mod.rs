//! Reads and commits the offsets of any number of groups with one client, on a thread of its own.
//!
//! The groups have no members. A request goes to the broker that coordinated its group before. A broker
//! that does not coordinate a group says so, and then the next broker is asked. So no request waits for
//! librdkafka's own search for a coordinator, and a silent one delays the requests of its groups only.

pub(super) mod broker_ids;

use self::broker_ids::BrokerIds;
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{self, GroupAnswer, GroupCall, NativeClient};
use crate::broker::kafka::health::{ClusterHealth, ClusterProbe};
use crate::broker::kafka::limit::{
    KAFKA_CLIENT_WAKE_INTERVAL, KAFKA_COMMIT_TIMEOUT, KAFKA_COORDINATOR_RETRY_DELAY,
    KAFKA_GROUP_CALL_TIMEOUT, KAFKA_GROUP_REQUESTS_MAX, KAFKA_REQUEST_TIMEOUT,
};
use crate::broker::kafka::options::{ASKING_LIMITS, ClientOptions, Cluster, NO_OPTIONS};
use crate::broker::kafka::partition_list;
use crate::broker::{Error, OffsetCommit};
use crate::client_thread::ClientThread;
use crate::model::{Partition, is_topic_name};
use futures_util::future::LocalBoxFuture;
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The caller's side of the thread.
pub(super) struct GroupOffsets {
    requests: SyncSender<Request>,
    stop: Arc<AtomicBool>,
    thread: ClientThread,
}

/// The metadata of each partition, in the order of the request; empty for a commit.
type Answer = Result<Vec<Option<String>>, Error>;

struct Request {
    group: String,
    call: Call,
    reply: oneshot::Sender<Answer>,
}

enum Call {
    List(Vec<Partition>),
    Commit(Vec<OffsetCommit>),
}

impl Call {
    fn is_empty(&self) -> bool {
        match self {
            Self::List(partitions) => partitions.is_empty(),
            Self::Commit(commits) => commits.is_empty(),
        }
    }

    /// The time for the answer of one broker, and for the answer to the request.
    fn timeouts(&self) -> (Duration, Duration) {
        match self {
            Self::List(_) => (KAFKA_GROUP_CALL_TIMEOUT, KAFKA_REQUEST_TIMEOUT),
            Self::Commit(_) => (KAFKA_COMMIT_TIMEOUT / 4, KAFKA_COMMIT_TIMEOUT),
        }
    }
}

impl GroupOffsets {
    /// Starts with a client that another thread serves. It needs a `group.id`, which may be any.
    pub(super) fn sharing(native: Arc<NativeClient>, health: ClusterHealth) -> Result<Self, Error> {
        Self::start(native, health, None)
    }

    /// Starts with a client of its own. `group`: any group whose commits may be read.
    pub(super) fn with_own_client(
        cluster: &Cluster,
        group: &str,
        health: ClusterHealth,
    ) -> Result<Self, Error> {
        let enforced = [
            ("enable.auto.commit", "false".to_owned()),
            ("group.id", group.to_owned()),
        ];
        let options = ClientOptions {
            limits: ASKING_LIMITS,
            ..NO_OPTIONS
        };
        let config = cluster.config(&options, &enforced);
        let native = Arc::new(NativeClient::admin_client(&config)?);
        Self::start(native, health, Some(ClusterProbe::new()))
    }

    fn start(
        native: Arc<NativeClient>,
        health: ClusterHealth,
        probe: Option<ClusterProbe>,
    ) -> Result<Self, Error> {
        let (requests, receiver) = sync_channel(KAFKA_GROUP_REQUESTS_MAX);
        let stop = Arc::<AtomicBool>::default();
        let group_thread = GroupThread {
            coordinators: BTreeMap::new(),
            brokers: BrokerIds::default(),
            native,
            health,
            probe,
            stop: stop.clone(),
        };
        let thread = ClientThread::start("kafka-groups", move || group_thread.serve(&receiver))
            .map_err(|error| Error::Fatal(error.to_string()))?;
        Ok(Self {
            requests,
            stop,
            thread,
        })
    }

    /// The metadata that `group` committed for each partition; `None`: no commit, or an invalid topic.
    /// Waits for open transactions that commit offsets of the group. The answer may be dropped.
    pub(super) fn committed_metadata(
        &self,
        group: &str,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Answer> {
        let is_valid = |partition: &Partition| is_topic_name(&partition.topic);
        let are_valid: Vec<bool> = partitions.iter().map(is_valid).collect();
        let valid = partitions.iter().filter(|it| is_valid(it)).cloned();
        let answer = self.request(group, Call::List(valid.collect()));
        Box::pin(async move {
            let mut found = answer.await?.into_iter();
            let in_order = are_valid.into_iter();
            let in_order = in_order.map(|is_valid| if is_valid { found.next()? } else { None });
            Ok(in_order.collect())
        })
    }

    /// Commits offsets for a group without members. Safe to repeat. If the answer is dropped, the
    /// commit may be made or not.
    pub(super) fn commit(
        &self,
        group: &str,
        commits: Vec<OffsetCommit>,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        let answer = self.request(group, Call::Commit(commits));
        Box::pin(async move { answer.await.map(drop) })
    }

    fn request(&self, group: &str, call: Call) -> LocalBoxFuture<'static, Answer> {
        if call.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let (reply, answer) = oneshot::channel();
        let group = group.to_owned();
        let sent = self.requests.try_send(Request { group, call, reply });
        self.thread.unpark();
        Box::pin(async move {
            match sent {
                Err(TrySendError::Full(_)) => Err(Error::Unavailable(
                    "earlier requests are not answered yet".to_owned(),
                )),
                Err(TrySendError::Disconnected(_)) => Err(thread_ended()),
                Ok(()) => answer.await.unwrap_or_else(|_| Err(thread_ended())),
            }
        })
    }

    pub(super) async fn close(&mut self) {
        self.stop();
        self.thread.join().await;
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for GroupOffsets {
    fn drop(&mut self) {
        self.stop();
    }
}

fn thread_ended() -> Error {
    Error::Fatal("the thread for group offsets has ended".to_owned())
}

/// The state of the thread.
struct GroupThread {
    /// The broker that answered the last request of each group.
    coordinators: BTreeMap<String, i32>,
    brokers: BrokerIds,
    native: Arc<NativeClient>,
    health: ClusterHealth,
    /// `None`: another thread serves the client.
    probe: Option<ClusterProbe>,
    stop: Arc<AtomicBool>,
}

/// A request without an answer.
struct Pending {
    request: Request,
    deadline: Instant,
    asked: Option<(i32, GroupCall)>,
    /// The brokers that are asked next.
    next: VecDeque<i32>,
    /// No broker is asked before.
    not_before: Instant,
    /// All brokers are asked again at this time.
    next_round_at: Instant,
    last_error: String,
}

impl GroupThread {
    fn serve(mut self, requests: &Receiver<Request>) {
        // Dropped before the client, which must outlive its calls.
        let mut waiting: Vec<Pending> = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            self.serve_client();
            if self.brokers.take_answer() {
                // They wait for a round.
                waiting.iter_mut().for_each(Pending::ask_now);
            }
            while waiting.len() < KAFKA_GROUP_REQUESTS_MAX
                && let Ok(request) = requests.try_recv()
            {
                waiting.push(Pending::new(request));
            }
            for mut pending in std::mem::take(&mut waiting) {
                match self.step(&mut pending) {
                    Some(answer) => drop(pending.request.reply.send(answer)),
                    None => waiting.push(pending),
                }
            }
            std::thread::park_timeout(sleep_time(&waiting));
        }
    }

    fn serve_client(&mut self) {
        let Self {
            native,
            health,
            probe,
            stop,
            ..
        } = self;
        if let Some(probe) = probe {
            native.serve_events(|event| health.on_client_event(event));
            probe.serve(health, |target| {
                !stop.load(Ordering::Relaxed) && native.probe(target)
            });
        }
    }

    /// Takes the answer of the broker that was asked, or asks the next one. Returns the answer of the
    /// request, once it is known.
    fn step(&mut self, pending: &mut Pending) -> Option<Answer> {
        if pending.request.reply.is_closed() {
            return Some(Ok(Vec::new()));
        }
        if let Some(outage) = self.health.outage_reason() {
            return Some(Err(Error::Unavailable(outage)));
        }
        let (broker, answer) = match &pending.asked {
            Some((broker, call)) => (*broker, call.try_take()),
            None => return self.ask_next(pending),
        };
        if let Some(answer) = answer {
            pending.asked = None;
            return match pending.request.read(answer) {
                Ok(answer) => {
                    self.health.record_response();
                    let group = pending.request.group.clone();
                    self.coordinators.insert(group, broker);
                    Some(Ok(answer))
                }
                Err((code, text)) => self.on_error(pending, broker, code, text),
            };
        }
        self.give_up(pending)
    }

    /// `None` if the request is repeated.
    fn on_error(
        &mut self,
        pending: &mut Pending,
        broker: i32,
        code: Code,
        text: String,
    ) -> Option<Answer> {
        match retry_of(code) {
            Retry::Never => Some(Err(pending.request.error(code, text))),
            Retry::SameBroker => {
                pending.last_error = text;
                pending.next.push_front(broker);
                pending.not_before = Instant::now() + KAFKA_COORDINATOR_RETRY_DELAY;
                self.give_up(pending)
            }
            Retry::OtherBroker => {
                pending.last_error = text;
                self.coordinators.remove(&pending.request.group);
                if code != Code::NotCoordinator {
                    self.brokers.ask_last(broker);
                }
                self.ask_next(pending)
            }
        }
    }

    fn ask_next(&mut self, pending: &mut Pending) -> Option<Answer> {
        let now = Instant::now();
        if now < pending.not_before {
            return self.give_up(pending);
        }
        if pending.next.is_empty() {
            self.start_round(pending, now);
        }
        let Some(broker) = pending.next.pop_front() else {
            pending.not_before = pending.next_round_at;
            return self.give_up(pending);
        };
        match pending.request.start(&self.native, broker) {
            Ok(call) => pending.asked = Some((broker, call)),
            Err((code, text)) => return Some(Err(pending.request.error(code, text))),
        }
        None
    }

    /// Plans to ask the known coordinator, or else all brokers.
    fn start_round(&mut self, pending: &mut Pending, now: Instant) {
        if let Some(broker) = self.coordinators.get(&pending.request.group) {
            pending.next.push_back(*broker);
            return;
        }
        if now < pending.next_round_at {
            return;
        }
        pending.next_round_at = now + KAFKA_COORDINATOR_RETRY_DELAY;
        self.brokers
            .refresh(&self.native, pending.request.topic(), now);
        pending.next.extend(self.brokers.ids());
    }

    /// The error of a request that has waited too long.
    fn give_up(&self, pending: &Pending) -> Option<Answer> {
        (Instant::now() >= pending.deadline).then(|| {
            let reason = match &*pending.last_error {
                "" => "no answer",
                error => error,
            };
            let reason = format!("the group coordinator did not answer: {reason}");
            Err(Error::Unavailable(reason))
        })
    }
}

/// The time until a broker is asked. An answer ends the sleep.
fn sleep_time(waiting: &[Pending]) -> Duration {
    let not_asked = waiting.iter().filter(|it| it.asked.is_none());
    let next_at = not_asked.map(|it| it.not_before).min();
    let until = next_at.map(|at| at.saturating_duration_since(Instant::now()));
    until
        .unwrap_or(KAFKA_CLIENT_WAKE_INTERVAL)
        .min(KAFKA_CLIENT_WAKE_INTERVAL)
}

impl Pending {
    fn new(request: Request) -> Self {
        let now = Instant::now();
        let (_, timeout) = request.call.timeouts();
        Self {
            request,
            deadline: now + timeout,
            asked: None,
            next: VecDeque::new(),
            not_before: now,
            next_round_at: now,
            last_error: String::new(),
        }
    }

    /// Asks the brokers without a wait, if none is asked.
    fn ask_now(&mut self) {
        if self.asked.is_none() && self.next.is_empty() {
            let now = Instant::now();
            (self.not_before, self.next_round_at) = (now, now);
        }
    }
}

impl Request {
    /// The topic of one partition.
    fn topic(&self) -> &str {
        match &self.call {
            Call::List(partitions) => partitions.first().map_or("", |it| &it.topic),
            Call::Commit(commits) => commits.first().map_or("", |it| &it.partition.topic),
        }
    }

    fn start(&self, native: &NativeClient, broker: i32) -> Result<GroupCall, ffi::CallError> {
        let (group, (timeout, _)) = (&*self.group, self.call.timeouts());
        match &self.call {
            Call::List(partitions) => GroupCall::list(native, broker, group, partitions, timeout),
            Call::Commit(commits) => {
                let mut offsets = TopicPartitionList::with_capacity(commits.len());
                for commit in commits {
                    let metadata = Some(&*commit.metadata);
                    partition_list::add(&mut offsets, &commit.partition, commit.offset, metadata);
                }
                GroupCall::commit(native, broker, group, &offsets, timeout)
            }
        }
    }

    /// The answer in the order of the request, or the first error.
    fn read(
        &self,
        answer: Result<GroupAnswer, ffi::CallError>,
    ) -> Result<Vec<Option<String>>, ffi::CallError> {
        let mut found = answer?;
        let mut take = |partition| {
            found.remove(partition).unwrap_or_else(|| {
                let text = "the answer of the group coordinator lacks a partition";
                Err((Code::Fail, text.to_owned()))
            })
        };
        match &self.call {
            Call::List(partitions) => partitions.iter().map(take).collect(),
            Call::Commit(commits) => {
                let mut commits = commits.iter();
                commits.try_for_each(|commit| take(&commit.partition).map(drop))?;
                Ok(Vec::new())
            }
        }
    }

    /// The broker refuses commits of this worker while the group has members.
    fn error(&self, code: Code, text: String) -> Error {
        match code {
            Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress => {
                let group = &self.group;
                Error::Rejected(format!(
                    "the consumer group {group} has members, so only they may commit. Stop all workers of \
                     Postdate 0.1.0, and other consumers of this group. A killed one is a member for 10 \
                     more seconds"
                ))
            }
            code => call_error((code, text)),
        }
    }
}

/// The next step after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Never,
    SameBroker,
    OtherBroker,
}

fn retry_of(code: Code) -> Retry {
    match code {
        Code::CoordinatorLoadInProgress | Code::UnstableOffsetCommit => Retry::SameBroker,
        Code::NotCoordinator
        | Code::CoordinatorNotAvailable
        | Code::BrokerTransportFailure
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::BrokerDestroy => Retry::OtherBroker,
        _ => Retry::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::kafka::InProcessKafka;
    use crate::health::Health;
    use crate::model::Offset;

    #[test]
    fn only_errors_about_the_coordinator_or_the_connection_are_repeated() {
        assert_eq!(retry_of(Code::NotCoordinator), Retry::OtherBroker);
        assert_eq!(retry_of(Code::OperationTimedOut), Retry::OtherBroker);
        assert_eq!(retry_of(Code::TimedOutQueue), Retry::OtherBroker);
        assert_eq!(retry_of(Code::UnstableOffsetCommit), Retry::SameBroker);
        assert_eq!(retry_of(Code::GroupAuthorizationFailed), Retry::Never);
        assert_eq!(retry_of(Code::UnknownMemberId), Retry::Never);
    }

    #[test]
    fn an_answer_that_lacks_a_partition_is_no_answer() {
        let partitions = vec![Partition::new("in", 0), Partition::new("in", 1)];
        let commit = |partition: &Partition| OffsetCommit {
            partition: partition.clone(),
            offset: Offset(7),
            metadata: String::new(),
        };
        let calls = [
            Call::List(partitions.clone()),
            Call::Commit(partitions.iter().map(commit).collect()),
        ];
        for call in calls {
            let (reply, _answer) = oneshot::channel();
            let request = Request {
                group: "g".to_owned(),
                call,
                reply,
            };
            let found = |partitions: &[Partition]| {
                let found = partitions.iter().map(|it| (it.clone(), Ok(None)));
                request.read(Ok(found.collect()))
            };
            assert!(found(&partitions).is_ok());
            assert!(found(&partitions[..1]).is_err());
        }
    }

    #[tokio::test]
    async fn one_client_commits_for_many_groups() {
        let broker = InProcessKafka::start(&[("in", 2)]).unwrap();
        let cluster = Cluster {
            name: "demo".into(),
            brokers: vec![broker.address()],
            properties: BTreeMap::new(),
        };
        let health = ClusterHealth::new(&cluster.name, Health::new().register("groups"));
        let mut groups = GroupOffsets::with_own_client(&cluster, "any", health).unwrap();
        let partitions = [Partition::new("in", 0), Partition::new("in", 1)];
        let names: Vec<String> = (0..30).map(|number| format!("group-{number}")).collect();
        let commits = names.iter().map(|name| {
            let commit = OffsetCommit {
                partition: partitions[1].clone(),
                offset: Offset(7),
                metadata: format!("of {name}"),
            };
            groups.commit(name, vec![commit])
        });
        for outcome in futures_util::future::join_all(commits).await {
            outcome.unwrap();
        }
        for name in &names {
            let invalid = Partition::new("not a topic", 0);
            let asked = [invalid, partitions[1].clone(), partitions[0].clone()];
            let found = groups.committed_metadata(name, &asked).await.unwrap();
            assert_eq!(found, [None, Some(format!("of {name}")), None]);
        }
        assert_eq!(groups.committed_metadata("any", &[]).await.unwrap(), []);
        groups.close().await;
    }
}
