//! Tests `postdate demo` as newcomers and CI run it, with clients that know only its address.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::env::{
    Outgoing, PATIENCE, Producer, Record, Sink, eventually, free_port, kafka, nats, unique,
};

const SOURCE: &str = "orders.delayed";
const TARGET: &str = "orders";

/// One demo with piped output and a folder of its own for temporary files.
struct Demo {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Demo {
        let mut program = Command::new(env!("CARGO_BIN_EXE_postdate"));
        program.arg("demo").args(arguments).stdin(Stdio::null());
        Demo::spawn(&mut program)
    }

    /// Starts the demo in a terminal of 90 by 30. Afterwards the shell prints the terminal's
    /// settings.
    fn in_a_terminal() -> Demo {
        let line = format!(
            "stty rows 30 cols 90; {} demo --for 1m; echo code $?; stty -a",
            env!("CARGO_BIN_EXE_postdate")
        );
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped());
        let demo = Demo::spawn(&mut script);
        demo.wait_for("the picture", |said| {
            said.contains("by the second in which").then_some(())
        });
        demo
    }

    fn spawn(program: &mut Command) -> Demo {
        let folder = tempfile::tempdir().unwrap();
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTDATE_"))
        {
            program.env_remove(name);
        }
        program
            .env("TMPDIR", folder.path())
            .current_dir(folder.path());
        let mut child = program
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, mut output) = (
            Arc::new(Mutex::new(String::new())),
            child.stdout.take().unwrap(),
        );
        let theirs = said.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                *theirs.lock().unwrap() += &String::from_utf8_lossy(&bytes[..count]);
            }
        });
        Demo {
            child,
            said,
            reader: Some(reader),
            folder,
        }
    }

    fn press(&mut self, keys: &str) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(keys.as_bytes())
            .unwrap();
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    fn wait_for<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        eventually(what, PATIENCE, || find(&self.said()))
    }

    /// The address in the first example that the demo prints.
    fn address(&self) -> String {
        let address = regex_lite::Regex::new(r"kcat -Pb (127\.0\.0\.1:\d+) ").unwrap();
        self.wait_for("the broker's address", |said| {
            address.captures(said).map(|found| found[1].to_owned())
        })
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits for the end. Returns the exit status, the standard output and the standard error.
    fn end(&mut self) -> (ExitStatus, String, String) {
        let status = eventually("the demo ends", PATIENCE, || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        let mut errors = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        (status, self.said(), errors)
    }

    fn leaves_nothing_behind(&self, but: &[&str]) {
        let left = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let left: BTreeSet<String> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(left)
            .collect();
        assert_eq!(left, but.iter().map(|&name| name.to_owned()).collect());
    }
}

/// Never panics: a second panic would hide the first.
impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A number from the summary.
fn counted(said: &str, name: &str) -> Option<usize> {
    let row = regex_lite::Regex::new(&format!(r"(?m)^  {name} +(\d+)$")).unwrap();
    row.captures(said).and_then(|found| found[1].parse().ok())
}

/// The numbers of the demo's own records. Panics if one is early or a duplicate.
fn own(records: &[Record]) -> BTreeSet<usize> {
    let mut numbers = BTreeSet::new();
    for record in records {
        let Some((_, number)) = record.header("demo").and_then(|own| own.split_once('/')) else {
            continue;
        };
        assert!(
            numbers.insert(number.parse().unwrap()),
            "{record:?} came twice"
        );
        let due: i64 = record.header("postdate-due").unwrap().parse().unwrap();
        assert!(record.timestamp >= due, "{record:?} came early");
    }
    numbers
}

fn assert_all_arrived(said: &str) -> usize {
    let sent = counted(said, "sent").unwrap_or_else(|| panic!("no summary: {said}"));
    assert!(
        sent > 0 && said.contains("All that was sent has arrived: each once, none early."),
        "{said}"
    );
    let counts = ["delivered", "lost", "early", "duplicates"].map(|name| counted(said, name));
    assert_eq!(counts, [Some(sent), Some(0), Some(0), Some(0)], "{said}");
    sent
}

#[test]
fn the_demo_delivers_its_own_messages_and_those_of_a_foreign_client() {
    let mut demo = Demo::start(&["--for", "8s"]);
    let address = demo.address();
    let (sink, producer) = (Sink::start(&address, &[TARGET]), Producer::start(&address));
    producer.send(
        &Outgoing::to(SOURCE)
            .key("stranger")
            .payload("hello")
            .header("postdate-after", "1s")
            .header("kept", "as it is"),
    );
    producer.send(
        &Outgoing::to(SOURCE)
            .key("stranger")
            .payload("oops")
            .header("postdate-after", "10x"),
    );
    producer.flush();
    let records = sink.wait_until("the stranger's message", PATIENCE, |records| {
        records.iter().any(|record| record.header("kept").is_some())
    });
    let guest = records
        .iter()
        .find(|record| record.header("kept").is_some())
        .unwrap();
    assert_eq!(
        (
            guest.payload.as_deref(),
            guest.header("kept"),
            guest.header("postdate-after")
        ),
        (Some(&b"hello"[..]), Some("as it is"), None)
    );

    let (status, said, errors) = demo.end();
    assert_eq!(status.code(), Some(0), "{said}{errors}");
    let sent = assert_all_arrived(&said);
    assert!(
        said.contains("yours has arrived: key \"stranger\", \"hello\""),
        "{said}"
    );
    assert!(
        said.contains("yours, refused: key \"stranger\", \"oops\": postdate-after is \"10x\""),
        "{said}"
    );
    assert_eq!(counted(&said, "yours"), Some(2), "{said}");
    // The sink may miss the last records, because the broker ends with the demo.
    let seen = own(&sink.records());
    assert!(
        seen.len() > sent / 2 && seen.iter().all(|number| *number < sent),
        "{} of {sent}",
        seen.len()
    );
    assert!(
        errors
            .lines()
            .all(|line| line.contains("a message goes to the dead letters")),
        "{errors}"
    );
    assert!(!said.contains('\u{1b}'), "colours are for terminals");
    demo.leaves_nothing_behind(&[]);
}

#[test]
fn the_demo_ends_early_after_one_signal_and_at_once_after_two() {
    let mut patient = Demo::start(&["--for", "1m"]);
    let mut hasty = Demo::start(&["--for", "1m"]);
    for demo in [&patient, &hasty] {
        demo.wait_for("messages that wait", |said| {
            said.contains(" s  sent").then_some(())
        });
        demo.signal();
    }
    hasty.wait_for("the first signal's effect", |said| {
        said.contains("  end  sent").then_some(())
    });
    hasty.signal();
    let (status, said, errors) = hasty.end();
    assert_eq!(status.code(), Some(1), "{said}{errors}");
    assert!(
        counted(&said, "not awaited").is_some_and(|left| left > 0)
            && counted(&said, "lost") == Some(0),
        "{said}"
    );
    assert!(
        errors.contains("not every message that was sent has arrived"),
        "{errors}"
    );
    let (status, said, errors) = patient.end();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{said}");
    assert_all_arrived(&said);
    hasty.leaves_nothing_behind(&[]);
    patient.leaves_nothing_behind(&[]);
}

#[test]
fn the_demo_restores_the_terminal_and_ends_when_the_terminal_closes() {
    let mut left = Demo::in_a_terminal();
    let abandoned = Demo::in_a_terminal();
    for keys in ["q", "\u{3}"] {
        left.press(keys);
    }
    let said = left.wait_for("the end of the demo", |said| {
        said.contains("extproc").then(|| said.to_owned())
    });
    let after = &said[said.find("code 1").unwrap_or_else(|| panic!("{said}"))..];
    let settings: BTreeSet<&str> = after.split_whitespace().collect();
    assert!(
        ["icanon", "isig", "echo"]
            .iter()
            .all(|set| settings.contains(set))
            && said.contains("\x1b[?25h"),
        "{after}"
    );
    left.leaves_nothing_behind(&[]);

    // The demo removes its folder when it ends.
    let folder = abandoned.folder.path().to_owned();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    kill_process(Pid::from_child(&abandoned.child), Signal::KILL).unwrap();
    eventually("it ends with its terminal", PATIENCE, || {
        (std::fs::read_dir(&folder).unwrap().count() == 0).then_some(())
    });
}

#[test]
fn the_demo_on_a_real_kafka_names_its_topics_and_counts_only_its_own_messages() {
    let name = unique("demo");
    let topics = ["in", "out", "dead"].map(|topic| format!("{name}.{topic}"));
    topics
        .iter()
        .for_each(|topic| kafka().create_topic(topic, 2, &[]));
    let [source, target, dead] = &topics;
    let config = format!(
        "deployment = \"{name}\"\n[kafka.main]\nbrokers = [\"{}\"]\n[route.first]\nsource = {{ kafka = \"main\", topics = [\"{source}\"] }}\n\
         target = {{ kafka = \"main\", topic = \"{target}\" }}\ndead_letter = {{ kafka = \"main\", topic = \"{dead}\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        kafka().addr()
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, config).unwrap();
    let demo =
        |arguments: &[&str]| Demo::start(&[&["--config", as_text(&file)], arguments].concat());

    let (status, said, errors) = demo(&["--route", "frist"]).end();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(
        errors.contains("there is no route \"frist\"") && errors.contains("choose from: first"),
        "{errors}"
    );

    let producer = Producer::start(kafka().addr());
    producer.send(
        &Outgoing::to(source)
            .payload("somebody else's")
            .header("postdate-after", "1ms"),
    );
    producer.flush();
    let mut demo = demo(&["--for", "6s"]);
    demo.wait_for("where it writes", |said| {
        (said.contains(&format!("to {source}:")) && said.contains(&format!("to {target}:")))
            .then_some(())
    });
    let (status, said, errors) = demo.end();
    assert_eq!(status.code(), Some(0), "{said}{errors}");
    let sent = assert_all_arrived(&said);
    assert_eq!(counted(&said, "yours"), None, "{said}");
    let records = Sink::read_to_end(kafka().addr(), target);
    assert_eq!(
        (own(&records), records.len()),
        ((0..sent).collect(), sent + 1)
    );
    let locks = format!("postdate-{}", rustix::process::getuid().as_raw());
    demo.leaves_nothing_behind(&["postdate-data", &locks]);
}

#[test]
fn the_demo_on_a_nats_server_delivers_its_messages_and_removes_its_streams() {
    let server = nats().url();
    let mut demo = Demo::start(&["--for", "8s", "--nats", &server]);
    let subject = regex_lite::Regex::new(r"-s \S+ (demo\.([0-9a-f]{8})\.delayed) hi").unwrap();
    let found = |said: &str| {
        subject
            .captures(said)
            .map(|found| (found[1].to_owned(), found[2].to_owned()))
    };
    let (subject, run) = demo.wait_for("the subject", found);
    demo.wait_for("messages that wait", |said| {
        said.contains(" s  sent").then_some(())
    });
    nats().publish(
        &subject,
        &[("postdate-after", "1s"), ("postdate-key", "stranger")],
        "hello",
    );
    nats().publish(
        &subject,
        &[("postdate-after", "10x"), ("postdate-key", "stranger")],
        "oops",
    );

    let (status, said, errors) = demo.end();
    assert_eq!(status.code(), Some(0), "{said}{errors}");
    assert_all_arrived(&said);
    assert!(
        said.contains("yours has arrived: key \"stranger\", \"hello\""),
        "{said}"
    );
    assert!(
        said.contains("yours, refused: key \"stranger\", \"oops\": postdate-after is \"10x\""),
        "{said}"
    );
    assert_eq!(counted(&said, "yours"), Some(2), "{said}");
    let left: Vec<_> = nats()
        .streams()
        .into_iter()
        .filter(|name| name.contains(&run))
        .collect();
    assert_eq!(left, [""; 0]);
    demo.leaves_nothing_behind(&[]);
}

#[test]
fn the_demo_reports_an_unreachable_nats_server() {
    let url = format!("nats://user:secret@127.0.0.1:{}", free_port());
    let (status, said, errors) = Demo::start(&["--nats", &url]).end();
    assert_eq!((status.code(), said.as_str()), (Some(1), ""));
    assert!(
        errors.contains("--nats") && !errors.contains("secret"),
        "{errors}"
    );
}

fn as_text(path: &Path) -> &str {
    path.to_str().unwrap()
}
