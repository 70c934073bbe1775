//! What the duplicate window of a target's stream means for a source that was made again, whose messages bear the ids of the old ones.

use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Config;

use crate::env::{PATIENCE, Postdate, eventually, nats, redis, unique};

/// A route from stream to stream.
struct Scene {
    name: String,
    postdate: Postdate,
}

impl Scene {
    /// Whose target knows for so long what it has.
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

    /// One message is delivered; the source is made again and has another one; the service stops, and the store is reset.
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
fn a_reset_ends_when_targets_take_new_messages_for_new() {
    let mut scene = Scene::start(Duration::from_secs(6));
    let said = scene.renew(&[]);
    scene.wait_for(&["old", "new"]);
    assert!(
        said.contains("Waiting until ") && said.contains(&format!("{}_OUT", scene.name)),
        "{said}"
    );
}

#[test]
fn a_reset_that_is_not_to_wait_says_how_long_the_service_should() {
    let mut scene = Scene::start(Duration::from_secs(120));
    let began = Instant::now();
    let said = scene.renew(&["--no-wait"]);
    assert!(began.elapsed() < Duration::from_secs(90));
    assert!(said.contains("Do not start the service before "), "{said}");
    eventually("it is handed over", PATIENCE, || {
        (scene.postdate.metrics().sum("postdate_delivered_total") >= 1.0).then_some(())
    });
    // As it said: the stream has a message of that id.
    scene.wait_for(&["old"]);
}
