//! Tests NATS with TLS, logins and clusters: right settings work, and each wrong one is reported
//! once with its server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::{kv, stream};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::env::{Nats, Options, PATIENCE, Postdate, eventually, folder, free_port, redis, unique};
use crate::nats::{ALONE, MANY, assert_each_once, config, create_streams, publish_many};

/// Maximum number of clients in a process. Each reports its own readiness.
const CLIENTS_MAX: usize = 5;

/// A configuration with one route. `lines` configure the connection to the cluster.
fn text(name: &str, own: &Nats, lines: &str) -> String {
    let routes = ALONE.replace("url = \"NATS\"", &format!("url = \"NATS\"\n{lines}"));
    config(name, &redis().url(), &own.url(), &routes)
}

/// Checks that messages arrive with these lines and that `check` finds no problem.
fn works(own: &Nats, lines: &str) {
    let name = unique("login");
    create_streams(own, &name);
    let postdate = Postdate::ready_with(&text(&name, own, lines));
    own.publish(&format!("{name}.in.a"), &[], "x");
    own.wait_for(&format!("{name}_OUT"), 1, PATIENCE);
    let check = postdate.command(&["check"]);
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
}

/// Checks that the process keeps retrying with wrong lines and that each client logs the reason
/// once. The `check` command reports it, too.
fn refuses(own: &Nats, lines: &str, reason: &str) {
    let name = unique("refused");
    let seed = lines
        .strip_prefix("nkey = ")
        .map(|seed| seed.trim_matches('"'));
    let mut postdate = Postdate::start(&text(&name, own, lines));
    let told = |postdate: &Postdate| {
        postdate
            .get("/readyz")
            .filter(|(status, body)| *status == 503 && body.contains(reason))
    };
    let (_, body) = eventually(reason, PATIENCE, || told(&postdate));
    assert!(
        body.contains("nats.edge") && body.contains(&own.addr()),
        "{body}"
    );
    let check = postdate.command(&["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        !check.status.success() && said.contains(reason) && said.contains("nats.edge"),
        "{said}"
    );
    // The process keeps retrying, but each client logs the reason only once.
    std::thread::sleep(Duration::from_secs(4));
    let logs = postdate.logs();
    let lines: Vec<_> = logs.lines().filter(|line| line.contains(reason)).collect();
    assert!(
        (1..=CLIENTS_MAX).contains(&lines.len()),
        "each client once: {lines:#?}"
    );
    let mut different = lines
        .iter()
        .map(|line| line.split_once("\"part\":").map_or(*line, |(_, part)| part))
        .collect::<Vec<_>>();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), lines.len(), "each client once: {lines:#?}");
    for secret in ["secret", "wrong-word"].into_iter().chain(seed) {
        assert!(
            ![&logs, &said, &body]
                .iter()
                .any(|text| text.contains(secret)),
            "{logs}"
        );
    }
    assert_eq!(
        postdate.terminate().0.code(),
        Some(0),
        "{}",
        postdate.logs()
    );
}

const VIOLATION: &str = "authorization violation";

#[test]
fn a_user_with_a_password_is_used_and_a_wrong_one_is_one_clear_error() {
    let own = Nats::start_with(
        "authorization { user: postdate, password: secret }",
        Some(("postdate", "secret")),
    );
    works(&own, "username = \"postdate\"\npassword = \"secret\"");
    refuses(
        &own,
        "username = \"postdate\"\npassword = \"wrong-word\"",
        VIOLATION,
    );
    refuses(&own, "", VIOLATION);
    let name = unique("address");
    create_streams(&own, &name);
    let in_address = own.url().replace("://", "://postdate:secret@");
    drop(Postdate::ready_with(&config(
        &name,
        &redis().url(),
        &in_address,
        ALONE,
    )));
}

#[test]
fn a_token_is_used_and_a_wrong_one_is_one_clear_error() {
    let options: Options = Arc::new(|| ConnectOptions::new().token("secret".to_owned()));
    let own = Nats::start_as("authorization { token: secret }", options);
    works(&own, "token = \"secret\"");
    refuses(&own, "token = \"wrong-word\"", VIOLATION);
}

#[test]
fn an_nkey_is_used_and_another_is_one_clear_error() {
    let (right, wrong) = (KeyPair::new_user(), KeyPair::new_user());
    let seed = right.seed().unwrap();
    let (server, line) = (
        format!(
            "authorization {{ users: [{{ nkey: {} }}] }}",
            right.public_key()
        ),
        format!("nkey = \"{seed}\""),
    );
    let own = Nats::start_as(
        &server,
        Arc::new(move || ConnectOptions::new().nkey(seed.clone())),
    );
    works(&own, &line);
    refuses(
        &own,
        &format!("nkey = \"{}\"", wrong.seed().unwrap()),
        VIOLATION,
    );
}

