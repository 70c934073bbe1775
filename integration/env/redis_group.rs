//! Starts a group of two Redis servers and three sentinels, which choose a new primary by
//! themselves.

use std::time::Duration;

use super::process::{Process, Signal, folder, free_port};
use super::redis::Redis;
use super::{PATIENCE, eventually};

/// The name under which the sentinels monitor the group.
const MASTER: &str = "orders";
const SENTINELS: usize = 3;
/// Sentinels consider a server down after this time without an answer, in milliseconds.
const DOWN_AFTER: u32 = 1_000;
/// For the copy of the data to a server that has become a replica.
const COPIED: Duration = Duration::from_secs(90);

pub(crate) struct RedisGroup {
    servers: Vec<Redis>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    process: Process,
}

impl RedisGroup {
    pub(crate) fn start() -> RedisGroup {
        let servers: Vec<Redis> = (0..2).map(|_| Redis::start()).collect();
        let primary = servers[0].port();
        servers[1].command(&["REPLICAOF", "127.0.0.1", &primary.to_string()]);
        let sentinels = (0..SENTINELS).map(|_| Sentinel::start(primary)).collect();
        let group = RedisGroup { servers, sentinels };
        group.wait_until_whole();
        group
    }

    /// The table of the configuration.
    pub(crate) fn table(&self) -> String {
        let sentinels = self.sentinels.iter();
        let servers: Vec<String> = sentinels
            .map(|sentinel| format!("\"127.0.0.1:{}\"", sentinel.port))
            .collect();
        format!(
            "[store.redis.sentinel]\nservers = [{}]\nmaster = \"{MASTER}\"",
            servers.join(", ")
        )
    }

    /// The server that most sentinels name. `None` while they do not agree.
    pub(crate) fn primary(&self) -> Option<usize> {
        let ports = self.sentinels.iter().map(Sentinel::primary);
        let ports: Vec<u16> = ports.flatten().collect();
        let is_most =
            |port: &u16| ports.iter().filter(|other| *other == port).count() > SENTINELS / 2;
        let port = *ports.iter().find(|port| is_most(port))?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// Returns the number of the server that is the primary now.
    pub(crate) fn wait_for_primary(&self) -> usize {
        eventually("the sentinels agree on the primary", PATIENCE, || {
            self.primary()
        })
    }

    pub(crate) fn server(&self, number: usize) -> &Redis {
        &self.servers[number]
    }

    pub(crate) fn server_mut(&mut self, number: usize) -> &mut Redis {
        &mut self.servers[number]
    }

    /// Waits until the sentinels name another primary than this one.
    pub(crate) fn wait_until_replaced(&self, old: usize) {
        eventually("the sentinels choose another primary", PATIENCE, || {
            self.primary().filter(|primary| *primary != old)
        });
    }

    /// Cuts the replica off from its primary. Its data stays old until it is promoted, or
    /// until the sentinels repair it after some seconds.
    pub(crate) fn leave_replica_behind(&self) {
        let primary = self.wait_for_primary();
        self.servers[1 - primary].command(&["REPLICAOF", "127.0.0.1", "1"]);
    }

    /// Waits until every sentinel knows the primary and its replica, which has all its data. A
    /// primary that came back has become that replica then.
    pub(crate) fn wait_until_whole(&self) {
        eventually("the group is whole", COPIED, || {
            let primary = self.primary()?;
            let replication = self.servers[primary].info("replication")?;
            let is_copied = ["role:master", "connected_slaves:1", "state=online"]
                .iter()
                .all(|word| replication.contains(word));
            let knows_all = |sentinel: &Sentinel| {
                let fields = sentinel.fields(&["MASTER", MASTER])?;
                let replicas = sentinel.fields(&["REPLICAS", MASTER])?;
                Some(
                    fields.contains(&"master".to_owned())
                        && fields.windows(2).any(|pair| pair == ["num-slaves", "1"])
                        && fields
                            .windows(2)
                            .any(|pair| pair == ["num-other-sentinels", "2"])
                        && replicas.windows(2).any(|pair| pair == ["flags", "slave"]),
                )
            };
            let is_known = self
                .sentinels
                .iter()
                .all(|sentinel| knows_all(sentinel) == Some(true));
            (is_copied && is_known).then_some(())
        });
    }

    /// Stops one sentinel: it answers nothing, as if the network dropped every packet.
    pub(crate) fn pause_sentinel(&self, number: usize) {
        self.sentinels[number].process.signal(Signal::STOP);
    }

    pub(crate) fn resume_sentinel(&self, number: usize) {
        self.sentinels[number].process.signal(Signal::CONT);
    }
}

impl Sentinel {
    fn start(primary: u16) -> Sentinel {
        let (folder, port) = (folder("sentinel"), free_port());
        let file = folder.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {MASTER} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}\nsentinel failover-timeout {MASTER} 5000\n",
            folder.display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = std::process::Command::new("redis-server");
        command.arg(&file).arg("--sentinel");
        let process = Process::start("sentinel", &folder, &mut command);
        Sentinel { port, process }
    }

    /// The port of the primary.
    fn primary(&self) -> Option<u16> {
        let address = self.fields(&["GET-MASTER-ADDR-BY-NAME", MASTER])?;
        address.get(1)?.parse().ok()
    }

    /// All texts in the reply. `None` without a reply.
    fn fields(&self, words: &[&str]) -> Option<Vec<String>> {
        let client = redis::Client::open(("127.0.0.1", self.port)).ok()?;
        let patience = Duration::from_millis(500);
        let mut connection = client.get_connection_with_timeout(patience).ok()?;
        connection.set_read_timeout(Some(patience)).ok()?;
        let reply = redis::cmd("SENTINEL").arg(words).query(&mut connection);
        let mut texts = Vec::new();
        collect(&reply.ok()?, &mut texts);
        Some(texts)
    }
}

fn collect(value: &redis::Value, texts: &mut Vec<String>) {
    match value {
        redis::Value::BulkString(bytes) => {
            texts.push(String::from_utf8_lossy(bytes).into_owned());
        }
        redis::Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        _ => {}
    }
}
