//! Claims and what was delivered, told to the store until it answers.

use crate::health::Part;
use crate::limit::{STORE_RETRY_MAX, STORE_RETRY_MIN};
use crate::store::{Advance, Advanced, Error, Store};
use tokio_util::sync::CancellationToken;

/// `None`: it was told to give up. An advance is repeated until the store answers; a repeat changes nothing more.
pub(super) async fn advance(
    store: &dyn Store,
    claims: &Part,
    advances: &[Advance],
    give_up: &CancellationToken,
) -> Result<Option<Vec<Advanced>>, Error> {
    let mut wait = STORE_RETRY_MIN;
    loop {
        // Dropped at either await, the store was told or not: what is claimed and not handed over is delivered by the next holder.
        let outcome = tokio::select! {
            biased;
            () = give_up.cancelled() => return Ok(None),
            outcome = store.advance(advances) => outcome,
        };
        match outcome {
            Ok(outcomes) => {
                claims.ready();
                return Ok(Some(outcomes));
            }
            Err(error) if error.is_transient() => {
                claims.beat();
                claims.not_ready(format!("nothing can be claimed, so nothing is delivered: {error}"));
                tokio::select! {
                    biased;
                    () = give_up.cancelled() => return Ok(None),
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(STORE_RETRY_MAX),
                }
            }
            Err(error) => return Err(error),
        }
    }
}
