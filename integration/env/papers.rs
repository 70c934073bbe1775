//! Creates TLS certificates for 127.0.0.1 with openssl, as an operator does, and runs curl with
//! them.

use std::process::Command;

/// The authority `ca` signed `service`, `scraper`, and `deployer` with a DNS name. The authority `other`
/// signed `stranger`. Each has a `.crt` and a `.key` file.
pub(crate) struct Papers(tempfile::TempDir);

impl Papers {
    pub(crate) fn new() -> Papers {
        let papers = Papers(tempfile::tempdir().unwrap());
        let kinds = "[req]\ndistinguished_name = name\n[name]\n[authority]\nbasicConstraints = critical, CA:TRUE\n\
                     [holder]\nbasicConstraints = CA:FALSE\nsubjectAltName = IP:127.0.0.1\n\
                     [deployer]\nbasicConstraints = CA:FALSE\nsubjectAltName = DNS:deploy.example.com\n";
        std::fs::write(papers.0.path().join("openssl.cnf"), kinds).unwrap();
        for (authority, holders) in [
            ("ca", &["service", "scraper", "deployer"][..]),
            ("other", &["stranger"]),
        ] {
            papers.issue(authority, "authority", &[]);
            let by = [
                "-CA",
                &format!("{authority}.crt"),
                "-CAkey",
                &format!("{authority}.key"),
            ];
            for holder in holders {
                let is_deployer = *holder == "deployer";
                let kind = if is_deployer { "deployer" } else { "holder" };
                papers.issue(holder, kind, &by);
            }
        }
        papers
    }

    fn issue(&self, name: &str, kind: &str, by: &[&str]) {
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-config",
            "openssl.cnf",
            "-x509",
            "-days",
            "3650",
            "-nodes",
            "-newkey",
            "ec",
        ]);
        command.args([
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-extensions",
            kind,
            "-subj",
            &format!("/CN={name}"),
        ]);
        command
            .args([
                "-keyout",
                &format!("{name}.key"),
                "-out",
                &format!("{name}.crt"),
            ])
            .args(by);
        let output = command
            .current_dir(self.0.path())
            .output()
            .expect("openssl is one of Debian's packages");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs curl, whose arguments may name the certificate files. Returns the body and the status,
    /// which is 0 without an answer.
    pub(crate) fn curl(&self, arguments: &[&str], url: &str) -> (u16, String) {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "10", "-w", "\n%{http_code}"])
            .args(arguments)
            .arg(url);
        let said =
            String::from_utf8(command.current_dir(self.0.path()).output().unwrap().stdout).unwrap();
        let (body, status) = said.rsplit_once('\n').expect("curl writes the status last");
        (status.parse().unwrap(), body.to_owned())
    }
}
