//! The terminal: some lines of it are taken below what stands there, drawn on, and always given back as it was. What is drawn is not its
//! affair.

use super::picture::{HEIGHT, HEIGHT_LEAST, WIDTH_LEAST};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use ratatui::layout::Position;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, ErrorKind, IsTerminal, Stdout, Write, stdin, stdout};

/// A part of the terminal, until it is dropped: whatever way that comes about, a panic included.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Ends after it was put in order with the terminal above.
    _raw: Raw,
}

/// Keys come one by one and are not shown.
struct Raw;

impl Raw {
    fn begin() -> std::io::Result<Self> {
        enable_raw_mode().map(|()| Self)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing is left to do if this fails; so below.
        let _ = disable_raw_mode();
    }
}

impl Screen {
    /// Whether there is a terminal that can be drawn on, has keys, and is large enough.
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

    /// How often somebody asked to end since the last time. Read here, for crossterm goes round for ever on a terminal that was closed.
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

/// q, or Ctrl-C: in this mode of the terminal it is a key, and no signal.
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
