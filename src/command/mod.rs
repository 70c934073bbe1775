//! The one-shot commands of `postdate`. Each command is one file or folder and ends by itself.

mod answer;
mod audit;
mod bulk;
mod change;
mod check;
mod control;
mod demo;
mod init;
mod ledger;
mod messages;
mod page;
mod pause;
mod pending;
mod plan;
mod quarantine;
mod redrive;
mod reset;
mod schedules;
mod send;
mod source_producer;
mod store_copy;
mod workers;

pub use audit::audit;
pub use bulk::purge;
pub(crate) use change::ChangeWriter;
pub use check::check;
pub use demo::demo;
pub use init::init;
pub use ledger::ledger;
pub use messages::messages;
pub use pause::{pause, resume};
pub use pending::{Access, pending};
pub use quarantine::quarantine;
pub(crate) use redrive::answer_dead_letters;
pub use redrive::redrive;
pub use reset::reset;
#[cfg(test)]
pub(crate) use reset::test_support;
pub(crate) use schedules::answer_schedules;
pub use schedules::schedules;
pub use send::send;
pub use store_copy::store_copy;
#[cfg(test)]
pub(crate) use store_copy::{Copied, ShardCopy, begin_shard_copy};
pub use workers::workers;

use crate::cli::CompletionArgs;
use anyhow::Result;
use std::future::Future;

/// Result of a command that ran without an error. It decides the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The command found a problem.
    Failing,
    /// The search found no message, or a request named none that waits.
    Nothing,
    /// The message that a request names was being sent.
    TooLate,
}

impl Outcome {
    fn failing_if(has_problem: bool) -> Self {
        if has_problem {
            Self::Failing
        } else {
            Self::Done
        }
    }
}

/// An invalid request. The command changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Prints the completion script for a shell.
pub fn complete(completion: &CompletionArgs) -> Result<Outcome> {
    page::print(&completion.script())?;
    Ok(Outcome::Done)
}

fn run<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(command);
    // Dropping the runtime would wait for pending name look-ups to time out.
    runtime.shutdown_background();
    outcome
}
