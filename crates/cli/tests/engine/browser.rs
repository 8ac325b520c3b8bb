//! Links in a real browser: what pages of sandboxes need, and what pages of other sandboxes must not get.

mod driver;

use crate::fixture::{Engine, eventually};
use driver::Browser;
use serde_json::Value;

const SERVER: &str = include_str!("browser/server.py");

/// A sandbox whose program serves pages on port 3000.
fn serve(engine: &Engine, name: &str) {
    engine.ok(&["create", name, "--", "python3", "-c", SERVER, "3000"]);
}

fn link(engine: &Engine, words: &[&str]) -> String {
    engine.ok(&[&["url"], words].concat()).trim().to_owned()
}

fn token(link: &str) -> &str {
    link.split_once("agent-sandbox-token=").unwrap().1
}

fn origin(link: &str) -> &str {
    link.split_once("/?").unwrap().0
}

/// Requests that the sandbox's program has got, as the page itself sees them.
fn seen(browser: &Browser) -> Vec<Value> {
    let seen = browser.run("return await (await fetch('/seen')).json()", &[]);
    seen.as_array().unwrap().clone()
}

const ECHO: &str = "const socket = new WebSocket(args[0].replace('http', 'ws') + '/ws');
    return await new Promise(done => {
        socket.onopen = () => socket.send('hello');
        socket.onmessage = event => { socket.close(); done(event.data) };
        socket.onerror = () => done('refused');
    })";

#[test]
fn a_link_serves_pages_web_sockets_and_events_and_leaves_no_token() {
    let (Some(engine), Some(browser)) = (Engine::start(), Browser::start()) else { return };
    serve(&engine, "web");
    let link = link(&engine, &["web", "3000"]);
    browser.open(&link);
    assert_eq!((browser.title().as_str(), browser.url()), ("page of the sandbox", format!("{}/", origin(&link))));
    let loaded = "await new Promise(done => document.readyState == 'complete' ? done() : onload = done);
        return [[...document.images].filter(image => image.naturalWidth == 1).length, window.secret, document.cookie]";
    assert_eq!(browser.run(loaded, &[]), serde_json::json!([40, "of this sandbox", ""]));
    assert_eq!(browser.run(ECHO, &[origin(&link)]), "hello");
    let events = "const source = new EventSource('/events'), got = [];
        return await new Promise(done => source.onmessage = event => {
            got.push(event.data);
            if (got.length == 3) { source.close(); done(got.join()) }
        })";
    assert_eq!(browser.run(events, &[]), "0,1,2");
    let post = "return await (await fetch('/save', {method: 'POST', body: 'text'})).text()";
    assert_eq!(browser.run(post, &[]), "posted:text");
    let seen = seen(&browser);
    assert!(seen.len() > 40, "{seen:?}");
    for request in &seen {
        assert!(!request.to_string().contains(token(&link)), "{request}");
        assert!(request["headers"]["Cookie"].is_null() && request["headers"]["Authorization"].is_null(), "{request}");
    }
    let history = "return performance.getEntries().map(entry => entry.name).join()";
    assert!(!browser.run(history, &[]).to_string().contains(token(&link)));
}

#[test]
fn a_page_of_one_sandbox_cannot_use_the_session_of_another() {
    let (Some(engine), Some(browser)) = (Engine::start(), Browser::start()) else { return };
    serve(&engine, "web");
    serve(&engine, "evil");
    let web = link(&engine, &["web", "3000"]);
    let evil = link(&engine, &["evil", "3000"]);
    browser.open(&web);
    assert_eq!(browser.title(), "page of the sandbox");
    browser.open(&evil);
    let origin = origin(&web);
    let attacks = "
        const outcome = async promise => { try { const got = await promise; return got.type == 'opaque' ? 'opaque' : got.status }
            catch (error) { return 'refused' } };
        const element = (name, source) => new Promise(done => {
            const element = document.createElement(name);
            element.onload = () => done('loaded');
            element.onerror = () => done('refused');
            element.src = args[0] + source;
            document.body.appendChild(element);
        });
        delete window.secret;
        return [
            await outcome(fetch(args[0] + '/from-evil', {credentials: 'include'})),
            await outcome(fetch(args[0] + '/from-evil', {credentials: 'include', mode: 'no-cors'})),
            await outcome(fetch(args[0] + '/from-evil', {credentials: 'include', mode: 'no-cors', method: 'POST', body: 'x'})),
            await element('img', '/from-evil.svg'),
            await element('script', '/from-evil.js'),
            String(window.secret),
        ]";
    let outcome = browser.run(attacks, &[origin]);
    assert_eq!(outcome, serde_json::json!(["refused", "opaque", "opaque", "refused", "refused", "undefined"]));
    assert_eq!(browser.run(ECHO, &[origin]), "refused");
    let frame = "return await new Promise(done => {
            const frame = document.createElement('iframe');
            frame.onload = () => done('shown');
            frame.src = args[0] + '/from-evil-frame';
            document.body.appendChild(frame);
        })";
    browser.run(frame, &[origin]);
    let form = "const form = document.createElement('form');
        form.method = 'POST';
        form.action = args[0] + '/from-evil-form';
        document.body.appendChild(form);
        setTimeout(() => form.submit(), 0);";
    browser.run(form, &[origin]);
    eventually("the form was sent", || browser.url().contains("from-evil-form"));
    browser.open(&web);
    let seen = seen(&browser);
    let reached: Vec<&Value> =
        seen.iter().filter(|request| request["path"].as_str().unwrap().contains("evil")).collect();
    assert!(!seen.is_empty() && reached.is_empty(), "{reached:?}");

    // A name of the attacker that leads here: the page would be of the attacker's origin.
    let port = origin.rsplit(':').next().unwrap();
    browser.open(&format!("http://rebinding.example:{port}/"));
    assert_eq!(browser.title(), "Unknown host name");
    browser.open(&format!("http://3000-web--default.rebinding.example:{port}/"));
    assert_ne!(browser.title(), "page of the sandbox");
}

