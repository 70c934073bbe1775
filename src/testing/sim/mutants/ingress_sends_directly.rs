//! An injected fault as a source: messages without a delay go to the target directly, past the
//! shard.

use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, RecordBatch, Source};
use crate::model::{Offset, Partition, Timestamp};
use crate::testing::sim::world::{TARGET, World};
use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;

/// A source that sends messages without a delay itself.
pub(crate) struct IngressSendsDirectly {
    pub(crate) world: World,
    pub(crate) source: Box<dyn Source>,
}

impl IngressSendsDirectly {
    /// Sends the messages without a delay. Returns the other records of the batch.
    fn relay(&self, batch: &RecordBatch) -> RecordBatch {
        let mut rest = RecordBatch::new(batch.partition.clone(), batch.epoch);
        for record in batch.iter() {
            if record
                .headers
                .iter()
                .any(|(name, _)| name.starts_with(b"postdate-"))
            {
                rest.push(
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.payload,
                    record.headers.iter(),
                );
            } else {
                let to = Partition::new(TARGET, 0);
                self.world.cluster().produce(
                    &to,
                    record.timestamp,
                    (record.key, record.payload),
                    record.headers.iter(),
                );
            }
        }
        rest
    }
}

#[async_trait(?Send)]
impl Source for IngressSendsDirectly {
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            match self.source.next_event().await? {
                Event::Records(batch) => {
                    let rest = self.relay(&batch);
                    if rest.len() > 0 {
                        return Ok(Event::Records(rest));
                    }
                }
                other => return Ok(other),
            }
        }
    }

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        self.source.describe(partitions)
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        self.source.committed_metadata(partitions)
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        self.source.offsets_at(partitions, time)
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        self.source.start(partition, from, epoch);
    }

    fn stop(&mut self, partition: &Partition) {
        self.source.stop(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.source.known_end(partition)
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.source.commit(commits)
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}
