//! The terminal while a picture is shown: keys, drawing in place, and the log. It always restores
//! the terminal.

use super::text::{HEIGHT_MIN, WIDTH_MIN};
use crate::command::page::Page;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::fs::File;
use std::io::{Error, ErrorKind, IsTerminal, Result, Write, stderr, stdin, stdout};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The log while a picture is shown. Dropping it writes the rest to standard error.
pub(super) struct LogFile {
    pub(super) file: Arc<File>,
    read: u64,
}

impl LogFile {
    pub(super) fn create() -> Result<Self> {
        let file = Arc::new(tempfile::tempfile()?);
        Ok(Self { file, read: 0 })
    }

    fn next_lines(&mut self) -> String {
        let mut bytes = [0; 16 * 1024];
        let count = self.file.read_at(&mut bytes, self.read).unwrap_or(0);
        self.read += count as u64;
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // Errors cannot be handled here.
        let _ = stderr().write_all(self.next_lines().as_bytes());
    }
}

/// The lower lines of the terminal. Dropping it restores the terminal, also after a panic.
pub(super) struct Screen {
    settings: Termios,
    log: LogFile,
    pub(super) page: Page,
    /// Lines of the last picture. The cursor is below it.
    height: usize,
}

impl Screen {
    /// Returns whether there is a terminal with a keyboard that can be drawn on and is large
    /// enough.
    pub(super) fn is_possible() -> bool {
        let is_able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let is_terminal = stdin().is_terminal() && stdout().is_terminal();
        let is_large = |size: Winsize| size.ws_col >= WIDTH_MIN && size.ws_row > HEIGHT_MIN;
        is_able && is_terminal && tcgetwinsize(stdout()).is_ok_and(is_large)
    }

    /// Lets keys arrive one by one and without an echo, and hides the cursor.
    pub(super) fn open(log: LogFile) -> Result<Self> {
        let settings = tcgetattr(stdin())?;
        let mut keys = settings.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let screen = Self {
            settings,
            log,
            page: Page::of_stdout(),
            height: 0,
        };
        tcsetattr(stdin(), OptionalActions::Now, &keys)?;
        write("\x1b[?25l")?;
        Ok(screen)
    }

    /// Replaces the last picture. The log and `lines` stay above it.
    pub(super) fn draw(&mut self, lines: &[String], picture: &[String]) -> Result<()> {
        let end = "\x1b[K\n";
        let mut text = "\x1b[A".repeat(self.height) + "\r";
        text += &self.log.next_lines().replace('\n', end);
        text.extend(lines.iter().flat_map(|line| [line.as_str(), end]));
        // A line of the picture that wraps would move the picture.
        text += "\x1b[?7l";
        text.extend(picture.iter().flat_map(|line| [line.as_str(), end]));
        self.height = picture.len();
        write(&(text + "\x1b[?7h"))
    }

    /// Number of quit keys since the last call. An error: the terminal was closed.
    pub(super) fn quit_keys(&self) -> Result<usize> {
        let (input, at_once) = (stdin(), Timespec::default());
        if poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&at_once))? == 0 {
            return Ok(0);
        }
        let mut keys = [0; 64];
        // `q` or Ctrl-C, which is a key here and not a signal.
        let is_quit = |key: &&u8| matches!(key, b'q' | b'Q' | 3);
        match rustix::io::read(&input, &mut keys)? {
            0 => Err(Error::from(ErrorKind::UnexpectedEof)),
            count => Ok(keys[..count].iter().filter(is_quit).count()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Errors cannot be handled here.
        let _ = write("\x1b[?25h");
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.settings);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
