//! The page of the admin port in a real Chromium, driven over its DevTools: `.ci/run page`. Without `EVENTWEIR_CHROMIUM`, which names
//! the program, there is nothing to drive and the test says so.
#![expect(clippy::unwrap_used, clippy::too_many_lines, reason = "a test that cannot go on fails")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use eventweir::app::{App, ConfigSource, Listeners};
use eventweir::cli::Flags;
use eventweir::clock::Clock;
use eventweir::event::Event;
use eventweir::upstream::{Embedded, Metrics, Upstream};
use futures_util::{SinkExt as _, StreamExt as _};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// How long a test waits for something that has to come.
const DEADLINE: Duration = Duration::from_secs(60);

/// The least contrast of a text with the page, as WCAG computes it.
const LEAST_CONTRAST: &str = "(() => {
    const light = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0.05);
    const back = light(getComputedStyle(document.body).backgroundColor);
    const texts = [...document.querySelectorAll('body *')].map((element) => getComputedStyle(element));
    texts.push(getComputedStyle(document.getElementById('find'), '::placeholder'));
    return Math.min(...texts.map(({ color }) => Math.max(light(color), back) / Math.min(light(color), back)));
})()";

/// The tables that have no caption, a column that cannot be seen, or a row without a heading.
const UNCLEAR_TABLES: &str = "[...document.querySelectorAll('table')].filter((table) => !table.caption?.textContent
    || [...table.querySelectorAll('thead th')].some((th) => th.scope !== 'col' || (th.offsetWidth === 0 && !th.closest('details')))
    || [...table.tBodies[0].rows].some((row) => row.cells[0].scope !== 'row' || !row.cells[0].textContent)
    ).map((table) => table.textContent)";

