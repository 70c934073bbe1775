//! Tests Kafka with TLS and logins: right ones work, and each wrong one is reported once with its
//! server and a fix.

use std::path::Path;
use std::time::Duration;

use crate::env::{Guarded, MASTER, Postdate, eventually, redis};
use crate::verdict::{LIMIT, Scene};

const PASSWORD: &str = "open-sesame-of-this-test";
/// Maximum number of clients in a process. Each reports its own readiness.
const CLIENTS_MAX: usize = 8;

/// The scene's configuration with the listener that requires TLS and a login.
pub(crate) fn config(
    kafka: &Guarded,
    scene: &Scene,
    (user, mechanism, password): (&str, &str, &str),
    authority: &Path,
    more: &str,
) -> String {
    let open = format!("brokers = [\"{}\"]", kafka.addr());
    let config = scene.config_with(redis(), more);
    assert!(config.contains(&open));
    let secure = format!(
        "brokers = [\"{}\"]\nproperties = {{ \"security.protocol\" = \"SASL_SSL\", \"sasl.mechanisms\" = \"{mechanism}\", \
         \"sasl.username\" = \"{user}\", \"sasl.password\" = \"{password}\", \"ssl.ca.location\" = \"{}\" }}",
        kafka.secure_addr(),
        authority.display()
    );
    config.replace(&open, &secure)
}

#[test]
fn kafka_with_tls_and_logins_works_and_wrong_ones_are_reported_once() {
    let kafka = Guarded::start(PASSWORD);
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let mut scene = Scene::new(&kafka, "login", 1);
        let sink = scene.sink();
        let postdate = Postdate::ready_with(&config(
            &kafka,
            &scene,
            (MASTER, mechanism, PASSWORD),
            &kafka.authority(),
            "",
        ));
        scene.send(20, 0..500);
        assert_eq!(scene.all_arrive(&sink), 0, "{mechanism}");
        let check = postdate.command(&["check"]);
        assert!(
            check.status.success(),
            "{mechanism}: {}",
            String::from_utf8_lossy(&check.stdout)
        );
        assert!(!postdate.logs().contains(PASSWORD));
    }
    let wrong = "shut-sesame-of-this-test";
    for (mechanism, password, authority, reason) in [
        (
            "PLAIN",
            wrong,
            kafka.authority(),
            "Authentication failed: Invalid username or password",
        ),
        (
            "SCRAM-SHA-512",
            wrong,
            kafka.authority(),
            "Authentication failed during authentication due to invalid credentials",
        ),
        (
            "SCRAM-SHA-512",
            PASSWORD,
            kafka.stranger(),
            "certificate verify failed",
        ),
    ] {
        refuses(&kafka, (mechanism, password), &authority, reason);
    }
}

/// Checks that a process with a wrong login or authority keeps retrying and reports the reason. The
/// `check` command reports it, too.
fn refuses(kafka: &Guarded, (mechanism, password): (&str, &str), authority: &Path, reason: &str) {
    let scene = Scene::new(kafka, "refused", 1);
    let mut postdate = Postdate::start(&config(
        kafka,
        &scene,
        (MASTER, mechanism, password),
        authority,
        "",
    ));
    let told = |postdate: &Postdate| {
        postdate
            .get("/readyz")
            .filter(|(status, body)| *status == 503 && body.contains(reason))
    };
    let (_, body) = eventually(reason, LIMIT, || told(&postdate));
    assert!(
        body.contains("kafka.main does not answer") && body.contains(kafka.secure_addr()),
        "{body}"
    );
    let check = postdate.command(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success() && said.contains(reason), "{said}");
    assert!(
        said.contains("check the user, the password and the certificates in kafka.main.properties"),
        "{said}"
    );
    // The process keeps retrying, but each client logs the reason only once.
    std::thread::sleep(Duration::from_secs(5));
    let logs = postdate.logs();
    let lines: Vec<_> = logs.lines().filter(|line| line.contains(reason)).collect();
    let mut parts: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split("\"part\":\"").nth(1)?.split('"').next())
        .collect();
    parts.sort_unstable();
    parts.dedup();
    eprintln!(
        "told by {} clients, as {}",
        lines.len(),
        lines.first().unwrap_or(&"")
    );
    assert!(
        !parts.is_empty() && parts.len() == lines.len() && lines.len() <= CLIENTS_MAX,
        "each client once: {lines:#?}"
    );
    for text in [&logs, &said, &body] {
        assert!(
            !text.contains(PASSWORD) && !text.contains(password),
            "{text}"
        );
    }
    assert_eq!(
        postdate.terminate().0.code(),
        Some(0),
        "{}",
        postdate.logs()
    );
}
