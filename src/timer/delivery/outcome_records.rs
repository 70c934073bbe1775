//! The outcome records of ends: what became of a message that the timer has delivered, dead-lettered or dropped.

use super::in_flight::ClaimedBatch;
use super::outcome::ShardContext;
use super::record::{Destination, original_due};
use crate::model::{Disposition, Effect, Fate, OutcomeRecord, records_of_request};

impl ShardContext {
    /// Sends the outcome records of a message whose end is known, if its route has an outcome topic. With
    /// exactly-once delivery its transaction is committed.
    pub(crate) fn tell_outcome(&self, batch: &ClaimedBatch, index: usize) {
        if let Some(topic) = &self.route.outcomes {
            let records = self.outcome_records(batch, index).into_iter().flatten();
            records.for_each(|record| topic.send(record));
        }
    }

    fn outcome_records(&self, batch: &ClaimedBatch, index: usize) -> [Option<OutcomeRecord>; 2] {
        if batch.is_cancelled(batch.place(index)) {
            // The ingress has told it, or the answer of the request tells it.
            return [None, None];
        }
        let Some(message) = batch.message(index) else {
            return [None, None];
        };
        let partition = self.shard.partition.index;
        let due = match message.body.disposition {
            Disposition::Answer(answer) => {
                // With at-least-once delivery the append has decided the request, and the ingress tells it.
                if self.producer.is_none() {
                    return [None, None];
                }
                let effect = batch.effect(index).unwrap_or(Effect::None);
                let (offset, origins) = (message.place.offset, &self.origins);
                let (request, id) = (answer.request, answer.id);
                return records_of_request(request, id, effect, offset, partition, origins);
            }
            Disposition::RetriedAnswer(_) => return [None, None],
            Disposition::Relay { .. } => None,
            _ => original_due(&message),
        };
        let reroute = batch.reroutes.get(&index);
        let fate = match reroute.map(|reroute| reroute.destination) {
            None | Some(Destination::Target) => Fate::Delivered,
            _ if fault!(TellAllAsDelivered) => Fate::Delivered,
            // The ingress tells it when it has read the record.
            Some(Destination::RetryViaSource { .. } | Destination::Reschedule { .. }) => {
                return [None, None];
            }
            Some(Destination::Dropped) => Fate::Expired,
            Some(
                Destination::DeadLetter
                | Destination::DeadLetterByReference
                | Destination::DeadLetterWithoutKey,
            ) => Fate::DeadLettered,
        };
        let mut origin = String::new();
        self.append_origin(&message, &mut origin);
        let rerouted = reroute.filter(|_| fate != Fate::Delivered);
        let code = rerouted.map(|reroute| reroute.reason.code());
        let record = OutcomeRecord::new(fate, origin, message.body.id, partition, due);
        [Some(OutcomeRecord { code, ..record }), None]
    }
}
