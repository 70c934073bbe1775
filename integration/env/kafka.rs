//! Starts a real Apache Kafka in KRaft combined mode: one node or a cluster.
//!
//! A node keeps its port and its data when it is killed, so clients can reconnect.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::admin::{
    AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;

use super::process::{Process, Signal, folder, free_port};
use super::{PATIENCE, eventually, servers};

/// The broker session is short. A killed broker can return only after its old session expires:
/// after 5 seconds instead of 14.
const PROPERTIES: &str = "
process.roles=broker,controller
controller.listener.names=CONTROLLER
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=300
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
";

/// Favours a quick start over throughput. C1 compilation only and the serial collector halve the
/// CPU cost of a start.
pub(super) const QUICK: &[&str] = &["-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// JVM options as an operator uses them.
const FAST: &[&str] = &["-Xmx768m"];

pub(crate) struct Kafka {
    jvm: &'static [&'static str],
    addr: String,
    folder: PathBuf,
    process: Process,
    _turn: Option<Turn>,
}

impl Kafka {
    /// Starts a broker for one test, which may kill and restart it. Waits for a `Turn`, because the
    /// start of a JVM fills a core for seconds.
    pub(crate) fn start() -> Kafka {
        Kafka::start_with(&[])
    }

    pub(crate) fn start_with(properties: &[(&str, &str)]) -> Kafka {
        let extra = Extra {
            properties,
            ..Extra::default()
        };
        Kafka::launch(QUICK, &extra, Some(Turn::take(1)))
    }

    /// Starts a broker with a second listener and predefined users. The first listener stays open
    /// for the tests' own clients.
    pub(super) fn start_guarded(extra: &Extra<'_>) -> Kafka {
        Kafka::launch(QUICK, extra, Some(Turn::take(1)))
    }

    /// Starts a broker for benchmarks: it starts more slowly and then runs faster.
    pub(crate) fn start_fast() -> Kafka {
        Kafka::launch(FAST, &Extra::default(), None)
    }

    /// Starts the broker that tests share. It takes no `Turn`.
    pub(super) fn start_shared() -> Kafka {
        Kafka::launch(QUICK, &Extra::default(), None)
    }

