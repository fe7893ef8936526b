//! Tests the program as a user starts it: exit codes, output, and the orderly stop.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use tempfile::NamedTempFile;

fn eventweir(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_eventweir")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn project(path: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

/// Returns the numbers in the row of a table that has the word `name`.
fn row(text: &str, name: &str) -> Vec<u64> {
    let line = text.lines().find(|line| line.split_whitespace().any(|word| word == name)).unwrap();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The settings of the allocator (`.cargo/config.toml`) show nowhere else.
#[test]
fn the_allocator_takes_no_huge_pages() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eventweir"));
    let output = command.arg("--version").env("_RJEM_MALLOC_CONF", "stats_print:true").output().unwrap();
    assert!(stderr(&output).contains("opt.thp: \"never\""), "{}", stderr(&output));
}

#[test]
fn demo_shows_what_client_go_loses_and_we_keep() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("demo.svg").display().to_string();
    let output = eventweir(&["demo", "--svg", &svg]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let drawings = [svg, project("docs/demo.svg")].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(drawings[0] == drawings[1], "draw the README's picture again: eventweir demo --svg docs/demo.svg");
    let description = drawings[0].split("id=\"d\">").nth(1).unwrap().split('<').next().unwrap();
    let writes: Vec<_> = description.split("; ").map(|column| column.split(' ').rev().nth(1).unwrap()).collect();
    let [none, client_go, ours] = *writes else { panic!("{description}") };
    let readme = std::fs::read_to_string(project("README.md")).unwrap();
    let picture = format!("{none} without a correlator, {client_go} with client-go, {ours} with eventweir.");
    assert!(readme.contains(&picture), "the README must say: {picture}");
    // Columns: sent; client-go: shown, minutes since the newest, writes; eventweir: the same.
    assert_eq!(row(&text, "SuccessfulCreate")[..2], [60, 56]);
    assert_eq!(row(&text, "SawCompletedJob")[..4], [60, 9, 51, 9]);
    assert_eq!(row(&text, "SuccessfulDelete")[..4], [60, 8, 52, 8]);
    let mut ours = 0;
    for reason in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"] {
        let row = row(&text, reason);
        assert!(row[5] <= 15, "{reason} is {} minutes old", row[5]);
        assert!(row[4] >= 45, "{reason} shows {}", row[4]);
        ours += row[6];
    }
    assert!(ours <= 36, "{ours} writes");
    assert_eq!(row(&text, "BackOff")[4], 1800, "the crash loop is shown whole");
    let storm = row(&text, "FailedScheduling");
    assert_eq!((storm[1], storm[3], storm[4]), (6000, 6000, 6000));
    assert!(storm[6] * 5 < storm[3], "a storm of many objects takes {} writes", storm[6]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// A temporary file with this text, and its path.
fn file(text: &str) -> (NamedTempFile, String) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

/// One hour of the recorded `CronJob`, as JSON lines.
fn recorded_hour() -> String {
    let recorded = std::fs::read_to_string(project("tests/vectors/correlator/050_cronjob_60_minutes.jsonl")).unwrap();
    let steps = recorded.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    steps.filter(|step| step["op"] == "correlate").map(|step| format!("{}\n", step["event"])).collect()
}

#[test]
fn replay_shows_three_columns_that_add_up() {
    let (_file, path) = file(&recorded_hour());
    let output = eventweir(&["replay", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains("--sort-by-time") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Columns: no correlator, client-go, eventweir.
    assert_eq!(row(&text, "writes"), [180, 36, 39]);
    assert_eq!(row(&text, "shown"), [180, 73, 180]);
    assert_eq!(row(&text, "lost"), [0, 107, 0]);
    assert_eq!(row(&text, "="), [180, 180, 180]);
    let text =
        stdout(&eventweir(&["replay", &path, "--until", "end", "--by", "reason", "--sort", "name", "--top", "2"]));
    assert_eq!(row(&text, "writes"), [180, 36, 36]);
    let waiting = row(&text, "waiting")[1];
    assert_eq!((row(&text, "shown")[2] + waiting, row(&text, "=")), (180, vec![180, 180, 180]));
    assert_eq!(row(&text, "SawCompletedJob")[..3], [60, 9, 12]);
    assert!(text.contains("(2 of 3; --top 0 lists all)") && !text.contains("SuccessfulDelete"), "{text}");
    let output = eventweir(&["replay", &path, "--output", "json"]);
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["columns"][1]["shown"], 180);
    let facts = document["facts"].as_array().unwrap();
    assert_eq!(facts.len(), 3);
    assert_eq!(facts.iter().map(|fact| fact["sent"].as_u64().unwrap()).sum::<u64>(), 180);
}

#[test]
fn replay_continues_until_the_given_time() {
    let (_file, path) = file(&recorded_hour());
    let until = |when: &str| {
        let output = eventweir(&["replay", &path, "--output", "json", "--until", when]);
        assert!(output.status.success(), "{when}: {}", stderr(&output));
        let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
        (document["input"]["until"].as_str().unwrap().to_owned(), document["columns"][1]["waiting"].as_u64().unwrap())
    };
    assert_eq!(until("+1h"), ("2023-04-14T03:01:07Z".to_owned(), 0));
    assert_eq!(until("settled").1, 0);
    let (end, waiting) = until("end");
    assert!(end == "2023-04-14T02:01:07Z" && waiting > 0, "{end} {waiting}");
    for time in ["2023-04-14T04:00:00Z", "2023-04-14T04:00:00.000000Z"] {
        assert_eq!(until(time), ("2023-04-14T04:00:00Z".to_owned(), 0));
    }
    assert_eq!(eventweir(&["replay", &path, "--until", "later"]).status.code(), Some(64));
    // Fault: such a time was ignored.
    let output = eventweir(&["replay", &path, "--until", "2023-04-14T02:00:00Z"]);
    assert_eq!(output.status.code(), Some(64));
    let text = stderr(&output);
    assert!(text.contains("--until is before the newest event, which is of 2023-04-14T02:01:07.000000Z"), "{text}");
}

/// The names are as long as Kubernetes allows.
#[test]
fn replay_prints_80_columns_whatever_the_names_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for beat in 0..1000 {
        let (name, at) = (format!("{}-{}", "n".repeat(240), beat % 3), 1_772_352_000 + beat * 30);
        let time = eventweir::event::Time(at);
        let (namespace, reason) = ("s".repeat(63), format!("{}{}", "R".repeat(120), beat % 50));
        lines += &format!(
            r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"e{beat}","namespace":"{namespace}"}},"involvedObject":{{"kind":"VerticalPodAutoscalerCheckpoint","namespace":"{namespace}","name":"{name}"}},"reason":"{reason}","type":"Warning","count":20000,"source":{{"component":"{}"}},"lastTimestamp":"{time}"}}"#,
            "c".repeat(250)
        );
        lines.push('\n');
    }
    let (_file, path) = file(&lines);
    let config = folder.path().join(format!("{}.yaml", "a-long-name-of-a-configuration".repeat(3)));
    std::fs::write(&config, "correlation: {burstSize: 3}\n").unwrap();
    let config = config.display().to_string();
    for by in ["object", "reason", "component", "namespace", "type"] {
        for against in [&[][..], &["--against", &config]] {
            let text = stdout(&eventweir(&[&["replay", &path, "--by", by], against].concat()));
            // A suggested rule has the full name; a shortened one would match nothing.
            let cut = text.lines().filter(|line| !line.trim_start().starts_with("- match:"));
            let widest = cut.map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 80, "{widest} columns: {text}");
        }
    }
}

