//! Tests of Pods of an ordinary user: they work like those of root, and events report what is enforced less strictly.

use serde_json::json;

use crate::fixture::{Fixture, is_root, plain, shell};
use crate::plain_user::{self, Ids, World, has_uidmap, is_plain_user};

/// Subordinate ids that no other test uses.
const SUBORDINATE: Ids = Ids::From(2_030_000_000, 65_536);

#[test]
fn pods_of_an_ordinary_user_report_what_is_weaker() {
    if is_root() {
        plain_user::run(Ids::None, &["rootless::events", "rootless::whole"], World::Host);
    }
}

#[test]
fn pods_of_an_ordinary_user_work_with_subordinate_ids() {
    if is_root() && has_uidmap() {
        plain_user::run(SUBORDINATE, &["rootless::whole"], World::Host);
    }
}

mod events {
    use super::*;
    use k8s_openapi::api::core::v1::Event;
    use kube::api::{Api, ListParams};

    #[tokio::test(flavor = "multi_thread")]
    async fn unenforced_limits_and_shared_ids_are_reported() {
        if !is_plain_user() {
            return;
        }
        let fixture = Fixture::open().await;
        let mut container = shell("sleep 1000");
        container["resources"] = json!({"limits": {"memory": "64Mi"}});
        fixture.create("p", plain(), json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
        fixture.until_ready("p").await;
        let reported = fixture.until_event("WeakerIsolation").await;
        assert!(reported.contains("LimitNotEnforced: memory") && reported.contains("subuid"), "{reported}");
        let events: Api<Event> = Api::namespaced(fixture.client.clone(), "default");
        let about_pod = events.list(&ListParams::default().fields("involvedObject.name=p,type=Warning")).await.unwrap();
        assert!(about_pod.items.is_empty(), "once per node, not for each Pod: {:?}", about_pod.items);
        fixture.delete("p").await;
        fixture.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn with_strict_limits_the_pod_is_refused_with_the_reason() {
        if !is_plain_user() {
            return;
        }
        let fixture = Fixture::open_with(|config| config.strict_limits = true).await;
        let mut container = shell("sleep 1000");
        container["resources"] = json!({"limits": {"memory": "64Mi"}});
        fixture.create("p", plain(), json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
        let refused = fixture.until_phase("p", "Failed").await.status.unwrap();
        let why = refused.message.unwrap_or_default();
        assert!(why.contains("memory") && why.contains("strict limits"), "{why}");
        fixture.delete("p").await;
        fixture.close().await;
    }
}

mod whole {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::api::{Api, PostParams};

    /// Files that the node writes are readable in the Pod under any id mapping, and what the Pod writes is kept.
    #[tokio::test(flavor = "multi_thread")]
    async fn sandboxd_files_secrets_and_messages_work() {
        if !is_plain_user() {
            return;
        }
        let fixture = Fixture::open().await;
        let secrets: Api<Secret> = Api::namespaced(fixture.client.clone(), "default");
        let maps: Api<ConfigMap> = Api::namespaced(fixture.client.clone(), "default");
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
        fixture.create("p", plain(), spec).await;
        let ended = fixture.until_phase("p", "Failed").await;
        let end = crate::fixture::terminated(&ended);
        assert_eq!((end.exit_code, end.message.as_deref()), (4, Some("last words\n")));
        let log = fixture.logs("p", "main", false, Default::default()).await;
        assert_eq!(log, "hiddenshown\nmine\n1000\n");
        fixture.delete("p").await;
        // With sandboxd as first process, which is probed from inside the Pod: its address is not reachable from the
        // host.
        let probe = json!({"httpGet": {"port": 8888, "path": "/"}, "periodSeconds": 1});
        let spec = json!({"containers": [{"name": "main", "image": "host", "readinessProbe": probe}],
            "terminationGracePeriodSeconds": 0});
        fixture.create("d", json!({}), spec).await;
        fixture.until_ready("d").await;
        assert_eq!(fixture.output("d", "main", &["sh", "-c", "echo x > ~/x; cat ~/x"]).await, "x\n");
        fixture.delete("d").await;
        fixture.close().await;
    }
}
