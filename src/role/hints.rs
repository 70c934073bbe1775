//! Hints to and from other processes of the deployment. A loop that only makes others look sooner: it holds up nobody, and its failures are
//! told once.

use crate::clock::{Clock, WallClock};
use crate::limit::{HINT_QUEUE_MAX, HINTS_RETRY_DELAY, URGENT_HINT_WITHIN};
use crate::model::Hint;
use crate::store::{Error, Notifier};
use crate::task::StopToken;
use tokio::sync::mpsc;

/// Tells others what this process appended, if `told` brings something, and hands on to `heard` what they tell. Ends when `stop` is
/// cancelled.
pub(super) async fn serve(
    notifier: Box<dyn Notifier + Send>,
    told: mpsc::Receiver<Hint>,
    heard: Option<mpsc::Sender<Hint>>,
    stop: StopToken,
) {
    // What is dropped here is a hint.
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = async { tokio::join!(publish(&*notifier, told), receive(&*notifier, heard)); } => {}
    }
}

async fn publish(notifier: &dyn Notifier, mut told: mpsc::Receiver<Hint>) {
    let (mut urgent, mut complaint) = (Vec::new(), FailureLog::default());
    while told.recv_many(&mut urgent, HINT_QUEUE_MAX).await > 0 {
        let soon = WallClock.now().plus(URGENT_HINT_WITHIN);
        urgent.retain(|hint| hint.least_due < soon);
        if let Err(error) = notifier.publish(&urgent).await {
            complaint.warn_once(&error, "timers of other processes are not told of what is due soon, and may find it 250 ms late");
            tokio::time::sleep(HINTS_RETRY_DELAY).await;
        }
        urgent.clear();
    }
}

async fn receive(notifier: &dyn Notifier, heard: Option<mpsc::Sender<Hint>>) {
    let Some(heard) = heard else { return };
    let mut complaint = FailureLog::default();
    loop {
        let outcome = notifier
            .listen(&mut |hint| drop(heard.try_send(hint)))
            .await;
        if let Err(error) = outcome {
            complaint.warn_once(&error, "what is due soon and is appended by other processes is not heard of, and may be found 250 ms late");
            tokio::time::sleep(HINTS_RETRY_DELAY).await;
        }
    }
}

/// What was told last. A store that is away is told by those who need it.
#[derive(Default)]
struct FailureLog(String);

impl FailureLog {
    fn warn_once(&mut self, error: &Error, consequence: &str) {
        let reason = error.to_string();
        if !error.is_transient() && self.0 != reason {
            tracing::warn!(reason, "{consequence}");
            self.0 = reason;
        }
    }
}
