//! A Redis Cluster: each shard is on one primary, and follows its slot to another one.

use super::permissions::assert_hint_arrives;
use super::*;
use crate::model::{SessionId, WorkerId};
use crate::store::Notifier;
use tokio::time::Instant;

/// A node counts another one as down after this time, in milliseconds.
const NODE_TIMEOUT: &str = "1000";
/// For a failover, or for the start of a cluster.
const PATIENCE: Duration = Duration::from_secs(60);

struct RealCluster {
    /// The first three were started as primaries. Each of the others is a replica of one of them.
    nodes: Vec<Server>,
    redis: Redis,
}

const PRIMARIES: usize = 3;

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn node() -> Server {
    let bus_port = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
    let timeout = ["--cluster-node-timeout", NODE_TIMEOUT];
    let replication = ["--repl-diskless-sync-delay", "0", "--appendfsync", "no"];
    Server::start_with(&[&cluster[..], &timeout, &replication].concat())
}

fn options(nodes: &[Server]) -> Options {
    let addresses = nodes.iter().map(|node| Address {
        host: "127.0.0.1".to_owned(),
        port: node.port,
    });
    Options {
        servers: Servers::Cluster(ClusterOptions {
            addresses: addresses.collect(),
            needs_tls: false,
        }),
        // Longer than any script takes, and short for a frozen server.
        response_timeout: Duration::from_secs(1),
        ..Options::of_url("", "test")
    }
}

