//! Ends what a broker has left open of the transactions of a name, before the next producer of that name begins.
//!
//! Kafka (seen of 4.3) takes a partition without a leader for deleted: when the only replica's broker is started again, or is fenced, it notes
//! transactions as complete whose end it never wrote down there. Readers of what is committed see nothing behind such a transaction, and it
//! ends, in whatever way, with the next one of the same producer that goes there: undone along with that, what was committed would be lost.

use super::coordinator::{Coordinator, Decision, Unmet, is_open};
use super::inquiry::Awaited;
use super::transactor::{Desk, End, lost};
use crate::broker::Error;
use crate::limit::{KAFKA_HANGING_TURN, KAFKA_MARKER_TURN, KAFKA_MEND_MAX, KAFKA_TRANSACTION_MAX, KAFKA_TRANSACTION_TURN};
use crate::model::Partition;
use tokio::time::Instant;

impl Desk {
    /// Of a look that is made in advance nobody waits for the answer: the next one compares with it.
    pub(super) fn look_ahead(&self) -> Option<Awaited<super::hanging::Hanging>> {
        is_open(&self.cluster).then(|| self.asker.hanging(&self.name.reach).ok()).flatten()
    }

    pub(super) fn mend(&mut self) -> Result<(), End> {
        if !is_open(&self.cluster) {
            return Ok(());
        }
        let (until, mut decision) = (Instant::now() + KAFKA_MEND_MAX, None);
        loop {
            self.look()?;
            match self.try_to_mend(&mut decision)? {
                Ok(()) => return Ok(()),
                Err(Unmet::Never(reason)) => {
                    tracing::warn!(
                        transactional_id = self.name.id,
                        reason,
                        "what a broker may have left open of the last transaction is not ended before the next one begins, but by it"
                    );
                    return Ok(());
                }
                Err(Unmet::Later(reason)) if until <= Instant::now() => {
                    return Err(lost(format!("it is not known what a broker may have left open of the last transaction: {reason}")));
                }
                Err(Unmet::Later(_)) => _ = self.turn(KAFKA_TRANSACTION_TURN),
            }
        }
    }

    /// `decision` outlives an attempt: once the producer is fenced the broker does not know it any more.
    fn try_to_mend(&mut self, decision: &mut Option<Decision>) -> Result<Result<(), Unmet>, End> {
        let mut coordinator = match Coordinator::find(&self.cluster, &self.name.id) {
            Ok(coordinator) => coordinator,
            Err(unmet) => return Ok(Err(unmet)),
        };
        match coordinator.decision() {
            Ok(told) => *decision = told.or(*decision),
            Err(unmet) => return Ok(Err(unmet)),
        }
        let hanging = match self.hanging()? {
            Ok(hanging) => hanging,
            Err(Error::Unavailable(reason)) => return Ok(Err(Unmet::Later(reason))),
            Err(error) => return Ok(Err(Unmet::Never(error.to_string()))),
        };
        // What was never to end well lies with the marker too.
        if hanging.is_empty() && *decision != Some(Decision::Abort) {
            return Ok(Ok(()));
        }
        Ok(self.end_what_hangs(&mut coordinator, &hanging, decision.unwrap_or(Decision::Commit)))
    }

    fn end_what_hangs(&self, coordinator: &mut Coordinator, hanging: &[Partition], decision: Decision) -> Result<(), Unmet> {
        let producer = coordinator.fence(i32::try_from(KAFKA_TRANSACTION_MAX.as_millis()).unwrap_or(i32::MAX))?;
        coordinator.end(producer, &self.name.group, hanging, decision)?;
        tracing::debug!(transactional_id = self.name.id, ?decision, partitions = hanging.len(), "what may be left open has ended");
        Ok(())
    }

    /// The partitions that the name's records may lie in, and that have a transaction which does not end: whose, they do not tell.
    fn hanging(&mut self) -> Result<Result<Vec<Partition>, Error>, End> {
        loop {
            let mut awaited = match self.asker.hanging(&self.name.reach) {
                Ok(awaited) => awaited,
                Err(error) => return Ok(Err(error)),
            };
            let answer = loop {
                self.look()?;
                if let Some(answer) = awaited.answer() {
                    break answer;
                }
                self.turn(KAFKA_MARKER_TURN);
            };
            match answer {
                Ok(hanging) if hanging.is_unsure => _ = self.turn(KAFKA_HANGING_TURN),
                answer => return Ok(answer.map(|hanging| hanging.partitions)),
            }
        }
    }
}
