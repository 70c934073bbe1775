//! Another server answers at the same address: a new primary, or one that refuses the login.

use super::*;
use crate::testing::fault_injection::{self, InjectedFault};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// An address that leads to a server, like a proxy or a name. Open connections stay where they are.
struct Address {
    port: u16,
    server: Arc<AtomicU16>,
}

impl Address {
    async fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(AtomicU16::new(server.port));
        let target = server.clone();
        tokio::task::spawn_local(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = target.load(Ordering::Relaxed);
                tokio::task::spawn_local(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { port, server }
    }

    fn lead_to(&self, server: &Server) {
        self.server.store(server.port, Ordering::Relaxed);
    }
}

fn run<T>(fault: Option<InjectedFault>, body: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    fault_injection::with(fault, || local.block_on(&runtime, body))
}

async fn watermark(redis: &Redis) -> Watermark {
    let positions = redis.positions(&[shard("t")]).await.unwrap();
    positions[0].expect("the shard exists").watermark
}

/// The watermark that a connection reads which was opened before a failover. The new primary has
/// the watermark 2, and the old one has lost its link and stays at 1.
async fn watermark_after_failover() -> Watermark {
    let (old, new) = (Server::start(), Server::start());
    let address = Address::of(&old).await;
    let options = Options {
        servers: Servers::Url(format!("redis://127.0.0.1:{}", address.port)),
        ..old.options()
    };
    let writer = Redis::connect(&options).await.unwrap();
    let reader = Redis::connect(&options).await.unwrap();
    writer.open(&[new_shard("t")]).await.unwrap();
    assert_eq!(writer.append(&[append("t", 0)]).await.unwrap(), [DONE]);
    new.command(&format!("REPLICAOF 127.0.0.1 {}", old.port))
        .await;
    while !new.keys().await.contains(&key("t", "meta")) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    new.command("REPLICAOF NO ONE").await;
    address.lead_to(&new);
    old.command("REPLICAOF 127.0.0.1 1").await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(
        watermark(&reader).await,
        Watermark(1),
        "nothing tells it yet"
    );
    let refused = writer.append(&[append("t", 1)]).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert_eq!(writer.append(&[append("t", 1)]).await.unwrap(), [DONE]);
    watermark(&reader).await
}

#[test]
fn a_reader_leaves_the_old_primary_once_a_writer_has_found_the_new_one() {
    assert_eq!(run(None, watermark_after_failover()), Watermark(2));
    let fault = Some(InjectedFault::KeepConnectionsToOldServer);
    assert_eq!(run(fault, watermark_after_failover()), Watermark(1));
}

#[tokio::test]
async fn a_replica_is_not_used() {
    let (primary, replica) = (Server::start(), Server::start());
    replica
        .command(&format!("REPLICAOF 127.0.0.1 {}", primary.port))
        .await;
    let refused = Redis::connect(&replica.options()).await.map(drop);
    assert!(
        matches!(&refused, Err(Error::Unavailable(text)) if text.contains("is a replica")),
        "{refused:?}"
    );
}

/// The error after the server has changed the password of a user whose connection it closed.
async fn error_after_a_changed_password() -> Error {
    let server = Server::start();
    let set = async |password: &str| {
        let user = format!("ACL SETUSER someone on resetpass >{password} ~* &* +@all");
        server.command(&user).await;
    };
    set("first").await;
    let options = Options {
        username: Some("someone".to_owned()),
        password: Some("first".to_owned()),
        ..server.options()
    };
    let redis = Redis::connect(&options).await.unwrap();
    redis.open(&[new_shard("t")]).await.unwrap();
    set("second").await;
    server.command("CLIENT KILL TYPE normal").await;
    redis.state(&[shard("t")]).await.expect_err("it is closed");
    let refused = redis
        .state(&[shard("t")])
        .await
        .expect_err("wrong password");
    set("first").await;
    assert!(redis.state(&[shard("t")]).await.is_ok(), "it is repaired");
    refused
}

#[test]
fn a_login_that_is_refused_later_does_not_end_the_process() {
    let refused = run(None, error_after_a_changed_password());
    assert!(refused.is_transient(), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("refuses the user or the password"),
        "{refused}"
    );
    let fault = Some(InjectedFault::EndAtLateRefusal);
    assert!(!run(fault, error_after_a_changed_password()).is_transient());
}

#[tokio::test]
async fn a_call_waits_no_longer_than_its_response_timeout() {
    let server = Server::start();
    let options = Options {
        response_timeout: Duration::from_millis(300),
        ..server.options()
    };
    let redis = Redis::connect(&options).await.unwrap();
    redis.open(&[new_shard("t")]).await.unwrap();
    server.signal("STOP");
    // No other task runs, so the paused clock jumps to the timeout.
    tokio::time::pause();
    let asked = Instant::now();
    let hung = redis.state(&[shard("t")]).await;
    let waited = asked.elapsed();
    tokio::time::resume();
    assert!(matches!(hung, Err(Error::Unavailable(_))), "{hung:?}");
    assert!(waited <= Duration::from_millis(310), "{waited:?}");
}
