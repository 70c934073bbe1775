//! `TaskGroup`: starts the threads of a process, and waits for their end.
//!
//! Each thread has a name and its own runtime. The first one that fails stops all others. The group
//! names threads that do not end in time. Adapters start their client threads with `client_thread`.
//! The clippy bans in `.clippy.toml` hold all other code to this.

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as StdError;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, error, info};

/// Stops a task when it is cancelled: the task accepts no new work, finishes its work, and returns.
pub(crate) type StopToken = tokio_util::sync::CancellationToken;

/// Gives the calling thread the lowest CPU priority, so that its work does not delay other threads.
/// Threads that it starts inherit the priority. No effect where the system does not allow it.
pub(crate) fn lower_thread_priority() {
    // Linux sets the value for the calling thread only. POSIX would set it for the process.
    if cfg!(target_os = "linux")
        && let Err(error) = rustix::process::setpriority_process(None, LOWEST_PRIORITY)
    {
        debug!(%error, "cannot lower the priority of this thread");
    }
}

/// The `nice` values of Linux range from -20 to 19.
const LOWEST_PRIORITY: i32 = 19;

/// Why a group did not end normally.
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
    #[error("{task} ended before it was asked to stop")]
    EndedEarly { task: String },
    #[error(
        "abandoned after {}s because they did not stop: {}",
        deadline.as_secs_f64(),
        tasks.join(", ")
    )]
    StillRunning {
        tasks: Vec<String>,
        deadline: Duration,
    },
}

/// How one task ended. `error` is `None` if it ended normally.
struct TaskEnd {
    id: usize,
    error: Option<Error>,
}

/// Threads that start and stop together.
pub(crate) struct TaskGroup {
    token: StopToken,
    /// Names of the tasks that run, in the order of their start.
    running: BTreeMap<usize, String>,
    /// Root causes of failed tasks that were logged already.
    logged_causes: BTreeSet<String>,
    next_id: usize,
    ends_rx: mpsc::Receiver<TaskEnd>,
    ends_tx: mpsc::Sender<TaskEnd>,
}

impl TaskGroup {
    pub(crate) fn new() -> Self {
        // A task waits in its own thread until its end is received, so one slot is enough.
        let (ends_tx, ends_rx) = mpsc::channel(1);
        Self {
            token: StopToken::new(),
            running: BTreeMap::new(),
            logged_causes: BTreeSet::new(),
            next_id: 0,
            ends_rx,
            ends_tx,
        }
    }

    /// Is cancelled when the group stops: after a signal, or because a task failed.
    pub(crate) fn token(&self) -> StopToken {
        self.token.clone()
    }

    /// Starts a thread with its own runtime, and runs the future that `body` returns, which need
    /// not be `Send`. The future must not end before the token is cancelled, except with an error.
    /// The system shows the first 15 bytes of `name`.
    pub(crate) fn spawn_thread<B, F, E>(&mut self, name: &str, body: B) -> Result<(), Error>
    where
        B: FnOnce(StopToken) -> F + Send + 'static,
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let not_started = |source| Error::Start {
            task: name.to_owned(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(not_started)?;
        let id = self.next_id;
        let task = name.to_owned();
        let token = self.token.clone();
        let ends_tx = self.ends_tx.clone();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let result = runtime.block_on(body(token.clone()));
                // A drop would wait until a DNS lookup has timed out.
                runtime.shutdown_background();
                result
            }));
            let error = task_error(task, result, token.is_cancelled());
            if error.is_some() {
                token.cancel();
            }
            // Fails only if the group was dropped, and then the result is not needed.
            let _ = ends_tx.blocking_send(TaskEnd { id, error });
        };
        start_thread(name, run).map_err(not_started)?;
        self.running.insert(id, name.to_owned());
        self.next_id += 1;
        Ok(())
    }

    /// Waits until all tasks have ended. When `stop` is ready or a task fails, it cancels the token
    /// and gives all tasks `deadline` to end. Returns the first error. An error that may be a
    /// consequence of another one counts last.
    pub(crate) async fn join(
        &mut self,
        stop: impl Future<Output = ()>,
        deadline: Duration,
    ) -> Result<(), Error> {
        let mut errors = Vec::new();
        let mut stop = std::pin::pin!(stop);
        while !self.running.is_empty() && !self.token.is_cancelled() {
            // Every arm is safe to drop: `recv` keeps values that it has not returned.
            tokio::select! {
                biased;
                end = self.ends_rx.recv() => errors.extend(self.on_end(end)),
                () = self.token.cancelled() => {}
                () = &mut stop => self.token.cancel(),
            }
        }
        let until = Instant::now() + deadline;
        while !self.running.is_empty() {
            match tokio::time::timeout_at(until, self.ends_rx.recv()).await {
                Ok(end) => errors.extend(self.on_end(end)),
                Err(_) => {
                    let still_running = Error::StillRunning {
                        tasks: self.running.values().cloned().collect(),
                        deadline,
                    };
                    error!(error = %still_running, "tasks did not stop in time");
                    errors.push(still_running);
                    break;
                }
            }
        }
        errors.sort_by_key(|error| {
            matches!(error, Error::EndedEarly { .. } | Error::StillRunning { .. })
        });
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// True if all tasks have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn on_end(&mut self, end: Option<TaskEnd>) -> Option<Error> {
        let TaskEnd { id, error } = end.expect("the group itself holds a sender");
        let task = self.running.remove(&id).expect("a task ends once");
        match &error {
            None => info!(task, "task stopped"),
            // A store that cannot be used fails every task that needs it. One log line is enough.
            Some(error) if !self.logged_causes.insert(root_cause(error)) => {
                info!(task, "task stopped for a reason that is logged already");
            }
            Some(error) => error!(task, error = error_chain(error), "stopping: a task failed"),
        }
        error
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the task group names and joins the threads of the roles"
)]
fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(|_handle| ())
}

