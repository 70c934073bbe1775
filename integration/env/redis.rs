//! A real Redis on disk, as a deployment should run it: append-only file, nothing evicted. It can be put back to an earlier state, which is
//! what a failover to a replica that lagged behind does to a client.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Process, Signal, folder, free_port};
use super::{PATIENCE, eventually};

pub(crate) struct Redis {
    port: u16,
    folder: PathBuf,
    process: Process,
}

/// What a Redis held at one moment.
pub(crate) struct Snapshot(PathBuf);

impl Redis {
    pub(crate) fn start() -> Redis {
        let folder = folder("redis");
        let port = free_port();
        std::fs::create_dir(folder.join("data")).unwrap();
        let process = Process::start("redis", &folder, &mut server(&folder, port));
        let mut redis = Redis {
            port,
            folder,
            process,
        };
        redis.wait();
        redis
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> redis::Connection {
        self.connect().expect("Redis answers")
    }

    pub(crate) fn kill(&mut self) {
        self.process.end(Signal::KILL);
    }

    /// On the same port and with the same data; killed first if it runs.
    pub(crate) fn restart(&mut self) {
        self.process
            .start_again(&mut server(&self.folder, self.port));
        self.wait();
    }

    /// The processor time it has used since it was started.
    pub(crate) fn cpu(&self) -> Duration {
        self.process.cpu()
    }

    /// Connections stay open and nothing answers, as with a network that loses everything.
    pub(crate) fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// It is not writing its file anew, and is not about to.
    pub(crate) fn is_calm(&self) -> bool {
        let info: String = redis::cmd("INFO")
            .arg("persistence")
            .query(&mut self.client())
            .expect("Redis answers");
        ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"]
            .iter()
            .all(|calm| info.lines().any(|line| line == *calm))
    }

    /// Everything acknowledged so far. Redis hands a write to the kernel before it answers, but for those that come while it syncs its file:
    /// these may follow up to two seconds later.
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

    /// Kills it, and starts it with what it held then.
    pub(crate) fn roll_back_to(&mut self, snapshot: &Snapshot) {
        self.kill();
        std::fs::remove_dir_all(self.folder.join("data")).unwrap();
        copy_folder(&snapshot.0, &self.folder.join("data"));
        self.restart();
    }

    /// Forgets everything. Not for the shared one, hence `mut`.
    pub(crate) fn flush_all(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.client()).unwrap();
    }

    /// From here on it refuses writes that need memory beyond so many bytes; zero is no bound.
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

    /// Until it answers: while it loads its file it does, but with an error.
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
    // What is stored is soon gone again: Redis' own 64 MB would be written anew every few seconds.
    server.args(["--auto-aof-rewrite-min-size", "512mb"]);
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
