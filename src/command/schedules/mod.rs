//! `postdate schedules`: when a schedule would be due, and the schedules of a recurring route.

mod definitions;
mod list;
mod one;
mod preview;

pub(super) use definitions::replace_definition;
pub(crate) use list::answer_schedules;

use super::page::print_document;
use super::{Access, Outcome, run};
use crate::admin::schedules::change::ScheduleAction;
use crate::cli::{SchedulesAction, SchedulesArgs, ServiceArgs};
use crate::clock::{Clock as _, WallClock};
use anyhow::Result;

/// Prints times or schedules, or changes one. `access` reads a configuration file, or the address of a service.
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
        SchedulesAction::Show(args) => {
            let access = access(&args.service)?;
            return run(one::show(&access, args, now));
        }
        SchedulesAction::Pause(args) => {
            let access = access(&args.schedule.service)?;
            return run(one::change(&access, ScheduleAction::Pause, args, now));
        }
        SchedulesAction::Resume(args) => {
            let access = access(&args.schedule.service)?;
            return run(one::change(&access, ScheduleAction::Resume, args, now));
        }
        SchedulesAction::Fire(args) => {
            let access = access(&args.schedule.service)?;
            return run(one::change(&access, ScheduleAction::Fire, args, now));
        }
    }
    Ok(Outcome::Done)
}
