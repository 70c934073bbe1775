//! Starts a Redis Cluster of three primaries, each with a replica.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::process::free_port;
use super::redis::Redis;
use super::{PATIENCE, eventually};

/// A node counts another one as down after this time, in milliseconds.
const NODE_TIMEOUT: &str = "1000";
/// For a failover.
const FAILED_OVER: Duration = Duration::from_secs(60);
/// For the copy of the data to a node that has become a replica.
const COPIED: Duration = Duration::from_secs(90);

pub(crate) struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Each has a replica. The first nodes are primaries at first.
    pub(crate) const PRIMARIES: usize = 3;

    pub(crate) fn start() -> RedisCluster {
        let start = |_| {
            let bus_port = free_port().to_string();
            let options = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
            let timeout = ["--cluster-node-timeout", NODE_TIMEOUT];
            // The other primaries serve their slots while one is lost.
            let coverage = ["--cluster-require-full-coverage", "no"];
            let options = options.into_iter().chain(timeout).chain(coverage);
            (
                Redis::start_with(options.map(str::to_owned).collect()),
                bus_port,
            )
        };
        let (nodes, bus_ports): (Vec<_>, Vec<_>) = (0..2 * Self::PRIMARIES).map(start).unzip();
        let ranges = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        for (node, (first, last)) in nodes.iter().zip(ranges) {
            node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        for (number, (node, bus_port)) in nodes.iter().zip(&bus_ports).enumerate() {
            let epoch = (number + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            if number > 0 {
                let port = node.port().to_string();
                nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]);
            }
        }
        let cluster = RedisCluster { nodes };
        cluster.wait_for(|info| info.contains("cluster_known_nodes:6"));
        for (primary, replica) in cluster.nodes.iter().zip(&cluster.nodes[Self::PRIMARIES..]) {
            let id = primary.text(&["CLUSTER", "MYID"]).expect("it answers");
            replica.command(&["CLUSTER", "REPLICATE", &id]);
        }
        cluster.wait_until_whole();
        cluster
    }

    fn wait_for(&self, is_so: impl Fn(&str) -> bool) {
        for node in &self.nodes {
            eventually("the nodes of the cluster agree", PATIENCE, || {
                let info = node.text(&["CLUSTER", "INFO"])?;
                (info.contains("cluster_state:ok") && is_so(&info)).then_some(())
            });
        }
    }

    /// The table of the configuration.
    pub(crate) fn table(&self) -> String {
        let servers: Vec<String> = (self.nodes[..Self::PRIMARIES].iter())
            .map(|node| format!("\"127.0.0.1:{}\"", node.port()))
            .collect();
        format!("[store.redis.cluster]\nservers = [{}]", servers.join(", "))
    }

    pub(crate) fn node_mut(&mut self, number: usize) -> &mut Redis {
        &mut self.nodes[number]
    }

    pub(crate) fn node(&self, number: usize) -> &Redis {
        &self.nodes[number]
    }

    /// The numbers of the primaries, and whether each has a replica with all its data.
    fn primaries(&self) -> Vec<(usize, bool)> {
        let infos = self.nodes.iter().map(|node| node.info("replication"));
        let primaries = infos.enumerate().filter_map(|(number, info)| {
            let info = info.filter(|info| info.contains("role:master"))?;
            Some((number, info.contains("state=online")))
        });
        primaries.collect()
    }

    /// A primary with this rank among the nodes.
    pub(crate) fn primary(&self, rank: usize) -> usize {
        self.primaries()[rank].0
    }

    /// The number of the primary that serves the slot of a key.
    pub(crate) fn owner(&self, key: &str) -> usize {
        // The other nodes answer with the address of the primary, which is an error.
        let serves = |node: &Redis| node.text(&["EXISTS", key]).is_some();
        self.nodes
            .iter()
            .position(serves)
            .expect("a node serves it")
    }

    pub(crate) fn replica_of(&self, primary: usize) -> usize {
        let follows = format!("master_port:{}\r\n", self.nodes[primary].port());
        let is_replica = |node: &Redis| {
            let info = node.info("replication");
            info.is_some_and(|info| info.contains("role:slave") && info.contains(&follows))
        };
        let replica = self.nodes.iter().position(is_replica);
        replica.expect("it has a replica")
    }

    /// Returns true if three other nodes than this one are primaries.
    pub(crate) fn has_replaced(&self, old: usize) -> bool {
        let primaries = self.primaries().into_iter();
        primaries.filter(|(number, _)| *number != old).count() == Self::PRIMARIES
    }

    /// Waits until the replica of this primary has taken over.
    pub(crate) fn wait_until_replaced(&self, old: usize) {
        let what = "the replica takes over";
        eventually(what, FAILED_OVER, || self.has_replaced(old).then_some(()));
    }

    /// Cuts the replica of this primary off, so that its data stays old until it is promoted: it
    /// logs in with a password, and the primary has none.
    pub(crate) fn leave_replica_behind(&self, primary: usize) {
        let replica = self.replica_of(primary);
        self.nodes[replica].command(&["CONFIG", "SET", "masterauth", "none"]);
        self.nodes[primary].command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Waits until each primary has a replica, and all nodes agree. A replica that was left behind
    /// is one of the primaries by now.
    pub(crate) fn wait_until_whole(&self) {
        for node in &self.nodes {
            node.command(&["CONFIG", "SET", "masterauth", ""]);
        }
        eventually("each primary has a replica", COPIED, || {
            let primaries = self.primaries();
            let is_whole =
                primaries.len() == Self::PRIMARIES && primaries.iter().all(|(_, has)| *has);
            is_whole.then_some(())
        });
        self.wait_for(|_| true);
    }

    /// Moves this many slots from one primary to another, while the caller does something else.
    pub(crate) fn move_slots(&self, from: usize, to: usize, count: usize) -> Child {
        let id = |number: usize| self.nodes[number].text(&["CLUSTER", "MYID"]).unwrap();
        let mut command = Command::new("redis-cli");
        command
            .args(["--cluster", "reshard"])
            .arg(format!("127.0.0.1:{}", self.nodes[from].port()))
            .args(["--cluster-from", &id(from), "--cluster-to", &id(to)])
            .args(["--cluster-slots", &count.to_string(), "--cluster-yes"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.spawn().expect("redis-cli is on the path")
    }
}
