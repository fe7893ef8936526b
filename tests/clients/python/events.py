"""Records Events with the official Python client and with a kopf operator, and checks the server's list and ledger.

Each scenario has its own object. A line per scenario goes to stdout; the exit code is 0 if all passed.
"""

import asyncio
import logging
import os
import re
import sys
import time
import traceback
import urllib.request
from datetime import datetime, timezone

import kopf
from kopf._cogs.structs import references
from kubernetes import client, watch

SERVER = os.environ["SERVER"]
METRICS = os.environ["METRICS"]
# Time limit of polling, in seconds.
DEADLINE = 30

# One namespace per API group: this client cannot read a list of new-style events if one has no eventTime, and core/v1
# events may have none.
CORE, NEW = "python-core", "python-new"

configuration = client.Configuration(host=SERVER)
api = client.ApiClient(configuration)
core = client.CoreV1Api(api)
new = client.EventsV1Api(api)


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


class Ledger:
    """The server's ledger; see docs/metrics.md."""

    def __init__(self):
        self.sums, self.waiting = {}, {}
        text = urllib.request.urlopen(METRICS, timeout=DEADLINE).read().decode()
        for name, label, value in re.findall(r"^eventweir_ledger_([a-z]+)\S*?(?:{\w+=\"(\w+)\"})? (\d+)$", text, re.M):
            self.sums[name] = self.sums.get(name, 0) + int(value)
            if name == "waiting":
                self.waiting[label] = int(value)
        accounted = sum(self.sums[name] for name in ("rejected", "written", "waiting", "lost"))
        same("rejected + written + waiting + lost", accounted, self.sums["received"])


def begin():
    """Waits until occurrences wait for budgets only, and returns the ledger."""

    def check():
        now = Ledger()
        held = {why: count for why, count in now.waiting.items() if count and why != "budget"}
        assert not held, f"still waiting: {held}"
        return now

    return until("the ledger", check)


def settled(before, sent, lost=0):
    """Waits as begin does, checks the ledger's growth since `before`, and returns the written occurrences."""
    now = begin()
    grown = {name: now.sums[name] - before.sums[name] for name in now.sums}
    same("received", grown["received"], sent)
    same("rejected", grown["rejected"], 0)
    same("lost", grown["lost"], lost)
    same("written + waiting", grown["written"] + grown["waiting"], sent - lost)
    return grown["written"]


def count(event):
    series = event.series.count if event.series else 0
    return max(getattr(event, "count", None) or getattr(event, "deprecated_count", None) or 0, series, 1)


def listed(namespace, name):
    """Lists the records about an object through the API group of the namespace."""
    if namespace == NEW:
        selector = f"regarding.name={name}"
        return new.list_namespaced_event(namespace, field_selector=selector).items
    return core.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items


def stored(namespace, name, occurrences, records):
    """Waits until the list shows all occurrences."""

    def check():
        events = listed(namespace, name)
        same("occurrences listed", sum(map(count, events)), occurrences)
        return events

    events = until(f"the list of {name}", check)
    same("records", len(events), records)
    return events


def pod(namespace, name):
    return client.V1ObjectReference(api_version="v1", kind="Pod", namespace=namespace, name=name, uid=f"uid-{name}")


def core_event(name, reason="BackOff", message="Back-off restarting failed container"):
    now = datetime.now(timezone.utc)
    return client.CoreV1Event(
        metadata=client.V1ObjectMeta(generate_name=f"{name}-", namespace=CORE),
        involved_object=pod(CORE, name),
        reason=reason,
        message=message,
        type="Warning",
        source=client.V1EventSource(component="python"),
        first_timestamp=now,
        last_timestamp=now,
        count=1,
    )


def new_event(name, reason="BackOff", message="Back-off restarting failed container"):
    return client.EventsV1Event(
        metadata=client.V1ObjectMeta(generate_name=f"{name}-", namespace=NEW),
        event_time=datetime.now(timezone.utc),
        regarding=pod(NEW, name),
        action="Restarting",
        reason=reason,
        note=message,
        type="Warning",
        reporting_controller="example.com/python",
        reporting_instance="python-0",
    )


def post(namespace, *event):
    if namespace == NEW:
        return new.create_namespaced_event(NEW, new_event(*event))
    return core.create_namespaced_event(CORE, core_event(*event))


def repeats(namespace):
    before = begin()
    for _ in range(30):
        post(namespace, "repeats")
    stored(namespace, "repeats", 30, 1)
    same("written", settled(before, 30), 30)


def messages(namespace):
    before = begin()
    for volume in range(20):
        post(namespace, "messages", "FailedMount", f"MountVolume.SetUp failed for volume {volume}")
    # Nine messages stay separate; the tenth and later ones are combined.
    events = stored(namespace, "messages", 20, 10)
    same("the combined record", sorted(map(count, events)), [1] * 9 + [11])
    same("written", settled(before, 20), 20)


def burst(namespace):
    before = begin()
    for reason in range(100):
        post(namespace, "burst", f"Reason{reason}")
    written = settled(before, 100)
    # A full budget writes 25 records at once. The others wait for a token, one per five minutes.
    assert written >= 25, f"written: {written}"
    same("occurrences listed", sum(map(count, listed(namespace, "burst"))), written)


