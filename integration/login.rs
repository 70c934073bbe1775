//! Tests Kafka with TLS and logins: passwords, client certificates, and tokens that expire. A wrong
//! login is reported once with its server and a fix.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::env::{Guarded, MASTER, Postdate, eventually, now_ms, redis};
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

/// The scene's configuration with other brokers and properties.
fn with_properties(kafka: &Guarded, scene: &Scene, addr: &str, properties: &str) -> String {
    let open = format!("brokers = [\"{}\"]", kafka.addr());
    let config = scene.config(redis());
    assert!(config.contains(&open));
    let ca = kafka.authority().display().to_string();
    let secure = format!(
        "brokers = [\"{addr}\"]\nproperties = {{ \"ssl.ca.location\" = \"{ca}\", {properties} }}"
    );
    config.replace(&open, &secure)
}

#[test]
fn kafka_with_client_certificates_works_and_a_missing_one_is_reported() {
    let kafka = Guarded::start(PASSWORD);
    let mut scene = Scene::new(&kafka, "mutual", 1);
    let sink = scene.sink();
    let store = kafka.client_store().display().to_string();
    let own = format!(
        "\"security.protocol\" = \"SSL\", \"ssl.keystore.location\" = \"{store}\", \"ssl.keystore.password\" = \"changeit\""
    );
    let config = with_properties(&kafka, &scene, kafka.mutual_addr(), &own);
    let postdate = Postdate::ready_with(&config);
    scene.send(20, 0..500);
    assert_eq!(scene.all_arrive(&sink), 0);
    assert!(postdate.command(&["check"]).status.success());

    let without = "\"security.protocol\" = \"SSL\"";
    let config = with_properties(&kafka, &scene, kafka.mutual_addr(), without);
    let refused = Postdate::start(&config);
    eventually("a missing certificate is reported", LIMIT, || {
        let (status, body) = refused.get("/readyz")?;
        (status == 503 && body.contains("kafka.main does not answer")).then_some(())
    });
}

#[test]
fn a_changed_password_is_used_after_a_reload() {
    let kafka = Guarded::start(PASSWORD);
    let mut scene = Scene::new(&kafka, "password", 1);
    let sink = scene.sink();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "shut-sesame-of-this-test").unwrap();
    let own = format!(
        "\"security.protocol\" = \"SASL_SSL\", \"sasl.mechanisms\" = \"SCRAM-SHA-512\", \
         \"sasl.username\" = \"{MASTER}\", \"sasl.password_file\" = \"{}\"",
        file.display()
    );
    let config = with_properties(&kafka, &scene, kafka.secure_addr(), &own);
    let mut postdate = Postdate::start(&config);
    eventually("the wrong password is reported", LIMIT, || {
        let (status, body) = postdate.get("/readyz")?;
        (status == 503 && body.contains("kafka.main does not answer")).then_some(())
    });
    std::fs::write(&file, PASSWORD).unwrap();
    postdate.hang_up();
    postdate.wait_until_ready();
    scene.send(20, 0..500);
    assert_eq!(scene.all_arrive(&sink), 0);
    assert!(!postdate.logs().contains(PASSWORD));
}

/// An identity provider. Its tokens have no signature, and are valid for some seconds.
struct Provider {
    endpoint: String,
    state: Arc<ProviderState>,
}

#[derive(Default)]
struct ProviderState {
    granted: AtomicUsize,
    refuses: AtomicBool,
}

const TOKEN_SECONDS: i64 = 4;

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/token", listener.local_addr().unwrap());
        let state = Arc::<ProviderState>::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that closes its connection ends only this connection.
                drop(shared.answer(BufReader::new(stream.unwrap())));
            }
        });
        Self { endpoint, state }
    }
}

impl ProviderState {
    /// Answers one request, and closes the connection.
    fn answer(&self, mut stream: BufReader<TcpStream>) -> std::io::Result<()> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let head = head.to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        let mut form = vec![0; length.unwrap_or_default()];
        stream.read_exact(&mut form)?;
        let is_right = String::from_utf8_lossy(&form).contains("grant_type=client_credentials")
            && head.contains("authorization: basic ");
        let (status, body) = if is_right && !self.refuses.load(Ordering::Relaxed) {
            self.granted.fetch_add(1, Ordering::Relaxed);
            ("200 OK", granted())
        } else {
            (
                "401 Unauthorized",
                r#"{"error":"invalid_client"}"#.to_owned(),
            )
        };
        write!(
            stream.get_mut(),
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

fn granted() -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let now = now_ms() / 1_000;
    let claims = format!(
        "{{\"sub\":\"{MASTER}\",\"iat\":{},\"exp\":{}}}",
        now - 1,
        now + TOKEN_SECONDS
    );
    let token = format!("{}.{}.", part("{\"alg\":\"none\"}"), part(&claims));
    format!("{{\"access_token\":\"{token}\",\"expires_in\":{TOKEN_SECONDS}}}")
}

#[test]
fn tokens_of_an_identity_provider_are_renewed_while_messages_are_delivered() {
    let (kafka, provider) = (Guarded::start(PASSWORD), Provider::start());
    let mut scene = Scene::new(&kafka, "tokens", 1);
    let sink = scene.sink();
    let own = format!(
        "\"security.protocol\" = \"SASL_SSL\", \"sasl.mechanisms\" = \"OAUTHBEARER\", \
         \"sasl.oauthbearer.method\" = \"oidc\", \"sasl.oauthbearer.client.id\" = \"postdate\", \
         \"sasl.oauthbearer.client.secret\" = \"{PASSWORD}\", \
         \"sasl.oauthbearer.token.endpoint.url\" = \"{}\"",
        provider.endpoint
    );
    let config = with_properties(&kafka, &scene, kafka.secure_addr(), &own);
    let mut postdate = Postdate::ready_with(&config);
    // Three tokens expire meanwhile, and the broker ends sessions with them.
    scene.send(200, 0..12_000);
    assert_eq!(scene.all_arrive(&sink), 0);
    let granted = provider.state.granted.load(Ordering::Relaxed);
    assert!(
        (3..40).contains(&granted),
        "all clients share a token: {granted}"
    );
    assert!(postdate.command(&["check"]).status.success());

    provider.state.refuses.store(true, Ordering::Relaxed);
    eventually("the refused token is reported", LIMIT, || {
        let (status, body) = postdate.get("/readyz")?;
        (status == 503 && body.contains("invalid_client")).then_some(())
    });
    provider.state.refuses.store(false, Ordering::Relaxed);
    postdate.wait_until_ready();
    scene.send(20, 0..500);
    let duplicates = scene.all_arrive(&sink);
    assert!(duplicates <= 20, "{duplicates}");
    assert!(!postdate.logs().contains(PASSWORD));
}
