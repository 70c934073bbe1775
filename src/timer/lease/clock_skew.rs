//! Compares the clock of this machine with the clock of the store.

use super::LeaseKeeper;
use crate::model::Timestamp;

/// Sets this worker not ready if its clock differs too much from the store's clock: it delivers
/// late.
pub(super) fn report(keeper: &LeaseKeeper, store: Timestamp) {
    let LeaseKeeper {
        clock,
        clock_health,
        metric,
        skew_max,
        ..
    } = keeper;
    let skew_ms = clock.now().as_millis() - store.as_millis();
    metric.clock_skew_seconds.set(skew_ms as f64 / 1_000.0);
    if u128::from(skew_ms.unsigned_abs()) <= skew_max.as_millis() {
        return clock_health.set_ready();
    }
    let direction = if skew_ms > 0 { "ahead of" } else { "behind" };
    clock_health.set_not_ready(format!(
        "this machine's clock is {} ms {direction} the store's: fix the clock synchronisation",
        skew_ms.unsigned_abs()
    ));
}
