//! Claims and what was delivered, told to the store until it answers: beside all else, so that what is claimed already goes out in time however
//! long the store takes.

use super::load::ResidentRun;
use super::work::ShardState;
use crate::health::HealthPart;
use crate::limit::{STORE_RETRY_DELAY_MAX, STORE_RETRY_DELAY_MIN};
use crate::model::{Cursor, Watermark};
use crate::schedule::TakenBatch;
use crate::store::{Advance, Advanced, Error, Store};
use futures_util::future::{LocalBoxFuture, pending};
use std::rc::Rc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The call of the store for all shards: one at a time.
#[derive(Default)]
pub(super) struct ClaimCall(
    Option<LocalBoxFuture<'static, Result<Option<Vec<ClaimReply>>, Error>>>,
);

/// What a work asked for, and what it was answered.
pub(super) struct ClaimReply {
    /// The slot of the work.
    pub(super) slot: u16,
    pub(super) advance: Advance,
    pub(super) outcome: Advanced,
}

impl ClaimCall {
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Begins a call for these, by their works' slots.
    pub(super) fn start(
        &mut self,
        store: &Rc<dyn Store>,
        claims: &Rc<HealthPart>,
        asked: Vec<(u16, Advance)>,
        give_up: &CancellationToken,
    ) {
        let (store, claims, give_up) = (store.clone(), claims.clone(), give_up.clone());
        self.0 = Some(Box::pin(async move {
            let (slots, advances): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let outcomes = retry_until_answered(&*store, &claims, &advances, &give_up).await?;
            debug_assert!(
                outcomes
                    .as_ref()
                    .is_none_or(|outcomes| outcomes.len() == advances.len()),
                "one for each"
            );
            let answered = |outcomes: Vec<Advanced>| {
                let all = slots.into_iter().zip(advances).zip(outcomes);
                all.map(|((slot, advance), outcome)| ClaimReply {
                    slot,
                    advance,
                    outcome,
                })
                .collect()
            };
            Ok(outcomes.map(answered))
        }));
    }

    /// Waits for the one under way; for ever, if there is none. `None`: it was told to give up. Safe to drop: the call goes on with the next.
    pub(super) async fn reply(&mut self) -> Result<Option<Vec<ClaimReply>>, Error> {
        let Some(under_way) = &mut self.0 else {
            return pending().await;
        };
        let answered = under_way.await;
        self.0 = None;
        answered
    }
}

/// `None`: it was told to give up. An advance is repeated until the store answers; a repeat changes nothing more.
async fn retry_until_answered(
    store: &dyn Store,
    claims: &HealthPart,
    advances: &[Advance],
    give_up: &CancellationToken,
) -> Result<Option<Vec<Advanced>>, Error> {
    let mut wait = STORE_RETRY_DELAY_MIN;
    loop {
        // Dropped at either await, the store was told or not: what is claimed and not handed over is delivered by the next holder.
        let outcome = tokio::select! {
            biased;
            () = give_up.cancelled() => return Ok(None),
            outcome = store.advance(advances) => outcome,
        };
        match outcome {
            Ok(outcomes) => {
                claims.set_ready();
                return Ok(Some(outcomes));
            }
            Err(error) if error.is_transient() => {
                claims.set_not_ready(format!(
                    "nothing can be claimed, so nothing is delivered: {error}"
                ));
                tokio::select! {
                    biased;
                    () = give_up.cancelled() => return Ok(None),
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(STORE_RETRY_DELAY_MAX),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// What a work waits for the store to answer.
pub(super) struct PendingCall {
    reports_delivered: bool,
    /// What it asks to claim.
    pub(super) take: Option<TakenBatch<ResidentRun>>,
    /// The least place of that.
    least_place: Option<Cursor>,
    /// What was seen of the store when it was asked: that the answer has less than what is seen by now need not mean that it went back.
    pub(super) watermark_when_sent: Watermark,
}

impl ShardState {
    /// The store is being asked for `advance`, which claims `take`.
    pub(super) fn start_call(&mut self, advance: &Advance, take: Option<TakenBatch<ResidentRun>>) {
        let least = take.as_ref().and_then(least_place);
        self.pending_call = Some(PendingCall {
            reports_delivered: advance.delivered.is_some(),
            take,
            least_place: least,
            watermark_when_sent: self.schedule.seen(),
        });
    }

    /// The store has answered.
    pub(super) fn take_call(&mut self) -> Option<PendingCall> {
        self.pending_call.take()
    }

    /// The watermark came with the answer to a call. What was stored after that was answered may be seen already.
    pub(super) fn detect_rollback_by_reply(
        &mut self,
        seen: Watermark,
        watermark: Watermark,
        now: Instant,
    ) {
        if watermark < seen {
            self.detect_rollback(watermark, now);
        }
    }

    pub(super) fn has_pending_call(&self) -> bool {
        self.pending_call.is_some()
    }

    /// Whether it is not known yet that the store knows what it was told last.
    pub(super) fn is_reporting_delivered(&self) -> bool {
        self.pending_call
            .as_ref()
            .is_some_and(|call| call.reports_delivered)
    }

    /// Whether something is claimed, or about to be.
    pub(super) fn has_claims(&self) -> bool {
        !self.in_flight.is_empty()
            || self
                .pending_call
                .as_ref()
                .is_some_and(|call| call.take.is_some())
    }

    /// The least place of what is being claimed: nothing that comes after it is handed over before (G4).
    pub(super) fn pending_claim_place(&self) -> Option<Cursor> {
        self.pending_call.as_ref()?.least_place
    }

    /// Whatever is answered, nothing of what was asked to be claimed is handed over: it will be taken again.
    pub(super) fn cancel_pending_claim(&mut self) {
        self.pending_call
            .iter_mut()
            .for_each(|call| (call.take, call.least_place) = (None, None));
    }
}

/// The late ones come first, by offset, and then the others, by place.
fn least_place(
    TakenBatch {
        messages,
        late_count: late,
        ..
    }: &TakenBatch<ResidentRun>,
) -> Option<Cursor> {
    messages
        .iter()
        .take(late + 1)
        .map(|(resident, at)| resident.run.place(*at as usize))
        .min()
}