/// The error of a task, by the result of its thread. `was_stopped`: its token was cancelled.
fn task_error<E: Into<Box<dyn StdError + Send + Sync>>>(
    task: String,
    result: std::thread::Result<Result<(), E>>,
    was_stopped: bool,
) -> Option<Error> {
    match result {
        Ok(Ok(())) if was_stopped => None,
        Ok(Ok(())) => Some(Error::EndedEarly { task }),
        Ok(Err(source)) => Some(Error::Failed {
            task,
            source: source.into(),
        }),
        Err(panic) => Some(Error::Panicked {
            task,
            text: panic_message(panic.as_ref()).to_owned(),
        }),
    }
}

/// Runs the loops of one thread in turn, until all have ended. When one fails, it logs the error and
/// cancels `stop`, so that the others finish their work. Returns the first error. The log comes first,
/// because the others may not end in time.
pub(crate) async fn join_loops<E: StdError>(
    loops: impl IntoIterator<Item = impl Future<Output = Result<(), E>>>,
    stop: &StopToken,
) -> Result<(), E> {
    let mut running: FuturesUnordered<_> = loops.into_iter().collect();
    let mut first = Ok(());
    while let Some(ended) = running.next().await {
        if let (Err(error), true) = (&ended, first.is_ok()) {
            error!(error = error_chain(error), "stopping: a loop failed");
            stop.cancel();
            first = ended;
        }
    }
    first
}

/// Waits for SIGTERM or SIGINT, from now on. Returns the name.
pub(crate) fn stop_signal() -> std::io::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        // Both arms are safe to drop: the first signal ends the wait.
        tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// The text of an error and of its sources.
