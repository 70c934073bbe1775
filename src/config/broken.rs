//! Broken configurations, each with the exact text that its author gets to read: `broken.txt`. A case there is its name, what is changed in
//! [`BASE`] or in the environment, and behind `--` what is said of it.
//!
//! | line | change |
//! |---|---|
//! | `+ text` | a line more at the end |
//! | `- old ==> new` | the one text in place of the other, everywhere; `\n` ends a line |
//! | `$ NAME=value` | a variable |

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

/// The configuration's text and the environment that a case makes.
fn broken<'a>(name: &str, changes: &'a str) -> (String, Vec<(&'a str, &'a str)>) {
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
fn every_mistake_is_named_with_its_place_and_its_fix() {
    let cases = include_str!("broken.txt");
    let mut said = String::new();
    for case in format!("\n{cases}").split("\n== ").skip(1) {
        let (head, _) = case.split_once("\n--").unwrap();
        let (name, changes) = head.split_once('\n').unwrap();
        let (text, environment) = broken(name, changes);
        let says = parse(&text, &environment).map_or_else(
            |error| error.to_string(),
            |_| panic!("{name}: nothing is wrong"),
        );
        assert!(!says.contains("hunter"), "{name}: a secret is printed");
        said += &format!("== {head}\n--\n{says}\n");
    }
    // On a difference the whole file is shown as it should be, to be read and put in its place.
    assert!(said.trim() == cases.trim(), "broken.txt should be:\n{said}");
}
