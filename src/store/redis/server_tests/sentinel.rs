//! The primary is the server that the sentinels name, and it is looked up for each connection.

use super::*;
use crate::limit::LOOKUP_TIMEOUT;
use crate::model::{SessionId, WorkerId};
use crate::store::Notifier;
use crate::testing::fault_injection::{self, InjectedFault};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Answers as one sentinel of the group `orders` does.
#[derive(Clone)]
struct FakeSentinel {
    port: u16,
    says: Rc<Says>,
}

struct Says {
    primary: Cell<u16>,
    epoch: Cell<u64>,
    /// Instead of an answer to `SENTINEL MASTER`.
    error: RefCell<Option<&'static str>>,
    delay: Cell<Duration>,
    /// Wakes up the subscribers to `+switch-master`.
    switched: Notify,
}

impl FakeSentinel {
    async fn of(primary: &Server, epoch: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let says = Rc::new(Says {
            primary: Cell::new(primary.port),
            epoch: Cell::new(epoch),
            error: RefCell::new(None),
            delay: Cell::new(Duration::ZERO),
            switched: Notify::new(),
        });
        let sentinel = Self {
            port: listener.local_addr().unwrap().port(),
            says: says.clone(),
        };
        tokio::task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::task::spawn_local(serve(client, says.clone()));
            }
        });
        sentinel
    }

    fn slow(self, delay: Duration) -> Self {
        self.says.delay.set(delay);
        self
    }

    fn names(&self, primary: &Server, epoch: u64) {
        self.says.primary.set(primary.port);
        self.says.epoch.set(epoch);
    }

    fn fails(&self, error: &'static str) {
        self.says.error.replace(Some(error));
    }
}

async fn serve(mut client: TcpStream, says: Rc<Says>) {
    let mut buffer = [0; 4_096];
    while let Ok(length) = client.read(&mut buffer).await
        && length > 0
    {
        let command = String::from_utf8_lossy(&buffer[..length]).into_owned();
        tokio::time::sleep(says.delay.get()).await;
        let error = *says.error.borrow();
        if command.contains("SUBSCRIBE") {
            let channel = "$14\r\n+switch-master\r\n";
            let subscribed = format!("*3\r\n$9\r\nsubscribe\r\n{channel}:1\r\n");
            client.write_all(subscribed.as_bytes()).await.unwrap();
            says.switched.notified().await;
            let text = "orders 127.0.0.1 1 127.0.0.1 2";
            let message = format!(
                "*3\r\n$7\r\nmessage\r\n{channel}${}\r\n{text}\r\n",
                text.len()
            );
            client.write_all(message.as_bytes()).await.unwrap();
        } else if let Some(error) = error {
            let error = format!("-{error}\r\n");
            client.write_all(error.as_bytes()).await.unwrap();
        } else {
            let (port, epoch) = (says.primary.get().to_string(), says.epoch.get().to_string());
            let fields = ["name", "orders", "ip", "127.0.0.1", "port", &port];
            let fields = fields.into_iter().chain(["config-epoch", &epoch]);
            let text: String = fields
                .map(|field| format!("${}\r\n{field}\r\n", field.len()))
                .collect();
            client
                .write_all(format!("*8\r\n{text}").as_bytes())
                .await
                .unwrap();
        }
    }
}

fn options(sentinels: &[&FakeSentinel]) -> Options {
    let addresses = sentinels.iter().map(|sentinel| Address {
        host: "127.0.0.1".to_owned(),
        port: sentinel.port,
    });
    Options {
        servers: Servers::Sentinel(SentinelOptions {
            addresses: addresses.collect(),
            master: "orders".to_owned(),
            username: None,
            password: None,
            tls: None,
            primary_needs_tls: false,
            database: 0,
        }),
        ..Options::of_url("", "test")
    }
}

fn run<T>(fault: Option<InjectedFault>, body: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    fault_injection::with(fault, || local.block_on(&runtime, body))
}

/// The server that a connection to the group uses: `old` or `new`.
async fn used_server(redis: &Redis, old: &Server, new: &Server) -> &'static str {
    redis.open(&[new_shard("t")]).await.unwrap();
    match (old.keys().await.is_empty(), new.keys().await.is_empty()) {
        (false, true) => "old",
        (true, false) => "new",
        both => panic!("{both:?}"),
    }
}

