//! The terminal while a picture is shown: keys, and drawing in place. It always restores the
//! terminal.

use super::text::{HEIGHT_MIN, WIDTH_MIN};
use crate::command::page::Page;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions::Now, Termios};
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Error, ErrorKind, IsTerminal, Result, Write, stdin, stdout};

/// The lower lines of the terminal. The cursor is on the first of them, so that a line of the log
/// pushes the next picture down. Dropping it restores the terminal, also after a panic.
pub(super) struct Screen {
    settings: Termios,
    pub(super) page: Page,
}

impl Screen {
    /// Returns whether there is a terminal with a keyboard that can be drawn on and is large
    /// enough.
    pub(super) fn is_possible() -> bool {
        let is_able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let is_terminal = stdin().is_terminal() && stdout().is_terminal();
        let size = tcgetwinsize(stdout());
        let is_large = size.is_ok_and(|size| size.ws_col >= WIDTH_MIN && size.ws_row > HEIGHT_MIN);
        is_able && is_terminal && is_large
    }

    /// Lets keys arrive one by one and without an echo, and hides the cursor.
    pub(super) fn open() -> Result<Self> {
        let settings = tcgetattr(stdin())?;
        let mut keys = settings.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        let page = Page::of_stdout();
        let screen = Self { settings, page };
        tcsetattr(stdin(), Now, &keys)?;
        write("\x1b[?25l")?;
        Ok(screen)
    }

    /// Replaces the last picture. `lines` stay above it.
    pub(super) fn draw(&self, lines: &[String], picture: &[String]) -> Result<()> {
        let mut text = "\r".to_owned();
        text.extend(lines.iter().flat_map(|line| [line.as_str(), "\x1b[K\n"]));
        // A line of the picture that wraps would move the picture.
        text += "\x1b[?7l";
        text.extend(picture.iter().flat_map(|line| [line.as_str(), "\x1b[K\n"]));
        write(&format!("{text}\x1b[?7h\x1b[{}A", picture.len()))
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
        // Errors cannot be handled here. The cursor leaves the picture.
        let _ = write(&format!("\x1b[{HEIGHT_MIN}B\r\x1b[?25h"));
        let _ = tcsetattr(stdin(), Now, &self.settings);
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
