//! Checks the streams and subjects on a NATS cluster that routes name.

use super::item::Item;
use super::kafka::{Duty, Role, of};
use crate::broker::nats::{NatsCatalog, StreamInfo};
use crate::broker::{Catalog as _, Error};
use crate::command::page::length;
use crate::config::Config;
use crate::health::Health;
use crate::limit::CHECK_TIMEOUT;
use crate::model::{Dialect, filters_overlap, is_template, split_source_topic};
use crate::role::nats_cluster;

/// Checks all duties of a cluster.
pub(super) async fn look(config: &Config, cluster: &str, duties: &[Duty]) -> Vec<Item> {
    let area = format!("nats.{cluster}");
    let mut catalog = NatsCatalog::new(
        &nats_cluster(config, cluster),
        Health::new().register("check"),
    );
    let looked =
        tokio::time::timeout(CHECK_TIMEOUT, look_at_all(&area, config, &catalog, duties)).await;
    catalog.close().await;
    let silent = || {
        Err(Error::Unavailable(format!(
            "no answer within {} s",
            CHECK_TIMEOUT.as_secs()
        )))
    };
    looked.unwrap_or_else(|_| silent()).unwrap_or_else(|error| {
        let is_tls = ["certificate", "Certificate", "TLS", "fatal alert"]
            .iter()
            .any(|word| error.to_string().contains(word));
        let fix = match error {
            _ if is_tls => format!(
                "check {area}.ca, {area}.certificate and its key, and whether the server speaks TLS"
            ),
            Error::Unavailable(_) => format!(
                "check {area}.url, the network between, and that the server has JetStream (-js)"
            ),
            _ => {
                format!("check how {area} logs in and whom it trusts, and what this client may do")
            }
        };
        vec![Item::fail(&area, "reachable", error.to_string(), fix)]
    })
}

async fn look_at_all(
    area: &str,
    config: &Config,
    catalog: &NatsCatalog,
    duties: &[Duty],
) -> Result<Vec<Item>, Error> {
    let mut items = Vec::new();
    let reads_schedules = |route: &String| config.routes[route].dialects.has(Dialect::Nats);
    for duty in duties {
        match (duty.role, split_source_topic(&duty.topic)) {
            (Role::Source, Some((stream, filter))) => {
                let found = catalog.stream(stream).await?;
                items.extend(judge_source(area, duty, filter, found.as_ref()));
                items.extend(found.as_ref().and_then(|facts| {
                    judge_schedules(area, duty, duty.routes.iter().any(reads_schedules), facts)
                }));
                let readers = duties
                    .iter()
                    .filter(|duty| duty.role == Role::Source && is_of(stream, duty))
                    .map(|duty| duty.routes.len())
                    .sum();
                items.extend(found.and_then(|facts| {
                    judge_consumers(
                        area,
                        duty,
                        readers,
                        usize::try_from(facts.config.max_consumers).ok()?,
                    )
                }));
            }
            _ if is_template(&duty.topic) => {
                items.push(Item::ok(
                    area,
                    &duty.topic,
                    format!(
                        "{}: made of the subject a message came by, not looked at",
                        of(duty)
                    ),
                ));
            }
            _ => items.push(judge_target(
                area,
                duty,
                catalog.streams_for_subject(&duty.topic).await?.first(),
            )),
        }
    }
    if duties.iter().any(|duty| duty.role == Role::Source) {
        items.push(judge_bucket(
            area,
            catalog.bucket.name.clone(),
            catalog.bucket.check_access().await,
        ));
    }
    items.insert(
        0,
        Item::ok(
            area,
            "reachable",
            "JetStream answers; the login is accepted".to_owned(),
        ),
    );
    Ok(items)
}

/// Judges the access to the bucket with committed positions and partition owners. `Ok(false)` means
/// that the bucket does not exist yet.
fn judge_bucket(area: &str, bucket: String, rights: Result<bool, Error>) -> Item {
    match rights {
        Ok(true) => Item::ok(
            area,
            bucket,
            "the bucket of what is committed can be read and written".to_owned(),
        ),
        Ok(false) => Item::ok(
            area,
            bucket,
            "the bucket of what is committed is made with the first start".to_owned(),
        ),
        Err(error) => Item::fail(
            area,
            &bucket,
            format!("what is committed cannot be kept there: {error}"),
            format!(
                "let this client ask the streams' API about KV_{bucket}, and publish to $KV.{bucket}.>"
            ),
        ),
    }
}

/// Judges a stream with `allow_msg_schedules`. Its schedules are delivered twice if the route reads
/// them, too. Otherwise the route sees messages without a delay.
fn judge_schedules(area: &str, duty: &Duty, is_read: bool, facts: &StreamInfo) -> Option<Item> {
    let fault = facts.schedule_conflict()?;
    if is_read {
        return Some(Item::fail(
            area,
            &duty.topic,
            fault,
            "one of the two is to deliver them".to_owned(),
        ));
    }
    let what = format!(
        "the stream {} delivers messages with Nats-Schedule by itself, and here they are messages without a delay",
        facts.config.name
    );
    Some(Item::warn(
        area,
        &duty.topic,
        what,
        "send them to another stream, or to a subject that no route reads".to_owned(),
    ))
}

