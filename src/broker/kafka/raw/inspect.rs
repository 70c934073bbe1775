//! Asking what a cluster is set to: its brokers, the settings of topics and brokers, and what this client may do with topics.

use super::ask::{AdminCall, CallContext, CallError, failure};
use super::{slice, text};
use crate::limit::{KAFKA_METADATA_REQUEST_TIMEOUT, KAFKA_REQUEST_TIMEOUT};
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::collections::BTreeMap;
use std::ffi::CString;
use sys::rd_kafka_AclOperation_t as Operation;
use sys::rd_kafka_ResourceType_t as Resource;
use sys::rd_kafka_admin_op_t as Call;
use tokio::time::Instant;

/// Whose settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ConfigOwner {
    Topic,
    Broker,
}

/// Settings by name; what is sensitive has no value and is left out.
pub(in super::super) type ConfigValues = BTreeMap<String, String>;

/// The ids of the cluster's brokers. Asked by turns, so that others are served meanwhile.
pub(in super::super) fn brokers(asking: &mut CallContext<'_>) -> Result<Vec<i32>, CallError> {
    let until = Instant::now() + KAFKA_REQUEST_TIMEOUT;
    loop {
        // SAFETY: the metadata says how many it has, and is alive.
        let answer =
            asking
                .native
                .metadata(None, KAFKA_METADATA_REQUEST_TIMEOUT, |metadata| unsafe {
                    let brokers = usize::try_from(metadata.broker_cnt).unwrap_or(0);
                    slice(metadata.brokers, brokers)
                        .iter()
                        .map(|broker| broker.id)
                        .collect()
                });
        // No broker is connected, or none has answered; who serves the client meanwhile will know why.
        let is_late = answer.as_ref().is_err_and(|(code, _)| {
            matches!(code, Code::BrokerTransportFailure | Code::OperationTimedOut)
        });
        if !(is_late && (asking.meanwhile)() && Instant::now() < until) {
            return answer;
        }
    }
}

/// The settings of each, by its name (of a broker: its id). No more than one broker may be asked about at once.
pub(in super::super) fn configs(
    asking: &mut CallContext<'_>,
    whose: ConfigOwner,
    names: &[&str],
) -> Result<BTreeMap<String, Result<ConfigValues, CallError>>, CallError> {
    let kind = match whose {
        ConfigOwner::Topic => Resource::RD_KAFKA_RESOURCE_TOPIC,
        ConfigOwner::Broker => Resource::RD_KAFKA_RESOURCE_BROKER,
    };
    let names: Vec<CString> = names
        .iter()
        .filter_map(|name| CString::new(*name).ok())
        .collect();
    let ask = AdminCall::new(
        asking.native,
        Call::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: all handles and names are alive; the call copies the resources, which are ours to destroy.
    unsafe {
        let mut resources: Vec<_> = names
            .iter()
            .map(|name| sys::rd_kafka_ConfigResource_new(kind, name.as_ptr()))
            .collect();
        sys::rd_kafka_DescribeConfigs(
            ask.client,
            resources.as_mut_ptr(),
            resources.len(),
            ask.options,
            ask.queue(),
        );
        sys::rd_kafka_ConfigResource_destroy_array(resources.as_mut_ptr(), resources.len());
    }
    let event = ask.answer(asking)?;
    // SAFETY: the event is alive and, since it is this queue's only question, of the kind that was asked for; all that is read belongs to it.
    unsafe {
        let mut count = 0;
        let result = sys::rd_kafka_event_DescribeConfigs_result(event.0.as_ptr());
        let resources = sys::rd_kafka_DescribeConfigs_result_resources(result, &mut count);
        let found = slice(resources, count).iter().map(|resource| {
            (
                text(sys::rd_kafka_ConfigResource_name(*resource)),
                values(*resource),
            )
        });
        Ok(found.collect())
    }
}

/// SAFETY: `resource` is alive.
unsafe fn values(
    resource: *const sys::rd_kafka_ConfigResource_t,
) -> Result<ConfigValues, CallError> {
    // SAFETY: as the function's own; all that is read belongs to the resource.
    unsafe {
        let code = sys::rd_kafka_ConfigResource_error(resource);
        if code != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err((
                code.into(),
                text(sys::rd_kafka_ConfigResource_error_string(resource)),
            ));
        }
        let mut count = 0;
        let entries = sys::rd_kafka_ConfigResource_configs(resource, &mut count);
        let entries = slice(entries, count).iter().filter_map(|entry| {
            let value = sys::rd_kafka_ConfigEntry_value(*entry);
            (!value.is_null()).then(|| (text(sys::rd_kafka_ConfigEntry_name(*entry)), text(value)))
        });
        Ok(entries.collect())
    }
}

/// What this client may do with a topic: read it, write to it. Topics of which the cluster does not say are left out.
pub(in super::super) fn permissions(
    asking: &mut CallContext<'_>,
    topics: &[&str],
) -> Result<BTreeMap<String, (bool, bool)>, CallError> {
    let ask = AdminCall::new(
        asking.native,
        Call::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        KAFKA_REQUEST_TIMEOUT,
    );
    // SAFETY: the options are alive; the error is null or ours.
    unsafe {
        let error = sys::rd_kafka_AdminOptions_set_include_authorized_operations(ask.options, 1);
        if !error.is_null() {
            let failed = failure(error);
            sys::rd_kafka_error_destroy(error);
            failed?;
        }
    }
    // SAFETY: what is handed in is alive.
    let found = ask.about_topics(asking, topics, |topic| unsafe { of_topic(topic) })?;
    Ok(found.into_iter().flatten().collect())
}

/// SAFETY: `topic` is alive.
unsafe fn of_topic(
    topic: *const sys::rd_kafka_TopicDescription_t,
) -> Option<(String, (bool, bool))> {
    // SAFETY: as the function's own; all that is read belongs to the topic.
    unsafe {
        failure(sys::rd_kafka_TopicDescription_error(topic)).ok()?;
        let mut count = 0;
        let operations = sys::rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
        if operations.is_null() || count == 0 {
            return None;
        }
        let may = |wanted: Operation| {
            let operations = slice(operations, count);
            operations.iter().any(|operation| {
                *operation == wanted || *operation == Operation::RD_KAFKA_ACL_OPERATION_ALL
            })
        };
        let rights = (
            may(Operation::RD_KAFKA_ACL_OPERATION_READ),
            may(Operation::RD_KAFKA_ACL_OPERATION_WRITE),
        );
        Some((text(sys::rd_kafka_TopicDescription_name(topic)), rights))
    }
}
