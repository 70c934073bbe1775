//! `TaskGroup`: the only place that starts threads. Each has a name, and none is left behind: the first that fails stops all, and who
//! does not end in time is named. What a task does, and how it ends its work when asked to, is the task's own affair.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, error, info};

/// Tells a task to end: it takes nothing new, finishes what it has, and returns.
pub(crate) type StopToken = tokio_util::sync::CancellationToken;

/// From now on the calling thread gets a processor when no other wants one (`nice` 19): for work that can wait, and would make others wait
/// for milliseconds. Threads that it starts inherit it, and who shares a lock with it may wait for it. Where the system refuses, or counts by
/// processes, it stays as it is. Calling it again changes nothing.
pub(crate) fn lower_thread_priority() {
    // Linux sets it for the thread alone, against POSIX.
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::setpriority_process(None, LOWEST_PRIORITY)
    {
        debug!(%error, "this thread cannot give way to others");
    }
}

/// Of Linux' `nice` values, from -20 to 19.
const LOWEST_PRIORITY: i32 = 19;

/// Why a group did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start {task}")]
    Start {
        task: String,
        source: std::io::Error,
    },
    #[error("{task} failed")]
    Failed {
        task: String,
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error("{task} panicked: {text}")]
    Panicked { task: String, text: String },
    #[error("{task} ended though nobody had asked it to")]
    EndedEarly { task: String },
    #[error("not ended {} after the stop, and given up: {}", seconds(*deadline), tasks.join(", "))]
    StillRunning {
        tasks: Vec<String>,
        deadline: Duration,
    },
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

/// How one task ended; `None`: well.
struct TaskEnd {
    id: usize,
    error: Option<Error>,
}

/// Threads that live and end together.
pub(crate) struct TaskGroup {
    token: StopToken,
    /// Names by the order of starting, of those that have not ended.
    running: BTreeMap<usize, String>,
    /// What made tasks fail, as it was said.
    logged_causes: BTreeSet<String>,
    next_id: usize,
    ends_rx: mpsc::Receiver<TaskEnd>,
    ends_tx: mpsc::Sender<TaskEnd>,
}

impl TaskGroup {
    pub(crate) fn new() -> Self {
        // An end waits in its own thread until it is looked at, so one place is enough.
        let (end, ends) = mpsc::channel(1);
        Self {
            token: StopToken::new(),
            running: BTreeMap::new(),
            logged_causes: BTreeSet::new(),
            next_id: 0,
            ends_rx: ends,
            ends_tx: end,
        }
    }

    /// Cancelled when the group is to stop: by a signal, or because a task failed.
    pub(crate) fn token(&self) -> StopToken {
        self.token.clone()
    }

    /// Starts a thread called `name` (of which the system shows 15 bytes) with a runtime of its own, and runs there what `body` makes. The
    /// future need not be `Send`. It should end well only after the token was cancelled.
    pub(crate) fn spawn_thread<B, F, E>(&mut self, name: &str, body: B) -> Result<(), Error>
    where
        B: FnOnce(StopToken) -> F + Send + 'static,
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let failed = |source| Error::Start {
            task: name.to_owned(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (id, task, token, end) = (
            self.next_id,
            name.to_owned(),
            self.token.clone(),
            self.ends_tx.clone(),
        );
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let result = runtime.block_on(body(token.clone()));
                // Not dropped: that would wait for a look-up of a name to time out.
                runtime.shutdown_background();
                result
            }));
            let was_asked = token.is_cancelled();
            let fault = match result {
                Ok(Ok(())) if was_asked => None,
                Ok(Ok(())) => Some(Error::EndedEarly { task }),
                Ok(Err(source)) => Some(Error::Failed {
                    task,
                    source: source.into(),
                }),
                Err(panic) => Some(Error::Panicked {
                    task,
                    text: panic_message(panic.as_ref()).to_owned(),
                }),
            };
            if fault.is_some() {
                token.cancel();
            }
            // Fails only if the group was given up, and then nobody wants to know.
            let _ = end.blocking_send(TaskEnd { id, error: fault });
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(failed)?;
        self.running.insert(id, name.to_owned());
        self.next_id += 1;
        Ok(())
    }

    /// Waits until all tasks have ended. When `stop` is ready or a task fails, all are told to end, and have until `deadline` from then.
    /// Answers the fault that came first; but one that only followed from another's does not hide that.
    pub(crate) async fn join(
        mut self,
        stop: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let mut faults = Vec::new();
        let mut stop = std::pin::pin!(stop);
        while !self.running.is_empty() && !self.token.is_cancelled() {
            // All three may be dropped and asked again: `recv` keeps what it has not handed out.
            tokio::select! {
                biased;
                end = self.ends_rx.recv() => faults.extend(self.on_end(end)),
                () = self.token.cancelled() => {}
                () = &mut stop => self.token.cancel(),
            }
        }
        let until = Instant::now() + deadline;
        while !self.running.is_empty() {
            match tokio::time::timeout_at(until, self.ends_rx.recv()).await {
                Ok(end) => faults.extend(self.on_end(end)),
                Err(_) => {
                    let overdue = Error::StillRunning {
                        tasks: self.running.values().cloned().collect(),
                        deadline,
                    };
                    error!(error = %overdue, "a task hangs");
                    faults.push(overdue);
                    break;
                }
            }
        }
        faults.sort_by_key(|fault| {
            matches!(fault, Error::EndedEarly { .. } | Error::StillRunning { .. })
        });
        faults.into_iter().next().map_or(Ok(()), Err)
    }

    fn on_end(&mut self, end: Option<TaskEnd>) -> Option<Error> {
        let TaskEnd { id, error: fault } = end.expect("the group itself holds a sender");
        let task = self.running.remove(&id).expect("a task ends once");
        match &fault {
            None => info!(task, "ended"),
            // A store that cannot be used fails each task that uses it: saying it once is enough.
            Some(fault) if !self.logged_causes.insert(root_cause(fault)) => {
                info!(task, "ended, for the same reason")
            }
            Some(fault) => error!(task, error = error_chain(fault), "stopping: a task failed"),
        }
        fault
    }
}

