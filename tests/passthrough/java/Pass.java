import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.Event;
import io.fabric8.kubernetes.api.model.EventBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.CoreV1Event;
import io.kubernetes.client.openapi.models.V1EventSource;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.openapi.models.V1ObjectReference;
import io.kubernetes.client.util.ClientBuilder;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * fabric8's client and the official one as in a pod, without configuration, behind eventweir in pass-through.
 * The checks read the results from the apiserver. A line per scenario goes to stdout; the exit code is 0 if all passed.
 */
class Pass {
  static final String NAMESPACE = System.getenv("NAMESPACE");
  /** Time limit of polling. */
  static final Duration DEADLINE = Duration.ofSeconds(30);

  static final KubernetesClient client = new KubernetesClientBuilder().build();
  static final KubernetesClient admin = new KubernetesClientBuilder()
      .withConfig(Config.fromKubeconfig(new File(System.getenv("ADMIN"))))
      .build();

  static void same(String what, Object have, Object want) {
    if (!Objects.equals(have, want)) {
      throw new AssertionError(what + ": " + have + ", not " + want);
    }
  }

  static void until(Runnable check) throws InterruptedException {
    Instant end = Instant.now().plus(DEADLINE);
    while (true) {
      try {
        check.run();
        return;
      } catch (AssertionError wrong) {
        if (Instant.now().isAfter(end)) {
          throw wrong;
        }
        Thread.sleep(50);
      }
    }
  }

  /** Waits until the apiserver has one record about an object, with this count. */
  static void stored(String name, int count) throws InterruptedException {
    until(() -> same("counts about " + name,
        admin.v1().events().inNamespace(NAMESPACE).withField("involvedObject.name", name).list().getItems().stream()
            .map(Event::getCount).toList(),
        List.of(count)));
  }

  static ConfigMap configMap(String name) {
    return new ConfigMapBuilder().withNewMetadata().withName(name).withNamespace(NAMESPACE).endMetadata()
        .addToData("a", "1").build();
  }

  static Event backOff(String object) {
    return backOff(client, object);
  }

  static Event backOff(KubernetesClient reporter, String object) {
    String now = Instant.now().toString();
    return reporter.resource(new EventBuilder()
        .withNewMetadata().withGenerateName("fabric8-").withNamespace(NAMESPACE).endMetadata()
        .withNewInvolvedObject()
        .withApiVersion("v1").withKind("Pod").withNamespace(NAMESPACE).withName(object).withUid("uid-" + object)
        .endInvolvedObject()
        .withReason("BackOff").withMessage("Back-off restarting failed container").withType("Warning")
        .withNewSource().withComponent("fabric8").endSource()
        .withFirstTimestamp(now).withLastTimestamp(now).withCount(1)
        .build()).create();
  }

  static String fabric8Events() throws Exception {
    for (int n = 0; n < 30; n++) {
      backOff("fabric8");
    }
    stored("fabric8", 30);
    return "30 occurrences are one record";
  }

  /** The recipe of docs/clients.md. tests/tidy.rs compares its lines. */
  static String fabric8OwnEndpoint() throws Exception {
    String endpoint = System.getenv("ENDPOINT");
    Config config = new ConfigBuilder(Config.empty())
        .withMasterUrl(endpoint)
        .withCaCertFile("/var/run/secrets/eventweir/ca.crt")
        .withOauthTokenProvider(() -> {
          try {
            return Files.readString(Path.of("/var/run/secrets/eventweir/token")).strip();
          } catch (IOException failed) {
            throw new UncheckedIOException(failed);
          }
        })
        .build();
    KubernetesClient events = new KubernetesClientBuilder().withConfig(config).build();
    for (int n = 0; n < 30; n++) {
      backOff(events, "own-endpoint");
    }
    stored("own-endpoint", 30);
    return "30 occurrences are one record";
  }

  /** A GET, then a JSON patch with the resourceVersion: the count in the patch is stored, and a repeat adds to it. */
  static String fabric8Edit() throws Exception {
    String name = backOff("edited").getMetadata().getName();
    stored("edited", 1);
    for (int number : List.of(7, 12)) {
      Event answer = client.v1().events().inNamespace(NAMESPACE).withName(name)
          .edit(event -> new EventBuilder(event).editMetadata().addToLabels("edited", "" + number).endMetadata().withCount(number).build());
      same("the count in the answer", answer.getCount(), number);
      Event stored = admin.v1().events().inNamespace(NAMESPACE).withName(name).get();
      same("the label", stored.getMetadata().getLabels(), Map.of("edited", "" + number));
      same("the count", stored.getCount(), number);
      backOff("edited");
      stored("edited", number + 1);
    }
    return "the count of the patch is stored, and repeats add to it";
  }

  static String fabric8Objects() {
    same("the namespace", client.getNamespace(), NAMESPACE);
    var one = client.configMaps().inNamespace(NAMESPACE).resource(configMap("java"));
    one.create();
    client.configMaps().inNamespace(NAMESPACE).withName("java")
        .edit(object -> new ConfigMapBuilder(object).addToData("b", "2").build());
    client.configMaps().inNamespace(NAMESPACE).resource(new ConfigMapBuilder(configMap("java")).addToData("c", "3").build())
        .forceConflicts().serverSideApply();
    same("data", admin.configMaps().inNamespace(NAMESPACE).withName("java").get().getData(), Map.of("a", "1", "b", "2", "c", "3"));
    one.delete();
    same("the object after its deletion", admin.configMaps().inNamespace(NAMESPACE).withName("java").get(), null);
    return "created, edited, applied and deleted";
  }

