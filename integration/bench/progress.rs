//! What is told to whoever waits: which measurement runs, and how far it is. On a terminal one line that is rewritten; elsewhere a line a
//! measurement, and one every ten seconds while it lasts. The tables go to the standard output, this does not.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

pub(crate) struct Progress {
    begun: Instant,
    steps: usize,
    step: Cell<usize>,
    shown: Cell<Instant>,
    what: RefCell<String>,
    terminal: bool,
}

impl Progress {
    /// Of so many measurements.
    pub(crate) fn new(steps: usize) -> Progress {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        Progress {
            begun: now,
            steps,
            step: Cell::new(0),
            shown: Cell::new(now),
            what: RefCell::default(),
            terminal,
        }
    }

    /// The next measurement begins.
    pub(crate) fn step(&self, what: &str) {
        self.step.set(self.step.get() + 1);
        self.phase(what);
    }

    /// It goes on with something else.
    pub(crate) fn phase(&self, what: &str) {
        what.clone_into(&mut self.what.borrow_mut());
        self.show(" ...");
    }

    /// So many messages of so many; shown from time to time, for each look costs what is measured.
    pub(crate) fn at(&self, done: usize, goal: usize) {
        let pause = if self.terminal {
            Duration::from_millis(200)
        } else {
            Duration::from_secs(10)
        };
        if self.shown.get().elapsed() >= pause {
            self.show(&format!(
                ": {} % of {goal}",
                (100 * done.min(goal)).checked_div(goal).unwrap_or(100)
            ));
        }
    }

    fn show(&self, how_far: &str) {
        self.shown.set(Instant::now());
        let (begin, end) = if self.terminal {
            ("\r\x1b[K", "")
        } else {
            ("", "\n")
        };
        let (step, steps, seconds) = (self.step.get(), self.steps, self.begun.elapsed().as_secs());
        eprint!(
            "{begin}bench: {step} of {steps}, {seconds} s: {}{how_far}{end}",
            self.what.borrow()
        );
        let _ = std::io::stderr().flush();
    }
}

/// The line is left clean, also by a panic.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprintln!();
        }
    }
}
