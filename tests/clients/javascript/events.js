// Records Events with the official JavaScript client, and checks what the server lists and counts.
//
// Each scenario has an object of its own. A line per scenario goes to stdout; the exit code is 0 when all passed.
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import {
  CoreV1Api, EventsV1Api, KubeConfig, PatchStrategy, V1MicroTime, Watch, setHeaderOptions,
} from '@kubernetes/client-node';

const { SERVER, METRICS, SKIP_PATCH } = process.env;
// How long what is polled for may take.
const DEADLINE = 30_000;

const config = new KubeConfig();
// The client refuses plain HTTP unless it is told not to verify TLS.
config.loadFromClusterAndUser({ name: 'eventweir', server: SERVER, skipTLSVerify: true }, { name: 'nobody' });
const core = config.makeApiClient(CoreV1Api);
const events = config.makeApiClient(EventsV1Api);

// The two doors, each with a namespace of its own. `body` makes an event, `patched` the JSON patch of a repeat.
const doors = {
  core: {
    api: core,
    namespace: 'javascript-core',
    path: '/api/v1/namespaces/javascript-core/events',
    field: 'involvedObject.name',
    body: (name, reason, message) => ({
      metadata: { generateName: `${name}-` },
      involvedObject: pod('javascript-core', name),
      reason,
      message,
      type: 'Warning',
      source: { component: 'javascript' },
      firstTimestamp: new Date(),
      lastTimestamp: new Date(),
      count: 1,
    }),
    patched: (count) => [
      { op: 'replace', path: '/count', value: count },
      { op: 'replace', path: '/lastTimestamp', value: new Date().toISOString() },
    ],
    merged: (count) => ({ count, lastTimestamp: new Date().toISOString() }),
  },
  new: {
    api: events,
    namespace: 'javascript-new',
    path: '/apis/events.k8s.io/v1/namespaces/javascript-new/events',
    field: 'regarding.name',
    body: (name, reason, note) => ({
      metadata: { generateName: `${name}-` },
      eventTime: new V1MicroTime(),
      regarding: pod('javascript-new', name),
      action: 'Restarting',
      reason,
      note,
      type: 'Warning',
      reportingController: 'example.com/javascript',
      reportingInstance: 'javascript-0',
    }),
    patched: (count) => [{ op: 'add', path: '/series', value: { count, lastObservedTime: new V1MicroTime() } }],
    merged: (count) => ({ series: { count, lastObservedTime: new V1MicroTime() } }),
  },
};

function pod(namespace, name) {
  return { apiVersion: 'v1', kind: 'Pod', namespace, name, uid: `uid-${name}` };
}

// Asks check again and again until it returns something; what it threw last is the reason when it never does.
async function until(what, check) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (!(error instanceof assert.AssertionError)) throw error;
      if (Date.now() >= end) throw new Error(`${what}: ${error.message}`);
      await pause(50);
    }
  }
}

function same(what, have, want) {
  const text = (value) => JSON.stringify(value);
  assert.ok(text(have) === text(want), `${what}: ${text(have)}, not ${text(want)}`);
}

