//! Queries waiting messages in the store, or asks the service that owns an embedded store.

use super::server::{Access, Server, error_of};
use crate::clock::{Clock, WallClock};
use crate::command::Refused;
use crate::config::{self, Admin, Config, Secret};
use crate::encryption::{IdCounts, StoredId};
use crate::model::{Cursor, LeaseToken, ShardId, Timestamp};
use crate::role::{StoreFactory, query_context};
use crate::run::RunName;
use crate::store::embedded::{FolderDescription, FolderUse};
use crate::store::query::{
    PendingReport, PlaceChange, Query, QueryContext, SearchPosition, StoreQuery,
};
use crate::store::{
    self, AuditPart, AuditPosition, AuditRow, Fetch, List, Listed, Session, StoredShard,
};
use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use url::form_urlencoded::Serializer;

/// Answers queries.
pub(in crate::command) enum QueryClient {
    Store(Rc<dyn StoreQuery>, QueryContext),
    /// A service uses the folder, and answers at its admin address.
    Service(Box<Admin>, QueryContext),
    /// A service at an address of the command line.
    Server(Box<Server>),
}

impl QueryClient {
    pub(in crate::command) async fn of(access: &Access) -> Result<Self> {
        match access {
            Access::Config(config) => Self::open(config).await,
            Access::Server(server) => Ok(Self::Server(server.clone())),
        }
    }

    pub(in crate::command) async fn open(config: &Config) -> Result<Self> {
        let mut context = query_context(config);
        if let config::Store::Embedded(embedded) = &config.store.kind {
            match FolderDescription::of(&embedded.path).used {
                FolderUse::Free => {}
                FolderUse::Absent => {
                    context.store += ", not there yet";
                    return Ok(Self::Store(Rc::new(NoMessages), context));
                }
                FolderUse::InUse(_) => {
                    return Ok(Self::Service(Box::new(config.admin.clone()), context));
                }
                // A running service can still answer through its admin endpoint.
                FolderUse::Unreadable(why) => {
                    context.store += &format!(", closed to this user: {why}");
                    return Ok(Self::Service(Box::new(config.admin.clone()), context));
                }
                FolderUse::OwnedByOther(owner) => bail!(
                    "{} belongs to user {owner}, and no service uses it: run this as that user, because files of \
                     another user would lock its service out",
                    context.store
                ),
            }
        }
        let query = StoreFactory::open(config, WallClock)?.connect_query().await;
        Ok(Self::Store(query.context("store.redis")?, context))
    }

    /// `T` is the report of the query.
    pub(in crate::command) async fn ask<T: DeserializeOwned>(&self, query: &Query) -> Result<T> {
        match self {
            Self::Store(store, context) => {
                let answer = query.answer(&**store, context, WallClock.now()).await?;
                Ok(serde_json::from_str(&answer)?)
            }
            Self::Service(admin, context) => ask_service(admin, context, query).await,
            Self::Server(server) => server.get(&path_of(query)).await,
        }
    }
}

impl QueryClient {
    /// Fails if neither the configuration nor the store has the route.
    pub(in crate::command) async fn require_route(&self, route: &str) -> Result<()> {
        let all: PendingReport = self.ask(&Query::Pending { route: None }).await?;
        let known: Vec<_> = all.routes.iter().map(|route| &*route.route).collect();
        if known.contains(&route) {
            return Ok(());
        }
        let known = known.join(", ");
        Err(Refused(format!(
            "neither the configuration nor the store has a route {route:?}: choose from {known}"
        ))
        .into())
    }
}

/// Replaces a wildcard address by the loopback address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Queries the service that uses the folder.
async fn ask_service<T: DeserializeOwned>(
    admin: &Admin,
    context: &QueryContext,
    query: &Query,
) -> Result<T> {
    let (store, address) = (&context.store, reachable(admin.listen));
    let other_version =
        "cannot read the answer: use the version of `postdate` that the service runs";
    let answer = async {
        let body = get(admin, address, query).await?;
        serde_json::from_slice::<serde_json::Value>(&body).context(other_version)
    };
    let answer = answer.await.with_context(|| {
        format!(
            "cannot ask the service that owns the store ({store}) at {address} (admin.listen): check that it runs, \
             with this configuration"
        )
    })?;
    let deployment = &answer["deployment"];
    ensure!(
        *deployment == *context.deployment,
        "the service at {address} (admin.listen) is of deployment {deployment}, and this configuration of {:?}: give --config the file \
         that the service runs with",
        context.deployment
    );
    serde_json::from_value(answer).context(other_version)
}

