//! `postdate demo`: runs the whole service, sends delayed messages and watches their deliveries.

mod board;
mod scene;
mod screen;
mod text;

use crate::admin;
use crate::broker::cluster::{SourceOptions, TargetOptions, TargetPurpose};
use crate::broker::send_budget::SendBudget;
use crate::broker::{Catalog, Error, Event, OutgoingRecord, SendResult, Source, Target};
use crate::cli::DemoArgs;
use crate::clock::{Clock as _, WallClock};
use crate::health::Health;
use crate::limit::{DEMO_IN_FLIGHT_MAX, DEMO_TEXT_BYTES_MAX, DEMO_TICK_INTERVAL};
use crate::model::header_name::{DUE, ERROR_DETAIL};
use crate::model::{Dialects, Headers, Partition, Record, Timestamp};
use crate::role::{Service, ServiceStart, StartTimes, main_runtime, memory_plan};
use crate::telemetry::Telemetry;
use anyhow::{Context, Result, ensure};
use board::{Arrival, Board, Phase};
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use scene::Scene;
use screen::Screen;
use std::borrow::Cow;
use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Header that marks the demo's messages: `<run>/<number>`.
const HEADER: &str = "demo";

/// Runs the demo. Fails unless every message arrived exactly once and not early.
pub fn demo(demo: &DemoArgs) -> Result<()> {
    let random = StdRng::try_from_rng(&mut SysRng);
    let mut random = random.context("cannot read random bytes from the operating system")?;
    let run = format!("{:08x}", random.random::<u32>());
    let scene = Scene::open(demo, &run)?;
    let mut traffic = Traffic {
        scene: &scene,
        run,
        random,
        length: demo.duration,
        board: Board::new(WallClock.now()),
        unlisted: scene.watched.clone(),
        unstarted: Vec::new(),
    };
    show(demo, &mut traffic).and(scene.close())
}

fn show(demo: &DemoArgs, traffic: &mut Traffic<'_>) -> Result<()> {
    let scene = traffic.scene;
    say(&text::introduction(scene))?;
    if !scene.is_own && !demo.yes && std::io::stdin().is_terminal() {
        say("\nPress Enter to begin, or Ctrl-C to change nothing: ")?;
        let read = std::io::stdin().lock().read_line(&mut String::new())?;
        ensure!(read > 0, "not started: there was no confirmation");
    }
    let draws = !demo.plain && Screen::is_possible();
    let mut config = scene.config.clone();
    if draws {
        "warn".clone_into(&mut config.log.level);
    }
    let telemetry = Telemetry::install(&config)?;
    let mut ended = Ok(());
    let served = main_runtime()?.block_on(async {
        let start = ServiceStart {
            config: &config,
            telemetry: &telemetry,
            listener: admin::bind(config.admin.listen)?,
            lock_folder: scene.lock_folder(),
            started: &StartTimes::new(&config),
        };
        let mut service = Service::start(start).await?;
        say(&format!("See what waits: {}\n\n", service.console()))?;
        let traffic = async { ended = traffic.serve(draws).await };
        service.run_until(traffic).await
    });
    served.and(ended)?;
    let board = &traffic.board;
    say(&text::summary(board))?;
    let failure = "not every message that was sent has arrived exactly once and in time";
    board.is_well().then_some(()).context(failure)
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

struct Traffic<'a> {
    scene: &'a Scene,
    run: String,
    random: StdRng,
    length: Duration,
    board: Board,
    /// Watched topics whose partitions are not known yet.
    unlisted: Vec<String>,
    /// Partitions without a position.
    unstarted: Vec<Partition>,
}

