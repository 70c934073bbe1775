//! Tests the scan and the redrive on brokers in memory: with kills, failures and rivals, each dead letter is sent once.

use super::scan::{Bounds, Scan, ScannedRoute};
use super::sender::{Client, Sender};
use crate::admin::dead_letters::{
    DeadLetterFilter, DeadLettersReport, DeadLettersRequest, RedriveOptions, RedriveReport,
};
use crate::broker::{Error, RecordBatch, StoredRecords};
use crate::clock::WallClock;
use crate::limit::DEAD_LETTER_CODES_MAX;
use crate::model::{
    Dialects, Headers, Naming, Offset, Partition, RetryKeys, RoutingRules, TargetRules,
    WithoutDelay, header,
};
use crate::testing::broker::memory::MemoryCluster;
use crate::testing::fault_injection::{InjectedFault, with};
use anyhow::Result;
use async_trait::async_trait;
use futures_util::poll;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const SOURCE: &str = "orders.delayed";
const DEAD: &str = "orders.dead";
const GROUP: &str = "prod.orders.redrive";
const ALL: Bounds = Bounds {
    records: u64::MAX,
    until: None,
};

/// Reads three records at a time.
struct MemoryRecords {
    cluster: MemoryCluster,
    /// Redrives everything before the first read.
    has_rival: bool,
}

#[async_trait(?Send)]
impl StoredRecords for MemoryRecords {
    async fn topic_of(&mut self, destination: &str) -> Result<Option<String>, Error> {
        Ok(Some(destination.to_owned()))
    }

    async fn read(
        &mut self,
        partition: &Partition,
        from: Offset,
        end: Offset,
    ) -> Result<(RecordBatch, Offset), Error> {
        if std::mem::take(&mut self.has_rival) {
            let request = everything();
            let rival = Box::pin(redrive(&self.cluster, &request, false));
            rival.await.1.expect("the rival succeeds");
        }
        let mut batch = RecordBatch::new(partition.clone(), 0);
        let mut next = from;
        let found = self.cluster.records(&partition.topic).into_iter();
        let found = found.filter(|it| it.partition == partition.index);
        for record in found.filter(|it| (from..end).contains(&it.offset)).take(3) {
            let headers = record.headers.iter();
            batch.push(
                record.offset,
                Some(record.at),
                record.key.as_deref(),
                record.payload.as_deref(),
                headers.map(|(name, value)| (name.as_slice(), value.as_deref())),
            );
            next = Offset(record.offset.0 + 1);
        }
        let is_end = batch.len() == 0;
        Ok((batch, if is_end { end } else { next }))
    }
}

fn cluster() -> MemoryCluster {
    let cluster = MemoryCluster::new(Rc::new(WallClock));
    cluster.create_topic(SOURCE, 2);
    cluster.create_topic(DEAD, 2);
    cluster
}

fn bury(
    cluster: &MemoryCluster,
    number: u64,
    code: &str,
    more: &[(&str, &str)],
    payload: Option<&[u8]>,
) {
    let origin = format!("prod/orders/{SOURCE}/{}/{number}", number % 2);
    let own = [
        ("postdate-origin", origin.as_str()),
        ("postdate-error", code),
    ];
    let mut block = Vec::new();
    for (name, value) in own.iter().chain(more) {
        header::push_header(&mut block, name.as_bytes(), Some(value.as_bytes()));
    }
    let partition = Partition::new(DEAD, (number / 3 % 2) as i32);
    let key = format!("k{number}");
    let record = (Some(key.as_bytes()), payload);
    cluster.produce(&partition, None, record, Headers::from_block(&block).iter());
}

fn bury_some(cluster: &MemoryCluster, count: u64) {
    for number in 0..count {
        let code = if number % 4 == 0 {
            "timed_out"
        } else {
            "unknown_target"
        };
        bury(
            cluster,
            number,
            code,
            &[("postdate-after", "1h"), ("postdate-due", "1700000000000")],
            Some(b"p"),
        );
    }
}

fn everything() -> DeadLettersRequest {
    DeadLettersRequest {
        route: "orders".to_owned(),
        filter: DeadLetterFilter::default(),
        after: None,
        redrive: Some(RedriveOptions {
            dry_run: false,
            limit: u64::MAX,
            rate: 2,
        }),
    }
}

fn only(code: &str) -> DeadLettersRequest {
    let mut request = everything();
    request.filter.code = Some(code.to_owned());
    request
}

async fn redrive(
    cluster: &MemoryCluster,
    request: &DeadLettersRequest,
    has_rival: bool,
) -> (DeadLettersReport, Result<()>) {
    redrive_within(cluster, request, has_rival, ALL).await
}