/// The keys that `nsc` creates: of an operator, an account with JetStream, and a system account.
struct Issuer {
    operator: KeyPair,
    account: KeyPair,
    system: KeyPair,
}

impl Issuer {
    fn new() -> Issuer {
        Issuer {
            operator: KeyPair::new_operator(),
            account: KeyPair::new_account(),
            system: KeyPair::new_account(),
        }
    }

    /// The lines of the server's configuration.
    fn server(&self) -> String {
        let unlimited = [
            "subs", "data", "payload", "imports", "exports", "conn", "leaf",
        ];
        let storage = ["mem_storage", "disk_storage", "streams", "consumer"];
        let limits = |names: &[&str]| -> Value {
            let each = names.iter().map(|name| ((*name).to_owned(), json!(-1)));
            each.chain([("wildcards".to_owned(), json!(true))])
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let account = |keys: &KeyPair, names: &[&str]| {
            let claims = json!({ "limits": limits(names), "type": "account", "version": 2 });
            token(&self.operator, &keys.public_key(), &claims)
        };
        let operator = token(
            &self.operator,
            &self.operator.public_key(),
            &json!({ "type": "operator", "version": 2 }),
        );
        let (first, second) = (self.account.public_key(), self.system.public_key());
        format!(
            "operator: \"{operator}\"\nsystem_account: {second}\nresolver: MEMORY\nresolver_preload {{\n{first}: \"{}\"\n{second}: \"{}\"\n}}",
            account(&self.account, &[&unlimited[..], &storage[..]].concat()),
            account(&self.system, &unlimited)
        )
    }

    /// A credentials file of a new user.
    fn credentials(&self) -> String {
        let user = KeyPair::new_user();
        let claims = json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 });
        let (jwt, seed) = (
            token(&self.account, &user.public_key(), &claims),
            user.seed().unwrap(),
        );
        let block = |what: &str, text: &str| {
            format!("-----BEGIN {what}-----\n{text}\n------END {what}------\n")
        };
        block("NATS USER JWT", &jwt) + "\n" + &block("USER NKEY SEED", &seed)
    }
}

/// A JWT with `claims` about `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let body = json!({ "jti": "test", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test", "sub": subject, "nats": claims });
    let text = format!(
        "{}.{}",
        part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })),
        part(&body)
    );
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn a_credentials_file_is_used_and_one_of_another_account_is_one_clear_error() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    let right = issuer.credentials();
    let folder = folder("credentials");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        format!("credentials_file = \"{}\"", path.display())
    };
    let line = file("right.creds", &right);
    let own = Nats::start_as(
        &issuer.server(),
        Arc::new(move || {
            ConnectOptions::new()
                .credentials(&right)
                .expect("a credentials file")
        }),
    );
    works(&own, &line);
    refuses(
        &own,
        &file("stranger.creds", &stranger.credentials()),
        VIOLATION,
    );
    refuses(
        &own,
        &file("no.creds", "not one"),
        "the credentials are not those of a NATS credentials file",
    );
}

/// A certificate authority, in a folder with the certificates that it signed.
struct Authority(PathBuf);

impl Authority {
    fn new(name: &str) -> Authority {
        let authority = Authority(folder(name));
        authority.openssl(&format!("-keyout ca.key -out ca.pem -subj /CN={name}"));
        authority
    }

