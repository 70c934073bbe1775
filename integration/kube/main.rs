//! Tests the chart on a real Kubernetes control plane (`make kube`): API server, admission and
//! controllers.
//!
//! The nodes are simulated: pods become ready, but no container runs.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "real servers run in real time, and a test may fail where the service may not"
)]

mod cluster;
#[path = "../env/mod.rs"]
mod env;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use cluster::{Cluster, Namespace, PATIENCE, example_paths};
use env::eventually;

/// Turns off settings that this control plane cannot serve: Prometheus operator resources, and node
/// selectors.
const WITHOUT: &str = "monitoring.kind=,monitoring.rules=false,nodeSelector=null";

fn ready(namespace: &Namespace<'_>, deployment: &str) -> u64 {
    let found = namespace.get(&format!(
        "apis/apps/v1/namespaces/{}/deployments/{deployment}",
        namespace.name
    ));
    let (status, wanted) = (&found["status"], &found["spec"]["replicas"]);
    let is_rolled = status["observedGeneration"] == found["metadata"]["generation"]
        && status["updatedReplicas"] == *wanted;
    // Old pods may still exist for a moment, so that `replicas` exceeds the requested number.
    if is_rolled && status["replicas"] == *wanted {
        status["readyReplicas"].as_u64().unwrap_or(0)
    } else {
        0
    }
}

fn until_ready(namespace: &Namespace<'_>, deployment: &str, count: u64) {
    eventually(
        &format!("{deployment} has {count} ready pods"),
        PATIENCE,
        || (ready(namespace, deployment) == count).then_some(()),
    );
}

/// The checksum of the configuration in a deployment's pod template. It changes with the
/// configuration.
fn checksum(namespace: &Namespace<'_>, deployment: &str) -> String {
    let found = namespace.get(&format!(
        "apis/apps/v1/namespaces/{}/deployments/{deployment}",
        namespace.name
    ));
    found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        .as_str()
        .expect("a checksum")
        .to_owned()
}

#[test]
fn a_release_is_installed_scaled_upgraded_rolled_back_and_removed() {
    let cluster = Cluster::get();
    let shop = cluster.namespace("shop");
    shop.helm(
        "install",
        "split",
        &[
            WITHOUT,
            "workloads.timer.replicas=1,workloads.ingress.replicas=1",
        ],
    );
    until_ready(&shop, "postdate-timer", 1);
    until_ready(&shop, "postdate-ingress", 1);
    let (_, notes) = shop.tried(&["get", "notes", "postdate"]);
    for words in [
        "as postdate-ingress and postdate-timer in the namespace shop",
        "helm test postdate --namespace shop",
        "deploy/postdate-ingress",
    ] {
        assert!(notes.contains(words), "{notes}");
    }
    let first = checksum(&shop, "postdate-timer");
    for replicas in [4, 2] {
        shop.helm(
            "upgrade",
            "split",
            &[
                WITHOUT,
                &format!("workloads.timer.replicas={replicas},workloads.ingress.replicas=1"),
            ],
        );
        until_ready(&shop, "postdate-timer", replicas);
        assert_eq!(
            checksum(&shop, "postdate-timer"),
            first,
            "scaling starts no process anew"
        );
    }
    shop.helm(
        "upgrade",
        "split",
        &[WITHOUT, "workloads.timer.replicas=2,config.timer.lease=9s"],
    );
    until_ready(&shop, "postdate-timer", 2);
    let config = |shop: &Namespace<'_>| {
        shop.get("api/v1/namespaces/shop/configmaps/postdate")["data"]["postdate.toml"].to_string()
    };
    assert!(
        checksum(&shop, "postdate-timer") != first && config(&shop).contains("9s"),
        "{}",
        config(&shop)
    );
    // Revision 3 is the state before the last upgrade: two timers with the original lease.
    shop.command(&["rollback", "postdate", "3", "--wait", "--timeout", "60s"]);
    until_ready(&shop, "postdate-timer", 2);
    assert!(
        checksum(&shop, "postdate-timer") == first && !config(&shop).contains("9s"),
        "{}",
        config(&shop)
    );
    shop.command(&["uninstall", "postdate", "--wait", "--timeout", "60s"]);
    eventually("nothing is left", PATIENCE, || {
        let left = shop.contents();
        left.is_empty().then_some(()).or_else(|| {
            eprintln!("left: {left:?}");
            None
        })
    });
}

