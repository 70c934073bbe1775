//! Starts a real Redis with the recommended settings: append-only file, no eviction.
//!
//! It can be rolled back to an earlier state. For a client, this equals a failover to a replica
//! that lagged behind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Process, Signal, folder, free_port};
use super::{PATIENCE, eventually};

pub(crate) struct Redis {
    port: u16,
    folder: PathBuf,
    /// Options beside the recommended ones.
    options: Vec<String>,
    process: Process,
}

/// A copy of a Redis data folder at one moment.
pub(crate) struct Snapshot(PathBuf);

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis::start_with(Vec::new())
    }

    pub(crate) fn start_with(options: Vec<String>) -> Redis {
        let folder = folder("redis");
        let port = free_port();
        std::fs::create_dir(folder.join("data")).unwrap();
        let mut command = server(&folder, port);
        let process = Process::start("redis", &folder, command.args(&options));
        let mut redis = Redis {
            port,
            folder,
            options,
            process,
        };
        redis.wait();
        redis
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Holds the log, and the files of the server in `data`.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a command. It must succeed.
    pub(crate) fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command
            .arg(&words[1..])
            .exec(&mut self.client())
            .expect("Redis accepts it");
    }

    /// The text that a command answers. `None` without an answer.
    pub(crate) fn text(&self, words: &[&str]) -> Option<String> {
        let mut connection = self.connect().ok()?;
        connection
            .set_read_timeout(Some(Duration::from_secs(1)))
            .ok()?;
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut connection)
            .ok()
    }

    /// A section of INFO. `None` without an answer.
    pub(crate) fn info(&self, section: &str) -> Option<String> {
        self.text(&["INFO", section])
    }

    pub(crate) fn client(&self) -> redis::Connection {
        self.connect().expect("Redis answers")
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// Restarts Redis on the same port with the same data. Kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        let mut command = server(&self.folder, self.port);
        self.process.start_again(command.args(&self.options));
        self.wait();
    }

    /// CPU time used since the start.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Stops the process: connections stay open and get no answer, as when the network drops every
    /// packet.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Returns whether the append-only file is neither being rewritten nor about to be.
    pub(crate) fn is_calm(&self) -> bool {
        let info: String = redis::cmd("INFO")
            .arg("persistence")
            .query(&mut self.client())
            .expect("Redis answers");
        ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"]
            .iter()
            .all(|calm| info.lines().any(|line| line == *calm))
    }

    /// Copies everything acknowledged so far. Redis normally writes to the file before it answers.
    /// During an fsync it may delay the write by up to two seconds, so wait until its buffer is
    /// empty.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut client = self.client();
        eventually("Redis has written what it acknowledged", PATIENCE, || {
            let info: String = redis::cmd("INFO")
                .arg("persistence")
                .query(&mut client)
                .ok()?;
            info.lines()
                .any(|line| line == "aof_buffer_length:0")
                .then_some(())
        });
        let copy = folder("snapshot").join("data");
        copy_folder(&self.folder.join("data"), &copy);
        Snapshot(copy)
    }

    /// Kills Redis and restarts it with the data of the snapshot.
    pub(crate) fn roll_back_to(&mut self, snapshot: &Snapshot) {
        self.kill();
        std::fs::remove_dir_all(self.folder.join("data")).unwrap();
        copy_folder(&snapshot.0, &self.folder.join("data"));
        self.restart();
    }

    /// Deletes all keys. `mut` keeps tests from calling this on the shared Redis.
    pub(crate) fn flush_all(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.client()).unwrap();
    }

    /// Sets `maxmemory`. Redis refuses writes that need more memory; zero means no limit.
    pub(crate) fn set_maxmemory(&mut self, bytes: u64) {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(bytes)
            .exec(&mut self.client())
            .unwrap();
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    /// Waits until PING succeeds. While Redis loads its file, it answers with an error.
    fn wait(&mut self) {
        let client = redis::Client::open(self.url()).unwrap();
        self.process.until("Redis answers", || {
            redis::cmd("PING")
                .exec(&mut client.get_connection().ok()?)
                .ok()
        });
    }
}

fn server(folder: &Path, port: u16) -> Command {
    let mut server = Command::new("redis-server");
    server
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(folder.join("data"));
    server.args([
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        "--save",
        "",
        "--maxmemory-policy",
        "noeviction",
    ]);
    // Stored data is soon deleted. With Redis's default of 64 MB, it would rewrite the file every
    // few seconds.
    server.args(["--auto-aof-rewrite-min-size", "512mb"]);
    // By default a primary waits five seconds for further replicas.
    server.args(["--repl-diskless-sync-delay", "0"]);
    server
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
