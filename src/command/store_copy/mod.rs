//! `postdate store copy`: moves the waiting messages to the store of another configuration file, while
//! the service is stopped.
//!
//! The source log and the commits stay as they are. So nothing depends on the copy: a service that
//! starts with a store without it reads the waiting messages again.

mod plan;
mod shard;

use super::page::{Page, print};
use super::{Outcome, Refused, run};
use crate::cli::StoreCopyArgs;
use crate::clock::WallClock;
use crate::config::{self, Config};
use crate::model::ShardId;
use crate::model::readable::{count, several, size};
use crate::role::{StoreFactory, query_context};
use crate::store::embedded::{FolderDescription, FolderUse};
use crate::store::{self, CopyNumber, CopyStore, Session, SessionEnd};
use anyhow::{Context, Result, anyhow, bail};
use plan::{PlannedShard, Step, plan, text};
pub(crate) use shard::{Copied, ShardCopy, begin_shard_copy};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two lines about a large shard.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Copies the shards to the store of `to`. Without `--apply`, only prints the plan.
pub fn store_copy(config: &Config, to: &Config, args: &StoreCopyArgs) -> Result<Outcome> {
    ensure_comparable(config, to)?;
    run(async {
        let stores = Stores::open(config, to, args).await?;
        let live = stores.live_workers(args.route.as_deref()).await?;
        if let Some(live) = live.as_ref().filter(|_| args.apply) {
            bail!("nothing was copied: {live}");
        }
        if args.apply {
            stores.end_expired_sessions(args.route.as_deref()).await?;
        }
        let planned = plan(&*stores.source, stores.target.as_deref(), args).await?;
        if planned.is_empty() {
            print("The old store has no shards, so there is nothing to copy.\n")?;
            return Ok(Outcome::Done);
        }
        let (from, into) = (&stores.source_name, &stores.target_name);
        print(&format!("From  {from}\nTo    {into}\n\n"))?;
        print(&text(&planned, &Page::of_stdout()))?;
        let refused = planned
            .iter()
            .filter(|it| matches!(it.step, Step::Refuse(_)));
        let refused = refused.count() as u64;
        if refused > 0 {
            bail!(
                "nothing was copied: {} cannot be copied",
                several(refused, "shard")
            );
        }
        let Some(target) = stores.target.as_deref().filter(|_| args.apply) else {
            print("\nNothing was changed: repeat with --apply.\n")?;
            if let Some(live) = live {
                print(&format!("Before that: {live}.\n"))?;
            }
            return Ok(Outcome::Done);
        };
        print("\n")?;
        let copied = stores.copy_all(target, &planned, args).await?;
        print(&format!(
            "Copied {} ({}). {}\n",
            several(copied.messages, "message"),
            size(copied.bytes),
            next_step(args)
        ))?;
        Ok(Outcome::Done)
    })
}

fn next_step(args: &StoreCopyArgs) -> String {
    let to = args.to.display();
    match &args.route {
        None => format!("Start the service with {to}, and never again with the old store."),
        Some(route) => format!(
            "Serve the route {route} with {to} only. The other routes stay in the old store."
        ),
    }
}

/// Refuses two configurations whose shards have other names, or which name one store.
fn ensure_comparable(config: &Config, to: &Config) -> Result<()> {
    let refuse = |why: String| Err(Refused(why).into());
    if config.deployment != to.deployment {
        return refuse(format!(
            "the configurations are of two deployments, {:?} and {:?}: the messages of a shard belong to its deployment",
            config.deployment, to.deployment
        ));
    }
    if config.store.kind == to.store.kind {
        return refuse(format!(
            "both configurations name the same store ({}): an environment variable POSTDATE_STORE__... overrides both files",
            query_context(to).store
        ));
    }
    Ok(())
}

/// The old store and the new one.
struct Stores {
    source: Rc<dyn CopyStore>,
    source_name: String,
    /// `None`: the folder does not exist yet, and the command only prints a plan.
    target: Option<Rc<dyn CopyStore>>,
    target_name: String,
}

impl Stores {
    async fn open(config: &Config, to: &Config, args: &StoreCopyArgs) -> Result<Self> {
        let source = match exists(config)? {
            true => connect(config).await.context("the old store")?,
            false => bail!(
                "the old store ({}) does not exist",
                query_context(config).store
            ),
        };
        let target = match exists(to)? || args.apply {
            true => Some(connect(to).await.context("the new store")?),
            false => None,
        };
        Ok(Self {
            source,
            source_name: query_context(config).store,
            target,
            target_name: query_context(to).store,
        })
    }