    /// Creates a certificate for this machine. Returns the paths of the certificate and its key.
    fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let names =
            "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
        self.openssl(&format!(
            "-CA ca.pem -CAkey ca.key -keyout {name}.key -out {name}.pem -subj /CN={name} {names}"
        ));
        (
            self.path(&format!("{name}.pem")),
            self.path(&format!("{name}.key")),
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, arguments: &str) {
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let mut tool = Command::new("openssl");
        tool.current_dir(&self.0)
            .args(["req", "-x509", "-nodes", "-days", "3650"])
            .args(curve)
            .args(arguments.split(' '));
        let output = tool.output().expect("openssl is there");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn tls_is_used_and_what_is_wrong_with_it_is_one_clear_error() {
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let ((certificate, key), ca) = (authority.sign("server"), authority.path("ca.pem"));
    let files = |certificate: &Path, key: &Path, ca: &Path| {
        format!("cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, timeout: 5")
    };
    let trusted = ca.clone();
    let options: Options = Arc::new(move || {
        ConnectOptions::new()
            .add_root_certificates(trusted.clone())
            .require_tls(true)
    });
    let own = Nats::start_as(
        &format!("tls {{ {} }}", files(&certificate, &key, &ca)),
        options,
    );
    works(&own, &format!("ca = {ca:?}"));
    refuses(
        &own,
        &format!("ca = {:?}", stranger.path("ca.pem")),
        "invalid peer certificate",
    );
    refuses(&own, "", "invalid peer certificate");
    // This server requires client certificates, too.
    let ((certificate_of, key_of), (strange, strange_key)) =
        (authority.sign("client"), stranger.sign("client"));
    let (trusted, mine) = (ca.clone(), (certificate_of.clone(), key_of.clone()));
    let options = move || {
        let options = ConnectOptions::new()
            .add_root_certificates(trusted.clone())
            .require_tls(true);
        options.add_client_certificate(mine.0.clone(), mine.1.clone())
    };
    let own = Nats::start_as(
        &format!("tls {{ {}, verify: true }}", files(&certificate, &key, &ca)),
        Arc::new(options),
    );
    let lines = |certificate: &Path, key: &Path| {
        format!("ca = {ca:?}\ncertificate = {certificate:?}\ncertificate_key = {key:?}")
    };
    works(&own, &lines(&certificate_of, &key_of));
    refuses(&own, &lines(&strange, &strange_key), "received fatal alert");
}

/// One server of the list is down from the start. Each other server is killed and restarted in
/// turn, so the server in use is killed, too.
#[test]
fn a_cluster_with_killed_servers_loses_and_duplicates_nothing() {
    let (name, down) = (unique("three"), free_port());
    let mut servers = Nats::start_cluster();
    let replicated = |servers: &[Nats; 3]| {
        servers[0].ask(async |context| {
            for (stream, subject) in [("IN", "in.>"), ("OUT", "out.>"), ("DEAD", "dead")] {
                let subjects = vec![format!("{name}.{subject}")];
                let config = stream::Config {
                    name: format!("{name}_{stream}"),
                    subjects,
                    num_replicas: 3,
                    ..stream::Config::default()
                };
                if context.get_or_create_stream(config).await.is_err() {
                    return None;
                }
            }
            let bucket = kv::Config {
                bucket: format!("postdate-{name}"),
                history: 1,
                num_replicas: 3,
                ..kv::Config::default()
            };
            context.create_key_value(bucket).await.ok().map(drop)
        })
    };
    eventually("the cluster has a leader", PATIENCE, || {
        replicated(&servers)
    });
    let all = servers
        .iter()
        .fold(format!("nats://127.0.0.1:{down}"), |all, server| {
            format!("{all},{}", server.url())
        });
    let postdate = Postdate::ready_with(&config(&name, &redis().url(), &all, ALONE));
    let out = format!("{name}_OUT");
    for turn in 0..3 {
        let from = turn as u64 * MANY;
        publish_many(&servers[(turn + 1) % 3], &name, from, "3s");
        servers[turn].kill();
        let (survivor, expected) = (&servers[(turn + 1) % 3], from + MANY);
        let arrived = eventually("as many arrive as were sent", 2 * PATIENCE, || {
            count(survivor, &out).filter(|count| *count >= expected)
        });
        assert_eq!(arrived, expected, "none twice");
        eventually("it is ready", PATIENCE, || postdate.ready().then_some(()));
        servers[turn].restart();
        // The test's own client does not retry a publish.
        eventually("every stream has a leader again", PATIENCE, || {
            replicated(&servers)
        });
    }
    assert_each_once(&servers[0].stored(&out), 3 * MANY);
}

/// Returns `None` while the stream has no leader.
fn count(server: &Nats, stream: &str) -> Option<u64> {
    server.ask(async |context| {
        Some(
            context
                .get_stream(stream)
                .await
                .ok()?
                .cached_info()
                .state
                .messages,
        )
    })
}

/// The streams are behind a leaf node. Postdate connects to the hub, which has a domain of its own.
#[test]
fn streams_of_another_domain_are_read_by_its_name() {
    let leaves = free_port();
    let hub = Nats::start_in(
        "hub",
        &format!("server_name: hub\nleafnodes {{ listen: \"127.0.0.1:{leaves}\" }}"),
    );
    let remotes = format!("leafnodes {{ remotes: [{{ url: \"nats://127.0.0.1:{leaves}\" }}] }}");
    let own = Nats::start_in("leaf", &format!("server_name: leaf\n{remotes}"));
    let name = unique("domain");
    create_streams(&own, &name);
    let postdate = Postdate::ready_with(&text(&name, &hub, "domain = \"leaf\""));
    publish_many(&own, &name, 0, "2s");
    own.wait_for(&format!("{name}_OUT"), MANY, PATIENCE);
    assert_each_once(&own.stored(&format!("{name}_OUT")), MANY);
    assert!(postdate.command(&["check"]).status.success());
    let elsewhere = Postdate::start(&text(&name, &hub, "")).command(&["check"]);
    assert!(String::from_utf8_lossy(&elsewhere.stdout).contains("there is no such stream"));
}