impl Traffic<'_> {
    /// Runs until all messages arrived, a timeout passed, or the user quits.
    async fn serve(&mut self, draws: bool) -> Result<()> {
        let (config, route) = (&self.scene.config, &self.scene.route);
        let part = |name: &str| Health::new().register(name);
        let options = TargetOptions {
            purpose: TargetPurpose::Fast,
            budget: Arc::new(SendBudget::new(DEMO_IN_FLIGHT_MAX, usize::MAX)),
            sender: self.run.clone(),
        };
        let cluster = config.cluster(&route.source.cluster);
        let mut target = cluster.target(options, part("demo sender"))?;
        let options = SourceOptions {
            route: self.run.clone(),
            group: format!("{}.demo.{}", config.deployment, self.run),
            topics: self.scene.watched.clone(),
            dialects: Dialects::default(),
        };
        let memory = memory_plan(config).source;
        let cluster = config.cluster(route.target_cluster());
        let mut health = |_| part("demo watcher");
        let mut sources = cluster.sources(vec![options], memory, &mut health)?;
        let mut source = sources.remove(0);
        let mut catalog = cluster.admin(None, part("demo catalog"))?;
        let mut tick = interval(DEMO_TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quit = Box::pin(quit_signal());
        // A terminal that cannot be opened gets lines.
        let screen = draws.then(Screen::open).and_then(Result::ok);
        let mut next_line = Instant::now();
        let served = loop {
            // All branches are safe to cancel.
            let outcome = tokio::select! {
                biased;
                // A second failure to wait for signals ends the demo, like a second signal.
                _ = &mut quit => {
                    quit = Box::pin(quit_signal());
                    self.board.end_phase(WallClock.now());
                    Ok(())
                }
                _ = tick.tick() => {
                    if matches!(self.board.phase, Phase::Sending { .. }) {
                        self.send_messages(&mut *target);
                    }
                    let shown = self.show(screen.as_ref(), &mut next_line);
                    // An error: the terminal was closed, or nothing reads the output any more.
                    if shown.is_err() || self.board.phase == Phase::Over {
                        break Ok(());
                    }
                    self.start_partitions(&mut *source, &mut *catalog).await
                }
                reports = target.next_reports() => {
                    for report in reports {
                        if let Err(failure) = report.outcome {
                            self.board.refuse(report.ticket, failure.detail);
                        }
                    }
                    Ok(())
                }
                event = source.next_event() => event.map(|event| self.watch(event)),
            };
            match outcome {
                Err(error) if error.is_transient() => self.board.report_problem(error.to_string()),
                Err(error) => break Err(error.into()),
                Ok(()) => {}
            }
        };
        tokio::join!(target.close(), source.close(), catalog.close());
        served
    }

    fn send_messages(&mut self, target: &mut dyn Target) {
        let now = WallClock.now();
        for _ in 0..self.random.random_range(1..=4) {
            let key = format!("order-{}", self.random.random_range(1_000..10_000));
            let delay = Duration::from_millis(self.random.random_range(1_000..9_000));
            // The board counts a message before it is sent, or it could arrive first.
            let due = now.plus(delay);
            let number = self.board.send(due);
            let at = due.as_millis().to_string();
            let own = format!("{}/{number}", self.run);
            let headers = [("postdate-at", at.as_bytes()), (HEADER, own.as_bytes())];
            let record = OutgoingRecord {
                topic: &self.scene.source,
                partition: None,
                key: Some(key.as_bytes()),
                payload: Some(b"close it unless it was paid"),
                headers: Headers::default(),
                keep_header: |_| true,
                extra_headers: &headers,
            };
            let refusal = match target.send(&record, number) {
                SendResult::Accepted => continue,
                SendResult::QueueFull => "the broker has not answered for seconds".to_owned(),
                SendResult::Failed(failure) => failure.detail,
            };
            self.board.refuse(number, refusal);
        }
    }

    /// Reads each partition from its end. Sending begins when the target's partitions have their
    /// positions, so that no delivery is missed.
    async fn start_partitions(
        &mut self,
        source: &mut dyn Source,
        catalog: &mut dyn Catalog,
    ) -> Result<(), Error> {
        if !self.unlisted.is_empty() {
            let found = catalog.partitions(&self.unlisted).await?.into_iter();
            self.unstarted.extend(found.map(|(partition, _)| partition));
            let unstarted = &self.unstarted;
            let is_known = |topic: &String| unstarted.iter().any(|it| *it.topic == **topic);
            self.unlisted.retain(|topic| !is_known(topic));
        }
        if self.unstarted.is_empty() {
            return Ok(());
        }
        let described = source.describe(&self.unstarted).await?;
        let described: Vec<_> = described.into_iter().collect::<Result<_, _>>()?;
        for (partition, described) in self.unstarted.drain(..).zip(described) {
            source.start(&partition, described.end_offset, 1);
            if *partition.topic == *self.scene.watched[0] {
                self.board.begin(WallClock.now(), self.length);
            }
        }
        Ok(())
    }

    fn watch(&mut self, event: Event) {
        match event {
            Event::OutOfRange { partition, .. } => self.unstarted.push(partition),
            Event::Records(batch) => {
                let is_dead = *batch.partition.topic != *self.scene.watched[0];
                batch
                    .iter()
                    .for_each(|record| self.arrive(&record, is_dead));
            }
            Event::RecordsRemoved { .. } | Event::Unreadable { .. } | Event::EndReached { .. } => {}
        }
    }

    fn arrive(&mut self, record: &Record<'_>, is_dead: bool) {
        let own = header(record, HEADER).and_then(|own| std::str::from_utf8(own).ok());
        let own = own.and_then(|own| own.strip_prefix(&self.run)?.strip_prefix('/'));
        let number = own.and_then(|number| number.parse().ok());
        // Other messages belong to the user only if the demo invited the user.
        if number.is_none() && !self.scene.is_own {
            return;
        }
        let now = WallClock.now();
        let arrival = arrival(record, is_dead, now);
        self.board.arrive(number, now, &arrival);
    }

    /// Draws the picture, or prints a line each second.
    fn show(&mut self, screen: Option<&Screen>, next_line: &mut Instant) -> Result<()> {
        let (now, board) = (WallClock.now(), &mut self.board);
        let mut lines = std::mem::take(&mut board.lines);
        let quits = screen.map_or(Ok(0), Screen::quit_keys)?;
        (0..quits).for_each(|_| board.end_phase(now));
        board.step(now);
        if let Some(screen) = screen {
            let picture = text::picture(board, self.scene, now, &screen.page);
            return screen.draw(&lines, &picture);
        }
        if Instant::now() >= *next_line || board.phase == Phase::Over {
            *next_line += Duration::from_secs(1);
            lines.push(format!(
                "{}  {}",
                text::counts(board, now),
                text::lateness(board)
            ));
        }
        lines.iter().try_for_each(|line| say(&format!("{line}\n")))
    }
}

