//! Faults in the Lua scripts: the contract suite must catch every one of them.

use super::super::script::{Script, changed};
use super::server::Server;
use super::{RealRedis, key};
use crate::clock::{Clock as _, WallClock};
use crate::store::{Acquired, LeaseStore as _, ShardStore as _};
use crate::testing::store::contract;
use crate::testing::store::requests::{acquire, new_shard};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One fault: its description, the script (`None`: the includes), and the text that is replaced.
type Fault = (&'static str, Option<Script>, &'static str, &'static str);

const FAULTS: &[Fault] = &[
    (
        "an append does not compare the watermark (I2)",
        Some(Script::Append),
        "if s.watermark ~= ARGV[2] then",
        "if false then",
    ),
    (
        "an append does not count its messages as accepted",
        Some(Script::Append),
        "l[1] = l[1] + tonumber(messages)",
        "",
    ),
    (
        "a cancel succeeds inside the claimed pair",
        Some(Script::Append),
        "(takes_claimed or not covers(s.claimed, waiting))",
        "true",
    ),
    (
        "a request does not cancel a claimed message",
        Some(Script::Append),
        "(takes_claimed or not covers(s.claimed, waiting))",
        "not covers(s.claimed, waiting)",
    ),
    (
        "a request cancels a delivered message",
        Some(Script::Append),
        "is_other and not covers(s.delivered, waiting)",
        "is_other",
    ),
    (
        "a message is rescheduled to an earlier time",
        Some(Script::Append),
        "and not (reschedule and not before(waiting:sub(1, 16), reschedule:sub(17)))",
        "",
    ),
    (
        "a copy takes the place of any message of its id",
        Some(Script::Append),
        "and (not of or waiting:sub(17) == of)",
        "",
    ),
    (
        "a copy is delivered although it takes no place",
        Some(Script::Append),
        "if place and not is_taken then",
        "if false then",
    ),
    (
        "an earlier change of a message stays",
        Some(Script::Append),
        "redis.call('ZREM', KEYS[5], member)",
        "",
    ),
    (
        "a change leaves the request of an earlier one",
        Some(Script::Append),
        "redis.call('HDEL', KEYS[6], waiting)",
        "",
    ),
    (
        "a retry takes its id from a later message",
        Some(Script::Append),
        "is_retry and not covers(s.claimed, waiting) or",
        "",
    ),
    (
        "a schedule takes the id from the first message",
        Some(Script::Append),
        "or keeps_first and before(timestamp, waiting:sub(1, 16))",
        "",
    ),
    (
        "a dropped schedule is delivered",
        Some(Script::Append),
        "redis.call('ZADD', KEYS[5], 0, place)",
        "",
    ),
    (
        "a claim does not report a rescheduled message at its end",
        Some(Script::Advance),
        "'(' .. last .. 'g'",
        "'[' .. last",
    ),
    (
        "a claim does not report the effects of its answers",
        Some(Script::Advance),
        "if has_effects then add_effect(ARGV[i]) end",
        "",
    ),
    (
        "a claim does not report the request that cancelled its message",
        Some(Script::Advance),
        "if has_effects then add_effect(redis.call('HGET', KEYS[5], place)) end",
        "",
    ),
    (
        "the effect of a delivered answer is kept",
        Some(Script::Advance),
        "redis.call('HDEL', KEYS[5], ARGV[i])",
        "",
    ),
    (
        "a change that was too late is told as made",
        Some(Script::Append),
        "(is_certain and 'c' or 'l') .. number - 1",
        "'c' .. number - 1",
    ),
    (
        "a change is told as made although its message may have been delivered",
        Some(Script::Append),
        "is_changed and not covers(s.possibly_delivered, named)",
        "is_changed",
    ),
    (
        "occurrences of schedules are not counted as accepted",
        Some(Script::Advance),
        "l[i] = l[i] + tonumber(ARGV[18])",
        "l[i] = l[i]",
    ),
    (
        "the trimmed tail does not say where it starts",
        Some(Script::Append),
        "redis.call('HSET', KEYS[1], 'tail_from', last:sub(1, 16))",
        "",
    ),
    (
        "an append does not record the session of its reader",
        Some(Script::Append),
        "if h[2] ~= ARGV[4] then",
        "if false then",
    ),
    (
        "an append of an epoch that another one has followed is stored",
        Some(Script::Append),
        "if has_followed(h, ARGV[4]) then",
        "if false then",
    ),
    (
        "a shard of another cluster is leased",
        Some(Script::AcquireLease),
        "if not may_share_cluster(s.identity, ARGV[3]) then",
        "if false then",
    ),
    (
        "a topic id does not count in the comparison of clusters",
        None,
        "or (topic ~= '-' and topic == other_topic)",
        "",
    ),
    (
        "an append from another source is stored",
        Some(Script::Append),
        "if not s or s.identity ~= ARGV[7] then",
        "if not s then",
    ),
    (
        "a worker of another installation is admitted",
        Some(Script::Heartbeat),
        "if is_foreign and not is_shared then",
        "if false then",
    ),
    (
        "a session that has ended comes back",
        Some(Script::Heartbeat),
        "if tonumber(ARGV[2]) > 1 and not stored or",
        "if",
    ),
    (
        "a session goes on although the store went back",
        Some(Script::Heartbeat),
        "not stored or went_back then",
        "not stored then",
    ),
    (
        "a session replaces one of the same name with another lock",
        Some(Script::Heartbeat),
        "if entry.lock_id ~= own.lock_id then",
        "if false then",
    ),
    (
        "a session replaces an expired one of the same name with another lock",
        Some(Script::Heartbeat),
        "if entry.lock_id ~= own.lock_id then",
        "if s.expires_in > 0 and entry.lock_id ~= own.lock_id then",
    ),
    (
        "an expired session does not protect its installation",
        Some(Script::Heartbeat),
        "elseif type(entry.clusters) == 'table' then",
        "elseif s.expires_in > 0 then",
    ),
    (
        "a heartbeat that a later one has overtaken is recorded",
        Some(Script::Heartbeat),
        "if last >= tonumber(ARGV[2]) then",
        "if false then",
    ),
    (
        "a name keeps the session that was replaced",
        Some(Script::Heartbeat),
        "redis.call('HDEL', KEYS[2], id)",
        "",
    ),
    (
        "a session that was renewed meanwhile is ended",
        Some(Script::EndSessions),
        "stored:match('^%d+') == ARGV[i + 1]",
        "true",
    ),
    (
        "a shard is taken from a holder whose session has not ended (I5)",
        Some(Script::AcquireLease),
        "if is_held then",
        "if false then",
    ),
    (
        "a shard of an ended session stays held",
        Some(Script::AcquireLease),
        "and s.token ~= ARGV[4]",
        "",
    ),
    (
        "a lease is released with an old token (I5)",
        Some(Script::ReleaseLease),
        "if s.token ~= ARGV[2] then",
        "if false then",
    ),
    (
        "a claim does not check the token (I5)",
        Some(Script::Advance),
        "if s.token ~= ARGV[2] then",
        "if false then",
    ),
    (
        "the delivered pair may move back (I4)",
        Some(Script::Advance),
        "if not moves_back then",
        "if true then",
    ),
    (
        "the claimed pair may move back (I5)",
        Some(Script::Advance),
        "before(s.claimed:sub(1, 32), claim:sub(1, 32)) and claim:sub(1, 32) or s.claimed:sub(1, 32)",
        "claim:sub(1, 32)",
    ),
    (
        "a claim ahead of the server's time is accepted",
        Some(Script::Advance),
        "if clock_ahead then return",
        "if false then return",
    ),
    (
        "a claim does not report cancelled messages",
        Some(Script::Advance),
        "reply[#reply + 1] = member",
        "",
    ),
    (
        "a cancelled row is removed before its message is delivered",
        Some(Script::Advance),
        "if not (hex(member, 32) or hex(member, 64)) or covers(s.delivered, place) then",
        "if true then",
    ),
    (
        "an id is removed although it names another message",
        None,
        "if waiting_place(ids, ARGV[i]) == place then",
        "if true then",
    ),
    (
        "outcomes of a stale pair are counted again",
        Some(Script::Advance),
        "if delivered ~= '' and delivered ~= s.delivered then",
        "if delivered ~= '' then",
    ),
    (
        "ids change although a message has an id that another key has hashed",
        Some(Script::Append),
        "if changes > 0 and lacks_key(at, names) then",
        "if false then",
    ),
    (
        "a delivered id is looked up only under its first name",
        None,
        "if waiting_place(ids, ARGV[i]) == place then",
        "if waiting_place(ids, ARGV[first]) == place then",
    ),
    (
        "a cancel looks only at the first name of an id",
        Some(Script::Append),
        "for i = at, at + names - 1 do",
        "for i = at, at do",
    ),
    (
        "an id is renamed to a name under which another message waits",
        Some(Script::ReplaceRuns),
        "if (not first or is_claimed(s, first)) and",
        "if",
    ),
    (
        "an id is not renamed to the name of a finished message",
        Some(Script::ReplaceRuns),
        "(not first or is_claimed(s, first))",
        "not first",
    ),
    (
        "ids of finished messages stay",
        Some(Script::RemoveFinishedIds),
        "redis.call('HDEL', key, field)",
        "",
    ),
    (
        "effects of answers that were delivered unnoticed stay",
        Some(Script::RemoveFinishedIds),
        "if in_effects == '' and part[1] == '0' then return { 'done', 'e0' } end",
        "",
    ),
    (
        "ids of claimed messages are removed",
        Some(Script::RemoveFinishedIds),
        "covers(s.delivered, place)",
        "covers(s.claimed, place)",
    ),
    (
        "ids of messages outside the delivered pair are removed",
        Some(Script::RemoveFinishedIds),
        "and covers(s.delivered, place)",
        "",
    ),
    (
        "only the first part of the ids is looked at",
        Some(Script::RemoveFinishedIds),
        "return { 'done', part[1] == '0' and part[1] or in_effects .. part[1] }",
        "return { 'done', '0' }",
    ),
    (
        "a rewrite leaves ids under the name of the former key",
        Some(Script::ReplaceRuns),
        "redis.call('HSET', KEYS[3], ARGV[at], place)",
        "",
    ),
    (
        "a removed run still counts for its key",
        None,
        "count_key(member, -messages)",
        "",
    ),
    (
        "a quarantine does not check the token (I5)",
        Some(Script::Quarantine),
        "if s.token ~= ARGV[2] then",
        "if false then",
    ),
    (
        "a restore puts messages behind the claim",
        Some(Script::Restore),
        "before(s.claimed:sub(1, 32), ARGV[4]) and",
        "",
    ),
    (
        "a restore leaves the lease to an owner that does not know the runs",
        Some(Script::Restore),
        "redis.call('HDEL', KEYS[1], 'token', 'lease_end', 'lease_length')",
        "",
    ),
    (
        "a rewrite does not check the token (I5)",
        Some(Script::ReplaceRuns),
        "if s.token ~= ARGV[2] then",
        "if false then",
    ),
    (
        "a rewrite does not check that all its inputs exist",
        Some(Script::ReplaceRuns),
        "if not redis.call('ZSCORE', KEYS[tonumber(ARGV[at])], ARGV[at + 2]) then",
        "if false then",
    ),
    (
        "a rewrite does not check that it knows all earlier rewrites",
        Some(Script::ReplaceRuns),
        "if h[1] ~= ARGV[3] then",
        "if false then",
    ),
    (
        "a repeated rewrite is not recognised",
        Some(Script::ReplaceRuns),
        "if ARGV[first_new] and redis.call(",
        "if false and redis.call(",
    ),
    (
        "a list does not notice a slice that its caller does not know",
        Some(Script::List),
        "if is_slice(field) and not known[field] then",
        "if false then",
    ),
    (
        "a list ends before a slice that may hold earlier runs",
        Some(Script::List),
        "if tonumber(ARGV[i]) > tonumber(greatest) then break end",
        "if i > first_start then break end",
    ),
    (
        "a list leaves out runs that are earlier than those it has",
        Some(Script::List),
        "bound = scores[limit + 1]",
        "bound = scores[1]",
    ),
    (
        "a list reads one row of a slice less than its limit",
        Some(Script::List),
        "'LIMIT', first, limit + 1)",
        "'LIMIT', first, limit - 1)",
    ),
    (
        "a tail that does not reach back far enough is not reported as broken",
        Some(Script::Tail),
        "or before(after, s.tail_from) then",
        "then",
    ),
    (
        "a tail is cut inside a batch",
        Some(Script::Tail),
        "while rows[1] and rows[#rows]:sub(1, 16) == cut do rows[#rows] = nil end",
        "rows[#rows] = nil",
    ),
    (
        "a hold is not told while a message waits under an id",
        Some(Script::Tail),
        "redis.call('EXISTS', KEYS[3]) == 0",
        "true",
    ),
    (
        "a hold is told although no message waits under an id",
        Some(Script::Tail),
        "redis.call('EXISTS', KEYS[3]) == 0",
        "false",
    ),
    (
        "a shard is created although the caller only changes an existing one",
        Some(Script::OpenShard),
        "if ARGV[7] ~= '1' then return { 'absent' } end",
        "",
    ),
    (
        "an existing shard does not learn what may have been delivered before a loss",
        Some(Script::OpenShard),
        "if found and s.possibly_delivered ~= old then",
        "if false then",
    ),
    (
        "what may have been delivered before a loss is forgotten at the next loss",
        Some(Script::OpenShard),
        "if before(cursor, ARGV[6]:sub(1, 32)) then cursor",
        "if cursor then cursor",
    ),
    (
        "an ended hold stays ended after an append",
        Some(Script::Append),
        "if s.hold == '-' then redis.call('HDEL', KEYS[1], 'hold') end",
        "",
    ),
    (
        "a hold does not end",
        Some(Script::EndHold),
        "redis.call('HSET', KEYS[1], 'hold', '-')",
        "",
    ),
    (
        "a claim is accepted although the store lost writes",
        Some(Script::Advance),
        "before(s.watermark, ARGV[14])",
        "false",
    ),
    (
        "a paused shard accepts a claim",
        Some(Script::Advance),
        "if s.pause:sub(17, 17) == 'p' then",
        "if false then",
    ),
    (
        "an append forgets the pause of its control record",
        Some(Script::Append),
        "if is_newer_pause(ARGV[9], s.pause) then",
        "if false then",
    ),
    (
        "an older control record ends a pause",
        Some(Script::Append),
        "if is_newer_pause(ARGV[9], s.pause) then",
        "if ARGV[9] ~= '' then",
    ),
    (
        "a shard is created without the pause of its commit",
        Some(Script::OpenShard),
        "if is_newer_pause(ARGV[8], s.pause) then",
        "if false then",
    ),
    (
        "a copy of a shard forgets the pause",
        Some(Script::EndCopy),
        "'pause', ARGV[11]",
        "'other', ARGV[11]",
    ),
    (
        "a record that was delivered before gets the id",
        Some(Script::Append),
        "if place and is_taken and not first then redis.call('HSET', KEYS[4], ARGV[at], place)",
        "if kind ~= 'c' and not reschedule and not first then redis.call('HSET', KEYS[4], ARGV[at], place or '-')",
    ),
    (
        "a record that was delivered before is counted as missed",
        Some(Script::Append),
        "if (kind == 'c' or reschedule) and",
        "if (kind == 'c' or kind == 'd' or reschedule) and",
    ),
    (
        "positions are compared as doubles",
        None,
        "for i = 1, #a, 8 do\n    local x, y = a:sub(i, i + 7), b:sub(i, i + 7)",
        "for i = 1, #a, 16 do\n    local x, y = a:sub(i, i + 15), b:sub(i, i + 15)",
    ),
    (
        "a run is not counted out of its slice",
        None,
        "count(slice, -messages, -bytes)",
        "",
    ),
    (
        "a copy begins over a stored shard",
        Some(Script::BeginCopy),
        "if redis.call('EXISTS', key) == 1 then",
        "if false then",
    ),
    (
        "a repeated part of a copy counts its messages again",
        Some(Script::AddToCopy),
        "if not redis.call('ZSCORE', KEYS[key], member) then",
        "if true then",
    ),
    (
        "a copy ends twice",
        Some(Script::EndCopy),
        "if mark[1] ~= ARGV[1] or mark[2] ~= ARGV[2] then",
        "if false then",
    ),
    (
        "a copy ends that another command has begun",
        Some(Script::EndCopy),
        " or mark[2] ~= ARGV[2]",
        "",
    ),
    (
        "a part is added to a copy that another command has begun",
        Some(Script::AddToCopy),
        " or mark[2] ~= ARGV[2]",
        "",
    ),
    (
        "a copied shard has no tail",
        Some(Script::EndCopy),
        "'tail_from', ARGV[5]",
        "'tail_from', string.rep('f', 16)",
    ),
];

/// True if the contract suite fails with this fault.
fn is_caught(runtime: &tokio::runtime::Runtime, (_, script, from, to): &Fault) -> bool {
    changed::with_replaced(*script, from, to, || {
        let server = Server::start_with(&["--appendfsync", "no"]);
        let run = || {
            runtime.block_on(async {
                let redis = server.redis().await;
                contract::run(&RealRedis { server, redis }).await;
            });
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    })
}

#[test]
fn the_contract_suite_catches_every_fault_in_a_script() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let missed: Vec<&str> = FAULTS
        .iter()
        .filter(|fault| !is_caught(&runtime, fault))
        .map(|(description, ..)| *description)
        .collect();
    assert_eq!(missed, [] as [&str; 0]);
}

/// Returns true if a worker gets a shard of version 0.1.0 whose lease of five seconds ends this many
/// seconds from now.
fn is_free_with_end_in(seconds: i64) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let real = RealRedis::start().await;
        real.redis.open(&[new_shard("t")]).await.unwrap();
        let end = WallClock.now().as_millis() + 1_000 * seconds;
        let (meta, token) = (key("t", "meta"), "7".repeat(32));
        let command = format!("HSET {meta} token {token} lease_end {end} lease_length 5000");
        real.server.command(&command).await;
        let acquired = real.redis.acquire(&[acquire("t")]).await.unwrap();
        matches!(acquired[0], Acquired::Granted(_))
    })
}

/// No contract case can set the clock of a server back.
#[test]
fn a_lease_of_version_0_1_0_ends_by_the_clock_of_the_server() {
    for (end_in, is_free) in [(-1, true), (4, false), (9, false), (11, true)] {
        assert_eq!(is_free_with_end_in(end_in), is_free, "{end_in}");
    }
}
