//! A headless Chromium, driven over the WebDriver protocol by Debian's chromedriver.

use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Timeout for one command: a page loads within it, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One browser window with a profile of its own, closed at the end.
pub(super) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    runtime: tokio::runtime::Runtime,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None`, with a message, where Debian's packages chromium and chromium-driver are not installed.
    pub(super) fn start() -> Option<Self> {
        let mut driver = match Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn() {
            Ok(driver) => driver,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "chromedriver: {error}; run scripts/test-packages");
                eprintln!("SKIPPED: no chromedriver ({error}); see scripts/test-packages");
                return None;
            }
        };
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let started = lines.map_while(Result::ok).find(|line| line.contains("started successfully on port"));
        let port = started.unwrap().trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut browser = Self { driver, port, session: String::new(), runtime, _profile: profile };
        let arguments = [
            "--headless=new".to_owned(),
            // Chromium refuses to isolate its renderers as root, which tests are.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            // The name of an attacker, which resolves to this machine.
            "--host-resolver-rules=MAP rebinding.example 127.0.0.1,MAP *.rebinding.example 127.0.0.1".to_owned(),
            format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let options = json!({ "args": arguments });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        browser.session = browser.send("POST", "/session", &wanted)["sessionId"].as_str().unwrap().to_owned();
        browser.command("timeouts", &json!({ "script": 30_000, "pageLoad": 30_000 }));
        Some(browser)
    }

    pub(super) fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    pub(super) fn url(&self) -> String {
        self.read("url").as_str().unwrap().to_owned()
    }

    pub(super) fn title(&self) -> String {
        self.read("title").as_str().unwrap().to_owned()
    }

    /// Runs the body of an asynchronous function in the page and returns its result.
    pub(super) fn run(&self, script: &str, arguments: &[&str]) -> Value {
        let script = format!(
            "const [done, args] = [arguments[arguments.length - 1], [...arguments]];\
             (async () => {{ {script} }})().then(done, error => done('failed: ' + error));"
        );
        self.command("execute/async", &json!({ "script": script, "args": arguments }))
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}/{name}", self.session), body)
    }

    fn read(&self, name: &str) -> Value {
        self.send("GET", &format!("/session/{}/{name}", self.session), &Value::Null)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let exchange = async {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
            let mut connection = crate::tenants::connect(stream).await;
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let request = Request::builder().method(method).uri(path).header("host", "localhost");
            let request = request.header("content-type", "application/json");
            let request = request.body(Full::from(body)).unwrap();
            let response = connection.send_request(request).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, exchange).await });
        let answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {}", answer["value"]);
        answer["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        } else if !self.session.is_empty() {
            // Ends the browser as well: the driver closes it when its own shutdown is asked for.
            let shutdown = format!("http://127.0.0.1:{}/shutdown", self.port);
            let _ = Command::new("curl").args(["-s", "-m", "5", &shutdown]).stdout(Stdio::null()).status();
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
