//! Offsets of any group, so that one client serves many groups.
//!
//! Each call names its broker. Without one, librdkafka 2.12 looks for the coordinator by itself. Such a
//! call may wait forever, and after its timeout it aborts the process when the coordinator comes back.

use super::admin::{AdminCall, partition_list};
use super::client::NativeClient;
use super::queue::Event;
use super::{CallError, bytes, check_call, check_error, list_elements, millis, slice};
use super::{take_error, text};
use crate::model::Partition;
use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka_sys as sys;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::time::Duration;
use sys::rd_kafka_admin_op_t as AdminOperation;

/// The metadata of the last commit of each partition; `None`: no commit. For a commit, only the errors
/// count.
pub(crate) type GroupAnswer = BTreeMap<Partition, Result<Option<String>, CallError>>;

/// A request about the offsets of one group, which has no members. Must not outlive its client.
pub(crate) struct GroupCall {
    call: AdminCall,
    is_commit: bool,
}

impl GroupCall {
    /// Asks `broker` for the commits of a group. A partition with an open transaction has the error
    /// `UnstableOffsetCommit`. The answer unparks this thread.
    pub(crate) fn list(
        native: &NativeClient,
        broker: i32,
        group: &str,
        partitions: &[Partition],
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let operation = AdminOperation::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
        let this = Self::new(native, operation, broker, timeout)?;
        let (group, list) = (c_string(group)?, partition_list(partitions));
        let call = &this.call;
        // SAFETY: all handles are alive; librdkafka copies group and list; this owns the request and
        // the error.
        unsafe {
            let stable = sys::rd_kafka_AdminOptions_set_require_stable_offsets(call.options, 1);
            take_error(stable)?;
            let mut request =
                sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), list.ptr());
            let (options, queue) = (call.options, call.queue.ptr());
            sys::rd_kafka_ListConsumerGroupOffsets(call.client, &mut request, 1, options, queue);
            sys::rd_kafka_ListConsumerGroupOffsets_destroy(request);
        }
        Ok(this)
    }

    /// Asks `broker` to commit offsets for a group. The answer unparks this thread.
    pub(crate) fn commit(
        native: &NativeClient,
        broker: i32,
        group: &str,
        offsets: &TopicPartitionList,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let operation = AdminOperation::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS;
        let this = Self::new(native, operation, broker, timeout)?;
        let group = c_string(group)?;
        let call = &this.call;
        // SAFETY: all handles are alive; librdkafka copies group and list; this owns the request.
        unsafe {
            let (group, offsets) = (group.as_ptr(), offsets.ptr());
            let mut request = sys::rd_kafka_AlterConsumerGroupOffsets_new(group, offsets);
            let (options, queue) = (call.options, call.queue.ptr());
            sys::rd_kafka_AlterConsumerGroupOffsets(call.client, &mut request, 1, options, queue);
            sys::rd_kafka_AlterConsumerGroupOffsets_destroy(request);
        }
        Ok(this)
    }

    fn new(
        native: &NativeClient,
        operation: AdminOperation,
        broker: i32,
        timeout: Duration,
    ) -> Result<Self, CallError> {
        let call = AdminCall::new(native, operation, timeout);
        call.set_broker(broker)?;
        let is_commit = matches!(
            operation,
            AdminOperation::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS
        );
        Ok(Self { call, is_commit })
    }

    /// The answer, once it has arrived.
    pub(crate) fn try_take(&self) -> Option<Result<GroupAnswer, CallError>> {
        let answer = self.call.try_take(Duration::ZERO)?;
        Some(answer.and_then(|event| self.answer(&event)))
    }

    fn answer(&self, event: &Event) -> Result<GroupAnswer, CallError> {
        let mut answer = GroupAnswer::new();
        // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
        unsafe {
            let mut count = 0;
            let groups = if self.is_commit {
                let result = sys::rd_kafka_event_AlterConsumerGroupOffsets_result(event.ptr());
                sys::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &mut count)
            } else {
                let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(event.ptr());
                sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &mut count)
            };
            for group in slice(groups, count) {
                check_error(sys::rd_kafka_group_result_error(*group))?;
                for element in list_elements(sys::rd_kafka_group_result_partitions(*group)) {
                    let partition = Partition::new(text(element.topic), element.partition);
                    let found = check_call(element.err).map(|()| {
                        let metadata = bytes(element.metadata, element.metadata_size);
                        let metadata = String::from_utf8_lossy(metadata.unwrap_or_default());
                        (element.offset >= 0).then(|| metadata.into_owned())
                    });
                    answer.insert(partition, found);
                }
            }
        }
        Ok(answer)
    }
}

/// The ids of all brokers. Blocks until a broker answers or the timeout is over. The request names a
/// topic, because without one it might ask for all topics of the cluster.
pub(crate) fn broker_ids(
    native: &NativeClient,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<i32>, CallError> {
    let topic = c_string(topic)?;
    let mut metadata: *const sys::rd_kafka_metadata = std::ptr::null();
    // SAFETY: the client is alive; this owns the reference to the topic, and the metadata of a
    // successful call.
    unsafe {
        let topic = sys::rd_kafka_topic_new(native.ptr(), topic.as_ptr(), std::ptr::null_mut());
        if topic.is_null() {
            return Err((Code::InvalidTopic, Code::InvalidTopic.to_string()));
        }
        let code = sys::rd_kafka_metadata(native.ptr(), 0, topic, &mut metadata, millis(timeout));
        sys::rd_kafka_topic_destroy(topic);
        check_call(code)?;
        let count = usize::try_from((*metadata).broker_cnt).unwrap_or(0);
        let brokers = slice((*metadata).brokers, count).iter();
        let ids = brokers.map(|broker| broker.id).collect();
        sys::rd_kafka_metadata_destroy(metadata);
        Ok(ids)
    }
}

fn c_string(text: &str) -> Result<CString, CallError> {
    CString::new(text).map_err(|error| (Code::InvalidArgument, error.to_string()))
}
