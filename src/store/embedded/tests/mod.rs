//! The embedded store in temporary folders: the contract suite, and tests of folder, disk and
//! kills.

mod damage;
mod disk;
mod folder;
mod kill;

use super::*;
use crate::clock::WallClock;
use crate::model::{Cursor, Offset, Progress, Timestamp, Watermark};
use crate::run::{Run, RunName};
use crate::store::{
    AdminStore, AppendEpoch, CopyNumber, CopyState, CopyStore, Hold, IdChange, IdChangeKind,
    Lineage, ShardPart, Store, StoredRun,
};
use crate::testing::store::contract::random_calls::{ComparedStore, assert_same_as_memory};
use crate::testing::store::contract::{self, StoreUnderTest, run_of};
use crate::testing::store::requests::{
    acquire, advance, append_at, lease, list_everything, new_shard, shard,
};
use std::path::Path;
use tempfile::TempDir;

/// So small that files are written and merged all the time.
const SMALL: FileSizes = FileSizes {
    index_memory: 4 * 1024,
    pool_memory: 16 * 1024,
    cache: limit::EMBEDDED_CACHE_BYTES,
    blob_file: 4 * 1024,
    separate_min: 64,
};

struct TestStore {
    folder: TempDir,
    sizes: FileSizes,
    disk: DiskSpace,
    store: Option<Embedded>,
}

impl TestStore {
    fn new(sizes: FileSizes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = DiskSpace::new(folder.path().to_owned());
        let mut test = Self {
            folder,
            sizes,
            disk,
            store: None,
        };
        test.reopen();
        test
    }

    fn store(&self) -> &Embedded {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(opened_with(self.folder.path(), self.sizes, &self.disk));
    }
}