// The server's account of occurrences, as sums over the labels; see docs/metrics.md. moving: what waits, but not for a
// budget, and is decided within seconds.
async function ledger() {
  const text = await (await fetch(METRICS)).text();
  const sums = { moving: 0 };
  for (const [, name, label, value] of text.matchAll(/^eventweir_ledger_([a-z]+)[^{ ]*(?:{\w+="(\w+)"})? (\d+)$/gm)) {
    sums[name] = (sums[name] ?? 0) + Number(value);
    if (name === 'waiting' && label !== 'budget') sums.moving += Number(value);
  }
  same('rejected + written + waiting + lost', sums.rejected + sums.written + sums.waiting + sums.lost, sums.received);
  return sums;
}

// The ledger once only budgets hold occurrences back.
const begin = () =>
  until('the ledger', async () => {
    const sums = await ledger();
    same('waiting, but not for a budget', sums.moving, 0);
    return sums;
  });

// How many of the occurrences sent since `before` are written, once it is decided; all are accounted for.
async function settled(before, sent) {
  const now = await begin();
  const grown = (name) => now[name] - before[name];
  same('received', grown('received'), sent);
  same('rejected', grown('rejected'), 0);
  same('lost', grown('lost'), 0);
  same('written + waiting', grown('written') + grown('waiting'), sent);
  return grown('written');
}

const count = (event) => Math.max(event.count ?? event.deprecatedCount ?? 0, event.series?.count ?? 0, 1);
const total = (records) => records.reduce((sum, event) => sum + count(event), 0);
const list = ({ api, namespace, field }, name) =>
  api.listNamespacedEvent({ namespace, fieldSelector: `${field}=${name}` });
const post = ({ api, namespace, body }, name, reason = 'BackOff', message = 'Back-off restarting failed container') =>
  api.createNamespacedEvent({ namespace, body: body(name, reason, message) });

// Waits until the list shows all occurrences.
async function stored(door, name, occurrences, records) {
  const items = await until(`the list of ${name}`, async () => {
    const { items } = await list(door, name);
    same('occurrences listed', total(items), occurrences);
    return items;
  });
  same('records', items.length, records);
  return items;
}

async function repeats(door) {
  const before = await begin();
  for (let n = 0; n < 30; n += 1) await post(door, 'repeats');
  await stored(door, 'repeats', 30, 1);
  same('written', await settled(before, 30), 30);
}

async function messages(door) {
  const before = await begin();
  for (let volume = 0; volume < 20; volume += 1) await post(door, 'messages', 'FailedMount', `Volume ${volume}`);
  // Nine messages stay separate; from the tenth on they are combined.
  const counts = (await stored(door, 'messages', 20, 10)).map(count).sort((a, b) => a - b);
  same('counts', counts, [1, 1, 1, 1, 1, 1, 1, 1, 1, 11]);
  same('written', await settled(before, 20), 20);
}

// More reasons than a budget lets through, all at once. 25 are written; the next token comes after five minutes.
async function burst(door) {
  const before = await begin();
  await Promise.all(Array.from({ length: 100 }, (_, n) => post(door, 'burst', `Reason${n}`)));
  const written = await settled(before, 100);
  assert.ok(written >= 25, `written: ${written}, less than a full budget`);
  same('occurrences listed', total((await list(door, 'burst')).items), written);
}

// The caller counts, and sends a patch per repeat; so many occurrences are they to the server.
async function patches(door, object, body, occurrences, options) {
  const before = await begin();
  const { api, namespace } = door;
  const { name } = (await post(door, object)).metadata;
  for (let number = 2; number <= 10; number += 1) {
    const answer = await api.patchNamespacedEvent({ namespace, name, body: body(number) }, options);
    same('the name in the answer', answer.metadata.name, name);
    same('the count in the answer', count(answer), number);
  }
  await stored(door, object, 10, 1);
  same('written', await settled(before, occurrences), occurrences);
}

const strategicMerge = setHeaderOptions('Content-Type', PatchStrategy.StrategicMergePatch);
const mergePatches = (door) => patches(door, 'merge', door.merged, 10, strategicMerge);
// The client's own choice for a patch. It states what the event is, and no occurrence but the POST.
const jsonPatches = (door) => patches(door, 'json', door.patched, 1);

async function watchAndDelete(door) {
  const before = await begin();
  const { api, namespace, path, field } = door;
  const { resourceVersion } = (await list(door, 'watch')).metadata;
  const { name } = (await post(door, 'watch')).metadata;
  await post(door, 'watch');
  await stored(door, 'watch', 2, 1);
  await api.deleteNamespacedEvent({ namespace, name });
  same('records after the delete', (await list(door, 'watch')).items, []);
  await assert.rejects(api.readNamespacedEvent({ namespace, name }), { code: 404 });

  const seen = [];
  await new Promise((resolve, reject) => {
    const query = { resourceVersion, fieldSelector: `${field}=watch`, timeoutSeconds: DEADLINE / 1000 };
    const change = (type, event) => {
      seen.push([type, count(event)]);
      if (type === 'DELETED') resolve();
    };
    const end = (error) => reject(error ?? new Error(`the watch ended after ${JSON.stringify(seen)}`));
    new Watch(config).watch(path, query, change, end);
  });
  same('changes watched', seen, [['ADDED', 1], ['MODIFIED', 2], ['DELETED', 2]]);
  await settled(before, 2);
}

let failed = 0;
for (const [door, about] of Object.entries(doors)) {
  for (const scenario of [repeats, messages, burst, mergePatches, jsonPatches, watchAndDelete]) {
    if (scenario === jsonPatches && SKIP_PATCH === '1') continue;
    const name = `${door}-${scenario.name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    try {
      await scenario(about);
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}: ${error.message.replace(/\s+/g, ' ')}`);
    }
  }
}
// A watch that has seen enough may still be open.
process.exit(failed > 0 ? 1 : 0);