  /** fabric8 watches over a WebSocket. */
  static String fabric8Watch() throws Exception {
    BlockingQueue<String> seen = new LinkedBlockingQueue<>();
    try (var watching = client.configMaps().inNamespace(NAMESPACE).withName("watched").watch(new Watcher<ConfigMap>() {
      @Override
      public void eventReceived(Action action, ConfigMap object) {
        seen.add(action.name());
      }

      @Override
      public void onClose(WatcherException cause) {
        seen.add("closed: " + cause);
      }
    })) {
      admin.resource(configMap("watched")).create();
      admin.configMaps().inNamespace(NAMESPACE).withName("watched")
          .edit(object -> new ConfigMapBuilder(object).addToData("b", "2").build());
      admin.configMaps().inNamespace(NAMESPACE).withName("watched").delete();
      for (String expected : List.of("ADDED", "MODIFIED", "DELETED")) {
        same("the watch event", seen.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), expected);
      }
    }
    String metrics = HttpClient.newHttpClient()
        .send(HttpRequest.newBuilder(URI.create(System.getenv("METRICS"))).build(), BodyHandlers.ofString()).body();
    String upgrades = metrics.lines().filter(line -> line.contains("requests_total{kind=\"upgrade\"}")).findFirst().orElseThrow();
    if (upgrades.endsWith(" 0")) {
      throw new AssertionError("not over a WebSocket: " + upgrades);
    }
    return "added, modified and deleted, over a WebSocket";
  }

  static String fabric8Informer() throws Exception {
    BlockingQueue<String> seen = new LinkedBlockingQueue<>();
    try (var informer = client.configMaps().inNamespace(NAMESPACE).inform(new io.fabric8.kubernetes.client.informers.ResourceEventHandler<ConfigMap>() {
      @Override
      public void onAdd(ConfigMap object) {
        if (object.getMetadata().getName().equals("informed")) {
          seen.add("added");
        }
      }

      @Override
      public void onUpdate(ConfigMap before, ConfigMap object) {}

      @Override
      public void onDelete(ConfigMap object, boolean unknown) {
        seen.add("deleted");
      }
    })) {
      admin.resource(configMap("informed")).create();
      same("the watch event", seen.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), "added");
      admin.configMaps().inNamespace(NAMESPACE).withName("informed").delete();
      same("the watch event", seen.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), "deleted");
    }
    return "added and deleted";
  }

  static String fabric8Lease() throws Exception {
    var leading = new CompletableFuture<Void>();
    var elected = client.leaderElector().withConfig(new LeaderElectionConfigBuilder()
        .withName("java").withReleaseOnCancel(true)
        .withLeaseDuration(Duration.ofSeconds(5)).withRenewDeadline(Duration.ofSeconds(4)).withRetryPeriod(Duration.ofMillis(500))
        .withLock(new LeaseLock(NAMESPACE, "java-leader", "java-0"))
        .withLeaderCallbacks(new LeaderCallbacks(() -> leading.complete(null), () -> {}, leader -> {}))
        .build()).build().start();
    leading.get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
    String holder = admin.leases().inNamespace(NAMESPACE).withName("java-leader").get().getSpec().getHolderIdentity();
    elected.cancel(true);
    same("the holder", holder, "java-0");
    return "held by java-0";
  }

  static String officialEvents() throws Exception {
    ApiClient cluster = ClientBuilder.cluster().build();
    CoreV1Api core = new CoreV1Api(cluster);
    var now = java.time.OffsetDateTime.now();
    for (int n = 0; n < 30; n++) {
      core.createNamespacedEvent(NAMESPACE, new CoreV1Event()
          .metadata(new V1ObjectMeta().generateName("official-"))
          .involvedObject(new V1ObjectReference().apiVersion("v1").kind("Pod").namespace(NAMESPACE).name("official").uid("uid-official"))
          .reason("BackOff").message("Back-off restarting failed container").type("Warning")
          .source(new V1EventSource().component("official")).firstTimestamp(now).lastTimestamp(now).count(1)).execute();
    }
    stored("official", 30);
    core.listNamespacedConfigMap(NAMESPACE).execute();
    return "30 occurrences are one record";
  }

  public static void main(String[] arguments) {
    var scenarios = new LinkedHashMap<String, Callable<String>>();
    scenarios.put("fabric8-events", Pass::fabric8Events);
    scenarios.put("fabric8-own-endpoint", Pass::fabric8OwnEndpoint);
    scenarios.put("fabric8-edit", Pass::fabric8Edit);
    scenarios.put("fabric8-objects", Pass::fabric8Objects);
    scenarios.put("fabric8-watch", Pass::fabric8Watch);
    scenarios.put("fabric8-informer", Pass::fabric8Informer);
    scenarios.put("fabric8-lease", Pass::fabric8Lease);
    scenarios.put("official-events", Pass::officialEvents);
    int failed = 0;
    for (var scenario : scenarios.entrySet()) {
      try {
        System.out.println("ok " + scenario.getKey() + ": " + scenario.getValue().call());
      } catch (Throwable wrong) {
        failed++;
        System.out.println("FAILED " + scenario.getKey() + ": " + String.valueOf(wrong).replaceAll("\\s+", " "));
      }
    }
    System.exit(failed > 0 ? 1 : 0);
  }
}
