//! The service's own program, started as an operator starts it, with a configuration of the test's and an admin port of its own.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use super::process::{Process, Signal, folder, free_port};

pub(crate) struct Postdate {
    folder: PathBuf,
    port: u16,
    variables: Vec<(String, String)>,
    process: Process,
}

impl Postdate {
    /// Runs `postdate run` with this configuration, which leaves `[admin]` out, and returns at once: `wait_until_ready` says more.
    pub(crate) fn start(config: &str) -> Postdate {
        Postdate::start_with(config, &[])
    }

    /// With environment variables beside the file. None of the tests' own of that prefix reaches it.
    pub(crate) fn start_with(config: &str, variables: &[(&str, &str)]) -> Postdate {
        let (folder, port) = (folder("postdate"), free_port());
        std::fs::write(
            folder.join("config.toml"),
            format!("{config}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n"),
        )
        .unwrap();
        let variables: Vec<_> = variables
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let process = Process::start("postdate", &folder, &mut program(&folder, &variables));
        Postdate {
            folder,
            port,
            variables,
            process,
        }
    }

    /// Starts and waits: for the tests that are not about starting.
    pub(crate) fn ready_with(config: &str) -> Postdate {
        let mut postdate = Postdate::start(config);
        postdate.wait_until_ready();
        postdate
    }

    /// Where it runs: an embedded store with a relative path lies here.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where its admin endpoint answers, on this machine.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// Asks it to end, and waits: its exit status, and how long it took. It must be running.
    pub(crate) fn terminate(&mut self) -> (ExitStatus, Duration) {
        assert!(
            self.process.runs(),
            "the service runs until it is asked to end"
        );
        self.process.end(Signal::TERM).expect("it runs")
    }

    /// Waits until it ends by itself, as it does with a configuration that it refuses.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        super::eventually("the service ends by itself", super::PATIENCE, || {
            self.process.ended()
        })
    }

    /// Its exit status, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// With the same configuration, folder and port; killed first if it runs.
    pub(crate) fn restart(&mut self) {
        self.process
            .start_again(&mut program(&self.folder, &self.variables));
    }

    /// The processor time it has used since it was started.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// The most memory that it has had at once since it was started, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.process.peak_memory()
    }

    /// Stops its clock, so to speak: a process that is paused, swapped out or starved, and does not know it.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// What it answers on its admin port, if it does: status and body.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        http_get(self.port, path).ok()
    }

    /// The same with a header, such as `Authorization: Bearer ...`.
    pub(crate) fn get_with(&self, path: &str, header: &str) -> Option<(u16, String)> {
        http_get_with(self.port, path, &format!("{header}\r\n")).ok()
    }

    pub(crate) fn ready(&self) -> bool {
        self.get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    pub(crate) fn wait_until_ready(&mut self) {
        let port = self.port;
        self.process.until("the service is ready", || {
            is_ready(port, "/readyz").then_some(())
        });
    }

    /// What it counts. Waits until it answers: just started, it does not listen yet.
    pub(crate) fn metrics(&self) -> Metrics {
        let (status, text) = super::eventually("the service answers", super::PATIENCE, || {
            self.get("/metrics")
        });
        assert_eq!(status, 200, "{text}");
        Metrics::parse(&text)
    }

    /// What a command says, with its configuration, beside it or after it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = bare(&self.folder);
        command
            .arg(arguments[0])
            .arg("--config")
            .arg("config.toml")
            .args(&arguments[1..]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    }

    /// All that it wrote to its standard output and error, over all its lives.
    pub(crate) fn logs(&self) -> String {
        self.process.log()
    }
}

fn bare(folder: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_postdate"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTDATE_"))
    {
        program.env_remove(name);
    }
    program.current_dir(folder);
    program
}

fn program(folder: &Path, variables: &[(String, String)]) -> Command {
    let mut program = bare(folder);
    program
        .args(["run", "--config"])
        .arg(folder.join("config.toml"));
    program.envs(variables.iter().map(|(name, value)| (name, value)));
    program
}

/// Whether what listens on this port says there that it is ready.
pub(super) fn is_ready(port: u16, path: &str) -> bool {
    http_get(port, path).is_ok_and(|(status, _)| status == 200)
}

fn http_get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    http_get_with(port, path, "")
}

fn http_get_with(port: u16, path: &str, headers: &str) -> std::io::Result<(u16, String)> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(
        format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}Connection: close\r\n\r\n"
        )
        .as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parse_answer(&answer)
        .ok_or_else(|| std::io::Error::other(format!("not an answer in HTTP: {answer:?}")))
}

fn parse_answer(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    // A body in chunks would need more than this; one of known length, which is what the service sends, does not.
    (!head.to_ascii_lowercase().contains("transfer-encoding")).then(|| (status, body.to_owned()))
}

/// One reading of the metrics, in the text format of Prometheus.
#[derive(Debug)]
pub(crate) struct Metrics(Vec<Sample>);

#[derive(Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    fn parse(text: &str) -> Metrics {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Metrics(
            lines
                .map(|line| Sample::parse(line).unwrap_or_else(|| panic!("not a sample: {line:?}")))
                .collect(),
        )
    }

    /// The sum over all label values; zero for what was never counted.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, &[])
    }

    /// The sum over all samples of that name that carry these labels.
    pub(crate) fn sum_where(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &Sample| {
            labels
                .iter()
                .all(|&(label, value)| sample.labels.get(label).is_some_and(|have| have == value))
        };
        self.0
            .iter()
            .filter(|sample| sample.name == name && carries(sample))
            .map(|sample| sample.value)
            .sum()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|sample| sample.name == name)
    }
}

impl Sample {
    /// `name value` or `name{label="value",...} value`, a backslash escaping in a label's value.
    fn parse(line: &str) -> Option<Sample> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeMap::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once("=\"")?;
                let (value, after) = unquote(after)?;
                labels.insert(label.to_owned(), value);
                rest = after.strip_prefix(',').unwrap_or(after);
            }
            rest = &rest[1..];
        }
        let value = rest.trim().split(' ').next()?.parse().ok()?;
        Some(Sample {
            name: name.to_owned(),
            labels,
            value,
        })
    }
}

/// A label's value up to its closing quote, and what follows the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(
                chars
                    .next()
                    .map(|(_, escaped)| if escaped == 'n' { '\n' } else { escaped })?,
            ),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_their_labels() {
        let metrics = Metrics::parse(
            "# TYPE a counter\na{x=\"1\",y=\"q\\\"}, \\\\\"} 2\na{x=\"2\"} 3.5\nb 1e3\n\nc{le=\"+Inf\"} NaN\n",
        );
        assert!((metrics.sum("a") - 5.5).abs() < f64::EPSILON);
        assert!(
            (metrics.sum_where("a", &[("x", "1"), ("y", "q\"}, \\")]) - 2.0).abs() < f64::EPSILON
        );
        assert!((metrics.sum("b") - 1000.0).abs() < f64::EPSILON);
        assert!(metrics.contains("c") && !metrics.contains("d"));
    }

    #[test]
    fn answers_without_a_length_are_refused() {
        assert_eq!(
            parse_answer("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"),
            Some((503, "no".to_owned()))
        );
        assert_eq!(
            parse_answer(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
            ),
            None
        );
        assert_eq!(parse_answer("SSH-2.0"), None);
    }
}
