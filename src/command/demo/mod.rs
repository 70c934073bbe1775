//! `postdate demo`: runs the whole service in one process, with a shop that sends delayed messages
//! and a consumer that watches deliveries.
//!
//! | file | duty |
//! |---|---|
//! | `venue` | chooses temporary brokers, a NATS stream, or a given configuration. |
//! | `client` | broker clients of the demo's own loops. |
//! | `shop` | generates the messages. |
//! | `sender`, `watcher` | loops that send and watch messages, and report events to the show. |
//! | `board` | counts the messages. |
//! | `show` | loop that updates the board, draws it, and decides when the demo is over. |
//! | `picture`, `words` | draw a view as a picture, or write it as text. |
//! | `screen` | takes over the terminal and always restores it. |
//! | `notes` | keeps log lines while the picture owns the terminal. |

mod board;
mod client;
mod notes;
mod picture;
mod screen;
mod sender;
mod shop;
mod show;
mod venue;
mod watcher;
mod words;

use crate::cli;
use crate::clock::WallClock;
use crate::config::{Config, Log, LogFormat};
use crate::limit::DEMO_EVENT_QUEUE_MAX;
use crate::model::Timestamp;
use crate::role::Service;
use crate::task::StopToken;
use crate::telemetry::Telemetry;
use anyhow::{Context, Result};
use board::{Arrival, Board};
use client::Clients;
use notes::Notes;
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use screen::Screen;
use sender::Sender;
use shop::Shop;
use show::{Look, Report, Show};
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;
use tokio::sync::mpsc;
use venue::Venue;
use watcher::{Guests, Watcher};

/// Events from the sender and the watcher.
#[derive(Debug)]
enum News {
    /// The watcher is ready and sending starts.
    Begun,
    /// Reported before the message is sent, with the earliest time at which it may arrive.
    Sent {
        number: u64,
        due: Timestamp,
    },
    Refused {
        number: u64,
        why: String,
    },
    AllSent,
    Arrived(Arrival),
    /// The broker is unavailable or refuses a call. The loop retries.
    Trouble(String),
}

/// Progress of the show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Sending {
        begun: Timestamp,
    },
    /// The sender has stopped. The show waits for pending messages.
    Finishing,
    Over,
}

/// Everything that one drawing shows.
struct View<'a> {
    board: &'a Board,
    now: Timestamp,
    phase: Phase,
    length: Duration,
    /// The most recent problem.
    note: Option<String>,
    /// A command with which the user can send a message.
    invitation: Option<String>,
}

impl View<'_> {
    fn elapsed(&self) -> Duration {
        match self.phase {
            Phase::Starting => Duration::ZERO,
            Phase::Sending { begun } => self.now.since(begun).min(self.length),
            Phase::Finishing | Phase::Over => self.length,
        }
    }

    /// Messages that have been overdue for a second. A few milliseconds of lateness are normal.
    fn overdue(&self) -> u64 {
        self.board
            .overdue(Timestamp::from_millis(self.now.as_millis() - 1_000))
    }
}

/// Runs the demo. Fails unless every message arrived exactly once and not early.
pub(crate) fn demo(demo: &cli::DemoArgs) -> Result<()> {
    let mut random =
        StdRng::try_from_rng(&mut SysRng).context("the system has no randomness to give")?;
    let run = format!("{:08x}", random.random::<u32>());
    let venue = match (&demo.config, &demo.nats) {
        (Some(file), _) => Venue::of(Config::load(file)?, demo.route.as_deref())?,
        (None, Some(url)) => Venue::nats(url, &run)?,
        (None, None) => Venue::own()?,
    };
    let shown = show(demo, &venue, run, random.random());
    let ended = venue.end();
    shown.and(ended)
}

