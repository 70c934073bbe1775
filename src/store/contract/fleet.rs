//! Promises of the roll of workers. It is the deployment's, so other cases' workers may be on it; a length of zero stands for a life whose
//! time has passed.

use super::trial::{HOUR, Trial};
use crate::model::Worker;
use std::time::Duration;

/// Who of these lives, by the answer to the first of them.
async fn alive(t: &Trial<'_>, workers: &[Worker], length: Duration) -> Vec<Worker> {
    let peers = t.store().enrol(workers[0], length).await.unwrap();
    assert!(peers.is_sorted_by_key(|peer| peer.worker), "{peers:?}");
    assert!(
        peers
            .iter()
            .all(|peer| peer.left <= HOUR && peer.left > Duration::ZERO),
        "{peers:?}"
    );
    peers
        .into_iter()
        .map(|peer| peer.worker)
        .filter(|worker| workers.contains(worker))
        .collect()
}

pub(super) async fn a_worker_that_enrols_is_told_of_all_that_live(t: &Trial<'_>) {
    let [a, b, c] = [10, 11, 12].map(Worker);
    assert_eq!(alive(t, &[b, a, c], HOUR).await, [b]);
    assert_eq!(alive(t, &[a, b, c], HOUR).await, [a, b]);
    assert_eq!(alive(t, &[c, a, b], HOUR).await, [a, b, c]);
    assert_eq!(alive(t, &[c, a, b], HOUR).await, [a, b, c], "it lives on");
}

pub(super) async fn a_worker_that_is_not_heard_of_any_more_lives_no_longer(t: &Trial<'_>) {
    let [a, b] = [20, 21].map(Worker);
    assert_eq!(alive(t, &[a, b], HOUR).await, [a]);
    assert_eq!(alive(t, &[b, a], Duration::ZERO).await, [a]);
    // The length counts from the store's now, not from the old end.
    assert_eq!(alive(t, &[a, b], Duration::ZERO).await, []);
    assert_eq!(alive(t, &[b, a], HOUR).await, [b]);
}

pub(super) async fn a_worker_that_resigns_lives_no_longer_and_no_other_goes_with_it(t: &Trial<'_>) {
    let [a, b] = [30, 31].map(Worker);
    alive(t, &[a], HOUR).await;
    alive(t, &[b], HOUR).await;
    t.store().resign(a).await.unwrap();
    t.store().resign(a).await.unwrap();
    assert_eq!(alive(t, &[b, a], HOUR).await, [b]);
    assert_eq!(alive(t, &[a, b], HOUR).await, [a, b], "it may come back");
}

pub(super) async fn workers_enrol_on_a_full_store(t: &Trial<'_>) {
    t.subject.set_full(true).await;
    assert_eq!(alive(t, &[Worker(40)], HOUR).await, [Worker(40)]);
    t.store().resign(Worker(40)).await.unwrap();
    t.subject.set_full(false).await;
}
