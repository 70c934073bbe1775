//! Hints to and from other processes of the deployment. A loop that only makes others look sooner: it holds up nobody, and its failures are
//! told once.

use crate::clock::{Clock, WallClock};
use crate::limit::{HINT_SPARE, HINTS_MAX, HINTS_RETRY};
use crate::model::Hint;
use crate::store::Error;
use crate::store::redis::Hints;
use crate::task::Token;
use tokio::sync::mpsc;

/// Tells others what this process appended, if `told` brings something, and hands on to `heard` what they tell. Ends when `stop` is
/// cancelled.
pub(super) async fn serve(
    hints: Hints,
    told: mpsc::Receiver<Hint>,
    heard: Option<mpsc::Sender<Hint>>,
    stop: Token,
) {
    // What is dropped here is a hint.
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = async { tokio::join!(tell(&hints, told), listen(&hints, heard)); } => {}
    }
}

async fn tell(hints: &Hints, mut told: mpsc::Receiver<Hint>) {
    let (mut urgent, mut complaint) = (Vec::new(), Complaint::default());
    while told.recv_many(&mut urgent, HINTS_MAX).await > 0 {
        let soon = WallClock.now().plus(HINT_SPARE);
        urgent.retain(|hint| hint.least_due < soon);
        if let Err(error) = hints.tell(&urgent).await {
            complaint.say(&error, "timers of other processes are not told of what is due soon, and may find it 250 ms late");
            tokio::time::sleep(HINTS_RETRY).await;
        }
        urgent.clear();
    }
}

async fn listen(hints: &Hints, heard: Option<mpsc::Sender<Hint>>) {
    let Some(heard) = heard else { return };
    let mut complaint = Complaint::default();
    loop {
        let outcome = hints.listen(|hint| drop(heard.try_send(hint))).await;
        if let Err(error) = outcome {
            complaint.say(&error, "what is due soon and is appended by other processes is not heard of, and may be found 250 ms late");
            tokio::time::sleep(HINTS_RETRY).await;
        }
    }
}

/// What was told last. A store that is away is told by those who need it.
#[derive(Default)]
struct Complaint(String);

impl Complaint {
    fn say(&mut self, error: &Error, consequence: &str) {
        let reason = error.to_string();
        if !error.is_transient() && self.0 != reason {
            tracing::warn!(reason, "{consequence}");
            self.0 = reason;
        }
    }
}