fn show(demo: &cli::DemoArgs, venue: &Venue, run: String, seed: u64) -> Result<()> {
    say(&words::introduction(&venue.place))?;
    if !venue.place.is_own && !demo.yes {
        confirm()?;
    }
    let look = if !demo.plain && Screen::is_possible() {
        Look::Picture
    } else {
        Look::Lines
    };
    let notes = Notes::default();
    let _printed = notes.printed_at_the_end();
    let telemetry = install(&venue.config, &notes, look)?;
    let mut service = Service::start(&venue.config, &telemetry)?;
    let (news, heard) = mpsc::channel(DEMO_EVENT_QUEUE_MAX);
    let enough = start(
        &mut service,
        venue,
        (run, Shop::new(seed)),
        (demo.duration, news),
    )?;
    let mut show = Show::new(
        heard,
        enough,
        (demo.duration, look),
        venue.place.clone(),
        notes,
    );
    let served = service.run_until(show.serve());
    let Report {
        board,
        ending,
        trouble,
    } = show.end();
    served.and(say(&words::summary(&board, ending, &venue.place)))?;
    if board.tally().sent == 0 {
        anyhow::bail!(
            "nothing was sent: {}",
            trouble.unwrap_or_else(|| "the broker did not answer in time".to_owned())
        );
    }
    anyhow::ensure!(
        ending.is_well(&board),
        "not every message that was sent has arrived exactly once and in time"
    );
    Ok(())
}

/// With a picture, warnings and errors go to `notes`, because logs would damage the picture.
/// Otherwise logging is unchanged.
fn install(config: &Config, notes: &Notes, look: Look) -> Result<Telemetry> {
    if look == Look::Lines {
        return Telemetry::install(config);
    }
    let (log, notes) = (
        Log {
            format: LogFormat::Text,
            level: "warn".to_owned(),
        },
        notes.clone(),
    );
    Telemetry::install_on(&log, false, move || notes.clone())
}

/// Starts the sender and the watcher. Returns the token that stops sending early.
fn start(
    service: &mut Service,
    venue: &Venue,
    (run, shop): (String, Shop),
    (length, news): (Duration, mpsc::Sender<News>),
) -> Result<StopToken> {
    let (begin, enough, clients) = (StopToken::new(), StopToken::new(), Clients::of(venue));
    let (part, seen) = (
        service.health().register("demo sender"),
        service.health().register("demo watcher"),
    );

    let (topic, theirs) = (
        venue.place.source.clone(),
        (
            run.clone(),
            news.clone(),
            begin.clone(),
            enough.clone(),
            clients.clone(),
        ),
    );
    service
        .group()
        .spawn_thread("demo-sender", move |stop| async move {
            let (run, news, begin, enough, clients) = theirs;
            let target = clients.target(&run, part)?;
            let sender = Sender {
                target,
                topic,
                run,
                shop,
                clock: WallClock,
                length,
                news,
                begin,
                enough,
            };
            sender.serve(stop).await;
            anyhow::Ok(())
        })?;

    let (dead_letter, topics) = (venue.dead_letter.clone(), venue.watched.clone());
    let guests = if venue.place.is_own {
        Guests::Welcome
    } else {
        Guests::Ignored
    };
    let group = format!("{}.demo.{run}", venue.config.deployment);
    service
        .group()
        .spawn_thread("demo-watcher", move |stop| async move {
            let source = clients.source(group, topics, seen)?;
            let watcher = Watcher {
                source,
                dead_letter,
                run,
                guests,
                clock: WallClock,
                news,
                begin,
            };
            anyhow::Ok(watcher.serve(stop).await?)
        })?;
    Ok(enough)
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("nobody reads what the demo has to say")
}

/// Asks for confirmation at a terminal. A script has already decided.
fn confirm() -> Result<()> {
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    say("\nEnter begins, Ctrl-C leaves everything as it is: ")?;
    let read = std::io::stdin().lock().read_line(&mut String::new())?;
    anyhow::ensure!(read > 0, "not begun");
    Ok(())
}