async fn text(node: &Server, words: &str) -> String {
    redis::from_redis_value(node.command(words).await).unwrap()
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < until, "{what} within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl RealCluster {
    async fn start() -> Self {
        Self::start_with(0).await
    }

    /// `replicas`: 0 or 3.
    async fn start_with(replicas: usize) -> Self {
        let nodes: Vec<Server> = (0..PRIMARIES + replicas).map(|_| node()).collect();
        let ranges = ["0 5460", "5461 10922", "10923 16383"];
        for (epoch, node) in nodes.iter().enumerate() {
            let epoch = format!("CLUSTER SET-CONFIG-EPOCH {}", epoch + 1);
            node.command(&epoch).await;
        }
        for (node, range) in nodes.iter().zip(ranges) {
            node.command(&format!("CLUSTER ADDSLOTSRANGE {range}"))
                .await;
        }
        for node in &nodes[1..] {
            let bus_port = node.argument_after("--cluster-port");
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", node.port);
            nodes[0].command(&meet).await;
        }
        let count = format!("cluster_known_nodes:{}", nodes.len());
        for node in &nodes {
            eventually("the nodes know each other", async || {
                let info = text(node, "CLUSTER INFO").await;
                info.contains("cluster_state:ok") && info.contains(&count)
            })
            .await;
        }
        for (primary, replica) in nodes.iter().zip(&nodes[PRIMARIES..]) {
            let id = text(primary, "CLUSTER MYID").await;
            replica.command(&format!("CLUSTER REPLICATE {id}")).await;
            eventually("the replica is in step", async || {
                let info = text(primary, "INFO replication").await;
                info.contains("state=online")
            })
            .await;
        }
        let redis = Redis::connect(&options(&nodes[..PRIMARIES])).await.unwrap();
        Self { nodes, redis }
    }

    /// The number of the primary that has the shard.
    async fn owner(&self, topic: &str) -> usize {
        let meta = key(topic, "meta");
        for (number, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            if node.keys().await.contains(&meta) {
                return number;
            }
        }
        panic!("no node has {topic}")
    }

    /// A topic whose shard is on this primary. Creates its shard.
    async fn topic_on(&self, number: usize) -> String {
        for index in 0.. {
            let topic = format!("on{number}-{index}");
            self.redis.open(&[new_shard(&topic)]).await.unwrap();
            if self.owner(&topic).await == number {
                return topic;
            }
        }
        unreachable!("each primary has a third of the slots")
    }

    /// Repeats a call until the store answers, as the roles do.
    async fn until_answered<T>(&self, call: impl AsyncFn() -> Result<T, Error>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    assert!(Instant::now() < until, "{error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

#[async_trait(?Send)]
impl StoreUnderTest for RealCluster {
    fn store(&self) -> &dyn Store {
        &self.redis
    }

    fn survey(&self) -> &dyn CopyStore {
        &self.redis
    }

    fn admin(&self) -> &dyn AdminStore {
        &self.redis
    }

    async fn set_full(&self, full: bool) {
        let limit = u8::from(full);
        for node in &self.nodes {
            node.command(&format!("CONFIG SET maxmemory {limit}")).await;
        }
    }
}

#[async_trait(?Send)]
impl ComparedStore for RealCluster {
    fn store(&self) -> &dyn Store {
        &self.redis
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_cluster_passes_the_contract_suite() {
    let mut cluster = RealCluster::start().await;
    // No case stops a server, and a call takes long on a busy machine.
    let patient = Options {
        response_timeout: PATIENCE,
        ..options(&cluster.nodes)
    };
    cluster.redis = Redis::connect(&patient).await.unwrap();
    contract::run(&cluster).await;
}

#[test]
fn random_calls_have_the_same_outcomes_in_memory_and_on_a_cluster() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut cluster = runtime.block_on(RealCluster::start());
    assert_same_as_memory(&mut cluster, &runtime, 100);
}

#[tokio::test]
async fn one_call_reaches_the_shards_of_all_primaries() {
    let cluster = RealCluster::start().await;
    let mut topics = Vec::new();
    for number in 0..PRIMARIES {
        topics.push(cluster.topic_on(number).await);
    }
    let appends: Vec<_> = topics.iter().map(|topic| append(topic, 0)).collect();
    assert_eq!(cluster.redis.append(&appends).await.unwrap(), [DONE; 3]);
    let again: Vec<_> = topics.iter().rev().map(|topic| append(topic, 1)).collect();
    assert_eq!(cluster.redis.append(&again).await.unwrap(), [DONE; 3]);
    let found = cluster.redis.shards().await.unwrap();
    assert!(topics.iter().all(|topic| found.contains(&shard(topic))));
    for node in &cluster.nodes {
        node.command("SCRIPT FLUSH").await;
    }
    let shards: Vec<_> = topics.iter().map(|topic| shard(topic)).collect();
    let states = cluster.redis.state(&shards).await.unwrap();
    let watermarks = states.iter().map(|state| state.as_ref().unwrap().watermark);
    assert!(watermarks.eq([Watermark(2); 3]), "{states:?}");
}

/// Moves the slot of a shard from one primary to another, as `redis-cli --cluster reshard` does.
struct Move<'a> {
    cluster: &'a RealCluster,
    slot: i64,
    from: usize,
    to: usize,
}

impl<'a> Move<'a> {
    async fn begin(cluster: &'a RealCluster, topic: &str) -> Self {
        let from = cluster.owner(topic).await;
        let to = (from + 1) % PRIMARIES;
        let slot = format!("CLUSTER KEYSLOT {}", key(topic, "meta"));
        let slot = redis::from_redis_value(cluster.nodes[from].command(&slot).await).unwrap();
        let it = Self {
            cluster,
            slot,
            from,
            to,
        };
        it.set(to, "IMPORTING", from).await;
        it.set(from, "MIGRATING", to).await;
        it
    }

    async fn set(&self, at: usize, state: &str, other: usize) {
        let nodes = &self.cluster.nodes;
        let id = text(&nodes[other], "CLUSTER MYID").await;
        let command = format!("CLUSTER SETSLOT {} {state} {id}", self.slot);
        nodes[at].command(&command).await;
    }

    async fn move_keys(&self, count: usize) {
        let nodes = &self.cluster.nodes;
        let keys = format!("CLUSTER GETKEYSINSLOT {} {count}", self.slot);
        let keys: Vec<String> =
            redis::from_redis_value(nodes[self.from].command(&keys).await).unwrap();
        let port = nodes[self.to].port;
        for key in keys {
            let migrate = format!("MIGRATE 127.0.0.1 {port} {key} 0 5000");
            nodes[self.from].command(&migrate).await;
        }
    }

    async fn end(&self) {
        self.move_keys(1_000).await;
        for at in [self.to, self.from] {
            self.set(at, "NODE", self.to).await;
        }
    }
}

#[tokio::test]
async fn a_shard_waits_while_its_slot_moves_and_follows_it() {
    let cluster = RealCluster::start().await;
    let (moving, staying) = (cluster.topic_on(0).await, cluster.topic_on(1).await);
    let first = [append(&moving, 0), append(&staying, 0)];
    assert_eq!(cluster.redis.append(&first).await.unwrap(), [DONE; 2]);
    for number in 1..4 {
        let slot = Move::begin(&cluster, &moving).await;
        slot.move_keys(usize::try_from(number - 1).unwrap()).await;
        let appends = [append(&moving, number), append(&staying, number)];
        let append = async {
            let outcomes = cluster.redis.append(&appends).await;
            (outcomes, Instant::now())
        };
        let end = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let began = Instant::now();
            slot.end().await;
            began
        };
        let ((outcomes, answered), end_began) = tokio::join!(append, end);
        assert_eq!(outcomes.unwrap(), [DONE; 2]);
        assert!(answered > end_began, "the keys were on two nodes");
        let positions = cluster.redis.positions(&[shard(&moving)]).await.unwrap();
        assert_eq!(
            positions[0].map(|it| it.watermark),
            Some(Watermark(number + 1))
        );
    }
}

#[tokio::test]
async fn a_slot_that_moves_for_long_fails_the_call() {
    let cluster = RealCluster::start().await;
    let topic = cluster.topic_on(0).await;
    let slot = Move::begin(&cluster, &topic).await;
    slot.move_keys(1).await;
    let refused = cluster.redis.append(&[append(&topic, 0)]).await;
    let Err(Error::Unavailable(text)) = refused else {
        panic!("{refused:?}")
    };
    assert!(text.contains("is moving to another node"), "{text}");
    slot.end().await;
    assert_eq!(
        cluster.redis.append(&[append(&topic, 0)]).await.unwrap(),
        [DONE]
    );
}

/// Loses each primary in turn, and expects that its replica takes over with all data.
async fn follow_failovers(lose: impl Fn(&mut Server), recover: impl Fn(&mut Server)) {
    let mut cluster = RealCluster::start_with(3).await;
    let mut topics = Vec::new();
    for number in 0..PRIMARIES {
        topics.push(cluster.topic_on(number).await);
    }
    for number in 0..PRIMARIES {
        let offset = number as u64;
        let appends: Vec<_> = topics.iter().map(|topic| append(topic, offset)).collect();
        assert_eq!(cluster.redis.append(&appends).await.unwrap(), [DONE; 3]);
        let id = text(&cluster.nodes[number], "CLUSTER MYID").await;
        cluster.nodes[number].command("WAIT 1 5000").await;
        lose(&mut cluster.nodes[number]);
        let shards: Vec<_> = topics.iter().map(|topic| shard(topic)).collect();
        let states = cluster.until_answered(async || cluster.redis.state(&shards).await);
        for state in states.await {
            assert_eq!(
                state.map(|state| state.watermark),
                Some(Watermark(offset + 1))
            );
        }
        recover(&mut cluster.nodes[number]);
        let other = &cluster.nodes[(number + 1) % PRIMARIES];
        eventually("the old primary is a replica", async || {
            let nodes = text(other, "CLUSTER NODES").await;
            let old = nodes.lines().find(|line| line.starts_with(&id));
            old.is_some_and(|line| line.contains("slave") && !line.contains("fail"))
        })
        .await;
        // The old primary may have been asked for the slots.
        let states = cluster.until_answered(async || cluster.redis.state(&shards).await);
        assert_eq!(states.await.len(), 3);
    }
}

#[tokio::test]
async fn calls_follow_the_replica_of_a_killed_primary() {
    follow_failovers(Server::kill, Server::restart).await;
}

#[tokio::test]
async fn calls_follow_the_replica_of_a_frozen_primary() {
    follow_failovers(|node| node.signal("STOP"), |node| node.signal("CONT")).await;
}

#[tokio::test]
async fn hints_reach_the_other_processes_also_after_a_failover() {
    let mut cluster = RealCluster::start_with(3).await;
    assert_hint_arrives(&options(&cluster.nodes)).await;
    let channel = "pd:{test}:hints";
    let slot = format!("CLUSTER KEYSLOT {channel}");
    let slot: usize = redis::from_redis_value(cluster.nodes[0].command(&slot).await).unwrap();
    let owner = slot / 5_461;
    let options = options(&cluster.nodes);
    let session = SessionId::first(WorkerId(1), 1);
    let notifier = RedisNotifier::new(&options, session).unwrap();
    let redis = Redis::connect(&options).await.unwrap();
    cluster.nodes[owner].signal("STOP");
    let follow = async {
        // The calls of a loop find the new primary.
        cluster
            .until_answered(async || redis.sessions().await)
            .await;
        std::future::pending::<()>().await;
    };
    let listens = async { notifier.listen(&mut |_| {}).await };
    tokio::select! {
        () = follow => {}
        ended = tokio::time::timeout(PATIENCE, listens) => {
            // Either the subscription failed, or another node has taken over.
            ended.expect("it subscribes again").map_or_else(|error| assert!(error.is_transient(), "{error}"), |()| ());
        }
    }
    cluster
        .until_answered(async || redis.sessions().await)
        .await;
    cluster.nodes[owner].kill();
    assert_hint_arrives(&options).await;
}

#[tokio::test]
async fn a_plain_server_and_a_wrong_login_are_rejected_with_the_reason() {
    let server = Server::start();
    let refused = async |options: &Options| match Redis::connect(options).await {
        Err(Error::Unusable(text)) => text,
        other => panic!("{:?}", other.map(drop)),
    };
    let nodes = [server];
    let text = refused(&options(&nodes)).await;
    assert!(text.contains("is no node of a Redis Cluster"), "{text}");
    let cluster = RealCluster::start().await;
    for node in &cluster.nodes {
        node.command("ACL SETUSER me on >secret ~pd:* &pd:* +@all -cluster")
            .await;
    }
    let login = Options {
        username: Some("me".to_owned()),
        password: Some("secret".to_owned()),
        ..options(&cluster.nodes)
    };
    let text = refused(&login).await;
    assert!(text.contains("+cluster|info +cluster|slots"), "{text}");
    for node in &cluster.nodes {
        node.command("ACL SETUSER me -@all +@read +@write +@scripting +info +time +publish +subscribe +pubsub +cluster|info +cluster|slots")
            .await;
    }
    let redis = Redis::connect(&login).await.unwrap();
    let whole = RealCluster { redis, ..cluster };
    contract::run(&whole).await;
}

#[tokio::test]
async fn each_primary_is_described() {
    let cluster = RealCluster::start_with(3).await;
    let options = options(&cluster.nodes[..1]);
    let found = Redis::describe(&options, &crate::clock::WallClock)
        .await
        .unwrap();
    assert_eq!(found.len(), PRIMARIES);
    for redis in found {
        assert!(redis.is_cluster && redis.in_cluster && !redis.is_replica);
        assert_eq!((redis.replicas, redis.script_error), (Some(1), None));
    }
}
