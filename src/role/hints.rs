//! Sends hints to the other processes of the deployment and receives theirs. A hint only makes a
//! timer poll earlier, so this loop blocks nothing and logs each failure once.

use super::wiring::Wiring;
use crate::clock::{Clock, WallClock};
use crate::config::Role;
use crate::limit::{HINT_QUEUE_MAX, STORE_RETRY_DELAY_MAX, URGENT_HINT_WITHIN};
use crate::model::{Hint, SessionId};
use crate::store::{Error, Notifier};
use crate::task::{StopToken, TaskGroup};
use anyhow::Result;
use tokio::sync::mpsc;

/// Starts the thread, if other processes can share the store. Returns where an ingress sends its
/// hints. `session` is the first one of this process.
pub(super) fn start(
    group: &mut TaskGroup,
    wiring: &Wiring,
    timer: &mpsc::Sender<Hint>,
    session: SessionId,
) -> Result<Option<mpsc::Sender<Hint>>> {
    let Some(notifier) = wiring.store.notifier(session)? else {
        return Ok(None);
    };
    let (hints, hints_in) = mpsc::channel(HINT_QUEUE_MAX);
    let timer = wiring
        .config
        .roles
        .contains(&Role::Timer)
        .then(|| timer.clone());
    group.spawn_thread("hints", move |stop| async move {
        serve(notifier, hints_in, timer, stop).await;
        anyhow::Ok(())
    })?;
    Ok(Some(hints))
}

/// Publishes hints from `own`, and passes hints of other processes to `timer`, until `stop` is
/// cancelled.
async fn serve(
    notifier: Box<dyn Notifier + Send>,
    own: mpsc::Receiver<Hint>,
    timer: Option<mpsc::Sender<Hint>>,
    stop: StopToken,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = async { tokio::join!(publish(&*notifier, own), receive(&*notifier, timer)); } => {}
    }
}

async fn publish(notifier: &dyn Notifier, mut own: mpsc::Receiver<Hint>) {
    let mut urgent = Vec::new();
    let mut logged = String::new();
    while own.recv_many(&mut urgent, HINT_QUEUE_MAX).await > 0 {
        let soon = WallClock.now().plus(URGENT_HINT_WITHIN);
        urgent.retain(|hint| hint.least_due < soon);
        if let Err(error) = notifier.publish(&urgent).await {
            let consequence =
                "cannot send hints to other processes: their messages may be up to 250 ms late";
            wait_after(&error, consequence, &mut logged).await;
        }
        urgent.clear();
    }
}

async fn receive(notifier: &dyn Notifier, timer: Option<mpsc::Sender<Hint>>) {
    let mut logged = String::new();
    // Without a timer the subscription only shows that this worker lives.
    let mut pass_on = |hint| {
        if let Some(timer) = &timer {
            drop(timer.try_send(hint));
        }
    };
    loop {
        if let Err(error) = notifier.listen(&mut pass_on).await {
            let consequence =
                "cannot receive hints from other processes: messages may be up to 250 ms late";
            wait_after(&error, consequence, &mut logged).await;
        }
    }
}

/// Logs an error, unless it is the one that was `logged` last. The loops that need the store report
/// that it does not answer.
async fn wait_after(error: &Error, consequence: &str, logged: &mut String) {
    let reason = error.to_string();
    if !error.is_transient() && *logged != reason {
        tracing::warn!(reason, "{consequence}");
        *logged = reason;
    }
    tokio::time::sleep(STORE_RETRY_DELAY_MAX).await;
}