/// Retries while the threads of the previous store still hold the lock, as on a busy machine.
#[allow(
    clippy::disallowed_methods,
    reason = "the test waits for real threads and a real disk"
)]
fn opened_with(path: &Path, sizes: FileSizes, disk: &DiskSpace) -> Embedded {
    for _ in 0..600 {
        match Embedded::open_with(&options(path), sizes, disk.clone(), WallClock) {
            Err(Error::Unusable(why)) if why.contains("in use by process") => {
                std::thread::sleep(Duration::from_millis(100));
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
        memory: EmbeddedMemory::of(1 << 30),
    }
}

fn opened(path: &Path, sizes: FileSizes) -> Embedded {
    opened_with(path, sizes, &DiskSpace::new(path.to_owned()))
}

fn open_error(path: &Path) -> String {
    match Embedded::open(&options(path), WallClock) {
        Err(Error::Unusable(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[async_trait(?Send)]
impl StoreUnderTest for TestStore {
    fn store(&self) -> &dyn Store {
        self.store()
    }

    fn survey(&self) -> &dyn CopyStore {
        self.store()
    }

    fn admin(&self) -> &dyn AdminStore {
        self.store()
    }

    async fn set_full(&self, full: bool) {
        self.disk.set_reserve(if full { u64::MAX } else { 0 });
    }
}

#[async_trait(?Send)]
impl ComparedStore for TestStore {
    fn store(&self) -> &dyn Store {
        self.store()
    }

    async fn restart(&mut self) -> bool {
        self.reopen();
        true
    }
}

/// A place in hour `offset / 8` since the epoch.
fn place(offset: u64) -> Cursor {
    Cursor::new(
        Timestamp::from_millis(offset as i64 * 450_000),
        Offset(offset),
    )
}

fn append(topic: &str, offset: u64) -> Append {
    append_at(topic, place(offset))
}

async fn take_lease(store: &Embedded, topic: &str) {
    let acquired = store.acquire(&[acquire(topic)]).await.unwrap().remove(0);
    assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
}

async fn list_all(store: &Embedded, topic: &str) -> Vec<(crate::model::Slice, RunName)> {
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

async fn state_of(store: &Embedded, topic: &str) -> Option<StoredShard> {
    store.state(&[shard(topic)]).await.unwrap().remove(0)
}

const DONE: Appended = Appended::Done {
    cancelled: 0,
    missed: 0,
    told: Vec::new(),
};

#[tokio::test]
async fn the_embedded_store_passes_the_contract_suite() {
    contract::run(&TestStore::new(FileSizes::DEFAULT)).await;
}

#[tokio::test]
async fn the_contract_suite_passes_while_files_are_written_and_merged() {
    contract::run(&TestStore::new(SMALL)).await;
}

#[test]
fn random_calls_have_the_same_outcomes_in_memory_and_in_a_folder_with_restarts() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    assert_same_as_memory(&mut TestStore::new(FileSizes::DEFAULT), &runtime, 100);
}

#[tokio::test]
async fn a_dropped_call_takes_effect_and_blocks_no_other_call() {
    let test = TestStore::new(FileSizes::DEFAULT);
    let store = test.store();
    store.open(&[new_shard("t")]).await.unwrap();
    let batch = [append("t", 0)];
    let mut lost = Box::pin(store.append(&batch));
    // The call is in the queue of the writer.
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(lost.as_mut().poll(&mut context).is_pending());
    drop(lost);
    assert_eq!(store.append(&[append("t", 1)]).await.unwrap(), [DONE]);
}

#[tokio::test]
async fn many_threads_can_call_at_the_same_time() {
    let test = TestStore::new(FileSizes::DEFAULT);
    let topics: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    test.store()
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
        let store = test.store().clone();
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
            let states = test
                .store()
                .state(&topics.iter().map(|topic| shard(topic)).collect::<Vec<_>>())
                .await
                .unwrap();
            if states
                .iter()
                .all(|state| state.as_ref().is_some_and(|state| state.pending() == 50))
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
        assert_eq!(list_all(test.store(), topic).await.len(), 50);
    }
}

#[tokio::test]
async fn a_restart_ends_all_leases_and_starts_the_tail_at_the_watermark() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    test.store().open(&[new_shard("t")]).await.unwrap();
    test.store().append(&[append("t", 0)]).await.unwrap();
    take_lease(test.store(), "t").await;
    test.reopen();
    let fenced = advance("t", Progress::START);
    let advanced = test.store().advance(&[fenced]).await.unwrap();
    assert_eq!(advanced, [Advanced::Fenced]);
    let tail = |after| Tail {
        shard: shard("t"),
        after: Watermark(after),
        until: Timestamp::MAX,
        limit: 9,
        bytes_max: usize::MAX,
    };
    let tailed = test.store().tail(&[tail(0), tail(1)]).await.unwrap();
    let history = Lineage::default();
    let wanted = [
        Tailed::OutOfRange {
            watermark: Watermark(1),
        },
        Tailed::Runs {
            watermark: Watermark(1),
            complete_to: Watermark(1),
            lineage: history,
            hold: Hold::Until(Watermark(0)),
            pause: None,
            runs: Vec::new(),
        },
    ];
    assert_eq!(tailed, wanted);
}

#[tokio::test]
async fn deployments_share_a_folder_but_no_shard() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    test.store().open(&[new_shard("t")]).await.unwrap();
    test.store().append(&[append("t", 0)]).await.unwrap();
    test.store = None;
    let other = Options {
        deployment: "other".to_owned(),
        ..options(test.folder.path())
    };
    let store = Embedded::open(&other, WallClock).unwrap();
    assert_eq!(state_of(&store, "t").await, None);
    assert!(matches!(
        store.open(&[new_shard("t")]).await.unwrap()[0],
        Opened::Created(_)
    ));
    assert_eq!(list_all(&store, "t").await, []);
    drop(store);
    test.reopen();
    assert_eq!(list_all(test.store(), "t").await.len(), 1);
}

const COPY: CopyNumber = CopyNumber(7);

#[tokio::test]
async fn an_interrupted_copy_is_known_as_such_after_a_restart_and_can_be_erased() {
    let mut test = TestStore::new(FileSizes::DEFAULT);
    let run = append("t", 0).runs.remove(0);
    let part = ShardPart {
        runs: vec![StoredRun {
            slice: Some(run.slice),
            name: run.name,
            least_due: run.summary.least_due(),
            bytes: run.bytes,
        }],
        entries: Vec::new(),
    };
    let store = test.store();
    assert!(store.begin_copy(&shard("t"), COPY).await.unwrap());
    assert!(
        store
            .add_to_copy(&shard("t"), COPY, part.clone())
            .await
            .unwrap()
    );
    test.reopen();
    let store = test.store();
    let state = store.copy_state(&shard("t")).await.unwrap();
    assert_eq!(state, CopyState::Begun);
    assert!(!store.add_to_copy(&shard("t"), COPY, part).await.unwrap());
    let opened = store.open(&[new_shard("t")]).await.unwrap().remove(0);
    assert!(
        matches!(&opened, Opened::Incompatible(text) if text.contains("postdate store copy")),
        "{opened:?}"
    );
    store.erase(&[shard("t")]).await.unwrap();
    store.open(&[new_shard("t")]).await.unwrap();
    assert_eq!(list_all(store, "t").await, []);
    let rows = |tables: &Tables| Ok(tables.rows(&key::all_runs(1)).count());
    assert_eq!(store.shared.with(rows).unwrap(), 0);
}
