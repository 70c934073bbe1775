//! Finds where to query pending messages: in the store, or from the service that holds an exclusive
//! store.

use crate::clock::{Clock, WallClock};
use crate::config::{self, Admin, Config, Secret};
use crate::limit::{ADMIN_QUERY_TIMEOUT, ADMIN_RESPONSE_BYTES_MAX};
use crate::model::{Cursor, ShardId};
use crate::role::{StoreFactory, query_context};
use crate::store::embedded::{FolderDescription, FolderUse};
use crate::store::query::{
    IdSearch, LedgerReport, PendingReport, QueryContext, StoreQuery, find_id, ledger_report,
    pending_report,
};
use crate::store::{self, StoredShard};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::Duration;
use url::form_urlencoded::Serializer;

/// The origin of the answers.
pub(in crate::command) enum Source {
    Store(Rc<dyn StoreQuery>, QueryContext),
    /// A service uses the folder. Ask it at its admin address.
    Service(Endpoint, QueryContext),
    /// The folder does not exist yet, so no message is pending.
    Nothing(QueryContext),
}

/// Timeout for connecting to a service on this machine.
const CONNECT_MAX: Duration = Duration::from_secs(2);

impl Source {
    pub(in crate::command) async fn open(config: &Config) -> Result<Self> {
        let known = query_context(config);
        if let config::Store::Embedded(embedded) = &config.store {
            match FolderDescription::of(&embedded.path).used {
                FolderUse::Absent => {
                    return Ok(Self::Nothing(QueryContext {
                        store: format!("{}, not there yet", known.store),
                        ..known
                    }));
                }
                FolderUse::InUse(_) => {
                    return Ok(Self::Service(Endpoint::of(&config.admin), known));
                }
                // A running service can still answer through its admin endpoint.
                FolderUse::Unreadable(why) => {
                    let store = format!("{}, closed to this user: {why}", known.store);
                    return Ok(Self::Service(
                        Endpoint::of(&config.admin),
                        QueryContext { store, ..known },
                    ));
                }
                FolderUse::OwnedByOther(owner) => bail!(
                    "{} belongs to user {owner}, and no service uses it: run this as that user, for what another one leaves in it would \
                     lock its service out",
                    known.store
                ),
                FolderUse::Free => {}
            }
        }
        let survey = StoreFactory::open(config)?
            .connect_query()
            .await
            .context("store.redis")?;
        Ok(Self::Store(survey, known))
    }

    pub(in crate::command) async fn report(&self, route: Option<&str>) -> Result<PendingReport> {
        match self {
            Self::Store(survey, known) => {
                Ok(pending_report(&**survey, known, route, WallClock.now()).await?)
            }
            Self::Service(endpoint, known) => {
                let answer: PendingReport = ask(endpoint, "/pending", &[("route", route)], known)?;
                same(endpoint, &answer.deployment, known).map(|()| answer)
            }
            Self::Nothing(known) => {
                Ok(pending_report(&Empty, known, route, WallClock.now()).await?)
            }
        }
    }

    pub(in crate::command) async fn sheet(&self, route: Option<&str>) -> Result<LedgerReport> {
        match self {
            Self::Store(survey, known) => {
                Ok(ledger_report(&**survey, known, route, WallClock.now()).await?)
            }
            Self::Service(endpoint, known) => {
                let answer: LedgerReport = ask(endpoint, "/ledger", &[("route", route)], known)?;
                same(endpoint, &answer.deployment, known).map(|()| answer)
            }
            Self::Nothing(known) => Ok(ledger_report(&Empty, known, route, WallClock.now()).await?),
        }
    }

    pub(in crate::command) async fn found(
        &self,
        id: &str,
        route: Option<&str>,
    ) -> Result<IdSearch> {
        let asked = (id, route);
        match self {
            Self::Store(survey, known) => {
                Ok(find_id(&**survey, known, asked, WallClock.now()).await?)
            }
            Self::Service(endpoint, known) => {
                let answer: IdSearch = ask(
                    endpoint,
                    "/pending",
                    &[("id", Some(id)), ("route", route)],
                    known,
                )?;
                same(endpoint, &answer.deployment, known).map(|()| answer)
            }
            Self::Nothing(known) => Ok(find_id(&Empty, known, asked, WallClock.now()).await?),
        }
    }
}

