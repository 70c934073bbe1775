//! The service confined to a root file system: as a container has it, without an engine. Mount and process spaces of its own, everything read-only,
//! a user without rights; the network is the machine's, for that is where the servers are.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::process::{Process, Signal, folder, free_port};
use super::{PATIENCE, eventually};

/// Made by root, or by whom the kernel lets have a user space of its own. `$3` goes into the root as the user without rights.
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
/// Who may not become somebody else becomes one in a space within the space: there, too, without capabilities.
const BY_ANYBODY: &str = "unshare --user --map-user=65532 --map-group=65532 --wd=/ --root";

pub(crate) struct Confined {
    process: Process,
    root: PathBuf,
}

impl Confined {
    /// Starts it with this configuration, which leaves `[admin]` out, and waits until it is ready.
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

    /// The service itself: the child of the one that unshared.
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

    /// What the kernel says of its process.
    pub(crate) fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap()
    }

    pub(crate) fn mounts(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap()
    }

    /// Whether what it sees at `path` was mounted read-only.
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

    /// Asks the service, and not the one that unshared, to end.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).expect("a process id"))
            .expect("not 0");
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        eventually("the confined service ends", PATIENCE, || {
            self.process.ended()
        })
    }
}
