import io.fabric8.kubernetes.api.model.Event;
import io.fabric8.kubernetes.api.model.EventBuilder;
import io.fabric8.kubernetes.api.model.EventList;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.dsl.FilterWatchListDeletable;
import io.fabric8.kubernetes.client.dsl.Resource;
import io.kubernetes.client.extended.event.EventType;
import io.kubernetes.client.extended.event.legacy.EventRecorder;
import io.kubernetes.client.extended.event.legacy.LegacyEventBroadcaster;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.CoreV1Event;
import io.kubernetes.client.openapi.models.V1EventSource;
import io.kubernetes.client.openapi.models.V1ObjectReference;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.ToIntFunction;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Records Events with fabric8's client and with the official client's LegacyEventBroadcaster, and checks the server's
 * list and ledger. Each scenario has its own object. A line per scenario goes to stdout; the exit code is 0 if all passed.
 */
class Events {
  static final String SERVER = System.getenv("SERVER");
  static final String METRICS = System.getenv("METRICS");
  static final boolean PATCH = !"1".equals(System.getenv("SKIP_PATCH"));
  static final String FABRIC8 = "java-fabric8";
  static final String OFFICIAL = "java-official";
  /** Time limit of polling. */
  static final Duration DEADLINE = Duration.ofSeconds(30);
  /** Nine of twenty messages stay separate; the tenth and later ones are combined. */
  static final List<Integer> COMBINED = List.of(1, 1, 1, 1, 1, 1, 1, 1, 1, 11);

  static final KubernetesClient fabric8 = new KubernetesClientBuilder()
      .withConfig(new ConfigBuilder(Config.empty()).withMasterUrl(SERVER).build())
      .build();
  static final CoreV1Api official = new CoreV1Api(new ApiClient().setBasePath(SERVER));

  interface Scenario {
    void run() throws Exception;
  }

  interface Check<T> {
    T ask() throws Exception;
  }

  /** Repeats a check until it throws no error. After the deadline it throws the last error. */
  static <T> T until(String what, Check<T> check) throws Exception {
    Instant end = Instant.now().plus(DEADLINE);
    while (true) {
      try {
        return check.ask();
      } catch (AssertionError error) {
        if (Instant.now().isAfter(end)) {
          throw new AssertionError(what + ": " + error.getMessage());
        }
        Thread.sleep(50);
      }
    }
  }

  static void same(String what, Object have, Object want) {
    if (!Objects.equals(have, want)) {
      throw new AssertionError(what + ": " + have + ", not " + want);
    }
  }