async fn redrive_within(
    cluster: &MemoryCluster,
    request: &DeadLettersRequest,
    has_rival: bool,
    bounds: Bounds,
) -> (DeadLettersReport, Result<()>) {
    let rules = RoutingRules {
        targets: TargetRules::new(
            Naming::Topic,
            Some("orders"),
            Vec::<String>::new(),
            Vec::<String>::new(),
        ),
        replies: None,
        max_delay: Duration::from_secs(3_600),
        max_retry_wait: Duration::from_secs(1),
        without_delay: WithoutDelay::DeadLetter,
        on_duplicate: crate::model::OnDuplicate::Replace,
        change_by_origin: false,
        dialects: Dialects::default(),
        is_recurring: false,
        retry_keys: RetryKeys::default(),
    };
    let topics = [SOURCE.to_owned()];
    let client = Client::Transactions {
        producers: Box::new(cluster.transactional_producers()),
        number: 0,
    };
    let sends = request.redrive.is_some_and(|it| !it.dry_run);
    let mut sender = sends.then(|| Sender::new(client, GROUP, &topics));
    let mut report = DeadLettersReport {
        redrive: request.redrive.map(|redrive| RedriveReport {
            dry_run: redrive.dry_run,
            redriven: 0,
        }),
        ..DeadLettersReport::default()
    };
    let scan = Scan {
        route: ScannedRoute {
            deployment: "prod",
            name: "orders",
            rules: &rules,
            source_topics: &topics,
            group: GROUP,
        },
        request,
        bounds,
        clock: &WallClock,
        records: &mut MemoryRecords {
            cluster: cluster.clone(),
            has_rival,
        },
        positions: &mut cluster.catalog(),
        sender: sender.as_mut(),
        report: &mut report,
        on_progress: &mut |_| {},
    };
    let scanned = scan.run(DEAD).await;
    (report, scanned)
}

/// How often each first origin is in the source.
fn sent(cluster: &MemoryCluster) -> BTreeMap<String, usize> {
    let mut sent = BTreeMap::new();
    for record in cluster.records(SOURCE) {
        let mut headers = record.headers.into_iter();
        let (_, origin) = headers
            .find(|(name, _)| name == b"postdate-first-origin")
            .expect("every copy names its origin");
        let origin = String::from_utf8(origin.unwrap()).unwrap();
        let place = origin
            .strip_prefix(&format!("prod/orders/{SOURCE}/"))
            .unwrap();
        assert!(place.starts_with(&record.partition.to_string()), "{origin}");
        *sent.entry(origin).or_default() += 1;
    }
    sent
}