/// Admin address of a service on this machine, its token, and its use of TLS.
pub(in crate::command) struct Endpoint {
    address: SocketAddr,
    token: Option<Secret>,
    has_tls: bool,
}

impl Endpoint {
    fn of(admin: &Admin) -> Self {
        Self {
            address: reachable(admin.listen),
            token: admin.token.clone(),
            has_tls: admin.certificate.is_some(),
        }
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

fn same(Endpoint { address, .. }: &Endpoint, deployment: &str, known: &QueryContext) -> Result<()> {
    anyhow::ensure!(
        deployment == known.deployment,
        "the service at {address} (admin.listen) is of deployment {deployment:?}, and this configuration of {:?}: give --config the file \
         that the service runs with",
        known.deployment
    );
    Ok(())
}

/// Queries the service that uses the folder.
fn ask<T: DeserializeOwned>(
    endpoint: &Endpoint,
    path: &str,
    query: &[(&str, Option<&str>)],
    known: &QueryContext,
) -> Result<T> {
    let (store, address) = (&known.store, endpoint.address);
    let context = || {
        format!(
            "only the service that has the store to itself ({store}) can tell, and is asked at {address} (admin.listen): does it run, \
             and with this configuration?"
        )
    };
    let body = get(endpoint, path, query).with_context(context)?;
    serde_json::from_slice(&body)
        .context("the answer is not of this version: use the `postdate` that the service runs")
        .with_context(context)
}

/// Sends one HTTP request and returns the body of a 200 answer. The service then closes the
/// connection, so no HTTP client is needed. Blocking is fine: the command has no other work.
fn get(
    Endpoint {
        address,
        token,
        has_tls,
    }: &Endpoint,
    path: &str,
    query: &[(&str, Option<&str>)],
) -> Result<Vec<u8>> {
    anyhow::ensure!(
        !has_tls,
        "it speaks TLS (admin.certificate), and this command does not: ask it by curl, at https://{address}{path}"
    );
    let mut line = Serializer::new(String::new());
    line.extend_pairs(
        query
            .iter()
            .filter_map(|(name, value)| Some((name, (*value)?))),
    );
    let login = token.as_ref().map_or_else(String::new, |token| {
        format!("authorization: Bearer {}\r\n", token.expose())
    });
    let request = format!(
        "GET {path}?{} HTTP/1.1\r\nhost: {address}\r\n{login}connection: close\r\n\r\n",
        line.finish()
    );
    let mut stream = TcpStream::connect_timeout(address, CONNECT_MAX)?;
    // Slightly longer than the service's own timeout, so that its error arrives first.
    stream.set_read_timeout(Some(ADMIN_QUERY_TIMEOUT + CONNECT_MAX))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream
        .take(ADMIN_RESPONSE_BYTES_MAX)
        .read_to_end(&mut answer)?;
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .context("what answers there speaks no HTTP")?;
    let body = answer.split_off(end + 4);
    let status = std::str::from_utf8(&answer)
        .ok()
        .and_then(|head| head.strip_prefix("HTTP/1.1 ")?.get(..3))
        .unwrap_or_default();
    match status {
        "200" => Ok(body),
        "401" => bail!("it asks for another token than admin.token of this configuration"),
        "404" => {
            bail!("what answers there knows no {path}: it is another program, or an older postdate")
        }
        _ => bail!("it answers {status}: {}", error_of(&body)),
    }
}

/// The service's error message, if the answer has one.
fn error_of(body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    document
        .and_then(|document| Some(document.get("error")?.as_str()?.to_owned()))
        .unwrap_or_else(|| "it does not say why".to_owned())
}

/// A store query for a folder that does not exist yet. It always finds nothing.
struct Empty;

#[async_trait(?Send)]
impl StoreQuery for Empty {
    async fn shards(&self) -> Result<Vec<ShardId>, store::Error> {
        Ok(Vec::new())
    }

    async fn states(&self, shards: &[ShardId]) -> Result<Vec<Option<StoredShard>>, store::Error> {
        Ok(vec![None; shards.len()])
    }

    async fn find_ids(
        &self,
        ids: &[(ShardId, Box<str>)],
    ) -> Result<Vec<Option<Cursor>>, store::Error> {
        Ok(vec![None; ids.len()])
    }
}
