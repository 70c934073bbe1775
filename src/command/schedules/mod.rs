//! `postdate schedules`: when a schedule would be due, and the schedules of a recurring route.

mod definitions;
mod list;
mod preview;

pub(crate) use list::answer_schedules;

use super::page::print_document;
use super::{Access, Outcome, run};
use crate::cli::{SchedulesAction, SchedulesArgs, ServiceArgs};
use crate::clock::{Clock as _, WallClock};
use anyhow::Result;

/// Prints times or schedules. `access` reads a configuration file, or the address of a service.
pub fn schedules(
    schedules: &SchedulesArgs,
    access: impl FnOnce(&ServiceArgs) -> Result<Access>,
) -> Result<Outcome> {
    let now = WallClock.now();
    match &schedules.action {
        SchedulesAction::Preview(args) => {
            let preview = preview::preview(args, args.now.unwrap_or(now))?;
            print_document(&preview, args.output, preview::text)?;
        }
        SchedulesAction::List(args) => {
            let access = access(&args.service)?;
            let report = run(list::list(&access, args, now))?;
            print_document(&report, args.output, list::text)?;
            if args.id.is_some() && report.schedules.is_empty() {
                return Ok(Outcome::Nothing);
            }
        }
    }
    Ok(Outcome::Done)
}
