//! Takes over some lines of the terminal below the existing text, and always restores the terminal.

use super::picture::{HEIGHT, HEIGHT_LEAST, WIDTH_LEAST};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use ratatui::layout::Position;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, ErrorKind, IsTerminal, Stdout, Write, stdin, stdout};

/// A region of the terminal. Dropping it restores the terminal, also after a panic.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Leaves raw mode after `Screen::drop` has moved the cursor.
    _raw: Raw,
}

/// Raw mode: keys arrive one by one and without an echo.
struct Raw;

impl Raw {
    fn begin() -> std::io::Result<Self> {
        enable_raw_mode().map(|()| Self)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // An error here cannot be handled, and neither can those in `Screen::drop`.
        let _ = disable_raw_mode();
    }
}

impl Screen {
    /// Returns whether there is a terminal with a keyboard that can be drawn on and is large
    /// enough.
    pub(super) fn is_possible() -> bool {
        let is_able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        stdin().is_terminal()
            && stdout().is_terminal()
            && is_able
            && size().is_ok_and(|(width, height)| width >= WIDTH_LEAST && height > HEIGHT_LEAST)
    }

    pub(super) fn open() -> std::io::Result<Self> {
        let raw = Raw::begin()?;
        let height = size()?.1.saturating_sub(1).min(HEIGHT);
        let options = TerminalOptions {
            viewport: Viewport::Inline(height),
        };
        let mut terminal = Terminal::with_options(CrosstermBackend::new(stdout()), options)?;
        terminal.hide_cursor()?;
        Ok(Self {
            terminal,
            _raw: raw,
        })
    }

    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> std::io::Result<()> {
        self.terminal.draw(picture).map(|_| ())
    }

    /// Number of quit keys since the last call. Reads the keys directly, because crossterm's reader
    /// loops forever on a closed terminal.
    pub(super) fn wishes_to_end(&self) -> std::io::Result<usize> {
        let (input, at_once) = (
            stdin(),
            Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        );
        if poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&at_once))? == 0 {
            return Ok(0);
        }
        let mut keys = [0; 64];
        match rustix::io::read(&input, &mut keys)? {
            0 => Err(Error::from(ErrorKind::UnexpectedEof)),
            count => Ok(keys[..count].iter().filter(|key| is_end(**key)).count()),
        }
    }
}

/// `q` or Ctrl-C. In raw mode, Ctrl-C is a key and not a signal.
fn is_end(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | 3)
}

impl Drop for Screen {
    fn drop(&mut self) {
        let area = self.terminal.get_frame().area();
        let _ = self.terminal.set_cursor_position(Position {
            x: 0,
            y: area.bottom().saturating_sub(1),
        });
        let _ = self.terminal.show_cursor();
        let _ = stdout().write_all(b"\r\n").and_then(|()| stdout().flush());
    }
}
