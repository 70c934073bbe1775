//! `postdate demo`: the whole service at work in one process, with a shop that sends for later and somebody who watches what arrives.
//!
//! | file | duty |
//! |---|---|
//! | `venue` | where it takes place: an in-process broker and a temporary folder, a stream on a NATS server, or what a configuration names |
//! | `client` | what the loops beside the service's own send and watch by |
//! | `shop` | what is sent |
//! | `sender`, `watcher` | the two loops beside the service's own: they tell the show what they did and saw |
//! | `board` | what is known of the messages |
//! | `show` | the loop that keeps the board, and says when it is over |
//! | `picture`, `words` | a view as a picture, and as lines |
//! | `screen` | the terminal: taken, drawn on, and always given back |
//! | `notes` | what the service logs while nobody may write to the terminal |

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

/// What the sender and the watcher tell the show.
#[derive(Debug)]
enum News {
    /// Somebody watches, and sending begins.
    Begun,
    /// Told before it is on its way, with the earliest instant at which it may arrive.
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
    /// The broker is away, or refuses; it is asked again.
    Trouble(String),
}

/// How far the show is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Sending {
        begun: Timestamp,
    },
    /// Nothing more is sent; what waits is waited for.
    Finishing,
    Over,
}

/// What there is to be seen at one moment.
struct View<'a> {
    board: &'a Board,
    now: Timestamp,
    phase: Phase,
    length: Duration,
    /// What went wrong last.
    note: Option<String>,
    /// A command by which to take part.
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

    /// What waits though it was due a second ago: a few milliseconds are nobody's fault.
    fn overdue(&self) -> u64 {
        self.board
            .overdue(Timestamp::from_millis(self.now.as_millis() - 1_000))
    }
}

/// Shows it; an error if not all that was sent arrived once.
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

/// Logs go where they do not spoil the picture, warnings and errors only; without one, where they always go.
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

/// Starts the loops beside the service's own. Answers the token by which sending ends early.
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

/// Somebody at a terminal is asked; a script has decided.
fn confirm() -> Result<()> {
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    say("\nEnter begins, Ctrl-C leaves everything as it is: ")?;
    let read = std::io::stdin().lock().read_line(&mut String::new())?;
    anyhow::ensure!(read > 0, "not begun");
    Ok(())
}
