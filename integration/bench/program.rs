//! Builds and runs the programs that do the work of the service with a library: asynq in Go,
//! Redisson in Java and `BullMQ` in JavaScript.
//!
//! A program reads the messages from a file, starts on command, and reports its outcome as JSON.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::env::{Redis, cpu_of};
use crate::ledger::Verdict;
use crate::row::System;
use crate::workload::Message;

/// The libraries, and the names of their stages. The program is in the folder of the same name.
pub(crate) const LIBRARIES: [(System, &str); 3] = [
    (System::Asynq, "asynq"),
    (System::Redisson, "redisson"),
    (System::BullMq, "bullmq"),
];

/// The work for one run of a program.
pub(crate) struct Job<'a, F> {
    pub(crate) count: usize,
    /// Delay or due time of each message in milliseconds. The option `--absolute` selects due times.
    pub(crate) at: F,
    pub(crate) options: &'a [&'a str],
}

/// The outcome as a program reports it.
#[derive(Deserialize)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    lost: usize,
    doubled: usize,
    early: usize,
    changed: usize,
    lateness: Option<Vec<i64>>,
}

impl Outcome {
    pub(crate) fn verdict(&self, count: usize) -> Verdict {
        let Outcome {
            lost,
            doubled,
            early,
            changed,
            ..
        } = *self;
        Verdict {
            count,
            lost,
            doubled,
            early,
            changed,
            dead: 0,
        }
    }

    /// The lateness of all messages in milliseconds, ascending.
    pub(crate) fn lateness(&self) -> &[i64] {
        self.lateness.as_deref().unwrap_or_default()
    }
}

/// A program that was built.
pub(crate) struct Program {
    pub(crate) system: System,
    /// The command that starts it.
    words: Vec<OsString>,
}

impl Program {
    /// Builds the program of a library. The error says why that failed.
    pub(crate) fn build(system: System, name: &str, folder: &Path) -> Result<Program, String> {
        let (source, into) = (path("integration/bench").join(name), folder.join(name));
        let built = match system {
            System::Redisson => with_maven(&source, &into),
            System::BullMq => with_npm(&source, &into),
            _ => with_go(&source, &into),
        };
        match built {
            Err(error) => Err(format!("what builds it does not start: {error}")),
            Ok((output, _)) if !output.status.success() => Err(format!(
                "it does not build:\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )),
            Ok((_, words)) => Ok(Program { system, words }),
        }
    }
}

/// The output of a build, and the command that starts the program.
type Built = std::io::Result<(Output, Vec<OsString>)>;

fn with_go(source: &Path, into: &Path) -> Built {
    let output = Command::new(path("integration/env/go.sh"))
        .args(["build", "-o"])
        .arg(into)
        .arg(".")
        .current_dir(source)
        .output()?;
    Ok((output, vec![into.into()]))
}

fn with_maven(source: &Path, into: &Path) -> Built {
    // Jars of earlier versions would stay beside the new ones.
    if into.exists() {
        std::fs::remove_dir_all(into)?;
    }
    let output = Command::new("mvn")
        .args(["-q", "-B", "compile", "dependency:copy-dependencies"])
        .arg(format!("-Dinto={}", into.display()))
        .current_dir(source)
        .output()?;
    let classes = format!("{0}/classes:{0}/dependency/*", into.display());
    let words = ["java", "-cp", &classes, "Main"];
    Ok((output, words.map(OsString::from).into()))
}

fn with_npm(source: &Path, into: &Path) -> Built {
    // Node.js looks for packages beside the program.
    std::fs::create_dir_all(into)?;
    for file in std::fs::read_dir(source)? {
        let file = file?;
        std::fs::copy(file.path(), into.join(file.file_name()))?;
    }
    let node = path("integration/env/node.sh");
    let output = Command::new(&node)
        .args(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"])
        .current_dir(into)
        .output()?;
    Ok((
        output,
        vec![node.into(), "node".into(), into.join("main.js").into()],
    ))
}

fn path(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// A running program. It exits when its standard input closes, so it cannot outlive this process.
pub(crate) struct Running {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _messages: tempfile::NamedTempFile,
}

impl Running {
    pub(crate) fn start<F: Fn(usize) -> i64>(
        program: &Program,
        redis: &Redis,
        message: &Message,
        job: &Job<'_, F>,
    ) -> Running {
        let messages = write(message, job);
        let url = redis.url();
        let mut child = Command::new(&program.words[0])
            .args(&program.words[1..])
            .arg("--redis")
            .arg(url.trim_start_matches("redis://"))
            .arg("--messages")
            .arg(messages.path())
            .args(job.options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let (orders, answers) = (
            child.stdin.take(),
            child.stdout.take().expect("it is piped"),
        );
        let mut running = Running {
            child,
            orders,
            answers: BufReader::new(answers),
            _messages: messages,
        };
        assert_eq!(running.hear(), "ready\n", "it takes the messages");
        running
    }

    pub(crate) fn run(&mut self) -> Outcome {
        let orders = self
            .orders
            .as_mut()
            .expect("it listens until it is dropped");
        orders.write_all(b"begin\n").expect("it listens");
        serde_json::from_str(&self.hear()).expect("it says what came of it; its complaint is above")
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it speaks");
        line
    }
}

/// Closes the program's standard input, which makes it exit.
impl Drop for Running {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// Writes the headers, then the time, key and payload of each message. A length precedes each field
/// except the time.
fn write<F: Fn(usize) -> i64>(message: &Message, job: &Job<'_, F>) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file for the messages");
    let headers: serde_json::Map<_, _> = message
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone().into()))
        .collect();
    let mut bytes = Vec::new();
    let field = |bytes: &mut Vec<u8>, field: &str| {
        bytes.extend(
            u32::try_from(field.len())
                .expect("short fields")
                .to_le_bytes(),
        );
        bytes.extend(field.as_bytes());
    };
    field(&mut bytes, &serde_json::Value::Object(headers).to_string());
    for number in 0..job.count {
        bytes.extend((job.at)(number).to_le_bytes());
        field(&mut bytes, &message.key(number));
        field(&mut bytes, &message.payload(number));
    }
    file.write_all(&bytes)
        .expect("there is room for the messages");
    file
}