    /// Tells which workers must be stopped, because they may serve the shards.
    async fn live_workers(&self, route: Option<&str>) -> Result<Option<String>> {
        let target = self.target.as_ref();
        for (name, store) in [("old", Some(&self.source)), ("new", target)] {
            let Some(store) = store else { continue };
            let older = store.older_workers().await? as u64;
            if older > 0 {
                return Ok(Some(format!(
                    "{} of version 0.1.0 use the {name} store: stop them",
                    several(older, "worker")
                )));
            }
            let sessions = store.worker_sessions().await?;
            let live = sessions.iter().filter(|session| is_in_use(session, route));
            if let Some(longest) = live.clone().map(|session| session.expires_in).max() {
                return Ok(Some(format!(
                    "live workers use the {name} store ({}): stop them. A killed worker counts as live for {:.1} more \
                     seconds",
                    live.count(),
                    longest.as_secs_f64()
                )));
            }
        }
        Ok(None)
    }

    /// Ends expired sessions, so that no lease of a frozen worker is valid when it continues. A process
    /// that may live must be ended too: it would begin another session.
    async fn end_expired_sessions(&self, route: Option<&str>) -> Result<()> {
        let target = self.target.as_ref();
        for (name, store) in [("old", Some(&self.source)), ("new", target)] {
            let Some(store) = store else { continue };
            let unsure = end_expired_sessions(&**store, route).await?;
            if !unsure.is_empty() {
                bail!(
                    "nothing was copied: these workers sent no heartbeat to the {name} store in time, but may be frozen or cut \
                     off: {}. Their sessions are ended now. End their processes, and run the command again",
                    unsure.join(", ")
                );
            }
        }
        Ok(())
    }

    async fn copy_all(
        &self,
        target: &dyn CopyStore,
        planned: &[PlannedShard],
        args: &StoreCopyArgs,
    ) -> Result<Copied> {
        let number = CopyNumber(rand::random());
        let planned: Vec<_> = planned.iter().filter(|it| it.needs_copy()).collect();
        let shards = planned.len();
        for it in &planned {
            let begun = begin_shard_copy(target, &it.shard, number, &it.there).await;
            begun.map_err(|error| stopped_at(0, shards, error))?;
        }
        let mut total = Copied::default();
        for (at, it) in planned.into_iter().enumerate() {
            let copy = ShardCopy {
                source: &*self.source,
                target,
                shard: &it.shard,
                number,
                on_step: &mut progress(&it.shard, it.messages),
                copied: Copied::default(),
            };
            let copied = copy.run().await;
            let copied = copied.map_err(|error| stopped_at(at, shards, error))?;
            let done = at + 1;
            total.add(copied);
            print(&format!(
                "{done}/{shards}  {}: {}, {}\n",
                it.shard,
                several(copied.messages, "message"),
                size(copied.bytes)
            ))?;
            // A worker that was started meanwhile may have changed the next shards.
            let live = self.live_workers(args.route.as_deref()).await;
            if let Some(live) = live.map_err(|error| stopped_at(done, shards, error))? {
                let error = anyhow!("{live}. Then run the same command again");
                return Err(stopped_at(done, shards, error));
            }
        }
        self.ensure_moved(target, args).await?;
        Ok(total)
    }

    /// A worker may have run for a while, and have changed a shard after its copy.
    async fn ensure_moved(&self, target: &dyn CopyStore, args: &StoreCopyArgs) -> Result<()> {
        let planned = plan(&*self.source, Some(target), args).await?;
        if let Some(it) = planned.iter().find(|it| !it.is_moved()) {
            bail!(
                "{} changed during the copy, so the stores differ: a worker ran meanwhile. Stop all workers, and run the \
                 command again",
                it.shard
            );
        }
        Ok(())
    }
}

/// Tells how far the copy came. Only if a store did not answer, or was full, a repeat is all that is
/// needed. Other errors say what to do.
fn stopped_at(done: usize, shards: usize, error: anyhow::Error) -> anyhow::Error {
    let then = match error.downcast_ref::<store::Error>() {
        Some(_) => ". Run the same command again: it continues",
        None => "",
    };
    error.context(format!("{done} of {shards} shards were copied{then}"))
}

/// Prints a line every few seconds.
fn progress(shard: &ShardId, messages: u64) -> impl FnMut(Copied) -> Result<()> {
    let mut last = Instant::now();
    let shard = shard.clone();
    move |copied| {
        if last.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        last = Instant::now();
        let done = count(copied.messages);
        print(&format!(
            "      {shard}: {done} of {}\n",
            several(messages, "message")
        ))
    }
}

