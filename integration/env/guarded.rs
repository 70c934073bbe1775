//! Starts a real Kafka with TLS, logins and an authorizer that denies by default.
//!
//! The tests' own clients use its open listener, where the anonymous user is a superuser.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kafka::{Extra, Kafka, QUICK, java};
use super::process::{folder, free_port};

pub(crate) struct Guarded {
    kafka: Kafka,
    addr: String,
    mutual_addr: String,
    folder: PathBuf,
}

/// The user with all rights.
pub(crate) const MASTER: &str = "master";
/// The user with only the rights that a test grants.
pub(crate) const TENANT: &str = "tenant";

/// The time after which a client with a token must log in again.
const SESSION_MS: &str = "3000";

/// The broker accepts tokens without a signature, and checks when they expire.
const TOKENS: &str = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
                      unsecuredLoginStringClaim_sub=\"broker\";";

const SCRAM: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";

impl Guarded {
    /// Both users have this password for `PLAIN` and both kinds of `SCRAM`.
    pub(crate) fn start(password: &str) -> Guarded {
        let (folder, addr) = (folder("guarded"), format!("localhost:{}", free_port()));
        certificate(&folder, "broker");
        certificate(&folder, "stranger");
        certificate(&folder, "client");
        let mutual_addr = format!("localhost:{}", free_port());
        let plain = format!(
            "org.apache.kafka.common.security.plain.PlainLoginModule required user_{MASTER}=\"{password}\" user_{TENANT}=\"{password}\";"
        );
        let store = folder.join("broker.p12").display().to_string();
        let clients = folder.join("client.pem").display().to_string();
        let properties = [
            (
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
            ),
            (
                "authorizer.class.name",
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            ),
            (
                "super.users",
                "User:ANONYMOUS;User:master;User:CN=localhost",
            ),
            (
                "sasl.enabled.mechanisms",
                "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            ),
            (
                "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config",
                TOKENS,
            ),
            (
                "listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms",
                SESSION_MS,
            ),
            ("listener.name.ssl.ssl.client.auth", "required"),
            ("listener.name.ssl.ssl.truststore.type", "PEM"),
            ("listener.name.ssl.ssl.truststore.location", &clients),
            ("listener.name.sasl_ssl.plain.sasl.jaas.config", &plain),
            (
                "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config",
                SCRAM,
            ),
            (
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
                SCRAM,
            ),
            ("ssl.keystore.type", "PKCS12"),
            ("ssl.keystore.location", &store),
            ("ssl.keystore.password", "changeit"),
        ];
        let user =
            |mechanism: &str, name: &str| format!("{mechanism}=[name={name},password={password}]");
        let users: Vec<_> = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            .iter()
            .flat_map(|mechanism| [MASTER, TENANT].map(|name| user(mechanism, name)))
            .collect();
        let listener = format!("SASL_SSL://{addr},SSL://{mutual_addr}");
        let kafka = Kafka::start_guarded(&Extra {
            listener: Some(&listener),
            properties: &properties,
            users: &users,
        });
        Guarded {
            kafka,
            addr,
            mutual_addr,
            folder,
        }
    }

    /// Address of the listener that requires a client certificate.
    pub(crate) fn mutual_addr(&self) -> &str {
        &self.mutual_addr
    }

    /// Key store of the client that this listener accepts. Its password is `changeit`.
    pub(crate) fn client_store(&self) -> PathBuf {
        self.folder.join("client.p12")
    }

    /// Address of the listener that requires TLS and a login.
    pub(crate) fn secure_addr(&self) -> &str {
        &self.addr
    }

    /// Certificate that signed the broker's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("broker.pem")
    }

    /// Certificate of an unrelated authority. It did not sign the broker's certificate.
    pub(crate) fn stranger(&self) -> PathBuf {
        self.folder.join("stranger.pem")
    }

    /// Writes a script that replaces `kafka-acls.sh` and returns its path.
    pub(crate) fn acl_tool(&self) -> PathBuf {
        let tool = self.folder.join("kafka-acls");
        let mut command = java(QUICK, "org.apache.kafka.tools.AclCommand");
        let words = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()));
        let line = words.collect::<Vec<_>>().join(" ");
        std::fs::write(&tool, format!("#!/bin/sh\nexec {line} \"$@\"\n")).unwrap();
        command = Command::new("chmod");
        assert!(command.arg("+x").arg(&tool).status().unwrap().success());
        tool
    }
}

/// Gives access to the broker through its open listener.
impl Deref for Guarded {
    type Target = Kafka;

    fn deref(&self) -> &Kafka {
        &self.kafka
    }
}

/// Creates a self-signed key for `localhost`: a key store for the broker, and a PEM authority
/// certificate for clients.
fn certificate(folder: &Path, name: &str) {
    let store = folder.join(format!("{name}.p12"));
    let keytool = |arguments: &[&str]| {
        let mut tool = Command::new("keytool");
        tool.args(arguments)
            .args([
                "-alias",
                name,
                "-storetype",
                "PKCS12",
                "-storepass",
                "changeit",
                "-keystore",
            ])
            .arg(&store);
        let output = tool.output().expect("keytool comes with Java");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    };
    let names = ["-dname", "CN=localhost", "-ext", "SAN=dns:localhost"];
    keytool(
        &[
            &["-genkeypair", "-keyalg", "EC", "-validity", "3650"],
            &names[..],
        ]
        .concat(),
    );
    let pem = folder.join(format!("{name}.pem"));
    keytool(&[
        "-exportcert",
        "-rfc",
        "-file",
        pem.to_str().expect("a path of ours"),
    ]);
}
