//! Discovery documents agree with the registry, aggregated or not.

use http::{HeaderValue, header::ACCEPT};

use super::*;
use crate::registry::Registry;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

fn ask(path: &str, accept: &'static str) -> Option<Document> {
    let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
    document(&Registry::default().snapshot(), path, &headers)
}

#[test]
fn aggregated_discovery_is_served_on_request() {
    let core = ask("/api", AGGREGATED).unwrap();
    assert_eq!(core.content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    assert_eq!(core.body["apiVersion"], "apidiscovery.k8s.io/v2");
    let resources = core.body["items"][0]["versions"][0]["resources"].as_array().unwrap();
    let pods = resources.iter().find(|resource| resource["resource"] == "pods").unwrap();
    assert_eq!(pods["scope"], "Namespaced");
    assert_eq!(pods["shortNames"], json!(["po"]));
    let log = pods["subresources"].as_array().unwrap().iter().find(|sub| sub["subresource"] == "log").unwrap();
    assert_eq!(log["verbs"], json!(["get"]));
    let groups = ask("/apis", AGGREGATED).unwrap();
    assert!(groups.body["items"].as_array().unwrap().iter().any(|group| group["metadata"]["name"] == "apps"));
}

#[test]
fn unaggregated_discovery_lists_groups_and_resources() {
    assert_eq!(ask("/api", "application/json").unwrap().body["versions"], json!(["v1"]));
    let groups = ask("/apis", "application/json").unwrap().body;
    assert_eq!(groups["kind"], "APIGroupList");
    assert_eq!(groups["groups"][0]["preferredVersion"], groups["groups"][0]["versions"][0]);
    assert_eq!(ask("/apis/apps", "application/json").unwrap().body["kind"], "APIGroup");
    let list = ask("/api/v1/", "*/*").unwrap().body;
    assert_eq!(list["groupVersion"], "v1");
    let token =
        list["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "serviceaccounts/token").unwrap();
    assert_eq!((&token["group"], &token["kind"]), (&json!("authentication.k8s.io"), &json!("TokenRequest")));
}

#[test]
fn paths_that_are_not_served_have_no_document() {
    for path in ["/api/v2", "/apis/nothing", "/apis/apps/v9", "/apis//v1", "/elsewhere", "/api/v1/x/y"] {
        assert_eq!(ask(path, "application/json"), None, "{path}");
    }
}
