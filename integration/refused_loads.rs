//! Tests that `make bench` refuses a wrong workload file before it starts, with one line and key
//! per mistake.

use crate::asked::Asked;
use crate::env::folder;
use crate::workload::Workload;

/// Parses a workload file with this content, and further words of the command line.
fn asked(file: &str, words: &[&str]) -> Result<Workload, String> {
    let path = folder("workload").join("load.toml");
    std::fs::write(&path, file).unwrap();
    let words = words
        .iter()
        .map(|word| (*word).to_owned())
        .chain([format!("workload={}", path.display())]);
    Asked::from(words).map(|asked| asked.load)
}

/// The refused keys, each with its fix.
fn refused(file: &str) -> Vec<(String, String)> {
    let complaint = asked(file, &[]).expect_err(file);
    let field = |name: &str| -> Vec<String> {
        complaint
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name))
            .map(|rest| rest.trim().to_owned())
            .collect()
    };
    let (keys, fixes) = (field("key:"), field("fix:"));
    assert!(
        complaint.contains("workload") && !complaint.contains("configuration"),
        "{complaint}"
    );
    assert_eq!(keys.len(), fixes.len(), "{complaint}");
    keys.into_iter().zip(fixes).collect()
}

fn assert_refused(file: &str, key: &str, fix: &str) {
    let found = refused(file);
    assert!(
        matches!(&found[..], [(found, said)] if found == key && said.contains(fix)),
        "{file}\n{found:?}"
    );
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_key() {
    assert_refused("coutn = 1000", "coutn", "`count`");
    assert_refused(
        "[message]\npayload_size = \"1KiB\"",
        "message.payload_size",
        "`message.payload`",
    );
    assert_refused("[broker]\nkind = \"nats\"", "broker", "remove it");
    assert_refused("delay = \"1h\"", "delay", "[delay]");
    let both = refused("coutn = 1000\n[deep]\nwaitin = 5");
    assert_eq!(
        both.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>(),
        ["coutn", "deep.waitin"],
        "each thing at once"
    );
}

#[test]
fn an_invalid_value_is_refused_with_the_valid_ones() {
    for value in [
        "0",
        "-5",
        "999",
        "10000000",
        "1.5",
        "\"1000\"",
        "[]",
        "true",
        "9223372036854775807",
    ] {
        assert_refused(&format!("count = {value}"), "count", "from 1000 to 9999999");
    }
    for value in ["0", "-1", "65", "\"4\""] {
        assert_refused(
            &format!("partitions = {value}"),
            "partitions",
            "from 1 to 64",
        );
    }
    for value in [
        "0",
        "-1",
        "\"24B\"",
        "\"901KiB\"",
        "\"1MB\"",
        "191",
        "\"-1KiB\"",
    ] {
        assert_refused(
            &format!("[message]\npayload = {value}"),
            "message.payload",
            "25B",
        );
    }
    for value in ["\"11B\"", "\"64KiB\"", "12"] {
        assert_refused(
            &format!("[message]\nkey = {value}"),
            "message.key",
            "65535B",
        );
    }
    for value in ["-1", "51", "\"a\""] {
        assert_refused(
            &format!("[message]\nnoise_percent = {value}"),
            "message.noise_percent",
            "from 0 to 50",
        );
    }
    for value in [
        "[]",
        "[0]",
        "[-10]",
        "[20, 10]",
        "10",
        "[10, 1000001]",
        "[10.5]",
        "[1,2,3,4,5,6,7,8,9]",
    ] {
        assert_refused(
            &format!("[steady]\nrates = {value}"),
            "steady.rates",
            "rising rates",
        );
    }
    for value in ["\"0s\"", "\"-1s\"", "20", "\"11m\"", "\"20\""] {
        assert_refused(
            &format!("[steady]\nlasts = {value}"),
            "steady.lasts",
            "from 1s to 10m",
        );
    }
    for value in ["0", "-1", "200000001"] {
        assert_refused(
            &format!("[deep]\nwaiting = {value}"),
            "deep.waiting",
            "from 1000 to 200000000",
        );
    }
}

#[test]
fn an_invalid_delay_is_refused() {
    assert_refused(
        "[delay]\nmin = \"2h\"\nmax = \"1h\"",
        "delay.min",
        "at most max",
    );
    assert_refused("[delay]\nmax = \"31d\"", "delay.max", "to 30d");
    assert_refused(
        "[steady.delay]\nmax = \"21s\"",
        "steady.delay.max",
        "to 20s",
    );
    assert_refused(
        "[delay]\ndistribution = \"normal\"",
        "delay.distribution",
        "exponential",
    );
    assert_refused(
        "[delay]\ndistribution = \"exponential\"",
        "delay.mean",
        "give the mean",
    );
    assert_refused("[delay]\nmean = \"1h\"", "delay.mean", "remove it");
}

#[test]
fn headers_and_records_that_the_service_or_a_broker_would_refuse_are_refused() {
    let headers = |count: usize, bytes: usize| {
        let header = |number: usize| format!("h{number} = \"{}\"\n", "x".repeat(bytes));
        format!(
            "[message.headers]\n{}",
            (0..count).map(header).collect::<String>()
        )
    };
    assert!(asked(&headers(990, 1), &["copy"]).is_ok());
    assert_refused(&headers(991, 1), "message.headers", "at most 990");
    assert_refused(&headers(3, 90_000), "message.headers", "at most 990");
    assert_refused(
        "[message.headers]\npostdate-at = \"5\"",
        "message.headers",
        "none beginning with postdate-",
    );
    assert_refused(
        "[message.headers]\na = 5",
        "message.headers",
        "names and texts",
    );
    assert_refused(
        &format!(
            "count = 1000\n[message]\npayload = \"900KiB\"\n{}",
            headers(1, 90_000)
        ),
        "message",
        "at most 1000000 bytes",
    );
}

#[test]
fn a_load_that_would_fill_the_disk_is_refused_for_the_chosen_measurements() {
    let file = "[message]\npayload = \"10KiB\"";
    assert!(asked(file, &[]).is_ok(), "deep is not asked for");
    let complaint = asked(file, &["deep"]).unwrap_err();
    assert!(
        complaint.starts_with("deep.waiting: 10000000 messages of 10"),
        "{complaint}"
    );
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(asked(file, &["deep", "waiting=1000000"]).is_ok());
    let complaint = asked(file, &["copy", "9999999"]).unwrap_err();
    assert!(
        complaint.starts_with("count: 9999999 messages") && complaint.contains("or fewer"),
        "{complaint}"
    );
}

#[test]
fn a_missing_file_and_invalid_toml_are_reported() {
    let complaint = Asked::from(["workload=/nowhere/load.toml".to_owned()].into_iter())
        .err()
        .unwrap();
    assert!(
        complaint.contains("/nowhere/load.toml") && complaint.contains("cannot be read"),
        "{complaint}"
    );
    let complaint = asked("count = \n", &[]).unwrap_err();
    assert!(
        complaint.contains("load.toml, line 1") && complaint.contains("not TOML"),
        "{complaint}"
    );
}

#[test]
fn the_example_workload_is_the_default() {
    let example = include_str!("bench/workload.toml");
    assert_eq!(asked(example, &[]), Ok(Workload::default()));
}
