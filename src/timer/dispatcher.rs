//! The dispatcher: owns the shards of a timer as values, takes what is due, claims it, hands it to the targets, and tells the store what was
//! delivered (I4). One loop, beside which one call of the store at a time, for all shards, goes on; it waits only for
//! unreadable runs to be set aside.

use super::Options;
use super::advancing::{Advancing, Answered, Call};
use super::aside::set_aside;
use super::claimer::{GaveUp, Holding};
use super::exactly::{self, Desk};
use super::flying::{Aloft, Labels};
use super::loader::{Reply, Request};
use super::memory::Memory;
use super::outlet::{Outlets, Told};
use super::pace::Paces;
use super::parting;
use super::rewriter::{Chore, Done};
use super::rewriting::{self, Swapped, Swapping};
use super::share::Shares;
use super::slot::Slots;
use super::stall;
use super::waking::Moment;
use super::work::Work;
use crate::clock::Clock;
use crate::health::Part;
use crate::limit::{CLAIM_AHEAD, CLAIM_INTERVAL, CLAIM_MAX, HAND_PACE};
use crate::metric;
use crate::model::{Hint, Origins, ShardId, Timestamp};
use crate::schedule::Take;
use crate::store::{Advance, Advanced, Error, Store};
use futures_util::FutureExt as _;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a dispatcher works with.
pub(crate) struct Ports {
    pub(crate) store: Rc<dyn Store>,
    pub(crate) clock: Rc<dyn Clock>,
    /// Whether claims are answered, and whether they are refused because this machine's clock is ahead.
    pub(crate) claims: Rc<Part>,
    pub(crate) clock_ahead: Part,
    pub(crate) metric: metric::Timer,
    pub(crate) outlets: Outlets,
    pub(crate) holdings: mpsc::Receiver<Holding>,
    pub(crate) gave_up: mpsc::Sender<GaveUp>,
    pub(crate) requests: mpsc::Sender<Vec<Request>>,
    pub(crate) replies: mpsc::Receiver<Reply>,
    pub(crate) hints: mpsc::Receiver<Hint>,
    pub(crate) chores: mpsc::Sender<Chore>,
    pub(crate) looked: mpsc::Receiver<Done>,
}

/// See the module's page.
pub(crate) struct Dispatcher {
    pub(super) options: Options,
    pub(super) ports: Ports,
    memory: Rc<Memory>,
    pub(super) works: BTreeMap<ShardId, Work>,
    pub(super) slots: Slots,
    /// Who takes first in the next tick, so that all get their turn.
    turn: usize,
    paces: Paces,
    /// How far ahead of now messages are claimed: the store allows less if clocks are to agree more closely.
    ahead: Duration,
    /// When the last tick began, by both clocks.
    ticked: (Timestamp, Instant),
    /// Records to hand over again, by when.
    pub(super) again: BinaryHeap<Reverse<(Instant, u64)>>,
    pub(super) labels: Labels,
    swapping: Swapping,
    advancing: Advancing,
}

impl Dispatcher {
    pub(crate) fn new(options: Options, ports: Ports) -> Self {
        let memory = Memory::new(options.memory);
        let paces = Paces::new(&options.routes, Instant::now());
        let (ahead, ticked) = (
            CLAIM_AHEAD.min(options.skew_max / 2),
            (ports.clock.now(), Instant::now()),
        );
        ports.metric.memory_budget.set(options.memory as f64);
        Self {
            options,
            ports,
            memory,
            works: BTreeMap::new(),
            slots: Slots::default(),
            turn: 0,
            paces,
            ahead,
            ticked,
            again: BinaryHeap::new(),
            labels: Labels::default(),
            swapping: Swapping::default(),
            advancing: Advancing::default(),
        }
    }

