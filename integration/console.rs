//! Tests the console in headless Chromium: every page in light and dark, wide and narrow, with axe-core,
//! and every form with clicks. A consumer tells what became of the messages.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::changes::{OPERATOR, READER, Service};
use crate::env::{Outgoing, PATIENCE, Postdate, Producer, Sink, eventually, kafka, redis, servers};
use crate::redrive::bury;
use crate::verdict::Scene;

const TOKEN: &str = "0c1f5b1e-of-the-console";

/// Opens the pages, and fails with everything that `look.cjs` reports.
fn look(name: &str, postdate: &Postdate, cookie: &str, paths: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let base = format!("http://127.0.0.1:{}", postdate.port());
    let pictures = root.join("target/browser").join(name);
    let looked = Command::new(root.join("integration/env/node.sh"))
        .arg("node")
        .arg(root.join("integration/browser/look.cjs"))
        .arg(pictures)
        .arg(base)
        .args(paths)
        .env("COOKIE", cookie)
        .env("NODE_PATH", servers().join("browser/node_modules"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&looked.stdout);
    let errors = String::from_utf8_lossy(&looked.stderr);
    assert!(looked.status.success(), "{said}{errors}");
}

/// Does the steps of `click.cjs`, and fails with everything that it reports.
fn click(name: &str, postdate: &Postdate, variables: &[(&str, &str)], steps: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut browser = Command::new(root.join("integration/env/node.sh"))
        .arg("node")
        .arg(root.join("integration/browser/click.cjs"))
        .arg(root.join("target/browser").join(name))
        .arg(format!("http://127.0.0.1:{}", postdate.port()))
        .env("NODE_PATH", servers().join("browser/node_modules"))
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = browser.stdin.take().unwrap();
    stdin.write_all(steps.as_bytes()).unwrap();
    drop(stdin);
    let clicked = browser.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&clicked.stdout);
    assert!(clicked.status.success(), "{said}");
}

/// Steps to a page with the rights of a token.
fn sign_in(token: &str, path: &str) -> String {
    format!("go {path}\nsee Log in\nfill Token = {token}\nclick Log in\nat {path}\n")
}

/// Sends messages `<campaign>-<number>` with a header and a delay.
fn send_campaign(scene: &Scene, campaign: &str, count: usize, delay: &str) {
    let producer = Producer::start(kafka().addr());
    for number in 0..count {
        let name = format!("{campaign}-{number}");
        let message = Outgoing::to(&scene.source)
            .key(&name)
            .payload(&name)
            .header("campaign", campaign)
            .header("postdate-id", &name)
            .header("postdate-after", delay);
        producer.send(&message);
    }
    producer.flush();
}

/// The payloads that have arrived once the message `last` has.
fn arrived(service: &Service, sink: &Sink) -> BTreeSet<String> {
    service.publish("last", "1s", "last");
    let text =
        |payload: &Option<Vec<u8>>| String::from_utf8(payload.clone().unwrap_or_default()).unwrap();
    let records = sink.wait_until("the last one arrives", PATIENCE, |records| {
        records.iter().any(|record| text(&record.payload) == "last")
    });
    records.iter().map(|record| text(&record.payload)).collect()
}

/// The messages that wait, as the API shows them.
fn waiting(postdate: &Postdate, count: usize) -> Vec<Value> {
    eventually("the messages wait", PATIENCE, || {
        let (status, body) = postdate.get("/v1/routes/r/messages")?;
        assert_eq!(status, 200, "{body}");
        let page: Value = serde_json::from_str(&body).unwrap();
        let items = page["items"].as_array().unwrap().clone();
        (items.len() == count).then_some(items)
    })
}