def patch(namespace):
    """The client counts, and patches per repeat with a strategic-merge patch, its default."""
    before = begin()
    name = post(namespace, "patch").metadata.name
    for number in range(2, 11):
        now = datetime.now(timezone.utc)
        if namespace == NEW:
            answer = new.patch_namespaced_event(name, NEW, {"series": {"count": number, "lastObservedTime": now}})
        else:
            answer = core.patch_namespaced_event(name, CORE, {"count": number, "lastTimestamp": now})
        same("the name in the answer", answer.metadata.name, name)
        same("the count in the answer", count(answer), number)
    stored(namespace, "patch", 10, 1)
    same("written", settled(before, 10), 10)


def replace(namespace):
    before = begin()
    post(namespace, "replace")
    event = stored(namespace, "replace", 1, 1)[0]
    event.metadata.labels = {"replaced": "yes"}
    group = new if namespace == NEW else core
    answer = group.replace_namespaced_event(event.metadata.name, namespace, event)
    same("labels in the answer", answer.metadata.labels, {"replaced": "yes"})
    same("labels listed", stored(namespace, "replace", 1, 1)[0].metadata.labels, {"replaced": "yes"})
    # A later repeat adds to the count.
    post(namespace, "replace")
    stored(namespace, "replace", 2, 1)
    same("written", settled(before, 2), 2)


def watch_and_delete(namespace):
    before = begin()
    group = new if namespace == NEW else core
    field = "regarding.name" if namespace == NEW else "involvedObject.name"
    selector = {"field_selector": f"{field}=watch"}
    version = group.list_namespaced_event(namespace, **selector).metadata.resource_version
    name = post(namespace, "watch").metadata.name
    post(namespace, "watch")
    stored(namespace, "watch", 2, 1)
    group.delete_namespaced_event(name, namespace)
    same("records after the delete", listed(namespace, "watch"), [])

    seen = []
    stream = watch.Watch()
    for change in stream.stream(
        group.list_namespaced_event, namespace, resource_version=version, timeout_seconds=DEADLINE, **selector
    ):
        seen.append((change["type"], count(change["object"])))
        if change["type"] == "DELETED":
            stream.stop()
    same("changes watched", seen, [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 2)])
    try:
        group.read_namespaced_event(name, namespace)
        raise AssertionError("the deleted event can still be read")
    except client.ApiException as error:
        same("reading the deleted event", error.status, 404)
    settled(before, 2)


def operator():
    """A kopf operator that reports on pods when it sees the seed. It watches Events, the server's only resource.

    An operator waits for the resource `namespaces` in discovery, and this server has only Events. So the resource is
    preset in the operator's insights. The operator is cluster-wide and does not scan, so it never requests one.
    """
    namespace, pods = "python-kopf", {}
    for name in ("kopf-repeats", "kopf-messages", "kopf-burst"):
        metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
        pods[name] = kopf.Body({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.loggers = False
    before = begin()

    @kopf.on.login(registry=registry)
    def login(**_):
        return kopf.ConnectionInfo(server=SERVER)

    @kopf.on.event("", "v1", "events", when=lambda name, **_: name == "seed", registry=registry)
    def report(type, **_):
        if type == "DELETED":
            return
        for _ in range(30):
            kopf.info(pods["kopf-repeats"], reason="Synced", message="The pod is in sync.")
        for volume in range(20):
            kopf.warn(pods["kopf-messages"], reason="FailedMount", message=f"Volume {volume}: {'no ' * 1000}")
        for reason in range(100):
            kopf.event(pods["kopf-burst"], type="Normal", reason=f"Reason{reason}", message="It happened.")

    def check():
        seed = core_event("seed")
        seed.metadata = client.V1ObjectMeta(name="seed", namespace=namespace)
        seed.involved_object.namespace = namespace
        core.create_namespaced_event(namespace, seed)
        sent = 1 + 30 + 20 + 100
        until("the operator", lambda: same("received", Ledger().sums["received"] - before.sums["received"], sent))
        stored(namespace, "kopf-repeats", 30, 1)
        stored(namespace, "kopf-messages", 20, 10)
        written = settled(before, sent)
        same("occurrences listed", sum(map(count, listed(namespace, "kopf-burst"))), written - 1 - 30 - 20)

    async def run():
        insights, stop = references.Insights(), asyncio.Event()
        await insights.backbone.fill(resources=[references.Resource("", "v1", "namespaces", kind="Namespace")])
        options = {"registry": registry, "settings": settings, "insights": insights, "stop_flag": stop}
        running = asyncio.create_task(kopf.operator(clusterwide=True, standalone=True, **options))
        try:
            await asyncio.to_thread(check)
        finally:
            stop.set()
            await running

    asyncio.run(run())


def main():
    logging.basicConfig(level=logging.WARNING)
    per_group = (repeats, messages, burst, patch, replace, watch_and_delete)
    scenarios = {f"{space} {scenario.__name__}": (scenario, space) for space in (CORE, NEW) for scenario in per_group}
    failed = 0
    for name, (scenario, *arguments) in {**scenarios, "kopf operator": (operator,)}.items():
        name = name.replace(" ", "-").replace("_", "-")
        try:
            scenario(*arguments)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {' '.join(str(error).split())}", flush=True)
            traceback.print_exc(limit=-5)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
