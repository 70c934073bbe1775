//! Tests Postdate's commands in a cluster.
//!
//! The runbook's command lines match the chart and the program. The pods of the commands match the
//! pods of the service.

use std::collections::BTreeSet;
use std::process::Command;

use super::chart::helm;
use super::{file, output, root, tool};

const RESET: &str = "command={reset,--route,orders,--topic,orders.delayed}";

/// The runbook's section about commands in a cluster.
fn section() -> String {
    let page = file("docs/kubernetes.md");
    let (_, rest) = page
        .split_once("\n## Commands in a cluster\n")
        .expect("a section");
    rest.split("\n## Autoscaling")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The pieces of `text` after each `start`, each up to the first of the `ends`.
fn behind<'t>(text: &'t str, start: &str, ends: &[char]) -> BTreeSet<&'t str> {
    text.split(start)
        .skip(1)
        .map(|rest| rest.split(ends).next().unwrap_or_default())
        .collect()
}

fn rendered(example: &str, template: &str, sets: &[&str]) -> String {
    let sets = sets
        .iter()
        .flat_map(|set| ["--set", set])
        .chain(["--show-only", template]);
    output(&mut helm("template", example, &sets.collect::<Vec<_>>()))
}

/// The lines of the YAML block under `start`, without their indentation. The block ends at the
/// first line that is not deeper.
fn block(template: &str, start: &str) -> Option<Vec<String>> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = template.lines().skip_while(|line| line.trim() != start);
    let indent = depth(lines.next()?);
    let is_inside = |line: &&str| {
        depth(line) > indent || (depth(line) == indent && line.trim_start().starts_with('-'))
    };
    Some(
        lines
            .take_while(is_inside)
            .map(|line| line[indent..].trim_start().to_owned())
            .collect(),
    )
}

#[test]
fn the_program_has_every_command_of_the_runbook() {
    let section = section();
    let in_pods = behind(&section, "/usr/bin/postdate ", &['`'])
        .into_iter()
        .map(|line| line.replace(',', " "));
    let as_jobs = behind(&section, "command={", &['}'])
        .into_iter()
        .map(|words| format!("{} --config", words.replace(',', " ")));
    let lines: Vec<String> = in_pods.chain(as_jobs).collect();
    assert!(
        lines.len() > 5 && lines.iter().any(|line| line.starts_with("reset")),
        "{lines:?}"
    );
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let help = output(Command::new(env!("CARGO_BIN_EXE_postdate")).args([words[0], "--help"]));
        let missing: Vec<_> = words
            .iter()
            .filter(|word| word.starts_with("--") && !help.contains(&format!("{word} ")))
            .collect();
        assert!(
            missing.is_empty(),
            "postdate {line}: {missing:?} is none of\n{help}"
        );
    }
    assert!(
        file("deploy/image/build.sh").contains("$root/usr/bin/postdate"),
        "where the image has the program"
    );
}

#[test]
fn the_names_in_the_runbook_match_the_chart() {
    let (section, chart) = (section(), output(&mut helm("template", "keda", &[])));
    let ends = [' ', '`', '.', ','];
    let deployments = behind(&section, "deploy/postdate-", &ends);
    assert_eq!(deployments, BTreeSet::from(["ingress", "timer"]));
    for name in deployments {
        for kind in ["Deployment", "ScaledObject"] {
            assert!(
                chart.contains(&format!(
                    "kind: {kind}\nmetadata:\n  name: postdate-{name}\n"
                )),
                "{kind} {name}"
            );
        }
    }
    assert!(rendered("small", "templates/deployment.yaml", &[]).contains("name: postdate-both\n"));
    let job = rendered("keda", "templates/command.yaml", &[RESET]);
    assert!(
        section.contains(RESET) && job.contains("name: postdate-command\n"),
        "{job}"
    );
    assert_eq!(
        behind(&section, "job/", &['\n', ' ']),
        BTreeSet::from(["postdate-command"])
    );
    assert!(
        section.contains("app.kubernetes.io/instance=postdate")
            && chart.contains("app.kubernetes.io/instance: postdate\n")
    );
    assert!(
        section.contains("get secret postdate-admin")
            && file("deploy/helm/values/keda.yaml").contains("secretName: postdate-admin")
    );
    // The same chart under another release name.
    let mut other = tool("helm");
    other.args([
        "template",
        "timers",
        "deploy/helm/postdate",
        "--kube-version",
        "1.36.0",
        "--values",
        "deploy/helm/values/split.yaml",
    ]);
    let other = output(other.current_dir(root()));
    assert!(
        other.contains("name: timers-postdate-timer\n") && section.contains("`timers-postdate`"),
        "{other}"
    );
}

#[test]
fn pods_of_commands_match_the_pods_of_the_service() {
    let pods = [
        ("templates/tests/check.yaml", "check"),
        ("templates/command.yaml", "reset"),
    ];
    for (example, more) in [
        ("split", ""),
        ("secure", ""),
        ("embedded", "env.POSTDATE_LOG__LEVEL=debug"),
        ("nats", ""),
    ] {
        let sets: Vec<_> = [RESET, more]
            .into_iter()
            .filter(|set| !set.is_empty())
            .collect();
        let service = rendered(example, "templates/deployment.yaml", &sets);
        for (template, command) in pods {
            let pod = rendered(example, template, &sets);
            for part in [
                "securityContext:",
                "imagePullSecrets:",
                "nodeSelector:",
                "tolerations:",
                "volumes:",
                "volumeMounts:",
            ] {
                assert_eq!(
                    block(&pod, part),
                    block(&service, part),
                    "{example} {command} {part}"
                );
            }
            for line in [
                "image: ",
                "serviceAccountName: ",
                "automountServiceAccountToken: ",
                "enableServiceLinks: ",
                "priorityClassName: ",
            ] {
                let of = |text: &str| {
                    text.lines()
                        .find_map(|each| each.trim().strip_prefix(line))
                        .map(str::to_owned)
                };
                assert_eq!(of(&pod), of(&service), "{example} {command} {line}");
            }
            let of_service = block(&service, "env:")
                .unwrap_or_default()
                .join("\n")
                .replace("- name: POSTDATE_ROLES\n", "");
            let of_pod = block(&pod, "env:").unwrap_or_default();
            assert!(
                of_pod.iter().all(|line| of_service.contains(line)),
                "{example} {command}: {of_pod:?}"
            );
            assert_eq!(
                of_pod.is_empty(),
                !["split", "embedded"].contains(&example),
                "{example}"
            );
            assert!(
                pod.contains(&format!(
                    "args: [\"{command}\",\"--config\",\"/etc/postdate/postdate.toml\""
                )),
                "{pod}"
            );
        }
    }
    let affinity =
        |template: &str, example: &str| block(&rendered(example, template, &[RESET]), "affinity:");
    let (check, job, service) = (pods[0].0, pods[1].0, "templates/deployment.yaml");
    assert!(affinity(service, "split").is_some());
    assert_eq!(
        (affinity(check, "split"), affinity(job, "split")),
        (affinity(service, "split"), affinity(service, "split"))
    );
    // The volume of the embedded store is bound to one node, so the check runs on the service's
    // node. A job runs after the service has stopped and needs no affinity.
    let beside = affinity(check, "embedded").expect("a node").join("\n");
    assert!(
        beside.contains("podAffinity") && beside.contains("component: both"),
        "{beside}"
    );
    assert_eq!(affinity(job, "embedded"), None);
}
