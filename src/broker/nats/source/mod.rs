//! The source port on NATS: one reader per started partition, and commits in the bucket.

mod partition_reader;
mod pull_consumer;

use self::partition_reader::{PartitionReader, ReaderOptions, ReaderStatus};
use super::Cluster;
use super::connection::Connection;
use super::kv::KvBucket;
use super::stream_info;
use crate::broker::nats::limit::NATS_HEARTBEAT_INTERVAL;
use crate::broker::{Error, Event, OffsetCommit, PartitionInfo, Source};
use crate::health::HealthPart;
use crate::model::{Offset, Partition, Timestamp, split_source_topic};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::{LocalBoxFuture, join_all};
use futures_util::stream::{self, AbortHandle, LocalBoxStream, SelectAll};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::time::{Instant, sleep_until};

pub(crate) struct SourceOptions {
    /// The group whose commits the bucket keeps.
    pub(crate) group: String,
    /// The route understands the headers of NATS' own message schedules.
    pub(crate) reads_schedules: bool,
    /// Bytes of one fetch of a partition. One and a half fetches of each are in memory.
    pub(crate) fetch_bytes_max: usize,
}

pub(crate) struct NatsSource {
    /// Shared by the sources of all routes. It is closed with the last of them.
    connection: Rc<Connection>,
    /// Shows errors of readers. The connection has a part of its own.
    part: HealthPart,
    bucket: Rc<KvBucket>,
    options: SourceOptions,
    /// The events of all readers, in turn.
    readers: SelectAll<LocalBoxStream<'static, Event>>,
    reading: BTreeMap<Partition, Reading>,
    /// Creation times of the streams when they were last described.
    stream_created: Rc<RefCell<BTreeMap<Partition, i128>>>,
    /// When the readiness is reported next.
    report_at: Instant,
    /// The error of a reader that readiness shows.
    reported_error: Option<String>,
}

/// A partition that is read. Dropping it stops the reader.
struct Reading {
    status: Rc<ReaderStatus>,
    abort: AbortHandle,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl NatsSource {
    /// A source for each route, with the part that shows errors of its readers. All share a connection,
    /// which `part` shows.
    pub(crate) fn for_routes(
        cluster: &Cluster,
        routes: Vec<(SourceOptions, HealthPart)>,
        part: HealthPart,
    ) -> Result<Vec<Self>, Error> {
        let connection = Rc::new(Connection::with_thread(cluster, part)?);
        let bucket = Rc::new(KvBucket::new(connection.clone()));
        let sources = routes.into_iter().map(|(options, part)| Self {
            connection: connection.clone(),
            part,
            bucket: bucket.clone(),
            options,
            readers: SelectAll::new(),
            reading: BTreeMap::new(),
            stream_created: Rc::default(),
            report_at: Instant::now(),
            reported_error: None,
        });
        Ok(sources.collect())
    }

    /// Shows the error of a reader, if one has failed for a while. The connection reports its own
    /// state.
    fn report(&mut self) {
        self.report_at = Instant::now() + NATS_HEARTBEAT_INTERVAL;
        let mut reading = self.reading.values();
        let error = reading.find_map(|reading| reading.status.error.borrow().clone());
        match &error {
            Some(error) => self.part.set_not_ready(error.clone()),
            None if self.reported_error.is_some() => self.part.set_ready(),
            None => {}
        }
        self.reported_error = error;
    }
}

#[async_trait(?Send)]
impl Source for NatsSource {
    async fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            let (connection, report_at) = (self.connection.clone(), self.report_at);
            // A worker without partitions connects too: it is ready only with a connection.
            let connected = async move {
                sleep_until(report_at).await;
                connection.context().await
            };
            // Both arms are safe to drop: readers keep their events.
            tokio::select! {
                biased;
                Some(event) = self.readers.next() => return Ok(event),
                connected = connected => {
                    self.report();
                    if let Err(error @ Error::Fatal(_)) = connected {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn describe(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Result<PartitionInfo, Error>>, Error>> {
        let (connection, bucket) = (self.connection.clone(), self.bucket.clone());
        let (partitions, created) = (partitions.to_vec(), self.stream_created.clone());
        let reads_schedules = self.options.reads_schedules;
        Box::pin(async move {
            let installation = bucket.installation().await?;
            let connection = &*connection;
            let infos = join_all(partitions.iter().map(|partition| async move {
                let missing =
                    || Error::Rejected(format!("the partition {partition} does not exist"));
                let (stream, _) = split_source_topic(&partition.topic).ok_or_else(missing)?;
                let info = stream_info::fetch(connection, stream).await?;
                info.ok_or_else(missing)
            }));
            let mut described = Vec::with_capacity(partitions.len());
            for (partition, info) in partitions.iter().zip(infos.await) {
                described.push(info.and_then(|info| {
                    let conflict = info.schedule_conflict().filter(|_| reads_schedules);
                    if let Some(problem) = info.unusable_reason().or(conflict) {
                        return Err(Error::Rejected(problem));
                    }
                    let mut created = created.borrow_mut();
                    created.insert(partition.clone(), info.created);
                    Ok(info.describe(&installation))
                }));
            }
            Ok(described)
        })
    }

    fn committed_metadata(
        &mut self,
        partitions: &[Partition],
    ) -> LocalBoxFuture<'static, Result<Vec<Option<String>>, Error>> {
        let (bucket, group) = (self.bucket.clone(), self.options.group.clone());
        let partitions = partitions.to_vec();
        Box::pin(async move { bucket.committed(&group, &partitions).await })
    }

    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: Timestamp,
    ) -> LocalBoxFuture<'static, Result<Vec<Offset>, Error>> {
        let (connection, partitions) = (self.connection.clone(), partitions.to_vec());
        Box::pin(async move { stream_info::offsets_at(&connection, &partitions, time).await })
    }

    fn start(&mut self, partition: &Partition, from: Offset, epoch: u64) {
        let Some((stream, filter)) = split_source_topic(&partition.topic) else {
            return;
        };
        let options = ReaderOptions {
            partition: partition.clone(),
            stream: stream.to_owned(),
            filter: filter.to_owned(),
            epoch,
            created: self.stream_created.borrow().get(partition).copied(),
            reads_schedules: self.options.reads_schedules,
            fetch_bytes_max: self.options.fetch_bytes_max,
            status: Rc::default(),
        };
        let status = options.status.clone();
        let reader = PartitionReader::new(self.connection.clone(), options, from);
        let (events, abort) = stream::abortable(reader.into_events());
        self.readers.push(events.boxed_local());
        self.reading
            .insert(partition.clone(), Reading { status, abort });
    }

    fn stop(&mut self, partition: &Partition) {
        self.reading.remove(partition);
        self.stream_created.borrow_mut().remove(partition);
    }

    fn known_end(&self, partition: &Partition) -> Option<Offset> {
        self.reading.get(partition)?.status.end.get()
    }

    fn commit(&mut self, commits: Vec<OffsetCommit>) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (bucket, group) = (self.bucket.clone(), self.options.group.clone());
        Box::pin(async move { bucket.commit(&group, &commits).await })
    }

    async fn close(&mut self) {
        self.readers.clear();
        self.reading.clear();
    }
}
