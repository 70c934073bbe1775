//! `postdate ledger`: shows the outcome of all accepted messages and checks that the numbers
//! balance.

mod text;

use super::page::{Page, print};
use super::pending::{Source, json};
use super::{Outcome, Refused, run};
use crate::cli::LedgerArgs;
use crate::config::Config;
use anyhow::Result;

/// Prints the ledger of each shard. Fails if a ledger does not balance.
pub(crate) fn ledger(config: &Config, ledger: &LedgerArgs) -> Result<Outcome> {
    run(async {
        let route = ledger.route.as_deref();
        let sheet = Source::open(config).await?.sheet(route).await?;
        if let Some(route) =
            route.filter(|route| sheet.shards.is_empty() && !config.routes.contains_key(*route))
        {
            let known: Vec<&str> = config.routes.keys().map(String::as_str).collect();
            return Err(Refused(format!(
                "no route is called {route:?}, and the store knows none: choose from {}",
                known.join(", ")
            ))
            .into());
        }
        print(&if ledger.json {
            json(&sheet)?
        } else {
            text::sheet(&sheet, &Page::of_stdout())
        })?;
        Ok(if sheet.balances {
            Outcome::Done
        } else {
            Outcome::Failing
        })
    })
}
