//! Tests who may read the admin endpoint: a stranger learns only that the process lives.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use crate::changes::{READER, Service, run_at};
use crate::env::{PATIENCE, Papers, Postdate, eventually, kafka, redis};
use crate::verdict::Scene;

const TOKEN: &str = "3f9c1c7e-of-this-test";

#[test]
fn without_its_token_the_endpoint_reveals_only_that_the_process_lives() {
    let scene = Scene::new(kafka(), "guarded", 1);
    let mut postdate = Postdate::start_with(
        &scene.config_stored("", ""),
        &[("POSTDATE_ADMIN__TOKEN", TOKEN)],
    );
    postdate.wait_until_ready();
    assert_eq!(
        postdate.get("/healthz").map(|(status, _)| status),
        Some(200)
    );
    for path in [
        "/metrics",
        "/pending",
        "/pending?route=r",
        "/ledger",
        "/nothing",
    ] {
        let (status, body) = postdate.get(path).expect("it answers");
        assert_eq!(status, 401, "{path}: {body}");
        assert!(
            !body.contains(TOKEN) && !body.contains(&scene.source),
            "{path}: {body}"
        );
        let (status, _) = postdate
            .get_with(path, "Authorization: Bearer 3f9c1c7e-of-this-tesT")
            .expect("it answers");
        assert_eq!(status, 401, "{path}: one letter is wrong");
        let (status, body) = postdate
            .get_with(path, &format!("Authorization: Bearer {TOKEN}"))
            .expect("it answers");
        assert_eq!(
            status,
            if path == "/nothing" { 404 } else { 200 },
            "{path}: {body}"
        );
    }
    // A command in the same folder reads the same configuration, and so the token.
    for command in ["pending", "ledger"] {
        let said = postdate.command(&[command]);
        assert!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
    }
    assert!(!postdate.logs().contains(TOKEN));
}

#[test]
fn a_public_address_is_refused_without_a_token_and_accepted_with_one() {
    let scene = Scene::new(kafka(), "open", 1);
    let mut open = Postdate::start_with(
        &scene.config(redis()),
        &[("POSTDATE_ADMIN__LISTEN", "0.0.0.0:0")],
    );
    assert_eq!(open.wait_until_ended().code(), Some(2));
    let said = open.logs();
    assert!(
        said.contains("key:  admin.listen")
            && said.contains("other machines can reach")
            && said.contains("token_file"),
        "{said}"
    );
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), format!("{TOKEN}\n")).unwrap();
    let variables = [
        ("POSTDATE_ADMIN__LISTEN", "0.0.0.0:0"),
        ("POSTDATE_ADMIN__TOKEN_FILE", token.path().to_str().unwrap()),
    ];
    let mut guarded = Postdate::start_with(&scene.config(redis()), &variables);
    eventually("it listens", PATIENCE, || {
        guarded
            .logs()
            .contains("admin endpoint listens")
            .then_some(())
    });
    assert!(guarded.runs(), "{}", guarded.logs());
}

#[test]
fn a_flood_of_connections_leaves_descriptors_for_brokers_and_the_store() {
    const FLOOD: usize = 500;
    // The bound of connections, and what brokers and the store open meanwhile.
    const MORE: usize = 128 + 72;
    let scene = Scene::new(kafka(), "flood", 1);
    let service = Service::start(&scene.config(redis()));
    let sink = scene.sink();
    let limit = service.0.descriptors() + MORE;
    service.0.limit_descriptors(limit);
    let halves = [
        &b"GET /v1/routes HTTP/1.1\r\n"[..],
        b"",
        b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
    ];
    let open: Vec<_> = (0..FLOOD)
        .filter_map(|index| {
            let mut stream = TcpStream::connect(("127.0.0.1", service.0.port())).ok()?;
            let _ = stream.write_all(halves[index % halves.len()]);
            Some(stream)
        })
        .collect();
    assert!(service.0.descriptors() <= limit);
    // A change opens a producer, and a query a connection to the store.
    service.publish("flood", "1s", "arrives");
    let record = sink.wait_for(1, PATIENCE).remove(0);
    assert_eq!(record.payload.as_deref(), Some(&b"arrives"[..]));
    assert_eq!(service.curl(READER, "/v1/routes", &[]).0, 200);
    assert!(service.0.ready());
    for mut stream in open {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = stream.read_to_end(&mut Vec::new());
        let is_open = |error: &std::io::Error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        };
        assert!(!ended.as_ref().is_err_and(is_open), "{ended:?}");
    }
}

/// Starts a process whose admin endpoint speaks TLS and accepts client certificates of `ca`.
fn start(papers: &Papers, config: &str, more: &[(&str, &str)]) -> Postdate {
    let files = [
        ("CERTIFICATE", "service.crt"),
        ("CERTIFICATE_KEY", "service.key"),
        ("CLIENT_CA", "ca.crt"),
    ];
    let files = files.map(|(key, file)| (format!("POSTDATE_ADMIN__{key}"), papers.path(file)));
    let variables: Vec<_> = files
        .iter()
        .map(|(key, path)| (key.as_str(), path.as_str()))
        .chain(more.iter().copied())
        .collect();
    Postdate::start_with(config, &variables)
}

