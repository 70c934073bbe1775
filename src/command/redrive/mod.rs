//! `postdate redrive`, and the dead letters of the HTTP API: lists dead letters by code, and sends them through their source
//! once more.

mod report;
mod scan;
mod sender;
mod service_calls;
#[cfg(test)]
mod tests;

use super::page::{confirm, print_document};
use super::{Access, Outcome, Refused, run};
use crate::admin::changes::ChangeError;
use crate::admin::dead_letters::{
    DeadLetterFilter, DeadLettersParams, DeadLettersReport, DeadLettersRequest, RedriveOptions,
    RedriveReport,
};
use crate::broker::cluster::{TargetOptions, TargetPurpose};
use crate::broker::send_budget::SendBudget;
use crate::cli::{OutputArgs, RedriveArgs};
use crate::clock::{Clock as _, WallClock};
use crate::config::{Config, Error as ConfigError, Route};
use crate::health::Health;
use crate::limit::{
    DEAD_LETTERS_SCANNED_MAX, REDRIVE_BATCH_MAX, REDRIVE_CALL_TIMEOUT, REDRIVE_IN_FLIGHT_BYTES_MAX,
};
use crate::metric::redriven_counter;
use crate::role::{redrive_group, routing_rules};
use anyhow::Result;
use scan::{Bounds, Scan, ScannedRoute};
use sender::{Client, Sender};
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use tokio::time::Instant;

/// Answers a call of the API within its bounds.
pub(crate) async fn answer_dead_letters(
    config: &Config,
    request: DeadLettersRequest,
) -> Result<DeadLettersReport, ChangeError> {
    let bounds = Bounds {
        records: DEAD_LETTERS_SCANNED_MAX,
        until: Some(Instant::now() + REDRIVE_CALL_TIMEOUT),
    };
    let mut report = DeadLettersReport::default();
    let answered = scan(config, &request, bounds, &mut report, &mut |_| {}).await;
    let sent = sent(&report);
    // Only a configured route has sent something.
    if sent > 0 {
        redriven_counter(&request.route).increment(sent);
    }
    match answered {
        Ok(()) => Ok(report),
        Err(error) if error.is::<Refused>() || error.is::<ConfigError>() => {
            Err(ChangeError::Refused(format!("{error:#}")))
        }
        Err(error) => Err(ChangeError::Failed(format!(
            "{error:#} (sent before: {sent})"
        ))),
    }
}

fn sent(report: &DeadLettersReport) -> u64 {
    let redrive = report.redrive.as_ref().filter(|redrive| !redrive.dry_run);
    redrive.map_or(0, |redrive| redrive.redriven)
}

async fn scan(
    config: &Config,
    request: &DeadLettersRequest,
    bounds: Bounds,
    report: &mut DeadLettersReport,
    on_progress: &mut dyn FnMut(&DeadLettersReport),
) -> Result<()> {
    let name = config.route_named_or_only(Some(&request.route))?;
    let route = &config.routes[name];
    let dead_letter = &route.dead_letter;
    let group = redrive_group(config, name);
    let health = Health::new();
    let cluster = config.cluster(&dead_letter.cluster);
    let mut records = cluster.stored_records(&group, health.register("dead letters"))?;
    let mut positions = cluster.admin(Some(&group), health.register("positions"))?;
    let sends = request.redrive.is_some_and(|redrive| !redrive.dry_run);
    let mut sender = match sends {
        true => Some(open_sender(config, route, &group, &health)?),
        false => None,
    };
    *report = DeadLettersReport {
        deployment: config.deployment.clone(),
        route: name.to_owned(),
        at_ms: WallClock.now().as_millis(),
        redrive: request.redrive.map(|redrive| RedriveReport {
            dry_run: redrive.dry_run,
            redriven: 0,
        }),
        ..DeadLettersReport::default()
    };
    let rules = routing_rules(config, name);
    let scan = Scan {
        route: ScannedRoute {
            deployment: &config.deployment,
            name,
            rules: &rules,
            source_topics: &route.source.topics,
            group: &group,
        },
        request,
        bounds,
        clock: &WallClock,
        records: &mut *records,
        positions: &mut *positions,
        sender: sender.as_mut(),
        report,
        on_progress,
    };
    let scanned = scan_topic(scan, &dead_letter.name).await;
    if let Some(sender) = sender {
        sender.close().await;
    }
    positions.close().await;
    scanned
}

