//! Shows on standard error which measurement runs and how far it is.
//!
//! A terminal shows one line that is overwritten. Elsewhere each phase prints a line, and long
//! phases print one every ten seconds. The tables go to standard output.

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
    /// `steps` is the number of measurements.
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

    /// Starts the next measurement.
    pub(crate) fn step(&self, what: &str) {
        self.step.set(self.step.get() + 1);
        self.phase(what);
    }

    /// Names the current phase of the measurement.
    pub(crate) fn phase(&self, what: &str) {
        what.clone_into(&mut self.what.borrow_mut());
        self.show(" ...");
    }

    /// Shows the share of messages that are done. The output is rate-limited, because it would
    /// disturb the measurement.
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

/// Ends the line on the terminal, even after a panic.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprintln!();
        }
    }
}
