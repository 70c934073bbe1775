//! The loop that keeps the board by what the others tell, has it drawn, and says when it is over.

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

/// See the module's page.
pub(super) struct Show {
    board: Board,
    phase: Phase,
    /// When the phase will end at the latest, or at the earliest if nothing waits any more.
    until: Timestamp,
    length: Duration,
    look: Look,
    /// `None`: it has not begun.
    face: Option<Face>,
    news: mpsc::Receiver<News>,
    enough: StopToken,
    place: Place,
    notes: Notes,
    /// What the broker said last, and until when it is shown.
    trouble: Option<(String, Instant)>,
}

/// What there is to say at the end.
pub(super) struct Report {
    pub(super) board: Board,
    pub(super) ending: Ending,
    /// What the broker said last.
    pub(super) trouble: Option<String>,
}

/// How it is shown.
enum Face {
    Picture(Screen),
    /// A line a second.
    Lines {
        next: Instant,
    },
}

impl Face {
    /// A terminal that does not answer is written to line by line.
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

/// How it is to be shown.
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

    /// Until it is over: all has arrived, or it was waited for in vain, or somebody does not want to wait.
    pub(super) async fn serve(&mut self) {
        let mut beat = tokio::time::interval(DEMO_TICK_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut signal = Box::pin(signal());
        while self.phase != Phase::Over {
            // A beat and news that are dropped come again; of a signal only the wait for it is dropped. Signals come first, so that they
            // are caught before the first turn takes the terminal, and give it back.
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

    /// What was seen, and how it ended. The terminal is as it was.
    pub(super) fn end(self) -> Report {
        // What was not waited for to the end is not lost.
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
            // Somebody closed the terminal.
            Err(_) => self.phase = Phase::Over,
        }
        self.step(WallClock.now());
        // The last view is drawn when it is over.
        if self.phase != Phase::Over {
            self.draw();
        }
    }

    /// Somebody wants it to end: first by sending no more, then at once.
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
            // What arrives twice comes a moment later.
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

    /// Nobody reads any more if it fails, so that is the end.
    fn print(&mut self, line: &str) {
        if say(&format!("{line}\n")).is_err() {
            self.phase = Phase::Over;
        }
    }
}

/// As [`task::signal`], and the end of the terminal: the temporary folder is not to be left behind.
async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    // Nothing is lost by dropping either: the first signal ends the wait for both.
    tokio::select! {
        biased;
        _ = hangup.recv() => Ok(()),
        told = task::stop_signal() => told.map(|_| ()),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