/// One sentinel was cut off with the old primary, and answers first.
async fn used_server_with_a_sentinel_that_was_cut_off() -> &'static str {
    let (old, new) = (Server::start(), Server::start());
    let stale = FakeSentinel::of(&old, 1).await;
    let slow = Duration::from_millis(200);
    let good = FakeSentinel::of(&new, 2).await.slow(slow);
    let other = FakeSentinel::of(&new, 2).await.slow(slow);
    let redis = Redis::connect(&options(&[&stale, &good, &other])).await;
    used_server(&redis.unwrap(), &old, &new).await
}

#[test]
fn a_sentinel_that_was_cut_off_is_outvoted_by_the_newer_epoch() {
    assert_eq!(
        run(None, used_server_with_a_sentinel_that_was_cut_off()),
        "new"
    );
    let fault = Some(InjectedFault::BelieveFirstSentinel);
    assert_eq!(
        run(fault, used_server_with_a_sentinel_that_was_cut_off()),
        "old"
    );
}

#[test]
fn one_sentinel_is_enough_if_the_others_fail() {
    run(None, async {
        let server = Server::start();
        let hung = FakeSentinel::of(&server, 1).await.slow(LOOKUP_TIMEOUT * 9);
        let failing = FakeSentinel::of(&server, 1).await;
        failing.fails("ERR No such master with that name");
        let good = FakeSentinel::of(&server, 1).await;
        let began = Instant::now();
        let redis = Redis::connect(&options(&[&hung, &failing, &good])).await;
        redis.unwrap().open(&[new_shard("t")]).await.unwrap();
        let took = began.elapsed();
        assert!(took < LOOKUP_TIMEOUT + Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn each_new_connection_looks_up_the_primary_and_checks_its_role() {
    run(None, async {
        let (mut old, new) = (Server::start(), Server::start());
        let sentinel = FakeSentinel::of(&old, 1).await;
        let redis = Redis::connect(&options(&[&sentinel])).await.unwrap();
        redis.open(&[new_shard("t")]).await.unwrap();
        let replica = format!("REPLICAOF 127.0.0.1 {}", old.port);
        new.command(&replica).await;
        while !new.keys().await.contains(&key("t", "meta")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        old.kill();
        redis.state(&[shard("t")]).await.expect_err("it is down");
        sentinel.names(&new, 2);
        let refused = redis.state(&[shard("t")]).await.expect_err("a replica");
        assert!(refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains("is a replica"), "{refused}");
        new.command("REPLICAOF NO ONE").await;
        assert!(redis.state(&[shard("t")]).await.unwrap()[0].is_some());
    });
}

#[test]
fn connections_follow_an_announced_primary_while_the_old_one_answers() {
    run(None, async {
        let (old, new) = (Server::start(), Server::start());
        let sentinel = FakeSentinel::of(&old, 1).await;
        let options = options(&[&sentinel]);
        let redis = Redis::connect(&options).await.unwrap();
        redis.open(&[new_shard("old")]).await.unwrap();
        let notifier = RedisNotifier::new(&options, SessionId::first(WorkerId(1), 1)).unwrap();
        let mut no_hint = |hint| panic!("{hint:?}");
        let follow = async {
            // The subscription and the age of the connection take this time.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            sentinel.names(&new, 2);
            sentinel.says.switched.notify_waiters();
        };
        let listen = async { notifier.listen(&mut no_hint).await };
        let (listened, ()) = tokio::join!(listen, follow);
        listened.expect("it subscribes again");
        assert_eq!(redis.state(&[shard("old")]).await.unwrap(), [None]);
        redis.open(&[new_shard("new")]).await.unwrap();
        assert!(new.keys().await.contains(&key("new", "meta")));
        assert_eq!(old.keys().await, [key("old", "meta")]);
    });
}

#[test]
fn an_error_ends_the_process_only_if_no_sentinel_can_repair_it() {
    run(None, async {
        let server = Server::start();
        let [first, second] = [
            FakeSentinel::of(&server, 1).await,
            FakeSentinel::of(&server, 1).await,
        ];
        for (error, words) in [
            (
                "ERR No such master with that name",
                "store.redis.sentinel.master",
            ),
            (
                "NOAUTH Authentication required.",
                "store.redis.sentinel.password",
            ),
            (
                "ERR unknown command 'SENTINEL'",
                "store.redis.sentinel.servers",
            ),
        ] {
            first.fails(error);
            second.fails(error);
            let refused = Redis::connect(&options(&[&first, &second])).await.map(drop);
            let refused = refused.expect_err("no sentinel names it");
            assert!(!refused.is_transient(), "{refused}");
            assert!(refused.to_string().contains(words), "{refused}");
        }
        second.fails("LOADING wait");
        let refused = Redis::connect(&options(&[&first, &second])).await.map(drop);
        assert!(refused.expect_err("no answer").is_transient());
    });
}
