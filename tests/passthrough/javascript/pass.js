// The official JavaScript client as in a pod, behind eventweir in pass-through. The checks read the results from the
// apiserver. A line per scenario goes to stdout; the exit code is 0 if all passed.
import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';
import { CoreV1Api, EventsV1Api, KubeConfig, V1MicroTime, makeInformer } from '@kubernetes/client-node';

const { NAMESPACE: namespace, ADMIN } = process.env;
// Time limit of polling, in milliseconds.
const DEADLINE = 30_000;

const inCluster = new KubeConfig();
inCluster.loadFromDefault();
const core = inCluster.makeApiClient(CoreV1Api);
const newEvents = inCluster.makeApiClient(EventsV1Api);
const administrator = new KubeConfig();
administrator.loadFromFile(ADMIN);
const admin = administrator.makeApiClient(CoreV1Api);

async function until(check) {
  const end = Date.now() + DEADLINE;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (!(error instanceof assert.AssertionError) || Date.now() >= end) throw error;
      await pause(50);
    }
  }
}

const pod = (name) => ({ apiVersion: 'v1', kind: 'Pod', namespace, name, uid: `uid-${name}` });

// Waits until the apiserver has one record about an object, with this count.
const stored = (name, count) =>
  until(async () => {
    const { items } = await admin.listNamespacedEvent({ namespace, fieldSelector: `involvedObject.name=${name}` });
    assert.deepEqual(items.map((event) => event.count ?? event.series?.count), [count]);
  });

async function eventsOfCore(api, name) {
  for (let n = 0; n < 30; n++) {
    const body = {
      metadata: { generateName: 'core-' }, involvedObject: pod(name), reason: 'BackOff', type: 'Warning',
      message: 'Back-off restarting failed container', source: { component: 'javascript' },
      firstTimestamp: new Date(), lastTimestamp: new Date(), count: 1,
    };
    await api.createNamespacedEvent({ namespace, body });
  }
  await stored(name, 30);
  return '30 occurrences are one record';
}

const scenarios = {
  'events-of-core': () => eventsOfCore(core, 'core'),

  // The recipe of docs/clients.md. tests/tidy.rs compares its lines.
  'own-endpoint'() {
    const endpoint = process.env.ENDPOINT;
    const config = new KubeConfig();
    config.loadFromClusterAndUser(
      { name: 'eventweir', server: endpoint, caFile: '/var/run/secrets/eventweir/ca.crt' },
      { name: 'eventweir', authProvider: { name: 'tokenFile', config: { tokenFile: '/var/run/secrets/eventweir/token' } } },
    );
    const events = config.makeApiClient(CoreV1Api);
    return eventsOfCore(events, 'own-endpoint');
  },

  async 'events-of-the-new-group'() {
    for (let n = 0; n < 30; n++) {
      const body = {
        metadata: { generateName: 'new-' }, eventTime: new V1MicroTime(), regarding: pod('new'), action: 'Restarting',
        reason: 'BackOff', note: 'Back-off restarting failed container', type: 'Warning',
        reportingController: 'example.com/javascript', reportingInstance: 'javascript-0',
      };
      await newEvents.createNamespacedEvent({ namespace, body });
    }
    await stored('new', 30);
    return '30 occurrences are one record';
  },

  async informer() {
    const seen = [];
    const list = () => core.listNamespacedConfigMap({ namespace });
    const informer = makeInformer(inCluster, `/api/v1/namespaces/${namespace}/configmaps`, list);
    for (const kind of ['add', 'update', 'delete']) {
      informer.on(kind, (object) => object.metadata.name === 'informed' && seen.push(kind));
    }
    await informer.start();
    const metadata = { name: 'informed' };
    await core.createNamespacedConfigMap({ namespace, body: { metadata, data: { a: '1' } } });
    await core.replaceNamespacedConfigMap({ namespace, name: 'informed', body: { metadata, data: { a: '2' } } });
    await core.deleteNamespacedConfigMap({ namespace, name: 'informed' });
    await until(() => assert.deepEqual(seen, ['add', 'update', 'delete']));
    await informer.stop();
    return 'added, updated and deleted';
  },
};

let failed = 0;
for (const [name, scenario] of Object.entries(scenarios)) {
  try {
    console.log(`ok ${name}: ${await scenario()}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${String(error.message).replace(/\s+/g, ' ')}`);
  }
}
process.exit(failed > 0 ? 1 : 0);