fn judge_target(area: &str, duty: &Duty, found: Option<&StreamInfo>) -> Item {
    match found {
        Some(facts) if facts.config.no_ack => Item::fail(
            area,
            &duty.topic,
            format!(
                "{}: the stream {} confirms nothing (no_ack), so what it took would be sent again and again",
                of(duty),
                facts.config.name
            ),
            "take no_ack from the stream".to_owned(),
        ),
        Some(facts) if facts.config.sealed => Item::fail(
            area,
            &duty.topic,
            format!(
                "{}: the stream {} is sealed and takes nothing",
                of(duty),
                facts.config.name
            ),
            "name another subject, or make another stream".to_owned(),
        ),
        Some(facts) => Item::ok(
            area,
            &duty.topic,
            format!("{}: kept by the stream {}", of(duty), facts.config.name),
        ),
        None => Item::fail(
            area,
            &duty.topic,
            format!("{}: no stream takes what is sent there", of(duty)),
            format!("make one: nats stream add --subjects {}", duty.topic),
        ),
    }
}

fn judge_source(area: &str, duty: &Duty, filter: &str, found: Option<&StreamInfo>) -> Vec<Item> {
    let Some(facts) = found else {
        let fix = format!("make it: nats stream add --subjects {filter} --retention limits");
        return vec![Item::fail(
            area,
            &duty.topic,
            format!("{}: there is no such stream", of(duty)),
            fix,
        )];
    };
    if let Some(fault) = facts.unusable_reason() {
        return vec![Item::fail(
            area,
            &duty.topic,
            fault,
            "make a stream with limits retention for it".to_owned(),
        )];
    }
    if !facts
        .config
        .subjects
        .iter()
        .any(|subject| filters_overlap(subject, filter))
    {
        let what = format!(
            "{}: the stream takes nothing that {filter} lets through",
            of(duty)
        );
        let fix = format!(
            "the stream has the subjects {}: name some of them, or add to them",
            facts.config.subjects.join(", ")
        );
        return vec![Item::fail(area, &duty.topic, what, fix)];
    }
    if facts.config.no_ack {
        let what = format!(
            "{}: the stream confirms nothing (no_ack), so no message can be put back into it to be tried again",
            of(duty)
        );
        return vec![Item::fail(
            area,
            &duty.topic,
            what,
            "take no_ack from the stream".to_owned(),
        )];
    }
    let mut items = vec![Item::ok(
        area,
        &duty.topic,
        format!("{}: limits retention", of(duty)),
    )];
    items.extend(judge_limits(area, duty, facts));
    if facts.is_in_memory() {
        let what = "the stream is kept in memory: if its server and the store were lost, what waits could not be read again".to_owned();
        items.push(Item::warn(
            area,
            &duty.topic,
            what,
            "keep it in files, or on several servers".to_owned(),
        ));
    }
    items
}

fn is_of(stream: &str, duty: &Duty) -> bool {
    split_source_topic(&duty.topic).is_some_and(|(of, _)| of == stream)
}

/// Judges the consumer limit of a stream. Each reader needs one consumer. During a handover the
/// previous owner's consumer still exists for a while.
fn judge_consumers(area: &str, duty: &Duty, readers: usize, max: usize) -> Option<Item> {
    let needed = 2 * readers;
    let what = format!(
        "the stream has at most {max} consumers; {readers} read it, and {needed} while they change hands"
    );
    let fix = format!("raise max_consumers to {needed} at least");
    if max < readers {
        return Some(Item::fail(area, &duty.topic, what, fix));
    }
    (max < needed).then(|| Item::warn(area, &duty.topic, what, fix))
}

/// Warns of limits that remove messages which may have to be read again.
fn judge_limits(area: &str, duty: &Duty, facts: &StreamInfo) -> Option<Item> {
    let max_age = facts.config.max_age;
    if !max_age.is_zero() && max_age < duty.max_delay {
        let what = format!(
            "messages are kept for {}, and may wait for {}: if the store were lost, those that wait longer could not be read again",
            length(max_age),
            length(duty.max_delay)
        );
        return Some(Item::warn(
            area,
            &duty.topic,
            what,
            "raise max_age above the route's max_delay, or lower that".to_owned(),
        ));
    }
    facts.has_size_limit().then(|| {
        let what =
            "the stream also drops messages by their number or size, whether or not they were read"
                .to_owned();
        Item::warn(
            area,
            &duty.topic,
            what,
            "leave it to max_age, or make sure that the bound holds more than what can wait"
                .to_owned(),
        )
    })
}
