"""The official Python client as in a pod, and a kopf operator started by `kopf run`, behind eventweir in pass-through.

The checks read the results from the apiserver. A line per scenario goes to stdout; the exit code is 0 if all passed.
"""

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from datetime import datetime, timezone

from kubernetes import client, config, watch
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock

NAMESPACE = os.environ["NAMESPACE"]
# Time limit of polling, in seconds.
DEADLINE = 30

config.load_incluster_config()
core = client.CoreV1Api()
new = client.EventsV1Api()
admin = client.CoreV1Api(config.new_client_from_config(os.environ["ADMIN"]))


def until(what, check):
    """Repeats check until it returns. After the deadline it raises the last error."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return check()
        except AssertionError as error:
            if time.monotonic() >= end:
                raise AssertionError(f"{what}: {error}") from None
            time.sleep(0.05)


def same(what, have, want):
    assert have == want, f"{what}: {have!r}, not {want!r}"


def counts(name):
    """Returns the counts of the apiserver's records about an object."""
    events = admin.list_namespaced_event(NAMESPACE, field_selector=f"involvedObject.name={name}").items
    return sorted(max(event.count or 0, event.series.count if event.series else 0, 1) for event in events)


def pod(name):
    return client.V1ObjectReference(api_version="v1", kind="Pod", namespace=NAMESPACE, name=name, uid=f"uid-{name}")


def config_map(name):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data={"a": "1"})


def events_of_core(api=core, name="core"):
    now = datetime.now(timezone.utc)
    for _ in range(30):
        api.create_namespaced_event(NAMESPACE, client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name="core-"), involved_object=pod(name), reason="BackOff",
            message="Back-off restarting failed container", type="Warning", count=1, first_timestamp=now,
            last_timestamp=now, source=client.V1EventSource(component="python"),
        ))
    until("the record", lambda: same("counts", counts(name), [30]))
    return "30 occurrences are one record"


def recipe(endpoint):
    """The recipe of docs/clients.md. tests/tidy.rs compares its lines."""

    def token(configuration):
        with open("/var/run/secrets/eventweir/token") as file:
            configuration.api_key["authorization"] = "Bearer " + file.read().strip()

    configuration = client.Configuration(host=endpoint)
    configuration.ssl_ca_cert = "/var/run/secrets/eventweir/ca.crt"
    configuration.refresh_api_key_hook = token
    token(configuration)
    events = client.CoreV1Api(client.ApiClient(configuration))
    return events


def own_endpoint():
    return events_of_core(recipe(os.environ["ENDPOINT"]), "own-endpoint")


def events_of_the_new_group():
    for _ in range(30):
        new.create_namespaced_event(NAMESPACE, client.EventsV1Event(
            metadata=client.V1ObjectMeta(generate_name="new-"), event_time=datetime.now(timezone.utc),
            regarding=pod("new"), action="Restarting", reason="BackOff", note="Back-off restarting failed container",
            type="Warning", reporting_controller="example.com/python", reporting_instance="python-0",
        ))
    until("the record", lambda: same("counts", counts("new"), [30]))
    return "30 occurrences are one record"


def replaced(api, subject, post, state):
    """A GET, then a PUT with a count: the apiserver stores the count, and a repeat adds to it."""
    name = post().metadata.name
    until("the record", lambda: same("counts", counts(subject), [1]))
    for number in (7, 12):
        event = api.read_namespaced_event(name, NAMESPACE)
        event.metadata.labels = {"replaced": str(number)}
        state(event, number)
        answer = api.replace_namespaced_event(name, NAMESPACE, event)
        same("labels in the answer", answer.metadata.labels, {"replaced": str(number)})
        stored = admin.read_namespaced_event(name, NAMESPACE)
        same("labels", stored.metadata.labels, {"replaced": str(number)})
        same("counts", counts(subject), [number])
        post()
        until("a repeat", lambda: same("counts", counts(subject), [number + 1]))
    return "the count of the PUT is stored, and repeats add to it"


def replace_of_core():
    now = datetime.now(timezone.utc)

    def state(event, number):
        event.count = number

    return replaced(core, "replaced", lambda: core.create_namespaced_event(NAMESPACE, client.CoreV1Event(
        metadata=client.V1ObjectMeta(generate_name="replaced-"), involved_object=pod("replaced"), reason="BackOff",
        message="Back-off restarting failed container", type="Warning", count=1, first_timestamp=now, last_timestamp=now,
        source=client.V1EventSource(component="python"),
    )), state)


def replace_of_the_new_group():
    def state(event, number):
        event.series = client.EventsV1EventSeries(count=number, last_observed_time=datetime.now(timezone.utc))

    return replaced(new, "new-replaced", lambda: new.create_namespaced_event(NAMESPACE, client.EventsV1Event(
        metadata=client.V1ObjectMeta(generate_name="new-replaced-"), event_time=datetime.now(timezone.utc),
        regarding=pod("new-replaced"), action="Restarting", reason="BackOff", note="Back-off restarting failed container",
        type="Warning", reporting_controller="example.com/python", reporting_instance="python-0",
    )), state)


def everything_else():
    core.create_namespaced_config_map(NAMESPACE, config_map("python"))
    core.patch_namespaced_config_map("python", NAMESPACE, {"data": {"b": "2"}})
    same("data", admin.read_namespaced_config_map("python", NAMESPACE).data, {"a": "1", "b": "2"})
    listed = core.list_namespaced_config_map(NAMESPACE, label_selector="none=none", limit=1)
    seen, stream = [], watch.Watch()
    changes = stream.stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=listed.metadata.resource_version, timeout_seconds=DEADLINE
    )
    core.delete_namespaced_config_map("python", NAMESPACE)
    for change in changes:
        if change["object"].metadata.name == "python":
            seen.append(change["type"])
            stream.stop()
    same("changes", seen, ["DELETED"])
    try:
        core.read_namespaced_config_map("python", NAMESPACE)
        raise AssertionError("the deleted object still exists")
    except client.ApiException as error:
        same("the code", error.status, 404)
    return "created, patched, listed, watched and deleted"


