//! `postdate schedules`: when a schedule would be due, and the schedules of a recurring route.

mod definitions;
mod list;
mod preview;

pub(crate) use list::answer_schedules;

use super::page::print_document;
use super::{Outcome, run};
use crate::cli::{SchedulesAction, SchedulesArgs};
use crate::clock::{Clock as _, WallClock};
use crate::config::Config;
use anyhow::Result;
use std::path::Path;

/// Prints times or schedules. `load` reads a configuration file.
pub fn schedules(
    schedules: &SchedulesArgs,
    load: impl FnOnce(&Path) -> Result<Config>,
) -> Result<Outcome> {
    let now = WallClock.now();
    match &schedules.action {
        SchedulesAction::Preview(args) => {
            let preview = preview::preview(args, args.now.unwrap_or(now))?;
            print_document(&preview, args.json, preview::text)?;
        }
        SchedulesAction::List(args) => {
            let config = load(&args.config)?;
            let report = run(list::list(&config, args, now))?;
            print_document(&report, args.json, list::text)?;
            if args.id.is_some() && report.schedules.is_empty() {
                return Ok(Outcome::Nothing);
            }
        }
    }
    Ok(Outcome::Done)
}