fn assert_each_once(cluster: &MemoryCluster, count: usize) {
    let sent = sent(cluster);
    assert!(
        sent.len() == count && sent.values().all(|times| *times == 1),
        "{sent:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_listed_by_code_until_they_are_redriven() {
    let cluster = cluster();
    bury_some(&cluster, 9);
    bury(
        &cluster,
        9,
        "too_large",
        &[("postdate-error-detail", "x; sent by reference: its")],
        None,
    );
    bury(&cluster, 10, "missing_due", &[], Some(b"p"));
    let other = [
        ("postdate-origin", "prod/mail/mail.delayed/0/1"),
        ("postdate-error", "overdue"),
    ];
    let other = other.map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    cluster.produce(&Partition::new(DEAD, 0), None, (None, Some(b"p")), other);
    let list = DeadLettersRequest {
        redrive: None,
        ..everything()
    };
    let (report, listed) = redrive(&cluster, &list, false).await;
    listed.unwrap();
    let counts = |report: &DeadLettersReport| -> BTreeMap<String, [u64; 3]> {
        let codes = report.codes.iter();
        codes
            .map(|it| (it.code.clone(), [it.count, it.by_reference, it.refused]))
            .collect()
    };
    let expected = [
        ("missing_due", [1, 0, 1]),
        ("timed_out", [3, 0, 0]),
        ("too_large", [1, 1, 0]),
        ("unknown_target", [6, 0, 0]),
    ];
    let expected: BTreeMap<String, [u64; 3]> =
        expected.map(|(code, it)| (code.to_owned(), it)).into();
    assert_eq!(counts(&report), expected);
    assert_eq!((report.scanned, report.more), (12, false));
    let group = report
        .codes
        .iter()
        .find(|it| it.code == "unknown_target")
        .unwrap();
    assert_eq!(group.samples.len(), 5, "only some are shown");

    let (report, done) = redrive(&cluster, &everything(), false).await;
    done.unwrap();
    assert_eq!(report.redrive.unwrap().redriven, 9);
    assert_each_once(&cluster, 9);
    let (report, _) = redrive(&cluster, &list, false).await;
    let left: Vec<String> = counts(&report).into_keys().collect();
    assert_eq!(
        left,
        ["missing_due", "too_large"],
        "what cannot be redriven stays"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_and_a_limit_are_respected_and_a_scan_continues() {
    let cluster = cluster();
    bury_some(&cluster, 10);
    let mut request = everything();
    request.redrive = Some(RedriveOptions {
        dry_run: true,
        limit: 4,
        rate: 1,
    });
    let (report, done) = redrive(&cluster, &request, false).await;
    done.unwrap();
    assert!(report.more && report.redrive.unwrap().redriven == 4);
    assert_each_once(&cluster, 0);
    request.redrive = Some(RedriveOptions {
        dry_run: false,
        limit: 4,
        rate: 3,
    });
    redrive(&cluster, &request, false).await.1.unwrap();
    assert_each_once(&cluster, 4);

    let mut list = DeadLettersRequest {
        redrive: None,
        ..everything()
    };
    let bounds = Bounds {
        records: 1,
        until: None,
    };
    let (mut found, mut calls) = (0, 0);
    loop {
        let (report, listed) = redrive_within(&cluster, &list, false, bounds).await;
        listed.unwrap();
        found += report.codes.iter().map(|it| it.count).sum::<u64>();
        calls += 1;
        let Some(after) = report.after.filter(|_| report.more) else {
            break;
        };
        let (partition, offset) = after.split_once('-').unwrap();
        list.after = Some((partition.parse().unwrap(), offset.parse().unwrap()));
        assert!(calls < 20, "{after}");
    }
    assert_eq!(found, 6);
}

#[tokio::test(start_paused = true)]
async fn invented_codes_are_counted_as_one() {
    let cluster = cluster();
    for number in 0..110 {
        bury(&cluster, number, &format!("x{number}"), &[], Some(b"p"));
    }
    let list = DeadLettersRequest {
        redrive: None,
        ..everything()
    };
    let (report, listed) = redrive(&cluster, &list, false).await;
    listed.unwrap();
    let last = report.codes.last().unwrap();
    let found = (report.codes.len(), last.code.as_str(), last.count);
    assert_eq!(found, (DEAD_LETTER_CODES_MAX + 1, "other", 10));
}

#[tokio::test(start_paused = true)]
async fn filters_that_overlap_send_nothing_twice() {
    let cluster = cluster();
    bury_some(&cluster, 20);
    redrive(&cluster, &only("timed_out"), false)
        .await
        .1
        .unwrap();
    assert_each_once(&cluster, 5);
    redrive(&cluster, &only("timed_out"), false)
        .await
        .1
        .unwrap();
    redrive(&cluster, &everything(), false).await.1.unwrap();
    redrive(&cluster, &everything(), false).await.1.unwrap();
    assert_each_once(&cluster, 20);
    for index in 0..2 {
        let (offset, position) = cluster
            .committed_offset(GROUP, &Partition::new(DEAD, index))
            .unwrap();
        assert!(
            position.ends_with(&format!("done={offset}")),
            "no gap is left: {position}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_redrive_loses_and_doubles_nothing_wherever_it_is_killed() {
    for steps in 0..60 {
        let cluster = cluster();
        bury_some(&cluster, 12);
        let request = everything();
        {
            let mut killed = pin!(redrive(&cluster, &request, false));
            for _ in 0..steps {
                if poll!(killed.as_mut()).is_ready() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        cluster.drop_sends_of_dead_producers();
        redrive(&cluster, &request, false).await.1.unwrap();
        assert_each_once(&cluster, 12);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_redrive_can_be_repeated() {
    let cluster = cluster();
    bury_some(&cluster, 12);
    cluster.limit_record_size(SOURCE, Some(10));
    let (_, failed) = redrive(&cluster, &everything(), false).await;
    assert!(failed.unwrap_err().to_string().contains("does not take"));
    cluster.limit_record_size(SOURCE, None);
    redrive(&cluster, &everything(), false).await.1.unwrap();
    assert_each_once(&cluster, 12);
}

/// Two redrives at the same time. The second one reads the old position before the first one ends.
fn race(faults: &[InjectedFault]) -> MemoryCluster {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let cluster = cluster();
    bury_some(&cluster, 12);
    with(faults.iter().copied(), || {
        // The redrive that lost the race may end with an error.
        let _ = runtime.block_on(redrive(&cluster, &everything(), true)).1;
        let _ = runtime.block_on(redrive(&cluster, &everything(), false)).1;
    });
    cluster
}

#[test]
fn two_redrives_at_the_same_time_send_nothing_twice_and_the_faults_are_caught() {
    assert_each_once(&race(&[]), 12);
    for fault in [
        InjectedFault::RedriveByOldPosition,
        InjectedFault::RedriveWithoutPosition,
    ] {
        let sent = sent(&race(&[fault]));
        assert!(sent.values().any(|times| *times > 1), "{fault:?} is caught");
    }
}
