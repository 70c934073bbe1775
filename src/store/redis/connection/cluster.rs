//! Sends commands to the primaries of a Redis Cluster, over one connection to each.
//!
//! All keys of a command have one hash tag: that of a shard, or that of the deployment. So each
//! command has one slot, and the primary of this slot.
//!
//! A command waits while its slot moves to another node, and the other commands of the call with
//! it. If a node does not answer, the call fails, and the next one asks the nodes for the slots.

use super::access::{Access, Address};
use super::errors::{fatal_error, no_answer, server_error};
use super::slots::{CurrentSlots, Redirect, Slot, SlotMap, slot_of, slot_of_key};
use super::{Connection, Options, Primary, late_refusal, lock};
use crate::limit::{
    CLUSTER_SWITCH_CHECK_INTERVAL, LOOKUP_TIMEOUT, STORE_RETRY_DELAY_MAX, STORE_RETRY_DELAY_MIN,
};
use crate::retry::backoff;
use crate::store::Error;
use crate::store::redis::reply::text;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

pub(in crate::store::redis) struct Cluster {
    /// The nodes in the configuration.
    addresses: Vec<Address>,
    access: Access,
    options: Options,
    checks_servers: bool,
    slots: Arc<CurrentSlots>,
    nodes: Mutex<BTreeMap<Address, Arc<Connection>>>,
    has_answered: Arc<AtomicBool>,
}

/// The slots as one node knows them.
struct View {
    slots: SlotMap,
    /// `cluster_state:ok`. False if the node has lost most of the other primaries, or if a slot is not
    /// served and the cluster requires all of them.
    is_whole: bool,
    /// `cluster_current_epoch`. Each failover raises it, so a node that was cut off has a lower one.
    epoch: u64,
}

impl Cluster {
    /// Connects with the first call.
    pub(super) fn new(
        addresses: Vec<Address>,
        access: Access,
        options: &Options,
        checks_servers: bool,
    ) -> Self {
        Self {
            addresses,
            access,
            slots: options.slots.clone(),
            options: options.clone(),
            checks_servers,
            nodes: Mutex::default(),
            has_answered: Arc::default(),
        }
    }

    pub(super) fn name(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        format!(
            "the Redis Cluster at {}",
            addresses.collect::<Vec<_>>().join(", ")
        )
    }

    /// The number of the primary of this slot, by the last slots that a node told.
    pub(in crate::store::redis) fn part_of(&self, slot: Slot) -> u16 {
        self.slots.last_map().map_or(0, |map| map.part_of(slot))
    }

    /// The connection to each primary that serves a slot.
    pub(super) async fn primaries(&self) -> Result<Vec<Arc<Connection>>, Error> {
        let map = self.map().await?;
        let primaries = map.primaries().into_iter();
        let nodes: Vec<_> = primaries.map(|address| self.node(address)).collect();
        if nodes.is_empty() {
            self.slots.forget(&map);
            let name = self.name();
            return Err(Error::Unavailable(format!(
                "no node of {name} serves a slot"
            )));
        }
        Ok(nodes)
    }

    /// The connection to the primary of this key or channel.
    pub(super) async fn primary_of(&self, key: &str) -> Result<Arc<Connection>, Error> {
        let slot = slot_of_key(key.as_bytes());
        let map = self.map().await?;
        Ok(self.node(self.primary(&map, slot)?))
    }

    /// Ends when another node is the primary of this channel.
    pub(super) async fn switched(&self, channel: &str) {
        let slot = slot_of_key(channel.as_bytes());
        let primary = || self.slots.last_map()?.primary(slot).cloned();
        let before = primary();
        while primary().is_none_or(|now| before.as_ref() == Some(&now)) {
            tokio::time::sleep(CLUSTER_SWITCH_CHECK_INTERVAL).await;
        }
    }

    /// Sends each command to the primary of its slot, and returns one value each. `send` sends the
    /// commands with these indices.
    pub(super) async fn route(
        &self,
        commands: &[&Cmd],
        send: impl AsyncFn(&Connection, &[usize]) -> Result<Vec<Value>, Error>,
    ) -> Result<Vec<Value>, Error> {
        let slots: Vec<Slot> = commands.iter().map(|command| slot_of(command)).collect();
        let mut values = vec![Value::Nil; commands.len()];
        let mut open: Vec<usize> = (0..commands.len()).collect();
        let until = Instant::now() + self.options.response_timeout;
        let mut rounds = 0;
        loop {
            let mut redirected = Vec::new();
            for (at, value, node) in self.send_once(&slots, &open, &send).await? {
                match Redirect::of(&value, &node) {
                    None => values[at] = value,
                    Some(redirect) => {
                        if let Redirect::Moved(slot, to) = redirect {
                            self.slots.on_moved(slot, to);
                        }
                        redirected.push(at);
                    }
                }
            }
            // The commands of one shard keep their order.
            redirected.sort_unstable();
            open = redirected;
            let Some(&first) = open.first() else {
                return Ok(values);
            };
            if Instant::now() >= until {
                let slot = slots[first];
                return Err(Error::Unavailable(format!(
                    "slot {slot} of {} is moving to another node",
                    self.name()
                )));
            }
            // The first redirect usually names the right node.
            if rounds > 0 {
                let pause = backoff(STORE_RETRY_DELAY_MIN, STORE_RETRY_DELAY_MAX / 5, rounds);
                tokio::time::sleep(pause).await;
            }
            rounds += 1;
        }
    }

