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
            step: Step::Topics(topics),
            native: worker.client()?,
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
pub(crate) struct OffsetsAt {
    times: Vec<(Partition, Timestamp)>,
    at_time: OffsetsRequest,
    end: OffsetsRequest,
    /// Dropped after the calls, which it must outlive.
    _native: Arc<NativeClient>,
}

impl OffsetsAt {
    pub(crate) fn start(
        worker: &mut WorkerThread,
        times: Vec<(Partition, Timestamp)>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let native = worker.client()?;
        let at_time = times.iter().map(|(partition, time)| {
            // The client passes an offset on as a time, and a negative time would have another meaning.
            let millis = time.as_millis().max(0);
            (partition, rdkafka::Offset::Offset(millis))
        });
        let at_end = times.iter().map(|(it, _)| (it, rdkafka::Offset::End));
        let (at_time, end) = (at_time.collect(), at_end.collect());
        Ok(Self {
            at_time: OffsetsRequest::start(&native, at_time, timeout)?,
            end: OffsetsRequest::start(&native, end, timeout)?,
            times,
            _native: native,
        })
    }
}

impl PolledRequest for OffsetsAt {
    type Answer = Vec<Result<Offset, Error>>;

    fn poll(&mut self, worker: &mut WorkerThread) -> Result<Option<Self::Answer>, Error> {
        let (at_time, end) = (self.at_time.take(worker)?, self.end.take(worker)?);
        let (Some(at_time), Some(end)) = (at_time, end) else {
            return Ok(None);
        };
        let or_end = self.times.iter().map(|(partition, _)| {
            let end = known_offset(end, partition)?;
            let found = listed_offset(at_time, partition)?;
            Ok(u64::try_from(found).map_or(end, Offset))
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

fn listed_offset(listed: &ListedOffsets, partition: &Partition) -> Result<i64, Error> {
    let answer = listed.get(partition).cloned().unwrap_or_else(|| {
        let text = "the broker's answer lacks the partition";
        Err((Code::Fail, text.to_owned()))
    });
    answer.map_err(call_error)
}

fn known_offset(listed: &ListedOffsets, partition: &Partition) -> Result<Offset, Error> {
    let offset = listed_offset(listed, partition)?;
    let known = u64::try_from(offset).map(Offset);
    known.map_err(|_| Error::Unavailable(format!("no answer from the leader of {partition}")))
}