/// A browser; killed when dropped.
struct Browser {
    process: Child,
    socket: WebSocketStream<TcpStream>,
    number: u64,
    /// What it has reported beside answers.
    events: Vec<Value>,
    _folder: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Browser {
    async fn start(program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = folder.path().join("DevToolsActivePort");
        let port = async {
            loop {
                let port = std::fs::read_to_string(&said).ok();
                if let Some(port) = port.and_then(|text| text.lines().next()?.parse::<u16>().ok()) {
                    return port;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let port = tokio::time::timeout(DEADLINE, port).await.unwrap();
        let uri = format!("http://127.0.0.1:{port}").parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(uri)).unwrap();
        let list: Value = client.request(Request::get("/json").body(Vec::new()).unwrap()).await.unwrap();
        let pages = list.as_array().unwrap().iter().find(|target| target["type"] == "page").unwrap();
        let url = pages["webSocketDebuggerUrl"].as_str().unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
        let mut browser = Self { process, socket, number: 0, events: Vec::new(), _folder: folder };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    /// Calls a method and returns its result.
    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let call = json!({ "id": self.number, "method": method, "params": parameters });
        self.socket.send(Message::text(call.to_string())).await.unwrap();
        let answered = async {
            loop {
                let Message::Text(text) = self.socket.next().await.unwrap().unwrap() else { continue };
                let said: Value = serde_json::from_str(&text).unwrap();
                if said["id"] == self.number {
                    assert!(said["error"].is_null(), "{method}: {said}");
                    return said["result"].clone();
                }
                self.events.push(said);
            }
        };
        tokio::time::timeout(DEADLINE, answered).await.unwrap()
    }

    async fn evaluate(&mut self, script: &str) -> Value {
        let parameters = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        self.call("Runtime.evaluate", parameters).await["result"]["value"].clone()
    }

    /// Waits until a script says true.
    async fn until(&mut self, script: &str) {
        let holds = async {
            while self.evaluate(script).await != json!(true) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, holds).await.is_ok(), "in vain: {script}");
    }

    async fn size(&mut self, width: u32, height: u32) {
        let parameters = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", parameters).await;
    }

    async fn is_too_wide(&mut self) -> Value {
        self.evaluate("document.documentElement.scrollWidth > innerWidth").await
    }
}

fn event(object: usize, reason: &str, message: &str) -> Event {
    let mut event = Event {
        reason: reason.into(),
        message: message.into(),
        event_type: "Warning".into(),
        count: 1,
        ..Event::default()
    };
    event.metadata.namespace = "shop".into();
    event.metadata.name = format!("web-{object}.{reason}").into();
    event.involved_object.kind = "Pod".into();
    event.involved_object.name = format!("web-{object}").into();
    event.involved_object.namespace = "shop".into();
    event.source.component = "kubelet".into();
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_moves_finds_and_is_safe_in_a_real_browser() {
    #[expect(clippy::disallowed_methods, reason = "where the browser is")]
    let Ok(program) = std::env::var("EVENTWEIR_CHROMIUM") else {
        eprintln!("EVENTWEIR_CHROMIUM names no browser: nothing was tested");
        return;
    };
    let free = |address: &str| Some(address.to_owned());
    let flags = Flags { listen: free("127.0.0.1:0"), admin_listen: free("127.0.0.1:0"), ..Flags::default() };
    let rules = "correlation: {suppression: drop, rules: [{match: {reason: [BackOff]}, set: {burstSize: 5}}]}\n";
    let folder = tempfile::tempdir().unwrap();
    let (file, shadow) = (folder.path().join("eventweir.yaml"), folder.path().join("shadow.yaml"));
    std::fs::write(&shadow, "correlation: {suppression: drop, burstSize: 100}\n").unwrap();
    std::fs::write(&file, format!("{rules}shadowFile: {}\n", shadow.display())).unwrap();
    let config = eventweir::config::load(Some(&file), &flags.into_overrides(), eventweir::config::Files::Read).unwrap();
    let (clock, registry) = (Clock::system(), Registry::new());
    let metrics = Metrics::new(&registry);
    let embedded = Embedded::new(config.upstream.store.clone(), clock.clone(), metrics);
    let listeners = Listeners::bind(&config).await.unwrap();
    let upstream = Upstream::Embedded(embedded);
    let app: Arc<App> = App::start(config, ConfigSource::default(), listeners, upstream, registry, clock).unwrap();
    let script = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">";
    let load = |from: usize| {
        for number in from..from + 400 {
            app.shards().accept(event(number % 12, "BackOff", "Back-off restarting failed container web"), 1).unwrap();
            app.shards()
                .accept(event(number % 5, "Unhealthy", &format!("Readiness probe failed: {number}")), 1)
                .unwrap();
        }
        app.shards().accept(event(0, "Evil\"><script>document.title='owned'</script>", script), 1).unwrap();
        app.shards().accept(event(7, &"Long".repeat(40), &"wide".repeat(300)), 1).unwrap();
    };
    load(0);
    let mut browser = Browser::start(&program).await;
    let base = format!("http://{}/", app.admin_address());
    browser.size(1280, 900).await;
    browser.call("Page.navigate", json!({ "url": base })).await;
    let received = "Number([...document.querySelectorAll('dt')].find(dt => dt.textContent === 'received in all').nextSibling.textContent)";
    browser.until(&format!("document.readyState === 'complete' && {received} === 802")).await;
    // Numbers move without a reload of the page, and while a link in them has the focus. A changed number is not announced.
    let watch = "window.same = true; window.said = 0; window.link = document.querySelector('#live a'); link.focus(); \
        new MutationObserver(() => { said += 1; }).observe(document.querySelector('#alarm [role=status]'), \
        { childList: true, characterData: true, subtree: true })";
    browser.evaluate(watch).await;
    let alarm = "document.getElementById('alarm').textContent";
    let losses = browser.evaluate(alarm).await;
    load(400);
    browser.until(&format!("window.same === true && {received} === 1604")).await;
    assert_eq!(browser.evaluate("document.activeElement === link && link.isConnected").await, json!(true));
    assert!(losses.as_str().unwrap().starts_with("OK: of ") && browser.evaluate(alarm).await != losses, "{losses}");
    assert_eq!(browser.evaluate("said").await, json!(0));
    // Fault: a link with the focus came to name another object, because rows changed by their position.
    let last = "window.moved = [...document.querySelectorAll('#live a')].at(-1); moved.focus(); moved.textContent";
    let called = browser.evaluate(last).await;
    let object = called.as_str().unwrap().strip_prefix("shop Pod/web-").unwrap().parse().unwrap();
    for _ in 0..300 {
        app.shards().accept(event(object, "BackOff", "Back-off restarting failed container web"), 1).unwrap();
    }
    browser.until("moved.closest('tr').rowIndex === 1").await;
    assert_eq!(browser.evaluate("document.activeElement === moved && moved.textContent").await, called);
    assert_eq!(browser.evaluate("new Set([...document.querySelectorAll('#live a')]).size").await, json!(15));
    // Fault: the single keys could not be turned off.
    let press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'p', bubbles: true })); \
        document.getElementById('pause').textContent";
    browser.evaluate("document.getElementById('keys').click()").await;
    assert_eq!(browser.evaluate(press).await, json!("pause"));
    browser.evaluate("document.getElementById('keys').click()").await;
    // Paused numbers are old, but the server is not blamed for it. What follows is a minute later, and faster.
    let faster = "window.turns = 0; ((real, later) => { Date.now = () => real() + 60000; \
        window.setTimeout = (what) => { turns += 1; later(what, 20); }; })(Date.now, setTimeout)";
    browser.evaluate("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'p', bubbles: true }))").await;
    browser.evaluate(faster).await;
    browser.until("turns >= 2").await;
    assert_eq!(browser.evaluate("document.getElementById('pause').textContent").await, json!("resume"));
    let text = browser
        .evaluate("document.querySelector('header').textContent + document.getElementById('alarm').textContent")
        .await;
    assert!(!text.as_str().unwrap().contains("answer"), "{text}");
    browser.evaluate("document.getElementById('pause').click()").await;
    assert_eq!(browser.is_too_wide().await, json!(false));
    // The last hour is drawn, what is not shown yet is counted, and the second configuration stands beside.
    browser.until("document.querySelectorAll('figure svg polyline[points]').length === 2").await;
    assert_eq!(browser.evaluate("document.querySelector('figure svg').getAttribute('role')").await, json!("img"));
    browser.evaluate("document.querySelector('details').open = true").await;
    browser.until("!!document.querySelector('details[open] table td')").await;
    let number = |name: &str| {
        format!("[...document.querySelectorAll('dt')].find(dt => dt.textContent === '{name}').nextSibling.textContent")
    };
    let unseen = browser.evaluate(&number("not shown yet")).await;
    assert!(unseen.as_str().unwrap().starts_with(|first: char| first.is_ascii_digit()), "{unseen}");
    assert_eq!(browser.evaluate(&number("history")).await, json!("off"));
    let taken = "document.querySelector('#shadow td:nth-child(3)').textContent === document.querySelector('#shadow td:nth-child(2)').textContent";
    browser.until(taken).await;
    assert_eq!(browser.evaluate("document.querySelectorAll('#shadow table').length").await, json!(2));
    browser.evaluate("document.querySelector('details').open = false").await;
    let shot = browser.call("Page.captureScreenshot", json!({ "format": "png" })).await;
    #[expect(clippy::disallowed_methods, reason = "where pictures are kept")]
    if let Ok(folder) = std::env::var("EVENTWEIR_SCREENSHOTS") {
        use base64::Engine as _;
        let picture = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(format!("{folder}/page.png"), picture).unwrap();
    }
    for scheme in ["dark", "light"] {
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.call("Emulation.setEmulatedMedia", feature).await;
        let back = browser.evaluate("getComputedStyle(document.body).backgroundColor").await;
        assert_eq!(back, if scheme == "dark" { "rgb(13, 17, 23)" } else { "rgb(255, 255, 255)" });
        let least = browser.evaluate(LEAST_CONTRAST).await;
        assert!(least.as_f64().unwrap() >= 4.5, "{scheme}: {least}");
    }
    browser.size(360, 740).await;
    browser.evaluate("new Promise(requestAnimationFrame)").await;
    assert_eq!(browser.is_too_wide().await, json!(false));
    assert_eq!(browser.evaluate(UNCLEAR_TABLES).await, json!([]));
    // The keyboard alone leads to an explanation.
    for (key, text) in [("/", ""), ("", "pod/web-0"), ("Tab", ""), ("", "shop"), ("Enter", "\r")] {
        if key.is_empty() {
            browser.call("Input.insertText", json!({ "text": text })).await;
            continue;
        }
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            _ => 191,
        };
        let press = json!({ "type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code });
        browser.call("Input.dispatchKeyEvent", press).await;
        browser.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key })).await;
    }
    browser.until("document.readyState === 'complete' && !!document.getElementById('answer')").await;
    let text = browser.evaluate("document.body.textContent").await;
    assert!(text.as_str().unwrap().contains(script), "the message is text");
    assert!(text.as_str().unwrap().contains("dropped: the budget was empty"), "{text}");
    assert_eq!(browser.evaluate(UNCLEAR_TABLES).await, json!([]));
    assert_eq!(browser.evaluate("document.scripts.length").await, json!(1));
    assert_eq!(browser.evaluate("document.title").await, json!("explain pod/web-0"));
    let searched = "[...document.querySelectorAll('input')].map((input) => input.getAttribute('value'))";
    assert_eq!(browser.evaluate(searched).await, json!(["pod/web-0", "shop"]));
    assert_eq!(browser.is_too_wide().await, json!(false));
    let faults = |said: &&Value| match said["method"].as_str().unwrap_or_default() {
        "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" => true,
        "Network.requestWillBeSent" => {
            let url = said["params"]["request"]["url"].as_str().unwrap();
            !url.starts_with(&base) && url != "about:blank"
        }
        _ => false,
    };
    let faults: Vec<&Value> = browser.events.iter().filter(faults).collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert!(browser.events.iter().any(|said| said["method"] == "Network.requestWillBeSent"));
    // A page whose server has stopped says so, instead of the last state.
    browser.evaluate("history.back()").await;
    browser.until(&format!("document.readyState === 'complete' && {received} === 1904")).await;
    browser.evaluate(faster).await;
    app.stop().await;
    browser
        .until(&format!("{alarm}.startsWith('! STALE: eventweir does not answer; these are the numbers of 20')"))
        .await;
}
