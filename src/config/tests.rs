//! Tests of the configuration: defaults, sources and error texts.

use super::admin::{Admin, Payloads};
use super::cluster::Destination;
use super::decode::source::is_secret;
use super::route::{MaxWaiting, Retry};
use super::store::{Cluster, Sentinel};
use super::*;
use crate::model::{Dialect, Dialects, StartPoint, Timestamp};
use figment::error::Kind;
use figment::value::{Dict, Value};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::de::DeserializeOwned;
use std::io::Write as _;
use toml_edit::{Item, TableLike};

const DEFAULT: &str = include_str!("../../config/default.toml");
const SMALLEST: &str = include_str!("../../config/kafka.toml");

/// Parses a text with an environment.
pub(super) fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
    let environment = environment
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Config::parse(Path::new("postdate.toml"), text, environment)
}

fn good(text: &str, environment: &[(&str, &str)]) -> Config {
    parse(text, environment).unwrap_or_else(|error| panic!("{error}"))
}

fn smallest(environment: &[(&str, &str)]) -> Config {
    good(SMALLEST, environment)
}

#[test]
fn the_reference_file_has_the_defaults() {
    assert_eq!(good(DEFAULT, &[]), smallest(&[]));
}

#[test]
fn the_examples_with_nats_are_valid() {
    let (nats, bridge) = (
        good(include_str!("../../config/nats.toml"), &[]),
        good(include_str!("../../config/bridge.toml"), &[]),
    );
    assert_eq!(
        nats.routes["orders"].source.topics,
        ["DELAYED:delayed.orders.*"]
    );
    assert_eq!(nats.nats["edge"].addresses(), ["nats://127.0.0.1:4222"]);
    assert_eq!(bridge.routes["to_nats"].target_kind(), BrokerKind::Nats);
    assert_eq!(bridge.routes["to_kafka"].target_kind(), BrokerKind::Kafka);
}

#[test]
fn the_reference_file_has_every_key_and_no_other() {
    let (mut shown, mut section) = (BTreeSet::new(), String::new());
    for line in DEFAULT.lines() {
        // An option that is not set by default follows a # without a space.
        let line = line
            .strip_prefix('#')
            .filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
            .unwrap_or(line);
        if line.starts_with('[') {
            section = format!("{line}\n");
        } else if !line.starts_with('#') {
            let document = toml_edit::ImDocument::parse(format!("{section}{line}"))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            collect(document.as_table(), "", &mut shown);
        }
    }
    assert_eq!(shown, known_keys());
}

/// All tables with their keys. `*` is any name that the user chooses.
fn tables() -> Vec<(&'static str, &'static [&'static str])> {
    // Serde does not list the keys of an untagged enum.
    let source = &["kafka", "topics", "nats", "stream", "subjects"];
    let destination = &["kafka", "topic", "nats", "subject"];
    vec![
        ("store.redis.sentinel", keys::<Sentinel>()),
        ("store.redis.cluster", keys::<Cluster>()),
        ("store.redis", keys::<Redis>()),
        ("store.embedded", keys::<Embedded>()),
        ("store", keys::<StoreOptions>()),
        ("store.encryption", keys::<store::Encryption>()),
        ("kafka.*", keys::<Kafka>()),
        ("nats.*", keys::<Nats>()),
        ("route.*.source", source),
        ("route.*.target", destination),
        ("route.*.dead_letter", destination),
        ("route.*.retry", keys::<Retry>()),
        ("route.*", keys::<Route>()),
        ("timer", keys::<Timer>()),
        ("admin", keys::<Admin>()),
        ("log", keys::<Log>()),
        ("traces", keys::<Traces>()),
        ("", keys::<Config>()),
    ]
}

/// The keys that `T` decodes from: serde lists them when it rejects another one.
fn keys<T: DeserializeOwned>() -> &'static [&'static str] {
    let probe = Value::from(Dict::from([(String::new(), Value::from(""))]));
    match T::deserialize(&probe).map_err(|error| error.kind) {
        Err(Kind::UnknownField(_, keys)) => keys,
        _ => panic!("an unknown key is not rejected"),
    }
}

