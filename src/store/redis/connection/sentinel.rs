//! Asks the sentinels which server is the primary of a group.

use super::access::{Access, Address};
use super::errors::no_answer;
use crate::limit::LOOKUP_TIMEOUT;
use crate::store::Error;
use crate::store::redis::reply::texts;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt, select_all};
use redis::Value;

/// On this channel a sentinel announces each new primary: `<master> <old host> <old port> <new host>
/// <new port>`.
const SWITCH_CHANNEL: &str = "+switch-master";

/// The sentinels of one group.
pub(super) struct Sentinels {
    pub(super) addresses: Vec<Address>,
    pub(super) access: Access,
    /// The name of the group.
    pub(super) master: String,
}

/// The answer of one sentinel about the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupView {
    pub(crate) primary: Address,
    /// Number of the last agreed failover. A sentinel that was cut off has a lower one.
    pub(crate) epoch: u64,
    pub(crate) replicas: u64,
    /// Sentinels that this one knows, without itself.
    pub(crate) other_sentinels: u64,
    /// Sentinels that must agree that the primary is down.
    pub(crate) quorum: u64,
}

impl Sentinels {
    /// The primary, as the sentinel with the highest epoch names it. Waits for most of the
    /// sentinels, or until each of them has answered or failed. The caller must check the role.
    pub(super) async fn primary(&self) -> Result<Address, Error> {
        let mut asked: FuturesUnordered<_> = self.addresses.iter().map(|at| self.ask(at)).collect();
        let most = match self.addresses.len() {
            _ if fault!(BelieveFirstSentinel) => 1,
            count => count / 2 + 1,
        };
        let (mut views, mut errors) = (Vec::new(), Vec::new());
        while views.len() < most
            && let Some(answer) = asked.next().await
        {
            match answer {
                Ok(view) => views.push(view),
                Err(error) => errors.push(error),
            }
        }
        let newest = views.into_iter().max_by_key(|view| view.epoch);
        newest
            .map(|view| view.primary)
            .ok_or_else(|| no_answer("no sentinel names the primary", &errors))
    }

    /// The view of each sentinel.
    pub(super) async fn views(&self) -> Vec<(Address, Result<GroupView, Error>)> {
        let ask = async |address: &Address| (address.clone(), self.ask(address).await);
        join_all(self.addresses.iter().map(ask)).await
    }

    /// Ends when a sentinel announces another primary. Pending if no sentinel can be heard.
    pub(super) async fn switched(&self) {
        let channels = [SWITCH_CHANNEL.to_owned()];
        let subscribe = |address| self.access.subscribe(address, &channels, LOOKUP_TIMEOUT);
        let subscribed = join_all(self.addresses.iter().map(subscribe)).await;
        let mut messages = select_all(subscribed.into_iter().filter_map(Result::ok));
        while let Some(message) = messages.next().await {
            let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
            if text.split(' ').next() == Some(&self.master) {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn ask(&self, address: &Address) -> Result<GroupView, Error> {
        let mut commands = self.access.login_commands();
        commands.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        let opened = self
            .access
            .open(address, &commands, LOOKUP_TIMEOUT, LOOKUP_TIMEOUT);
        let (_, answers) = opened.await?;
        let mut view = None;
        for answer in answers {
            if let Value::ServerError(error) = &answer {
                let (code, detail) = (error.code(), error.details().unwrap_or_default());
                return Err(self.refusal(address, code, detail));
            }
            view = texts(answer).and_then(|fields| parse_view(&fields));
        }
        view.ok_or_else(|| Error::Unusable(format!("{address} does not answer as a sentinel")))
    }

    fn refusal(&self, address: &Address, code: &str, detail: &str) -> Error {
        let fix = match code {
            "NOAUTH" => "set store.redis.sentinel.password or password_file",
            "WRONGPASS" => "check store.redis.sentinel.username and its password or password_file",
            "NOPERM" => {
                "grant the user of store.redis.sentinel `&+switch-master +subscribe +sentinel|master`"
            }
            "ERR" if detail.contains("No such master") => {
                "check store.redis.sentinel.master: the sentinel monitors no group of this name"
            }
            "ERR" if detail.contains("unknown command") => {
                "check store.redis.sentinel.servers: this server is not a sentinel"
            }
            _ => return Error::Unavailable(format!("sentinel {address}: {code} {detail}")),
        };
        Error::Unusable(format!("sentinel {address}: {code} {detail}: {fix}"))
    }
}

/// Reads the reply to `SENTINEL MASTER`: names and values in turn.
fn parse_view(fields: &[String]) -> Option<GroupView> {
    let field = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| pair[0] == name)?;
        Some(pair[1].as_str())
    };
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    Some(GroupView {
        primary: Address {
            host: field("ip")?.to_owned(),
            port: field("port")?.parse().ok()?,
        },
        epoch: number("config-epoch")?,
        replicas: number("num-slaves").unwrap_or_default(),
        other_sentinels: number("num-other-sentinels").unwrap_or_default(),
        quorum: number("quorum").unwrap_or_default(),
    })
}
