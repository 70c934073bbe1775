//! Compares the error texts of invalid configurations with `error_texts.txt`.
//!
//! A case there has a name, changes of [`BASE`] or of the environment, and after `--` the expected
//! text without its first line.
//!
//! | line | change |
//! |---|---|
//! | `+ text` | appends a line |
//! | `- old ==> new` | replaces every `old`; `\n` ends a line |
//! | `$ NAME=value` | sets a variable |

use super::tests::parse;

const BASE: &str = r#"deployment = "test"

[store.redis]
url = "redis://127.0.0.1:6379"

[kafka.main]
brokers = ["127.0.0.1:9092"]

[route.orders]
source = { kafka = "main", topics = ["orders.delayed"] }
target = { kafka = "main", topic = "orders" }
dead_letter = { kafka = "main", topic = "orders.dead" }
"#;

/// Returns the text and the environment of a case.
fn apply<'a>(name: &str, changes: &'a str) -> (String, Vec<(&'a str, &'a str)>) {
    let (mut text, mut environment) = (BASE.to_owned(), Vec::new());
    for change in changes.lines() {
        let (kind, change) = change.split_at(2);
        match kind {
            "+ " => text += &format!("{change}\n"),
            "$ " => environment.push(change.split_once('=').unwrap()),
            "- " => {
                let (old, new) = change.split_once(" ==> ").unwrap();
                let whole = text.clone();
                let old = match old {
                    "<everything>" => &whole,
                    "<the route>" => &whole[whole.find("[route").unwrap()..],
                    old => old,
                };
                assert!(text.contains(old), "{name}: {old:?} is not in the text");
                text = text.replace(old, &new.replace("\\n", "\n"));
            }
            _ => panic!("{name}: a change cannot begin with {kind:?}"),
        }
    }
    (text, environment)
}

#[test]
fn every_problem_has_its_key_place_cause_and_fix() {
    // Read here, so that a changed text needs no new build.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/error_texts.txt");
    let cases = std::fs::read_to_string(file).unwrap();
    let mut actual = String::new();
    for case in format!("\n{cases}").split("\n== ").skip(1) {
        let (head, _) = case.split_once("\n--").unwrap();
        let (name, changes) = head.split_once('\n').unwrap();
        let (text, environment) = apply(name, changes);
        let error = parse(&text, &environment).map_or_else(
            |error| error.to_string(),
            |_| panic!("{name}: the configuration is valid"),
        );
        assert!(!error.contains("hunter"), "{name}: a secret is printed");
        let (first, problems) = error.split_once("\n\n").unwrap();
        let wanted = match problems.trim().split("\n\n").count() {
            1 => "there is a problem with the configuration".to_owned(),
            count => format!("there are {count} problems with the configuration"),
        };
        assert_eq!(first, wanted, "{name}");
        actual += &format!("== {head}\n--\n{problems}\n");
    }
    // A failure prints the whole expected file, to be reviewed and saved.
    assert!(
        actual.trim() == cases.trim(),
        "error_texts.txt should be:\n{actual}"
    );
}