#[test]
fn a_link_ends_when_it_is_revoked_and_says_why_it_does_not_open() {
    let (Some(engine), Some(browser)) = (Engine::start(), Browser::start()) else { return };
    serve(&engine, "web");
    let read = link(&engine, &["web", "3000", "--read-only"]);
    browser.open(&read);
    assert_eq!(browser.title(), "page of the sandbox");
    assert_eq!(browser.run("return (await fetch('/save', {method: 'POST', body: 'x'})).status", &[]), 403);
    assert_eq!(browser.run(ECHO, &[origin(&read)]), "refused");
    assert!(seen(&browser).iter().all(|request| request["method"] == "GET"));

    let full = link(&engine, &["web", "3000"]);
    browser.open(&full);
    let open = "window.socket = new WebSocket('/ws');
        window.whenClosed = new Promise(done => socket.onclose = event => done(event.code));
        return await new Promise(done => socket.onopen = () => done('open'))";
    assert_eq!(browser.run(open, &[]), "open");
    for id in engine.ok(&["url", "list", "-o", "name"]).split_whitespace() {
        engine.ok(&["url", "revoke", id]);
    }
    assert_eq!(browser.run("return await window.whenClosed", &[]), 1001);
    for revoked in [&read, &full] {
        browser.open(revoked);
        assert_eq!(browser.title(), "This link was revoked");
    }

    browser.open(&link(&engine, &["web", "3999"]));
    assert_eq!(browser.title(), "Nothing listens on port 3999 of web");
    let short = link(&engine, &["web", "3000", "--ttl", "1s"]);
    eventually("the link expires", || {
        browser.open(&short);
        browser.title() == "This link has expired"
    });
    let bare = origin(&short);
    eventually("the session expires with its link", || {
        browser.open(&format!("{bare}/"));
        browser.title() != "page of the sandbox"
    });
}

/// The folder with Vite from npm; `None`, with a message, where npm cannot get it.
fn vite() -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/npm-cache");
    let output = std::process::Command::new(script).args(["vite", "vite@7.1.12"]).output();
    match output {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
        other => {
            assert!(std::env::var_os("CI").is_none(), "npm: {other:?}");
            eprintln!("SKIPPED: npm does not install Vite: {other:?}");
            None
        }
    }
}

/// A development server replaces a module in the open page, over its WebSocket.
#[test]
fn vite_replaces_modules_through_a_link() {
    let (Some(engine), Some(browser), Some(packages)) = (Engine::start(), Browser::start(), vite()) else { return };
    engine.ok(&["create", "vite"]);
    engine.ok(&["cp", &packages, "vite:/home/user/app"]);
    let write = |text: &str| {
        let module = format!("document.body.dataset.text = '{text}'; import.meta.hot.accept()");
        engine.ok(&["exec", "vite", "--", "sh", "-c", &format!("cat > app/main.js <<'END'\n{module}\nEND")]);
    };
    write("first");
    let page = "<!doctype html><title>vite</title><body><script type=\"module\" src=\"/main.js\"></script>";
    let start = format!(
        "cd app && echo '{page}' > index.html && \
         (node node_modules/vite/bin/vite.js --host 127.0.0.1 --port 5173 --strictPort >log 2>&1 &)"
    );
    engine.ok(&["exec", "vite", "--", "sh", "-c", &start]);
    let link = link(&engine, &["vite", "5173"]);
    eventually("Vite serves the page", || {
        browser.open(&link);
        browser.title() == "vite"
    });
    let shown = |text: &str| {
        browser.run(
            "while (document.body.dataset.text != args[0]) await new Promise(done => setTimeout(done, 50));
             return window.loaded ??= 'once'",
            &[text],
        )
    };
    assert_eq!(shown("first"), "once");
    browser.run("window.loaded = 'before the change'", &[]);
    write("second");
    assert_eq!(shown("second"), "before the change", "the module was replaced, the page was not loaded again");
}
