//! `postdate pending`: shows the waiting messages, or finds one by its id.

mod query_client;
mod server;
mod text;

use super::page::print_document;
use super::{Outcome, Refused, run};
use crate::cli::PendingArgs;
use crate::config::Config;
use crate::store::query::{IdSearch, PendingReport, Query};
use anyhow::Result;
pub(super) use query_client::QueryClient;
pub use server::Access;
pub(in crate::command) use server::Server;
pub(super) use text::shards_of_removed_topics;

/// Prints a report of the waiting messages, or the place of one message.
pub fn pending(config: &Config, pending: &PendingArgs) -> Result<Outcome> {
    run(async {
        let client = QueryClient::open(config).await?;
        let route = pending.route.clone();
        if let Some(id) = pending.id.clone() {
            let search: IdSearch = client.ask(&Query::Message { id, route }).await?;
            print_document(&search, pending.json, text::search)?;
            return Ok(match search.found.is_empty() {
                true => Outcome::Nothing,
                false => Outcome::Done,
            });
        }
        let report: PendingReport = client.ask(&Query::Pending { route }).await?;
        if report.routes.is_empty() {
            let route = pending.route.as_deref().unwrap_or_default();
            let stored = "nothing waits under that name";
            return Err(unknown_route(config, route, stored));
        }
        print_document(&report, pending.json, text::report)?;
        Ok(Outcome::Done)
    })
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
