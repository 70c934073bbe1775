//! Keeps the latest log lines while the picture owns the terminal, and prints them at the end.

use crate::limit::{DEMO_LOG_LINE_BYTES_MAX, DEMO_LOG_LINE_SHOWN_FOR, DEMO_LOG_LINES_MAX};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// A log of a few lines. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(Arc<Mutex<VecDeque<Note>>>);

#[derive(Debug)]
struct Note {
    at: Instant,
    line: String,
}

impl Notes {
    fn lines(&self) -> MutexGuard<'_, VecDeque<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest line for a few seconds, without its time, level and module.
    pub(super) fn last(&self) -> Option<String> {
        let lines = self.lines();
        let note = lines
            .back()
            .filter(|note| note.at.elapsed() < DEMO_LOG_LINE_SHOWN_FOR)?;
        Some(
            note.line
                .split_once(": ")
                .map_or(note.line.as_str(), |(_, rest)| rest)
                .to_owned(),
        )
    }

    /// Prints the lines to standard error when the returned guard is dropped, also after a panic.
    pub(super) fn printed_at_the_end(&self) -> impl Drop + use<> {
        Printed(self.clone())
    }

    fn print(&self) {
        let mut out = std::io::stderr().lock();
        for Note { line, .. } in self.lines().drain(..) {
            // An error here cannot be reported.
            let _ = writeln!(out, "{line}");
        }
    }
}

struct Printed(Notes);

impl Drop for Printed {
    fn drop(&mut self) {
        self.0.print();
    }
}

/// Expects one whole line per write, as loggers write them.
impl Write for Notes {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(&line[..line.len().min(DEMO_LOG_LINE_BYTES_MAX)])
            .trim_end()
            .to_owned();
        let mut lines = self.lines();
        if lines.len() == DEMO_LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(Note {
            at: Instant::now(),
            line: text,
        });
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_latest_lines_are_kept_and_the_last_is_shown_for_a_while() {
        let notes = Notes::default();
        (0..50).for_each(|number| {
            notes
                .clone()
                .write_all(
                    format!("2026-11-21T23:00:00Z  WARN postdate::health: line {number}\n")
                        .as_bytes(),
                )
                .unwrap();
        });
        assert_eq!(
            (notes.last(), notes.lines().len()),
            (Some("line 49".to_owned()), DEMO_LOG_LINES_MAX)
        );
        tokio::time::advance(DEMO_LOG_LINE_SHOWN_FOR).await;
        assert_eq!(
            (notes.last(), notes.lines().len()),
            (None, DEMO_LOG_LINES_MAX)
        );
    }
}