fn header<'a>(record: &Record<'a>, wanted: &str) -> Option<&'a [u8]> {
    let mut headers = record.headers.iter();
    let (_, value) = headers.find(|(name, _)| *name == wanted.as_bytes())?;
    value
}

fn arrival(record: &Record<'_>, is_dead: bool, now: Timestamp) -> Arrival {
    let due = header(record, DUE).and_then(|due| std::str::from_utf8(due).ok()?.parse().ok());
    let due = due.map(Timestamp::from_millis);
    let content = format!("key {:?}, {:?}", short(record.key), short(record.payload));
    let text = match due {
        _ if is_dead => {
            // A terminal would obey control characters.
            let why = short(header(record, ERROR_DETAIL)).replace(char::is_control, " ");
            format!("refused: {content}: {why}")
        }
        Some(due) => format!("{content}, +{} ms", now.since(due).as_millis()),
        None => content,
    };
    Arrival { text, due, is_dead }
}

fn short(bytes: Option<&[u8]>) -> Cow<'_, str> {
    let bytes = bytes.unwrap_or(b"(null)");
    String::from_utf8_lossy(&bytes[..bytes.len().min(DEMO_TEXT_BYTES_MAX)])
}

/// Waits for a stop signal, or for the SIGHUP of a terminal that closes.
async fn quit_signal() -> std::io::Result<()> {
    let (mut hangup, stopped) = (signal(SignalKind::hangup())?, crate::task::stop_signal()?);
    tokio::select! {
        biased;
        _ = hangup.recv() => Ok(()),
        _ = stopped => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Offset;
    use crate::model::header::push_header;

    #[test]
    fn foreign_bytes_do_not_reach_the_terminal() {
        let of = |key, payload, detail: Option<&[u8]>| {
            let mut headers = Vec::new();
            push_header(&mut headers, ERROR_DETAIL.as_bytes(), detail);
            let record = Record {
                offset: Offset(0),
                timestamp: None,
                key,
                payload,
                headers: Headers::from_block(&headers),
            };
            arrival(&record, detail.is_some(), Timestamp::from_millis(0)).text
        };
        let red = "\x1b[31mred\r\nalert\x07\u{9b}2J".as_bytes();
        let refused = of(Some(red), None, Some(red));
        assert!(!refused.contains(char::is_control), "{refused}");
        assert!(refused.starts_with("refused: key "), "{refused}");
        assert_eq!(refused.matches("[31mred").count(), 2, "{refused}");
        assert!(refused.contains(", \"(null)\": "), "{refused}");
        let long = of(Some(b"\xff\xfe"), Some(&[b'x'; 5_000]), None);
        assert!(long.starts_with("key \"\u{fffd}\u{fffd}\""), "{long}");
        assert!(long.len() < DEMO_TEXT_BYTES_MAX + 30, "{long}");
    }
}
