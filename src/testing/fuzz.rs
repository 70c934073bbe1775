//! Feeds mutated bytes to everything that parses bytes from outside. A target must neither panic,
//! nor take long, nor allocate without a bound: `make fuzz` limits the memory of the process.
//!
//! Each test whose name begins with `fuzz_` is one target. `make test` runs each of them for a
//! moment.

use crate::model::parse_after;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use tokio::time::Instant;

/// Environment variable: the time for each target, such as `10m`.
const TIME: &str = "POSTDATE_FUZZ_FOR";
const DEFAULT: Duration = Duration::from_millis(100);

/// Environment variable: the seed of the random generator.
const SEED: &str = "POSTDATE_FUZZ_SEED";

/// Generous, because the machine may be busy.
const INPUT_TIME_MAX: Duration = Duration::from_secs(20);

const INPUT_BYTES_MAX: usize = 1 << 16;

/// Calls the target with the seeds and with mutations of them. The input of a failure is printed.
pub(crate) fn fuzz<S: AsRef<[u8]>>(seeds: &[S], target: impl Fn(&[u8])) {
    let budget = std::env::var(TIME).map_or(DEFAULT, |text| {
        let delay = parse_after(&text).unwrap_or_else(|| panic!("{TIME}={text}: give a time"));
        delay.as_duration()
    });
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    let mut random = StdRng::seed_from_u64(seed);
    let end = Instant::now() + budget;
    let mut inputs: u64 = 0;
    while Instant::now() < end {
        let input = match seeds.get(inputs as usize) {
            Some(seed) => seed.as_ref().to_vec(),
            None => mutated(seeds, &mut random),
        };
        inputs += 1;
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input)));
        let text = || format!("{SEED}={seed}, input {inputs}: {}", input.escape_ascii());
        if let Err(panic) = outcome {
            tracing::error!("{}", text());
            resume_unwind(Box::new(format!("{}: {}", message(&*panic), text())));
        }
        assert!(start.elapsed() < INPUT_TIME_MAX, "slow: {}", text());
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
}

fn mutated<S: AsRef<[u8]>>(seeds: &[S], random: &mut StdRng) -> Vec<u8> {
    let pick = |random: &mut StdRng| seeds[random.random_range(0..seeds.len())].as_ref();
    let mut bytes = pick(random).to_vec();
    for _ in 0..random.random_range(1..8) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..16)).min(bytes.len());
        match random.random_range(0..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = random.random(),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copied = bytes[at..end].repeat(random.random_range(1..20));
                bytes.splice(at..at, copied);
            }
            4 => {
                let other = pick(random);
                let from = random.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            5 => {
                let extreme: [&[u8]; 8] = [
                    b"18446744073709551615",
                    b"-9223372036854775808",
                    b"0",
                    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                    b"\xff\xff\xff\xff",
                    b"\0\0\0\0",
                    b" ",
                    "\u{10ffff}".as_bytes(),
                ];
                let extreme = extreme[random.random_range(0..extreme.len())];
                bytes.splice(at..end, extreme.iter().copied());
            }
            _ => {
                let inserted = (0..random.random_range(1..9)).map(|_| random.random());
                let inserted: Vec<u8> = inserted.collect();
                bytes.splice(at..at, inserted);
            }
        }
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

mod targets {
    use super::fuzz;
    use crate::config::Config;
    use crate::model::header::push_header;
    use crate::model::{
        CommitMetadata, Cursor, DeliveredMarker, Dialect, Headers, Level, Naming, Offset,
        OriginFormat, OutcomeCounts, Partition, PositionRules, Progress, Record, RetryKeys,
        RoutingRules, RulesHistory, ShardId, Slice, SourceIdentity, TargetRules, Timestamp,
        Watermark, WithoutDelay, parse_record,
    };
    use crate::run::test_messages::shard;
    use crate::run::{RunDecoder, RunEncoder, RunName, decoded_size, record};
    use std::time::Duration;

    const CONTROL: &str = "op=pause origin=d/r/in/0/0 at=1700000000000 note=aGk";

    const RETRY: &str = "attempt=2 origin=d/r/in/0/42 due=1700000000000 target=out error=unknown_target at=1700000060000 dialect=etf1";

    fn rules(retry_keys: RetryKeys) -> RoutingRules {
        RoutingRules {
            targets: TargetRules::new(Naming::Subject, Some("a.{2}"), ["a.*", "b.>"], ["in"]),
            replies: None,
            max_delay: Duration::from_secs(3_600),
            max_retry_wait: Duration::from_secs(60),
            without_delay: WithoutDelay::Relay,
            on_duplicate: crate::model::OnDuplicate::Replace,
            change_by_origin: false,
            dialects: Dialect::ALL.into_iter().collect(),
            is_recurring: false,
            retry_keys,
        }
    }

