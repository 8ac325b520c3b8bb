//! Pods of an ordinary user: the same computers, and events that say what is weaker about them.

use serde_json::json;

use crate::bench::{Bench, is_root, plain, shell};
use crate::plain_user::{self, Ids, World, has_uidmap, is_plain_user};

/// Ids that no other test has.
const SOME: Ids = Ids::From(2_030_000_000, 65_536);

#[test]
fn a_plain_users_pods_say_what_is_weaker() {
    if is_root() {
        plain_user::run(Ids::None, &["rootless::events", "rootless::whole"], World::Hosts);
    }
}

#[test]
fn a_plain_users_pods_are_whole_computers_with_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(SOME, &["rootless::whole"], World::Hosts);
    }
}

mod events {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn limits_that_are_not_held_and_ids_that_are_shared_are_told() {
        if !is_plain_user() {
            return;
        }
        let bench = Bench::open().await;
        let mut container = shell("sleep 1000");
        container["resources"] = json!({"limits": {"memory": "64Mi"}});
        bench.create("p", plain(), json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
        bench.until_ready("p").await;
        assert!(bench.until_event("LimitNotEnforced").await.contains("memory"));
        assert!(bench.until_event("SharedUid").await.contains("subuid"));
        bench.delete("p").await;
        bench.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn with_strict_limits_the_pod_is_refused_with_the_reason() {
        if !is_plain_user() {
            return;
        }
        let bench = Bench::open_with(|config| config.strict_limits = true).await;
        let mut container = shell("sleep 1000");
        container["resources"] = json!({"limits": {"memory": "64Mi"}});
        bench.create("p", plain(), json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
        let refused = bench.until_phase("p", "Failed").await.status.unwrap();
        let why = refused.message.unwrap_or_default();
        assert!(why.contains("memory") && why.contains("strict limits"), "{why}");
        bench.delete("p").await;
        bench.close().await;
    }
}

mod whole {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::api::{Api, PostParams};

    /// What the node writes for a Pod can be read in it under whatever ids it has, and what it writes is kept.
    #[tokio::test(flavor = "multi_thread")]
    async fn daemon_files_secrets_and_messages_work() {
        if !is_plain_user() {
            return;
        }
        let bench = Bench::open().await;
        let secrets: Api<Secret> = Api::namespaced(bench.client.clone(), "default");
        let maps: Api<ConfigMap> = Api::namespaced(bench.client.clone(), "default");
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"key": "hidden"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let map = json!({"metadata": {"name": "m"}, "data": {"key": "shown"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let script = "cat /s/key /m/key; echo; echo mine > /e/file && cat /e/file; id -u; echo last words > /dev/termination-log; exit 4";
        let mut container = shell(script);
        container["volumeMounts"] = json!([{"name": "s", "mountPath": "/s"}, {"name": "m", "mountPath": "/m"}, {"name": "e", "mountPath": "/e"}]);
        let spec = json!({"containers": [container], "restartPolicy": "Never", "volumes": [
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "m", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}}]});
        bench.create("p", plain(), spec).await;
        let ended = bench.until_phase("p", "Failed").await;
        let end = crate::bench::terminated(&ended);
        assert_eq!((end.exit_code, end.message.as_deref()), (4, Some("last words\n")));
        let log = bench.logs("p", "main", false, Default::default()).await;
        assert_eq!(log, "hiddenshown\nmine\n1000\n");
        bench.delete("p").await;
        // With the daemon as its first process, which is asked from inside: the Pod's address leads nowhere out here.
        let probe = json!({"httpGet": {"port": 8888, "path": "/"}, "periodSeconds": 1});
        let spec = json!({"containers": [{"name": "main", "image": "host", "readinessProbe": probe}],
            "terminationGracePeriodSeconds": 0});
        bench.create("d", json!({}), spec).await;
        bench.until_ready("d").await;
        assert_eq!(bench.output("d", "main", &["sh", "-c", "echo x > ~/x; cat ~/x"]).await, "x\n");
        bench.delete("d").await;
        bench.close().await;
    }
}
