//! Tests how a target stream's duplicate window affects a reset after the source stream was
//! recreated.
//!
//! The new messages have the ids of the old ones.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Config;

use crate::env::{PATIENCE, Postdate, eventually, nats, redis, unique};

/// A route between two streams.
struct Scene {
    name: String,
    postdate: Postdate,
}

impl Scene {
    /// Starts a route whose target stream has this duplicate window.
    fn start(window: Duration) -> Scene {
        let name = unique("window");
        nats().create_stream(&format!("{name}_IN"), &[&format!("{name}.in")]);
        let subjects = vec![format!("{name}.out"), format!("{name}.dead")];
        nats().create_stream_with(Config {
            name: format!("{name}_OUT"),
            subjects,
            duplicate_window: window,
            ..Config::default()
        });
        let config = format!(
            r#"
deployment = "{name}"
[store.redis]
url = "{}"
[nats.edge]
url = "{}"
[route.r]
source = {{ nats = "edge", stream = "{name}_IN", subjects = ["{name}.in"] }}
target = {{ nats = "edge", subject = "{name}.out" }}
dead_letter = {{ nats = "edge", subject = "{name}.dead" }}
"#,
            redis().url(),
            nats().url()
        );
        Scene {
            postdate: Postdate::ready_with(&config),
            name,
        }
    }

    fn send(&self, payload: &str) {
        assert_eq!(
            nats().publish(&format!("{}.in", self.name), &[], payload),
            1
        );
    }

    fn wait_for(&self, payloads: &[&str]) {
        let stored = nats().wait_for(
            &format!("{}_OUT", self.name),
            payloads.len() as u64,
            PATIENCE,
        );
        let found: Vec<_> = stored
            .iter()
            .map(|stored| String::from_utf8_lossy(&stored.payload).into_owned())
            .collect();
        assert_eq!(found, payloads);
        assert!(
            stored
                .iter()
                .all(|one| one.header("Nats-Msg-Id") == stored[0].header("Nats-Msg-Id"))
        );
    }

    /// Delivers one message, recreates the source with another message, and stops the service. Then
    /// resets the store, restarts the service, and returns the reset's output.
    fn renew(&mut self, arguments: &[&str]) -> String {
        self.send("old");
        self.wait_for(&["old"]);
        let source = format!("{}_IN", self.name);
        nats().delete_stream(&source);
        nats().create_stream(&source, &[&format!("{}.in", self.name)]);
        self.send("new");
        eventually("it is noticed", PATIENCE, || {
            self.postdate.logs().contains("was recreated").then_some(())
        });
        self.postdate.terminate();
        let topic = format!("{source}:{}.in", self.name);
        let output = self
            .postdate
            .command(&[&["reset", "--route", "r", "--topic", &topic], arguments].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.postdate.restart();
        self.postdate.wait_until_ready();
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_reset_waits_until_targets_accept_the_reused_ids() {
    let mut scene = Scene::start(Duration::from_secs(6));
    let said = scene.renew(&[]);
    scene.wait_for(&["old", "new"]);
    assert!(
        said.contains("Waiting until ") && said.contains(&format!("{}_OUT", scene.name)),
        "{said}"
    );
}

#[test]
fn a_reset_with_no_wait_says_how_long_the_service_must_stay_stopped() {
    let mut scene = Scene::start(Duration::from_secs(120));
    let began = Instant::now();
    let said = scene.renew(&["--no-wait"]);
    assert!(began.elapsed() < Duration::from_secs(90));
    assert!(said.contains("Do not start the service before "), "{said}");
    eventually("it is handed over", PATIENCE, || {
        (scene.postdate.metrics().sum("postdate_delivered_total") >= 1.0).then_some(())
    });
    // The stream drops the new message, as the reset has warned: it already has a message of that
    // id.
    scene.wait_for(&["old"]);
}
