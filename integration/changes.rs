//! Tests changes: publish and cancel through the API, the console and the command line, each with and
//! without the right to do it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::env::{PATIENCE, Postdate, Sink, eventually, kafka, program, redis};
use crate::verdict::Scene;

pub(crate) const READER: &str = "b4d0e9c1-of-a-reader";
pub(crate) const OPERATOR: &str = "7a6f2d35-of-an-operator";

pub(crate) struct Service(pub(crate) Postdate);

impl Service {
    /// Runs `postdate` in the folder of the service, with its configuration. Returns the output.
    pub(crate) fn run(&self, arguments: &[&str], code: i32) -> String {
        let config = ["--config", "config.toml", "--route", "r"];
        let mut command = Command::new(program());
        let command = command.current_dir(self.0.folder());
        let output = command
            .args([arguments, &config].concat())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{printed}{errors}");
        printed + &errors
    }

    pub(crate) fn start(config: &str) -> Service {
        let variables = [
            ("POSTDATE_ADMIN__TOKEN", READER),
            ("POSTDATE_ADMIN__OPERATOR_TOKEN", OPERATOR),
        ];
        let mut postdate = Postdate::start_with(config, &variables);
        postdate.wait_until_ready();
        Service(postdate)
    }

    /// The status and the answer.
    pub(crate) fn curl(&self, token: &str, path: &str, arguments: &[&str]) -> (u16, String) {
        let output = Command::new("curl")
            .args(["--silent", "--write-out", "\n%{http_code}"])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args(arguments)
            .arg(format!("http://127.0.0.1:{}{path}", self.0.port()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = said.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    pub(crate) fn document(
        &self,
        token: &str,
        path: &str,
        arguments: &[&str],
        status: u16,
    ) -> Value {
        let (found, body) = self.curl(token, path, arguments);
        assert_eq!(found, status, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The waiting messages, once there are `count`.
    pub(crate) fn waiting(&self, count: usize) -> Vec<Value> {
        eventually("so many messages wait", PATIENCE, || {
            let page = self.document(READER, "/v1/routes/r/messages", &[], 200);
            let items = page["items"].as_array().unwrap().clone();
            (items.len() == count).then_some(items)
        })
    }

    pub(crate) fn publish(&self, id: &str, delay: &str, payload: &str) -> Value {
        let (id, delay) = (
            format!("postdate-id: {id}"),
            format!("postdate-after: {delay}"),
        );
        let headers = [
            "--header",
            &id,
            "--header",
            &delay,
            "--header",
            "ce-type: reminder",
        ];
        let body = [
            "--header",
            "content-type: text/plain",
            "--data-binary",
            payload,
        ];
        let arguments = [&headers[..], &body[..]].concat();
        self.document(OPERATOR, "/v1/routes/r/messages?key=k", &arguments, 201)
    }
}

#[test]
fn a_message_is_published_and_cancelled_by_an_operator_only() {
    let scene = Scene::new(kafka(), "changes", 2);
    let service = Service::start(&scene.config(redis()));
    let sink = Sink::start(kafka().addr(), &[&scene.target]);
    let path = "/v1/routes/r/messages";
    let body = ["--header", "postdate-after: 1h", "--data-binary", "x"];
    assert_eq!(service.curl(READER, path, &body).0, 403);
    assert_eq!(service.curl("of-a-stranger-of-nobody", path, &body).0, 401);
    let (status, problem) = service.curl(
        OPERATOR,
        path,
        &["--header", "postdate-after: 99999d", "--data", "x"],
    );
    assert!(
        status == 422 && problem.contains("max_delay"),
        "{status} {problem}"
    );
    assert_eq!(
        service.curl(OPERATOR, "/v1/routes/none/messages", &body).0,
        422
    );

    let now = service.publish("soon", "1s", "arrives");
    assert_eq!(now["target"], scene.target);
    let record = sink.wait_for(1, PATIENCE).remove(0);
    assert_eq!(record.payload.as_deref(), Some(&b"arrives"[..]));
    let header = |name: &str| record.header(name);
    assert_eq!(header("ce_type"), Some("reminder"));
    assert_eq!(header("content-type"), Some("text/plain"));
    assert_eq!(header("postdate-origin"), now["origin"].as_str());

    service.publish("later", "1h", "is cancelled");
    let items = service.waiting(1);
    let cancel = format!(
        "{path}/{}/{}:cancel",
        items[0]["partition"], items[0]["offset"]
    );
    assert_eq!(service.curl(READER, &cancel, &["--request", "POST"]).0, 403);
    let long = format!("{cancel}?wait=1h");
    assert_eq!(service.curl(OPERATOR, &long, &["--request", "POST"]).0, 400);
    let waits = format!("{cancel}?wait=10s");
    let receipt = service.document(OPERATOR, &waits, &["--request", "POST"], 200);
    let id = receipt["request_id"].as_str().unwrap();
    let again = service.document(READER, &format!("/v1/routes/r/changes/{id}"), &[], 200);
    assert_eq!(again, receipt, "the outcome can be read later");
    for unknown in ["r/changes/e30", &format!("other/changes/{id}")] {
        let path = format!("/v1/routes/{unknown}");
        assert_eq!(service.curl(READER, &path, &[]).0, 404, "{path}");
    }
    assert_eq!(receipt["outcome"], "cancelled");
    service.waiting(0);
    assert_eq!(
        service.curl(OPERATOR, &cancel, &["--request", "POST"]).0,
        404
    );
    let audit = service.0.logs();
    for action in ["publish", "cancel"] {
        assert!(
            audit.contains(&format!("\"action\":\"{action}\"")),
            "{audit}"
        );
    }
    assert!(!audit.contains(OPERATOR));
}

#[test]
fn a_repeat_with_an_idempotency_key_publishes_once() {
    let scene = Scene::new(kafka(), "once", 1);
    for (config, records) in [(scene.config(redis()), 2), (scene.config_stored("", ""), 4)] {
        let is_shared = config.contains("[store.redis]");
        let mut service = Service::start(&config);
        let path = "/v1/routes/r/messages?key=k";
        let publish = |service: &Service, key: &str, payload: &str| {
            let key = format!(
                "Idempotency-Key: \"{}-{key}\"",
                if is_shared { "a" } else { "b" }
            );
            let headers = [
                "--include",
                "--header",
                &key,
                "--header",
                "postdate-after: 1h",
            ];
            let body = ["--data-binary", payload];
            service.curl(OPERATOR, path, &[&headers[..], &body].concat())
        };
        let is_replayed = |answer: &str| {
            let answer = answer.to_ascii_lowercase();
            answer.contains("idempotent-replayed: true")
        };
        let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        let (status, first) = publish(&service, "1", "x");
        assert!(status == 201 && !is_replayed(&first), "{first}");
        let (status, again) = publish(&service, "1", "x");
        assert!(status == 201 && is_replayed(&again), "{again}");
        assert_eq!(body(&again), body(&first));
        let (status, other) = publish(&service, "1", "y");
        assert!(
            status == 422 && other.contains("idempotency_key_reused"),
            "{other}"
        );
        assert_eq!(publish(&service, "2", "x").0, 201, "another key");
        let wrong = [
            "--header",
            "Idempotency-Key: c",
            "--header",
            "postdate-after: 99999d",
        ];
        let wrong = [&wrong[..], &["--data", "x"]].concat();
        for _ in 0..2 {
            assert_eq!(
                service.curl(OPERATOR, path, &wrong).0,
                422,
                "it is refused again"
            );
        }
        let key = ["--header", "Idempotency-Key: d"];
        let long = format!("/v1/routes/r/messages?key={}", "k".repeat(2_000));
        let refused = service.curl(OPERATOR, &long, &[&key[..], &["--data", "x"]].concat());
        assert_eq!(refused.0, 400, "its answer would be long: {}", refused.1);
        assert_eq!(
            service
                .curl(READER, path, &[&key[..], &["--data", "x"]].concat())
                .0,
            403
        );
        // A process that is killed loses the lines that it has not stored yet.
        let wait_for_repeats = |service: &Service, count| {
            eventually("the audit list has the repeats", PATIENCE, || {
                let (_, audit) = service.curl(READER, "/v1/audit", &[]);
                (audit.matches("\"repeated\"").count() == count).then_some(())
            });
        };
        wait_for_repeats(&service, 1);
        // The answer outlives the process. Any process knows it.
        if is_shared {
            let other = Service::start(&config);
            let (status, again) = publish(&other, "1", "x");
            assert!(status == 201 && is_replayed(&again), "{again}");
            wait_for_repeats(&other, 2);
        } else {
            service.0.kill();
            service.0.restart();
            service.0.wait_until_ready();
            let (status, again) = publish(&service, "1", "x");
            assert!(status == 201 && is_replayed(&again), "{again}");
        }
        wait_for_repeats(&service, 2);
        service.0.kill();
        assert_eq!(
            Sink::read_to_end(kafka().addr(), &scene.source).len(),
            records
        );
    }
}

/// Runs `postdate` in a folder without a configuration, with the address of a service. Returns its output.
pub(crate) fn run_at(url: &str, folder: &Path, arguments: &[&str], code: i32) -> String {
    let mut command = Command::new(program());
    let command = command.current_dir(folder).args(arguments);
    let output = command.env("POSTDATE_URL", url).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let found = output.status.code();
    assert_eq!(found, Some(code), "{arguments:?}: {printed}{errors}");
    printed + &errors
}

#[test]
fn commands_work_with_the_address_of_a_service_and_a_token() {
    let scene = Scene::new(kafka(), "address", 1);
    let key = "retry_key = \"0123456789abcdef0123456789abcdef\"\n";
    let config = key.to_owned() + &scene.config_stored("", "");
    let service = Service::start(&config);
    for number in 0..5 {
        service.publish(&format!("order-{number}"), "1h", "x");
    }
    service.waiting(5);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{}", service.0.port());
    let token = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.display().to_string()
    };
    let (reader, operator) = (token("reader", READER), token("operator", OPERATOR));
    let run = |token: &str, line: &str, code: i32| {
        let line: Vec<_> = line.split(' ').collect();
        run_at(
            &url,
            folder.path(),
            &[&line[..], &["--token-file", token]].concat(),
            code,
        )
    };
    assert!(run(&reader, "workers", 0).contains("ingress,timer"));
    let pending = run(&reader, "pending --route r --json", 0);
    let pending: Value = serde_json::from_str(&pending).unwrap();
    assert_eq!(pending["total"]["messages"], 5);
    assert!(run(&reader, "pending --id order-1", 0).contains("order-1"));
    run(&reader, "pending --id order-99", 3);
    let ledger = run(&reader, "ledger --route r --output json", 0);
    let ledger: Value = serde_json::from_str(&ledger).unwrap();
    assert_eq!(ledger["total"]["accepted"], 5);
    for command in ["pending", "ledger"] {
        let unknown = run(&reader, &format!("{command} --route other"), 2);
        assert!(unknown.contains("choose from r"), "{unknown}");
    }
    run(&reader, "schedules list", 2);
    for command in ["list", "show --id a"] {
        let refused = run(&reader, &format!("schedules {command} --route r"), 2);
        assert!(refused.contains("refuses this"), "{refused}");
    }
    let list = run(&reader, "messages list --route r --output json", 0);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 5);
    let place = &list["items"][0];
    let show = format!(
        "messages show --route r --partition {} --offset {}",
        place["partition"], place["offset"]
    );
    assert!(run(&reader, &show, 0).contains("origin"));
    run(
        &reader,
        "messages show --route r --partition 0 --offset 9999",
        3,
    );
    let cancel = "messages cancel --route r --id order-1";
    let wrong = token("wrong", "of-a-stranger-of-nobody");
    assert!(run(&wrong, "workers", 1).contains("--token-file"));
    let refused = run(&reader, &format!("{cancel} --yes"), 2);
    assert!(refused.contains("admin.operator_token"), "{refused}");
    let dry = run(&operator, cancel, 0);
    assert!(dry.contains("1 message would be cancelled"), "{dry}");
    service.waiting(5);
    run(&operator, &format!("{cancel} --yes"), 0);
    service.waiting(4);
    let later = "messages reschedule --route r --id order-2 --in 2h --yes";
    assert!(run(&operator, later, 0).contains("Records written: 1."));
    run(&operator, "messages fire --route r --id order-3 --yes", 0);
    service.waiting(3);
    assert!(run(&operator, "pause --route r --note test --yes", 0).contains("1 of 1 shard paused"));
    assert!(run(&operator, "resume --route r --yes", 0).contains("0 of 1 shard paused"));
    assert!(run(&operator, "purge --route r --yes", 0).contains("Records written: 3."));
    service.waiting(0);
    eventually("the audit list has the purge", PATIENCE, || {
        let audit = run(&reader, "audit --limit 1", 0);
        audit.contains("done, 3 changed").then_some(())
    });
    for number in 0..4 {
        service.publish(&format!("late-{number}"), "1h", "x");
    }
    service.waiting(4);
    // One call at a time changes many messages. The other command repeats its call.
    let slow = "purge --route r --rate 1 --yes";
    std::thread::scope(|scope| {
        scope.spawn(|| run(&operator, slow, 0));
        run(&operator, slow, 0);
    });
    service.waiting(0);
    let mut command = Command::new(program());
    let output = command.current_dir(folder.path()).arg("workers").output();
    assert_eq!(
        output.unwrap().status.code(),
        Some(2),
        "no service is named"
    );
}

/// Two processes share Redis. A folder has one, which starts again.
#[test]
fn the_last_changes_are_listed_by_every_process_and_after_a_restart() {
    let scene = Scene::new(kafka(), "audit", 1);
    for config in [scene.config(redis()), scene.config_stored("", "")] {
        let is_shared = config.contains("[store.redis]");
        let mut service = Service::start(&config);
        service.publish("order-42", "1h", "x");
        let found = service.waiting(1).remove(0);
        let purge = ["--data", "{\"dry_run\": false}"];
        service.document(OPERATOR, "/v1/routes/r:purge", &purge, 200);
        let actions = |service: &Service| {
            let report = service.document(READER, "/v1/audit", &[], 200);
            let items = report["items"].as_array().unwrap().clone();
            let named = items.iter().map(|line| line["action"].as_str().unwrap());
            (named.map(str::to_owned).collect::<Vec<_>>(), items)
        };
        let lines = |service: &Service| {
            eventually("the store has both lines", PATIENCE, || {
                let (named, lines) = actions(service);
                (named == ["cancel", "publish"]).then_some(lines)
            })
        };
        let listed = lines(&service);
        assert_eq!(listed[0]["changed"], 1);
        assert_eq!(listed[0]["outcome"], "done");
        assert_eq!(listed[1]["id"], found["id"]);
        assert!(
            listed[1]["address"]
                .as_str()
                .unwrap()
                .starts_with("127.0.0.1:")
        );
        assert_eq!(
            service.curl("of-a-stranger-of-nobody", "/v1/audit", &[]).0,
            401
        );
        assert_eq!(service.curl(READER, "/v1/audit?after=x", &[]).0, 400);
        let first = service.document(READER, "/v1/audit?limit=1", &[], 200);
        let next = format!("/v1/audit?after={}", first["after"].as_str().unwrap());
        let next = service.document(READER, &next, &[], 200);
        assert_eq!(next["items"][0], listed[1]);
        assert_eq!(
            (&next["items"][1], &next["more"]),
            (&Value::Null, &false.into())
        );
        let changes = service.document(READER, "/v1/audit?changes=true", &[], 200);
        assert_eq!(changes["items"].as_array().unwrap()[..], listed[..1]);
        let (status, page) = service.curl(READER, "/audit?changes=true", &[]);
        assert!(status == 200 && !page.contains("publish</th>"), "{page}");
        let (status, page) = service.curl(READER, "/audit", &[]);
        assert!(status == 200 && page.contains("id order-42"), "{page}");
        if is_shared {
            let other = Service::start(&config);
            assert_eq!(lines(&other), listed);
        } else {
            service.0.terminate();
            service.0.restart();
            service.0.wait_until_ready();
            assert_eq!(lines(&service), listed);
        }
        let printed = service.0.command(&["audit"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.contains("done, 1 changed") && printed.contains("publish"));
        let printed = service.0.command(&["audit", "--changes"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.contains("done, 1 changed") && !printed.contains("publish"));
        service.0.kill();
    }
}

#[test]
fn the_console_cancels_with_a_cookie_from_its_own_pages() {
    let scene = Scene::new(kafka(), "buttons", 1);
    let service = Service::start(&scene.config_stored("", ""));
    service.publish("order", "1h", "is cancelled");
    let items = service.waiting(1);
    let page = format!(
        "/routes/r/messages/{}/{}",
        items[0]["partition"], items[0]["offset"]
    );
    let button = "Cancel this message</button>";
    assert!(!service.curl(READER, &page, &[]).1.contains(button));
    assert!(service.curl(OPERATOR, &page, &[]).1.contains(button));
    let cancel = format!("{page}/cancel");
    let post = ["--request", "POST"];
    let foreign = [&post[..], &["--header", "Sec-Fetch-Site: cross-site"]].concat();
    assert_eq!(service.curl(OPERATOR, &cancel, &foreign).0, 403);
    let (status, answer) = service.curl(READER, &cancel, &post);
    assert!(
        status == 403 && answer.contains("admin.operator_token"),
        "{answer}"
    );
    let (status, answer) = service.curl(OPERATOR, &cancel, &post);
    assert!(
        status == 200 && answer.contains("Cancelled: it will not be delivered"),
        "{answer}"
    );
    service.waiting(0);
}

#[test]
fn the_command_line_lists_shows_and_cancels_what_waits() {
    let scene = Scene::new(kafka(), "lines", 2);
    let service = Service::start(&scene.config(redis()));
    for number in 0..4 {
        service.publish(&format!("order-{number}"), "1h", "x");
    }
    let items = service.waiting(4);
    let config = ["--config", "config.toml", "--route", "r"];
    let run = |action: &str, more: &[&str], code: i32| {
        let arguments = [&[action], &config[..], more].concat();
        let mut program = Command::new(env!("CARGO_BIN_EXE_postdate"));
        let program = program
            .arg("messages")
            .args(arguments)
            .current_dir(service.0.folder());
        let output = program.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}{errors}");
        said
    };
    let list = run("list", &["--id", "order-2"], 0);
    assert!(
        list.contains("order-2") && !list.contains("order-1"),
        "{list}"
    );
    let page: Value = serde_json::from_str(&run("list", &["--output", "json"], 0)).unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 4);
    let (partition, offset) = (
        items[0]["partition"].to_string(),
        items[0]["offset"].to_string(),
    );
    let place = [
        "--partition",
        partition.as_str(),
        "--offset",
        offset.as_str(),
    ];
    let shown = run("show", &place, 0);
    assert!(
        shown.contains("ce_type: reminder") && shown.contains("hidden"),
        "{shown}"
    );
    run("show", &["--partition", "0", "--offset", "4711"], 3);
    let dry = run("cancel", &["--header", "ce_type:reminder"], 0);
    assert!(dry.starts_with("4 messages would be cancelled"), "{dry}");
    service.waiting(4);
    let limited = run(
        "cancel",
        &["--header", "ce_type:reminder", "--limit", "3", "--yes"],
        0,
    );
    assert!(limited.starts_with("Records written: 3."), "{limited}");
    service.waiting(1);
}
