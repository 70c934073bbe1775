//! Builds and runs the Go program that does the work of the service with the library asynq.
//!
//! The program reads the messages from a file, starts on command, and reports its outcome as JSON.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::env::{Redis, cpu_of};
use crate::ledger::Verdict;
use crate::workload::Message;

/// The work for one run of the program.
pub(crate) struct Job<'a, F> {
    pub(crate) count: usize,
    /// Delay or due time of each message in milliseconds. The option `-absolute` selects due times.
    pub(crate) at: F,
    pub(crate) options: &'a [&'a str],
}

/// The outcome as the program reports it.
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

/// Builds the program. The error says why that failed.
pub(crate) fn build(folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/bench/asynq"),
        folder.join("asynq"),
    );
    let mut go = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/env/go.sh"));
    let output = go
        .arg("build")
        .arg("-o")
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output();
    match output {
        Err(error) => Err(format!("what builds it does not start: {error}")),
        Ok(output) if !output.status.success() => Err(format!(
            "it does not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Ok(_) => Ok(program),
    }
}

/// The running program. It exits when its standard input closes, so it cannot outlive this process.
pub(crate) struct Asynq {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _messages: tempfile::NamedTempFile,
}

impl Asynq {
    pub(crate) fn start<F: Fn(usize) -> i64>(
        program: &Path,
        redis: &Redis,
        message: &Message,
        job: &Job<'_, F>,
    ) -> Asynq {
        let messages = write(message, job);
        let url = redis.url();
        let mut command = Command::new(program);
        command
            .arg("-redis")
            .arg(url.trim_start_matches("redis://"))
            .arg("-messages")
            .arg(messages.path())
            .args(job.options);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let (orders, answers) = (
            child.stdin.take(),
            child.stdout.take().expect("it is piped"),
        );
        let mut asynq = Asynq {
            child,
            orders,
            answers: BufReader::new(answers),
            _messages: messages,
        };
        assert_eq!(asynq.hear(), "ready\n", "it takes the messages");
        asynq
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
impl Drop for Asynq {
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