/// All keys with a value, such as `route.*.source.topics`.
fn known_keys() -> BTreeSet<String> {
    let tables = tables();
    let is_table = |key: &str| {
        let below = format!("{key}.");
        tables
            .iter()
            .any(|(table, _)| *table == key || table.starts_with(&below))
    };
    let mut known = BTreeSet::new();
    for (table, keys) in &tables {
        for key in *keys {
            let key = format!("{table}.{key}").trim_start_matches('.').to_owned();
            if is_secret(&key.split('.').collect::<Vec<_>>()) {
                known.insert(format!("{key}_file"));
            }
            if !is_table(&key) {
                known.insert(key);
            }
        }
    }
    known
}

/// Adds the known keys that stand below `table`, whose path is `path`.
fn collect(table: &dyn TableLike, path: &str, shown: &mut BTreeSet<String>) {
    for (name, item) in table.iter() {
        let path = format!("{path}.{name}");
        let path = path.trim_start_matches('.');
        let is_match = |known: &str| {
            let (parts, known) = (path.split('.'), known.split('.'));
            parts.clone().count() == known.clone().count()
                && parts
                    .zip(known)
                    .all(|(part, known)| known == "*" || known == part)
        };
        match known_keys().into_iter().find(|known| is_match(known)) {
            Some(known) => _ = shown.insert(known),
            None => collect(
                item.as_table_like()
                    .unwrap_or_else(|| panic!("{path} is not known")),
                path,
                shown,
            ),
        }
        assert!(!matches!(item, Item::ArrayOfTables(_)), "{path}");
    }
}

fn documented_admin() -> Admin {
    Admin {
        operator_token: None,
        payloads: Payloads::Hidden,
        environment: None,
        colour: None,
        listen: "127.0.0.1:8088".parse().unwrap(),
        token: None,
        certificate: None,
        certificate_key: None,
        client_ca: None,
        user_header: None,
        proxies: Vec::new(),
        operators: Vec::new(),
        operator_certificates: Vec::new(),
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "it lists all options")]
fn the_smallest_file_gives_the_documented_defaults() {
    let topic = |topic: &str| Destination {
        kind: BrokerKind::Kafka,
        cluster: "main".to_owned(),
        name: topic.to_owned(),
    };
    let route = Route {
        source: Source {
            kind: BrokerKind::Kafka,
            cluster: "main".to_owned(),
            topics: vec!["orders.delayed".to_owned()],
        },
        target: Some(topic("orders")),
        allow: None,
        allow_replies: None,
        dead_letter: topic("orders.dead"),
        max_delay: Duration::from_secs(30 * 86_400),
        delivery: Delivery::AtLeastOnce,
        recurring: false,
        without_delay: WithoutDelay::Relay,
        on_duplicate: OnDuplicate::Replace,
        change_by_origin: false,
        dialects: Dialects::default(),
        on_source_gap: OnSourceGap::Continue,
        start: StartPoint::First,
        overdue: Overdue::Deliver,
        overdue_after: None,
        expired: Expired::DeadLetter,
        rate: None,
        catch_up_rate: None,
        max_waiting: None,
        over_quota: OverQuota::Wait,
        retry: Retry {
            max_attempts: 10,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        },
    };
    let expected = Config {
        deployment: "local".to_owned(),
        include: None,
        roles: all_roles(),
        retry_key: None,
        accept_unsigned_retries: false,
        store: on_redis(Redis {
            url: Some(Secret::new("redis://127.0.0.1:6379")),
            ..Redis::default()
        }),
        kafka: BTreeMap::from([(
            "main".to_owned(),
            Kafka {
                brokers: vec!["127.0.0.1:9092".to_owned()],
                properties: BTreeMap::new(),
            },
        )]),
        nats: BTreeMap::new(),
        routes: BTreeMap::from([("orders".to_owned(), route)]),
        memory: 512 << 20,
        worker: Worker::default(),
        timer: Timer {
            memory: None,
            lease: Duration::from_secs(5),
            max_clock_skew: Duration::from_secs(2),
        },
        admin: documented_admin(),
        log: Log {
            format: LogFormat::Auto,
            level: "info".to_owned(),
        },
        traces: Traces {
            endpoint: None,
            authorization: None,
            one_in: 1,
        },
    };
    assert_eq!(smallest(&[]), expected);
}