#[test]
fn every_example_is_admitted_under_the_restricted_policy_and_becomes_ready() {
    let cluster = Cluster::get();
    for example in [
        "small", "split", "secure", "hpa", "keda", "embedded", "nats",
    ] {
        let namespace = cluster.namespace(&format!("example-{example}"));
        if example == "embedded" {
            let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "postdate" } });
            namespace.create(
                "api/v1/namespaces/example-embedded/serviceaccounts",
                &account,
            );
            // This cluster has no volume provisioner, so create the volume here.
            let spec = json!({ "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "20Gi" }, "hostPath": { "path": "/none" } });
            let volume = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "fast" }, "spec": spec });
            namespace.create("api/v1/persistentvolumes", &volume);
        }
        namespace.helm(
            "install",
            example,
            &[
                WITHOUT,
                "topologySpread.whenUnsatisfiable=ScheduleAnyway,priorityClassName=",
            ],
        );
        let pods = namespace.list("api/v1", "pods");
        assert!(!pods.is_empty(), "{example}");
        for pod in pods {
            assert_eq!(
                pod["spec"]["automountServiceAccountToken"], false,
                "{example}"
            );
            assert_eq!(pod["spec"]["enableServiceLinks"], false, "{example}");
            assert!(
                pod["spec"]["terminationGracePeriodSeconds"].as_u64() > Some(10),
                "{example}: longer than a stop takes"
            );
            let volumes = pod["spec"]["volumes"].as_array().unwrap();
            assert!(
                volumes
                    .iter()
                    .all(|volume| volume.get("projected").is_none()),
                "no token is mounted: {volumes:?}"
            );
        }
    }
}

#[test]
fn the_restricted_policy_refuses_a_root_pod_and_admits_the_check_pod() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("refused");
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "root" }, "spec": { "containers": [{ "name": "root", "image": "x" }] } });
    let refused = namespace.post("api/v1/namespaces/refused/pods", &pod);
    let reason = refused["message"].as_str().unwrap_or_default();
    assert!(
        refused["code"] == 403 && reason.contains("violates PodSecurity"),
        "{refused}"
    );
    let account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "postdate" } });
    namespace.create("api/v1/namespaces/refused/serviceaccounts", &account);
    for example in ["secure", "split", "embedded"] {
        let path = "api/v1/namespaces/refused/pods?dryRun=All";
        let check = namespace.create_rendered(
            example,
            "templates/tests/check.yaml",
            "priorityClassName=",
            path,
        );
        assert!(
            check["kind"] == "Pod",
            "the pod of `helm test` is admitted: {check}"
        );
    }
}

#[test]
fn a_command_runs_once_as_a_job() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("command");
    // The job uses the release's configuration and service account.
    namespace.helm(
        "install",
        "split",
        &[
            WITHOUT,
            "workloads.timer.replicas=1,workloads.ingress.replicas=1",
        ],
    );
    let command = "nodeSelector=null,command={reset,--route,orders,--topic,orders.delayed}";
    let job = namespace.create_rendered(
        "split",
        "templates/command.yaml",
        command,
        "apis/batch/v1/namespaces/command/jobs",
    );
    assert_eq!(job["kind"], "Job", "{job}");
    eventually("the job has run", PATIENCE, || {
        let status =
            &namespace.get("apis/batch/v1/namespaces/command/jobs/postdate-command")["status"];
        (status["succeeded"] == 1).then_some(())
    });
    let pods = namespace.list("api/v1", "pods");
    let arguments: Vec<_> = pods
        .iter()
        .map(|pod| &pod["spec"]["containers"][0]["args"])
        .collect();
    let reset = json!([
        "reset",
        "--config",
        "/etc/postdate/postdate.toml",
        "--route",
        "orders",
        "--topic",
        "orders.delayed"
    ]);
    assert_eq!(
        arguments.iter().filter(|each| ***each == reset).count(),
        1,
        "{arguments:?}"
    );
}

#[test]
fn a_second_release_in_the_namespace_is_refused() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("twice");
    namespace.helm("install", "small", &[WITHOUT]);
    let (chart, values) = example_paths("small");
    let again = [
        "install",
        "other",
        chart.to_str().unwrap(),
        "--values",
        values.to_str().unwrap(),
    ];
    let (is_done, said) = namespace.tried(&again);
    assert!(
        !is_done
            && said.contains("the namespace twice has the release postdate of this chart already"),
        "{said}"
    );
    // The first release can still be upgraded. A second release fits into another namespace.
    namespace.helm("upgrade", "small", &[WITHOUT]);
    cluster.namespace("elsewhere").command(&again);
}