/// True if the session has not expired and may serve the route, or any.
fn is_in_use(session: &Session, route: Option<&str>) -> bool {
    may_serve(session, route) && !session.expires_in.is_zero()
}

fn may_serve(session: &Session, route: Option<&str>) -> bool {
    let routes = &session.entry.routes;
    // A version that names no routes may serve any.
    route.is_none_or(|route| routes.is_empty() || routes.contains(route))
}

/// Ends the expired sessions of the route, or of all. Returns the names of the workers whose processes
/// are not known to have ended.
async fn end_expired_sessions(store: &dyn CopyStore, route: Option<&str>) -> Result<Vec<String>> {
    let sessions = store.worker_sessions().await?;
    let expired = sessions
        .into_iter()
        .filter(|it| may_serve(it, route) && it.expires_in.is_zero());
    let expired: Vec<Session> = expired.collect();
    let ends = expired.iter().map(|it| SessionEnd {
        session: it.id,
        heartbeats: Some(it.heartbeats),
    });
    let ends: Vec<SessionEnd> = ends.collect();
    if !ends.is_empty() {
        store.end_sessions(&ends).await?;
    }
    let unsure = expired.into_iter().filter(|it| it.is_connected);
    Ok(unsure.map(|it| it.entry.name).collect())
}

/// False for a folder without a store.
fn exists(config: &Config) -> Result<bool> {
    let config::Store::Embedded(embedded) = &config.store.kind else {
        return Ok(true);
    };
    let path = embedded.path.display();
    match FolderDescription::of(&embedded.path).used {
        FolderUse::Absent => Ok(false),
        FolderUse::OwnedByOther(owner) => bail!(
            "the folder {path} belongs to user {owner}: run this as that user, because files of another user would \
             lock the service out"
        ),
        FolderUse::Unreadable(why) => bail!("the folder {path} cannot be read: {why}"),
        FolderUse::Free | FolderUse::InUse(_) => Ok(true),
    }
}

async fn connect(config: &Config) -> Result<Rc<dyn CopyStore>> {
    Ok(StoreFactory::open(config, WallClock)?
        .connect_copy()
        .await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SessionId, WorkerEntry};
    use crate::store::{Heartbeat, Membership as _, SessionHeartbeat};
    use crate::testing::store::memory::MemoryStore;

    #[tokio::test]
    async fn expired_sessions_are_ended_and_their_workers_named() {
        let store = MemoryStore::new(Rc::new(WallClock));
        for (name, seconds) in [("frozen", 0), ("live", 60)] {
            let entry = WorkerEntry::for_test(name);
            let heartbeat = SessionHeartbeat {
                session: SessionId::first(entry.id(), 1),
                heartbeats: 1,
                answered: 0,
                length: Duration::from_secs(seconds),
                entry,
            };
            let renewed = store.heartbeat(&heartbeat).await.unwrap();
            assert!(matches!(renewed, Heartbeat::Renewed { .. }), "{renewed:?}");
        }
        let mut named = Vec::new();
        for route in [Some("none of them"), None, None] {
            named.push(end_expired_sessions(&store, route).await.unwrap());
        }
        assert_eq!(named, [vec![], vec!["frozen".to_owned()], vec![]]);
        let left = store.sessions().await.unwrap();
        let left: Vec<_> = left.iter().map(|it| it.entry.name.as_str()).collect();
        assert_eq!(left, ["live"]);
    }

    #[test]
    fn only_an_error_of_a_store_promises_that_a_repeat_continues() {
        let text = |error| stopped_at(1, 3, error).to_string();
        let unavailable = store::Error::Unavailable("x".to_owned());
        assert!(text(unavailable.into()).ends_with("it continues"));
        assert_eq!(text(anyhow!("x")), "1 of 3 shards were copied");
    }

    #[test]
    fn a_live_worker_of_the_route_or_of_unknown_routes_prevents_a_copy() {
        let session = |routes: &[&str], seconds| Session {
            id: SessionId::first(WorkerEntry::for_test("a").id(), 1),
            entry: WorkerEntry {
                routes: routes.iter().map(|&route| route.into()).collect(),
                ..WorkerEntry::for_test("a")
            },
            heartbeats: 1,
            length: Duration::from_secs(6),
            expires_in: Duration::from_secs(seconds),
            is_connected: true,
        };
        for (routes, route, expected) in [
            (&["a"][..], None, true),
            (&["a"], Some("a"), true),
            (&["a"], Some("b"), false),
            (&[], Some("b"), true),
        ] {
            assert_eq!(is_in_use(&session(routes, 5), route), expected);
            assert!(!is_in_use(&session(routes, 0), route));
        }
    }
}