    /// Serves until `stop` is cancelled; then takes nothing more, finishes what is claimed and tells the store. If `give_up` is cancelled
    /// before that, it ends with what it has.
    pub(crate) async fn serve(
        mut self,
        stop: CancellationToken,
        give_up: CancellationToken,
    ) -> Result<(), Error> {
        loop {
            let stopping = stop.is_cancelled();
            if stopping && self.works.values().all(Work::is_finished) || give_up.is_cancelled() {
                break;
            }
            self.tick(stopping, &give_up).await?;
            self.wait(&stop, stopping, &give_up).await?;
        }
        let left: usize = self.works.values().map(|work| work.flights.left()).sum();
        if left > 0 {
            tracing::warn!(
                left,
                "stopped before all that was claimed was finished: these may be delivered twice"
            );
        }
        self.ports.outlets.close().await;
        tracing::info!("timer drained");
        Ok(())
    }

    /// Waits until something happens, and takes in all that has happened.
    async fn wait(
        &mut self,
        stop: &CancellationToken,
        stopping: bool,
        give_up: &CancellationToken,
    ) -> Result<(), Error> {
        let wake = self.next_wake(stopping);
        // Every arm is safe to drop: receiving, `Outlets::told`, `Swapping::ended` and `Advancing::ended` keep what they did not hand out.
        tokio::select! {
            biased;
            () = give_up.cancelled() => {}
            () = stop.cancelled(), if !stopping => {}
            Some(holding) = self.ports.holdings.recv() => self.hold(holding),
            Told { reports, happened } = self.ports.outlets.told() => {
                self.land(&reports);
                let mut desk = Desk::new(&self.options, &mut self.ports.outlets, self.ports.clock.now(), stopping);
                desk.hear_all(&self.slots, &mut self.works, happened);
            }
            Some(reply) = self.ports.replies.recv() => self.take_in(reply),
            Some(hint) = self.ports.hints.recv() => self.hint(&hint),
            Some(done) = self.ports.looked.recv(), if self.swapping.is_free() => self.swapping.add(done),
            answered = self.advancing.ended() => self.answered(answered?),
            swapped = self.swapping.ended() => self.swapped(swapped)?,
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Ok(reply) = self.ports.replies.try_recv() {
            self.take_in(reply);
        }
        while let Ok(hint) = self.ports.hints.try_recv() {
            self.hint(&hint);
        }
        // A busy time keeps no call of the store from going on: nothing is claimed before the last is answered, and nothing is loaded into what
        // is being swapped.
        if let Some(answered) = self.advancing.ended().now_or_never() {
            self.answered(answered?);
        }
        if let Some(swapped) = self.swapping.ended().now_or_never() {
            self.swapped(swapped)?;
        }
        Ok(())
    }

    fn swapped(&mut self, swapped: Swapped) -> Result<(), Error> {
        let lost = rewriting::swapped(&mut self.works, &self.options.routes, swapped)?;
        lost.iter()
            .for_each(|shard| parting::leave(&mut self.works, shard));
        Ok(())
    }

    /// As of when the last tick began: what became due while it lasted was not handed over for that, and is to be at once.
    fn next_wake(&self, stopping: bool) -> Instant {
        let (wall, now) = self.ticked;
        let again = self.again.peek().map(|Reverse((at, _))| *at);
        let moment = Moment {
            wall,
            now,
            ahead: self.ahead,
            stopping,
            may_ask: self.advancing.is_free(),
        };
        let works = self.works.values().map(|work| work.next_wake(&moment));
        let exact = self
            .works
            .values()
            .filter_map(|work| exactly::wake(work, wall, now, stopping));
        let wake = works
            .chain(exact)
            .chain(again)
            .min()
            .unwrap_or(now + Duration::from_secs(1));
        wake.max(now + HAND_PACE)
    }

    fn hold(&mut self, holding: Holding) {
        let now = Instant::now();
        match holding {
            Holding::Counted(shards) => self.paces.count(&shards),
            Holding::Granted(grant) => {
                let shard = grant.lease.shard.clone();
                let slot = self.slots.add(shard.clone());
                let origins = Origins::new(&self.options.deployment, &shard);
                let work = Work::new(*grant, slot, origins, self.memory.open(), now);
                let is_exact = self.options.routes[&shard.route].markers.is_some();
                self.works.insert(
                    shard,
                    if is_exact {
                        work.exactly_once(now)
                    } else {
                        work
                    },
                );
            }
            Holding::Contested(shards) => {
                let mut desk = Desk::new(
                    &self.options,
                    &mut self.ports.outlets,
                    self.ports.clock.now(),
                    false,
                );
                shards.iter().for_each(|shard| desk.expect(shard));
            }
            Holding::HandOver(shard) => parting::hand_over(&mut self.works, &shard, now),
            Holding::Lost(shard) => parting::leave(&mut self.works, &shard),
        }
    }

    fn hint(&mut self, hint: &Hint) {
        if let Some(work) = self.works.get_mut(&hint.shard) {
            work.hint(hint.least_due, self.ports.clock.now(), Instant::now());
        }
    }

    fn take_in(&mut self, reply: Reply) {
        let Some(work) = self
            .works
            .get_mut(&reply.shard)
            .filter(|work| work.tag() == reply.tag)
        else {
            return;
        };
        if !work.take_in(reply.answer, Instant::now()) {
            parting::leave(&mut self.works, &reply.shard);
        }
    }

    async fn tick(&mut self, stopping: bool, give_up: &CancellationToken) -> Result<(), Error> {
        self.ports.claims.beat();
        self.ticked = (self.ports.clock.now(), Instant::now());
        self.resend();
        if !stopping {
            self.swapping
                .begin(&self.ports.store, &mut self.works, self.ports.clock.now());
            self.request();
            self.hand_out_chores();
        }
        set_aside(&*self.ports.store, &mut self.works, &self.options.routes).await?;
        self.advance(stopping, give_up).await?;
        let wall = self.ports.clock.now();
        // The clock may have stepped back.
        self.ticked.0 = self.ticked.0.min(wall);
        self.hand_over(wall);
        let mut desk = Desk::new(
            &self.options,
            &mut self.ports.outlets,
            self.ports.clock.now(),
            stopping,
        );
        self.works
            .iter_mut()
            .for_each(|(shard, work)| desk.serve(shard, work));
        for ended in parting::part(&mut self.works, &self.options.routes, &self.ports.gave_up) {
            self.slots.remove(ended.slot);
            desk.leave(&ended);
        }
        stall::tell(&mut self.works, &self.options.routes, wall);
        self.ports.metric.memory_used.set(self.memory.used() as f64);
        self.ports
            .metric
            .loaded_messages
            .set(self.memory.messages() as f64);
        self.ports.metric.in_flight_messages.set(
            self.works
                .values()
                .map(|work| work.flights.left())
                .sum::<usize>() as f64,
        );
        Ok(())
    }

    /// Asks the loader for what is needed, as far as it has room, each shard in its turn the first: where memory is short, who asks first has it.
    fn request(&mut self) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        let Ok(room) = self.ports.requests.try_reserve() else {
            return;
        };
        // When one looks for what was appended, those look along that soon would: the store is called once for all of them.
        let others_poll = self.works.values().any(|work| work.is_polling(now));
        let next = |work: &mut Work| {
            let what = work.next_request(wall, now, others_poll)?;
            Some(Request {
                shard: work.lease.shard.clone(),
                tag: work.tag(),
                what,
            })
        };
        let requests: Vec<_> = in_turn(&mut self.works, self.turn)
            .filter_map(|(_, work)| next(work))
            .collect();
        if !requests.is_empty() {
            room.send(requests);
        }
    }