    fn launch(jvm: &'static [&'static str], extra: &Extra<'_>, turn: Option<Turn>) -> Kafka {
        let place = Place {
            id: 1,
            controllers: &[controller()],
        };
        let mut kafka = Kafka::spawn(jvm, extra, &place);
        kafka._turn = turn;
        kafka.wait();
        kafka
    }

    /// Formats the storage and starts the process, without waiting for it.
    fn spawn(jvm: &'static [&'static str], extra: &Extra<'_>, place: &Place<'_>) -> Kafka {
        let folder = folder("kafka");
        let addr = format!("127.0.0.1:{}", free_port());
        let second = extra
            .listener
            .map(|listener| format!(",{listener}"))
            .unwrap_or_default();
        let mut text = format!(
            "{PROPERTIES}node.id={}\nlisteners=PLAINTEXT://{addr},CONTROLLER://{}{second}\nadvertised.listeners=PLAINTEXT://{addr}{second}\n\
             controller.quorum.voters={}\nlog.dirs={}\n",
            place.id,
            place.controllers[place.id - 1],
            place.voters(),
            folder.join("data").display()
        );
        text.extend(
            extra
                .properties
                .iter()
                .map(|(key, value)| format!("{key}={value}\n")),
        );
        std::fs::write(folder.join("server.properties"), text).unwrap();
        let format = java(QUICK, "kafka.tools.StorageTool")
            .args(["format", "-t", &place.cluster_id(), "-c"])
            .arg(folder.join("server.properties"))
            .args(
                extra
                    .users
                    .iter()
                    .flat_map(|user| ["--add-scram", user.as_str()]),
            )
            .output();
        let format = format.expect("java starts");
        assert!(
            format.status.success(),
            "Kafka's storage is not formatted: {}",
            String::from_utf8_lossy(&format.stderr)
        );
        let process = Process::start("kafka", &folder, &mut broker(jvm, &folder));
        Kafka {
            jvm,
            addr,
            folder,
            process,
            _turn: None,
        }
    }

    /// Host and port, as a client's `bootstrap.servers` takes it.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// Shuts the broker down gracefully, as an operator does.
    pub(crate) fn stop(&mut self) {
        self.process.end(Signal::TERM);
    }

    /// Restarts the broker on the same port with the same data. Kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        self.process
            .start_again(&mut broker(self.jvm, &self.folder));
        self.wait();
    }

    /// CPU time used since the start.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Stops the process: connections stay open and get no answer, as when the network drops every
    /// packet.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        self.create_topic_with(name, partitions, TopicReplication::Fixed(1), config);
    }

    fn create_topic_with(
        &self,
        name: &str,
        partitions: i32,
        copies: TopicReplication<'_>,
        config: &[(&str, &str)],
    ) {
        let mut topic = NewTopic::new(name, partitions, copies);
        topic.config = config.to_vec();
        settled(block_on(
            self.admin().create_topics([&topic], &AdminOptions::new()),
        ));
        self.wait_for_partitions(name, partitions);
    }

    pub(crate) fn delete_topic(&self, name: &str) {
        let admin = self.admin();
        settled(block_on(admin.delete_topics(&[name], &AdminOptions::new())));
        eventually(&format!("topic {name} is gone"), PATIENCE, || {
            (leaders(&admin, name) == 0).then_some(())
        });
    }

    /// Raises the topic's partition count to `total`.
    pub(crate) fn add_partitions(&self, name: &str, total: i32) {
        let partitions = NewPartitions::new(name, usize::try_from(total).expect("not negative"));
        settled(block_on(
            self.admin()
                .create_partitions([&partitions], &AdminOptions::new()),
        ));
        self.wait_for_partitions(name, total);
    }

    /// Removes the records of one partition below an offset, as retention does.
    pub(crate) fn delete_records(&self, name: &str, partition: i32, below: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets
            .add_partition_offset(name, partition, rdkafka::Offset::Offset(below))
            .unwrap();
        let admin = self.admin();
        let deleted = block_on(admin.delete_records(&offsets, &AdminOptions::new())).unwrap();
        deleted
            .elements()
            .iter()
            .for_each(|element| element.error().unwrap());
    }

    /// The output of Kafka's own tool for a consumer group.
    pub(crate) fn describe_group(&self, group: &str) -> String {
        let output = java(
            QUICK,
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        )
        .args([
            "--bootstrap-server",
            &self.addr,
            "--describe",
            "--group",
            group,
        ])
        .output()
        .expect("java starts");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// The first retained offset and the next offset of one partition.
    pub(crate) fn offsets(&self, name: &str, partition: i32) -> (i64, i64) {
        // A client without fresh metadata reports an unknown partition for a new topic, so retry.
        let told = || {
            self.admin()
                .inner()
                .fetch_watermarks(name, partition, PATIENCE)
                .ok()
        };
        eventually(
            &format!("the offsets of {name}/{partition} are told"),
            PATIENCE,
            told,
        )
    }

    fn wait_for_partitions(&self, name: &str, total: i32) {
        let admin = self.admin();
        let total = usize::try_from(total).expect("not negative");
        eventually(
            &format!("topic {name} has {total} partitions"),
            PATIENCE,
            || (leaders(&admin, name) == total).then_some(()),
        );
    }

    /// Creates a new client for each use. A client that lost its broker backs off for longer than
    /// the broker's restart takes.
    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new()
            .set("bootstrap.servers", &self.addr)
            .create()
            .expect("a client of a valid configuration")
    }

    /// Waits until the broker answers and each of its partitions has a leader.
    fn wait(&mut self) {
        let admin = self.admin();
        self.process.until("Kafka leads its partitions", || {
            let metadata = admin
                .inner()
                .fetch_metadata(None, Duration::from_millis(500))
                .ok()?;
            let led = metadata
                .topics()
                .iter()
                .flat_map(|topic| topic.partitions())
                .all(|partition| partition.leader() >= 0);
            (led && !metadata.brokers().is_empty()).then_some(())
        });
    }
}

/// Several brokers that replicate each topic, the group offsets and the transaction state. With
/// three brokers, a write needs two replicas in sync.
pub(crate) struct KafkaCluster {
    pub(crate) nodes: Vec<Kafka>,
    _turn: Turn,
}

impl KafkaCluster {
    /// Starts the brokers for one test. Waits for a `Turn` for each.
    pub(crate) fn start(count: usize) -> KafkaCluster {
        let turn = Turn::take(count);
        let controllers: Vec<String> = (0..count).map(|_| controller()).collect();
        let (copies, in_sync) = (count.to_string(), in_sync(count).to_string());
        let properties = [
            ("offsets.topic.replication.factor", copies.as_str()),
            ("transaction.state.log.replication.factor", &copies),
            ("transaction.state.log.min.isr", &in_sync),
            ("min.insync.replicas", &in_sync),
        ];
        let extra = Extra {
            properties: &properties,
            ..Extra::default()
        };
        let spawn = |id| {
            let place = Place {
                id,
                controllers: &controllers,
            };
            Kafka::spawn(QUICK, &extra, &place)
        };
        let mut nodes: Vec<Kafka> = (1..=count).map(spawn).collect();
        nodes.iter_mut().for_each(Kafka::wait);
        let cluster = KafkaCluster { nodes, _turn: turn };
        eventually("every broker has joined the cluster", PATIENCE, || {
            let admin = cluster.nodes[0].admin();
            let metadata = admin.inner().fetch_metadata(None, PATIENCE).ok()?;
            (metadata.brokers().len() == count).then_some(())
        });
        cluster
    }