/// A probe like a kubelet's: TLS without verification and without a client certificate.
const PROBE: [&str; 1] = ["--insecure"];
const SCRAPER: [&str; 6] = [
    "--cacert",
    "ca.crt",
    "--cert",
    "scraper.crt",
    "--key",
    "scraper.key",
];
const STRANGER: [&str; 6] = [
    "--cacert",
    "ca.crt",
    "--cert",
    "stranger.crt",
    "--key",
    "stranger.key",
];

#[test]
fn only_a_client_certificate_reveals_more_than_that_the_process_lives() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "certified", 1));
    let mut postdate = start(&papers, &scene.config_stored("", ""), &[]);
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", postdate.port());
    // Silent connections must not block other clients.
    let _silent: Vec<_> = (0..20)
        .filter_map(|_| TcpStream::connect(("127.0.0.1", postdate.port())).ok())
        .collect();
    eventually("it is ready", PATIENCE, || {
        (papers.curl(&PROBE, &url("/readyz")).0 == 200).then_some(())
    });
    assert_eq!(papers.curl(&PROBE, &url("/healthz")).0, 200);
    for path in ["/metrics", "/pending", "/ledger", "/nothing"] {
        let (status, body) = papers.curl(&["--cacert", "ca.crt"], &url(path));
        assert!(
            status == 403 && body.contains("client certificate") && !body.contains(&scene.source),
            "{path}: {status} {body}"
        );
        let (status, body) = papers.curl(&SCRAPER, &url(path));
        assert_eq!(
            status,
            if path == "/nothing" { 404 } else { 200 },
            "{path}: {body}"
        );
        assert_eq!(
            papers.curl(&STRANGER, &url(path)),
            (0, String::new()),
            "{path}: another authority's certificate is no certificate"
        );
    }
    assert!(
        papers
            .curl(&SCRAPER, &url("/metrics"))
            .1
            .contains("postdate_ready 1")
    );
    let plain = format!("http://127.0.0.1:{}/metrics", postdate.port());
    assert_eq!(
        papers.curl(&[], &plain),
        (0, String::new()),
        "nothing is answered in plain text"
    );
    // The command cannot read an endpoint with TLS, so it prints the URL to ask instead.
    let said = String::from_utf8(postdate.command(&["pending"]).stderr).unwrap();
    assert!(
        said.contains("it speaks TLS (admin.certificate)") && said.contains(&url("/pending")),
        "{said}"
    );
    assert_eq!(
        postdate.terminate().0.code(),
        Some(0),
        "{}",
        postdate.logs()
    );
}

#[test]
fn a_token_and_a_certificate_are_both_required_if_both_are_configured() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "doubly", 1));
    let postdate = start(
        &papers,
        &scene.config_stored("", ""),
        &[("POSTDATE_ADMIN__TOKEN", TOKEN)],
    );
    let url = format!("https://127.0.0.1:{}/metrics", postdate.port());
    let login = format!("Authorization: Bearer {TOKEN}");
    let status = |arguments: &[&str]| papers.curl(arguments, &url).0;
    eventually("it answers", PATIENCE, || {
        (status(&SCRAPER) == 401).then_some(())
    });
    assert_eq!(status(&["--cacert", "ca.crt", "--header", &login]), 403);
    assert_eq!(status(&[&SCRAPER[..], &["--header", &login]].concat()), 200);
}

/// Publishes a message due tomorrow with these arguments of curl. Returns the status.
fn publish(papers: &Papers, postdate: &Postdate, scheme: &str, arguments: &[&str]) -> u16 {
    let url = format!(
        "{scheme}://127.0.0.1:{}/v1/routes/r/messages",
        postdate.port()
    );
    let message = ["--header", "postdate-after: 24h", "--data", "x"];
    papers.curl(&[arguments, &message].concat(), &url).0
}

#[test]
fn a_client_certificate_with_the_name_of_an_operator_may_change_something() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "deployer", 1));
    let operators = (
        "POSTDATE_ADMIN__OPERATOR_CERTIFICATES",
        "[\"deploy.example.com\"]",
    );
    let postdate = start(&papers, &scene.config_stored("", ""), &[operators]);
    eventually("it is ready", PATIENCE, || {
        let url = format!("https://127.0.0.1:{}/readyz", postdate.port());
        (papers.curl(&PROBE, &url).0 == 200).then_some(())
    });
    let deployer = SCRAPER.map(|argument| match argument {
        "scraper.crt" => "deployer.crt",
        "scraper.key" => "deployer.key",
        other => other,
    });
    assert_eq!(publish(&papers, &postdate, "https", &SCRAPER), 403);
    assert_eq!(publish(&papers, &postdate, "https", &deployer), 201);
    let logs = postdate.logs();
    assert!(logs.contains("\"actor\":\"deploy.example.com\""), "{logs}");
}

