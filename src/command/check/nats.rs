//! What a NATS cluster says of the streams and subjects that routes name, and what that means for them.

use super::item::Item;
use super::kafka::{Duty, Role, of};
use crate::broker::nats::{NatsCatalog, StreamFacts};
use crate::broker::{Catalog as _, Error};
use crate::command::page::length;
use crate::config::Config;
use crate::health::Health;
use crate::limit::CHECK_MAX;
use crate::model::{is_template, overlap, split_topic};
use crate::role::nats_cluster;

/// Looks at all that the duties name.
pub(super) async fn look(config: &Config, cluster: &str, duties: &[Duty]) -> Vec<Item> {
    let area = format!("nats.{cluster}");
    let mut catalog = NatsCatalog::new(&nats_cluster(config, cluster), Health::new().part("check"));
    let looked = tokio::time::timeout(CHECK_MAX, look_at_all(&area, &catalog, duties)).await;
    catalog.close().await;
    let silent = || Err(Error::Unavailable(format!("no answer within {} s", CHECK_MAX.as_secs())));
    looked.unwrap_or_else(|_| silent()).unwrap_or_else(|error| {
        let is_tls = ["certificate", "Certificate", "TLS", "fatal alert"].iter().any(|word| error.to_string().contains(word));
        let fix = match error {
            _ if is_tls => format!("check {area}.ca, {area}.certificate and its key, and whether the server speaks TLS"),
            Error::Unavailable(_) => format!("check {area}.url, the network between, and that the server has JetStream (-js)"),
            _ => format!("check how {area} logs in and whom it trusts, and what this client may do"),
        };
        vec![Item::fail(&area, "reachable", error.to_string(), fix)]
    })
}

async fn look_at_all(area: &str, catalog: &NatsCatalog, duties: &[Duty]) -> Result<Vec<Item>, Error> {
    let mut items = Vec::new();
    for duty in duties {
        match (duty.role, split_topic(&duty.topic)) {
            (Role::Source, Some((stream, filter))) => {
                let found = catalog.stream(stream).await?;
                items.extend(judge_source(area, duty, filter, found.as_ref()));
                let readers =
                    duties.iter().filter(|duty| duty.role == Role::Source && is_of(stream, duty)).map(|duty| duty.routes.len()).sum();
                items.extend(found.and_then(|facts| judge_consumers(area, duty, readers, facts.max_consumers?)));
            }
            _ if is_template(&duty.topic) => {
                items.push(Item::ok(area, &duty.topic, format!("{}: made of the subject a message came by, not looked at", of(duty))));
            }
            _ => items.push(judge_target(area, duty, catalog.behind(&duty.topic).await?.as_ref())),
        }
    }
    items.insert(0, Item::ok(area, "reachable", "JetStream answers; the login is accepted".to_owned()));
    Ok(items)
}

fn judge_target(area: &str, duty: &Duty, found: Option<&StreamFacts>) -> Item {
    match found {
        Some(facts) => Item::ok(area, &duty.topic, format!("{}: kept by the stream {}", of(duty), facts.name)),
        None => Item::fail(
            area,
            &duty.topic,
            format!("{}: no stream takes what is sent there", of(duty)),
            format!("make one: nats stream add --subjects {}", duty.topic),
        ),
    }
}

fn judge_source(area: &str, duty: &Duty, filter: &str, found: Option<&StreamFacts>) -> Vec<Item> {
    let Some(facts) = found else {
        let fix = format!("make it: nats stream add --subjects {filter} --retention limits");
        return vec![Item::fail(area, &duty.topic, format!("{}: there is no such stream", of(duty)), fix)];
    };
    if let Some(fault) = facts.fault() {
        return vec![Item::fail(area, &duty.topic, fault, "make a stream with limits retention for it".to_owned())];
    }
    if !facts.subjects.iter().any(|subject| overlap(subject, filter)) {
        let what = format!("{}: the stream takes nothing that {filter} lets through", of(duty));
        let fix = format!("the stream has the subjects {}: name some of them, or add to them", facts.subjects.join(", "));
        return vec![Item::fail(area, &duty.topic, what, fix)];
    }
    let mut items = vec![Item::ok(area, &duty.topic, format!("{}: limits retention", of(duty)))];
    items.extend(judge_limits(area, duty, facts));
    items
}

fn is_of(stream: &str, duty: &Duty) -> bool {
    split_topic(&duty.topic).is_some_and(|(of, _)| of == stream)
}

/// Whether a stream has the consumers that its readers need: one each, and the last one of whoever read before for a while.
fn judge_consumers(area: &str, duty: &Duty, readers: usize, max: usize) -> Option<Item> {
    let needed = 2 * readers;
    let what = format!("the stream has at most {max} consumers; {readers} read it, and {needed} while they change hands");
    let fix = format!("raise max_consumers to {needed} at least");
    if max < readers {
        return Some(Item::fail(area, &duty.topic, what, fix));
    }
    (max < needed).then(|| Item::warn(area, &duty.topic, what, fix))
}

/// What removes messages that may have to be read again.
fn judge_limits(area: &str, duty: &Duty, facts: &StreamFacts) -> Option<Item> {
    if let Some(max_age) = facts.max_age.filter(|max_age| *max_age < duty.max_delay) {
        let what = format!(
            "messages are kept for {}, and may wait for {}: if the store were lost, those that wait longer could not be read again",
            length(max_age),
            length(duty.max_delay)
        );
        return Some(Item::warn(area, &duty.topic, what, "raise max_age above the route's max_delay, or lower that".to_owned()));
    }
    facts.is_bounded.then(|| {
        let what = "the stream also drops messages by their number or size, whether or not they were read".to_owned();
        Item::warn(area, &duty.topic, what, "leave it to max_age, or make sure that the bound holds more than what can wait".to_owned())
    })
}
