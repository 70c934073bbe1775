//! Starts one control plane for all tests of the run: etcd, API server, controllers, scheduler,
//! kwok.
//!
//! All parts listen on free ports. kwok simulates two nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::env::{Process, eventually, folder, free_port, servers};

/// Limit for every wait that must succeed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Bearer token of the only user.
const TOKEN: &str = "of-this-test-run";

pub(crate) struct Cluster {
    port: u16,
    folder: PathBuf,
    _processes: Vec<Process>,
}

fn program(name: &str) -> Command {
    Command::new(servers().join("kubernetes").join(name))
}

impl Cluster {
    pub(crate) fn get() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Cluster::start)
    }

    fn start() -> Cluster {
        let (folder, port) = (folder("kube"), free_port());
        let key = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(folder.join("sa.key"))
            .output()
            .expect("openssl, of Debian's ca-certificates");
        assert!(key.status.success());
        std::fs::write(
            folder.join("tokens.csv"),
            format!("{TOKEN},admin,1,\"system:masters\"\n"),
        )
        .unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": { "server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true } }],
            "users": [{ "name": "test", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }]
        });
        std::fs::write(folder.join("kubeconfig"), config.to_string()).unwrap();
        let mut cluster = Cluster {
            port,
            folder,
            _processes: Vec::new(),
        };
        let etcd = cluster.start_etcd();
        cluster.start_api_server(&etcd);
        cluster.start_controllers();
        for node in ["one", "two"] {
            let room = json!({ "cpu": "64", "memory": "512Gi", "pods": "110" });
            let labels =
                json!({ "kubernetes.io/hostname": node, "topology.kubernetes.io/zone": node });
            let status = json!({ "allocatable": room, "capacity": room });
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels }, "status": status });
            assert!(
                cluster
                    .ask("POST", "api/v1/nodes", Some(&node))
                    .is_some_and(|answer| answer["kind"] == "Node")
            );
        }
        cluster.define_keda();
        cluster
    }

    fn run(&mut self, name: &str, command: &mut Command) {
        let place = self.folder.join(name);
        std::fs::create_dir(&place).unwrap();
        let process = Process::start(name, &place, command.current_dir(&self.folder));
        self._processes.push(process);
    }

    fn start_etcd(&mut self) -> String {
        let [client, peer] =
            [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
        let mut etcd = program("etcd");
        etcd.args([
            "--data-dir=etcd-data".to_owned(),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ]);
        // The data is deleted after the run, so durability is not needed.
        etcd.arg("--unsafe-no-fsync");
        self.run("etcd", &mut etcd);
        client
    }

    fn start_api_server(&mut self, etcd: &str) {
        let mut server = program("kube-apiserver");
        server.args([
            format!("--etcd-servers={etcd}"),
            format!("--secure-port={}", self.port),
        ]);
        server.args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--cert-dir=certs",
        ]);
        server.args([
            "--service-account-key-file=sa.key",
            "--service-account-signing-key-file=sa.key",
        ]);
        server.args([
            "--service-account-issuer=https://kubernetes",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=RBAC",
        ]);
        server.arg("--service-cluster-ip-range=10.0.0.0/24");
        self.run("kube-apiserver", &mut server);
        eventually("the API server is ready", PATIENCE, || {
            self.text("GET", "readyz", None)
                .filter(|answer| answer == "ok")
                .map(drop)
        });
    }

    fn start_controllers(&mut self) {
        let mut controllers = program("kube-controller-manager");
        controllers.args([
            "--kubeconfig=kubeconfig",
            "--secure-port=0",
            "--leader-elect=false",
        ]);
        controllers.args([
            "--service-account-private-key-file=sa.key",
            "--horizontal-pod-autoscaler-sync-period=1s",
        ]);
        self.run("kube-controller-manager", &mut controllers);
        let mut scheduler = program("kube-scheduler");
        self.run(
            "kube-scheduler",
            scheduler.args([
                "--kubeconfig=kubeconfig",
                "--secure-port=0",
                "--leader-elect=false",
            ]),
        );
        let stages = ["node-initialize", "pod-ready", "pod-complete", "pod-delete"];
        let stages = stages.map(|name| {
            std::fs::read_to_string(servers().join(format!("kwok/{name}.yaml"))).unwrap()
        });
        std::fs::write(self.folder.join("stages.yaml"), stages.join("\n---\n")).unwrap();
        let mut nodes = program("kwok");
        nodes.args([
            "--kubeconfig=kubeconfig",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
            "--config=stages.yaml",
        ]);
        self.run("kwok", &mut nodes);
    }

    /// Installs the definitions of KEDA's resources, without KEDA itself.
    fn define_keda(&self) {
        for name in ["scaledobjects", "triggerauthentications"] {
            let path = servers().join(format!("keda/keda.sh_{name}.yaml"));
            let definitions = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let made = self
                .text("POST", definitions, Some(("application/yaml", &path)))
                .expect("an answer");
            assert!(
                made.contains("CustomResourceDefinition") && !made.contains("\"Status\""),
                "{made}"
            );
            let is_served = || {
                self.ask("GET", &format!("{definitions}/{name}.keda.sh"), None)?["status"]
                    .to_string()
                    .contains("Established")
                    .then_some(())
            };
            eventually("the definition is established", PATIENCE, is_served);
        }
    }

    /// Creates a namespace whose pods must meet the restricted pod security standard.
    pub(crate) fn namespace(&self, name: &str) -> Namespace<'_> {
        let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        let wanted = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        let made = self
            .ask("POST", "api/v1/namespaces", Some(&wanted))
            .expect("an answer");
        assert_eq!(made["kind"], "Namespace", "{made}");
        Namespace {
            cluster: self,
            name: name.to_owned(),
        }
    }

    fn ask(&self, verb: &str, path: &str, body: Option<&Value>) -> Option<Value> {
        let file = body.map(|body| {
            let file = tempfile::NamedTempFile::new_in(&self.folder).unwrap();
            std::fs::write(file.path(), body.to_string()).unwrap();
            file
        });
        serde_json::from_str(&self.text(
            verb,
            path,
            file.as_ref().map(|file| ("application/json", file.path())),
        )?)
        .ok()
    }

    /// Calls the API with curl. The API server's certificate is self-signed, and the tests have no
    /// TLS client of their own.
    fn text(&self, verb: &str, path: &str, body: Option<(&str, &Path)>) -> Option<String> {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--insecure",
            "--max-time",
            "10",
            "--request",
            verb,
            "--header",
            &format!("Authorization: Bearer {TOKEN}"),
        ]);
        if let Some((kind, path)) = body {
            curl.args([
                "--header",
                &format!("Content-Type: {kind}"),
                "--data-binary",
                &format!("@{}", path.display()),
            ]);
        }
        let output = curl
            .arg(format!("https://127.0.0.1:{}/{path}", self.port))
            .output()
            .expect("curl, a Debian package");
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Paths of the chart and of an example's values.
pub(crate) fn example_paths(example: &str) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm");
    (
        root.join("postdate"),
        root.join(format!("values/{example}.yaml")),
    )
}