def leads():
    leading = threading.Event()
    lock = ConfigMapLock("python-leader", NAMESPACE, "python-0")
    election = electionconfig.Config(
        lock, lease_duration=17, renew_deadline=15, retry_period=5, onstarted_leading=leading.set, onstopped_leading=None
    )
    threading.Thread(target=leaderelection.LeaderElection(election).run, daemon=True).start()
    assert leading.wait(DEADLINE), "not elected"
    record = admin.read_namespaced_config_map("python-leader", NAMESPACE).metadata.annotations
    assert "python-0" in record[lock.leader_electionrecord_annotationkey], record
    return "the lease is held by python-0"


OPERATOR = """
import kopf

@kopf.on.create("", "v1", "configmaps", annotations={"kopf": "yes"})
@kopf.on.update("", "v1", "configmaps", annotations={"kopf": "yes"}, field="data.a")
def report(body, patch, **_):
    for _ in range(30):
        kopf.info(body, reason="Synced", message="The object is in sync.")
    patch.setdefault("data", {})["seen"] = body["data"]["a"]
"""


@contextlib.contextmanager
def running(text, **environment):
    """Runs an operator, and ends it. Yields its process."""
    path = os.path.join(os.environ["WORK"], "operator.py")
    with open(path, "w") as file:
        file.write(text)
    log = open(os.path.join(os.environ["WORK"], "kopf.log"), "w+")
    command = [sys.executable, "-m", "kopf", "run", "--namespace", NAMESPACE, "--standalone", path]
    environment = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
        process.terminate()
        same("the exit code", process.wait(DEADLINE), 0)
    except AssertionError:
        log.seek(0)
        print(log.read()[-3000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait(DEADLINE)


def handled(process, name, value):
    """Checks that the operator has handled this value."""
    assert process.poll() is None, "kopf ended"
    same("seen", (admin.read_namespaced_config_map(name, NAMESPACE).data or {}).get("seen"), value)


def operator():
    def synced(times):
        records = admin.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=kopf").items
        same("Synced", [record.count for record in records if record.reason == "Synced"], [times])

    with running(OPERATOR) as process:
        observed = config_map("kopf")
        observed.metadata.annotations = {"kopf": "yes"}
        admin.create_namespaced_config_map(NAMESPACE, observed)
        until("the handler", lambda: handled(process, "kopf", "1"))
        until("the events", lambda: synced(30))
        admin.patch_namespaced_config_map("kopf", NAMESPACE, {"data": {"a": "2"}})
        until("the handler", lambda: handled(process, "kopf", "2"))
        until("the events", lambda: synced(60))
        # Kill eventweir; the supervisor restarts it.
        with open(os.environ["PID_FILE"]) as file:
            os.kill(int(file.read()), signal.SIGKILL)
        admin.patch_namespaced_config_map("kopf", NAMESPACE, {"data": {"a": "3"}})
        until("the handler after a restart", lambda: handled(process, "kopf", "3"))
        until("the events after a restart", lambda: synced(90))
        admin.delete_namespaced_config_map("kopf", NAMESPACE)
    return f"90 occurrences are one record, a third of them after eventweir was killed"


OWN_ENDPOINT_OPERATOR = """
import os
from datetime import datetime, timezone

import kopf
from kubernetes import client

%s
events = recipe(os.environ["ENDPOINT"])

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@kopf.on.create("", "v1", "configmaps", annotations={"kopf": "own"})
def report(body, patch, **_):
    kopf.info(body, reason="Kopf", message="This is posted through the watching session.")
    now, metadata = datetime.now(timezone.utc), body["metadata"]
    about = client.V1ObjectReference(
        api_version="v1", kind="ConfigMap", namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]
    )
    for _ in range(30):
        events.create_namespaced_event(metadata["namespace"], client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name="kopf-"), involved_object=about, reason="Synced",
            message="The object is in sync.", type="Normal", count=1, first_timestamp=now, last_timestamp=now,
            source=client.V1EventSource(component="operator"),
        ))
    patch.setdefault("data", {})["seen"] = body["data"]["a"]
"""


def operator_with_own_endpoint():
    """The recipe of docs/clients.md for kopf, whose session is with the apiserver. tests/tidy.rs compares its lines."""
    directly = {"KUBECONFIG": os.environ["ADMIN"], "KUBERNETES_SERVICE_HOST": None}
    with running(OWN_ENDPOINT_OPERATOR % inspect.getsource(recipe), **directly) as process:
        observed = config_map("kopf-own")
        observed.metadata.annotations = {"kopf": "own"}
        admin.create_namespaced_config_map(NAMESPACE, observed)
        until("the handler", lambda: handled(process, "kopf-own", "1"))
        until("the events", lambda: same("counts", counts("kopf-own"), [30]))
    records = admin.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=kopf-own").items
    same("reasons", [record.reason for record in records], ["Synced"])
    return "30 occurrences are one record, and kopf has posted none itself"


def main():
    failed = 0
    scenarios = (
        events_of_core, events_of_the_new_group, own_endpoint, replace_of_core, replace_of_the_new_group, everything_else,
        leads, operator, operator_with_own_endpoint,
    )
    for scenario in scenarios:
        name = scenario.__name__.replace("_", "-")
        try:
            print(f"ok {name}: {scenario()}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {' '.join(str(error).split())}", flush=True)
            traceback.print_exc(limit=-5)
    return failed > 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The election thread has no end.
    os._exit(code)