async fn scan_topic(scan: Scan<'_>, destination: &str) -> Result<()> {
    let topic = scan.records.topic_of(destination).await?;
    let missing = || anyhow::anyhow!("no stream takes the dead letters of {destination}");
    let topic = topic.ok_or_else(missing)?;
    scan.report.topic.clone_from(&topic);
    scan.run(&topic).await
}

/// Transactions need one cluster for the source and the dead letters.
fn open_sender(config: &Config, route: &Route, group: &str, health: &Health) -> Result<Sender> {
    let (source, dead_letter) = (&route.source, &route.dead_letter);
    let has_transactions = source.kind.facts().without_transactions.is_none()
        && config.is_same_cluster(&source.cluster, &dead_letter.cluster);
    let cluster = config.cluster(&source.cluster);
    let budget = SendBudget::new(REDRIVE_BATCH_MAX, REDRIVE_IN_FLIGHT_BYTES_MAX);
    let (budget, part) = (Arc::new(budget), health.register("source"));
    let client = if has_transactions {
        Client::Transactions {
            producers: cluster.transactional_producers(budget, group, part)?,
            number: 0,
        }
    } else {
        let options = TargetOptions {
            purpose: TargetPurpose::Command,
            budget,
            sender: format!("redrive/{:016x}", rand::random::<u64>()),
        };
        Client::Target(cluster.target(options, part)?)
    };
    Ok(Sender::new(client, group, &source.topics))
}

/// Counts dead letters, and redrives them with `--yes` or after a confirmation.
pub fn redrive(access: &Access, args: &RedriveArgs) -> Result<Outcome> {
    let filter = filter(args)?;
    let output = args.output;
    let request = |dry_run| DeadLettersRequest {
        route: args.route.clone(),
        filter: filter.clone(),
        after: None,
        redrive: Some(RedriveOptions {
            dry_run,
            limit: args.limit,
            rate: args.rate,
        }),
    };
    run(async {
        if args.yes {
            return send(access, &request(false), output).await;
        }
        let mut found = DeadLettersReport::default();
        answer(access, &request(true), &mut found, &mut |_| {}).await?;
        print_document(&found, output, report::text)?;
        let count = found.redrive.as_ref().map_or(0, |it| it.redriven);
        let question = format!("Send {count} messages again{}?", access.place());
        match count > 0 && !args.dry_run && !output.is_json() && confirm(&question)? {
            true => send(access, &request(false), output).await,
            false => Ok(Outcome::Done),
        }
    })
}

/// A command reads until the end of the topic or its `--limit`, however long that takes.
const UNBOUNDED: Bounds = Bounds {
    records: u64::MAX,
    until: None,
};

fn filter(args: &RedriveArgs) -> Result<DeadLetterFilter, Refused> {
    let params = DeadLettersParams {
        code: args.code.clone(),
        key: args.key.clone(),
        header: args.header.clone(),
        origin: args.origin.clone(),
        from: args.from.clone(),
        to: args.to.clone(),
        ..DeadLettersParams::default()
    };
    params.filter().map_err(|problem| Refused(problem.detail))
}

async fn answer(
    access: &Access,
    request: &DeadLettersRequest,
    report: &mut DeadLettersReport,
    on_progress: &mut dyn FnMut(&DeadLettersReport),
) -> Result<()> {
    match access {
        Access::Config(config) => scan(config, request, UNBOUNDED, report, on_progress).await,
        Access::Server(server) => {
            service_calls::redrive(server, request, report, on_progress).await
        }
    }
}

async fn send(
    access: &Access,
    request: &DeadLettersRequest,
    output: OutputArgs,
) -> Result<Outcome> {
    let shows_progress = std::io::stderr().is_terminal();
    let limit = request.redrive.map_or(0, |redrive| redrive.limit);
    let mut on_progress = |report: &DeadLettersReport| {
        if shows_progress {
            // Only a hint: the report follows.
            let (sent, scanned) = (sent(report), report.scanned);
            let _ = write!(
                std::io::stderr(),
                "\rsent {sent} of at most {limit}, read {scanned} "
            );
        }
    };
    let mut report = DeadLettersReport::default();
    let sent = answer(access, request, &mut report, &mut on_progress).await;
    if shows_progress {
        let _ = writeln!(std::io::stderr());
    }
    if sent.is_ok() || report.redrive.is_some() {
        print_document(&report, output, report::text)?;
    }
    match sent {
        Ok(()) => Ok(Outcome::Done),
        Err(error) => Err(error.context("the redrive ended early: repeat it, and it continues")),
    }
}