    fn block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in headers {
            push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
        }
        block
    }

    #[test]
    fn fuzz_records_with_all_dialects() {
        let mut seeds = vec![
            block(&[("postdate-after", "1h30m"), ("postdate-id", "a-1")]),
            block(&[
                ("postdate-at", "2026-11-21T08:00:00.5Z"),
                ("postdate-to", "a.b"),
            ]),
            block(&[("postdate-op", "cancel"), ("postdate-id", "a")]),
            block(&[("postdate-retry", RETRY)]),
            block(&[("postdate-retry", &format!("v2 mac=- {RETRY} more=1"))]),
            block(&[("postdate-retry", &format!("v3 mac=00ff {CONTROL}"))]),
            block(&[("Nats-Schedule", "@at 2026-11-21T08:00:00Z")]),
            block(&[("x-delay", "5000"), ("scheduler-epoch", "1700000000")]),
        ];
        let page = include_str!("../../docs/migrate/README.md");
        let names = page
            .split('`')
            .filter(|word| !word.contains(char::is_whitespace));
        seeds.extend(names.map(|name| block(&[(name, "1700000000000")])));
        let shard = ShardId::new("r", Partition::new("in", 0));
        let origins = OriginFormat::new("d", &shard);
        let all = [
            rules(RetryKeys::default()),
            rules(RetryKeys::new("key", true)),
        ];
        fuzz(&seeds, |bytes| {
            for rules in &all {
                let record = Record {
                    offset: Offset(43),
                    timestamp: bytes.first().map(|it| Timestamp::from_millis((*it).into())),
                    key: bytes.get(..3),
                    payload: Some(bytes),
                    headers: Headers::from_block(bytes),
                };
                let _ = parse_record(&record, &origins, rules);
            }
        });
    }

    #[test]
    fn fuzz_commit_metadata() {
        let rules = PositionRules::of(&rules(RetryKeys::default()));
        let metadata = CommitMetadata {
            lowest_pending: Offset(7),
            delivered: Progress::START,
            stored: Watermark(8),
            identity: Some(SourceIdentity("c:t".into())),
            end: Some(Offset(9)),
            rules: RulesHistory::default().followed_by(&rules, Offset(3)),
            pause: None,
        };
        let done = Progress::START.to_hex();
        let seeds = [metadata.to_string(), format!("v1 low=1 done={done} id=-")];
        fuzz(&seeds, |bytes| {
            let _ = CommitMetadata::parse(&String::from_utf8_lossy(bytes));
        });
    }

    #[test]
    fn fuzz_markers() {
        let marker = DeliveredMarker {
            delivered: Progress::new(Cursor::START, Watermark(7)),
            identity: SourceIdentity("c:t".into()),
            ledger_pair: Progress::START,
            uncounted: OutcomeCounts::default(),
            uncounted_occurrences: 0,
        };
        fuzz(&[marker.to_string()], |bytes| {
            let _ = DeliveredMarker::parse(&String::from_utf8_lossy(bytes));
        });
    }

    /// Changes the checksum too, so that the content behind it is read.
    fn with_checksum(run: &[u8]) -> Vec<u8> {
        let mut run = run.to_vec();
        if run.len() > 13 {
            let checksum = xxhash_rust::xxh3::xxh3_64(&run[13..]);
            run[5..13].copy_from_slice(&checksum.to_le_bytes());
        }
        run
    }

    #[test]
    fn fuzz_runs() {
        let encoded = |count: u32, payload: usize| {
            let record = vec![0x20; payload];
            let places =
                (0..count).map(|at| Cursor::new(Timestamp::from_millis(9), Offset(at.into())));
            let records = places.map(|place| (place, &record[..]));
            RunEncoder::new().encode(records).1.to_vec()
        };
        let seeds = [encoded(1, 9), encoded(40, 200), encoded(3, 0)];
        fuzz(&seeds, |bytes| {
            for run in [bytes, &with_checksum(bytes)] {
                let slice = Slice {
                    level: Level::Hour,
                    start: 1,
                };
                let _ = decoded_size(run);
                let decoded =
                    RunDecoder::plain().decode(&shard(), RunName::new("1-1-1-0"), slice, run);
                if let Ok(run) = decoded {
                    for index in 0..run.len() {
                        let _ = run.message(index);
                    }
                }
            }
        });
    }

    #[test]
    fn fuzz_stored_messages() {
        let seeds: [&[u8]; 2] = [
            b"\x3d\x04\x01a\x02b\x03pay\x04id-1\x02to\x08\x03\xac\x02\x01o\x01\x09timed_out",
            b"\x12\x00\x00\x02\x09no_target\x03why",
        ];
        fuzz(&seeds, |bytes| {
            let _ = record::decode(bytes);
        });
    }

    #[test]
    fn fuzz_configuration() {
        let seeds = [
            include_str!("../../config/default.toml"),
            include_str!("../../config/kafka.toml"),
            include_str!("../../config/nats.toml"),
            include_str!("../../config/bridge.toml"),
        ];
        fuzz(&seeds, |bytes| {
            let _ = Config::parse_builtin(&String::from_utf8_lossy(bytes));
        });
    }
}
