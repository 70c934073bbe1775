//! A source partition that loses its end and keeps its identity, and `postdate reset` after it.

use super::block_on_paused;
use crate::broker::{Catalog, Error, GroupAdmin, OffsetCommit, PartitionInfo};
use crate::command::test_support;
use crate::model::{Offset, Partition, ShardId, SourceIdentity, StartPoint, Timestamp};
use crate::testing::fault_injection::{self, InjectedFault};
use crate::testing::sim::process::Process;
use crate::testing::sim::world::{GROUP, MARKERS, ROUTE, SOURCE, World};
use async_trait::async_trait;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// A source whose calls fail after some of them, as if the command was killed there.
struct Interrupted<T> {
    source: T,
    calls_left: usize,
}

impl<T> Interrupted<T> {
    fn call(&mut self) -> Result<&mut T, Error> {
        let left = self.calls_left.checked_sub(1);
        self.calls_left = left.ok_or_else(|| Error::Unavailable("interrupted".to_owned()))?;
        Ok(&mut self.source)
    }
}

#[async_trait(?Send)]
impl<T: GroupAdmin> Catalog for Interrupted<T> {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        self.call()?.partitions(topics).await
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.call()?.committed_metadata(group, partitions).await
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}

#[async_trait(?Send)]
impl<T: GroupAdmin> GroupAdmin for Interrupted<T> {
    async fn describe(&mut self, partitions: &[Partition]) -> Result<Vec<PartitionInfo>, Error> {
        self.call()?.describe(partitions).await
    }

    async fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> Result<Vec<Offset>, Error> {
        self.call()?.offsets_at(partitions, time).await
    }

    /// An interrupted call has its effect.
    async fn commit_unused(&mut self, group: &str, commits: &[OffsetCommit]) -> Result<(), Error> {
        self.source.commit_unused(group, commits).await?;
        self.call().map(drop)
    }
}

/// Resets the partition. Fails after this number of calls of the broker.
async fn reset(world: &World, from: StartPoint, calls: usize) -> bool {
    let shards = [ShardId::new(ROUTE, Partition::new(SOURCE, 0))];
    let mut source = Interrupted {
        source: world.cluster().catalog(),
        calls_left: calls,
    };
    let groups = (GROUP, world.is_exactly_once().then_some(MARKERS));
    let done = test_support::reset(world.store(), &mut source, groups, &shards, from);
    done.await.is_ok()
}

/// Half of the messages have a delay.
fn produce(world: &World, names: std::ops::Range<u32>) {
    for name in names {
        let due = world.now().as_millis() + 2_000;
        let headers = [("postdate-at", due.to_string())];
        let headers = &headers[..name as usize % 2];
        world.produce(&Partition::new(SOURCE, 0), &name.to_string(), headers);
    }
}

fn count(world: &World, name: u32) -> usize {
    let name = name.to_string();
    let arrivals = world.arrivals().into_iter();
    arrivals.filter(|arrival| arrival.uid == name).count()
}

/// Ten messages are delivered. The log loses the last five and gets ten others. Returns the messages
/// that are lost, and those that come a second time. The first reset is interrupted after this number
/// of calls, and the service runs in between.
fn run(exactly_once: bool, interrupted_after: usize, from: StartPoint) -> (Vec<u32>, Vec<u32>) {
    block_on_paused(async {
        let world = World::new();
        let world = if exactly_once {
            world.with_exactly_once()
        } else {
            world
        };
        let mut random = StdRng::seed_from_u64(1);
        let mut process = Process::start(&world, &mut random);
        produce(&world, 0..10);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(process.stop().await);
        world
            .cluster()
            .truncate(&Partition::new(SOURCE, 0), Offset(5));
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(process.reports_not_ready("postdate reset"));
        assert!(!reset(&world, from, 9).await, "a worker is alive");
        assert!(process.stop().await);
        if !reset(&world, from, interrupted_after).await {
            process.ensure_running(&world, &mut random);
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(process.stop().await);
        }
        produce(&world, 10..20);
        assert!(reset(&world, from, 9).await);
        process.ensure_running(&world, &mut random);
        tokio::time::sleep(Duration::from_secs(30)).await;
        process.stop().await;
        let lost = (10..20).filter(|name| count(&world, *name) == 0).collect();
        let again = (0..20).filter(|name| count(&world, *name) > 1).collect();
        (lost, again)
    })
}

/// The offset at which the log was cut.
const CUT: StartPoint = StartPoint::Offset(Offset(5));

#[test]
fn after_a_reset_a_truncated_source_is_read_from_the_chosen_record() {
    for exactly_once in [false, true] {
        for interrupted_after in 0..4 {
            let (lost, again) = run(exactly_once, interrupted_after, CUT);
            let case = format!("exactly-once: {exactly_once}, interrupted: {interrupted_after}");
            assert_eq!((lost, again), (vec![], vec![]), "{case}");
        }
        let (lost, again) = run(exactly_once, 9, StartPoint::First);
        assert_eq!((lost, again), (vec![], vec![0, 1, 2, 3, 4]));
        let (lost, again) = run(exactly_once, 9, StartPoint::End);
        assert_eq!((lost, again), ((10..20).collect(), vec![]));
    }
}

#[test]
fn a_reset_that_leaves_an_old_position_is_caught() {
    for (exactly_once, fault) in [
        (false, InjectedFault::ResetKeepsCommit),
        (true, InjectedFault::ResetKeepsMarker),
    ] {
        let (lost, _) = fault_injection::with([fault], || run(exactly_once, 9, CUT));
        assert_ne!(lost, Vec::<u32>::new(), "{fault:?}");
    }
}