  /** The server's ledger, summed over the labels. `moving` are occurrences that wait, but not for a budget. */
  static Map<String, Integer> ledger() throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(METRICS)).build();
    String text = HttpClient.newHttpClient().send(request, BodyHandlers.ofString()).body();
    Map<String, Integer> sums = new HashMap<>(Map.of("moving", 0));
    var samples = Pattern.compile("(?m)^eventweir_ledger_([a-z]+)([^ ]*) (\\d+)$").matcher(text);
    while (samples.find()) {
      int value = Integer.parseInt(samples.group(3));
      sums.merge(samples.group(1), value, Integer::sum);
      if (samples.group(1).equals("waiting") && !samples.group(2).contains("\"budget\"")) {
        sums.merge("moving", value, Integer::sum);
      }
    }
    int accounted = sums.get("rejected") + sums.get("written") + sums.get("waiting") + sums.get("lost");
    same("rejected + written + waiting + lost", accounted, sums.get("received"));
    return sums;
  }

  /** Waits until occurrences wait for budgets only, and returns the ledger. */
  static Map<String, Integer> begin() throws Exception {
    return until("the ledger", () -> {
      var sums = ledger();
      same("waiting for other reasons than a budget", sums.get("moving"), 0);
      return sums;
    });
  }

  /** Waits as begin does, checks the growth of the ledger since `before`, and returns the written occurrences. */
  static int settled(Map<String, Integer> before, int sent) throws Exception {
    until("the server", () -> {
      same("received", ledger().get("received") - before.get("received"), sent);
      return null;
    });
    var grown = begin();
    before.forEach((name, value) -> grown.merge(name, -value, Integer::sum));
    same("received", grown.get("received"), sent);
    same("rejected", grown.get("rejected"), 0);
    same("lost", grown.get("lost"), 0);
    same("written + waiting", grown.get("written") + grown.get("waiting"), sent);
    return grown.get("written");
  }

  /** The sorted counts of the records about an object, listed with the client of the namespace. */
  static List<Integer> counts(String namespace, String name) throws Exception {
    ToIntFunction<Integer> count = value -> value == null ? 1 : Math.max(value, 1);
    IntStream counts = namespace.equals(OFFICIAL)
        ? official.listNamespacedEvent(namespace).fieldSelector("involvedObject.name=" + name).execute().getItems()
            .stream().map(CoreV1Event::getCount).mapToInt(count)
        : about(name).list().getItems().stream().map(Event::getCount).mapToInt(count);
    return counts.sorted().boxed().toList();
  }

  static int listed(String namespace, String name) throws Exception {
    return counts(namespace, name).stream().mapToInt(Integer::intValue).sum();
  }

  /** Waits until the list shows all occurrences, in records with these counts. */
  static void stored(String namespace, String name, List<Integer> counts) throws Exception {
    int all = counts.stream().mapToInt(Integer::intValue).sum();
    until("the list of " + name, () -> {
      same("occurrences listed", listed(namespace, name), all);
      return null;
    });
    same("counts of the records", counts(namespace, name), counts);
  }

  // fabric8

  static FilterWatchListDeletable<Event, EventList, Resource<Event>> about(String name) {
    return fabric8.v1().events().inNamespace(FABRIC8).withField("involvedObject.name", name);
  }

  static Event event(String name, String reason, String message) {
    String now = Instant.now().toString();
    return new EventBuilder()
        .withNewMetadata().withGenerateName(name + "-").withNamespace(FABRIC8).endMetadata()
        .withNewInvolvedObject()
        .withApiVersion("v1").withKind("Pod").withNamespace(FABRIC8).withName(name).withUid("uid-" + name)
        .endInvolvedObject()
        .withReason(reason).withMessage(message).withType("Warning")
        .withNewSource().withComponent("fabric8").endSource()
        .withFirstTimestamp(now).withLastTimestamp(now).withCount(1)
        .build();
  }

  static Event post(String name, String reason, String message) {
    return fabric8.resource(event(name, reason, message)).create();
  }

  static Event backOff(String name) {
    return post(name, "BackOff", "Back-off restarting failed container");
  }

  static void fabric8Repeats() throws Exception {
    var before = begin();
    for (int n = 0; n < 30; n++) {
      backOff("repeats");
    }
    stored(FABRIC8, "repeats", List.of(30));
    same("written", settled(before, 30), 30);
  }

  static void fabric8Messages() throws Exception {
    var before = begin();
    for (int volume = 0; volume < 20; volume++) {
      post("messages", "FailedMount", "Volume " + volume);
    }
    stored(FABRIC8, "messages", COMBINED);
    same("written", settled(before, 20), 20);
  }

  /** More reasons at once than the budget admits. 25 are written; the next token is added after five minutes. */
  static void fabric8Burst() throws Exception {
    var before = begin();
    IntStream.range(0, 100).parallel().forEach(n -> post("burst", "Reason" + n, "It happened."));
    checkBurst(before, FABRIC8);
  }

  static void checkBurst(Map<String, Integer> before, String namespace) throws Exception {
    int written = settled(before, 100);
    if (written < 25) {
      throw new AssertionError("written: " + written + ", less than a full budget");
    }
    same("occurrences listed", listed(namespace, "burst"), written);
  }

  /** The watch requests a WebSocket. It opens late after a 503, and never after a 200 with an endless body. */
  static void fabric8WatchAndDelete() throws Exception {
    var before = begin();
    BlockingQueue<String> changes = new LinkedBlockingQueue<>();
    var watcher = new Watcher<Event>() {
      @Override
      public void eventReceived(Action action, Event event) {
        if (action != Action.BOOKMARK) {
          changes.add(action + " " + event.getCount());
        }
      }

      @Override
      public void onClose(WatcherException error) {
        changes.add("closed: " + error.getMessage());
      }
    };
    // The client itself has no timeout.
    var watching = CompletableFuture.supplyAsync(() -> about("watch").watch(watcher));
    until("the watch", () -> {
      same("opened", watching.isDone(), true);
      return null;
    });
    try (var watch = watching.get()) {
      String name = backOff("watch").getMetadata().getName();
      same("a change", changes.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), "ADDED 1");
      backOff("watch");
      same("a change", changes.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), "MODIFIED 2");
      var posted = fabric8.v1().events().inNamespace(FABRIC8).withName(name);
      same("events deleted", posted.delete().size(), 1);
      same("a change", changes.poll(DEADLINE.toSeconds(), TimeUnit.SECONDS), "DELETED 2");
      same("the deleted event", posted.get(), null);
    }
    stored(FABRIC8, "watch", List.of());
    settled(before, 2);
  }

  /** A GET, then a JSON patch with the resourceVersion. It sets the event's fields, and is no occurrence. */
  static void fabric8Edit() throws Exception {
    var before = begin();
    String name = backOff("edit").getMetadata().getName();
    var posted = fabric8.v1().events().inNamespace(FABRIC8).withName(name);
    for (int number = 2; number <= 10; number++) {
      int count = number;
      Event answer = posted.edit(event ->
          new EventBuilder(event).withCount(count).withLastTimestamp(Instant.now().toString()).build());
      same("the name in the answer", answer.getMetadata().getName(), name);
      same("the count in the answer", answer.getCount(), count);
    }
    stored(FABRIC8, "edit", List.of(10));
    same("written", settled(before, 1), 1);
  }

  /** The embedded store refuses server-side apply. */
  static void fabric8Apply() throws Exception {
    var before = begin();
    Event event = new EventBuilder(event("apply", "BackOff", "Back-off restarting failed container"))
        .editMetadata().withGenerateName(null).withName("apply.1").endMetadata()
        .build();
    int code = 0;
    try {
      fabric8.resource(event).serverSideApply();
    } catch (KubernetesClientException refused) {
      code = refused.getCode();
    }
    same("the refusal's code", code, 415);
    stored(FABRIC8, "apply", List.of());
    same("written", settled(before, 0), 0);
  }

  // The official client

  static final List<LegacyEventBroadcaster> broadcasters = new ArrayList<>();

  /** Sends events as a separate process would. The recorder sends them later, without notice. */
  static void record(Consumer<EventRecorder> events) {
    var broadcaster = new LegacyEventBroadcaster(official);
    broadcaster.startRecording();
    events.accept(broadcaster.newRecorder(new V1EventSource().component("java").host("node-1")));
    broadcasters.add(broadcaster);
  }

  static V1ObjectReference pod(String name) {
    return new V1ObjectReference().apiVersion("v1").kind("Pod").namespace(OFFICIAL).name(name).uid("uid-" + name);
  }

  /** A POST, then strategic-merge patches in chunks. This recorder drops occurrences above 25. */
  static void officialRepeats() throws Exception {
    var before = begin();
    record(recorder -> {
      for (int n = 0; n < 20; n++) {
        recorder.event(pod("repeats"), EventType.Warning, "BackOff", "Back-off restarting failed container");
      }
    });
    same("written", settled(before, 20), 20);
    stored(OFFICIAL, "repeats", List.of(20));
  }

  /** The recorder combines the messages, and sends the combined event and its repeats. */
  static void officialMessages() throws Exception {
    var before = begin();
    record(recorder -> {
      for (int volume = 0; volume < 20; volume++) {
        recorder.event(pod("messages"), EventType.Warning, "FailedMount", "Volume %s", String.valueOf(volume));
      }
    });
    same("written", settled(before, 20), 20);
    stored(OFFICIAL, "messages", COMBINED);
  }

  /** Four processes report about one object, each as much as its recorder admits. */
  static void officialBurst() throws Exception {
    var before = begin();
    for (int process = 0; process < 4; process++) {
      int first = 25 * process;
      record(recorder -> {
        for (int n = first; n < first + 25; n++) {
          recorder.event(pod("burst"), EventType.Normal, "Reason" + n, "It happened.");
        }
      });
    }
    checkBurst(before, OFFICIAL);
  }

  public static void main(String[] arguments) {
    Map<String, Scenario> scenarios = new LinkedHashMap<>();
    scenarios.put("fabric8-repeats", Events::fabric8Repeats);
    scenarios.put("fabric8-messages", Events::fabric8Messages);
    scenarios.put("fabric8-burst", Events::fabric8Burst);
    scenarios.put("fabric8-watch-and-delete", Events::fabric8WatchAndDelete);
    if (PATCH) {
      scenarios.put("fabric8-edit", Events::fabric8Edit);
      scenarios.put("fabric8-server-side-apply", Events::fabric8Apply);
    }
    scenarios.put("official-repeats", Events::officialRepeats);
    scenarios.put("official-messages", Events::officialMessages);
    scenarios.put("official-burst", Events::officialBurst);
    boolean passed = true;
    for (var scenario : scenarios.entrySet()) {
      try {
        scenario.getValue().run();
        System.out.println("ok " + scenario.getKey());
      } catch (Exception | AssertionError error) {
        passed = false;
        String why = error instanceof AssertionError ? error.getMessage() : error.toString();
        System.out.println("FAILED " + scenario.getKey() + ": " + why.replaceAll("\\s+", " "));
        error.printStackTrace();
      }
    }
    broadcasters.forEach(LegacyEventBroadcaster::shutdown);
    fabric8.close();
    System.exit(passed ? 0 : 1);
  }
}
