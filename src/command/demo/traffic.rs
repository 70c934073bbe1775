//! The loop that sends messages, watches their deliveries, and shows the board.

use super::board::{Arrival, Board, Phase};
use super::scene::Scene;
use super::screen::Screen;
use super::{say, text};
use crate::broker::{Error, Event, OutgoingRecord, SendResult, Source, Target};
use crate::clock::{Clock as _, WallClock};
use crate::health::Health;
use crate::limit::{DEMO_IN_FLIGHT_MAX, DEMO_TEXT_BYTES_MAX, DEMO_TICK_INTERVAL};
use crate::model::header_name::{DUE, ERROR_DETAIL};
use crate::model::{Dialects, Headers, Partition, Record, Timestamp};
use crate::role::{Cluster, SourceOptions, TargetOptions, TargetPurpose};
use crate::task;
use anyhow::Result;
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Header that marks the demo's messages: `<run>/<number>`.
const HEADER: &str = "demo";

/// Kinds of messages: key prefix, payload, and range of delays in milliseconds.
const KINDS: [(&str, &str, std::ops::Range<u64>); 5] = [
    ("order", "close it unless it was paid", 4_000..9_000),
    ("payment", "try the card again", 1_000..4_000),
    ("cart", "still there? remind the customer", 3_000..9_000),
    ("parcel", "ask whether it has arrived", 5_000..9_000),
    ("webhook", "call again, it did not answer", 2_000..6_000),
];

/// The messages of one demo.
pub(super) struct Traffic<'a> {
    pub(super) scene: &'a Scene,
    pub(super) run: String,
    pub(super) random: StdRng,
    /// Messages are sent for this time.
    pub(super) length: Duration,
    pub(super) board: Board,
    /// Assigned partitions without a position.
    pub(super) unstarted: Vec<Partition>,
}

impl Traffic<'_> {
    /// Runs until all messages arrived, a timeout passed, or the user quits.
    pub(super) async fn serve(&mut self, draws: bool) -> Result<()> {
        let (config, route) = (&self.scene.config, self.scene.route());
        let cluster = |name: &str| Cluster::of(config, name);
        let part = |name: &str| Health::new().register(name);
        let options = TargetOptions {
            purpose: TargetPurpose::Fast,
            in_flight_max: DEMO_IN_FLIGHT_MAX,
            sender: self.run.clone(),
        };
        let mut target = cluster(&route.source.cluster).target(options, part("demo sender"))?;
        let options = SourceOptions {
            group: format!("{}.demo.{}", config.deployment, self.run),
            member: "watcher".to_owned(),
            topics: self.scene.watched.clone(),
            dialects: Dialects::default(),
        };
        let mut source = cluster(route.target_cluster()).source(options, part("demo watcher"))?;
        let served = self.serve_with(&mut *target, &mut *source, draws).await;
        tokio::join!(target.close(), source.close());
        served
    }

    async fn serve_with(
        &mut self,
        target: &mut dyn Target,
        source: &mut dyn Source,
        mut draws: bool,
    ) -> Result<()> {
        let mut tick = interval(DEMO_TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quit = Box::pin(quit_signal());
        let (mut screen, mut next_line) = (None, Instant::now());
        loop {
            // All branches are safe to cancel: ticks, reports and events are not lost, and the
            // signal future is kept. The first poll installs the signal handlers, before a tick
            // takes the terminal.
            tokio::select! {
                biased;
                // A second failure to wait for signals ends the demo, like a second signal.
                _ = &mut quit => {
                    quit = Box::pin(quit_signal());
                    self.board.on_quit(WallClock.now());
                }
                _ = tick.tick() => {
                    if std::mem::take(&mut draws) {
                        // A terminal that cannot be opened gets lines.
                        screen = Screen::open().ok();
                    }
                    self.send_messages(target);
                    self.start_partitions(source).await?;
                    if self.show(screen.as_ref(), &mut next_line).is_err() {
                        // The terminal was closed, or nothing reads the output any more.
                        self.board.end(WallClock.now());
                    }
                    if self.board.phase == Phase::Over {
                        return Ok(());
                    }
                }
                reports = target.next_reports() => {
                    for report in reports {
                        if let Err(failure) = report.outcome {
                            self.board.refuse(report.ticket, failure.detail);
                        }
                    }
                }
                event = source.next_event() => self.watch(event)?,
            }
        }
    }

    fn send_messages(&mut self, target: &mut dyn Target) {
        let (now, Phase::Sending { since }) = (WallClock.now(), self.board.phase) else {
            return;
        };
        for _ in 0..self.random.random_range(1..=4) {
            let (kind, text, delays) = KINDS[self.random.random_range(0..KINDS.len())].clone();
            let key = format!("{kind}-{}", self.random.random_range(1_000..10_000));
            let delay = Duration::from_millis(self.random.random_range(delays));
            // The board counts a message before it is sent, or it could arrive first.
            let number = self.board.send(now.plus(delay));
            let after = format!("{}ms", delay.as_millis());
            let own = format!("{}/{number}", self.run);
            let record = OutgoingRecord {
                topic: &self.scene.source,
                partition: None,
                key: Some(key.as_bytes()),
                payload: Some(text.as_bytes()),
                headers: Headers::default(),
                keep_header: |_| true,
                extra_headers: &[
                    ("postdate-after", after.as_bytes()),
                    (HEADER, own.as_bytes()),
                ],
            };
            let refusal = match target.send(&record, number) {
                SendResult::Accepted => continue,
                SendResult::QueueFull => "the broker has not answered for seconds".to_owned(),
                SendResult::Failed(failure) => failure.detail,
            };
            self.board.refuse(number, refusal);
        }
        if now >= since.plus(self.length) {
            self.board.finish(now);
        }
    }

    /// Reads each partition from its end, because earlier deliveries belong to other runs. Sending
    /// begins when the target's partitions have their positions, so that no delivery is missed.
    async fn start_partitions(&mut self, source: &mut dyn Source) -> Result<(), Error> {
        if self.unstarted.is_empty() {
            return Ok(());
        }
        let described = match source.describe(&self.unstarted).await {
            Ok(described) => described,
            Err(error) => return self.retry(error),
        };
        for (partition, described) in self.unstarted.drain(..).zip(described) {
            source.start(&partition, described.end_offset, 1);
            if *partition.topic != *self.scene.dead_letter {
                self.board.begin(WallClock.now());
            }
        }
        Ok(())
    }

    fn watch(&mut self, event: Result<Event, Error>) -> Result<(), Error> {
        match event {
            Ok(Event::Assigned(partitions)) => self.unstarted.extend(partitions),
            Ok(Event::OutOfRange { partition, .. }) => self.unstarted.push(partition),
            Ok(Event::Records(batch)) => {
                let is_dead = *batch.partition.topic == *self.scene.dead_letter;
                for record in batch.iter() {
                    let arrival = arrival(&record, &self.run, is_dead);
                    // Other messages belong to the user only if the demo invited the user.
                    if arrival.number.is_some() || self.scene.is_own {
                        self.board.arrive(&arrival);
                    }
                }
            }
            Ok(Event::Revoked(_) | Event::RecordsRemoved { .. } | Event::EndReached { .. }) => {}
            Err(error) => return self.retry(error),
        }
        Ok(())
    }

    /// Reports a problem that a retry may solve.
    fn retry(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error);
        }
        self.board.report_problem(error.to_string());
        Ok(())
    }

    /// Draws the picture, or prints a line each second. An error: there is no terminal or reader.
    fn show(&mut self, screen: Option<&Screen>, next_line: &mut Instant) -> Result<()> {
        let (now, board) = (WallClock.now(), &mut self.board);
        let lines = std::mem::take(&mut board.lines);
        if let Some(screen) = screen {
            (0..screen.quit_keys()?).for_each(|_| board.on_quit(now));
            board.step(now);
            let picture = text::picture(board, self.scene, now, &screen.page);
            return Ok(screen.draw(&lines, &picture)?);
        }
        board.step(now);
        lines
            .iter()
            .try_for_each(|line| say(&format!("{line}\n")))?;
        if Instant::now() >= *next_line || board.phase == Phase::Over {
            *next_line += Duration::from_secs(1);
            say(&format!("{}\n", text::line(board, now)))?;
        }
        Ok(())
    }
}

