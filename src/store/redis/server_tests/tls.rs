//! A server that demands TLS and client certificates.

use super::*;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Certificates for this machine, made with openssl as an operator does.
struct Papers(TempDir);

impl Papers {
    /// `ca` signed `server` and `client`.
    fn new() -> Self {
        let papers = Self(tempfile::tempdir().unwrap());
        for (name, more) in [("ca", ""), ("other", "")] {
            papers.issue(name, more);
        }
        let signed = "-CA ca.crt -CAkey ca.key -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
        papers.issue("server", signed);
        papers.issue("client", signed);
        papers
    }

    fn issue(&self, name: &str, more: &str) {
        let common = "req -x509 -nodes -days 3650 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
        let names = format!("-keyout {name}.key -out {name}.crt -subj /CN={name} {more}");
        let output = Command::new("openssl")
            .args(common.split(' '))
            .args(names.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("openssl is one of Debian's packages");
        assert!(output.status.success(), "{output:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server with this TLS port. Its other port is for the test itself.
    fn server(&self, tls_port: u16) -> Server {
        let file = |name: &str| self.path(name).display().to_string();
        Server::start_with(&[
            "--tls-port",
            &tls_port.to_string(),
            "--tls-cert-file",
            &file("server.crt"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file("ca.crt"),
            "--tls-auth-clients",
            "yes",
        ])
    }

    fn options(&self, tls_port: u16) -> Options {
        Options {
            certificates: Certificates {
                ca: Some(self.path("ca.crt")),
                certificate: Some(self.path("client.crt")),
                key: Some(self.path("client.key")),
            },
            ..Options::of_url(&format!("rediss://127.0.0.1:{tls_port}"), "test")
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_client_certificate_is_shown_on_every_connection() {
    let (papers, port) = (Papers::new(), free_port());
    let server = papers.server(port);
    let options = papers.options(port);
    let redis = Redis::connect(&options).await.unwrap();
    let real = RealRedis { server, redis };
    contract::run(&real).await;
    permissions::assert_hint_arrives(&options).await;
}

#[tokio::test]
async fn a_missing_or_foreign_certificate_is_an_error_that_may_pass() {
    let (papers, port) = (Papers::new(), free_port());
    let _server = papers.server(port);
    let right = papers.options(port);
    let none = Certificates {
        ca: Some(papers.path("ca.crt")),
        ..Certificates::default()
    };
    let foreign = Certificates {
        ca: Some(papers.path("other.crt")),
        ..right.certificates.clone()
    };
    for (certificates, words) in [
        (none, "set store.redis.certificate and"),
        (foreign, "UnknownIssuer"),
    ] {
        let options = Options {
            certificates,
            ..right.clone()
        };
        let refused = Redis::connect(&options).await.map(drop);
        let refused = refused.expect_err("the server demands another certificate");
        assert!(refused.is_transient(), "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[tokio::test]
async fn files_are_read_for_each_connection_and_a_damaged_one_is_named() {
    let (papers, port) = (Papers::new(), free_port());
    let server = papers.server(port);
    let options = papers.options(port);
    let redis = Redis::connect(&options).await.unwrap();
    redis.open(&[new_shard("t")]).await.unwrap();
    let file = papers.path("client.crt");
    let valid = std::fs::read(&file).unwrap();
    std::fs::write(&file, "not one").unwrap();
    assert!(redis.state(&[shard("t")]).await.is_ok(), "it is connected");
    server.command("CLIENT KILL TYPE normal").await;
    redis.state(&[shard("t")]).await.expect_err("it is closed");
    let refused = redis
        .state(&[shard("t")])
        .await
        .expect_err("no certificate");
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("store.redis.certificate is not a PEM file"),
        "{refused}"
    );
    std::fs::write(&file, valid).unwrap();
    assert!(redis.state(&[shard("t")]).await.is_ok(), "it is repaired");
    std::fs::remove_file(papers.path("ca.crt")).unwrap();
    let refused = Redis::connect(&options).await.map(drop);
    assert!(
        matches!(&refused, Err(Error::Unusable(text)) if text.contains("store.redis.ca cannot be read")),
        "{refused:?}"
    );
}
