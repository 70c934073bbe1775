//! The loop that updates the board from events, draws it, and decides when the demo is over.

use super::board::Board;
use super::notes::Notes;
use super::screen::Screen;
use super::venue::Place;
use super::words::{self, Ending};
use super::{News, Phase, View, picture, say};
use crate::clock::{Clock, WallClock};
use crate::limit::{
    DEMO_DUPLICATE_WAIT, DEMO_LOG_LINE_SHOWN_FOR, DEMO_OVERDUE_TIMEOUT, DEMO_START_TIMEOUT,
    DEMO_TICK_INTERVAL,
};
use crate::model::Timestamp;
use crate::task::{self, StopToken};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

/// State of the running demo.
pub(super) struct Show {
    board: Board,
    phase: Phase,
    /// Time at which `Starting` or `Finishing` ends at the latest.
    until: Timestamp,
    length: Duration,
    look: Look,
    /// `None` until the first drawing.
    face: Option<Face>,
    news: mpsc::Receiver<News>,
    enough: StopToken,
    place: Place,
    notes: Notes,
    /// The broker's last problem, and until when to show it.
    trouble: Option<(String, Instant)>,
}

/// Result of the demo.
pub(super) struct Report {
    pub(super) board: Board,
    pub(super) ending: Ending,
    /// The broker's last problem.
    pub(super) trouble: Option<String>,
}

/// The open output.
enum Face {
    Picture(Screen),
    /// Prints one line per second.
    Lines {
        next: Instant,
    },
}

impl Face {
    /// Falls back to lines if the terminal cannot be opened.
    fn open(look: Look) -> Self {
        let screen = (look == Look::Picture)
            .then(|| Screen::open().ok())
            .flatten();
        screen.map_or_else(
            || Self::Lines {
                next: Instant::now(),
            },
            Self::Picture,
        )
    }
}

/// The requested output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Picture,
    Lines,
}

impl Show {
    pub(super) fn new(
        news: mpsc::Receiver<News>,
        enough: StopToken,
        (length, look): (Duration, Look),
        place: Place,
        notes: Notes,
    ) -> Self {
        let until = WallClock.now().plus(DEMO_START_TIMEOUT);
        Self {
            board: Board::default(),
            phase: Phase::Starting,
            until,
            length,
            look,
            face: None,
            news,
            enough,
            place,
            notes,
            trouble: None,
        }
    }