fn arrival(record: &Record<'_>, run: &str, is_dead: bool) -> Arrival {
    let header = |wanted: &str| {
        let mut headers = record.headers.iter();
        let (_, value) = headers.find(|(name, _)| *name == wanted.as_bytes())?;
        std::str::from_utf8(value?).ok()
    };
    let own = header(HEADER).and_then(|own| own.strip_prefix(run)?.strip_prefix('/'));
    let due = header(DUE).and_then(|due| due.parse().ok());
    Arrival {
        number: own.and_then(|number| number.parse().ok()),
        content: content(record),
        due: due.map(Timestamp::from_millis),
        at: WallClock.now(),
        refusal: is_dead.then(|| header(ERROR_DETAIL).unwrap_or("refused").to_owned()),
    }
}

/// Key and payload, short and with escaped control characters, which a terminal would obey.
fn content(record: &Record<'_>) -> String {
    let shown = |bytes: Option<&[u8]>| {
        let bytes = bytes.unwrap_or(b"(null)");
        let bytes = &bytes[..bytes.len().min(DEMO_TEXT_BYTES_MAX)];
        format!("{:?}", String::from_utf8_lossy(bytes))
    };
    format!("key {}, {}", shown(record.key), shown(record.payload))
}

/// Waits for a stop signal or SIGHUP. The demo must also end properly when the terminal closes, to
/// delete its temporary folder.
async fn quit_signal() -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    // The first signal ends both waits, so dropping the other wait loses nothing.
    tokio::select! {
        biased;
        _ = hangup.recv() => Ok(()),
        stopped = task::stop_signal() => stopped.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Offset;

    #[test]
    fn foreign_bytes_do_not_reach_the_terminal() {
        let of = |key, payload| {
            let (offset, headers) = (Offset(0), Headers::default());
            content(&Record {
                offset,
                timestamp: None,
                key,
                payload,
                headers,
            })
        };
        let red = "\x1b[31mred\r\nalert\x07\u{9b}2J".as_bytes();
        let content = of(Some(red), None);
        assert!(!content.contains(char::is_control), "{content}");
        assert!(content.ends_with(", \"(null)\""), "{content}");
        let long = of(Some(b"\xff\xfe"), Some(&[b'x'; 5_000]));
        assert!(long.starts_with("key \"\u{fffd}\u{fffd}\""), "{long}");
        assert!(long.len() < DEMO_TEXT_BYTES_MAX + 30, "{long}");
    }
}
