//! Starts the Postdate program as an operator does, with the test's configuration and a free admin
//! port.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use super::process::{Process, Signal, folder, free_port};

pub(crate) struct Postdate {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    variables: Vec<(String, String)>,
    process: Process,
}

impl Postdate {
    /// Starts `postdate run` and returns at once. `config` must not contain `[admin]`. See
    /// `wait_until_ready`.
    pub(crate) fn start(config: &str) -> Postdate {
        Postdate::start_with(config, &[])
    }

    /// As `start`, with environment variables. `POSTDATE_*` variables of the test process are
    /// removed first.
    pub(crate) fn start_with(config: &str, variables: &[(&str, &str)]) -> Postdate {
        Postdate::start_program(super::program(), config, variables)
    }

    /// As `start_with`, with the program of another version.
    pub(crate) fn start_program(
        program: PathBuf,
        config: &str,
        variables: &[(&str, &str)],
    ) -> Postdate {
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
        let mut command = service(&program, &folder, &variables);
        let process = Process::start("postdate", &folder, &mut command);
        Postdate {
            program,
            folder,
            port,
            variables,
            process,
        }
    }

    /// Starts the service and waits until it is ready.
    pub(crate) fn ready_with(config: &str) -> Postdate {
        let mut postdate = Postdate::start(config);
        postdate.wait_until_ready();
        postdate
    }

    /// Working directory of the service. A relative path of an embedded store is inside it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Local port of the admin endpoint.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// Asks the service to shut down and waits. Returns the exit status and the duration. Panics if
    /// the service is not running.
    pub(crate) fn terminate(&mut self) -> (ExitStatus, Duration) {
        assert!(
            self.process.runs(),
            "the service runs until it is asked to end"
        );
        self.process.end(Signal::TERM).expect("it runs")
    }

    /// Waits until the service exits by itself, for example because it refuses its configuration.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        super::eventually("the service ends by itself", super::PATIENCE, || {
            self.process.ended()
        })
    }

    /// The exit status, if the service has exited by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Restarts the service with the same configuration, folder and port. Kills it first if it
    /// runs.
    pub(crate) fn restart(&mut self) {
        let mut command = service(&self.program, &self.folder, &self.variables);
        self.process.start_again(&mut command);
    }

    /// CPU time used since the start.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.process.id());
        std::fs::read_dir(folder).expect("it runs").count()
    }

    /// The names of its threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let folder = format!("/proc/{}/task", self.process.id());
        let threads = std::fs::read_dir(folder).expect("it runs");
        let name = |path: PathBuf| std::fs::read_to_string(path.join("comm")).ok();
        let names = threads.filter_map(|thread| name(thread.ok()?.path()));
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// Limits the open file descriptors of the process.
    pub(crate) fn limit_descriptors(&self, count: usize) {
        self.process.limit_descriptors(count as u64);
    }

    /// Peak resident memory since the start, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.process.peak_memory()
    }

    /// Stops the process with SIGSTOP, like a process that is swapped out or starved without
    /// knowing it.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Asks the service to read its configuration again.
    pub(crate) fn hang_up(&self) {
        self.process.signal(Signal::HUP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// Sends GET to the admin port. Returns status and body, or `None` without an answer.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        http_get(self.port, path).ok()
    }

    /// As `get`, with one header such as `Authorization: Bearer ...`.
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

    /// Reads the metrics. Waits for an answer, because a service that just started does not listen
    /// yet.
    pub(crate) fn metrics(&self) -> Metrics {
        let (status, text) = super::eventually("the service answers", super::PATIENCE, || {
            self.get("/metrics")
        });
        assert_eq!(status, 200, "{text}");
        Metrics::parse(&text)
    }

    /// Runs a Postdate command with the configuration and environment of this service, running or
    /// not.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = bare(&self.program, &self.folder);
        command
            .arg(arguments[0])
            .arg("--config")
            .arg("config.toml")
            .args(&arguments[1..]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    }

    /// The complete log of the service, over all its restarts.
    pub(crate) fn logs(&self) -> String {
        self.process.log()
    }
}

fn bare(program: &Path, folder: &Path) -> Command {
    let mut program = Command::new(program);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTDATE_"))
    {
        program.env_remove(name);
    }
    program.current_dir(folder);
    program
}

fn service(program: &Path, folder: &Path, variables: &[(String, String)]) -> Command {
    let mut program = bare(program, folder);
    program
        .args(["run", "--config"])
        .arg(folder.join("config.toml"));
    program.envs(variables.iter().map(|(name, value)| (name, value)));
    program
}

/// Returns whether the server on this port answers 200 on `path`.
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
    // Chunked bodies are not parsed. The service always sends a body of known length.
    (!head.to_ascii_lowercase().contains("transfer-encoding")).then(|| (status, body.to_owned()))
}

/// One scrape of the metrics in the Prometheus text format.
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

    /// The sum over all label values. It is zero for a metric without samples.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.sum_where(name, &[])
    }

    /// The sum over all samples of this name with these labels.
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
    /// Parses `name value` or `name{label="value",...} value`. A backslash escapes a character in a
    /// label value.
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

/// Splits `text` after a label value: the unescaped value, and the rest after its closing quote.
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
