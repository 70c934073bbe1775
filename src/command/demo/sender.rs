//! The loop that sends the shop's messages until its time is over. The watcher sees their delivery.

use super::News;
use super::shop::{Letter, Shop, When};
use crate::broker::{DeliveryReport, OutgoingRecord, SendResult, Target};
use crate::clock::Clock;
use crate::limit::DEMO_TICK_INTERVAL;
use crate::model::{Headers, Timestamp};
use crate::task::StopToken;
use std::time::Duration;
use tokio::sync::mpsc;

/// Header that marks the demo's messages: `<run>/<number>`.
pub(super) const HEADER: &str = "demo";

/// The producer and its context.
pub(super) struct Sender<C> {
    pub(super) target: Box<dyn Target>,
    pub(super) topic: String,
    pub(super) run: String,
    pub(super) shop: Shop,
    pub(super) clock: C,
    pub(super) length: Duration,
    pub(super) news: mpsc::Sender<News>,
    /// `begin` is cancelled when the watcher is ready, `enough` when sending must stop.
    pub(super) begin: StopToken,
    pub(super) enough: StopToken,
}

impl<C: Clock> Sender<C> {
    /// Runs until `stop` is cancelled, even if messages remain.
    pub(super) async fn serve(mut self, stop: StopToken) {
        if stop
            .run_until_cancelled(self.begin.clone().cancelled_owned())
            .await
            .is_some()
        {
            stop.run_until_cancelled(self.send_all()).await;
        }
        self.target.close().await;
    }

    async fn send_all(&mut self) {
        let end = self.clock.now().plus(self.length);
        self.tell(News::Begun).await;
        let mut beat = tokio::time::interval(DEMO_TICK_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Both branches are safe to cancel: undelivered reports stay in the target, and the
            // tick comes again.
            tokio::select! {
                biased;
                reports = self.target.next_reports() => self.look_at(&reports).await,
                _ = beat.tick(), if !self.enough.is_cancelled() => self.send_letters(end).await,
            }
        }
    }

    async fn send_letters(&mut self, end: Timestamp) {
        let now = self.clock.now();
        for letter in self.shop.letters(now, end) {
            self.tell(News::Sent {
                number: letter.number,
                due: letter.when.due(now),
            })
            .await;
            if let SendResult::Failed(failure) = self.send(&letter) {
                self.tell(News::Refused {
                    number: letter.number,
                    why: failure.detail,
                })
                .await;
            }
        }
        if now >= end {
            self.enough.cancel();
        }
        if self.enough.is_cancelled() {
            self.tell(News::AllSent).await;
        }
    }

    fn send(&mut self, letter: &Letter) -> SendResult {
        let (name, value) = match letter.when {
            When::After(delay) => ("postdate-after", format!("{}ms", delay.as_millis())),
            When::At(due) => ("postdate-at", due.as_millis().to_string()),
        };
        let own = format!("{}/{}", self.run, letter.number);
        let record = OutgoingRecord {
            topic: &self.topic,
            partition: None,
            key: Some(letter.key.as_bytes()),
            payload: Some(letter.text.as_bytes()),
            headers: Headers::default(),
            keep_header: |_| true,
            extra_headers: &[(name, value.as_bytes()), (HEADER, own.as_bytes())],
        };
        match self.target.send(&record, letter.number) {
            // A full queue means that the broker has accepted nothing for seconds. Report it as a
            // failure.
            SendResult::QueueFull => SendResult::Failed(full()),
            sent => sent,
        }
    }

    async fn look_at(&mut self, reports: &[DeliveryReport]) {
        for report in reports {
            if let Err(failure) = &report.outcome {
                self.tell(News::Refused {
                    number: report.ticket,
                    why: failure.detail.clone(),
                })
                .await;
            }
        }
    }

    async fn tell(&self, news: News) {
        // The send fails only when the demo is over.
        let _ = self.news.send(news).await;
    }
}

fn full() -> crate::broker::DeliveryFailure {
    let detail = "the broker has not answered for seconds".to_owned();
    crate::broker::DeliveryFailure {
        kind: crate::broker::FailureKind::NotDelivered,
        reason: crate::model::Reason::TimedOut,
        detail,
    }
}
