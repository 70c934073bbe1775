//! The rights of the service on a NATS cluster.

use super::Cluster;
use super::admin::stream_name;
use super::kv::bucket_name;
use crate::broker::cluster::RouteUse;
use crate::model::{covering_filter, split_source_topic};
use std::collections::BTreeSet;

/// The permissions of a user, in the form of the server's configuration file.
pub(super) fn lines(cluster: &Cluster, routes: &[RouteUse<'_>]) -> Vec<String> {
    // With a domain, the client publishes the keys of a bucket below the API, too.
    let (api, keys) = match &cluster.domain {
        Some(domain) => (format!("$JS.{domain}.API"), format!("$JS.{domain}.API.$KV")),
        None => ("$JS.API".to_owned(), "$KV".to_owned()),
    };
    let bucket = bucket_name(&cluster.deployment);
    let mut publish = BTreeSet::new();
    for route in routes {
        let sources = route.sources.iter();
        for (stream, filter) in sources.filter_map(|topic| split_source_topic(topic)) {
            let calls = [
                format!("{api}.STREAM.MSG.GET.{stream}"),
                format!("{api}.CONSUMER.CREATE.{stream}"),
                format!("{api}.CONSUMER.CREATE.{stream}.>"),
                format!("{api}.CONSUMER.MSG.NEXT.{stream}.>"),
            ];
            publish.extend(calls);
            publish.insert(filter.to_owned());
        }
        if let Some(dead_letter) = route.dead_letter {
            let stream = stream_name(dead_letter);
            publish.insert(format!("{api}.STREAM.MSG.GET.{stream}"));
        }
        if !route.sources.is_empty() || route.dead_letter.is_some() {
            let calls = ["STREAM.CREATE", "STREAM.MSG.GET", "DIRECT.GET"];
            publish.extend(calls.map(|call| format!("{api}.{call}.KV_{bucket}")));
            publish.insert(format!("{api}.DIRECT.GET.KV_{bucket}.>"));
            publish.insert(format!("{api}.INFO"));
            publish.insert(format!("{keys}.{bucket}.>"));
        }
        let targets = route.targets.iter();
        publish.extend(targets.map(|target| covering_filter(target)));
    }
    if publish.is_empty() {
        return Vec::new();
    }
    // They find the stream of a target.
    publish.insert(format!("{api}.STREAM.NAMES"));
    publish.insert(format!("{api}.STREAM.INFO.*"));
    let publish: Vec<String> = publish.iter().map(|it| format!("\"{it}\"")).collect();
    vec![format!(
        "permissions: {{ publish: [{}], subscribe: [\"_INBOX.>\"] }}",
        publish.join(", ")
    )]
}