    /// Sends the commands with the indices in `open`, and returns a value and the node for each.
    async fn send_once(
        &self,
        slots: &[Slot],
        open: &[usize],
        send: &impl AsyncFn(&Connection, &[usize]) -> Result<Vec<Value>, Error>,
    ) -> Result<Vec<(usize, Value, Address)>, Error> {
        let map = self.map().await?;
        let mut parts: BTreeMap<&Address, Vec<usize>> = BTreeMap::new();
        for &at in open {
            let primary = self.primary(&map, slots[at])?;
            parts.entry(primary).or_default().push(at);
        }
        let sent = parts.iter().map(async |(address, part)| {
            let node = self.node(address);
            send(&node, part).await
        });
        let mut values = Vec::with_capacity(open.len());
        let mut is_full = false;
        for ((address, part), answer) in parts.iter().zip(join_all(sent).await) {
            match answer {
                Ok(answer) => {
                    let part = part.iter().zip(answer);
                    values.extend(part.map(|(at, value)| (*at, value, (*address).clone())));
                }
                // A full node is the right one. The error of another node is told first.
                Err(Error::Full) => is_full = true,
                Err(error) => {
                    self.slots.forget(&map);
                    return Err(error);
                }
            }
        }
        if is_full {
            Err(Error::Full)
        } else {
            Ok(values)
        }
    }

    fn primary<'a>(&self, map: &'a Arc<SlotMap>, slot: Slot) -> Result<&'a Address, Error> {
        map.primary(slot).ok_or_else(|| {
            self.slots.forget(map);
            let name = self.name();
            Error::Unavailable(format!("no primary of {name} serves slot {slot}"))
        })
    }

    /// The connection to this node, which connects with its first call.
    fn node(&self, address: &Address) -> Arc<Connection> {
        let mut nodes = lock(&self.nodes);
        let connect = || {
            let primary = Primary::Node(address.clone());
            let access = self.access.clone();
            Arc::new(Connection {
                has_answered: self.has_answered.clone(),
                ..Connection::new(primary, access, &self.options, self.checks_servers)
            })
        };
        nodes.entry(address.clone()).or_insert_with(connect).clone()
    }

    async fn map(&self) -> Result<Arc<SlotMap>, Error> {
        if let Some(map) = self.slots.map() {
            return Ok(map);
        }
        let read = self.read_map().await;
        let read = read.map_err(|error| late_refusal(error, &self.has_answered))?;
        let map = self.slots.set(read);
        let primaries = map.primaries();
        lock(&self.nodes).retain(|address, _| primaries.contains(address));
        Ok(map)
    }

    /// The slots as the node with the highest epoch knows them. Waits for most of the known nodes,
    /// or until each of them has answered or failed.
    async fn read_map(&self) -> Result<SlotMap, Error> {
        let mut known: BTreeSet<Address> = self.slots.last_primaries();
        known.extend(self.addresses.iter().cloned());
        let most = known.len() / 2 + 1;
        let mut asked: FuturesUnordered<_> = known.iter().map(|at| self.ask(at)).collect();
        let (mut views, mut errors) = (Vec::new(), Vec::new());
        while views.len() < most
            && let Some(answer) = asked.next().await
        {
            match answer {
                Ok(view) => views.push(view),
                Err(error) => errors.push(error),
            }
        }
        let newest = views
            .into_iter()
            .max_by_key(|view| (view.is_whole, view.epoch));
        newest
            .map(|view| view.slots)
            .ok_or_else(|| no_answer("no node of the Redis Cluster names the primaries", &errors))
    }

    async fn ask(&self, address: &Address) -> Result<View, Error> {
        let mut commands = self.access.login_commands();
        commands
            .cmd("CLUSTER")
            .arg("INFO")
            .cmd("CLUSTER")
            .arg("SLOTS");
        let opened = (self.access).open(address, &commands, LOOKUP_TIMEOUT, LOOKUP_TIMEOUT);
        let (_, mut answers) = opened.await?;
        if let Some(refused) = answers.iter().find_map(|value| fatal_error(value, false)) {
            let detail = refused.details().unwrap_or_default();
            if detail.contains("cluster support disabled") {
                return Err(Error::Unusable(format!(
                    "{address} is no node of a Redis Cluster: set store.redis.url instead of store.redis.cluster"
                )));
            }
            return Err(server_error(&address.to_string(), refused));
        }
        let slots = answers
            .pop()
            .and_then(|reply| SlotMap::parse(reply, address));
        let info = answers.pop().and_then(text).unwrap_or_default();
        let field = |name| super::info_field(&info, name);
        Ok(View {
            slots: slots.ok_or_else(|| {
                Error::Unusable(format!(
                    "{address} does not answer as a node of a Redis Cluster"
                ))
            })?,
            is_whole: field("cluster_state") == Some("ok"),
            epoch: field("cluster_current_epoch").map_or(0, |epoch| epoch.parse().unwrap_or(0)),
        })
    }
}
