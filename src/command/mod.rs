//! The one-shot commands of `postdate`. Each command is one file or folder and ends by itself.

mod check;
mod demo;
mod init;
mod ledger;
mod page;
mod pending;
mod plan;
mod quarantine;
mod reset;
mod send;

pub(crate) use check::check;
pub(crate) use demo::demo;
pub(crate) use init::init;
pub(crate) use ledger::ledger;
pub(crate) use pending::pending;
pub(crate) use quarantine::quarantine;
#[cfg(test)]
pub(crate) use reset::test_support;
pub(crate) use reset::{StartPoint, reset};
pub(crate) use send::send;

use crate::cli::CompletionArgs;
use anyhow::Result;
use std::future::Future;

/// Result of a command that ran without an error. It decides the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The command found a problem.
    Failing,
    /// The search found no message.
    Nothing,
}

/// An invalid request. The command changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Prints the completion script for a shell.
pub(crate) fn complete(completion: &CompletionArgs) -> Result<Outcome> {
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