#[test]
fn replay_of_two_configurations_lists_what_differs() {
    let ((_file, recording), folder) = (file(&recorded_hour()), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("base.yaml"), "{}\n").unwrap();
    // Each reason has a budget of its own: docs/recipes.md.
    let key = "[source.component, source.host, involvedObject.kind, involvedObject.namespace, involvedObject.name, \
        involvedObject.uid, involvedObject.apiVersion, type, reason]";
    std::fs::write(path("reasons.yaml"), format!("correlation: {{spamKey: {key}}}\n")).unwrap();
    let replay = |against: &str| {
        let output = eventweir(&["replay", &recording, "--config", &path("base.yaml"), "--against", against]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let text = replay(&path("reasons.yaml"));
    assert_eq!(row(&text, "writes"), [180, 36, 39, 111]);
    assert!(text.contains("Writes, where they differ (1)"), "{text}");
    let text = replay(&path("base.yaml"));
    assert!(text.contains("No row differs between"), "{text}");
}

/// Fault: `replay` refused the configuration of a pod for files and flags that only `serve` needs.
#[test]
fn replay_reads_the_configuration_of_another_machine() {
    let (_file, recording) = file(&recorded_hour());
    let replay = |config: &str| {
        let (_file, config) = file(config);
        eventweir(&["replay", &recording, "-q", "--config", &config])
    };
    let config = "listen: 0.0.0.0:8080\nauth: {tokenReview: {enabled: true}}\npassthrough: on\ningest: {ack: durable}\n\
        limitsFile: /no/limits\nshadowFile: /no/shadow\neventLog: /no/folder/log\nexplain: {enabled: false}\n\
        upstream: {kubeconfig: /no/kubeconfig, context: pod}\n";
    let output = replay(config);
    assert!(output.status.success(), "{}", stderr(&output));
    for (wrong, said) in [
        ("ingest: {ack: durably}", "ingest.ack: `durably` is not allowed"),
        ("ingest: {acks: durable}", "ingest.acks: no such key"),
        ("correlation: {rules: [{set: {burstSize: 1}}]}", "a rule needs a condition"),
        ("upstream: {qps: 0, burst: 1}", "upstream.qps: `0` is 0 with a burst"),
        ("upstream: {backoff: {initial: 9s}}", "upstream.backoff.initial: `9s` is longer than max"),
    ] {
        let output = replay(wrong);
        assert!(output.status.code() == Some(64) && stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn replay_reads_a_list_that_kubectl_prints_and_draws_it() {
    let recorded = recorded_hour();
    // kubectl sorts by name.
    let items: Vec<&str> = recorded.lines().rev().collect();
    let list = format!("{{\n\"apiVersion\": \"v1\", \"items\": [\n{}\n], \"kind\": \"List\"}}\n", items.join(",\n"));
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("storm.svg");
    let mut child = Command::new(env!("CARGO_BIN_EXE_eventweir"))
        .args(["replay", "-", "--svg", &svg.display().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let text = stdout(&child.wait_with_output().unwrap());
    assert_eq!(row(&text, "writes")[..2], [180, 36]);
    assert!(!text.contains("are older"), "{text}");
    let drawing = std::fs::read_to_string(svg).unwrap();
    assert!(drawing.starts_with("<svg ") && drawing.matches("<polyline").count() == 3, "{drawing}");
    assert!(drawing.contains("<title") && drawing.contains("client-go: 36 writes"), "{drawing}");
}

#[test]
fn replay_counts_events_out_of_order_or_sorts_them() {
    let recorded = recorded_hour();
    let mut lines: Vec<&str> = recorded.lines().collect();
    lines.rotate_right(1);
    let (_file, path) = file(&lines.join("\n"));
    let text = stdout(&eventweir(&["replay", &path]));
    // One of them happened in the same second.
    assert!(text.contains("178 of 180 events are older"), "{text}");
    let output = eventweir(&["replay", &path, "--output", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["input"]["outOfOrder"], 178);
    let text = stdout(&eventweir(&["replay", &path, "--sort-by-time"]));
    assert!(!text.contains("are older"), "{text}");
}

#[test]
fn replay_names_the_line_that_is_no_event() {
    let event = "{\"involvedObject\":{\"name\":\"web-0\"},\"lastTimestamp\":\"2026-03-01T08:00:00Z\"}";
    let (_file, path) = file(&format!("{event}\n\n{{\"kind\":\"Pod\",\"apiVersion\":\"v1\"}}\n"));
    let output = eventweir(&["replay", &path]);
    assert_eq!(output.status.code(), Some(64));
    let text = stderr(&output);
    assert!(text.contains(" line 3 is no Event: it has kind \"Pod\"") && text.contains("--skip-bad"), "{text}");
    let output = eventweir(&["replay", &path, "--skip-bad"]);
    assert!(output.status.success() && stdout(&output).contains("1 document left out: no event, or "));
    let (_file, path) = file(&format!("{event}\n{{\"level\":\"info\"}}\n"));
    let text = stderr(&eventweir(&["replay", &path]));
    assert!(text.contains(" line 2 is no Event: it has neither kind, involvedObject nor regarding"), "{text}");
    let output = eventweir(&["replay", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("/no/such/file"), "{}", stderr(&output));
}

/// Faults: the replay never ended, and all occurrences of an event with such a first time were of 1970.
#[test]
fn replay_ends_with_times_that_are_no_unix_nanoseconds() {
    let event = "{\"reason\":\"A\",\"involvedObject\":{\"kind\":\"Pod\",\"name\":\"web-0\"}";
    let times = [("1600-01-01T00:00:00Z", "2026-03-01T08:00:00Z"), ("2262-04-01T00:00:00Z", "9999-01-01T00:00:00Z")];
    let events = times.map(|(first, newest)| {
        format!("{event},\"count\":3,\"firstTimestamp\":\"{first}\",\"lastTimestamp\":\"{newest}\"}}\n")
    });
    let (_file, path) = file(&events.concat());
    for until in ["settled", "end", "+87600h", "9999-12-31T00:00:00Z"] {
        for sorted in [&["--sort-by-time"][..], &[]] {
            let output = eventweir(&[&["replay", &path, "--until", until], sorted].concat());
            assert!(output.status.success(), "{until}: {}", stderr(&output));
            assert!(stdout(&output).starts_with("6 events of 1 object, "), "{until}: {}", stdout(&output));
        }
    }
    let (_file, path) = file(&events[0]);
    let text = stdout(&eventweir(&["replay", &path, "--until", "end", "--sort-by-time"]));
    assert!(text.starts_with("3 events of 1 object, 1970-01-01T00:00:00Z to 2026-03-01T08:00:00Z"), "{text}");
}

/// Fault: events without a time were replayed in 1970.
#[test]
fn replay_needs_a_time_to_begin_with() {
    let event = "{\"reason\":\"A\",\"involvedObject\":{\"kind\":\"Pod\",\"name\":\"web-0\"}}\n";
    let timed = event.replace("\"reason\"", "\"lastTimestamp\":\"2026-03-01T08:00:00Z\",\"reason\"");
    let (_file, path) = file(&[event, &timed, event].concat());
    for flags in [&["replay", &*path][..], &["replay", &path, "--sort-by-time"]] {
        let output = eventweir(flags);
        assert_eq!(output.status.code(), Some(64));
        assert!(stderr(&output).contains("none with one before it: A of Pod/web-0"), "{}", stderr(&output));
    }
    let text = stdout(&eventweir(&["replay", &path, "--skip-bad"]));
    assert!(text.starts_with("2 events of 1 object, 08:00:00Z to 08:00:00Z, "), "{text}");
    assert!(text.contains("1 event without a time replayed at the time of the event before."), "{text}");
    assert!(text.contains("1 document left out: no event, or without a time."), "{text}");
    let text = stdout(&eventweir(&["replay", &path, "--skip-bad", "--sort-by-time"]));
    assert!(text.starts_with("1 event of ") && text.contains("2 documents left out"), "{text}");
}

/// Fault: while the report was made, Ctrl-C did nothing.
#[test]
fn a_second_interrupt_ends_observe_at_once() {
    let (log, path) = file("");
    let mut observe = Command::new(env!("CARGO_BIN_EXE_eventweir"))
        .args(["observe", "--audit", &path, "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(observe.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("observing"));
    // The report is longer than the pipe that is not read.
    let entry = |number: usize| {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"create","stageTimestamp":"2026-03-01T08:00:00.500000Z","objectRef":{{"resource":"events","namespace":"shop","name":"e{number}","apiVersion":"v1"}},"responseStatus":{{"code":201}},"requestObject":{{"metadata":{{"name":"e{number}","namespace":"shop"}},"involvedObject":{{"kind":"Pod","name":"web-{number}","namespace":"shop"}},"reason":"R","type":"Normal"}}}}"#
        ) + "\n"
    };
    std::fs::write(log.path(), (0..500).map(entry).collect::<String>()).unwrap();
    let catches_interrupts = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", observe.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        u64::from_str_radix(caught, 16).unwrap() & 2 != 0
    };
    while !catches_interrupts() {
        std::thread::yield_now();
    }
    let (ended, has_ended) = mpsc::sync_channel::<()>(1);
    let pid = rustix::process::Pid::from_child(&observe);
    let interrupts = std::thread::spawn(move || {
        for _ in 0..200 {
            let _gone = rustix::process::kill_process(pid, Signal::Int);
            if has_ended.recv_timeout(std::time::Duration::from_millis(50)).is_ok() {
                return;
            }
        }
        let _gone = rustix::process::kill_process(pid, Signal::Kill);
    });
    let code = observe.wait().unwrap().code();
    ended.send(()).unwrap();
    interrupts.join().unwrap();
    assert_eq!(code, Some(130));
}

#[test]
fn observe_names_the_file_that_it_cannot_read() {
    let output = eventweir(&["observe", "--kubeconfig", "/no/such/file", "--for", "1s"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("/no/such/file"), "{}", stderr(&output));
    assert_eq!(eventweir(&["observe", "--for", "soon"]).status.code(), Some(64));
}

#[test]
fn healthcheck_exits_as_the_admin_port_answers() {
    for (status, code) in [("200 OK", 0), ("503 Service Unavailable", 1)] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let asked = lines.next().unwrap().unwrap();
            lines.find(|line| line.as_ref().unwrap().is_empty());
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 6\r\nConnection: close\r\n\r\nstate\n").unwrap();
            asked
        });
        let output = eventweir(&["healthcheck", "--admin", &url]);
        assert_eq!(server.join().unwrap(), "GET /readyz HTTP/1.1");
        assert_eq!(output.status.code(), Some(code), "{status}");
        assert!(format!("{}{}", stdout(&output), stderr(&output)).contains("state"), "{status}");
    }
    // Nothing listens there.
    let output = eventweir(&["healthcheck", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_sidecars_configuration_is_right() {
    let manifest = std::fs::read_to_string(project("deploy/sidecar.yaml")).unwrap();
    let (_, block) = manifest.split_once("\n  config.yaml: |\n").unwrap();
    let lines: Vec<&str> = block.lines().map_while(|line| line.strip_prefix("    ")).collect();
    assert!(lines.contains(&"upstream: {history: off}"), "{lines:?}");
    let (_file, path) = file(&lines.join("\n"));
    let output = eventweir(&["check-config", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    // The component finds the sidecar at its port, which is not that of controller-runtime's metrics.
    let (_, listen) = manifest.split_once("--listen=").unwrap();
    let listen = listen.lines().next().unwrap();
    assert!(manifest.contains(&format!("server: http://{listen}\n")), "{listen}");
    assert!(!listen.ends_with(":8080"), "{listen}");
}

#[test]
fn all_errors_of_a_configuration_are_printed_before_a_port_is_opened() {
    let (_file, path) = file("correlation:\n  burstSize: -1\n  maxEvnts: 3\n");
    for arguments in [vec!["check-config", &path], vec!["serve", "--config", &path]] {
        let output = eventweir(&arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.contains("correlation.burstSize: `-1`") && text.contains("did you mean maxEvents"), "{text}");
    }
    let output = eventweir(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(64), "callers are not authenticated: {}", stderr(&output));
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_an_error_of_the_configuration() {
    // A port that is taken would be the error if it were opened first.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let output = eventweir(&["serve", "--upstream", "apiserver", "--kubeconfig", "/no/such/file", "--listen", &listen]);
    assert_eq!(output.status.code(), Some(64));
    let text = stderr(&output);
    assert!(text.contains("reading the kubeconfig /no/such/file: No such file"), "{text}");
    let output = eventweir(&["serve", "--kubeconfig", "/no/such/file", "--listen", &listen]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("(--upstream apiserver)"), "{}", stderr(&output));
}

/// Fault: in a pod, a broken kubeconfig of the environment was passed over, and events went to the pod's own cluster.
#[test]
fn a_kubeconfig_of_the_environment_that_cannot_be_used_is_not_passed_over() {
    let cluster = "{server: 'https://127.0.0.1:1', certificate-authority: /no/such/ca}";
    let of_cluster = |cluster: &str| {
        format!(
            "{{current-context: x, contexts: [{{name: x, context: {{cluster: c}}}}], clusters: [{{name: c, cluster: {cluster}}}]}}"
        )
    };
    let ((_broken, broken), (_good, good)) = (file("clusters: [{name: "), file(&of_cluster(cluster)));
    for (paths, expected) in [
        (broken.clone(), format!("reading the kubeconfig {broken}: ")),
        (format!("/no/such/file:{good}"), "/no/such/ca".to_owned()),
        ("/no/such/file".to_owned(), "no kubeconfig exists, and ".to_owned()),
        // Some pods have a home that is no folder.
        (String::new(), "no kubeconfig exists, and ".to_owned()),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_eventweir"))
            .args(["serve", "--upstream", "apiserver", "--listen", "127.0.0.1:0"])
            .envs([("KUBECONFIG", paths.as_str()), ("HOME", "/dev/null"), ("KUBERNETES_SERVICE_HOST", "127.0.0.1")])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(64));
        assert!(stderr(&output).contains(&expected), "{paths}: {}", stderr(&output));
    }
}

/// Fault: the signal was handled only after the start.
#[test]
fn a_signal_ends_a_start_that_waits_for_an_exec_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo").display().to_string();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let plugin = format!(
        "{{apiVersion: client.authentication.k8s.io/v1, command: cat, args: ['{fifo}'], interactiveMode: Never}}"
    );
    let (_file, kubeconfig) = file(&format!(
        "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}], users: [{{name: u, user: {{exec: {plugin}}}}}]}}"
    ));
    // `timeout`, so that the test fails instead of waiting forever.
    let mut child = Command::new("timeout")
        .args(["--foreground", "-s", "KILL", "30", env!("CARGO_BIN_EXE_eventweir"), "serve", "--upstream", "apiserver"])
        .args(["--kubeconfig", &kubeconfig, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Waits until the plugin reads.
    let plugin = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(plugin);
}

/// Fault: `NO_PROXY` had no effect.
#[test]
fn a_proxy_of_the_environment_is_an_error_unless_the_api_server_is_excepted() {
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  \
                      cluster: {server: 'https://127.0.0.1:1'}\ncontexts:\n- name: a\n  context: {cluster: a, user: a}\n";
    let (_file, path) = file(kubeconfig);
    // The start ends at the port if not before.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    for (spared, expected) in [("example.org", "through the proxy http://proxy:3128/"), ("127.0.0.1", &listen)] {
        let output = Command::new(env!("CARGO_BIN_EXE_eventweir"))
            .args(["serve", "--upstream", "apiserver", "--kubeconfig", &path, "--listen", &listen])
            .env("HTTPS_PROXY", "http://proxy:3128")
            .env("NO_PROXY", spared)
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn an_event_log_that_cannot_be_written_is_an_error_of_the_configuration() {
    let (_file, path) = file("eventLog: /no/such/folder/log\n");
    for arguments in [["serve", "--config", &path].as_slice(), &["check-config", "--files", &path]] {
        let output = eventweir(arguments);
        assert_eq!(output.status.code(), Some(64));
        let text = stderr(&output);
        assert!(text.contains(":1: eventLog: `/no/such/folder/log` cannot be opened: No such file"), "{text}");
    }
    assert!(eventweir(&["check-config", &path]).status.success());
    // Fault: the check created it.
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let (_file, path) = file(&format!("eventLog: {}\n", log.display()));
    let output = eventweir(&["check-config", "--files", &path]);
    assert!(output.status.success() && !log.exists(), "{}", stderr(&output));
    std::fs::create_dir(&log).unwrap();
    assert_eq!(eventweir(&["check-config", "--files", &path]).status.code(), Some(64));
}

/// Fault: the program started without a spool.
#[test]
fn a_spool_that_cannot_be_used_is_an_error_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "").unwrap();
    for dir in [path("file"), path("file/spool/a")] {
        let output = eventweir(&["serve", "--spool-dir", &dir, "--listen", "nowhere"]);
        assert_eq!(output.status.code(), Some(64));
        let text = stderr(&output);
        assert!(text.contains(&format!("--spool-dir: `{dir}` cannot be used: Not a directory")), "{text}");
        assert!(text.contains("--listen: `nowhere` is not allowed"), "{text}");
    }
    // It is created at the start, and not by a check.
    let (_file, config) = file(&format!("spool: {{dir: {}}}\n", path("new/spool")));
    let output = eventweir(&["check-config", "--files", &config]);
    assert!(output.status.success() && !folder.path().join("new").exists(), "{}", stderr(&output));
    std::fs::create_dir_all(path("new/spool/spool.redb")).unwrap();
    let output = eventweir(&["check-config", "--files", &config]);
    assert!(stderr(&output).contains(":1: spool.dir: "), "{}", stderr(&output));
    assert!(stderr(&output).contains(" cannot be used: Is a directory"), "{}", stderr(&output));
}

#[test]
fn check_config_reports_the_errors_of_all_named_files_and_its_own() {
    let (_shadow, shadow) = file("shards: few\n");
    let text = format!("limitsFile: /no/limits\nshadowFile: {shadow}\nshards: many\nadminWebConfigFile: /no/web\n");
    let (_file, path) = file(&text);
    let output = eventweir(&["check-config", "--files", &path]);
    assert_eq!(output.status.code(), Some(64));
    let text = stderr(&output);
    let lines: Vec<&str> = text.trim_start_matches("error: ").lines().collect();
    // Fault: the errors of files named neither the file that names them nor its line.
    let expected = [
        "1: limitsFile: `/no/limits` cannot be opened: No such file",
        "3: shards: `many` is not allowed",
        "4: adminWebConfigFile: `/no/web` cannot be opened: No such file",
    ];
    assert_eq!(lines.len(), 4, "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(&format!("{path}:{expected}")), "{text}");
    }
    assert!(lines[3].starts_with(&format!("{shadow}:1: shards: `few` is not allowed")), "{text}");
    let output = eventweir(&["serve", "--web.config.file", "/no/web"]);
    assert!(stderr(&output).contains("--web.config.file: `/no/web` cannot be opened"), "{}", stderr(&output));
}

/// Fault: only the log of the start said it.
#[test]
fn check_config_warns_of_certificates_that_have_expired() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (mut params, key) = (rcgen::CertificateParams::default(), rcgen::KeyPair::generate().unwrap());
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    std::fs::write(path("tls.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(path("tls.key"), key.serialize_pem()).unwrap();
    std::fs::write(path("web.yaml"), "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n").unwrap();
    let [crt, key, web] = ["tls.crt", "tls.key", "web.yaml"].map(path);
    let (_file, path) = file(&format!("tls: {{certFile: {crt}, keyFile: {key}}}\nadminWebConfigFile: {web}\n"));
    let output = eventweir(&["check-config", "--files", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let reason = "has expired at 2021-01-01T00:00:00Z, so clients will refuse it";
    let of = |key| format!("warning: {path}: {key}: {crt}: {reason}\n");
    assert_eq!(stderr(&output), of("tls.certFile") + &of("adminWebConfigFile"));
    assert_eq!(stderr(&eventweir(&["check-config", &path])), "");
}

#[test]
fn check_config_warns_of_a_key_that_hides_the_object() {
    let rule = |set: &str| format!("    - match: {{component: kubelet}}\n      set: {{{set}}}\n");
    let rules =
        ["burstSize: 5", "aggregateKey: [source.component, reason]", "aggregateKey: [reason, involvedObject.uid]"];
    let config = format!("correlation:\n  rules:\n{}", rules.map(rule).concat());
    let (_file, path) = file(&config);
    let output = eventweir(&["check-config", &path]);
    assert!(output.status.success(), "it is allowed");
    let text = stderr(&output);
    assert!(text.contains("correlation.rules[1].set.aggregateKey without involvedObject.name"), "{text}");
    assert_eq!(text.matches("aggregateKey").count(), 1, "{text}");
    let (_file, path) = file(&format!("{config}  aggregateKey: [source.component, reason]\n"));
    let text = stderr(&eventweir(&["check-config", &path]));
    assert!(text.contains(" correlation.aggregateKey without") && text.matches("aggregateKey").count() == 1, "{text}");
}

#[test]
fn check_config_warns_of_rules_without_effect() {
    let rules = [
        "{component: kubelet, type: warning}",
        "{component: [kubelet, 'cert-*']}",
        "{component: 'cert-manager*', reason: Failed}",
        "{component: 'cert*'}",
        "{reason: '*'}",
        "{namespace: shop}",
    ];
    let rules = rules.map(|rule| format!("    - match: {rule}\n      set: {{burstSize: 5}}\n"));
    let (_file, path) = file(&format!("correlation:\n  rules:\n{}", rules.concat()));
    let output = eventweir(&["check-config", &path]);
    assert!(output.status.success(), "they are allowed");
    let (text, head) = (stderr(&output), format!("warning: {path}: correlation."));
    let found: Vec<_> = text.lines().map(|line| line.strip_prefix(&head).unwrap()).collect();
    let expected = [
        "rules[2] has no effect, because rules[1] matches all of its events",
        "rules[5] has no effect, because rules[4] matches all of its events",
        "rules[0].match.type matches neither `Normal` nor `Warning`, which all events are",
    ];
    assert_eq!(found, expected);
}

#[test]
fn check_config_prints_which_rule_matches_an_event_and_why() {
    let rule = |condition: &str| format!("{{match: {{{condition}}}, set: {{burstSize: 3}}}}");
    let rules = [rule("component: [kubelet], namespace: [prod*]"), rule("reason: [BackOff]"), rule("kind: [Pod]")];
    let (_config, config) = file(&format!("correlation: {{rules: [{}]}}\n", rules.join(", ")));
    let event = |reason: &str, kind: &str| {
        format!(
            r#"{{"metadata":{{"name":"a","namespace":"shop"}},"involvedObject":{{"kind":"{kind}","name":"web-0"}},"reason":"{reason}","source":{{"component":"kubelet"}}}}"#
        )
    };
    // Fault: an event without a namespace was matched without one; for `serve` and `replay` it is in `default`.
    let (_default, default) = file(&event("BackOff", "Pod").replace(r#","namespace":"shop""#, ""));
    let of_default = stdout(&eventweir(&["check-config", &config, "--event", &default]));
    assert!(of_default.starts_with("BackOff default/web-0 Pod\n  rules[0] does not match: namespace is \"default\"\n"));
    let (_events, events) = file(&format!("{}\n{}\n", event("BackOff", "Pod"), event("Other", "Node")));
    let output = eventweir(&["check-config", &config, "--event", &events]);
    assert_eq!(
        stdout(&output),
        "BackOff shop/web-0 Pod\n  rules[0] does not match: namespace is \"shop\"\n  rules[1] matches: its settings apply\n\
         Other shop/web-0 Node\n  rules[0] does not match: namespace is \"shop\"\n  rules[1] does not match: reason is \"Other\"\n\
         \x20 rules[2] does not match: kind is \"Node\"\n  no rule matches: the settings of correlation apply\n",
        "{}",
        stderr(&output)
    );
    // Fault: a file without events passed for one that no rule matches.
    let (_empty, empty) = file("\n");
    let output = eventweir(&["check-config", &config, "--event", &empty]);
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains(" has no events"), "{}", stderr(&output));
}

#[test]
fn the_example_is_valid_and_the_effective_configuration_can_be_printed() {
    let output = eventweir(&["check-config", &project("docs/eventweir.example.yaml")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = eventweir(&["serve", "--print-config", "--suppression", "drop"]);
    assert!(stdout(&output).contains("suppression: drop"), "{}", stdout(&output));
}

#[test]
fn help_names_the_flags_and_wrong_flags_are_usage_errors() {
    let output = eventweir(&["serve", "--help"]);
    assert!(output.status.success());
    for word in ["--listen", "--admin-listen", "--config", "--upstream", "--kubeconfig", "SIGTERM", "SIGHUP"] {
        assert!(stdout(&output).contains(word), "{word}");
    }
    assert_eq!(eventweir(&["serve", "--lissten", "x"]).status.code(), Some(64));
    // Fault: it showed the objects.
    assert_eq!(eventweir(&["top", "--by", "type"]).status.code(), Some(64));
    assert!(stdout(&eventweir(&["completions", "bash"])).contains("check-config"));
}

/// A running server, which is killed when the test fails.
struct Server {
    child: Child,
    listen: String,
    admin: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::listening_at("127.0.0.1:0", arguments)
    }

    fn listening_at(address: &str, arguments: &[&str]) -> Self {
        Self::started_by(Command::new(env!("CARGO_BIN_EXE_eventweir")), address, arguments)
    }

    fn started_by(mut program: Command, address: &str, arguments: &[&str]) -> Self {
        let ports = ["serve", "--listen", address, "--admin-listen", "127.0.0.1:0"];
        let mut child = program
            .args(ports)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("listening"))).unwrap();
        // Keeps reading, so that the program can write further lines to the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let address = |key: &str| {
            let (_, rest) = line.split_once(key).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        Self { listen: address("listen="), admin: address("admin="), child }
    }

    fn post(&self, name: &str) -> String {
        try_post(&self.listen, name).unwrap()
    }

    /// Sends SIGTERM and waits for the end.
    fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn request(address: &str, text: &str) -> String {
    try_request(address, text).unwrap()
}

fn try_request(address: &str, text: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn try_post(address: &str, name: &str) -> std::io::Result<String> {
    let body = format!(
        r#"{{"metadata":{{"name":"{name}"}},"involvedObject":{{"kind":"Pod","name":"web-0","namespace":"default"}},"reason":"BackOff","message":"m","type":"Normal"}}"#
    );
    let head = "POST /api/v1/namespaces/default/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    try_request(address, &format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// Fault: under the usual soft limit, idle clients took all file descriptors, and the health port did not answer.
#[test]
fn serve_takes_as_many_file_descriptors_as_the_system_allows() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 64 && ulimit -Hn 1024 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_eventweir")]);
    let server = Server::started_by(limited, "127.0.0.1:0", &[]);
    let clients: Vec<_> = (0..100).map(|_| TcpStream::connect(&server.listen).unwrap()).collect();
    let metrics = request(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("\nprocess_max_fds 1024"), "{metrics}");
    drop(clients);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn explain_top_and_tap_query_a_running_server() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.listen);
    for number in 0..3 {
        server.post(&format!("web-0.{number}"));
    }
    let ask = |arguments: &[&str]| eventweir(&[arguments, &["--server", &url]].concat());
    let output = ask(&["explain", "pods/web-0", "-o", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&document["kind"], &document["objects"][0]["reasons"][0]["received"]),
        (&"Explanation".into(), &3.into())
    );
    let output = ask(&["explain", "pod/web-0"]);
    assert!(output.status.success() && stdout(&output).contains("REASON"), "{}", stderr(&output));
    let output = ask(&["explain", "pod/web-9"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).starts_with("Nothing is known about pod default/web-9"), "{}", stdout(&output));
    let output = ask(&["top", "--by", "namespace"]);
    assert_eq!(row(&stdout(&output), "default")[0], 3);
    assert!(ask(&["tap", "--for", "1s"]).status.success());
    for object in ["web-9", "pod/", "/"] {
        assert_eq!(ask(&["explain", object]).status.code(), Some(64), "{object}");
    }
    assert_eq!(ask(&["explain", "/web-0"]).status.code(), Some(0), "of any kind");
    assert_eq!(eventweir(&["explain"]).status.code(), Some(64));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn explain_reaches_a_unix_domain_socket() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("eventweir.sock").display());
    let server = Server::listening_at(&address, &[]);
    let output = eventweir(&["explain", "pod/web-0", "--server", &address]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("Nothing is known about pod default/web-0"), "{}", stdout(&output));
    assert_eq!(server.terminate(), Some(0));
    let output = eventweir(&["explain", "pod/web-0", "--server", &address]);
    let text = stderr(&output);
    assert!(output.status.code() == Some(1) && text.contains(&address) && text.contains("No such file"), "{text}");
}

#[test]
fn a_client_command_says_why_it_has_no_answer() {
    let http = |address: std::net::SocketAddr| format!("http://{address}");
    let nothing = "http://127.0.0.1:1";
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\n<p";
    let (_file, no_pem) = file("no PEM");
    for (arguments, code, expected) in [
        (["--server", nothing], 1, "Connection refused"),
        (["--server", &http(answering(html))], 1, "the answer is not eventweir's"),
        (["--server", "http://user:password@localhost"], 64, "--server an address with @: expected http://HOST:PORT"),
        (["--server", "http://localhost:99999"], 64, "expected http://HOST:PORT"),
        (["--certificate-authority", &no_pem], 64, "holds no certificate in PEM"),
        (["--token-file", "/nope"], 64, "--token-file /nope: No such file"),
    ] {
        for command in [&["explain", "pod/web-0"][..], &["top"], &["tap", "--for", "1m"]] {
            let output = eventweir(&[command, &arguments].concat());
            let text = stderr(&output);
            assert!(output.status.code() == Some(code) && text.contains(expected), "{arguments:?} {text}");
        }
    }
    let mut top = Command::new(env!("CARGO_BIN_EXE_eventweir"));
    let text = stderr(&top.args(["top", "--once"]).env("EVENTWEIR_SERVER", nothing).output().unwrap());
    assert!(text.contains(nothing) && text.contains("Connection refused"), "{text}");
    // Fault: a server that does not answer was waited for until Ctrl-C.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let output = eventweir(&["tap", "--for", "1ms", "--server", &http(silent.local_addr().unwrap())]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn top_sorts_by_the_number_of_the_flag() {
    let table = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 138\r\nConnection: close\r\n\r\n\
                 {\"objects\":[{\"namespace\":\"shop\",\"object\":\"a\",\"received\":5,\"writes\":1},\
                 {\"namespace\":\"shop\",\"object\":\"b\",\"received\":1,\"writes\":5,\"lost\":1}]}";
    let server = format!("http://{}", answering(table));
    for (flags, first) in [(&[][..], "shop a"), (&["--sort", "writes"], "shop b"), (&["--sort", "lost"], "shop b")] {
        let output = eventweir(&[&["top", "--once", "--server", &server], flags].concat());
        let text = stdout(&output);
        let shown = text.lines().find(|line| line.contains("shop")).unwrap_or_default();
        assert!(shown.contains(first), "{flags:?}: {text}{}", stderr(&output));
    }
    for flags in [["--sort", "size", "--by", "object"], ["--sort", "lost", "--by", "reason"]] {
        let output = eventweir(&[&["top", "--once", "--server", &server], &flags[..]].concat());
        assert_eq!(output.status.code(), Some(64), "{flags:?}");
    }
}

/// Returns the address of a server that answers every request with this.
fn answering(answer: &'static str) -> std::net::SocketAddr {
    answering_in_turn(vec![answer])
}

/// Returns the address of a server that answers with these in turn, again and again.
fn answering_in_turn(answers: Vec<&'static str>) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (stream, answer) in listener.incoming().zip(answers.iter().cycle()) {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    address
}

/// Runs the program in a terminal. Returns it, and both ends of the terminal: the person's, and the program's.
fn in_a_terminal(arguments: &[&str]) -> (Child, File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).and_then(|()| unlockpt(&ours)).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let open = || File::options().read(true).write(true).open(&name).unwrap();
    let theirs = open();
    let program =
        Command::new(env!("CARGO_BIN_EXE_eventweir")).args(arguments).stdin(open()).stdout(open()).spawn().unwrap();
    (program, ours.into(), theirs)
}

fn signal(program: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(program), signal).unwrap();
}

/// Reads what a terminal shows until it has shown the text.
fn shows(terminal: &File) -> impl FnMut(&str) -> bool + use<> {
    let mut bytes = BufReader::new(terminal.try_clone().unwrap()).bytes().map(Result::unwrap);
    move |text| {
        let mut shown = Vec::new();
        bytes.any(|byte| {
            shown.push(byte);
            shown.ends_with(text.as_bytes())
        })
    }
}

/// Faults: a live `top` ended when one refresh was refused. While a server did not answer, Ctrl-C was not heard, or left
/// the terminal without echo.
#[test]
fn a_live_top_outlives_a_refused_refresh_and_hears_signals() {
    let table = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 47\r\nConnection: close\r\n\r\n\
                 {\"objects\":[{\"namespace\":\"shop\",\"object\":\"o\"}]}";
    let refusal = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Fault: SIGTERM left the terminal without echo.
    for (answers, end) in [(&[table, refusal][..], None), (&[], Some(Signal::Int)), (&[], Some(Signal::Term))] {
        let server =
            if answers.is_empty() { silent.local_addr().unwrap() } else { answering_in_turn(answers.to_vec()) };
        let server = format!("http://{server}");
        let (mut top, mut ours, theirs) = in_a_terminal(&["top", "--interval", "1ms", "--server", &server]);
        let echoes = || tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON);
        // Fault: Ctrl-Z left the shell a terminal without echo.
        let suspends = || tcgetattr(&theirs).unwrap().special_codes[SpecialCodeIndex::VSUSP] != 0;
        let mut asked = None;
        if let Some(end) = end {
            asked = Some(silent.accept().unwrap());
            assert!(!echoes() && !suspends());
            signal(&top, end);
        } else {
            let mut next = shows(&ours);
            assert!(next("shop o") && !echoes() && next("403 Forbidden") && next("shop o"));
            ours.write_all(b"q").unwrap();
        }
        assert_eq!((top.wait().unwrap().code(), echoes(), suspends()), (Some(0), true, true), "{asked:?}");
    }
}

#[test]
fn top_is_drawn_again_when_its_window_changes() {
    let server = Server::start(&[]);
    let (mut top, mut ours, theirs) = in_a_terminal(&["top", "--server", &format!("http://{}", server.listen)]);
    let mut next = shows(&ours);
    assert!(next("p pause"));
    ours.write_all(b"p").unwrap();
    assert!(next("PAUSED"));
    let (ws_col, ws_row, ws_xpixel, ws_ypixel) = (30, 20, 0, 0);
    tcsetwinsize(&theirs, Winsize { ws_row, ws_col, ws_xpixel, ws_ypixel }).unwrap();
    // The kernel sends it to the processes whose controlling terminal this is, and the test's program has none.
    signal(&top, Signal::Winch);
    assert!(next("q quit  j k move  enter expla…"));
    ours.write_all(b"q").unwrap();
    assert!(top.wait().unwrap().success());
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn observe_says_why_it_has_no_events() {
    let html = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\nConnection: close\r\n\r\n<p";
    let (_file, kubeconfig) = file(&format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]}}",
        answering(html)
    ));
    let mut observe = Command::new(env!("CARGO_BIN_EXE_eventweir"))
        .args(["observe", "--kubeconfig", &kubeconfig])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(observe.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("trying again"));
    observe.kill().unwrap();
    observe.wait().unwrap();
    assert_eq!(said.as_deref(), Some("the events cannot be read now, trying again: 502 <p"));
}

/// Faults: `tap | head -1` did not end, and `replay --help | head -1` failed.
#[test]
fn a_closed_standard_output_ends_a_command() {
    let line = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n{\"skipped\":1}\n";
    let server = format!("http://{}", answering(line));
    for arguments in [&["tap", "--server", &server][..], &["replay", "--help"], &["config-schema"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_eventweir"));
        let output = command.args(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{arguments:?}");
    }
}

/// Fault: the tables of `replay` had the escape sequences of events.
#[test]
fn texts_of_events_do_not_control_a_terminal() {
    let event = recorded_hour().lines().next().unwrap().replace(r#""hello""#, r#""a\u001b[2J\u009b1m\nb""#);
    let (_file, path) = file(&event);
    for arguments in [["-o", "table"], ["-o", "wide"], ["-o", "json"]] {
        let output = eventweir(&[&["replay", &path, "-q"][..], &arguments].concat());
        let text = stdout(&output);
        assert!(output.status.success() && !text.contains(['\u{1b}', '\u{9b}']) && text.contains("1m"), "{text}");
    }
}

/// A replica knows only the events that it has received.
#[test]
fn explain_queries_several_servers_and_shows_the_one_that_knows() {
    let (one, other) = (Server::start(&[]), Server::start(&[]));
    other.post("web-0.1");
    let [first, second] = [&one, &other].map(|server| format!("http://{}", server.listen));
    let ask = |servers: &[&str], object: &str| {
        let servers = servers.iter().flat_map(|server| ["--server", server]);
        eventweir(&["explain", object].into_iter().chain(servers).collect::<Vec<_>>())
    };
    let output = ask(&[&first], "pod/web-0");
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).contains("each with a --server of its own"), "{}", stdout(&output));
    let output = ask(&[&first, &second], "pod/web-0");
    let text = stdout(&output);
    assert!(output.status.success() && text.starts_with(&format!("{second}\n")) && text.contains("RECEIVED"), "{text}");
    assert!(!text.contains(&first), "{text}");
    let text = stdout(&ask(&[&first, &second], "pod/web-9"));
    assert!(text.contains(&first) && text.contains(&second), "{text}");
    // A server that does not answer is named, and the others are queried.
    let output = ask(&["http://127.0.0.1:1", &second], "pod/web-0");
    assert!(output.status.success() && stderr(&output).contains("http://127.0.0.1:1: "), "{}", stderr(&output));
    assert_eq!(ask(&["http://127.0.0.1:1", &first], "pod/web-0").status.code(), Some(1));
    assert_eq!(eventweir(&["top", "--server", &first, "--server", &second]).status.code(), Some(64));
    assert_eq!((one.terminate(), other.terminate()), (Some(0), Some(0)));
}

/// Fault: with several servers, `--follow` did not say that it prints the occurrences of one.
#[test]
fn follow_names_the_server_that_it_follows() {
    let (one, other) = (Server::start(&[]), Server::start(&[]));
    other.post("web-0.1");
    let [first, second] = [&one, &other].map(|server| format!("http://{}", server.listen));
    let follow = |servers: &[&str]| {
        let servers = servers.iter().flat_map(|server| ["--server", server]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_eventweir"));
        command.args(["explain", "pod/web-0", "--follow"]).args(servers).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("DECISIONS")));
        child
    };
    let children = [follow(&[&first, &second]), follow(&[&second])];
    assert_eq!((one.terminate(), other.terminate()), (Some(0), Some(0)));
    // Each ends with an error, because the server has stopped.
    let [several, single] = children.map(|child| stderr(&child.wait_with_output().unwrap()));
    let said = format!("following {second} only; --server and --pod choose another one\n");
    assert!(several.starts_with(&said) && !single.contains("following"), "{several}\n{single}");
}

/// The kubeconfig of an API server that does not run.
const NO_CLUSTER: &str = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  \
                          cluster: {server: 'http://127.0.0.1:1'}\ncontexts:\n- name: a\n  \
                          context: {cluster: a, user: a}\nusers:\n- name: a\n";

#[test]
fn an_api_server_that_cannot_be_reached_is_named() {
    let (_file, kubeconfig) = file(NO_CLUSTER);
    let output = eventweir(&["explain", "pod/web-0", "--in-cluster", "--kubeconfig", &kubeconfig]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("--in-cluster=eventweir/eventweir: the API server http://127.0.0.1:1/: "), "{text}");
}

#[test]
fn a_second_ctrl_c_ends_the_drain() {
    let ((_file, kubeconfig), (_config, config)) = (file(NO_CLUSTER), file("shutdown: {drainTimeout: 1h}\n"));
    let arguments = ["--upstream", "apiserver", "--kubeconfig", &kubeconfig, "--config", &config];
    // `timeout`, so that the test fails instead of waiting for the drain.
    let mut child = Command::new("timeout")
        .args(["--foreground", "-s", "KILL", "60", env!("CARGO_BIN_EXE_eventweir"), "serve"])
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let listening = lines.find(|line| line.contains("listening")).unwrap();
    let listen = listening.split_once("listen=").unwrap().1.split_whitespace().next().unwrap();
    assert!(try_post(listen, "web-0.1").unwrap().starts_with("HTTP/1.1 201 Created"));
    // `timeout` hands the signal on.
    let interrupt =
        || assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    interrupt();
    assert!(lines.any(|line| line.contains("stopping; what waits is written") && line.contains("occurrences=1")));
    interrupt();
    assert!(lines.any(|line| line.contains("occurrences are lost")));
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

#[test]
fn serve_writes_an_event_log_and_stops_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("events.ndjson");
    let server = Server::start(&["--event-log", &log.display().to_string()]);
    for number in 0..3 {
        let answer = server.post(&format!("web-0.{number}"));
        let outcome = if number == 0 { "eventweir-outcome: created" } else { "eventweir-outcome: counted" };
        assert!(answer.starts_with("HTTP/1.1 201 Created") && answer.contains(outcome), "{answer}");
    }
    let ready = request(&server.admin, "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(ready.starts_with("HTTP/1.1 200 OK"), "{ready}");
    assert_eq!(server.terminate(), Some(0));
    let lines = std::fs::read_to_string(&log).unwrap();
    let outcomes: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["outcome"].clone()).collect();
    assert_eq!(outcomes, ["created", "counted", "counted"]);
}

/// Fault: the first line that did not fit blocked the thread that logged it, and soon every thread.
#[test]
fn a_standard_error_that_is_never_read_blocks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.sock");
    let (mut full, reader) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(b"\n").is_ok() {}
    full.set_nonblocking(false).unwrap();
    // `timeout`, so that the test fails instead of waiting forever.
    let mut child = Command::new("timeout")
        .args(["-s", "KILL", "30", env!("CARGO_BIN_EXE_eventweir"), "serve", "--log-level", "debug"])
        .args(["--listen", &format!("unix:{}", path.display()), "--admin-listen", "127.0.0.1:0"])
        .stderr(std::os::fd::OwnedFd::from(full))
        .spawn()
        .unwrap();
    while UnixStream::connect(&path).is_err() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    let answer = |request: &[u8]| {
        let (mut client, mut answer) = (UnixStream::connect(&path).unwrap(), String::new());
        client.write_all(request).unwrap();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    // Each has a line, and 1,024 wait.
    for _ in 0..1100 {
        assert!(answer(b"no HTTP\r\n\r\n").starts_with("HTTP/1.1 400"));
    }
    let answer = answer(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let mut lines = BufReader::new(reader).lines();
    assert!(lines.any(|line| line.unwrap().contains("lines of the log were left out")));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Returns the number of occurrences that the process restored from the spool.
fn restored(server: &Server) -> u64 {
    let metrics = request(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let name = "eventweir_spool_restored_occurrences_total ";
    metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

#[test]
fn occurrences_acknowledged_as_durable_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // The apiserver never answers, so everything stays in the spool.
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
        clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n";
    std::fs::write(path("kubeconfig"), kubeconfig).unwrap();
    std::fs::write(path("config"), "ingest: {ack: durable}\n").unwrap();
    let (config, kubeconfig, spool) = (path("config"), path("kubeconfig"), path("spool"));
    let arguments =
        ["--config", &config, "--upstream", "apiserver", "--kubeconfig", &kubeconfig, "--spool-dir", &spool];
    let (mut acknowledged, mut sent) = (0, 0);
    for acknowledgements in [1, 7, 3, 12, 5] {
        let mut server = Server::start(&arguments);
        let found = restored(&server);
        assert!((acknowledged..=sent).contains(&found), "{acknowledged} <= {found} <= {sent}");
        let (listen, (told, heard)) = (server.listen.clone(), mpsc::sync_channel(1_000));
        let client = std::thread::spawn(move || {
            (1..).find(|number| match try_post(&listen, &format!("web-0.{number}")) {
                Ok(answer) if answer.starts_with("HTTP/1.1 201 Created") && !answer.contains("warning:") => {
                    told.send(()).unwrap();
                    false
                }
                Ok(_) | Err(_) => true,
            })
        });
        for _ in 0..acknowledgements {
            heard.recv().unwrap();
        }
        // Kills the server while it works.
        server.child.kill().unwrap();
        sent += client.join().unwrap().unwrap();
        acknowledged += acknowledgements + heard.try_iter().count() as u64;
    }
    let found = restored(&Server::start(&arguments));
    assert!((acknowledged..=sent).contains(&found), "{acknowledged} <= {found} <= {sent}");
}
