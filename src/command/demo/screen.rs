//! The terminal while a picture is shown: keys, and drawing in place.

use super::say;
use super::text::{HEIGHT_MIN, WIDTH_MIN};
use crate::command::page::Page;
use anyhow::Result;
use rustix::termios::{LocalModes, OptionalActions::Now, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, stdin, stdout};

/// The lower lines of the terminal. The cursor is on the first of them, so that a line of the log
/// pushes the next picture down. Dropping it restores the terminal, also after a panic.
pub(super) struct Screen {
    settings: Termios,
    pub(super) page: Page,
}

impl Screen {
    /// There is a keyboard, and a terminal that is large enough to draw on.
    pub(super) fn is_possible() -> bool {
        let is_able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let is_terminal = stdin().is_terminal() && stdout().is_terminal();
        let size = tcgetwinsize(stdout());
        let is_large = size.is_ok_and(|size| size.ws_col >= WIDTH_MIN && size.ws_row > HEIGHT_MIN);
        is_able && is_terminal && is_large
    }

    /// Lets keys arrive one by one, without an echo or a wait for them, and hides the cursor.
    pub(super) fn open() -> Result<Self> {
        let settings = tcgetattr(stdin())?;
        let mut keys = settings.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        keys.special_codes[SpecialCodeIndex::VMIN] = 0;
        let page = Page::of_stdout();
        let screen = Self { settings, page };
        tcsetattr(stdin(), Now, &keys)?;
        say("\x1b[?25l")?;
        Ok(screen)
    }

    /// Replaces the last picture. `lines` stay above it.
    pub(super) fn draw(&self, lines: &[String], picture: &[String]) -> Result<()> {
        let mut text = "\r".to_owned();
        text.extend(lines.iter().flat_map(|line| [line.as_str(), "\x1b[K\n"]));
        // A line of the picture that wraps would move the picture.
        text += "\x1b[?7l";
        text.extend(picture.iter().flat_map(|line| [line.as_str(), "\x1b[K\n"]));
        say(&format!("{text}\x1b[J\x1b[?7h\x1b[{}A", picture.len()))
    }

    /// Number of quit keys since the last call: `q` or Ctrl-C, which is a key here and not a signal.
    pub(super) fn quit_keys(&self) -> Result<usize> {
        let mut keys = [0; 64];
        let count = rustix::io::read(stdin(), &mut keys)?;
        let is_quit = |key: &&u8| matches!(key, b'q' | b'Q' | 3);
        Ok(keys[..count].iter().filter(is_quit).count())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Errors cannot be handled here. The cursor leaves the picture.
        let _ = say(&format!("\x1b[{HEIGHT_MIN}B\r\x1b[?25h"));
        let _ = tcsetattr(stdin(), Now, &self.settings);
    }
}