/// Answers the name of the first SIGTERM or SIGINT from here on.
pub(crate) async fn stop_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // Nothing is lost by dropping either: the first signal ends the wait for both.
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

/// An error with its causes.
fn error_chain(error: &dyn StdError) -> String {
    let causes = std::iter::successors(error.source(), |cause: &&dyn StdError| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The first cause of an error.
fn root_cause(error: &dyn StdError) -> String {
    std::iter::successors(Some(error), |cause: &&dyn StdError| (*cause).source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::mpsc::sync_channel;

    const LONG: Duration = Duration::from_secs(60);

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future)
    }

    /// A task that ends when asked to.
    async fn obedient(token: StopToken) -> Result<(), std::io::Error> {
        token.cancelled().await;
        Ok(())
    }

    fn shown(result: Result<(), Error>) -> String {
        result.map_or_else(|error| error_chain(&error), |()| "well".to_owned())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_that_gives_way_does_so_alone() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let (before, (tell, told)) = (nice(), sync_channel(1));
        let mut group = TaskGroup::new();
        let body = move |token| {
            lower_thread_priority();
            lower_thread_priority();
            tell.send(nice()).unwrap();
            obedient(token)
        };
        group.spawn_thread("gives way", body).unwrap();
        assert_eq!((told.recv(), nice()), (Ok(LOWEST_PRIORITY), before));
        assert_eq!(shown(run(group.join(async {}, LONG))), "well");
    }

    #[test]
    fn the_first_error_stops_all() {
        let mut group = TaskGroup::new();
        group.spawn_thread("first", obedient).unwrap();
        group
            .spawn_thread("second", |_| async { Err("no more") })
            .unwrap();
        group.spawn_thread("third", obedient).unwrap();
        let token = group.token();
        assert_eq!(
            shown(run(group.join(pending(), LONG))),
            "second failed: no more"
        );
        assert!(token.is_cancelled());
    }

    #[test]
    fn a_panic_is_reported_with_its_tasks_name() {
        let mut group = TaskGroup::new();
        group.spawn_thread("other", obedient).unwrap();
        group
            .spawn_thread("shaky", |_| async {
                if LONG.is_zero() {
                    Err("never")
                } else {
                    panic!("invariant {} is broken", 7)
                }
            })
            .unwrap();
        assert_eq!(
            shown(run(group.join(pending(), LONG))),
            "shaky panicked: invariant 7 is broken"
        );
    }

    #[test]
    fn the_deadline_names_who_did_not_end() {
        let (release, hold) = sync_channel::<()>(0);
        let mut group = TaskGroup::new();
        group.spawn_thread("good", obedient).unwrap();
        group
            .spawn_thread(
                "laggard",
                move |_| async move { Err(hold.recv().unwrap_err()) },
            )
            .unwrap();
        let result = run(group.join(async {}, Duration::from_millis(50)));
        assert_eq!(
            shown(result),
            "not ended 0.05s after the stop, and given up: laggard"
        );
        drop(release);
    }

    #[test]
    fn a_stop_ends_all_and_is_no_error() {
        let mut group = TaskGroup::new();
        group.spawn_thread("one", obedient).unwrap();
        group.spawn_thread("two", obedient).unwrap();
        assert_eq!(shown(run(group.join(async {}, LONG))), "well");
    }

    #[test]
    fn a_task_that_ends_unasked_stops_all() {
        let mut group = TaskGroup::new();
        group.spawn_thread("other", obedient).unwrap();
        group
            .spawn_thread("brief", |_| async { Ok::<_, std::io::Error>(()) })
            .unwrap();
        assert_eq!(
            shown(run(group.join(pending(), LONG))),
            "brief ended though nobody had asked it to"
        );
    }

    #[test]
    fn a_cause_is_not_hidden_by_what_follows_from_it() {
        let mut group = TaskGroup::new();
        // Its channel was closed by the task that fails, and its end is known first.
        group
            .spawn_thread("downstream", |_| async { Ok::<_, std::io::Error>(()) })
            .unwrap();
        let cause = |token: StopToken| async move {
            token.cancelled().await;
            Err("the cause")
        };
        group.spawn_thread("upstream", cause).unwrap();
        assert_eq!(
            shown(run(group.join(pending(), LONG))),
            "upstream failed: the cause"
        );
    }

    #[test]
    fn a_task_need_not_be_send() {
        let mut group = TaskGroup::new();
        group
            .spawn_thread("local", |token| async move {
                let local = std::rc::Rc::new(());
                token.cancelled().await;
                drop(local);
                Ok::<_, std::io::Error>(())
            })
            .unwrap();
        assert_eq!(shown(run(group.join(async {}, LONG))), "well");
    }
}