pub(crate) struct Namespace<'c> {
    cluster: &'c Cluster,
    pub(crate) name: String,
}

impl Namespace<'_> {
    pub(crate) fn get(&self, path: &str) -> Value {
        self.cluster.ask("GET", path, None).expect("an answer")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.cluster
            .ask("POST", path, Some(body))
            .expect("an answer")
    }

    pub(crate) fn create(&self, path: &str, body: &Value) {
        let made = self.post(path, body);
        assert_eq!(made["kind"], body["kind"], "{made}");
    }

    pub(crate) fn put(&self, path: &str, body: &Value) {
        let made = self
            .cluster
            .ask("PUT", path, Some(body))
            .expect("an answer");
        assert_eq!(made["kind"], body["kind"], "{made}");
    }

    /// Renders one template of the chart with one more value, creates the result, and returns the
    /// API server's answer.
    pub(crate) fn create_rendered(
        &self,
        example: &str,
        template: &str,
        set: &str,
        path: &str,
    ) -> Value {
        let (chart, values) = example_paths(example);
        let rendered = Command::new(servers().join("go/bin/helm"))
            .args(["template", "postdate"])
            .arg(chart)
            .args([
                "--kube-version",
                "1.36.0",
                "--namespace",
                &self.name,
                "--show-only",
                template,
                "--set",
                set,
                "--values",
            ])
            .arg(values)
            .output()
            .expect("helm starts");
        assert!(
            rendered.status.success(),
            "{}",
            String::from_utf8_lossy(&rendered.stderr)
        );
        let file = self.cluster.folder.join("rendered.yaml");
        std::fs::write(&file, rendered.stdout).unwrap();
        serde_json::from_str(
            &self
                .cluster
                .text("POST", path, Some(("application/yaml", &file)))
                .expect("an answer"),
        )
        .expect("JSON")
    }

    pub(crate) fn list(&self, group: &str, kind: &str) -> Vec<Value> {
        self.get(&format!("{group}/namespaces/{}/{kind}", self.name))["items"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// Installs or upgrades the release of an example and waits until all of it is ready.
    pub(crate) fn helm(&self, verb: &str, example: &str, sets: &[&str]) {
        let (chart, values) = example_paths(example);
        let mut arguments = vec![
            verb,
            "postdate",
            chart.to_str().unwrap(),
            "--values",
            values.to_str().unwrap(),
            "--wait",
            "--timeout",
            "90s",
        ];
        sets.iter().for_each(|set| arguments.extend(["--set", set]));
        self.command(&arguments);
    }

    pub(crate) fn command(&self, arguments: &[&str]) {
        let (is_done, said) = self.tried(arguments);
        assert!(is_done, "helm {arguments:?}\n{said}");
    }

    /// Runs Helm. Returns whether it succeeded, and its output.
    pub(crate) fn tried(&self, arguments: &[&str]) -> (bool, String) {
        let mut helm = Command::new(servers().join("go/bin/helm"));
        helm.args(arguments)
            .args(["--namespace", &self.name, "--kubeconfig"])
            .arg(self.cluster.folder.join("kubeconfig"));
        let output = helm.output().expect("helm starts");
        (
            output.status.success(),
            format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
        )
    }

    /// All objects in the namespace except those that Kubernetes creates in each namespace.
    pub(crate) fn contents(&self) -> Vec<String> {
        let kinds = [
            ("api/v1", "pods"),
            ("api/v1", "configmaps"),
            ("api/v1", "secrets"),
            ("api/v1", "services"),
            ("api/v1", "serviceaccounts"),
            ("api/v1", "persistentvolumeclaims"),
            ("apis/apps/v1", "deployments"),
            ("apis/apps/v1", "replicasets"),
            ("apis/policy/v1", "poddisruptionbudgets"),
            ("apis/networking.k8s.io/v1", "networkpolicies"),
            ("apis/autoscaling/v2", "horizontalpodautoscalers"),
            ("apis/keda.sh/v1alpha1", "scaledobjects"),
        ];
        let names = |(group, kind): (&str, &str)| {
            let named = self.list(group, kind).into_iter().map(|found| {
                found["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            });
            named
                .filter(|name| !["default", "kube-root-ca.crt"].contains(&name.as_str()))
                .map(|name| format!("{kind}/{name}"))
                .collect::<Vec<_>>()
        };
        kinds.into_iter().flat_map(names).collect()
    }
}
