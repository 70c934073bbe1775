//! Runs the programs of `docs/clients` against the service, and compares the recipes in
//! `docs/recipes` with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::env::{Kafka, Postdate, Redis, servers};

/// Languages of code blocks, and the programs that the blocks are taken from.
const PROGRAMS: [(&str, &str); 4] = [
    ("python", "recipes.py"),
    ("java", "Recipes.java"),
    ("go", "go/recipes/main.go"),
    ("js", "node/recipes.js"),
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn script(name: &str) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/env");
    Command::new(folder.join(name))
}

fn python(program: &str) -> Command {
    let mut python = Command::new("python3");
    python
        .arg(docs().join("clients").join(program))
        .env("PYTHONPATH", servers().join("clients/python"));
    python
}

fn java(program: &str) -> Command {
    let mut java = Command::new("java");
    java.arg("-cp")
        .arg(servers().join("kafka/lib/*"))
        .arg(docs().join("clients").join(program));
    java
}

fn go(package: &str) -> Command {
    let mut go = script("go.sh");
    go.args(["run", package])
        .current_dir(docs().join("clients/go"));
    go
}

fn node(program: &str) -> Command {
    // Node.js looks for packages beside the program.
    let folder = servers().join("clients/node");
    let source = docs().join("clients/node").join(program);
    std::fs::copy(source, folder.join(program)).expect("`make servers` has made the folder");
    let mut node = script("node.sh");
    node.args(["node", program]).current_dir(folder);
    node
}

/// Uses the example configuration unchanged, except for the server addresses and the answers.
#[test]
fn the_clients_of_all_languages_receive_their_message_and_run_every_recipe() {
    let (kafka, store) = (Kafka::start(), Redis::start());
    let topics = [
        ("orders.delayed", 4),
        ("orders", 4),
        ("orders.dead", 1),
        ("orders.answers", 1),
    ];
    for (topic, partitions) in topics {
        kafka.create_topic(topic, partitions, &[]);
    }
    // The file ends with the table of the route.
    let file = include_str!("../config/kafka.toml").to_owned();
    let file = (file + "allow_replies = [\"orders.answers\"]\n")
        .replace("redis://127.0.0.1:6379", &store.url())
        .replace("127.0.0.1:9092", kafka.addr());
    let postdate = Postdate::ready_with(&file);
    // One language at a time, and more seconds than the programs need: the machine may be busy.
    for [first, recipes] in [
        [python("delay.py"), python("recipes.py")],
        [java("Delay.java"), java("Recipes.java")],
        [go("."), go("./recipes")],
        [node("delay.js"), node("recipes.js")],
    ] {
        let started = [
            (first, "arrived after "),
            (recipes, "each recipe has done what it says"),
        ]
        .map(|(mut program, expected)| {
            program
                .args([kafka.addr(), "25"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = program.spawn().unwrap();
            (program, child, expected)
        });
        for (program, child, expected) in started {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains(expected),
                "{program:?}: {said}{}\n{}",
                String::from_utf8_lossy(&output.stderr),
                postdate.logs()
            );
        }
    }
}

/// The lines without indentation: a program may indent a block more than a page does.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("\n")
}

/// The fenced blocks of a page, with their languages.
fn blocks(page: &str) -> Vec<(&str, String)> {
    // Every second part is inside a block.
    let inside = page.split("```").skip(1).step_by(2);
    inside
        .filter_map(|block| block.split_once('\n'))
        .map(|(language, code)| (language, trimmed(code.trim_end())))
        .collect()
}

#[test]
fn each_block_of_code_in_a_recipe_is_a_part_of_a_program() {
    let programs = PROGRAMS.map(|(language, file)| {
        let path = docs().join("clients").join(file);
        (
            language,
            file,
            trimmed(&std::fs::read_to_string(path).unwrap()),
        )
    });
    let mut compared = 0;
    for page in std::fs::read_dir(docs().join("recipes")).unwrap() {
        let path = page.unwrap().path();
        for (language, block) in blocks(&std::fs::read_to_string(&path).unwrap()) {
            let of_language = programs.iter().find(|(name, ..)| *name == language);
            let (_, file, program) = of_language
                .unwrap_or_else(|| panic!("{}: no program in {language:?}", path.display()));
            assert!(
                program.contains(&block),
                "{}: this is not a part of docs/clients/{file}:\n{block}",
                path.display()
            );
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} blocks");
}
