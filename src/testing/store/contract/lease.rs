//! Cases for leases (I5). A lease of length zero is expired.

use super::fixture::{Fixture, HOUR};
use crate::model::{Progress, SourceIdentity};
use crate::store::{Acquired, Advanced, NewShard, Renewed};
use std::time::Duration;

pub(super) async fn a_free_lease_is_granted_to_one(t: &Fixture<'_>) {
    t.create_shard(3).await;
    let granted = t.acquire(1, HOUR).await;
    let Acquired::Granted { state, .. } = granted else {
        panic!("{granted:?}")
    };
    assert_eq!(state, t.state().await);
    assert_eq!(t.acquire(2, HOUR).await, Acquired::HeldByOther);
    assert!(matches!(t.renew(1, HOUR).await, Renewed::Renewed { .. }));
}

pub(super) async fn a_lease_is_granted_again_to_its_own_token(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.take_lease(1).await;
    assert_eq!(t.acquire(2, HOUR).await, Acquired::HeldByOther);
}

pub(super) async fn an_expired_lease_is_free(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.acquire(1, Duration::ZERO).await;
    t.take_lease(2).await;
    assert_eq!(t.acquire(1, HOUR).await, Acquired::HeldByOther);
}

pub(super) async fn a_renewed_lease_stays_held(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    assert!(matches!(t.renew(1, HOUR).await, Renewed::Renewed { .. }));
    assert_eq!(t.acquire(2, HOUR).await, Acquired::HeldByOther);
    // It is renewed until now: the length counts from the store's time, not from the old end.
    assert!(matches!(
        t.renew(1, Duration::ZERO).await,
        Renewed::Renewed { .. }
    ));
    t.take_lease(2).await;
}

pub(super) async fn an_expired_lease_that_is_still_free_can_be_renewed(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.acquire(1, Duration::ZERO).await;
    assert!(matches!(t.renew(1, HOUR).await, Renewed::Renewed { .. }));
    assert_eq!(t.acquire(2, HOUR).await, Acquired::HeldByOther);
}

pub(super) async fn an_old_holder_is_fenced(t: &Fixture<'_>) {
    t.create_shard(0).await;
    assert_eq!(t.renew(1, HOUR).await, Renewed::Fenced);
    assert_eq!(t.advance(t.empty_advance(1)).await, Advanced::Fenced);
    t.acquire(1, Duration::ZERO).await;
    t.take_lease(2).await;
    assert_eq!(t.renew(1, HOUR).await, Renewed::Fenced);
    assert_eq!(t.advance(t.empty_advance(1)).await, Advanced::Fenced);
    assert!(matches!(
        t.advance(t.empty_advance(2)).await,
        Advanced::Done { .. }
    ));
}

pub(super) async fn a_release_frees_only_the_holders_own_lease(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.release(2).await;
    assert_eq!(t.acquire(2, HOUR).await, Acquired::HeldByOther);
    t.release(1).await;
    assert_eq!(t.renew(1, HOUR).await, Renewed::Fenced);
    t.release(1).await;
    t.take_lease(2).await;
}

pub(super) async fn a_shard_of_another_cluster_is_not_taken(t: &Fixture<'_>) {
    let identity = SourceIdentity("k1:t1".into());
    let new = NewShard {
        identity: identity.clone(),
        ..t.new_shard(0, Progress::START)
    };
    t.open(new).await;
    let other = Acquired::OtherCluster(identity);
    for unrelated in ["k2:t2", "k2:-", "k2:"] {
        assert_eq!(t.acquire_for(unrelated, 1, HOUR).await, other);
    }
    assert_eq!(t.renew(1, HOUR).await, Renewed::Fenced, "nothing was taken");
    // A recreated topic, a restored cluster id, and ids that the broker or version 0.1.0 lacks.
    for (related, token) in ["k1:t2", "k2:t1", "-:t2", "k1:-", "t2", "-"]
        .iter()
        .zip(1..)
    {
        let acquired = t.acquire_for(related, token, Duration::ZERO).await;
        assert!(matches!(acquired, Acquired::Granted { .. }), "{related}");
    }
    t.take_lease(9).await;
    assert_eq!(t.acquire_for("k2:t2", 1, HOUR).await, other, "held or not");
}
