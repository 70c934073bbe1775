//! Cases for sessions. They belong to the deployment, so sessions of other cases may appear. A
//! session of length zero has expired.

use super::fixture::{Fixture, HOUR};
use crate::model::{SessionId, WorkerEntry};
use crate::store::{Heartbeat, SessionEnd, SessionHeartbeat};
use std::collections::BTreeSet;
use std::time::Duration;

/// A heartbeat of the worker of this name, which is also its lock. The one before it was answered.
fn beat(name: &str, number: u64, heartbeats: u64) -> SessionHeartbeat {
    let entry = WorkerEntry {
        lock_id: name.to_owned(),
        ..WorkerEntry::for_test(name)
    };
    let worker = entry.id();
    SessionHeartbeat {
        session: SessionId { worker, number },
        heartbeats,
        answered: heartbeats - 1,
        length: HOUR,
        entry,
    }
}

fn with_clusters(name: &str, clusters: &[&str]) -> SessionHeartbeat {
    let mut request = beat(name, 1, 1);
    let clusters = clusters.iter().map(|cluster| Box::from(*cluster));
    request.entry.clusters = clusters.collect();
    request
}

async fn send(t: &Fixture<'_>, request: &SessionHeartbeat) -> Heartbeat {
    t.store().heartbeat(request).await.unwrap()
}

async fn is_renewed(t: &Fixture<'_>, request: &SessionHeartbeat) -> bool {
    matches!(send(t, request).await, Heartbeat::Renewed { .. })
}

async fn end(t: &Fixture<'_>, request: &SessionHeartbeat, heartbeats: Option<u64>) {
    let session = request.session;
    let end = SessionEnd {
        session,
        heartbeats,
    };
    t.store().end_sessions(&[end]).await.unwrap();
}

/// The numbers of the sessions of this worker, with their last heartbeats.
async fn sessions_of(t: &Fixture<'_>, request: &SessionHeartbeat) -> Vec<(u64, u64)> {
    let sessions = t.store().sessions().await.unwrap();
    assert!(sessions.is_sorted_by_key(|session| session.id));
    let of_worker = sessions
        .into_iter()
        .filter(|it| it.id.worker == request.session.worker);
    of_worker.map(|it| (it.id.number, it.heartbeats)).collect()
}

pub(super) async fn a_heartbeat_returns_all_sessions(t: &Fixture<'_>) {
    let (a, b) = (beat("returned-a", 1, 1), beat("returned-b", 7, 1));
    assert!(is_renewed(t, &a).await);
    let Heartbeat::Renewed { sessions, .. } = send(t, &b).await else {
        panic!("no session forbids it")
    };
    for request in [&a, &b] {
        let found = sessions.iter().find(|it| it.id == request.session).unwrap();
        assert_eq!((&found.entry, found.length), (&request.entry, HOUR));
        assert!(found.expires_in <= HOUR && found.expires_in > Duration::ZERO);
    }
    assert!(is_renewed(t, &beat("returned-a", 1, 2)).await);
    assert_eq!(sessions_of(t, &a).await, [(1, 2)]);
    for request in [&a, &b] {
        end(t, request, None).await;
        assert_eq!(sessions_of(t, request).await, []);
    }
}

pub(super) async fn an_ended_session_never_comes_back(t: &Fixture<'_>) {
    let first = beat("ended", 1, 1);
    assert!(is_renewed(t, &first).await);
    end(t, &first, None).await;
    end(t, &first, None).await;
    let heartbeat = send(t, &beat("ended", 1, 2)).await;
    assert!(matches!(heartbeat, Heartbeat::Ended(_)), "{heartbeat:?}");
    assert_eq!(sessions_of(t, &first).await, []);
    assert!(is_renewed(t, &beat("ended", 2, 1)).await, "another session");
    end(t, &beat("ended", 2, 1), None).await;
}

pub(super) async fn a_session_that_has_lost_an_answered_heartbeat_ends(t: &Fixture<'_>) {
    let request = beat("went-back", 1, 1);
    assert!(is_renewed(t, &request).await);
    let unanswered = SessionHeartbeat {
        answered: 1,
        ..beat("went-back", 1, 3)
    };
    assert!(
        is_renewed(t, &unanswered).await,
        "the second one had no effect"
    );
    let ended = send(t, &beat("went-back", 1, 5)).await;
    assert!(matches!(ended, Heartbeat::Ended(_)), "{ended:?}");
    assert_eq!(sessions_of(t, &request).await, []);
}

pub(super) async fn a_heartbeat_that_a_later_one_has_overtaken_changes_nothing(t: &Fixture<'_>) {
    let request = beat("overtaken", 1, 1);
    let after_no_answer = SessionHeartbeat {
        answered: 1,
        ..beat("overtaken", 1, 3)
    };
    for request in [&request, &after_no_answer, &beat("overtaken", 1, 2)] {
        assert!(is_renewed(t, request).await);
    }
    assert_eq!(sessions_of(t, &request).await, [(1, 3)], "overtaken");
    assert!(is_renewed(t, &beat("overtaken", 1, 4)).await);
    end(t, &request, None).await;
}