fn error_chain(error: &dyn StdError) -> String {
    let sources = std::iter::successors(error.source(), |cause: &&dyn StdError| (*cause).source());
    sources.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The text of the last source of an error.
fn root_cause(error: &dyn StdError) -> String {
    std::iter::successors(Some(error), |cause: &&dyn StdError| (*cause).source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

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

    /// A task that ends when its token is cancelled.
    async fn until_stopped(token: StopToken) -> Result<(), std::io::Error> {
        token.cancelled().await;
        Ok(())
    }

    fn text_of(result: Result<(), Error>) -> String {
        result.map_or_else(|error| error_chain(&error), |()| "no error".to_owned())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_lower_priority_applies_to_the_calling_thread_only() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let (nice_tx, nice_rx) = sync_channel(1);
        let mut group = TaskGroup::new();
        let body = move |token| {
            lower_thread_priority();
            lower_thread_priority();
            nice_tx.send(nice()).unwrap();
            until_stopped(token)
        };
        group.spawn_thread("low priority", body).unwrap();
        assert_eq!(nice_rx.recv(), Ok(LOWEST_PRIORITY));
        assert_eq!(nice(), before);
        assert_eq!(text_of(run(group.join(async {}, LONG))), "no error");
    }

    #[test]
    fn the_first_error_stops_all_tasks() {
        let mut group = TaskGroup::new();
        group.spawn_thread("first", until_stopped).unwrap();
        group
            .spawn_thread("second", |_| async { Err("no more") })
            .unwrap();
        group.spawn_thread("third", until_stopped).unwrap();
        let token = group.token();
        assert_eq!(
            text_of(run(group.join(pending(), LONG))),
            "second failed: no more"
        );
        assert!(token.is_cancelled());
    }

    #[test]
    fn a_loop_that_fails_stops_the_others_of_its_thread_and_waits_for_them() {
        let (stop, ended) = (StopToken::new(), std::cell::Cell::new(0));
        let serve = |number| {
            let (stop, ended) = (&stop, &ended);
            async move {
                if number == 1 {
                    return Err(std::io::Error::other("no more"));
                }
                stop.cancelled().await;
                tokio::task::yield_now().await;
                ended.set(ended.get() + 1);
                Ok(())
            }
        };
        let outcome = run(join_loops((0..3).map(serve), &stop));
        let error = outcome.map_err(|error| error.to_string());
        assert_eq!((error, ended.get()), (Err("no more".to_owned()), 2));
    }

    #[test]
    fn a_panic_is_reported_with_the_name_of_its_task() {
        let mut group = TaskGroup::new();
        group.spawn_thread("other", until_stopped).unwrap();
        group
            .spawn_thread("faulty", |_| async {
                if LONG.is_zero() {
                    Err("never")
                } else {
                    panic!("invariant {} is broken", 7)
                }
            })
            .unwrap();
        assert_eq!(
            text_of(run(group.join(pending(), LONG))),
            "faulty panicked: invariant 7 is broken"
        );
    }

    #[test]
    fn a_task_that_does_not_stop_in_time_is_named() {
        let (release, hold) = sync_channel::<()>(0);
        let mut group = TaskGroup::new();
        group.spawn_thread("fast", until_stopped).unwrap();
        group
            .spawn_thread(
                "stuck",
                move |_| async move { Err(hold.recv().unwrap_err()) },
            )
            .unwrap();
        let result = run(group.join(async {}, Duration::from_millis(50)));
        assert_eq!(
            text_of(result),
            "abandoned after 0.05s because they did not stop: stuck"
        );
        drop(release);
    }

    #[test]
    fn a_stop_ends_all_tasks_without_an_error() {
        let mut group = TaskGroup::new();
        group.spawn_thread("one", until_stopped).unwrap();
        group.spawn_thread("two", until_stopped).unwrap();
        assert_eq!(text_of(run(group.join(async {}, LONG))), "no error");
    }

    #[test]
    fn a_task_that_ends_before_the_stop_stops_all_tasks() {
        let mut group = TaskGroup::new();
        group.spawn_thread("other", until_stopped).unwrap();
        group
            .spawn_thread("brief", |_| async { Ok::<_, std::io::Error>(()) })
            .unwrap();
        assert_eq!(
            text_of(run(group.join(pending(), LONG))),
            "brief ended before it was asked to stop"
        );
    }

    #[test]
    fn a_root_cause_is_preferred_to_its_consequences() {
        let mut group = TaskGroup::new();
        // The failing task closes the channel of this one, whose end is received first.
        group
            .spawn_thread("downstream", |_| async { Ok::<_, std::io::Error>(()) })
            .unwrap();
        let cause = |token: StopToken| async move {
            token.cancelled().await;
            Err("the cause")
        };
        group.spawn_thread("upstream", cause).unwrap();
        assert_eq!(
            text_of(run(group.join(pending(), LONG))),
            "upstream failed: the cause"
        );
    }

    #[test]
    fn the_future_of_a_task_need_not_be_send() {
        let mut group = TaskGroup::new();
        group
            .spawn_thread("local", |token| async move {
                let local = std::rc::Rc::new(());
                token.cancelled().await;
                drop(local);
                Ok::<_, std::io::Error>(())
            })
            .unwrap();
        assert_eq!(text_of(run(group.join(async {}, LONG))), "no error");
    }
}