/// The path and the parameters of a query.
fn path_of(query: &Query) -> String {
    let mut line = Serializer::new(String::new());
    let mut add = |name: &str, value: Option<&str>| {
        line.extend_pairs(value.map(|value| (name, value)));
    };
    let path = match query {
        Query::Pending { route } => {
            add("route", route.as_deref());
            "/pending".to_owned()
        }
        Query::Message { id, route } => {
            add("id", Some(id));
            add("route", route.as_deref());
            "/pending".to_owned()
        }
        Query::Ledger { route } => {
            add("route", route.as_deref());
            "/v1/ledger".to_owned()
        }
        Query::Workers => "/v1/workers".to_owned(),
        Query::Audit {
            changes_only,
            after,
            limit,
        } => {
            add("changes", changes_only.then_some("true"));
            add("after", after.as_ref().map(AuditPosition::as_str));
            add("limit", Some(&limit.to_string()));
            "/v1/audit".to_owned()
        }
        Query::Pause { route } => {
            let route = utf8_percent_encode(route, NON_ALPHANUMERIC);
            format!("/v1/routes/{route}/pause")
        }
        Query::Keys => "/v1/keys".to_owned(),
        Query::Change(_) => unreachable!("only the API asks for it"),
        Query::Messages(search) => {
            let filter = &search.filter;
            let time = |time: Option<Timestamp>| time.map(|time| time.as_millis().to_string());
            let number = |number: Option<i64>| number.map(|number| number.to_string());
            let header = filter.header.as_ref();
            let header = header.map(|(name, value)| format!("{name}:{value}"));
            let after = search.after.as_ref().map(SearchPosition::to_token);
            add("due_from", time(filter.due_from).as_deref());
            add("due_to", time(filter.due_to).as_deref());
            add("id", filter.id.as_deref());
            add("key", filter.key.as_deref());
            add("header", header.as_deref());
            add("topic", filter.topic.as_deref());
            add(
                "partition",
                number(filter.partition.map(i64::from)).as_deref(),
            );
            add(
                "offset",
                filter.offset.map(|offset| offset.to_string()).as_deref(),
            );
            add(
                "details",
                Some(if search.is_detailed { "true" } else { "false" }),
            );
            add("limit", Some(&search.limit.to_string()));
            add("after", after.as_deref());
            let route = utf8_percent_encode(&filter.route, NON_ALPHANUMERIC);
            format!("/v1/routes/{route}/messages")
        }
    };
    format!("{path}?{}", line.finish())
}

/// Sends one request and returns the body of a 200 answer.
async fn get(admin: &Admin, address: SocketAddr, query: &Query) -> Result<Bytes> {
    let path = path_of(query);
    ensure!(
        admin.certificate.is_none(),
        "it speaks TLS (admin.certificate), and this command does not: use curl with https://{address}{path}"
    );
    let token = admin.token.as_ref().map(Secret::expose);
    let server = Server::unencrypted(address, token)?;
    let answer = server.answer(Method::GET, &path, Bytes::new()).await?;
    let (status, body) = (answer.status().as_u16(), answer.into_body());
    match status {
        200 => Ok(body),
        401 => bail!("it requires another token than admin.token of this configuration"),
        404 => {
            bail!("it does not know {path}: it is another program, or an older postdate")
        }
        _ => bail!("it answers {status}: {}", error_of(&body)),
    }
}

/// A store query for a folder that does not exist yet. It always finds nothing.
struct NoMessages;

#[async_trait(?Send)]
impl StoreQuery for NoMessages {
    async fn shards(&self) -> Result<Vec<ShardId>, store::Error> {
        Ok(Vec::new())
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, store::Error> {
        Ok(vec![None; shards.len()])
    }

    async fn holders(&self, shards: &[ShardId]) -> Result<Vec<Option<LeaseToken>>, store::Error> {
        Ok(vec![None; shards.len()])
    }

    async fn find_ids(
        &self,
        ids: &[(ShardId, StoredId)],
    ) -> Result<Vec<Option<Cursor>>, store::Error> {
        Ok(vec![None; ids.len()])
    }

    async fn changes(
        &self,
        _: &[(ShardId, Cursor)],
    ) -> Result<Vec<Option<PlaceChange>>, store::Error> {
        Ok(Vec::new())
    }

    async fn moved_from(
        &self,
        shards: &[ShardId],
        _: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, store::Error> {
        Ok(vec![None; shards.len()])
    }

    async fn count_ids(&self, _: &ShardId) -> Result<IdCounts, store::Error> {
        Ok(IdCounts::default())
    }

    async fn quarantined_runs(&self, _: &ShardId) -> Result<Vec<RunName>, store::Error> {
        Ok(Vec::new())
    }

    async fn list_runs(&self, _: &[List]) -> Result<Vec<Listed>, store::Error> {
        Ok(Vec::new())
    }

    async fn fetch_runs(&self, _: &[Fetch]) -> Result<Vec<Vec<Option<Bytes>>>, store::Error> {
        Ok(Vec::new())
    }

    async fn worker_sessions(&self) -> Result<Vec<Session>, store::Error> {
        Ok(Vec::new())
    }

    async fn audit_rows(
        &self,
        _: AuditPart,
        _: Option<&AuditPosition>,
        _: usize,
    ) -> Result<Vec<AuditRow>, store::Error> {
        Ok(Vec::new())
    }
}
