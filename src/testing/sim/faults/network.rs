//! The network between one process and the brokers. It can be cut, and its producers can fail.
//!
//! While it is cut, queries fail or hang, nothing is read, and sent records wait in the client
//! (`producer`). Commits can be held: they arrive late, even if their process has ended.

use crate::broker::{Catalog, Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// The connection of one process.
#[derive(Default)]
pub(crate) struct Network {
    cut: Cell<Option<CutMode>>,
    holds_commits: Cell<bool>,
    have_producers_failed: Cell<bool>,
    /// How often the producers failed.
    failures: Cell<u64>,
    changed: Notify,
}

/// The fate of a query while the network is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutMode {
    Fails,
    Hangs,
}

impl Network {
    pub(crate) fn cut(&self, cut: CutMode) {
        self.cut.set(Some(cut));
        self.changed.notify_waiters();
    }

    pub(crate) fn heal(&self) {
        self.cut.set(None);
        self.have_producers_failed.set(false);
        self.changed.notify_waiters();
    }

    pub(crate) fn hold_commits(&self, holds: bool) {
        self.holds_commits.set(holds);
        self.changed.notify_waiters();
    }

    /// The producers fail permanently and lose their records. New ones cannot be created before the
    /// network heals.
    pub(crate) fn fail_producers(&self) {
        self.have_producers_failed.set(true);
        self.failures.set(self.failures.get() + 1);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.get().is_some()
    }

    pub(crate) fn have_producers_failed(&self) -> bool {
        self.have_producers_failed.get()
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Waits until the network is cut or heals, or producers fail.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn until_healed(&self) {
        while self.is_cut() {
            self.changed().await;
        }
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.cut.get() == Some(CutMode::Fails) {
            return Err(Error::Unavailable(
                "the process is cut off from the brokers".to_owned(),
            ));
        }
        self.until_healed().await;
        call.await
    }
}

/// A source or a catalog behind the network.
pub(crate) struct OverNetwork<T: ?Sized> {
    pub(crate) network: Rc<Network>,
    pub(crate) port: Box<T>,
}

#[async_trait(?Send)]
impl Source for OverNetwork<dyn Source> {
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            self.network.until_healed().await;
            // Both arms are safe to drop: the source keeps an event until it returns it.
            tokio::select! {
                biased;
                () = self.network.changed() => {}
                event = self.port.next_event() => return event,
            }
        }
    }

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        let (network, answer) = (self.network.clone(), self.port.describe(partitions));
        Box::pin(async move { network.ask(answer).await })
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        let (network, answer) = (
            self.network.clone(),
            self.port.committed_metadata(partitions),
        );
        Box::pin(async move { network.ask(answer).await })
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        let (network, answer) = (self.network.clone(), self.port.offsets_at(partitions, time));
        Box::pin(async move { network.ask(answer).await })
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.port.start(partition, from, epoch);
    }

    fn stop(&mut self, partition: &Partition) {
        self.port.stop(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.port.known_end(partition)
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (network, outcome) = (self.network.clone(), self.port.commit(commits));
        let sent = tokio::task::spawn_local(async move {
            while network.holds_commits.get() {
                network.changed().await;
            }
            network.ask(outcome).await
        });
        let ended = |_| Err(Error::Unavailable("the simulation has ended".to_owned()));
        Box::pin(async move { sent.await.unwrap_or_else(ended) })
    }

    async fn close(&mut self) {
        self.port.close().await;
    }
}

#[async_trait(?Send)]
impl Catalog for OverNetwork<dyn Catalog> {
    async fn partitions(
        &mut self,
        topics: &[String],
    ) -> Result<Vec<(Partition, SourceIdentity)>, Error> {
        self.network.ask(self.port.partitions(topics)).await
    }

    async fn committed_metadata(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<Vec<Option<String>>, Error> {
        self.network
            .ask(self.port.committed_metadata(group, partitions))
            .await
    }

    async fn close(&mut self) {
        self.port.close().await;
    }
}
