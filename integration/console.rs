//! Tests the console in headless Chromium: every page in light and dark, wide and narrow, with axe-core,
//! and what a browser without a token may see.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::env::{Outgoing, PATIENCE, Postdate, Producer, eventually, kafka, redis, servers};
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
    let config = scene.config(redis());
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
    producer.flush();
    let paths = [
        "/",
        "/routes/r",
        "/routes/r/dead-letters",
        "/routes/r/dead-letters?code=timed_out",
        "/routes/r/messages",
        "/routes/r/messages?id=reminder-3",
        message.as_str(),
        "/workers",
        "/ledgers",
        "/routes/unknown",
        "/login",
    ];
    look("pages", &postdate, "", &paths);
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
