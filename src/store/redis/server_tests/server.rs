//! A `redis-server` of one test's own: on a free loopback port, in a directory of its own, ended
//! when it is dropped.

use crate::store::redis::{Options, Redis};
use redis::Cmd;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

pub(super) struct Server {
    pub(super) port: u16,
    directory: TempDir,
    arguments: Vec<String>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// Kept open and unread: what a server says after its start fits into the pipe.
    _log: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    /// `arguments` come last, so they win over ours.
    pub(super) fn start_with(arguments: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let directory = tempfile::tempdir().unwrap();
        let arguments = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        let mut server = Self {
            port,
            directory,
            arguments,
            running: None,
        };
        server.restart();
        server
    }

    /// Starts the server again on the same port with its data on disk. Returns when it accepts
    /// connections.
    pub(super) fn restart(&mut self) {
        self.kill();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--maxmemory-policy",
            "noeviction",
        ]);
        command
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .arg(self.directory.path());
        command
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stdin(Stdio::null());
        let mut child = command
            .spawn()
            .expect("these tests need redis-server: install the package of that name");
        let mut log = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said: Vec<String> = log
            .by_ref()
            .map_while(Result::ok)
            .take_while(|line| !line.contains("Ready to accept connections"))
            .collect();
        assert!(
            child.try_wait().unwrap().is_none(),
            "redis-server ended at once: {said:?}"
        );
        self.running = Some(Running { child, _log: log });
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.child.kill().unwrap();
            running.child.wait().unwrap();
        }
    }

    /// `STOP` or `CONT`.
    pub(super) fn signal(&self, signal: &str) {
        let running = self.running.as_ref().expect("it runs");
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(running.child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// The value that a start gave to this option.
    pub(super) fn argument_after(&self, option: &str) -> &str {
        let at = self
            .arguments
            .iter()
            .position(|argument| argument == option);
        &self.arguments[at.expect("it has the option") + 1]
    }

    pub(super) fn options(&self) -> Options {
        Options::of_url(&format!("redis://127.0.0.1:{}", self.port), "test")
    }

    pub(super) async fn redis(&self) -> Redis {
        Redis::connect(&self.options()).await.unwrap()
    }

    /// Runs a command past the store, as a person with redis-cli would.
    pub(super) async fn command(&self, words: &str) -> redis::Value {
        self.command_of(&Vec::from_iter(words.split(' '))).await
    }

    /// Like [`Self::command`]. A word may contain spaces.
    pub(super) async fn command_of(&self, words: &[&str]) -> redis::Value {
        let mut command = Cmd::new();
        command.arg(words);
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        command
            .query_async(&mut client.get_multiplexed_async_connection().await.unwrap())
            .await
            .unwrap()
    }

    /// All keys, in order.
    pub(super) async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = redis::from_redis_value(self.command("KEYS *").await).unwrap();
        keys.sort();
        keys
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.signal("CONT");
        }
        self.kill();
    }
}
