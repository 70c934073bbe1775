//! Tests the chart as Helm renders and validates it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use regex_lite::Regex;
use serde_json::Value;

use super::{file, folder, output, root, tool};
use crate::env::Papers;

const EXAMPLES: [&str; 9] = [
    "small", "split", "secure", "hpa", "keda", "embedded", "nats", "sentinel", "cluster",
];

/// Builds a Helm command with a fixed Kubernetes version, because Helm has no cluster to ask here.
pub(super) fn helm(verb: &str, example: &str, more: &[&str]) -> Command {
    let mut command = tool("helm");
    let name: &[&str] = if verb == "template" {
        &["template", "postdate"]
    } else {
        &[verb]
    };
    command.args(name).args([
        "deploy/helm/postdate",
        "--kube-version",
        "1.36.0",
        "--namespace",
        "shop",
        "--values",
    ]);
    command
        .arg(format!("deploy/helm/values/{example}.yaml"))
        .args(more)
        .current_dir(root());
    command
}

/// The `postdate.toml` in a rendered chart's ConfigMap.
fn configuration(rendered: &str) -> String {
    let (_, rest) = rendered
        .split_once("postdate.toml: |\n")
        .expect("a configuration");
    rest.lines()
        .take_while(|line| line.starts_with("    ") || line.is_empty())
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

#[test]
fn each_example_passes_helm_lint() {
    for example in EXAMPLES {
        output(&mut helm("lint", example, &["--strict", "--quiet"]));
    }
}

#[test]
fn each_example_renders_as_it_did() {
    for example in EXAMPLES {
        // Another test compares alerts and dashboard with their files.
        let rendered = output(&mut helm(
            "template",
            example,
            &["--set", "monitoring.rules=false,monitoring.dashboard=false"],
        ));
        insta::with_settings!({ snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(example, rendered);
        });
    }
}

#[test]
fn the_chart_contains_alerts_and_dashboard_unchanged() {
    let rendered = output(&mut helm("template", "keda", &[]));
    let unindented = |by: usize| {
        rendered
            .lines()
            .map(|line| format!("{}\n", line.get(by..).unwrap_or_default()))
            .collect::<String>()
    };
    assert!(
        unindented(2).contains(&file("deploy/helm/postdate/files/alerts.yaml")),
        "{rendered}"
    );
    assert!(
        unindented(4).contains(file("deploy/helm/postdate/files/dashboard.json").trim_end()),
        "{rendered}"
    );
}

/// The file of a team.
const TEAM: &str = r#"
[route.invoices]
source = { kafka = "main", topics = ["invoices.delayed"] }
target = { kafka = "main", topic = "invoices" }
dead_letter = { kafka = "main", topic = "invoices.dead" }
"#;

#[test]
fn the_service_accepts_each_configuration_of_the_chart() {
    for example in EXAMPLES {
        let folder = folder();
        let secrets = folder.path().join("secrets");
        for secret in ["redis", "kafka", "nats", "sentinel"] {
            std::fs::create_dir_all(secrets.join(secret)).unwrap();
            std::fs::write(secrets.join(secret).join("password"), "a secret").unwrap();
        }
        let keys = format!("2025-01:{}=\n", "A".repeat(43));
        std::fs::write(folder.path().join("keys"), keys).unwrap();
        std::fs::write(folder.path().join("token"), "of-sixteen-characters").unwrap();
        let teams = folder.path().join("teams");
        std::fs::create_dir_all(teams.join("postdate-billing")).unwrap();
        std::fs::write(teams.join("postdate-billing/routes.toml"), TEAM).unwrap();
        let papers = Papers::new();
        let mut text = configuration(&output(&mut helm("template", example, &[])));
        for (file, paper) in [
            ("tls.crt", "service.crt"),
            ("tls.key", "service.key"),
            ("ca.crt", "ca.crt"),
        ] {
            text = text.replace(
                &format!("/run/secrets/postdate-admin-tls/{file}"),
                &papers.path(paper),
            );
        }
        text = text.replace(
            "/run/secrets/postdate-admin/token",
            folder.path().join("token").to_str().unwrap(),
        );
        text = text.replace(
            "/run/secrets/postdate-keys/keys",
            folder.path().join("keys").to_str().unwrap(),
        );
        text = text
            .replace("/run/secrets/postdate", secrets.to_str().unwrap())
            .replace("/etc/postdate-teams", teams.to_str().unwrap())
            .replace("/var/lib/postdate", folder.path().to_str().unwrap());
        // Use addresses without a listener: the test only checks whether the configuration is
        // accepted.
        for (port, name) in [
            "kafka:9092",
            "kafka:9093",
            "kafka-0:9092",
            "kafka-1:9092",
            "kafka-2:9092",
        ]
        .iter()
        .enumerate()
        {
            text = text.replace(name, &format!("127.0.0.1:{}", port + 1));
        }
        text = text
            .replace("//redis:6379", "//127.0.0.1:1")
            .replace("//nats:4222", "//127.0.0.1:9")
            .replace("//redis:6380", "//127.0.0.1:1")
            .replace("\"sentinel-", "\"127.0.0.")
            .replace("\"redis-", "\"127.0.0.");
        let path = folder.path().join("postdate.toml");
        std::fs::write(&path, &text).unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_postdate"))
            .args(["check", "--config"])
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert_ne!(checked.status.code(), Some(2), "{example}: {said}\n{text}");
        assert!(
            !said.contains("a problem with the configuration"),
            "{example}: {said}\n{text}"
        );
    }
}

#[test]
fn without_kafka_sources_keda_scales_the_ingress_by_its_lag_metric() {
    let rendered = output(&mut helm(
        "template",
        "keda",
        &["--set", "autoscaling.kafka.sources=null"],
    ));
    assert!(
        rendered.contains("query: sum(postdate_ingress_lag_messages{namespace=\"shop\"})")
            && !rendered.contains("type: kafka"),
        "{rendered}"
    );
}

#[test]
fn invalid_values_are_refused_with_the_reason() {
    for (example, set, words) in [
        (
            "small",
            "config.deployment=",
            "config.deployment is required",
        ),
        (
            "small",
            "adminToken.secretName=",
            "adminToken.secretName is required",
        ),
        (
            "small",
            "console.userHeader=X-User",
            "without console.proxies nobody may name a user",
        ),
        (
            "small",
            "adminToken.secretName=,adminTls.secretName=x",
            "adminToken.secretName is required",
        ),
        (
            "small",
            "adminTls.clientAuth=true",
            "without adminTls.secretName there is no TLS",
        ),
        (
            "secure",
            "monitoring.tls.secretName=",
            "monitoring.tls.secretName is required",
        ),
        ("small", "config.deployment=Shop", "/config/deployment"),
        (
            "small",
            "config.stroe.redis.url=x",
            "additional properties 'stroe' not allowed",
        ),
        (
            "small",
            "config.kafka.main.brokers=null",
            "/config/kafka/main/brokers",
        ),
        ("small", "config.store=null", "/config/store"),
        (
            "embedded",
            "persistence.enabled=false",
            "config.store.redis is required",
        ),
        (
            "small",
            "workloads.both.replicas=-1",
            "/workloads/both/replicas",
        ),
        (
            "small",
            "workloads.both.replica=1",
            "additional properties 'replica' not allowed",
        ),
        (
            "small",
            "workloads.both.enabled=false",
            "no workload does the role ingress",
        ),
        (
            "split",
            "workloads.timer.enabled=false",
            "no workload does the role timer",
        ),
        (
            "split",
            "terminationGracePeriodSeconds=5",
            "/terminationGracePeriodSeconds",
        ),
        ("split", "env.POSTDATE_ROLES=x", "propertyName"),
        ("split", "image.digest=latest", "/image/digest"),
        (
            "split",
            "networkPolicy.egress[0].ports[0]=70000",
            "/networkPolicy/egress/0/ports/0",
        ),
        (
            "split",
            "networkPolicy.admin.from=null",
            "/networkPolicy/admin",
        ),
        ("split", "command={run}", "/command/0"),
        ("keda", "autoscaling.kind=vpa", "/autoscaling/kind"),
        (
            "keda",
            "autoscaling.prometheus.serverAddress=",
            "autoscaling.prometheus.serverAddress is required",
        ),
        (
            "keda",
            "autoscaling.kafka.sources[0].route=other",
            "config has no route other",
        ),
        (
            "keda",
            "autoscaling.kafka.sources[0].topics=x",
            "additional properties 'topics' not allowed",
        ),
        (
            "keda",
            "autoscaling.kafka.sources[0].topic=orders",
            "config.route.orders does not read orders",
        ),
        (
            "keda",
            "autoscaling.timer.min=17",
            "autoscaling.timer: min 17 is more than max 16",
        ),
        (
            "hpa",
            "autoscaling.ingress.max=1,autoscaling.ingress.min=2",
            "autoscaling.ingress: min 2 is more than max 1",
        ),
        ("small", "autoscaling.kind=hpa", "nothing would be scaled"),
        (
            "hpa",
            "autoscaling.ingress.enabled=false,autoscaling.timer.enabled=false",
            "nothing would be scaled",
        ),
        (
            "split",
            "workloads.timer.resources.request.cpu=1",
            "additional properties 'request' not allowed",
        ),
        (
            "split",
            "workloads.timer.resources.limits.memory=1GB",
            "/workloads/timer/resources/limits/memory",
        ),
        (
            "split",
            "workloads.timer.resources.limits.memory=703Mi",
            "the memory limit 703Mi is less than config.memory (640MiB) and the 64MiB",
        ),
        (
            "small",
            "workloads.both.resources.limits.memory=600M",
            "the memory limit 600M is less than config.memory (512MiB)",
        ),
        (
            "embedded",
            "workloads.both.resources.limits.memory=700Mi",
            "the memory limit 700Mi is less than config.memory (512MiB) and the 192MiB",
        ),
        (
            "small",
            "config.timer.lees=5s",
            "additional properties 'lees' not allowed",
        ),
        (
            "small",
            "config.route.orders.source.topic=a",
            "additional properties 'topic' not allowed",
        ),
        (
            "small",
            "config.route.orders.delivery=exactly_once",
            "/config/route/orders/delivery",
        ),
        (
            "embedded",
            "workloads.both.replicas=2",
            "the embedded store is for one process",
        ),
        (
            "embedded",
            "config.store.redis.url=redis://redis",
            "is another store",
        ),
        ("embedded", "monitoring.kind=datadog", "/monitoring/kind"),
    ] {
        let refused = helm("template", example, &["--set", set]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(words),
            "{example} --set {set}: expected {words:?} in\n{said}"
        );
    }
    for limit in ["1.2Gi", "1300M", "1300000000", "13e8"] {
        let set = format!("config.memory=1GiB,workloads.timer.resources.limits.memory={limit}");
        output(&mut helm("template", "split", &["--set", &set]));
    }
    // The limit follows from the budget, if it is not set.
    for (set, limit) in [
        ("config.memory=512MiB", "memory: 640Mi"),
        ("config.memory=1GiB", "memory: 1152Mi"),
        ("config.timer.memory=256MiB", "memory: 470Mi"),
    ] {
        let rendered = output(&mut helm("template", "small", &["--set", set]));
        assert_eq!(rendered.matches(limit).count(), 1, "{set}: {limit}");
    }
    let half = helm(
        "template",
        "small",
        &["--set-json", "config.timer.lease=1.5"],
    )
    .output()
    .unwrap();
    assert!(
        String::from_utf8_lossy(&half.stderr).contains("1.5 is no whole number"),
        "{half:?}"
    );
}

/// The keys of each table of `config/default.toml`, with those that are commented out.
fn options() -> BTreeMap<String, BTreeSet<String>> {
    let text = file("config/default.toml");
    let line = Regex::new(r"^#?(?:\[([a-z_.]+)\]$|([a-z_]+) = )").unwrap();
    let (mut table, mut keys) = (String::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for found in text.lines().filter_map(|text| line.captures(text)) {
        let word = |group: usize| found.get(group).map(|found| found.as_str().to_owned());
        table = word(1).unwrap_or(table);
        keys.entry(table.clone()).or_default().extend(word(2));
    }
    keys
}

#[test]
fn the_values_schema_has_exactly_the_options_of_the_service() {
    let schema: Value =
        serde_json::from_str(&file("deploy/helm/postdate/values.schema.json")).unwrap();
    let (options, config) = (options(), "/properties/config/properties");
    for (table, place) in [
        ("store.redis", "/store/properties/redis"),
        (
            "store.redis.sentinel",
            "/store/properties/redis/properties/sentinel",
        ),
        (
            "store.redis.cluster",
            "/store/properties/redis/properties/cluster",
        ),
        ("kafka.main", "/kafka/additionalProperties"),
        ("nats.edge", "/nats/additionalProperties"),
        (
            "route.orders.retry",
            "/route/additionalProperties/properties/retry",
        ),
        ("timer", "/timer"),
        ("log", "/log"),
        ("traces", "/traces"),
        ("route.orders", "/route/additionalProperties"),
    ] {
        let found = schema
            .pointer(&format!("{config}{place}"))
            .unwrap_or_else(|| panic!("the schema has no {place}"));
        let mut known: BTreeSet<_> = found["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        // These are nested tables with rows of their own above.
        let nested = [
            ("route.orders", "retry"),
            ("store.redis", "sentinel"),
            ("store.redis", "cluster"),
        ];
        known.retain(|key| !nested.contains(&(table, key.as_str())));
        assert_eq!(
            (&known, &found["additionalProperties"]),
            (&options[table], &false.into()),
            "{table}"
        );
    }
}

#[test]
fn plain_text_secrets_are_refused_and_secret_files_are_accepted() {
    let judged = |example: &str, how: &str, set: &str| {
        let judged = helm("template", example, &[how, set]).output().unwrap();
        (
            judged.status.success(),
            String::from_utf8_lossy(&judged.stderr).into_owned(),
        )
    };
    let (secret, login) = (
        "must be 'in a Secret: mount it by `secrets`",
        "must be 'an address without a login",
    );
    for (example, set, place, words) in [
        (
            "small",
            "config.store.redis.password=hunter2",
            "/config/store/redis/password",
            secret,
        ),
        (
            "small",
            "config.store.redis.url=redis://u:hunter2@redis",
            "/config/store/redis/url",
            login,
        ),
        (
            "small",
            "config.store.redis.url=redis://:hunter2@redis",
            "/config/store/redis/url",
            login,
        ),
        (
            "small",
            "config.kafka.main.properties.sasl\\.password=hunter2",
            "/sasl.password",
            secret,
        ),
        (
            "small",
            "config.kafka.main.properties.sasl.password=hunter2",
            "/sasl/password",
            secret,
        ),
        (
            "small",
            "config.kafka.main.properties.sasl\\.oauthbearer\\.client\\.secret=hunter2",
            ".client.secret",
            secret,
        ),
        (
            "small",
            "config.kafka.main.properties.ssl\\.key\\.pem=hunter2",
            "/ssl.key.pem",
            secret,
        ),
        (
            "small",
            "config.kafka.main.brokers[0]=SASL://u:hunter2@kafka:9092",
            "/brokers/0",
            login,
        ),
        (
            "nats",
            "config.nats.edge.password=hunter2",
            "/config/nats/edge/password",
            secret,
        ),
        (
            "nats",
            "config.nats.edge.token=hunter2",
            "/config/nats/edge/token",
            secret,
        ),
        (
            "nats",
            "config.nats.edge.nkey=hunter2",
            "/config/nats/edge/nkey",
            secret,
        ),
        (
            "nats",
            "config.nats.edge.credentials=hunter2",
            "/config/nats/edge/credentials",
            secret,
        ),
        (
            "nats",
            "config.nats.edge.url=nats://hunter2@nats:4222",
            "/config/nats/edge/url",
            login,
        ),
        (
            "nats",
            "config.nats.edge.url=nats:4222\\,u:hunter2@nats:4222",
            "/config/nats/edge/url",
            login,
        ),
        (
            "small",
            "config.traces.authorization=hunter2",
            "/config/traces/authorization",
            secret,
        ),
        (
            "small",
            "config.traces.endpoint=http://u:hunter2@collector:4318",
            "/config/traces/endpoint",
            login,
        ),
        (
            "split",
            "env.POSTDATE_STORE__REDIS__PASSWORD=hunter2",
            "/env/POSTDATE_STORE__REDIS__PASSWORD",
            secret,
        ),
        (
            "split",
            "env.POSTDATE_STORE__REDIS__URL=redis://u:hunter2@redis",
            "/env/POSTDATE_STORE__REDIS__URL",
            login,
        ),
        (
            "split",
            "env.POSTDATE_KAFKA__MAIN__PROPERTIES__SASL__PASSWORD=hunter2",
            "__SASL__PASSWORD",
            secret,
        ),
        (
            "split",
            "env.POSTDATE_NATS__EDGE__TOKEN=hunter2",
            "/env/POSTDATE_NATS__EDGE__TOKEN",
            secret,
        ),
        (
            "split",
            "env.POSTDATE_TRACES__AUTHORIZATION=hunter2",
            "/env/POSTDATE_TRACES__AUTHORIZATION",
            secret,
        ),
        (
            "split",
            r#"env={"POSTDATE_KAFKA__MAIN__PROPERTIES":"{ \"sasl.password\" = \"hunter2\" }"}"#,
            "__MAIN__PROPERTIES",
            secret,
        ),
    ] {
        let how = if set.contains("={") {
            "--set-json"
        } else {
            "--set-string"
        };
        let (is_taken, said) = judged(example, how, set);
        assert!(
            !is_taken && said.contains(place) && said.contains(words),
            "{example} --set {set}: expected {place:?} and {words:?} in\n{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
    }
    for (example, how, set) in [
        (
            "small",
            "--set",
            "config.store.redis.password_file=/run/secrets/postdate/redis/password",
        ),
        (
            "small",
            "--set",
            "config.kafka.main.properties.sasl.password_file=/run/secrets/postdate/kafka/password",
        ),
        (
            "small",
            "--set",
            "config.kafka.main.properties.sasl\\.oauthbearer\\.token\\.endpoint\\.url=https://login.example/token",
        ),
        (
            "split",
            "--set",
            "env.POSTDATE_STORE__REDIS__PASSWORD_FILE=/run/secrets/postdate/redis/password",
        ),
        // A route may be called `token`: a name is not a secret.
        (
            "small",
            "--set-json",
            "config.route.token={\"source\":{\"kafka\":\"main\",\"topics\":[\"a\"]},\"dead_letter\":{\"kafka\":\"main\",\"topic\":\"b\"}}",
        ),
    ] {
        let (is_taken, said) = judged(example, how, set);
        assert!(is_taken, "{example} {how} {set}: {said}");
    }
}

/// The TCP ports, in order, to which an example's network policy lets its pods connect. DNS (53) is
/// left out.
fn egress(example: &str, sets: &[&str]) -> Vec<String> {
    let sets = sets
        .iter()
        .flat_map(|set| ["--set", set])
        .chain(["--show-only", "templates/policy.yaml"]);
    let rendered = output(&mut helm("template", example, &sets.collect::<Vec<_>>()));
    let (_, rest) = rendered.split_once("\n  egress:\n").expect("rules");
    let rules = rest.split("\n---").next().unwrap_or_default();
    let ports = rules.lines().filter_map(|line| {
        line.trim()
            .strip_prefix("- { port: ")?
            .strip_suffix(", protocol: TCP }")
    });
    ports
        .filter(|port| *port != "53")
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_network_policy_allows_each_port_of_the_configuration() {
    for (example, sets, ports) in [
        ("small", &[][..], &["9092", "6379"][..]),
        ("embedded", &[], &["9092"]),
        ("split", &[], &["9092", "6379", "4318"]),
        (
            "small",
            &["config.store.redis.url=rediss://redis.example:6380/2"],
            &["9092", "6380"],
        ),
        (
            "small",
            &["config.kafka.main.brokers={a:9093,SASL_SSL://b:9094}"],
            &["9093", "9094", "6379"],
        ),
        (
            "small",
            &["config.traces.endpoint=https://collector.example/otel"],
            &["9092", "6379", "443"],
        ),
        (
            "small",
            &["config.traces.endpoint=http://[::1]"],
            &["9092", "6379", "80"],
        ),
        (
            "small",
            &[
                "config.kafka.main.properties.sasl\\.oauthbearer\\.token\\.endpoint\\.url=https://login:8443/t",
            ],
            &["9092", "8443", "6379"],
        ),
        (
            "nats",
            &["networkPolicy.egress=null"],
            &["9092", "4222", "6379"],
        ),
        (
            "nats",
            &[
                "config.nats.edge.url=nats://a:4333\\,tls://b",
                "networkPolicy.egress=null",
            ],
            &["9092", "4333", "4222", "6379"],
        ),
        // Explicit egress rules stay as given. The chart does not repeat their ports.
        ("nats", &[], &["4222", "9092", "6379"]),
        ("secure", &[], &["9093", "6380"]),
        (
            "secure",
            &["networkPolicy.egress[0].ports[0]=29093"],
            &["29093", "6380", "9093"],
        ),
        (
            "small",
            &[
                "config.store.redis.url=,config.store.redis.url_file=/run/secrets/postdate/redis/url",
                "networkPolicy.egress[0].name=redis",
                "networkPolicy.egress[0].ports[0]=6390",
            ],
            &["6390", "9092"],
        ),
    ] {
        assert_eq!(egress(example, sets), ports, "{example} {sets:?}");
    }
    for set in [
        "config.store.redis.url=,config.store.redis.url_file=/run/url",
        "env.POSTDATE_TRACES__ENDPOINT=http://collector:4318",
    ] {
        let refused = helm("template", "small", &["--set", set]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success()
                && said.contains("name it in networkPolicy.egress, or the pods cannot connect"),
            "{set}: {said}"
        );
        output(&mut helm(
            "template",
            "small",
            &["--set", set, "--set", "networkPolicy.enabled=false"],
        ));
    }
}
