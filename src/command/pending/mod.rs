//! `postdate pending`: shows the pending messages, or finds one by its id.

mod source;
mod text;

use super::page::{Page, print};
use super::{Outcome, Refused, run};
use crate::cli::PendingArgs;
use crate::config::Config;
use anyhow::Result;
pub(super) use source::Source;

/// Prints a report of the pending messages, or the place of one message.
pub(crate) fn pending(config: &Config, pending: &PendingArgs) -> Result<Outcome> {
    run(async {
        let source = Source::open(config).await?;
        let (page, route) = (Page::of_stdout(), pending.route.as_deref());
        let Some(id) = &pending.id else {
            let report = source.report(route).await?;
            if report.routes.is_empty() {
                let known: Vec<&str> = config.routes.keys().map(String::as_str).collect();
                let route = route.unwrap_or_default();
                return Err(Refused(format!(
                    "no route is called {route:?}, and nothing waits under that name: choose from {}",
                    known.join(", ")
                ))
                .into());
            }
            print(&if pending.json {
                json(&report)?
            } else {
                text::report(&report, &page)
            })?;
            return Ok(Outcome::Done);
        };
        let search = source.found(id, route).await?;
        print(&if pending.json {
            json(&search)?
        } else {
            text::search(&search, &page)
        })?;
        Ok(if search.found.is_empty() {
            Outcome::Nothing
        } else {
            Outcome::Done
        })
    })
}

pub(super) fn json(document: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}
