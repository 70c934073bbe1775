//! The server shows that a process has gone, because its channel has no listener any more.

use super::*;
use crate::model::{SessionId, WorkerEntry};
use crate::store::{Heartbeat, Notifier, SessionHeartbeat};

struct Presence {
    real: RealRedis,
    entry: WorkerEntry,
    session: SessionId,
}

impl Presence {
    async fn send_heartbeat(&self, number: u64) {
        let request = SessionHeartbeat {
            session: self.session,
            heartbeats: number,
            answered: number - 1,
            length: Duration::from_secs(3_600),
            entry: self.entry.clone(),
        };
        let heartbeat = self.real.redis.heartbeat(&request).await.unwrap();
        assert!(matches!(heartbeat, Heartbeat::Renewed { .. }));
    }

    async fn is_connected(&self) -> bool {
        let sessions = self.real.redis.sessions().await.unwrap();
        let found = sessions.iter().find(|it| it.id == self.session);
        found.expect("it has not ended").is_connected
    }

    /// Makes the last heartbeat one to another run of the server.
    async fn set_run_id(&self, run_id: &str) {
        let (key, field) = ("pd:{test}:sessions", self.session.to_string());
        let read = format!("HGET {key} {field}");
        let value = self.real.server.command(&read).await;
        let value: String = redis::from_redis_value(value).unwrap();
        let mut words: Vec<_> = value.splitn(5, ' ').collect();
        assert_eq!(words[3].len(), 40);
        words[3] = run_id;
        let command = ["HSET", key, &field, &words.join(" ")];
        self.real.server.command_of(&command).await;
    }

    async fn listeners(&self, session: SessionId) -> u64 {
        let channel = format!("pd:{{test}}:worker:{}", session.process());
        let listeners = format!("PUBSUB NUMSUB {channel}");
        let listeners = self.real.server.command(&listeners).await;
        let (_, count): (String, u64) = redis::from_redis_value(listeners).unwrap();
        count
    }

    /// Listens as the process of this session while `body` runs.
    async fn listen_during(&self, session: SessionId, body: impl Future<Output = ()>) {
        let notifier = RedisNotifier::new(&self.real.server.options(), session).unwrap();
        let mut no_hint = |hint| panic!("{hint:?}");
        let after_subscription = async {
            while self.listeners(session).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            body.await;
        };
        tokio::select! {
            biased;
            outcome = notifier.listen(&mut no_hint) => panic!("{outcome:?}"),
            () = after_subscription => {}
        }
    }
}

#[tokio::test]
async fn a_process_has_gone_if_it_listened_at_its_last_heartbeat_and_does_not_listen_now() {
    let entry = WorkerEntry::for_test("a");
    let t = Presence {
        session: SessionId::first(entry.id(), 1),
        real: RealRedis::start().await,
        entry,
    };
    let successor = SessionId::first(t.session.worker, 2);
    t.send_heartbeat(1).await;
    assert!(t.is_connected().await, "it never listened");
    let lives = async {
        assert!(t.is_connected().await);
        t.send_heartbeat(2).await;
        assert!(t.is_connected().await);
    };
    t.listen_during(t.session, lives).await;
    let has_gone = async {
        while t.listeners(t.session).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!t.is_connected().await, "only its successor listens");
        t.set_run_id("0f").await;
        assert!(t.is_connected().await, "the server has restarted since");
        t.send_heartbeat(3).await;
        assert!(t.is_connected().await, "it has lost the subscription only");
    };
    t.listen_during(successor, has_gone).await;
}

#[tokio::test]
async fn a_copy_counts_the_workers_of_version_0_1_0_that_have_not_expired() {
    let real = RealRedis::start().await;
    assert_eq!(real.redis.older_workers().await.unwrap(), 0);
    let zadd = "ZADD pd:{test}:workers 1 expired 99999999999999 alive";
    real.server.command(zadd).await;
    assert_eq!(real.redis.older_workers().await.unwrap(), 1);
}