    /// Lets the rewriter look at shards, as far as it has room, each shard in its turn the first.
    fn hand_out_chores(&mut self) {
        let (wall, now) = (self.ports.clock.now(), Instant::now());
        for (_, work) in in_turn(&mut self.works, self.turn) {
            let Ok(room) = self.ports.chores.try_reserve() else {
                return;
            };
            if let Some(chore) = work.next_chore(wall, now) {
                room.send(chore);
            }
        }
    }

    /// Asks the store for claims, and tells it what was delivered, unless it has not answered the last time yet.
    async fn advance(&mut self, stopping: bool, give_up: &CancellationToken) -> Result<(), Error> {
        let asked = if self.advancing.is_free() {
            self.plan(stopping)
        } else {
            Vec::new()
        };
        if asked.is_empty() {
            return Ok(());
        }
        self.advancing
            .begin(&self.ports.store, &self.ports.claims, asked, give_up);
        if let Some(answered) = self.advancing.ended().now_or_never() {
            self.answered(answered?);
        } else {
            // The request goes out before anything is handed over, which may take a while.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// What to claim and to tell, a shard at most once, each shard in its turn the first.
    fn plan(&mut self, stopping: bool) -> Vec<(u16, Advance)> {
        let (wall, now) = self.ticked;
        let served = |route: &str| {
            self.works
                .iter()
                .filter(|(shard, work)| &*shard.route == route && work.is_ours(now))
                .count()
        };
        self.paces.serve(served, now);
        let mut shares = Shares::new(self.options.routes.keys().cloned());
        self.works
            .iter()
            .for_each(|(shard, work)| shares.take(&shard.route, work.flights.left()));
        // When one shard claims, those claim along that soon would: the store is called once for all of them.
        let is_claiming = self
            .works
            .values()
            .any(|work| work.is_claiming(wall, now, self.ahead));
        let ahead = (
            self.ahead,
            if is_claiming {
                CLAIM_INTERVAL / 2
            } else {
                Duration::ZERO
            },
        );
        let mut asked = Vec::new();
        self.turn = self.turn.wrapping_add(1) % self.works.len().max(1);
        for (shard, work) in in_turn(&mut self.works, self.turn) {
            let room = work.paced(&mut self.paces, shares.room(&shard.route), wall, now);
            let take = if stopping || room == 0 {
                None
            } else {
                work.take(wall, now, CLAIM_MAX.min(room), ahead)
            };
            shares.take(
                &shard.route,
                take.as_ref().map_or(0, |take| take.messages.len()),
            );
            take.iter()
                .for_each(|take| work.spend(&mut self.paces, take, wall));
            if let Some(advance) = work.advance(
                take.as_ref().map(|take| take.claim),
                self.options.skew_max,
                now,
                stopping || work.is_to_be_told(),
            ) {
                work.begin_call(&advance, take);
                asked.push((work.slot, advance));
            }
        }
        asked
    }

    /// `None`: it is to give up.
    fn answered(&mut self, answered: Option<Vec<Answered>>) {
        answered
            .into_iter()
            .flatten()
            .for_each(|answered| self.apply(answered));
    }

    fn apply(
        &mut self,
        Answered {
            slot,
            advance,
            outcome,
        }: Answered,
    ) {
        let now = Instant::now();
        let shard = &advance.lease.shard;
        // Of an earlier work of the shard it says nothing about this one.
        let Some(work) = self.works.get_mut(shard).filter(|work| work.slot == slot) else {
            return;
        };
        let Some(Call { take, seen, .. }) = work.call_ended() else {
            return;
        };
        match outcome {
            Advanced::Done {
                watermark,
                cancelled,
            } => {
                if let Some(Take {
                    claim,
                    messages,
                    late,
                }) = take
                {
                    let route = &self.options.routes[&shard.route];
                    route.metric.late.increment(late as u64);
                    let suspect = messages
                        .iter()
                        .filter(|(run, at)| work.suspect.covers(run.run.place(*at as usize)))
                        .count();
                    route.metric.possible_duplicates.increment(suspect as u64);
                    self.ports.clock_ahead.ready();
                    work.flights
                        .take_off(claim, messages.len(), Aloft::new(messages, cancelled));
                }
                work.observe_answer(seen, watermark, now);
            }
            Advanced::Ahead {
                watermark,
                now: store,
            } => {
                let ahead = self.ports.clock.now().since(store).as_millis();
                let reason = format!(
                    "claims are refused: this machine's clock is {ahead} ms ahead of the store's; mend the clock synchronisation"
                );
                self.ports.clock_ahead.not_ready(reason);
                work.refused(watermark, now);
            }
            Advanced::Fenced | Advanced::Unknown => parting::leave(&mut self.works, shard),
        }
    }
}

/// All shards, each in its turn the first.
fn in_turn(
    works: &mut BTreeMap<ShardId, Work>,
    turn: usize,
) -> impl Iterator<Item = (&ShardId, &mut Work)> {
    let (after, before): (Vec<_>, Vec<_>) = works
        .iter_mut()
        .enumerate()
        .partition(|(at, _)| *at >= turn);
    after.into_iter().chain(before).map(|(_, work)| work)
}