#[test]
#[allow(clippy::too_many_lines, reason = "it lists all options")]
fn every_option_can_be_set_by_the_environment() {
    let config = smallest(&[
        ("POSTDATE_DEPLOYMENT", "prod-eu"),
        ("POSTDATE_ROLES", r#"["timer"]"#),
        (
            "POSTDATE_STORE__REDIS__URL",
            "rediss://redis.example.com:6380/3",
        ),
        ("POSTDATE_STORE__REDIS__USERNAME", "postdate"),
        ("POSTDATE_STORE__REDIS__PASSWORD", r#""0123""#),
        ("POSTDATE_STORE__REDIS__CA", "/ca.crt"),
        ("POSTDATE_STORE__REDIS__CERTIFICATE", "/tls.crt"),
        ("POSTDATE_STORE__REDIS__CERTIFICATE_KEY", "/tls.key"),
        ("POSTDATE_KAFKA__MAIN__BROKERS", "[a:1, \"[::1]:2\"]"),
        (
            "POSTDATE_KAFKA__MAIN__PROPERTIES__SECURITY__PROTOCOL",
            "SASL_SSL",
        ),
        ("POSTDATE_KAFKA__MAIN__PROPERTIES__LINGER__MS", "5"),
        ("POSTDATE_KAFKA__OTHER__BROKERS", "[b:1]"),
        ("POSTDATE_ROUTE__ORDERS__SOURCE__TOPICS", "[x, y]"),
        (
            "POSTDATE_ROUTE__ORDERS__TARGET",
            r#"{ kafka = other, topic = "z" }"#,
        ),
        ("POSTDATE_ROUTE__ORDERS__ALLOW", r#"["a.*", b]"#),
        ("POSTDATE_ROUTE__ORDERS__ALLOW_REPLIES", r#"["r.*"]"#),
        ("POSTDATE_ROUTE__ORDERS__DEAD_LETTER__TOPIC", "dead"),
        ("POSTDATE_ROUTE__ORDERS__MAX_DELAY", "1h30m"),
        ("POSTDATE_ROUTE__ORDERS__WITHOUT_DELAY", "dead-letter"),
        ("POSTDATE_ROUTE__ORDERS__ON_DUPLICATE", "keep-first"),
        ("POSTDATE_ROUTE__ORDERS__CHANGE_BY_ORIGIN", "true"),
        ("POSTDATE_ROUTE__ORDERS__EXPIRED", "drop"),
        ("POSTDATE_ROUTE__ORDERS__ON_SOURCE_GAP", "stop"),
        ("POSTDATE_ROUTE__ORDERS__START", "2026-11-24T08:00:00Z"),
        ("POSTDATE_ROUTE__ORDERS__DELIVERY", "at-least-once"),
        ("POSTDATE_ROUTE__ORDERS__DIALECTS", "[etf1, rabbitmq]"),
        ("POSTDATE_ROUTE__ORDERS__RETRY__MAX_ATTEMPTS", "3"),
        ("POSTDATE_ROUTE__ORDERS__RETRY__BACKOFF", "2s"),
        ("POSTDATE_ROUTE__ORDERS__RETRY__BACKOFF_MAX", "4s"),
        ("POSTDATE_MEMORY", "1GiB"),
        ("POSTDATE_ROUTE__ORDERS__OVERDUE", "dead-letter"),
        ("POSTDATE_ROUTE__ORDERS__OVERDUE_AFTER", "90s"),
        ("POSTDATE_ROUTE__ORDERS__RATE", "900"),
        ("POSTDATE_ROUTE__ORDERS__CATCH_UP_RATE", "700"),
        ("POSTDATE_ROUTE__ORDERS__MAX_WAITING__MESSAGES", "5000"),
        ("POSTDATE_ROUTE__ORDERS__MAX_WAITING__BYTES", "1GiB"),
        ("POSTDATE_ROUTE__ORDERS__OVER_QUOTA", "dead-letter"),
        ("POSTDATE_WORKER__NAME", "w-0"),
        ("POSTDATE_TIMER__LEASE", "7s"),
        ("POSTDATE_TIMER__MAX_CLOCK_SKEW", "500ms"),
        ("POSTDATE_ADMIN__LISTEN", "[::]:9000"),
        ("POSTDATE_ADMIN__TOKEN", "sixteen-or-more-characters"),
        ("POSTDATE_ADMIN__USER_HEADER", "X-Forwarded-Email"),
        ("POSTDATE_ADMIN__PROXIES", "[\"10.1.2.3\"]"),
        ("POSTDATE_ADMIN__OPERATORS", "[\"ada@example.com\"]"),
        ("POSTDATE_LOG__FORMAT", "json"),
        ("POSTDATE_LOG__LEVEL", "warn,postdate::timer=debug"),
        (
            "POSTDATE_TRACES__ENDPOINT",
            "https://collector.example.com/otlp",
        ),
        ("POSTDATE_TRACES__AUTHORIZATION", "Bearer abc"),
        ("POSTDATE_TRACES__ONE_IN", "100"),
        ("POSTDATE_SERVICE_HOST", "10.0.0.1"),
        ("POSTDATE_BIN", "target/release/postdate"),
        ("POSTDATE_SERVERS", ".servers"),
        ("POSTDATE_PORT_8088_TCP_ADDR", "10.0.0.1"),
    ]);
    let properties = [("linger.ms", "5"), ("security.protocol", "SASL_SSL")]
        .map(|(name, value)| (name.to_owned(), Secret::new(value)));
    let kafka = |brokers: &[&str], properties| Kafka {
        brokers: brokers.iter().map(|b| (*b).to_owned()).collect(),
        properties,
    };
    let expected = Config {
        deployment: "prod-eu".to_owned(),
        include: None,
        roles: [Role::Timer].into(),
        retry_key: None,
        accept_unsigned_retries: false,
        store: on_redis(Redis {
            url: Some(Secret::new("rediss://redis.example.com:6380/3")),
            username: Some("postdate".to_owned()),
            password: Some(Secret::new("0123")),
            ca: Some("/ca.crt".into()),
            certificate: Some("/tls.crt".into()),
            certificate_key: Some("/tls.key".into()),
            ..Redis::default()
        }),
        kafka: BTreeMap::from([
            (
                "main".to_owned(),
                kafka(&["a:1", "[::1]:2"], properties.into()),
            ),
            ("other".to_owned(), kafka(&["b:1"], BTreeMap::new())),
        ]),
        nats: BTreeMap::new(),
        routes: BTreeMap::from([(
            "orders".to_owned(),
            Route {
                source: Source {
                    kind: BrokerKind::Kafka,
                    cluster: "main".to_owned(),
                    topics: vec!["x".to_owned(), "y".to_owned()],
                },
                target: Some(Destination {
                    kind: BrokerKind::Kafka,
                    cluster: "other".to_owned(),
                    name: "z".to_owned(),
                }),
                allow: Some(vec!["a.*".to_owned(), "b".to_owned()]),
                allow_replies: Some(vec!["r.*".to_owned()]),
                dead_letter: Destination {
                    kind: BrokerKind::Kafka,
                    cluster: "main".to_owned(),
                    name: "dead".to_owned(),
                },
                max_delay: Duration::from_secs(5400),
                delivery: Delivery::AtLeastOnce,
                recurring: false,
                without_delay: WithoutDelay::DeadLetter,
                on_duplicate: OnDuplicate::KeepFirst,
                change_by_origin: true,
                dialects: [Dialect::Etf1, Dialect::RabbitMq].into_iter().collect(),
                on_source_gap: OnSourceGap::Stop,
                start: StartPoint::Time(Timestamp::from_millis(1_795_507_200_000)),
                overdue: Overdue::DeadLetter,
                overdue_after: Some(Duration::from_secs(90)),
                expired: Expired::Drop,
                rate: Some(900),
                catch_up_rate: Some(700),
                max_waiting: Some(MaxWaiting {
                    messages: Some(5_000),
                    bytes: Some(1 << 30),
                }),
                over_quota: OverQuota::DeadLetter,
                retry: Retry {
                    max_attempts: 3,
                    backoff: Duration::from_secs(2),
                    backoff_max: Duration::from_secs(4),
                },
            },
        )]),
        memory: 1 << 30,
        worker: Worker {
            name: Some("w-0".to_owned()),
            watch_config: false,
        },
        timer: Timer {
            memory: None,
            lease: Duration::from_secs(7),
            max_clock_skew: Duration::from_millis(500),
        },
        admin: Admin {
            operator_token: None,
            payloads: Payloads::Hidden,
            environment: None,
            colour: None,
            listen: "[::]:9000".parse().unwrap(),
            token: Some(Secret::new("sixteen-or-more-characters")),
            certificate: None,
            certificate_key: None,
            client_ca: None,
            user_header: Some("X-Forwarded-Email".to_owned()),
            proxies: vec!["10.1.2.3".to_owned()],
            operators: vec!["ada@example.com".to_owned()],
            operator_certificates: Vec::new(),
        },
        log: Log {
            format: LogFormat::Json,
            level: "warn,postdate::timer=debug".to_owned(),
        },
        traces: Traces {
            endpoint: Some("https://collector.example.com/otlp".parse().unwrap()),
            authorization: Some(Secret::new("Bearer abc")),
            one_in: 100,
        },
    };
    assert_eq!(config, expected);
    assert_eq!(expected.routes["orders"].target_cluster(), "other");
}

fn on_redis(redis: Redis) -> StoreOptions {
    StoreOptions {
        kind: Store::Redis(Box::new(redis)),
        encryption: None,
    }
}

fn password(config: &Config) -> Option<&Secret> {
    match &config.store.kind {
        Store::Redis(redis) => redis.password.as_ref(),
        Store::Embedded(_) => panic!("no Redis"),
    }
}

/// Returns the store of the smallest file with `store` instead of its own.
fn stored_in(store: &str, environment: &[(&str, &str)]) -> Store {
    let text = SMALLEST.replace("[store.redis]\nurl = \"redis://127.0.0.1:6379\"", store);
    assert!(!text.contains("redis://"));
    good(&text, environment).store.kind
}

#[test]
fn without_redis_messages_wait_in_the_embedded_store() {
    let embedded = |path: &str| Store::Embedded(Embedded { path: path.into() });
    for store in ["", "[store]", "[store.embedded]"] {
        assert_eq!(
            stored_in(store, &[]),
            embedded("./postdate-data"),
            "{store:?}"
        );
        assert_eq!(
            stored_in(store, &[("POSTDATE_STORE__EMBEDDED__PATH", "/data")]),
            embedded("/data"),
            "{store:?}"
        );
    }
    assert_eq!(
        stored_in("[store.embedded]\npath = \"here\"", &[]),
        embedded("here")
    );
    let redis = stored_in("", &[("POSTDATE_STORE__REDIS__URL", "redis://a")]);
    assert!(matches!(redis, Store::Redis(redis) if redis.url == Some(Secret::new("redis://a"))));
}

#[test]
fn a_secret_is_read_from_its_file_without_the_line_end() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"hunter2\n").unwrap();
    let path = file.path().to_str().unwrap();
    let config = smallest(&[
        ("POSTDATE_STORE__REDIS__PASSWORD_FILE", path),
        (
            "POSTDATE_KAFKA__MAIN__PROPERTIES__SASL__PASSWORD_FILE",
            path,
        ),
    ]);
    assert_eq!(password(&config), Some(&Secret::new("hunter2")));
    assert_eq!(
        config.kafka["main"].properties["sasl.password"],
        Secret::new("hunter2")
    );
    let said = parse(SMALLEST, &[("POSTDATE_STORE__REDIS__URL_FILE", path)])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("the address has no scheme") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn a_secret_of_the_environment_overrides_the_file_in_either_form() {
    let text = SMALLEST
        .replace("[kafka.main]", "password_file = \"/nowhere\"\n[kafka.main]\nproperties = { \"sasl.password_file\" = \"/nowhere\" }");
    let environment = [
        ("POSTDATE_STORE__REDIS__PASSWORD", "a"),
        ("POSTDATE_KAFKA__MAIN__PROPERTIES__SASL__PASSWORD", "b"),
    ];
    let config = good(&text, &environment);
    assert_eq!(password(&config), Some(&Secret::new("a")));
    assert_eq!(
        config.kafka["main"].properties,
        BTreeMap::from([("sasl.password".to_owned(), Secret::new("b"))])
    );
}

#[test]
fn properties_are_text_whole_numbers_or_booleans_with_any_spelling_of_their_names() {
    let text = SMALLEST
        .replace("[route.orders]", "[kafka.main.properties]\n\"a.b\" = 5\nc.d = true\ne = \"text, with [all] kinds\"\n[route.orders]");
    let properties = &good(
        &text,
        &[
            ("POSTDATE_KAFKA__MAIN__PROPERTIES__C__D", "false"),
            ("POSTDATE_KAFKA__MAIN__PROPERTIES__SASL__PASSWORD", "0123"),
        ],
    )
    .kafka["main"]
        .properties;
    let expected = [
        ("a.b", "5"),
        ("c.d", "false"),
        ("e", "text, with [all] kinds"),
        ("sasl.password", "0123"),
    ];
    assert_eq!(
        properties,
        &expected
            .map(|(name, value)| (name.to_owned(), Secret::new(value)))
            .into()
    );
}

#[test]
fn two_routes_may_read_the_same_topic() {
    let text = SMALLEST.to_owned()
        + "[route.copies]\nsource = { kafka = \"main\", topics = [\"orders.delayed\"] }\nallow = [\"copies.*\"]\ndead_letter = { kafka = \"main\", topic = \"orders.dead\" }\n";
    let config = good(&text, &[]);
    assert_eq!(config.routes["copies"].target, None);
    assert_eq!(config.routes["copies"].target_cluster(), "main");
}

#[test]
fn a_cluster_has_the_same_sources_under_all_its_names() {
    let again = "[kafka.again]\nbrokers = [\"127.0.0.1:9092\"]\n[kafka.other]\nbrokers = [\"127.0.0.1:9093\"]\n[route.orders]";
    let config = good(&SMALLEST.replace("[route.orders]", again), &[]);
    let sources = |cluster| {
        config
            .source_topics_of(cluster)
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (sources("main"), sources("again"), sources("other")),
        (
            vec!["orders.delayed".to_owned()],
            vec!["orders.delayed".to_owned()],
            vec![]
        )
    );
}

#[test]
fn a_configuration_does_not_print_secrets() {
    let config = smallest(&[
        ("POSTDATE_STORE__REDIS__URL", "redis://:hunter2@a"),
        (
            "POSTDATE_KAFKA__MAIN__PROPERTIES__SASL__PASSWORD",
            "hunter2",
        ),
    ]);
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn an_unreadable_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let said = |path: &Path| {
        Config::load(path)
            .unwrap_err()
            .to_string()
            .replace(folder.path().to_str().unwrap(), "<folder>")
    };
    let missing = said(&folder.path().join("none.toml"));
    assert!(
        missing.contains("  in:   <folder>/none.toml\n  what: cannot be read: No such file"),
        "{missing}"
    );
    assert!(said(folder.path()).contains("what: cannot be read: "));
    let foreign = folder.path().join("foreign.toml");
    std::fs::write(&foreign, b"# a\n# \xff\n").unwrap();
    assert!(said(&foreign).contains("what: cannot be read: stream did not contain valid UTF-8"));
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_utf8_is_an_error() {
    use std::os::unix::ffi::OsStringExt;
    let environment = [(
        OsString::from("POSTDATE_DEPLOYMENT"),
        OsString::from_vec(vec![0xff]),
    )];
    let said = Config::parse(Path::new("postdate.toml"), SMALLEST, environment)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains(
            "in:   environment variable POSTDATE_DEPLOYMENT\n  what: its value is not UTF-8"
        ),
        "{said}"
    );
}

#[test]
fn check_source_requires_a_known_route_and_topic() {
    let config = smallest(&[]);
    assert!(config.check_source("orders", "orders.delayed").is_ok());
    let said = |route, topic| config.check_source(route, topic).unwrap_err().to_string();
    assert!(
        said("billing", "x")
            .ends_with("in:   option --route of the command line\n  what: there is no route \"billing\"\n  fix:  choose from: orders\n")
    );
    assert!(said("orders", "x").ends_with(
        "what: route orders does not read a topic \"x\"\n  fix:  choose from: orders.delayed\n"
    ));
}

/// TOML values of every type. The values of secret keys contain a word that must never be printed.
const VALUES: &[&str] = &[
    "5",
    "-1",
    "1.5",
    "1e400",
    "true",
    "''",
    "'x'",
    "'1h'",
    "[]",
    "[5, 'x']",
    "[['x']]",
    "{}",
    "{ a = 5 }",
    "1979-05-27",
    "\"\\u0000\"",
    "\"é\\n\"",
];
const SECRETS: &[&str] = &[
    "'hunter2'",
    "'redis://hunter2'",
    "'redis://u:hunter2@h:x/y'",
    "['hunter2']",
    "{ a = 'hunter2' }",
    "'hunter2://'",
];

/// Last names of the keys whose values are never shown.
const SECRET_KEYS: &[&str] = &[
    "url",
    "password",
    "token",
    "nkey",
    "credentials",
    "authorization",
    "sasl",
];

/// The smallest configuration, a line for each key.
const LINES: &[(&str, &str)] = &[
    ("deployment", "'local'"),
    ("store.redis.url", "'redis://127.0.0.1:6379'"),
    ("kafka.main.brokers", "['127.0.0.1:9092']"),
    ("route.orders.source.kafka", "'main'"),
    ("route.orders.source.topics", "['orders.delayed']"),
    ("route.orders.target.kafka", "'main'"),
    ("route.orders.target.topic", "'orders'"),
    ("route.orders.dead_letter.kafka", "'main'"),
    ("route.orders.dead_letter.topic", "'orders.dead'"),
];

proptest! {
    #[test]
    fn any_values_are_decoded_without_a_panic_or_a_printed_secret(changes in prop::collection::vec((select(known_keys().into_iter().collect::<Vec<_>>()), any::<Index>(), any::<bool>()), 1..8)) {
        let mut lines: BTreeMap<_, _> = LINES.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let mut environment = Vec::new();
        for (pattern, value, in_file) in changes {
            let name = if pattern.starts_with("kafka") { "main" } else { "orders" };
            let key = pattern.replace("properties", "properties.sasl").replace('*', name);
            let is_secret = SECRET_KEYS.contains(&key.rsplit('.').next().unwrap());
            let value = value.get(if is_secret { SECRETS } else { VALUES });
            if in_file {
                lines.insert(key, value);
            } else {
                environment.push((format!("POSTDATE_{}", key.replace('.', "__").to_uppercase()), value.replace('\'', "\"")));
            }
        }
        let text: String = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        let environment: Vec<_> = environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let said = parse(&text, &environment).map_or_else(|error| error.to_string(), |config| format!("{config:?}"));
        prop_assert!(!said.contains("hunter"), "{}", said);
    }
}