pub(super) async fn a_session_that_was_renewed_meanwhile_is_not_ended(t: &Fixture<'_>) {
    let request = beat("renewed", 1, 1);
    assert!(is_renewed(t, &request).await);
    assert!(is_renewed(t, &beat("renewed", 1, 2)).await);
    end(t, &request, Some(1)).await;
    assert_eq!(sessions_of(t, &request).await, [(1, 2)]);
    end(t, &request, Some(2)).await;
    assert_eq!(sessions_of(t, &request).await, []);
}

pub(super) async fn an_expired_session_stays_until_it_is_ended(t: &Fixture<'_>) {
    let request = SessionHeartbeat {
        length: Duration::ZERO,
        ..beat("expired", 1, 1)
    };
    assert!(is_renewed(t, &request).await);
    assert_eq!(sessions_of(t, &request).await, [(1, 1)]);
    let sessions = t.store().sessions().await.unwrap();
    let expired = sessions.iter().find(|it| it.id == request.session);
    assert_eq!(expired.unwrap().expires_in, Duration::ZERO);
    assert!(is_renewed(t, &beat("expired", 1, 2)).await, "it goes on");
    end(t, &request, None).await;
}

pub(super) async fn a_name_has_one_session(t: &Fixture<'_>) {
    let (first, second) = (beat("named", 1, 1), beat("named", 2, 1));
    assert!(is_renewed(t, &first).await);
    assert!(is_renewed(t, &second).await, "it has the same lock");
    assert_eq!(sessions_of(t, &first).await, [(2, 1)]);
    let ended = send(t, &beat("named", 1, 2)).await;
    assert!(matches!(ended, Heartbeat::Ended(_)), "{ended:?}");
    let mut foreign = beat("named", 3, 1);
    foreign.entry.lock_id = "another".to_owned();
    let taken = send(t, &foreign).await;
    assert!(matches!(taken, Heartbeat::NameTaken(_)), "{taken:?}");
    assert_eq!(sessions_of(t, &first).await, [(2, 1)]);
    let expiring = SessionHeartbeat {
        length: Duration::ZERO,
        ..beat("named", 2, 2)
    };
    assert!(is_renewed(t, &expiring).await);
    let taken = send(t, &foreign).await;
    assert!(matches!(taken, Heartbeat::NameTaken(_)), "{taken:?}");
    end(t, &second, Some(2)).await;
    assert!(is_renewed(t, &foreign).await, "the other has ended");
    assert_eq!(sessions_of(t, &first).await, [(3, 1)]);
    end(t, &foreign, None).await;
}

pub(super) async fn workers_send_heartbeats_to_a_full_store(t: &Fixture<'_>) {
    t.subject.set_full(true).await;
    let request = beat("full", 1, 1);
    assert!(is_renewed(t, &request).await);
    end(t, &request, None).await;
    assert_eq!(sessions_of(t, &request).await, []);
    t.subject.set_full(false).await;
}

pub(super) async fn a_worker_that_shares_no_cluster_with_the_others_is_refused(t: &Fixture<'_>) {
    // The clusters of the other workers, if they are the reason to refuse this one.
    let refused_by = async |request: &SessionHeartbeat| match send(t, request).await {
        Heartbeat::Renewed { .. } => BTreeSet::new(),
        Heartbeat::OtherClusters(sessions) => {
            let clusters = sessions.into_iter().flat_map(|it| it.entry.clusters);
            clusters.map(String::from).collect()
        }
        other => panic!("{other:?}"),
    };
    let clusters = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (a, b, c) = (
        with_clusters("k-a", &["k1"]),
        with_clusters("k-b", &["k2", "k3"]),
        with_clusters("k-c", &["k1", "k2"]),
    );
    assert_eq!(refused_by(&a).await, clusters(&[]));
    assert_eq!(refused_by(&b).await, clusters(&["k1"]));
    assert_eq!(sessions_of(t, &b).await, [], "it was not recorded");
    assert_eq!(refused_by(&c).await, clusters(&[]));
    assert_eq!(refused_by(&b).await, clusters(&[]), "it shares k2 with c");
    end(t, &b, None).await;
    let b = with_clusters("k-b", &["k4"]);
    assert_eq!(refused_by(&b).await, clusters(&["k1", "k2"]));
    let expiring = SessionHeartbeat {
        heartbeats: 2,
        length: Duration::ZERO,
        ..a.clone()
    };
    assert_eq!(refused_by(&expiring).await, clusters(&[]));
    end(t, &c, None).await;
    assert_eq!(
        refused_by(&b).await,
        clusters(&["k1"]),
        "it has expired only"
    );
    end(t, &a, Some(2)).await;
    assert_eq!(refused_by(&b).await, clusters(&[]), "it is alone now");
    end(t, &b, None).await;
}
