//! The contract of every store, as cases.
//!
//! They run on the memory store, the embedded store and a real Redis. A case knows only the port
//! and has its own shard.

mod advance;
mod append;
mod copy;
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
use crate::store::{AdminStore, CopyStore, Store};
use async_trait::async_trait;
pub(crate) use fixture::{Fixture, run_of};
use ids::{keys, moves};
use query::admin;
use std::future::Future;
use std::pin::Pin;

/// A store under test, with the actions that the port does not offer.
#[async_trait(?Send)]
pub(crate) trait StoreUnderTest {
    fn store(&self) -> &dyn Store;

    fn survey(&self) -> &dyn CopyStore;

    fn admin(&self) -> &dyn AdminStore;

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
        creating_a_shard_stores_identity_watermark_and_delivered,
        creating_an_existing_shard_changes_nothing_and_returns_its_state,
        opening_an_existing_shard_extends_what_may_have_been_delivered,
        calls_on_a_missing_shard_return_unknown_and_write_nothing,
        an_erased_shard_does_not_exist_and_is_recreated_empty,
        erasing_a_shard_leaves_its_neighbours_alone,
        a_full_store_rejects_new_data_but_still_delivers;
    append:
        an_append_at_the_watermark_moves_it_and_adds_runs,
        a_repeated_append_returns_the_watermark_and_adds_nothing,
        an_append_behind_or_ahead_of_the_watermark_writes_nothing,
        an_empty_append_moves_the_watermark_over_a_gap,
        the_lineage_names_the_last_append_epoch_and_its_start,
        an_epoch_that_another_has_followed_stores_nothing,
        requests_of_one_call_are_independent,
        positions_beyond_the_precision_of_a_double_are_exact,
        lowest_pending_is_the_least_offset_of_the_waiting_messages,
        a_batch_may_have_more_changes_and_runs_than_a_lua_stack,
        an_append_from_another_source_is_for_an_unknown_shard;
    ids:
        a_cancel_of_a_waiting_message_is_confirmed_once,
        a_cancel_without_a_waiting_message_is_counted_as_missed,
        a_cancel_inside_the_claimed_pair_is_too_late,
        a_cancel_inside_the_delivered_pair_is_too_late,
        a_cancel_of_a_late_unclaimed_message_is_in_time,
        a_schedule_with_the_same_id_replaces_the_waiting_message,
        a_schedule_for_an_id_inside_the_claimed_pair_replaces_nothing,
        changes_of_one_batch_apply_in_their_order,
        a_schedule_for_the_same_place_cancels_nothing,
        the_effect_of_a_request_is_kept_until_its_answer_is_delivered,
        the_effect_of_an_answer_that_was_delivered_unnoticed_is_removed,
        a_claim_names_the_request_that_cancelled_its_message,
        a_request_of_an_exactly_once_route_cancels_a_claimed_message,
        no_request_cancels_a_delivered_message,
        a_hold_is_answered_while_a_message_waits_under_an_id,
        a_hold_ends_in_a_full_store_until_the_next_append,
        a_claim_from_a_store_that_lost_writes_is_refused_but_the_rest_is_stored,
        a_record_that_was_delivered_before_cancels_and_is_never_missed;
    moves:
        a_claim_names_the_last_due_time_of_its_message,
        a_message_is_only_rescheduled_to_a_later_time,
        a_rescheduled_message_keeps_its_id,
        a_reschedule_of_a_claimed_message_is_too_late,
        an_exactly_once_route_reschedules_a_claimed_message,
        a_change_without_an_answer_takes_the_place_of_a_request,
        a_retry_keeps_the_id_of_its_message,
        a_retry_takes_no_id_from_a_later_message,
        the_first_message_keeps_its_id_until_it_is_due,
        a_copy_takes_the_place_of_its_message,
        an_append_tells_the_effects_of_the_changes_that_ask_for_them,
        an_append_tells_no_change_of_a_message_that_may_have_been_delivered,
        a_copy_is_cancelled_if_its_message_does_not_wait_any_more,
        a_delivered_copy_cancels_only_its_message;
    list_fetch:
        runs_are_listed_by_least_due_then_by_least_offset,
        a_list_respects_its_bounds,
        messages_due_at_once_are_listed_first,
        a_truncated_list_says_so_and_can_be_continued,
        a_list_covers_more_slices_than_one_query,
        a_list_limit_cuts_at_the_same_run_for_any_distribution_over_slices,
        a_list_during_a_rewrite_has_all_old_runs_or_all_new_ones,
        fetch_returns_bytes_by_name_and_nothing_for_a_deleted_run;
    tail:
        the_tail_returns_the_runs_after_a_watermark_oldest_first,
        the_tail_returns_bytes_only_up_to_the_horizon,
        a_batch_without_runs_leaves_no_gap_in_the_tail,
        the_tail_of_a_new_shard_starts_at_its_watermark,
        a_truncated_tail_ends_with_a_whole_batch,
        a_tail_ends_with_the_batch_that_reaches_its_bytes,
        a_deleted_run_stays_in_the_tail_without_bytes,
        a_trimmed_tail_is_broken_for_readers_behind_it,
        a_rollback_breaks_the_tail;
    lease:
        a_free_lease_is_granted_to_one,
        a_lease_is_granted_again_to_its_own_token,
        a_lease_of_an_ended_session_is_taken_from_its_last_holder_only,
        an_old_holder_is_fenced,
        a_release_frees_only_the_holders_own_lease,
        a_shard_of_another_cluster_is_not_taken;
    membership:
        a_heartbeat_returns_all_sessions,
        an_ended_session_never_comes_back,
        a_session_that_has_lost_an_answered_heartbeat_ends,
        a_heartbeat_that_a_later_one_has_overtaken_changes_nothing,
        a_session_that_was_renewed_meanwhile_is_not_ended,
        an_expired_session_stays_until_it_is_ended,
        a_name_has_one_session,
        a_worker_that_shares_no_cluster_with_the_others_is_refused,
        workers_send_heartbeats_to_a_full_store;
    advance:
        the_delivered_pair_never_moves_back,
        the_delivered_pair_moves_only_to_a_pair_that_includes_it,
        the_claimed_pair_moves_forward_by_component,
        an_old_token_changes_nothing,
        delivered_runs_are_deleted_by_name_and_subtracted_from_the_counts,
        an_id_is_removed_only_if_it_names_the_delivered_place,
        a_claim_returns_the_cancelled_places_inside_it,
        a_claim_ahead_of_the_stores_time_is_rejected_but_the_rest_is_stored,
        a_claim_within_the_allowed_skew_is_accepted,
        a_repeated_advance_changes_nothing_more,
        a_quarantined_run_leaves_its_slice_and_still_limits_the_lowest_pending_offset,
        quarantine_skips_deleted_runs,
        a_quarantined_run_is_listed_with_its_bytes,
        a_restored_run_is_pending_again_and_its_shard_has_no_owner,
        a_repeated_restore_changes_nothing_more,
        a_restore_inside_the_claimed_pair_writes_nothing,
        a_paused_shard_refuses_claims_but_the_rest_is_stored,
        a_shard_keeps_the_newest_pause,
        a_shard_is_created_with_the_pause_of_its_commit;
    keys:
        messages_are_counted_by_the_key_of_their_run,
        an_id_is_found_under_every_name_and_moves_to_the_first,
        a_delivered_id_is_removed_under_any_name,
        ids_change_only_with_every_used_key,
        a_rewrite_renames_the_ids_of_its_messages,
        a_stale_name_hides_no_waiting_message,
        a_cancel_and_a_replacement_reach_every_name,
        a_delivered_message_leaves_the_other_names_of_its_id,
        an_id_is_renamed_to_a_name_only_if_it_is_free,
        ids_of_finished_messages_are_removed_and_others_stay;
    rewrite:
        a_rewrite_replaces_runs,
        a_repeated_rewrite_is_done_and_changes_nothing_more,
        a_rewrite_with_a_missing_input_writes_nothing,
        a_rewrite_with_an_old_rewrite_count_writes_nothing,
        only_the_holder_rewrites,
        delivered_runs_are_rewritten_to_nothing;
    ledger:
        an_accepted_message_is_settled_or_pending_at_every_moment,
        an_occurrence_is_accepted_when_it_is_settled,
        outcomes_that_are_reported_twice_are_counted_once,
        an_old_holder_counts_nothing,
        a_quarantined_message_stays_in_the_ledger_until_it_is_known_to_be_settled,
        a_restored_message_is_pending_in_the_ledger,
        a_rewrite_that_drops_delivered_messages_keeps_the_ledger_balanced,
        messages_settled_before_a_loss_leave_the_ledger_with_their_runs,
        settled_messages_that_are_not_restored_are_counted_when_all_is_delivered,
        an_unsettled_message_whose_run_is_gone_is_missing_in_the_ledger,
        erasing_a_shard_erases_its_ledger;
    query:
        a_shard_is_listed_from_creation_to_erasure,
        waiting_messages_are_counted_by_slice,
        quarantined_messages_are_counted_separately,
        an_id_query_returns_the_waiting_place,
        cancelled_and_replaced_places_are_named;
    admin:
        the_audit_list_has_the_last_lines_in_their_order,
        a_request_is_begun_once_until_it_is_forgotten_or_its_time_is_over,
        the_last_requests_that_ended_are_kept,
        a_name_that_is_used_again_is_not_forgotten_as_an_old_one;
    copy:
        a_copy_from_memory_equals_its_source_and_continues_alike,
        a_copy_to_memory_equals_its_source_and_continues_alike,
        a_copy_that_is_interrupted_at_any_step_and_repeated_ends_the_same,
        a_repeated_part_of_a_copy_changes_nothing_more,
        a_copy_begins_only_where_nothing_is_stored,
        a_full_store_refuses_parts_of_a_copy;
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
    fn every_case_has_a_unique_name() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), CASES.len());
        assert!(names.len() >= 30);
    }
}
