//! Tests that no output contains a secret.
//!
//! Every key that holds a login gets a planted word, and the test searches all output for it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::env::{Collector, Guarded, MASTER, Postdate, Redis, eventually};
use crate::login;
use crate::verdict::{LIMIT, Scene};

/// Prefix of all planted words, so that one search finds all.
const PLANTED: &str = "planted";
/// The passwords that the servers accept.
const KAFKA: &str = "planted-kafka-password";
const REDIS: &str = "planted-redis-password";

const COMMANDS: &[&[&str]] = &[
    &["check"],
    &["check", "--json"],
    &["pending"],
    &["pending", "--id", "x"],
    &["ledger"],
    &["workers"],
    &["reset", "--route", "r", "--topic", "none"],
];

fn assert_untold(what: &str, said: &str) {
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(PLANTED)).collect();
    assert!(lines.is_empty(), "{what}: {lines:#?}");
}

/// Checks the endpoints, the commands and the log of a service.
fn assert_silent(what: &str, postdate: &Postdate) {
    for path in ["/healthz", "/readyz", "/metrics", "/pending", "/ledger"] {
        let (_, body) = eventually("it answers", LIMIT, || postdate.get(path));
        assert_untold(&format!("{what}, {path}"), &body);
        let (_, body) = eventually("it answers", LIMIT, || {
            postdate.get_with(path, "Authorization: Bearer planted-admin-token")
        });
        assert_untold(&format!("{what}, {path} with the token"), &body);
    }
    // The commands run in parallel, because each waits for servers that do not answer.
    std::thread::scope(|scope| {
        for arguments in COMMANDS {
            scope.spawn(move || {
                let output = postdate.command(arguments);
                for said in [&output.stdout, &output.stderr] {
                    assert_untold(
                        &format!("{what}, {arguments:?}"),
                        &String::from_utf8_lossy(said),
                    );
                }
            });
        }
    });
    assert_untold(&format!("{what}, logs"), &postdate.logs());
}

/// The variables that override a configuration. Each one that holds a secret contains a planted
/// word.
fn planted<'a>(redis: &'a str, collector: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("POSTDATE_LOG__LEVEL", "trace"),
        ("POSTDATE_STORE__REDIS__URL", redis),
        ("POSTDATE_KAFKA__MAIN__PROPERTIES__DEBUG", "all"),
        (
            "POSTDATE_KAFKA__MAIN__PROPERTIES__SSL__KEY__PASSWORD",
            "planted-key-password",
        ),
        ("POSTDATE_ADMIN__TOKEN", "planted-admin-token"),
        (
            "POSTDATE_STORE__ENCRYPTION__KEYS",
            "k1:plantedAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        ),
        (
            "POSTDATE_RETRY_KEY",
            "planted-retry-key-of-32-characters-and-more",
        ),
        ("POSTDATE_TRACES__ENDPOINT", collector),
        (
            "POSTDATE_TRACES__AUTHORIZATION",
            "Bearer planted-authorization",
        ),
    ]
}

