//! The embedded store in temporary folders: the port's promises, and what only a folder, a disk or a kill can do to it.

mod damage;
mod disk;
mod folder;
mod kill;

use super::data_dir::Sizes;
use super::*;
use crate::clock::WallClock;
use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use crate::run::{Run, RunName};
use crate::store::{AppendEpoch, IdChange, IdChangeKind, Lineage, Store, StoreQuery};
use crate::testing::store::contract::builders::{
    advance, append_at, lease, list_everything, new_shard, shard,
};
use crate::testing::store::contract::random_calls::{ComparedStore, assert_same_as_memory};
use crate::testing::store::contract::{self, StoreUnderTest, run_of};
use std::path::Path;
use tempfile::TempDir;

/// So little that files are written and merged all the time.
const SMALL: Sizes = Sizes {
    index_memory: 4 * 1024,
    pool_memory: 16 * 1024,
    blob_file: 4 * 1024,
    apart: 64,
};

struct Kept {
    folder: TempDir,
    sizes: Sizes,
    room: DiskSpace,
    store: Option<Embedded>,
}

impl Kept {
    fn new(sizes: Sizes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let room = DiskSpace::new(folder.path().to_owned());
        let mut kept = Self {
            folder,
            sizes,
            room,
            store: None,
        };
        kept.reopen();
        kept
    }

    fn store(&self) -> &Embedded {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(opened_with(self.folder.path(), self.sizes, &self.room));
    }
}