#[test]
fn the_users_of_a_proxy_may_read_and_only_operators_may_change_something() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "signedon", 1));
    let config = scene.config_stored("", "");
    let users = [
        ("POSTDATE_ADMIN__USER_HEADER", "X-Forwarded-Email"),
        ("POSTDATE_ADMIN__PROXIES", "[\"127.0.0.1\"]"),
        ("POSTDATE_ADMIN__OPERATORS", "[\"ada@example.com\"]"),
    ];
    let mut postdate = Postdate::start_with(&config, &users);
    postdate.wait_until_ready();
    let url = format!("http://127.0.0.1:{}/v1/routes", postdate.port());
    let named = |name: &str| ["--header".to_owned(), format!("X-Forwarded-Email: {name}")];
    let (ada, bob) = (named("ada@example.com"), named("bob@example.com"));
    let (ada, bob) = (
        ada.each_ref().map(|it| &**it),
        bob.each_ref().map(|it| &**it),
    );
    assert_eq!(papers.curl(&[], &url).0, 401, "nobody is named");
    assert_eq!(
        papers.curl(&[bob, ada].concat(), &url).0,
        401,
        "two are named"
    );
    assert_eq!(papers.curl(&bob, &url).0, 200);
    assert_eq!(publish(&papers, &postdate, "http", &bob), 403);
    assert_eq!(publish(&papers, &postdate, "http", &ada), 201);
    let audit = url.replace("routes", "audit");
    eventually("the audit list names the user", PATIENCE, || {
        let list = papers.curl(&bob, &audit).1;
        list.contains("ada@example.com").then_some(())
    });

    let elsewhere = [
        users[0],
        ("POSTDATE_ADMIN__PROXIES", "[\"10.1.0.0/16\"]"),
        users[2],
    ];
    let other = Scene::new(kafka(), "unsigned", 1);
    let mut postdate = Postdate::start_with(&other.config_stored("", ""), &elsewhere);
    postdate.wait_until_ready();
    let url = format!("http://127.0.0.1:{}/v1/routes", postdate.port());
    assert_eq!(
        papers.curl(&ada, &url).0,
        401,
        "the sender is no trusted proxy"
    );
}

#[test]
fn a_public_address_is_accepted_with_a_client_ca_and_unusable_files_are_refused() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "files", 1));
    let config = scene.config_stored("", "");
    let open = start(&papers, &config, &[("POSTDATE_ADMIN__LISTEN", "0.0.0.0:0")]);
    eventually("it listens", PATIENCE, || {
        open.logs().contains("admin endpoint listens").then_some(())
    });
    for (key, file, words) in [
        ("CERTIFICATE", "none.crt", "cannot be used"),
        (
            "CERTIFICATE",
            "service.key",
            "it contains no PEM certificate",
        ),
        ("CERTIFICATE_KEY", "service.crt", "cannot be used"),
        ("CERTIFICATE_KEY", "stranger.key", "do not belong together"),
        ("CLIENT_CA", "openssl.cnf", "it contains no PEM certificate"),
    ] {
        let (name, path) = (format!("POSTDATE_ADMIN__{key}"), papers.path(file));
        let mut refused = start(&papers, &config, &[(name.as_str(), path.as_str())]);
        assert_eq!(refused.wait_until_ended().code(), Some(2), "{key}={file}");
        let said = refused.logs();
        let at = format!("key:  admin.{}", key.to_lowercase());
        assert!(
            said.contains(&at) && said.contains(words),
            "{key}={file}: {said}"
        );
    }
}

#[test]
fn a_command_trusts_only_the_authorities_that_it_is_given() {
    let (papers, scene) = (Papers::new(), Scene::new(kafka(), "trusted", 1));
    let certificate = (papers.path("service.crt"), papers.path("service.key"));
    let variables = [
        ("POSTDATE_ADMIN__CERTIFICATE", certificate.0.as_str()),
        ("POSTDATE_ADMIN__CERTIFICATE_KEY", certificate.1.as_str()),
        ("POSTDATE_ADMIN__TOKEN", TOKEN),
    ];
    let service = Postdate::start_with(&scene.config_stored("", ""), &variables);
    let url = format!("https://127.0.0.1:{}", service.port());
    eventually("it is ready", PATIENCE, || {
        (papers.curl(&PROBE, &format!("{url}/readyz")).0 == 200).then_some(())
    });
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let token = token.display().to_string();
    let run = |more: &[&str], code: i32| {
        let arguments = [&["workers", "--token-file", &token][..], more].concat();
        run_at(&url, folder.path(), &arguments, code)
    };
    assert!(run(&["--ca", &papers.path("ca.crt")], 0).contains("ingress,timer"));
    for stranger in [&["--ca", &papers.path("other.crt")][..], &[]] {
        let said = run(stranger, 1);
        assert!(said.contains("cannot ask https://127.0.0.1:"), "{said}");
        assert!(!said.contains(TOKEN), "{said}");
    }
    let said = run(&["--ca", &papers.path("none.crt")], 2);
    assert!(said.contains("--ca "), "{said}");
}
