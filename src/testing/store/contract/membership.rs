//! Cases for live workers. They belong to the deployment, so workers of other cases may appear. A
//! session of length zero is expired.

use super::fixture::{Fixture, HOUR};
use crate::model::WorkerId;
use crate::store::Heartbeat;
use std::collections::BTreeSet;
use std::time::Duration;

async fn heartbeat(
    t: &Fixture<'_>,
    worker: WorkerId,
    length: Duration,
    clusters: &[&str],
) -> Heartbeat {
    let clusters = clusters.iter().map(|cluster| Box::from(*cluster)).collect();
    let heartbeat = t.store().heartbeat_worker(worker, length, &clusters);
    heartbeat.await.unwrap()
}

/// The live workers among these, by the reply to the first heartbeat.
async fn alive(t: &Fixture<'_>, workers: &[WorkerId], length: Duration) -> Vec<WorkerId> {
    let Heartbeat::Workers(peers) = heartbeat(t, workers[0], length, &[]).await else {
        panic!("it names no cluster")
    };
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

pub(super) async fn a_worker_that_shares_no_cluster_with_the_others_is_refused(t: &Fixture<'_>) {
    let [a, b, c] = [50, 51, 52].map(WorkerId);
    let is_refused = async |worker, clusters: &[&str], by: &[&str]| {
        let by: BTreeSet<Box<str>> = by.iter().map(|cluster| Box::from(*cluster)).collect();
        let heartbeat = heartbeat(t, worker, HOUR, clusters).await;
        assert!(!by.is_empty() || matches!(heartbeat, Heartbeat::Workers(_)));
        by.is_empty() || heartbeat == Heartbeat::OtherClusters(by)
    };
    assert!(is_refused(a, &["k1"], &[]).await);
    assert!(is_refused(b, &["k2", "k3"], &["k1"]).await);
    assert_eq!(alive(t, &[a, b], HOUR).await, [a], "it was not recorded");
    // A heartbeat without clusters keeps nothing of earlier ones in mind.
    assert!(is_refused(a, &["k1"], &[]).await);
    assert!(is_refused(c, &["k1", "k2"], &[]).await);
    assert!(is_refused(b, &["k2"], &[]).await, "it shares k2 with c");
    assert!(is_refused(b, &["k4"], &["k1", "k2"]).await);
    for worker in [a, c] {
        t.store().remove_worker(worker).await.unwrap();
    }
    assert!(is_refused(b, &["k4"], &[]).await, "it is alone now");
    t.store().remove_worker(b).await.unwrap();
    heartbeat(t, a, Duration::ZERO, &["k1"]).await;
    assert!(is_refused(b, &["k4"], &[]).await);
    t.store().remove_worker(b).await.unwrap();
}
