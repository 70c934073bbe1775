//! Runs child processes in temporary folders and cleans up after them.
//!
//! A guard process kills the children and removes the folders when the tests finish, fail, or are
//! interrupted or killed. It does not restart anything.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(super) use rustix::process::Signal;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{PATIENCE, eventually, unique};

/// Reads the process ids to kill from standard input, which closes when the test process ends. A
/// shell survives a killed test process. A parent-death signal would not do: it follows the thread
/// that started the child.
const GUARD: &str = r#"
trap '' INT TERM HUP
pids=' '
while read -r verb pid; do
    case $verb in
        add) pids="$pids$pid " ;;
        end) pids="${pids%%" $pid "*} ${pids#*" $pid "}" ;;
    esac
done
kill -9 $pids 2>/dev/null
rm -rf "$1" 2>/dev/null || { sleep 1; rm -rf "$1"; }
"#;

/// Number of log lines that a failed test prints.
const LOG_LINES: usize = 40;

struct Guard {
    orders: Mutex<ChildStdin>,
    root: PathBuf,
}

impl Guard {
    fn get() -> &'static Guard {
        static GUARD_OF_THIS_RUN: OnceLock<Guard> = OnceLock::new();
        GUARD_OF_THIS_RUN.get_or_init(|| {
            let root = tempfile::Builder::new()
                .prefix("postdate-test-")
                .tempdir()
                .expect("a folder for temporary files")
                .keep();
            let mut sh = Command::new("sh");
            sh.args(["-c", GUARD, "guard"])
                .arg(&root)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0);
            let orders = sh
                .spawn()
                .expect("sh starts")
                .stdin
                .expect("stdin is piped");
            Guard {
                orders: Mutex::new(orders),
                root,
            }
        })
    }

    fn order(&self, verb: &str, pid: u32) -> std::io::Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(orders, "{verb} {pid}")
    }
}

/// Creates a folder for one server inside the folder of the run.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Guard::get().root.join(unique(name));
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Returns a loopback port without a listener, below the range of ephemeral ports. A client that
/// retries a stopped server could otherwise get that server's port as its own source port.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let seed = u16::try_from(std::process::id() % 1_000).expect("below a thousand") * 10;
    let candidates =
        std::iter::repeat_with(|| 20_000 + (seed + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000);
    candidates
        .take(12_000)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a free port between 20000 and 32000")
}

/// A running program with its log file. Dropping it kills the program and removes its folder.
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Starts the program and appends its output to `log` in its folder. It gets its own process
    /// group, so Ctrl-C reaches only the tests; the guard then ends the program.
    pub(crate) fn start(name: &str, folder: &Path, command: &mut Command) -> Process {
        let log = folder.join("log");
        let mut process = Process {
            name: name.to_owned(),
            log,
            child: None,
        };
        process.start_again(command);
        process
    }

    pub(super) fn start_again(&mut self, command: &mut Command) {
        self.end(Signal::KILL);
        let output: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        command
            .stdin(Stdio::null())
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .process_group(0);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!(
                "{} does not start: {error} (`make servers` fetches what is missing)",
                self.name
            )
        });
        Guard::get()
            .order("add", child.id())
            .expect("the guard reads until the tests are over");
        self.child = Some(child);
    }

    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits until `ask` returns a value. Fails the test at once if the program exits first.
    pub(super) fn until<T>(&mut self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        eventually(what, PATIENCE, || {
            let answer = ask();
            let ended = self.ended();
            assert!(
                answer.is_some() || ended.is_none(),
                "{}: it ended with {}",
                self.name,
                ended.expect("just seen")
            );
            answer
        })
    }

    pub(super) fn signal(&self, signal: Signal) {
        let child = self
            .child
            .as_ref()
            .unwrap_or_else(|| panic!("{} runs", self.name));
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            // A busy machine lets the threads run for a while.
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            eventually(&format!("{} has stopped", self.name), PATIENCE, || {
                waitid(WaitId::Pid(pid), stopped).unwrap()
            });
        }
    }

    pub(super) fn limit_descriptors(&self, count: u64) {
        let child = self.child.as_ref().expect("it runs");
        let limit = rustix::process::Rlimit {
            current: Some(count),
            maximum: Some(count),
        };
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// Sends the signal and waits for the exit. Returns `None` if there is no child, as after an
    /// earlier `end`.
    pub(super) fn end(&mut self, signal: Signal) -> Option<(ExitStatus, Duration)> {
        self.child.as_ref()?;
        let start = Instant::now();
        if self.ended().is_none() {
            self.signal(signal);
        }
        let status = eventually(&format!("{} ends", self.name), PATIENCE, || self.ended());
        self.forget();
        Some((status, start.elapsed()))
    }

    /// CPU time used so far, user and system, with a resolution of 10 milliseconds.
    pub(super) fn cpu(&self) -> Duration {
        cpu_of(self.child.as_ref().map_or(0, Child::id))
    }

    /// Peak resident memory since the start, in bytes.
    pub(super) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!(
            "/proc/{}/status",
            self.child.as_ref().map_or(0, Child::id)
        ))
        .expect("it runs");
        let peak = status.lines().find_map(|line| {
            line.strip_prefix("VmHWM:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        });
        peak.expect("the kernel tells") * 1024
    }

    pub(super) fn runs(&mut self) -> bool {
        self.child.is_some() && self.ended().is_none()
    }

    /// The exit status, if the program has exited.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .as_mut()?
            .try_wait()
            .expect("a child can be waited for")
    }

    /// Requires a reaped child: the kernel may reuse its id, so the guard must not kill it any
    /// more.
    fn forget(&mut self) {
        if let Some(child) = self.child.take() {
            // The guard may be gone. Then nothing can kill a reused id, so the error is harmless.
            let _ = Guard::get().order("end", child.id());
        }
    }

    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

/// CPU time of a process with all its threads and without its children, in steps of 10
/// milliseconds.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The second field, a name in parentheses, may contain spaces. `utime` and `stime` are fields
    // 14 and 15.
    let fields = stat
        .rsplit_once(')')
        .expect("a name in parentheses")
        .1
        .split_whitespace()
        .skip(11)
        .take(2);
    Duration::from_millis(
        fields
            .map(|ticks| ticks.parse::<u64>().expect("a number") * 10)
            .sum(),
    )
}

/// Never panics, because a second panic would hide the first.
impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill().and_then(|()| child.wait());
            self.forget();
        }
        let log = self.log();
        if std::thread::panicking() && !log.is_empty() {
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!(
                "--- the last {} lines of {}\n{}",
                last.len(),
                self.name,
                last.join("\n")
            );
        }
        if let Some(folder) = self.log.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
