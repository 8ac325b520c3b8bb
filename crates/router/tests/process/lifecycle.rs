//! Ports, probes, exit status.

use std::time::{Duration, Instant};

use crate::child::*;

fn bind(flag: &str, port: u16) -> String {
    format!("--{flag}-bind-address=127.0.0.1:{port}")
}

/// D-142, D-167
#[tokio::test]
async fn probes_tell_ready_from_draining_and_metrics_are_served() {
    let (http, probes, metrics) = (free_port(), free_port(), free_port());
    let arguments =
        [bind("http", http), bind("health-probe", probes), bind("metrics", metrics), "--drain-delay=3s".into()];
    let mut router = RouterProcess::start(&arguments.each_ref().map(String::as_str));
    router.wait_ready().await;
    assert_eq!(get(probes, "/healthz").await, Some((200, "{\"status\":\"ok\"}".into())));
    assert_eq!(get(probes, "/readyz").await, Some((200, "ok".into())));
    assert_eq!(get(http, "/healthz").await, Some((200, "{\"status\":\"ok\"}".into())));
    // A page whose own domain resolves to this address must not read metrics; probes may come by any name.
    assert_eq!(get_from(metrics, "evil.example", "/metrics").await.unwrap().0, 421);
    assert_eq!(get_from(probes, "evil.example", "/healthz").await.unwrap().0, 200);
    let (status, text) = get(metrics, "/metrics").await.unwrap();
    assert!(status == 200 && text.contains("sandbox_router_build_info{"), "{text}");
    router.terminate();
    let deadline = Instant::now() + TIMEOUT;
    while get(probes, "/readyz").await != Some((503, "draining".into())) {
        assert!(Instant::now() < deadline, "readiness turns");
    }
    assert_eq!(get(probes, "/healthz").await.map(|(status, _)| status), Some(200));
    assert_eq!(get(http, "/healthz").await.map(|(status, _)| status), Some(200), "it still serves");
    assert_eq!(router.ended().await.code(), Some(0));
}

/// D-143
#[tokio::test]
async fn an_occupied_port_stops_the_start_and_releases_the_others() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (http, taken) = (free_port(), occupied.local_addr().unwrap().port());
    let arguments = [bind("http", http), bind("metrics", taken), "--health-probe-bind-address=".into()];
    let mut router = RouterProcess::start(&arguments.each_ref().map(String::as_str));
    assert_eq!(router.ended().await.code(), Some(1));
    assert!(router.log.lock().contains(&format!("cannot listen on 127.0.0.1:{taken}")), "{}", router.log.lock());
    std::net::TcpListener::bind(local(http)).expect("the other port is free again");
}

/// D-165
#[tokio::test]
async fn mistakes_in_the_configuration_end_with_status_2() {
    for arguments in [&["--proxy-timeout=0s"][..], &["--config=/nonexistent.yaml"], &["--authz-mode=none"]] {
        let mut router = RouterProcess::start(arguments);
        assert_eq!(router.ended().await.code(), Some(2), "{arguments:?}");
    }
}

#[tokio::test]
async fn open_access_is_logged_as_a_warning_and_an_idle_router_stops_at_once() {
    let (http, none) = (bind("http", free_port()), ["--metrics-bind-address=", "--health-probe-bind-address="]);
    let mut router = RouterProcess::start(&[&http, none[0], none[1]]);
    router.wait_ready().await;
    assert!(router.log.lock().contains("Every caller may reach every sandbox"));
    let start = Instant::now();
    router.terminate();
    assert_eq!(router.ended().await.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5));
}
