//! Judges the sentinels of a Redis group.

use crate::broker::inspection::Finding;
use crate::model::readable::several;
use crate::store::redis::{GroupView, RedisDescription};

/// Fewer sentinels cannot agree on a failover after the loss of one machine.
const SENTINELS_MIN: u64 = 3;

/// A finding for each sentinel.
pub(super) fn judge(redis: &RedisDescription) -> Vec<Finding> {
    let findings = redis.sentinels.iter().map(|(address, view)| {
        let subject = format!("sentinel {address}");
        match view {
            Err(error) => Finding::warn(
                &subject,
                error,
                "start it, or remove it from store.redis.sentinel.servers: fewer sentinels agree on a failover",
            ),
            Ok(view) => one(&subject, view, redis),
        }
    });
    findings.collect()
}

fn one(subject: &str, view: &GroupView, redis: &RedisDescription) -> Finding {
    let primary = view.primary.to_string();
    let sentinels = view.other_sentinels + 1;
    let found = format!(
        "names the primary {primary}, with {}. Of {}, {} must agree that it is down",
        several(view.replicas, "replica"),
        several(sentinels, "sentinel"),
        view.quorum
    );
    if primary != redis.address {
        let fix = "check its network: it has missed a failover, because another primary is in use";
        return Finding::warn(subject, found, fix);
    }
    if view.replicas == 0 {
        let fix = "add a replica: without one there is no failover";
        return Finding::warn(subject, found, fix);
    }
    if sentinels < SENTINELS_MIN || sentinels < view.quorum {
        let fix =
            "run three sentinels or more on different machines, and set the quorum to a majority";
        return Finding::warn(subject, found, fix);
    }
    Finding::ok(subject, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::inspection::Verdict::{Ok as Fine, Warn};
    use crate::store::redis::Address;

    fn address(port: u16) -> Address {
        let host = "r".to_owned();
        Address { host, port }
    }

    #[test]
    fn each_fault_of_a_sentinel_is_a_warning() {
        let good = GroupView {
            primary: address(6379),
            epoch: 1,
            replicas: 1,
            other_sentinels: 2,
            quorum: 2,
        };
        let stale = GroupView {
            primary: address(6380),
            ..good
        };
        let alone = GroupView {
            other_sentinels: 0,
            ..good.clone()
        };
        let no_replica = GroupView {
            replicas: 0,
            ..good.clone()
        };
        for (view, verdict) in [
            (Ok(good), Fine),
            (Ok(stale), Warn),
            (Ok(alone), Warn),
            (Ok(no_replica), Warn),
            (Err("refused".to_owned()), Warn),
        ] {
            let redis = RedisDescription {
                address: "r:6379".to_owned(),
                sentinels: vec![(address(26379), view)],
                ..RedisDescription::default()
            };
            let findings = judge(&redis);
            assert_eq!(findings[0].verdict, verdict, "{findings:?}");
        }
    }
}
