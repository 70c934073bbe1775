//! Cases for live workers. They belong to the deployment, so workers of other cases may appear. A
//! session of length zero is expired.

use super::fixture::{Fixture, HOUR};
use crate::model::WorkerId;
use std::time::Duration;

/// The live workers among these, by the reply to the first heartbeat.
async fn alive(t: &Fixture<'_>, workers: &[WorkerId], length: Duration) -> Vec<WorkerId> {
    let peers = t
        .store()
        .heartbeat_worker(workers[0], length)
        .await
        .unwrap();
    assert!(peers.is_sorted_by_key(|peer| peer.worker), "{peers:?}");
    assert!(
        peers
            .iter()
            .all(|peer| peer.expires_in <= HOUR && peer.expires_in > Duration::ZERO),
        "{peers:?}"
    );
    peers
        .into_iter()
        .map(|peer| peer.worker)
        .filter(|worker| workers.contains(worker))
        .collect()
}

pub(super) async fn a_heartbeat_returns_all_live_workers(t: &Fixture<'_>) {
    let [a, b, c] = [10, 11, 12].map(WorkerId);
    assert_eq!(alive(t, &[b, a, c], HOUR).await, [b]);
    assert_eq!(alive(t, &[a, b, c], HOUR).await, [a, b]);
    assert_eq!(alive(t, &[c, a, b], HOUR).await, [a, b, c]);
    assert_eq!(alive(t, &[c, a, b], HOUR).await, [a, b, c], "it lives on");
}

pub(super) async fn a_worker_without_heartbeats_is_removed(t: &Fixture<'_>) {
    let [a, b] = [20, 21].map(WorkerId);
    assert_eq!(alive(t, &[a, b], HOUR).await, [a]);
    assert_eq!(alive(t, &[b, a], Duration::ZERO).await, [a]);
    // The length counts from the store's time, not from the old end.
    assert_eq!(alive(t, &[a, b], Duration::ZERO).await, []);
    assert_eq!(alive(t, &[b, a], HOUR).await, [b]);
}

pub(super) async fn removing_a_worker_keeps_the_other_workers(t: &Fixture<'_>) {
    let [a, b] = [30, 31].map(WorkerId);
    alive(t, &[a], HOUR).await;
    alive(t, &[b], HOUR).await;
    t.store().remove_worker(a).await.unwrap();
    t.store().remove_worker(a).await.unwrap();
    assert_eq!(alive(t, &[b, a], HOUR).await, [b]);
    assert_eq!(alive(t, &[a, b], HOUR).await, [a, b], "it may come back");
}

pub(super) async fn workers_send_heartbeats_to_a_full_store(t: &Fixture<'_>) {
    t.subject.set_full(true).await;
    assert_eq!(alive(t, &[WorkerId(40)], HOUR).await, [WorkerId(40)]);
    t.store().remove_worker(WorkerId(40)).await.unwrap();
    t.subject.set_full(false).await;
}
