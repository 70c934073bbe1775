//! The contract of every store, as cases.
//!
//! They run on the memory store, the embedded store and a real Redis. A case knows only the port
//! and has its own shard.

mod advance;
mod append;
pub(crate) mod builders;
mod fixture;
mod ids;
mod lease;
mod ledger;
mod list_fetch;
mod membership;
mod open;
mod query;
pub(crate) mod random_calls;
mod rewrite;
mod tail;

use crate::model::{Partition, ShardId};
use crate::store::{Store, StoreQuery};
use async_trait::async_trait;
pub(crate) use fixture::{Fixture, run_of};
use std::future::Future;
use std::pin::Pin;

/// A store under test, with the actions that the port does not offer.
#[async_trait(?Send)]
pub(crate) trait StoreUnderTest {
    fn store(&self) -> &dyn Store;

    fn survey(&self) -> &dyn StoreQuery;

    /// Takes away the space for new data, or gives it back.
    async fn set_full(&self, full: bool);
}

type ContractCase = for<'a> fn(&'a Fixture<'a>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! cases {
    ($($module:ident: $($name:ident),+;)+) => {
        /// Every case with its name.
        const CASES: &[(&str, ContractCase)] = &[$($((stringify!($name), |trial| Box::pin($module::$name(trial))),)+)+];
    };
}

cases! {
    open:
        a_birth_writes_identity_watermark_and_delivered,
        a_second_birth_changes_nothing_and_tells_what_is_there,
        on_an_unborn_shard_every_call_answers_unknown_and_writes_nothing,
        an_erased_shard_is_unborn_and_comes_back_empty,
        erasing_a_shard_leaves_its_neighbours_alone,
        a_full_store_refuses_what_brings_bytes_and_still_delivers;
    append:
        an_append_at_the_watermark_moves_it_and_adds_its_runs,
        a_repeated_append_tells_the_watermark_and_adds_nothing,
        an_append_behind_or_ahead_of_the_watermark_writes_nothing,
        an_empty_append_moves_the_watermark_over_a_gap,
        the_history_names_the_reading_that_appended_last_and_where_it_began,
        requests_of_one_call_are_independent,
        positions_that_no_double_holds_are_kept_exactly,
        lowest_pending_is_the_least_offset_of_what_waits,
        a_batch_may_hold_more_changes_and_runs_than_a_lua_stack;
    ids:
        a_cancel_of_a_waiting_message_is_confirmed_once,
        a_cancel_that_finds_nothing_is_missed,
        a_cancel_inside_claimed_comes_too_late,
        a_cancel_inside_delivered_comes_too_late,
        a_cancel_of_a_late_message_behind_the_cursor_still_comes_in_time,
        a_schedule_with_the_same_id_replaces_the_waiting_message,
        a_schedule_for_an_id_inside_claimed_replaces_nothing,
        changes_of_one_batch_apply_in_their_order,
        a_schedule_for_the_place_it_names_already_cancels_nothing;
    list_fetch:
        runs_are_listed_by_least_due_then_by_least_offset,
        a_list_keeps_to_its_bounds,
        what_is_due_at_once_is_listed_first,
        a_list_that_was_cut_says_so_and_can_be_gone_on_with,
        a_list_reaches_over_more_slices_than_one_look,
        a_list_is_cut_at_the_same_run_whatever_slices_the_runs_lie_in,
        fetch_answers_bytes_by_name_and_none_for_what_is_gone;
    tail:
        the_tail_tells_what_was_appended_past_a_watermark_oldest_first,
        the_tail_sends_bytes_only_up_to_the_horizon,
        a_batch_without_runs_is_no_gap_in_the_tail,
        the_tail_of_a_new_shard_begins_at_its_watermark,
        a_tail_that_was_cut_ends_with_a_whole_batch,
        a_run_that_was_deleted_stays_in_the_tail_without_bytes,
        a_trimmed_tail_is_broken_for_those_behind_it,
        a_store_that_went_back_breaks_the_tail;
    lease:
        a_free_lease_is_granted_to_one,
        a_lease_is_granted_again_to_its_own_token,
        a_lease_past_its_end_is_free,
        a_renewed_lease_is_held_on,
        a_lease_past_its_end_that_nobody_took_is_renewed,
        an_old_holder_is_fenced,
        a_released_lease_is_free_and_anothers_is_left_alone;
    membership:
        a_worker_that_enrols_is_told_of_all_that_live,
        a_worker_that_is_not_heard_of_any_more_lives_no_longer,
        a_worker_that_resigns_lives_no_longer_and_no_other_goes_with_it,
        workers_enrol_on_a_full_store;
    advance:
        delivered_moves_forward_and_never_back,
        delivered_moves_only_to_a_pair_that_includes_it,
        claimed_moves_forward_by_component,
        an_old_token_changes_nothing,
        delivered_runs_are_deleted_by_name_and_counted_out,
        an_id_goes_only_while_it_names_the_delivered_place,
        cancelled_places_inside_the_claim_are_told,
        a_claim_ahead_of_the_stores_time_is_refused_and_the_rest_is_done,
        a_claim_within_the_allowed_skew_is_taken,
        a_repeated_advance_changes_nothing_more,
        a_quarantined_run_leaves_its_slice_and_keeps_lowest_pending_down,
        quarantine_leaves_out_what_is_gone;
    rewrite:
        a_rewrite_puts_runs_in_the_place_of_others,
        a_repeated_rewrite_is_done_and_changes_nothing_more,
        a_rewrite_of_what_is_partly_gone_writes_nothing,
        a_rewrite_that_does_not_know_of_all_that_there_were_writes_nothing,
        only_the_holder_rewrites,
        what_was_all_delivered_is_rewritten_to_nothing;
    ledger:
        what_is_accepted_is_settled_or_pending_at_every_moment,
        what_is_told_twice_is_counted_once,
        an_old_holder_counts_nothing,
        what_is_set_aside_is_in_the_ledger_until_it_turns_out_to_be_settled,
        a_rewrite_without_what_is_delivered_balances,
        what_was_settled_before_a_loss_leaves_the_ledger_with_its_runs,
        what_was_settled_and_is_not_stored_again_is_counted_once_all_is_delivered,
        a_message_that_nobody_settled_is_missing_once_its_run_is_gone,
        a_ledger_goes_with_its_shard;
    query:
        a_shard_is_listed_from_its_birth_to_its_erasure,
        what_waits_is_counted_by_slice,
        what_is_set_aside_is_counted_apart,
        an_id_leads_to_the_place_that_waits_under_it;
}

/// Runs every case. Panics at the first broken promise.
pub(crate) async fn run(subject: &dyn StoreUnderTest) {
    for (name, case) in CASES {
        let shard = ShardId::new("contract", Partition::new(*name, 7));
        case(&Fixture { subject, shard }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), CASES.len());
        assert!(names.len() >= 30);
    }
}
