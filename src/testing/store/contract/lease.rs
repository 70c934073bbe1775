//! Cases for leases (I5).

use super::fixture::Fixture;
use crate::model::{LeaseToken, Progress, SourceIdentity};
use crate::store::{Acquired, Advanced, NewShard};

fn held_by(token: u64) -> Acquired {
    Acquired::HeldBy(LeaseToken::for_test(token))
}

pub(super) async fn a_free_lease_is_granted_to_one(t: &Fixture<'_>) {
    assert_eq!(t.holder().await, None, "an unknown shard");
    t.create_shard(3).await;
    assert_eq!(t.holder().await, None);
    let granted = t.acquire(1).await;
    let Acquired::Granted(state) = granted else {
        panic!("{granted:?}")
    };
    assert_eq!(state, t.state().await);
    assert_eq!(t.acquire(2).await, held_by(1));
    assert!(t.is_held_by(1).await);
    assert_eq!(t.holder().await, Some(LeaseToken::for_test(1)));
}

pub(super) async fn a_lease_is_granted_again_to_its_own_token(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.take_lease(1).await;
    assert_eq!(t.acquire(2).await, held_by(1));
}

pub(super) async fn a_lease_of_an_ended_session_is_taken_from_its_last_holder_only(
    t: &Fixture<'_>,
) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.take_over(2, 1).await;
    let by_third = t.acquire_for("topic id 1", 3, Some(1)).await;
    assert_eq!(by_third, held_by(2), "another worker was first");
    t.take_over(2, 1).await;
    t.release(2).await;
    t.take_over(3, 2).await;
}

pub(super) async fn an_old_holder_is_fenced(t: &Fixture<'_>) {
    t.create_shard(0).await;
    assert_eq!(t.advance(t.empty_advance(1)).await, Advanced::Fenced);
    t.take_lease(1).await;
    t.take_over(2, 1).await;
    assert_eq!(t.advance(t.empty_advance(1)).await, Advanced::Fenced);
    assert!(t.is_held_by(2).await);
}

pub(super) async fn a_release_frees_only_the_holders_own_lease(t: &Fixture<'_>) {
    t.create_shard(0).await;
    t.take_lease(1).await;
    t.release(2).await;
    assert_eq!(t.acquire(2).await, held_by(1));
    t.release(1).await;
    assert!(!t.is_held_by(1).await);
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
        assert_eq!(t.acquire_for(unrelated, 1, None).await, other);
    }
    assert!(!t.is_held_by(1).await, "nothing was taken");
    // A recreated topic, a restored cluster id, and ids that the broker or version 0.1.0 lacks.
    for (related, token) in ["k1:t2", "k2:t1", "-:t2", "k1:-", "t2", "-"]
        .iter()
        .zip(1..)
    {
        let acquired = t.acquire_for(related, token, Some(token - 1)).await;
        assert!(matches!(acquired, Acquired::Granted(_)), "{related}");
    }
    assert_eq!(t.acquire_for("k2:t2", 1, None).await, other, "held or not");
}