/// On a machine that is busy, the threads of the store that had the folder before may take longer than they are waited for.
#[allow(
    clippy::disallowed_methods,
    reason = "threads and a real disk are waited for"
)]
fn opened_with(path: &Path, sizes: Sizes, room: &DiskSpace) -> Embedded {
    for _ in 0..600 {
        match Embedded::open_with(&options(path), sizes, room.clone(), WallClock) {
            Err(Error::Unusable(why)) if why.contains("in use by process") => {
                std::thread::sleep(Duration::from_millis(100))
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("{} is in use for a minute", path.display())
}

pub(super) fn opened_at(path: &Path) -> Embedded {
    opened(path, SMALL)
}

pub(super) fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        deployment: "test".to_owned(),
    }
}

fn opened(path: &Path, sizes: Sizes) -> Embedded {
    opened_with(path, sizes, &DiskSpace::new(path.to_owned()))
}

fn refused(path: &Path) -> String {
    match Embedded::open(&options(path), WallClock) {
        Err(Error::Unusable(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[async_trait(?Send)]
impl StoreUnderTest for Kept {
    fn store(&self) -> &dyn Store {
        self.store()
    }

    fn survey(&self) -> &dyn StoreQuery {
        self.store()
    }

    async fn set_full(&self, full: bool) {
        self.room.set_reserve(if full { u64::MAX } else { 0 });
    }
}

#[async_trait(?Send)]
impl ComparedStore for Kept {
    fn store(&self) -> &dyn Store {
        self.store()
    }

    async fn restart(&mut self) -> bool {
        self.reopen();
        true
    }
}

/// A place in hour `offset / 8` after the epoch.
fn place(offset: u64) -> Cursor {
    Cursor::new(
        Timestamp::from_millis(offset as i64 * 450_000),
        Offset(offset),
    )
}

fn append(topic: &str, offset: u64) -> Append {
    append_at(topic, place(offset))
}

async fn held(store: &Embedded, topic: &str) {
    let acquired = store
        .acquire(&[lease(topic)], Duration::from_secs(3_600))
        .await
        .unwrap()
        .remove(0);
    assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
}

async fn listed(store: &Embedded, topic: &str) -> Vec<(crate::model::Slice, RunName)> {
    match store
        .list(&[list_everything(topic)])
        .await
        .unwrap()
        .remove(0)
    {
        Listed::Runs {
            runs,
            has_more: false,
            ..
        } => runs.into_iter().map(|run| (run.slice, run.name)).collect(),
        other => panic!("{other:?}"),
    }
}

async fn known(store: &Embedded, topic: &str) -> Option<StoredShard> {
    store.state(&[shard(topic)]).await.unwrap().remove(0)
}

const DONE: Appended = Appended::Done {
    cancelled: 0,
    missed: 0,
};

#[tokio::test]
async fn the_embedded_store_keeps_every_promise_of_the_port() {
    contract::run(&Kept::new(Sizes::DEFAULT)).await;
}

#[tokio::test]
async fn the_promises_are_kept_while_files_are_written_and_merged() {
    contract::run(&Kept::new(SMALL)).await;
}

#[test]
fn random_sequences_of_calls_have_the_same_outcomes_in_memory_and_in_a_folder_that_is_opened_again()
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    assert_same_as_memory(&mut Kept::new(Sizes::DEFAULT), &runtime, 100);
}

#[tokio::test]
async fn a_call_that_is_dropped_has_its_effect_and_stops_nothing() {
    let kept = Kept::new(Sizes::DEFAULT);
    let store = kept.store();
    store.open(&[new_shard("t")]).await.unwrap();
    let batch = [append("t", 0)];
    let mut lost = Box::pin(store.append(&batch));
    // Handed over, and not waited for.
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(lost.as_mut().poll(&mut context).is_pending());
    drop(lost);
    assert_eq!(store.append(&[append("t", 1)]).await.unwrap(), [DONE]);
}

#[tokio::test]
async fn calls_of_many_loops_go_on_side_by_side() {
    let kept = Kept::new(Sizes::DEFAULT);
    let topics: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    kept.store()
        .open(
            &topics
                .iter()
                .map(|topic| new_shard(topic))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let mut group = crate::task::TaskGroup::new();
    for topic in topics.clone() {
        let store = kept.store().clone();
        group
            .spawn_thread(&topic.clone(), move |stop| async move {
                for offset in 0..50 {
                    assert_eq!(store.append(&[append(&topic, offset)]).await?, [DONE]);
                }
                stop.cancelled().await;
                Ok::<_, Error>(())
            })
            .unwrap();
    }
    let all_stored = async {
        loop {
            let states = kept
                .store()
                .state(&topics.iter().map(|topic| shard(topic)).collect::<Vec<_>>())
                .await
                .unwrap();
            if states
                .iter()
                .all(|state| state.as_ref().is_some_and(|state| state.pending == 50))
            {
                break;
            }
        }
    };
    group
        .join(all_stored, Duration::from_secs(60))
        .await
        .unwrap();
    for topic in &topics {
        assert_eq!(listed(kept.store(), topic).await.len(), 50);
    }
}

#[tokio::test]
async fn a_restart_ends_all_leases_and_begins_the_tail_at_the_watermark() {
    let mut kept = Kept::new(Sizes::DEFAULT);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    kept.store().append(&[append("t", 0)]).await.unwrap();
    held(kept.store(), "t").await;
    kept.reopen();
    let renewed = kept
        .store()
        .renew(&[lease("t")], Duration::from_secs(9))
        .await
        .unwrap();
    assert_eq!(renewed, [Renewed::Fenced]);
    let tail = |after| Tail {
        shard: shard("t"),
        after: Watermark(after),
        until: Timestamp::MAX,
        limit: 9,
    };
    let tailed = kept.store().tail(&[tail(0), tail(1)]).await.unwrap();
    let history = Lineage::default();
    let wanted = [
        Tailed::OutOfRange {
            watermark: Watermark(1),
        },
        Tailed::Runs {
            watermark: Watermark(1),
            complete_to: Watermark(1),
            lineage: history,
            runs: Vec::new(),
        },
    ];
    assert_eq!(tailed, wanted);
}

#[tokio::test]
async fn deployments_share_a_folder_and_no_shard() {
    let mut kept = Kept::new(Sizes::DEFAULT);
    kept.store().open(&[new_shard("t")]).await.unwrap();
    kept.store().append(&[append("t", 0)]).await.unwrap();
    kept.store = None;
    let other = Options {
        deployment: "other".to_owned(),
        ..options(kept.folder.path())
    };
    let store = Embedded::open(&other, WallClock).unwrap();
    assert_eq!(known(&store, "t").await, None);
    assert!(matches!(
        store.open(&[new_shard("t")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(listed(&store, "t").await, []);
    drop(store);
    kept.reopen();
    assert_eq!(listed(kept.store(), "t").await.len(), 1);
}
