//! Requests for brokers, configurations and permissions.

use super::admin::{AdminCall, CallContext};
use super::{CallError, check, check_error, slice, take_error, text};
use crate::limit::{KAFKA_METADATA_REQUEST_TIMEOUT, KAFKA_REQUEST_TIMEOUT};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka_sys as sys;
use std::collections::BTreeMap;
use std::ffi::CString;
use sys::rd_kafka_AclOperation_t as Operation;
use sys::rd_kafka_ResourceType_t as Resource;
use sys::rd_kafka_admin_op_t as AdminOperation;
use tokio::time::Instant;

/// The owner of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigOwner {
    Topic,
    Broker,
}

/// Configuration values by name, without sensitive ones.
pub(crate) type ConfigValues = BTreeMap<String, String>;

/// The ids of the cluster's brokers.
pub(crate) fn brokers(context: &mut CallContext<'_>) -> Result<Vec<i32>, CallError> {
    let deadline = Instant::now() + KAFKA_REQUEST_TIMEOUT;
    loop {
        let answer = context
            .native
            .metadata(None, KAFKA_METADATA_REQUEST_TIMEOUT, |metadata| {
                let count = usize::try_from(metadata.broker_cnt).unwrap_or(0);
                // SAFETY: the metadata is alive and owns so many brokers.
                let brokers = unsafe { slice(metadata.brokers, count) };
                brokers.iter().map(|broker| broker.id).collect()
            });
        // No broker is connected or has answered. The call is repeated to serve the client
        // meanwhile.
        let is_late = answer.as_ref().is_err_and(|(code, _)| {
            matches!(code, Code::BrokerTransportFailure | Code::OperationTimedOut)
        });
        if !(is_late && (context.keep_waiting)() && Instant::now() < deadline) {
            return answer;
        }
    }
}

/// The configurations of topics by name, or of one broker by its id.
pub(crate) fn configs(
    context: &mut CallContext<'_>,
    owner: ConfigOwner,
    names: &[&str],
) -> Result<BTreeMap<String, Result<ConfigValues, CallError>>, CallError> {
    let kind = match owner {
        ConfigOwner::Topic => Resource::RD_KAFKA_RESOURCE_TOPIC,
        ConfigOwner::Broker => Resource::RD_KAFKA_RESOURCE_BROKER,
    };
    let names: Vec<CString> = names
        .iter()
        .filter_map(|name| CString::new(*name).ok())
        .collect();
    let call = AdminCall::new(
        context.native,
        AdminOperation::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: all handles and names are alive; librdkafka copies the resources, which this owns.
    unsafe {
        let mut resources: Vec<_> = names
            .iter()
            .map(|name| sys::rd_kafka_ConfigResource_new(kind, name.as_ptr()))
            .collect();
        sys::rd_kafka_DescribeConfigs(
            call.client,
            resources.as_mut_ptr(),
            resources.len(),
            call.options,
            call.queue.ptr(),
        );
        sys::rd_kafka_ConfigResource_destroy_array(resources.as_mut_ptr(), resources.len());
    }
    let event = call.wait(context)?;
    // SAFETY: the event is alive and answers the only call of its queue; it owns all that is read.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_DescribeConfigs_result(event.ptr());
        let resources = sys::rd_kafka_DescribeConfigs_result_resources(result, &mut count);
        let found = slice(resources, count).iter().map(|resource| {
            (
                text(sys::rd_kafka_ConfigResource_name(*resource)),
                config_values(*resource),
            )
        });
        Ok(found.collect())
    }
}

/// SAFETY: `resource` is alive.
unsafe fn config_values(
    resource: *const sys::rd_kafka_ConfigResource_t,
) -> Result<ConfigValues, CallError> {
    // SAFETY: as the function's own; the resource owns all that is read.
    unsafe {
        check(sys::rd_kafka_ConfigResource_error(resource)).map_err(|code| {
            let error = sys::rd_kafka_ConfigResource_error_string(resource);
            (code, text(error))
        })?;
        let mut count = 0;
        let entries = sys::rd_kafka_ConfigResource_configs(resource, &mut count);
        let entries = slice(entries, count).iter().filter_map(|entry| {
            let value = sys::rd_kafka_ConfigEntry_value(*entry);
            // A sensitive entry has no value.
            (!value.is_null()).then(|| (text(sys::rd_kafka_ConfigEntry_name(*entry)), text(value)))
        });
        Ok(entries.collect())
    }
}

/// Returns for each topic whether this client may read and write it. Omits topics whose permissions
/// the cluster does not report.
pub(crate) fn permissions(
    context: &mut CallContext<'_>,
    topics: &[&str],
) -> Result<BTreeMap<String, (bool, bool)>, CallError> {
    let call = AdminCall::new(
        context.native,
        AdminOperation::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: the options are alive; this owns the error.
    unsafe {
        let options = call.options;
        take_error(sys::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1))?;
    }
    // SAFETY: `describe_topics` passes topics that are alive.
    let found =
        call.describe_topics(context, topics, |topic| unsafe { topic_permissions(topic) })?;
    Ok(found.into_iter().flatten().collect())
}

/// SAFETY: `topic` is alive.
unsafe fn topic_permissions(
    topic: *const sys::rd_kafka_TopicDescription_t,
) -> Option<(String, (bool, bool))> {
    // SAFETY: as the function's own; the topic owns all that is read.
    unsafe {
        check_error(sys::rd_kafka_TopicDescription_error(topic)).ok()?;
        let mut count = 0;
        let operations = sys::rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
        if operations.is_null() || count == 0 {
            return None;
        }
        let operations = slice(operations, count);
        let is_allowed = |wanted: Operation| {
            operations.contains(&wanted)
                || operations.contains(&Operation::RD_KAFKA_ACL_OPERATION_ALL)
        };
        let read = is_allowed(Operation::RD_KAFKA_ACL_OPERATION_READ);
        let write = is_allowed(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
        let name = text(sys::rd_kafka_TopicDescription_name(topic));
        Some((name, (read, write)))
    }
}