    /// Restarts all brokers at the same time. One alone would have no quorum.
    pub(crate) fn restart_all(&mut self) {
        std::thread::scope(|scope| {
            for node in &mut self.nodes {
                scope.spawn(|| node.restart());
            }
        });
    }

    /// All brokers, as a client's `bootstrap.servers` takes them.
    pub(crate) fn addr(&self) -> String {
        let addrs: Vec<&str> = self.nodes.iter().map(Kafka::addr).collect();
        addrs.join(",")
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let copies = i32::try_from(self.nodes.len()).expect("a few brokers");
        let copies = TopicReplication::Fixed(copies);
        self.nodes[0].create_topic_with(name, partitions, copies, config);
    }

    /// Creates a topic whose only partition is on one broker, counted from 1.
    pub(crate) fn create_topic_on(&self, broker: i32, name: &str) {
        let copies = TopicReplication::Variable(&[&[broker]]);
        self.nodes[0].create_topic_with(name, 1, copies, &[("min.insync.replicas", "1")]);
    }
}

/// Number of replicas that must have a record before the broker acknowledges it.
fn in_sync(count: usize) -> usize {
    count.div_ceil(2)
}

/// A free address for a node's controller.
fn controller() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Position of a broker in the controller quorum, counted from 1.
struct Place<'a> {
    id: usize,
    controllers: &'a [String],
}

impl Place<'_> {
    /// 16 bytes in base64, as Kafka wants it. No two clusters have the same one.
    fn cluster_id(&self) -> String {
        let (_, port) = self.controllers[0].rsplit_once(':').expect("an address");
        format!("postdateTests{port:0>9}")
    }
}

impl Place<'_> {
    fn voters(&self) -> String {
        let voters = self.controllers.iter().zip(1..);
        let voters: Vec<String> = voters.map(|(addr, id)| format!("{id}@{addr}")).collect();
        voters.join(",")
    }
}

/// Settings beyond those of every test broker.
#[derive(Default)]
pub(super) struct Extra<'a> {
    /// `PROTOCOL://host:port`.
    pub(super) listener: Option<&'a str>,
    pub(super) properties: &'a [(&'a str, &'a str)],
    /// SCRAM credentials in the syntax of the storage tool.
    pub(super) users: &'a [String],
}

pub(super) fn java(jvm: &[&str], class: &str) -> Command {
    let jars = servers().join("kafka/lib");
    assert!(
        jars.join("kafka_2.13-4.3.0.jar").exists(),
        "there is no Kafka in {}: run `make servers`",
        jars.display()
    );
    let mut java = Command::new("java");
    java.args(jvm).arg("-cp").arg(jars.join("*")).arg(class);
    java
}

fn broker(jvm: &[&str], folder: &Path) -> Command {
    let mut broker = java(jvm, "kafka.Kafka");
    broker.arg(folder.join("server.properties"));
    broker
}

/// Number of a topic's partitions that have a leader; zero for a topic that does not exist.
fn leaders(admin: &AdminClient<DefaultClientContext>, name: &str) -> usize {
    let metadata = admin
        .inner()
        .fetch_metadata(Some(name), PATIENCE)
        .expect("the broker answers");
    metadata
        .topics()
        .iter()
        .flat_map(|topic| topic.partitions())
        .filter(|partition| partition.leader() >= 0)
        .count()
}

fn settled(results: Result<Vec<TopicResult>, KafkaError>) {
    results
        .expect("the broker answers")
        .into_iter()
        .for_each(|result| drop(result.expect("the broker agrees")));
}

/// The admin client completes its futures on its own thread, so a simple waker suffices. A Tokio
/// runtime here would panic inside another.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The right to run some brokers for one test. A test must not take a second one, or tests could
/// wait for each other forever.
pub(super) struct Turn(usize);

/// Brokers that tests may run at once: enough for one cluster, or for three tests.
static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(3), Condvar::new());

impl Turn {
    fn take(brokers: usize) -> Turn {
        let (left, freed) = &TURNS;
        let left = left.lock().unwrap_or_else(PoisonError::into_inner);
        *freed
            .wait_while(left, |left| *left < brokers)
            .unwrap_or_else(PoisonError::into_inner) -= brokers;
        Turn(brokers)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TURNS.0.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        TURNS.1.notify_all();
    }
}
