//! `postdate pending`: shows the waiting messages, or finds one by its id.

mod query_client;
mod server;
mod text;

use super::page::print_document;
use super::{Outcome, run};
use crate::cli::PendingArgs;
use crate::store::query::{IdSearch, PendingReport, Query};
use anyhow::Result;
pub(super) use query_client::QueryClient;
pub use server::Access;
pub(in crate::command) use server::Server;
pub(super) use text::shards_of_removed_topics;

/// Prints a report of the waiting messages, or the place of one message.
pub fn pending(access: &Access, pending: &PendingArgs) -> Result<Outcome> {
    run(async {
        let client = QueryClient::of(access).await?;
        let route = pending.route.clone();
        if let Some(id) = pending.id.clone() {
            let search: IdSearch = client.ask(&Query::Message { id, route }).await?;
            print_document(&search, pending.output, text::search)?;
            return Ok(match search.found.is_empty() {
                true => Outcome::Nothing,
                false => Outcome::Done,
            });
        }
        let report: PendingReport = client.ask(&Query::Pending { route }).await?;
        if let Some(route) = pending.route.as_ref().filter(|_| report.routes.is_empty()) {
            client.require_route(route).await?;
        }
        print_document(&report, pending.output, text::report)?;
        Ok(Outcome::Done)
    })
}
