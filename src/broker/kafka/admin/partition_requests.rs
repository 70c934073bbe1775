//! Requests about partitions, which are polled. So no request waits for a broker that another one has
//! asked.

use super::requests::TopicsRequest;
use super::worker::{PolledRequest, WorkerThread};
use crate::broker::kafka::error::call_error;
use crate::broker::kafka::ffi::{Isolation, ListedOffsets, NativeClient, OffsetsCall};
use crate::broker::{Error, PartitionInfo};
use crate::model::{Offset, Partition, SourceIdentity, Timestamp};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::time::Duration;

/// Asks for the incarnations of partitions, and for their first and last offsets. The partitions whose
/// broker does not tell their offsets have an error, and the others do not.
pub(crate) struct Description {
    partitions: Vec<Partition>,
    timeout: Duration,
    step: Step,
    /// Dropped after the calls, which it must outlive.
    native: Arc<NativeClient>,
}

enum Step {
    Topics(TopicsRequest),
    Offsets {
        identities: Vec<Result<SourceIdentity, Error>>,
        first: OffsetsRequest,
        end: OffsetsRequest,
    },
}

impl Description {
    /// `timeout`: of the question for the topics, and of the one for the offsets.
    pub(crate) fn start(
        worker: &mut WorkerThread,
        partitions: Vec<Partition>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let names = partitions.iter().map(|it| &*it.topic).collect();
        let topics = worker.ask_topics(&names, false, timeout)?;
        Ok(Self {
            partitions,
            timeout,
            native: topics.native.clone(),
            step: Step::Topics(topics),
        })
    }

    fn ask_offsets(&self, identities: Vec<Result<SourceIdentity, Error>>) -> Result<Step, Error> {
        let ask = |offset| {
            let existing = self.partitions.iter().zip(&identities);
            let existing = existing.filter(|(_, identity)| identity.is_ok());
            let offsets = existing.map(|(partition, _)| (partition, offset)).collect();
            OffsetsRequest::start(&self.native, offsets, self.timeout)
        };
        let (first, end) = (ask(rdkafka::Offset::Beginning)?, ask(rdkafka::Offset::End)?);
        Ok(Step::Offsets {
            identities,
            first,
            end,
        })
    }
}

impl PolledRequest for Description {
    type Answer = Vec<Result<PartitionInfo, Error>>;

    fn poll(&mut self, worker: &mut WorkerThread) -> Result<Option<Self::Answer>, Error> {
        if let Step::Topics(request) = &mut self.step {
            let Some(topics) = worker.take_topics(request)? else {
                return Ok(None);
            };
            let identities = self.partitions.iter();
            let identities = identities.map(|it| worker.partition_identity(&topics, it));
            self.step = self.ask_offsets(identities.collect())?;
        }
        let Step::Offsets {
            identities,
            first,
            end,
        } = &mut self.step
        else {
            return Ok(None);
        };
        let (Some(first), Some(end)) = (first.take(worker)?, end.take(worker)?) else {
            return Ok(None);
        };
        let described = self.partitions.iter().zip(identities);
        let described = described.map(|(partition, identity)| {
            Ok(PartitionInfo {
                identity: Some(identity.clone()?),
                first_offset: known_offset(first, partition)?,
                end_offset: known_offset(end, partition)?,
            })
        });
        Ok(Some(described.collect()))
    }
}

/// Asks for the offset of the first record of each partition that is not older than the time, or else the
/// end. The partitions whose broker does not answer have an error.
///
/// The first question is for the end: a record that arrives between both answers must not be before it.
pub(crate) struct OffsetsAt {
    partitions: Vec<Partition>,
    time: Timestamp,
    timeout: Duration,
    end: OffsetsRequest,
    /// `None`: the ends are not known.
    at_time: Option<OffsetsRequest>,
    /// Dropped after the calls, which it must outlive.
    native: Arc<NativeClient>,
}

impl OffsetsAt {
    /// `timeout`: of the question for the ends, and of the one for the time.
    pub(crate) fn start(
        worker: &WorkerThread,
        partitions: Vec<Partition>,
        time: Timestamp,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let native = worker.client()?;
        let at_end = partitions.iter().map(|it| (it, rdkafka::Offset::End));
        Ok(Self {
            end: OffsetsRequest::start(&native, at_end.collect(), timeout)?,
            partitions,
            time,
            timeout,
            at_time: None,
            native,
        })
    }
}

impl PolledRequest for OffsetsAt {
    type Answer = Vec<Result<Offset, Error>>;

    fn poll(&mut self, worker: &mut WorkerThread) -> Result<Option<Self::Answer>, Error> {
        let Some(ends) = self.end.take(worker)? else {
            return Ok(None);
        };
        let at_time = match &mut self.at_time {
            Some(request) => request,
            none => {
                // The client passes an offset on as a time, and a negative time would have another
                // meaning.
                let time = rdkafka::Offset::Offset(self.time.as_millis().max(0));
                let answered = self.partitions.iter();
                let answered = answered.filter(|it| known_offset(ends, it).is_ok());
                let times = answered.map(|it| (it, time)).collect();
                none.insert(OffsetsRequest::start(&self.native, times, self.timeout)?)
            }
        };
        let Some(found) = at_time.take(worker)? else {
            return Ok(None);
        };
        let or_end = self.partitions.iter().map(|partition| {
            let end = known_offset(ends, partition)?;
            Ok(listed_offset(found, partition)?.unwrap_or(end))
        });
        Ok(Some(or_end.collect()))
    }
}

/// A question for one offset of each partition.
struct OffsetsRequest {
    /// `None`: there are no partitions.
    call: Option<OffsetsCall>,
    answer: Option<ListedOffsets>,
}

impl OffsetsRequest {
    /// No partition may repeat.
    fn start(
        native: &NativeClient,
        offsets: Vec<(&Partition, rdkafka::Offset)>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        if offsets.is_empty() {
            return Ok(Self {
                call: None,
                answer: Some(ListedOffsets::new()),
            });
        }
        let offsets = offsets.into_iter();
        let call = OffsetsCall::start(native, offsets, Isolation::Committed, timeout);
        Ok(Self {
            call: Some(call.map_err(call_error)?),
            answer: None,
        })
    }

    fn take(&mut self, worker: &WorkerThread) -> Result<Option<&ListedOffsets>, Error> {
        let call = self.call.take_if(|_| self.answer.is_none());
        if let Some(call) = call {
            match call.try_take() {
                Some(answer) => self.answer = Some(worker.record(answer)?),
                None => self.call = Some(call),
            }
        }
        Ok(self.answer.as_ref())
    }
}

/// `None`: no record has the asked time or a later one.
fn listed_offset(listed: &ListedOffsets, partition: &Partition) -> Result<Option<Offset>, Error> {
    let answer = listed.get(partition).cloned().unwrap_or_else(|| {
        let text = "the broker's answer lacks the partition";
        Err((Code::Fail, text.to_owned()))
    });
    answer.map_err(call_error)
}

/// For a first offset or an end, which each partition has.
fn known_offset(listed: &ListedOffsets, partition: &Partition) -> Result<Offset, Error> {
    let unknown = || Error::Unavailable(format!("the leader of {partition} told no offset"));
    listed_offset(listed, partition)?.ok_or_else(unknown)
}