    /// Runs until all messages arrived, a timeout passed, or the user quits.
    pub(super) async fn serve(&mut self) {
        let mut beat = tokio::time::interval(DEMO_TICK_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut signal = Box::pin(signal());
        while self.phase != Phase::Over {
            // All branches are safe to cancel: ticks and events are not lost, and the signal future
            // is kept. The first poll installs the signal handlers, before a tick takes the
            // terminal.
            tokio::select! {
                biased;
                told = &mut signal => {
                    if told.is_ok() {
                        signal = Box::pin(self::signal());
                    }
                    self.hurry();
                }
                _ = beat.tick() => self.turn(),
                Some(news) = self.news.recv() => self.hear(news),
            }
        }
        self.until = WallClock.now();
        self.draw();
    }

    /// Restores the terminal and returns the result.
    pub(super) fn end(self) -> Report {
        // A message is lost only if it was overdue for the full timeout.
        let lost = self.board.overdue(Timestamp::from_millis(
            self.until.as_millis() - millis(DEMO_OVERDUE_TIMEOUT),
        ));
        let ending = Ending {
            lost,
            left: self.board.waiting() - lost,
        };
        Report {
            board: self.board,
            ending,
            trouble: self.trouble.map(|(words, _)| words),
        }
    }

    fn turn(&mut self) {
        let wishes = match self.face.get_or_insert_with(|| Face::open(self.look)) {
            Face::Picture(screen) => screen.wishes_to_end(),
            Face::Lines { .. } => Ok(0),
        };
        match wishes {
            Ok(wishes) => (0..wishes).for_each(|_| self.hurry()),
            // The terminal was closed.
            Err(_) => self.phase = Phase::Over,
        }
        self.step(WallClock.now());
        // After the end, `serve` draws the last view.
        if self.phase != Phase::Over {
            self.draw();
        }
    }

    /// Handles a quit request: the first stops sending, the second ends the demo.
    fn hurry(&mut self) {
        self.phase = match self.phase {
            Phase::Sending { .. } => {
                self.enough.cancel();
                self.finish(WallClock.now())
            }
            Phase::Starting | Phase::Finishing | Phase::Over => Phase::Over,
        };
    }

    fn finish(&mut self, now: Timestamp) -> Phase {
        self.until = self
            .board
            .last_due()
            .unwrap_or(now)
            .plus(DEMO_OVERDUE_TIMEOUT);
        Phase::Finishing
    }

    fn step(&mut self, now: Timestamp) {
        match self.phase {
            // A duplicate arrives shortly after its message.
            Phase::Finishing if self.board.waiting() == 0 => {
                self.until = self.until.min(now.plus(DEMO_DUPLICATE_WAIT));
            }
            _ => {}
        }
        if now >= self.until && !matches!(self.phase, Phase::Sending { .. }) {
            self.phase = Phase::Over;
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Begun => {
                (self.phase, self.trouble) = (
                    Phase::Sending {
                        begun: WallClock.now(),
                    },
                    None,
                );
            }
            News::Sent { number, due } => self.board.send(number, due),
            News::Refused { number, why } => {
                self.board.refuse(number);
                self.worry(why);
            }
            News::AllSent if matches!(self.phase, Phase::Sending { .. }) => {
                self.phase = self.finish(WallClock.now());
            }
            News::AllSent => {}
            News::Arrived(arrival) => {
                if let (Some(Face::Lines { .. }), Some(line)) = (&self.face, words::guest(&arrival))
                {
                    self.print(&line);
                }
                self.board.arrive(arrival);
            }
            News::Trouble(words) => self.worry(words),
        }
    }

    fn worry(&mut self, words: String) {
        self.trouble = Some((words, Instant::now() + DEMO_LOG_LINE_SHOWN_FOR));
    }

    fn draw(&mut self) {
        let now = WallClock.now();
        let invitation = self.place.is_own.then(|| words::invitation(&self.place));
        let trouble = self
            .trouble
            .as_ref()
            .filter(|(_, until)| Instant::now() < *until)
            .map(|(words, _)| words.clone());
        let note = trouble.or_else(|| self.notes.last());
        let view = View {
            board: &self.board,
            now,
            phase: self.phase,
            length: self.length,
            note,
            invitation,
        };
        let line = match &mut self.face {
            Some(Face::Picture(screen)) => {
                if screen.draw(|frame| picture::draw(frame, &view)).is_err() {
                    self.phase = Phase::Over;
                }
                return;
            }
            Some(Face::Lines { next }) => {
                let due = Instant::now();
                if due < *next && self.phase != Phase::Over {
                    return;
                }
                *next += Duration::from_secs(1);
                let trouble = view
                    .note
                    .as_ref()
                    .map(|note| format!("  ({note})"))
                    .unwrap_or_default();
                words::line(&view) + &trouble
            }
            None => return,
        };
        self.print(&line);
    }

    /// Ends the demo on an error, because nothing reads the output any more.
    fn print(&mut self, line: &str) {
        if say(&format!("{line}\n")).is_err() {
            self.phase = Phase::Over;
        }
    }
}

/// Waits for a stop signal or SIGHUP. The demo must also end properly when the terminal closes, to
/// delete its temporary folder.
async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    // The first signal ends both waits, so dropping the other wait loses nothing.
    tokio::select! {
        biased;
        _ = hangup.recv() => Ok(()),
        told = task::stop_signal() => told.map(|_| ()),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
