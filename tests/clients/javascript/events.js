// Records Events with the official JavaScript client, and checks the server's list and ledger.
//
// Each scenario has its own object. A line per scenario goes to stdout; the exit code is 0 if all passed.
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import {
  CoreV1Api, EventsV1Api, KubeConfig, PatchStrategy, V1MicroTime, Watch, setHeaderOptions,
} from '@kubernetes/client-node';

const { SERVER, METRICS, SKIP_PATCH } = process.env;
// Time limit of polling, in milliseconds.
const DEADLINE = 30_000;

const config = new KubeConfig();
// The client refuses plain HTTP unless TLS verification is off.
config.loadFromClusterAndUser({ name: 'eventweir', server: SERVER, skipTLSVerify: true }, { name: 'nobody' });
const core = config.makeApiClient(CoreV1Api);
const events = config.makeApiClient(EventsV1Api);

// The two API groups, each with its own namespace. `body` makes an event, `patched` the JSON patch of a repeat.
const groups = {
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

// Repeats check until it returns. After the deadline it throws the last error.
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

// The server's ledger, summed over the labels; see docs/metrics.md. `moving` are occurrences that wait for another
// reason than a budget, which takes seconds.
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

// Waits until occurrences wait for budgets only, and returns the ledger.
const begin = () =>
  until('the ledger', async () => {
    const sums = await ledger();
    same('waiting for other reasons than a budget', sums.moving, 0);
    return sums;
  });

// Waits as begin does, checks the ledger's growth since `before`, and returns the written occurrences.
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
async function stored(group, name, occurrences, records) {
  const items = await until(`the list of ${name}`, async () => {
    const { items } = await list(group, name);
    same('occurrences listed', total(items), occurrences);
    return items;
  });
  same('records', items.length, records);
  return items;
}

async function repeats(group) {
  const before = await begin();
  for (let n = 0; n < 30; n += 1) await post(group, 'repeats');
  await stored(group, 'repeats', 30, 1);
  same('written', await settled(before, 30), 30);
}

async function messages(group) {
  const before = await begin();
  for (let volume = 0; volume < 20; volume += 1) await post(group, 'messages', 'FailedMount', `Volume ${volume}`);
  // Nine messages stay separate; the tenth and later ones are combined.
  const counts = (await stored(group, 'messages', 20, 10)).map(count).sort((a, b) => a - b);
  same('counts', counts, [1, 1, 1, 1, 1, 1, 1, 1, 1, 11]);
  same('written', await settled(before, 20), 20);
}

// More reasons at once than the budget admits. 25 are written; the next token is added after five minutes.
async function burst(group) {
  const before = await begin();
  await Promise.all(Array.from({ length: 100 }, (_, n) => post(group, 'burst', `Reason${n}`)));
  const written = await settled(before, 100);
  assert.ok(written >= 25, `written: ${written}, less than a full budget`);
  same('occurrences listed', total((await list(group, 'burst')).items), written);
}

// The client counts, and sends a patch per repeat. `occurrences` is the number that the server counts.
async function patches(group, object, body, occurrences, options) {
  const before = await begin();
  const { api, namespace } = group;
  const { name } = (await post(group, object)).metadata;
  for (let number = 2; number <= 10; number += 1) {
    const answer = await api.patchNamespacedEvent({ namespace, name, body: body(number) }, options);
    same('the name in the answer', answer.metadata.name, name);
    same('the count in the answer', count(answer), number);
  }
  await stored(group, object, 10, 1);
  same('written', await settled(before, occurrences), occurrences);
}

const strategicMerge = setHeaderOptions('Content-Type', PatchStrategy.StrategicMergePatch);
const mergePatches = (group) => patches(group, 'merge', group.merged, 10, strategicMerge);
// JSON patch is the client's default. It sets the event's fields, and is no occurrence.
const jsonPatches = (group) => patches(group, 'json', group.patched, 1);

async function watchAndDelete(group) {
  const before = await begin();
  const { api, namespace, path, field } = group;
  const { resourceVersion } = (await list(group, 'watch')).metadata;
  const { name } = (await post(group, 'watch')).metadata;
  await post(group, 'watch');
  await stored(group, 'watch', 2, 1);
  await api.deleteNamespacedEvent({ namespace, name });
  same('records after the delete', (await list(group, 'watch')).items, []);
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
for (const [group, about] of Object.entries(groups)) {
  for (const scenario of [repeats, messages, burst, mergePatches, jsonPatches, watchAndDelete]) {
    if (scenario === jsonPatches && SKIP_PATCH === '1') continue;
    const name = `${group}-${scenario.name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    try {
      await scenario(about);
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}: ${error.message.replace(/\s+/g, ' ')}`);
    }
  }
}
// A finished watch may still be open.
process.exit(failed > 0 ? 1 : 0);
