//! `postdate demo`: runs the whole service in one process, sends delayed messages and watches their
//! deliveries.
//!
//! | file | duty |
//! |---|---|
//! | `scene` | chooses temporary brokers, a NATS stream, or a given configuration |
//! | `traffic` | the loop that sends, watches and shows messages |
//! | `board` | phase of the demo, and counts of its messages |
//! | `screen` | the terminal while a picture is shown |
//! | `text` | introduction, picture, lines, summary |

mod board;
mod scene;
mod screen;
mod text;
mod traffic;

use crate::cli::DemoArgs;
use crate::clock::{Clock as _, WallClock};
use crate::role::Service;
use crate::telemetry::Telemetry;
use anyhow::{Context, Result, bail, ensure};
use board::Board;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use scene::Scene;
use screen::Screen;
use std::io::{BufRead, IsTerminal, Write};
use traffic::Traffic;

/// Runs the demo. Fails unless every message arrived exactly once and not early.
pub(crate) fn demo(demo: &DemoArgs) -> Result<()> {
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
        unstarted: Vec::new(),
    };
    let shown = show(demo, &mut traffic);
    shown.and(scene.close())
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
    let service = Service::start(&config, &telemetry)?;
    let mut ended = Ok(());
    let served = service.run_until(async { ended = traffic.serve(draws).await });
    served.and(ended)?;
    let board = &mut traffic.board;
    say(&text::summary(board))?;
    if board.sent == 0 {
        let silent = || "the broker did not answer in time".to_owned();
        bail!(
            "nothing was sent: {}",
            board.last_problem.take().unwrap_or_else(silent)
        );
    }
    ensure!(
        board.is_well(),
        "not every message that was sent has arrived exactly once and in time"
    );
    Ok(())
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}