#[test]
fn the_disruption_budget_allows_one_eviction_at_a_time() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("drained");
    namespace.helm("install", "split", &[WITHOUT, "workloads.timer.replicas=3"]);
    until_ready(&namespace, "postdate-timer", 3);
    let budget = || {
        namespace.get("apis/policy/v1/namespaces/drained/poddisruptionbudgets/postdate-timer")["status"].clone()
    };
    eventually("the budget is reckoned", PATIENCE, || {
        (budget()["disruptionsAllowed"] == 1).then_some(())
    });
    let status = budget();
    assert_eq!(
        (&status["expectedPods"], &status["desiredHealthy"]),
        (&json!(3), &json!(2))
    );
}

#[test]
fn the_horizontal_autoscaler_finds_both_deployments_and_keeps_their_minimum() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("hpa");
    namespace.helm("install", "hpa", &[WITHOUT, "autoscaling.timer.min=3"]);
    // A deployment starts with one replica. Three replicas prove that the autoscaler found it.
    until_ready(&namespace, "postdate-timer", 3);
    let scaler = |name: &str| {
        namespace.get(&format!(
            "apis/autoscaling/v2/namespaces/hpa/horizontalpodautoscalers/postdate-{name}"
        ))
    };
    for (name, metric) in [
        ("timer", "postdate_due_soon_messages"),
        ("ingress", "postdate_ingress_lag_messages"),
    ] {
        let asks = || {
            let conditions = scaler(name)["status"]["conditions"].to_string();
            // Without a metrics adapter the autoscaler gets no values. Its condition still names
            // the metric.
            (conditions.contains("AbleToScale") && conditions.contains(metric)).then_some(())
        };
        eventually(
            &format!("the autoscaler of {name} asks for {metric}"),
            PATIENCE,
            asks,
        );
    }
    // The autoscaler must not undo a scale to zero, which an operator needs to reset a topic.
    let place = "apis/apps/v1/namespaces/hpa/deployments/postdate-timer/scale";
    let mut scale = namespace.get(place);
    scale["spec"]["replicas"] = json!(0);
    namespace.put(place, &scale);
    let rests = || {
        scaler("timer")["status"]["conditions"]
            .to_string()
            .contains("ScalingDisabled")
            .then_some(())
    };
    eventually("the autoscaler rests", PATIENCE, rests);
    assert_eq!(
        namespace.get("apis/apps/v1/namespaces/hpa/deployments/postdate-timer")["spec"]["replicas"],
        0
    );
}

#[test]
fn the_scaled_objects_of_keda_are_stored_unchanged() {
    let cluster = Cluster::get();
    let namespace = cluster.namespace("keda");
    namespace.helm("install", "keda", &[WITHOUT]);
    let objects = namespace.list("apis/keda.sh/v1alpha1", "scaledobjects");
    let triggers: BTreeSet<_> = objects
        .iter()
        .map(|object| object["spec"]["triggers"][0]["type"].as_str().unwrap())
        .collect();
    assert_eq!(triggers, BTreeSet::from(["kafka", "prometheus"]));
    for object in &objects {
        let spec = &object["spec"];
        assert_eq!(spec["pollingInterval"], 15);
        assert_eq!(
            spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
                [0]["value"],
            1
        );
        let metadata = &spec["triggers"][0]["metadata"];
        let wanted = if spec["triggers"][0]["type"] == "kafka" {
            json!({ "bootstrapServers": "kafka:9092", "consumerGroup": "shop.orders", "topic": "orders.delayed", "lagThreshold": "500000" })
        } else {
            json!({ "serverAddress": "http://prometheus.monitoring:9090", "query": "sum(postdate_due_soon_messages{namespace=\"keda\"})", "threshold": "15000000", "ignoreNullValues": "false" })
        };
        assert_eq!(*metadata, wanted);
    }
    // The installed definitions validate objects: they refuse a trigger without a type.
    let mut broken: Value = objects[0].clone();
    broken["metadata"] = json!({ "name": "broken" });
    broken["spec"]["triggers"][0]
        .as_object_mut()
        .unwrap()
        .remove("type");
    let refused = namespace.post(
        "apis/keda.sh/v1alpha1/namespaces/keda/scaledobjects",
        &broken,
    );
    assert!(
        refused["code"] == 422
            && refused["message"]
                .as_str()
                .is_some_and(|text| text.contains("type")),
        "{refused}"
    );
}
