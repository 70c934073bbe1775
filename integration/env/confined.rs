//! Runs the service confined to a root file system, as a container does, without a container
//! engine.
//!
//! The service gets its own mount and process namespaces, read-only mounts and a user without
//! rights. It shares the machine's network, because the servers listen there.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::process::{Process, Signal, folder, free_port};
use super::{PATIENCE, eventually};

/// Runs in the new mount namespace, as root of the machine or of a user namespace. `$3` enters the
/// root as an unprivileged user.
const ENTER: &str = r#"
set -e
mount --bind "$1" "$1"
mount --bind "$2" "$1/etc/postdate"
mount -t proc proc "$1/proc"
mount -o remount,bind,ro "$1/etc/postdate"
mount -o remount,bind,ro "$1"
exec $3 "$1" /usr/bin/postdate run --config /etc/postdate/postdate.toml
"#;

const BY_ROOT: &str = "chroot --userspec=65532:65532";
/// Without real root, a nested user namespace changes the user. It has no capabilities either.
const BY_ANYBODY: &str = "unshare --user --map-user=65532 --map-group=65532 --wd=/ --root";

pub(crate) struct Confined {
    process: Process,
    root: PathBuf,
}

impl Confined {
    /// Starts the service and waits until it is ready. `config` must not contain `[admin]`.
    pub(crate) fn start(root: &Path, config: &str) -> Confined {
        let (folder, port) = (folder("confined"), free_port());
        let etc = folder.join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(
            etc.join("postdate.toml"),
            format!("{config}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n"),
        )
        .unwrap();
        let mut command = Command::new("unshare");
        let is_root = rustix::process::geteuid().is_root();
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]);
        command.args(if is_root {
            None
        } else {
            Some("--map-root-user")
        });
        command
            .args(["sh", "-c", ENTER, "enter"])
            .arg(root)
            .arg(&etc);
        command.arg(if is_root { BY_ROOT } else { BY_ANYBODY });
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut process = Process::start("confined", &folder, &mut command);
        process.until("the confined service is ready", || {
            super::postdate::is_ready(port, "/readyz").then_some(())
        });
        Confined {
            process,
            root: root.to_owned(),
        }
    }

    /// Process id of the service, a child of the `unshare` process.
    fn pid(&self) -> u32 {
        let children = |pid: u32| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
        };
        eventually("the service has a process", PATIENCE, || {
            children(self.process.id())
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
    }

    /// The kernel's `status` file of the service's process.
    pub(crate) fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap()
    }

    pub(crate) fn mounts(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap()
    }

    /// Returns whether the service's mount at `path` is read-only.
    pub(crate) fn is_read_only(&self, path: &str) -> bool {
        let place = format!("{}{}", self.root.display(), path.trim_end_matches('/'));
        let mounts = self.mounts();
        let line = mounts.lines().rfind(|line| {
            line.split(' ')
                .nth(4)
                .is_some_and(|at| at == path || at == place)
        });
        line.and_then(|line| line.split(' ').nth(5))
            .is_some_and(|options| options.split(',').any(|option| option == "ro"))
    }

    /// Sends SIGTERM to the service itself, not to its parent `unshare`, and waits for the exit.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).expect("a process id"))
            .expect("not 0");
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        eventually("the confined service ends", PATIENCE, || {
            self.process.ended()
        })
    }
}
