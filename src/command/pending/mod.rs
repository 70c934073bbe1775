//! `postdate pending`: shows the waiting messages, or finds one by its id.

mod query_client;
mod text;

use super::page::{Page, print};
use super::{Outcome, Refused, run};
use crate::cli::PendingArgs;
use crate::config::Config;
use anyhow::Result;
pub(super) use query_client::QueryClient;
pub(super) use text::shards_of_removed_topics;

/// Prints a report of the waiting messages, or the place of one message.
pub(crate) fn pending(config: &Config, pending: &PendingArgs) -> Result<Outcome> {
    run(async {
        let client = QueryClient::open(config).await?;
        let (page, route) = (Page::of_stdout(), pending.route.as_deref());
        let (text, outcome) = if let Some(id) = &pending.id {
            let search = client.find(id, route).await?;
            let is_found = !search.found.is_empty();
            let text = match pending.json {
                true => json(&search)?,
                false => text::search(&search, &page),
            };
            (
                text,
                if is_found {
                    Outcome::Done
                } else {
                    Outcome::Nothing
                },
            )
        } else {
            let report = client.report(route).await?;
            if report.routes.is_empty() {
                let route = route.unwrap_or_default();
                return Err(unknown_route(
                    config,
                    route,
                    "nothing waits under that name",
                ));
            }
            let text = match pending.json {
                true => json(&report)?,
                false => text::report(&report, &page),
            };
            (text, Outcome::Done)
        };
        print(&text)?;
        Ok(outcome)
    })
}

pub(super) fn json(document: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// Neither the configuration nor the store has the route.
pub(super) fn unknown_route(config: &Config, route: &str, stored: &str) -> anyhow::Error {
    let known: Vec<&str> = config.routes.keys().map(String::as_str).collect();
    let known = known.join(", ");
    Refused(format!(
        "no route is called {route:?}, and {stored}: choose from {known}"
    ))
    .into()
}