#[test]
fn no_secret_is_shown_if_servers_work_refuse_a_login_or_are_unreachable() {
    let (kafka, redis, collector) = (Guarded::start(KAFKA), Redis::start(), Collector::start());
    let allow = format!(">{REDIS}");
    redis::cmd("ACL")
        .arg(&["SETUSER", "tenant", "on", &allow, "~*", "+@all"])
        .exec(&mut redis.client())
        .unwrap();
    let login = |password: &str| {
        redis
            .url()
            .replace("redis://", &format!("redis://tenant:{password}@"))
    };
    let (right, wrong) = (login(REDIS), login("planted-wrong-password"));
    let mut scene = Scene::new(&kafka, "secrets", 1);
    let sink = scene.sink();
    let config = |password: &str| {
        login::config(
            &kafka,
            &scene,
            (MASTER, "SCRAM-SHA-512", password),
            &kafka.authority(),
            "",
        )
    };

    let (works, refused) = (config(KAFKA), config("planted-wrong-password"));
    let mut postdate = Postdate::start_with(&works, &planted(&right, &collector.url()));
    postdate.wait_until_ready();
    scene.send(5, 0..500);
    scene.all_arrive(&sink);
    assert_silent("what works", &postdate);
    // `send` is not in `COMMANDS`, because it needs a working Kafka.
    let sent = postdate.command(&["send", "--route", "r", "--in", "1h", "x"]);
    assert!(sent.status.success());
    assert_untold(
        "send",
        &format!(
            "{}{}",
            String::from_utf8_lossy(&sent.stdout),
            String::from_utf8_lossy(&sent.stderr)
        ),
    );
    assert!(
        postdate.logs().contains("\"target\":\"librdkafka\""),
        "it is not as talkative as it should be"
    );
    postdate.terminate();
    assert_untold("what ended", &postdate.logs());

    let postdate = Postdate::start_with(&refused, &planted(&right, &collector.url()));
    eventually("Kafka refuses it", LIMIT, || {
        postdate
            .logs()
            .contains("Authentication failed")
            .then_some(())
    });
    assert_silent("a login that Kafka refuses", &postdate);

    let mut postdate = Postdate::start_with(&works, &planted(&wrong, &collector.url()));
    assert_eq!(
        postdate.wait_until_ended().code(),
        Some(1),
        "a wrong password does not become right by waiting"
    );
    assert!(
        postdate.logs().contains("refuses the user or the password"),
        "{}",
        postdate.logs()
    );
    assert_untold("a login that Redis refuses", &postdate.logs());

    let nobody = "redis://tenant:planted-password-in-url@127.0.0.1:1";
    let away = works.replace(kafka.secure_addr(), "127.0.0.1:1");
    let postdate = Postdate::start_with(&away, &planted(nobody, "http://127.0.0.1:1"));
    eventually("nobody is there", LIMIT, || {
        postdate.logs().contains("Connection refused").then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_silent("servers that are away", &postdate);
}

/// The errors of `postdate check` for a configuration that ends with these lines.
fn said_of(folder: &Path, lines: &str) -> String {
    let head = "deployment = \"d\"\n[route.r]\nsource = { kafka = \"main\", topics = [\"a\"] }\ntarget = { kafka = \"main\", topic = \"b\" }\n\
                dead_letter = { kafka = \"main\", topic = \"c\" }\n";
    std::fs::write(folder.join("broken.toml"), format!("{head}{lines}\n")).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_postdate"));
    let output = program
        .args(["check", "--config", "broken.toml"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{lines}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn no_mistake_in_a_configuration_reveals_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("secret"),
        "planted in a file\nplanted in its second line\n",
    )
    .unwrap();
    let kafka = "[kafka.main]\nbrokers = [\"127.0.0.1:1\"]\n";
    for lines in [
        "[store.redis]\nurl = \"planted\"",
        "[store.redis]\nurl = \"http://u:planted@h\"",
        "[store.redis]\nurl = \"redis://u:planted@h:x\"",
        "[store.redis]\nurl_file = \"secret\"",
        "[store.redis]\nurl = [\"planted\"]",
        "[store.redis]\nurl = \"redis://h\"\npassword = [\"planted\"]",
        "[store.redis]\nurl = \"redis://h\"\npassword = { a = \"planted\" }",
        "[store.redis]\nurl = \"redis://h\"\npassword = \"planted\"\npassword_file = \"secret\"",
        "[store.redis]\nurl = \"redis://u:planted@h\"\nusername = \"u\"\npassword = \"planted\"",
        "[store.redis]\nurl = \"redis://h\"\npassword = \"planted",
        "[store.encryption]\nkeys = \"a:planted\"",
        "[store.encryption]\nkeys = \"planted\"",
        "[store.encryption]\nkeys_file = \"secret\"",
        "[admin]\ntoken = \"planted\"",
        "[admin]\ntoken = [\"planted\"]",
        "[admin]\ntoken_file = \"secret\"",
        "[traces]\nauthorization = \"planted\"",
        "[traces]\nendpoint = \"http://u:planted@h\"",
        "[traces]\nendpoint = \"http://h\"\nauthorization = { a = \"planted\" }",
        "[traces]\nendpoint = \"http://h\"\nauthorization_file = \"secret\"",
        "[nats.edge]\nurl = \"planted planted\"",
        "[nats.edge]\nurl = \"http://u:planted@h\"",
        "[nats.edge]\nurl = \"nats://u:planted@h:x\"",
        "[nats.edge]\nurl = [\"nats://planted@h\"]",
        "[nats.edge]\nurl = \"nats://planted@h\"\ntoken = \"planted\"",
        "[nats.edge]\nurl = \"nats://h\"\npassword = \"planted\"",
        "[nats.edge]\nurl = \"nats://h\"\ntoken = [\"planted\"]",
        "[nats.edge]\nurl = \"nats://h\"\nnkey = \"planted\"\nnkey_file = \"secret\"",
        "[nats.edge]\nurl = \"nats://h\"\ntoken = \"planted\"\ncredentials = \"planted\"",
        "[kafka.main.properties]\n\"sasl.password\" = [\"planted\"]",
        "[kafka.main.properties]\n\"sasl.password\" = \"planted\"\n\"sasl.password_file\" = \"secret\"",
        "[kafka.main.properties]\n\"sasl.pass word\" = \"planted\"",
        "[kafka.main.properties]\n\"group.id\" = \"planted\"",
        "[kafka.main.properties]\n\"sasl.password\" = \"planted\" \"planted\"",
    ] {
        assert_untold(lines, &said_of(folder.path(), &format!("{kafka}{lines}")));
    }
}