#[test]
fn every_page_is_accessible_in_light_and_dark_wide_and_narrow() {
    let scene = Scene::new(kafka(), "console", 2);
    let schedules = format!("{}.schedules", scene.deployment);
    kafka().create_topic(&schedules, 1, &[("cleanup.policy", "compact")]);
    let route = format!(
        "[route.reports]
        source = {{ kafka = \"main\", topics = [\"{schedules}\"] }}
        target = {{ kafka = \"main\", topic = \"{}\" }}
        dead_letter = {{ kafka = \"main\", topic = \"{}.dead\" }}
        recurring = true",
        scene.target, scene.deployment
    );
    let config = scene.config_with(redis(), &route);
    let variables = [
        ("POSTDATE_ADMIN__PAYLOADS", "shown"),
        ("POSTDATE_ADMIN__ENVIRONMENT", "staging"),
        ("POSTDATE_ADMIN__COLOUR", "purple"),
    ];
    let mut postdate = Postdate::start_with(&config, &variables);
    postdate.wait_until_ready();
    for number in 0..6 {
        let (key, id) = (format!("order-{number}"), format!("reminder-{number}"));
        let delay = format!("{}m", 5 + 200 * number);
        let sent = postdate.command(&[
            "send",
            "--route",
            "r",
            "--key",
            &key,
            "--id",
            &id,
            "--in",
            &delay,
            "--header",
            "type=reminder",
            "a payload with <b>markup</b> & signs",
        ]);
        assert!(sent.status.success(), "{sent:?}");
    }
    let items = waiting(&postdate, 6);
    assert!(items[0]["payload"].is_null(), "a list shows no payload");
    let place = format!("/{}/{}", items[0]["partition"], items[0]["offset"]);
    let message = format!("/routes/r/messages{place}");
    let (_, body) = postdate.get(&format!("/v1{message}")).unwrap();
    let found: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(found["payload"], "a payload with <b>markup</b> & signs");
    assert!(postdate.logs().contains("payload shown"), "an audit line");
    let (status, page) = postdate.get(&message).unwrap();
    assert_eq!(status, 200);
    assert!(
        page.contains("&#60;b&#62;markup") && !page.contains("<b>markup"),
        "{page}"
    );
    let producer = Producer::start(kafka().addr());
    let dead = Outgoing::to(&format!("{}.dead", scene.deployment))
        .payload("dead")
        .header("postdate-after", "1h")
        .header("postdate-due", "1700000000000")
        .header(
            "postdate-origin",
            format!("{}/r/{}/0/4711", scene.deployment, scene.source),
        )
        .header("postdate-error", "unknown_target")
        .header("postdate-error-detail", "there is no topic <b>orders</b>");
    producer.send(&dead);
    for (id, expression) in [("invoices", "0 9 * * MON-FRI"), ("wrong", "0 25 * * *")] {
        let definition = Outgoing::to(&schedules).key(id).payload("all");
        producer.send(&definition.header("postdate-cron", expression));
    }
    producer.flush();
    let (_, page) = postdate.get("/routes/reports/schedules").unwrap();
    assert!(
        page.contains("at 09:00 on Monday to Friday") && page.contains("wrong"),
        "{page}"
    );
    let paths = [
        "/",
        "/routes/r",
        "/routes/reports",
        "/routes/reports/schedules",
        "/routes/reports/schedules?id=none",
        "/routes/reports/schedules/invoices",
        "/routes/reports/schedules/wrong",
        "/routes/reports/schedules/none",
        "/routes/r/schedules",
        "/routes/r/dead-letters",
        "/routes/r/dead-letters?code=timed_out",
        "/routes/r/messages",
        "/routes/r/messages?id=reminder-3",
        message.as_str(),
        "/workers",
        "/ledgers",
        "/audit",
        "/routes/unknown",
        "/routes/r/messages/change",
        "/find?id=none",
        "/no/such/page",
        "/login",
    ];
    look("pages", &postdate, "", &paths);
}

#[test]
fn an_operator_finds_and_changes_messages_with_clicks() {
    let scene = Scene::new(kafka(), "clicks", 2);
    let service = Service::start(&scene.config(redis()));
    let sink = scene.sink();
    for number in [41, 42, 43] {
        let name = format!("order-{number}");
        service.publish(&name, "1h", &name);
    }
    send_campaign(&scene, "wrong", 80, "2h");
    send_campaign(&scene, "later", 3, "3h");
    let items = service.waiting(86);
    let due = items.last().unwrap()["due"].as_str().unwrap();
    // In the format of the field, without the fraction of the second.
    let due = &due[.."2027-01-31T09:00:00".len()];
    let order = items.iter().find(|item| item["id"] == "order-43").unwrap();
    let place = format!("{}/{}", order["partition"], order["offset"]);
    let search = |campaign: &str, action: &str, rate: u32| {
        format!(
            "go /routes/r
            click Search the waiting messages
            fill Header = campaign:{campaign}
            click Search
            fill Change all messages of this search = {action}
            fill Per second = {rate}
            "
        )
    };
    let one = format!(
        "go /routes/r/messages?id=order-42
        see Log in
        look login
        fill Token = of-a-stranger-of-nobody
        click Log in
        see This is not the token
        look login-wrong
        fill Token = {OPERATOR}
        click Log in
        at /routes/r/messages?id=order-42
        see Signed in as operator
        go /
        fill Time zone = Asia/Tokyo
        fill Find a waiting message by its id = order-42
        click Find
        see Asia/Tokyo
        look message
        dismiss Deliver now
        asked Deliver this message now?
        click Deliver now
        see Due now:
        look fired
        go /routes/r/messages
        fill Id = order-43
        click Search
        look found
        click {place}
        fill New due time (UTC) = {due}
        click Reschedule
        see Done: the message has its new due time.
        look rescheduled
        go /find?id=order-43
        dismiss Cancel this message
        asked Cancel this message? It will not be delivered.
        click Cancel this message
        see Cancelled: it will not be delivered.
        look cancelled
        go /find?id=order-43
        see No message waits under this id.
        look find
        "
    );
    // The script continues the cancel by itself.
    let cancel = "look search
        click Preview
        see 80 messages would be cancelled.
        look preview
        dismiss Cancel 80 messages
        asked Cancel 80 messages? They will not be delivered.
        click Cancel 80 messages
        see messages so far.
        gone so far
        see Cancel requested for 80 messages.
        look changed
        click Waiting messages
        see No waiting message meets these conditions.
        ";
    let reschedule = format!(
        "fill New due time (UTC), only to reschedule = {due}
        click Preview
        see 3 messages would get the new due time.
        click Reschedule 3 messages
        see New due time requested for 3 messages.
        "
    );
    let fire = "click Preview
        see 3 messages would be delivered now.
        click Deliver 3 messages now
        see Delivery now requested for 3 messages.
        ";
    let steps = [
        one.as_str(),
        &search("wrong", "Cancel", 4),
        cancel,
        &search("later", "Reschedule", 100),
        &reschedule,
        &search("later", "Deliver now", 100),
        fire,
    ];
    click("operator", &service.0, &[], &steps.concat());
    service.waiting(1);
    let purge = "go /routes/r/messages
        click Preview
        see Cancel ALL waiting messages of r
        look purge
        click Cancel 1 message
        see Cancel requested for 1 message.
        click Log out
        at /login
        go /
        see Log in
        post 401 /routes/r/messages/change action=cancel
        ";
    click("purge", &service.0, &[], &(sign_in(OPERATOR, "/") + purge));
    service.waiting(0);
    let expected = ["last", "later-0", "later-1", "later-2", "order-42"];
    let expected = expected.into_iter().map(str::to_owned).collect();
    assert_eq!(arrived(&service, &sink), expected);
}

#[test]
fn a_reader_sees_pages_without_forms_and_can_change_nothing() {
    let scene = Scene::new(kafka(), "reader", 1);
    let service = Service::start(&scene.config_stored("", ""));
    let sink = scene.sink();
    service.publish("order-42", "1h", "order-42");
    let items = service.waiting(1);
    let message = format!(
        "/routes/r/messages/{}/{}",
        items[0]["partition"], items[0]["offset"]
    );
    let producer = Producer::start(kafka().addr());
    bury(&producer, &scene, 1, "unknown_target");
    producer.flush();
    let pages = format!(
        "see Signed in as reader, read-only
        look overview
        go /routes/r/messages
        see order-42
        unseen Preview
        go {message}
        see order-42
        unseen Deliver now
        unseen Reschedule
        look message
        post 403 {message}/fire a=b
        post 403 {message}/cancel a=b
        post 403 /routes/r/messages/change action=cancel&dry_run=false
        go /routes/r/dead-letters
        see unknown_target
        unseen Send again
        post 403 /routes/r/dead-letters/redrive dry_run=false
        go /workers
        see live
        go /ledgers
        see Every ledger balances
        "
    );
    let steps = sign_in(READER, "/") + &pages;
    click("reader", &service.0, &[], &steps);
    service.waiting(1);
    assert_eq!(arrived(&service, &sink), ["last".to_owned()].into());
}

#[test]
fn the_console_works_without_scripts_behind_a_path_prefix() {
    let scene = Scene::new(kafka(), "prefix", 1);
    let service = Service::start(&scene.config_stored("", ""));
    let sink = scene.sink();
    service.publish("order-42", "1h", "order-42");
    send_campaign(&scene, "wrong", 5, "2h");
    service.waiting(6);
    let steps = "unseen Time zone
        look overview
        fill Find a waiting message by its id = order-42
        click Find
        look message
        click Deliver now
        see Due now:
        click Waiting messages
        fill Header = campaign:wrong
        click Search
        click Preview
        see 5 messages would be cancelled.
        click Cancel 5 messages
        see Cancel requested for 5 messages.
        click Workers
        see live
        click Ledger
        click Overview
        at /
        click Log out
        at /login
        ";
    let variables = [("PREFIX", "/ops/postdate"), ("SCRIPTS", "off")];
    let steps = sign_in(OPERATOR, "/") + steps;
    click("prefix", &service.0, &variables, &steps);
    service.waiting(0);
    let expected = ["last", "order-42"].map(str::to_owned);
    assert_eq!(arrived(&service, &sink), expected.into());
}

#[test]
fn an_operator_redrives_what_failed_with_clicks() {
    let scene = Scene::new(kafka(), "redrive-clicks", 1);
    let service = Service::start(&scene.config_stored("", ""));
    let sink = scene.sink();
    let producer = Producer::start(kafka().addr());
    (0..15).for_each(|number| bury(&producer, &scene, number, "unknown_target"));
    (15..17).for_each(|number| bury(&producer, &scene, number, "timed_out"));
    producer.flush();
    let steps = "go /routes/r
        click Dead letters
        look all
        fill Code = unknown_target
        click Search
        fill Per second = 1
        dismiss Send again
        asked Send the dead letters that meet these conditions again?
        click Count only
        see 15 messages would be sent again. Nothing was sent.
        look counted
        fill Per second = 1
        click Send again
        see Sent again:
        press Stop
        see Stopped
        look stopped
        click Continue
        gone Continue
        see Sent again:
        look sent
        ";
    let steps = sign_in(OPERATOR, "/routes/r/dead-letters") + steps;
    click("redrive", &service.0, &[], &steps);
    let expected = (0..15).map(|number| number.to_string());
    let expected = expected.chain(["last".to_owned()]).collect();
    assert_eq!(arrived(&service, &sink), expected);
}

#[test]
fn a_browser_logs_in_with_the_token_and_gets_a_cookie() {
    let scene = Scene::new(kafka(), "login", 1);
    let mut postdate = Postdate::start_with(
        &scene.config_stored("", ""),
        &[("POSTDATE_ADMIN__TOKEN", TOKEN)],
    );
    postdate.wait_until_ready();
    let base = format!("http://127.0.0.1:{}", postdate.port());
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl")
            .args(["--silent", "--include"])
            .args(arguments)
            .output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    let page = curl(&["--header", "Accept: text/html", &format!("{base}/routes/r")]);
    assert!(
        page.contains("303 See Other") && page.contains("location: ../login"),
        "{page}"
    );
    let login = format!("{base}/login");
    let wrong = curl(&["--data", "token=another", &login]);
    assert!(
        wrong.contains("401 Unauthorized") && !wrong.contains("set-cookie"),
        "{wrong}"
    );
    let right = format!("token={TOKEN}");
    let foreign = curl(&[
        "--header",
        "Sec-Fetch-Site: cross-site",
        "--data",
        &right,
        &login,
    ]);
    assert!(foreign.contains("403 Forbidden"), "{foreign}");
    let answer = curl(&["--data", &right, &login]);
    let cookie = answer
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = cookie.unwrap_or_else(|| panic!("{answer}"));
    assert!(
        cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap();
    let page = curl(&[
        "--header",
        &format!("Cookie: {cookie}"),
        &format!("{base}/"),
    ]);
    assert!(
        page.contains("200 OK") && page.contains("Signed in as reader"),
        "{page}"
    );
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    look("login", &postdate, cookie, &["/", "/workers"]);
}
