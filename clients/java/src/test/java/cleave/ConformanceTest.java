package cleave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import cleave.CleaveProducer.Layout;
import cleave.CleaveProducer.Segment;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiFunction;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.impl.ProducerBuilderImpl;
import org.apache.pulsar.client.impl.conf.ProducerConfigurationData;
import org.junit.jupiter.api.Test;

/** Compares the producer with the vectors that Cleave's own rules made. */
class ConformanceTest {
    /** A worker with this answer sends the status 503. */
    private static final String NOT_READY = "{}";

    private final Map<?, ?> vectors;

    ConformanceTest() throws IOException {
        vectors = (Map<?, ?>) CleaveProducer.Json.parse(Files.readString(Path.of(System.getProperty("vectors"))));
    }

    @Test
    void hashesKeys() {
        for (Map<?, ?> vector : list("hashes")) {
            byte[] key = HexFormat.of().parseHex((String) vector.get("bytes"));
            if (vector.get("text") != null) {
                assertArrayEquals(key, CleaveProducer.utf8((String) vector.get("text")));
            }
            int hash = CleaveProducer.hash(key);
            assertEquals(vector.get("hash"), Integer.toUnsignedLong(hash), vector::toString);
            assertEquals(vector.get("segment_hash"), (long) (hash >>> 16));
            assertEquals(vector.get("bucket_hash"), (long) (hash & 0xffff));
        }
    }

    @Test
    void refusesKeysWithoutAUtf8Form() {
        assertThrows(IllegalArgumentException.class, () -> CleaveProducer.utf8("order-\ud800"));
    }

    @Test
    void choosesBuckets() {
        for (Map<?, ?> vector : list("buckets")) {
            Segment segment = new Segment(0, 0, 65_535, splits(vector), "persistent://acme/shop/orders-segment-0000-ffff-0");
            int bucketHash = ((Number) vector.get("bucket_hash")).intValue();
            assertEquals(vector.get("bucket"), (long) segment.bucketOf(bucketHash), vector::toString);
        }
    }

    @Test
    void readsLayoutsAndFindsTheOwnersOfKeys() {
        for (Map<?, ?> vector : list("layouts")) {
            Layout layout = Layout.parse((String) vector.get("document"));
            assertEquals(vector.get("topic_id"), layout.topicId());
            assertEquals(vector.get("data_plane"), layout.dataPlane());
            assertEquals(vector.get("epoch"), layout.epoch());
            List<Segment> segments = new ArrayList<>();
            for (Object item : (List<?>) vector.get("segments")) {
                Map<?, ?> segment = (Map<?, ?>) item;
                segments.add(new Segment(
                        (Long) segment.get("segment_id"), ((Number) segment.get("range_start")).intValue(),
                        ((Number) segment.get("range_end")).intValue(), splits(segment), (String) segment.get("backing_topic")));
            }
            assertEquals(segments, layout.segments());
            for (Object item : (List<?>) vector.get("routes")) {
                Map<?, ?> route = (Map<?, ?>) item;
                int hash = CleaveProducer.hash(CleaveProducer.utf8((String) route.get("key")));
                Segment segment = layout.segmentOf(hash >>> 16);
                assertEquals(route.get("segment_id"), segment.id(), route::toString);
                assertEquals(route.get("bucket"), (long) segment.bucketOf(hash & 0xffff), route::toString);
            }
        }
    }

    @Test
    void refusesWhatIsNoLayout() {
        for (Object text : (List<?>) vectors.get("refused_layouts")) {
            assertThrows(IllegalArgumentException.class, () -> Layout.parse((String) text), (String) text);
        }
    }

    @Test
    void readsEvents() {
        for (Map<?, ?> vector : list("streams")) {
            CleaveProducer.Events events = new CleaveProducer.Events();
            List<List<String>> found = new ArrayList<>();
            ((String) vector.get("text")).lines().forEach(line -> {
                if (events.take(line)) {
                    found.add(List.of(events.name, events.data));
                }
            });
            assertEquals(vector.get("events"), found);
        }
    }

    /** Two buckets of a segment: one has a message in doubt when the segment leaves the layout, the other gets its first message then. */
    @Test
    void newMessagesOfASegmentThatLeftWaitForThoseInDoubt() throws Exception {
        CountDownLatch isSplit = new CountDownLatch(1);
        HttpServer worker = worker(isWatch -> {
            if (isWatch) {
                isSplit.await();
            }
            String layout = isSplit.getCount() == 0 ? layout(2, "", "two") : layout(1, "32768", "one");
            return isWatch ? event(layout) : layout;
        });
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), worker)) {
            producer.sendAsync(keyOfBucket(0), new byte[] {'0'});
            waitFor(() -> sent.contains("one 0"));
            isSplit.countDown();
            Thread.sleep(200); // the producer takes the layout, and waits for 500 ms for the message in doubt
            producer.sendAsync(keyOfBucket(1), new byte[] {'1'});
            waitFor(() -> sent.contains("two 0"));
            producer.sendAsync(keyOfBucket(1), new byte[] {'2'});
            waitFor(() -> sent.contains("two 2"));
        } finally {
            worker.stop(0);
        }
        assertEquals(List.of("one 0", "two 0", "two 1", "two 2"), sent);
    }

    /** Counts the attempts to give messages to a standard producer whose queue is always full. */
    @Test
    void aLaneWhoseQueueIsFullHasOnePendingAttempt() throws Exception {
        assertTrue(attempts("full") < 200);
    }

    @Test
    void aLaneThatCannotBeOpenedHasOnePendingAttempt() throws Exception {
        assertTrue(attempts("closed") < 200);
    }

    /** Returns the number of attempts while 400 messages are placed; a pause between attempts is 100 ms or more. */
    private static int attempts(String topic) throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", topic));
        List<String> attempts = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(attempts), worker)) {
            producer.sendAsync("key", new byte[0]);
            waitFor(() -> !attempts.isEmpty());
            for (int i = 0; i < 400; i++) {
                producer.sendAsync("key", new byte[0]);
                Thread.sleep(1);
            }
            int placed = attempts.size();
            waitFor(() -> attempts.size() > placed);
            return attempts.size();
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void aMessageFailsIfTheTopicHasAnotherSchema() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "typed"));
        try (CleaveProducer producer = producer(client(new ArrayList<>()), worker)) {
            CompletableFuture<MessageId> answer = producer.sendAsync("key", new byte[0]);
            waitFor(answer::isDone);
            assertTrue(answer.isCompletedExceptionally());
            assertThrows(CompletionException.class, producer::flush);
            producer.flush(); // no message failed since the last flush
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void aMessageFailsIfAPolicyOfTheTopicRefusesIt() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "limited"));
        try (CleaveProducer producer = producer(client(new ArrayList<>()), worker)) {
            CompletableFuture<MessageId> answer = producer.sendAsync("key", new byte[0]);
            waitFor(answer::isDone);
            assertTrue(answer.isCompletedExceptionally());
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void flushWaitsForCallbacks() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        CompletableFuture<Producer<?>> opening = new CompletableFuture<>();
        AtomicBoolean hasEnded = new AtomicBoolean();
        try (CleaveProducer producer = producer(client(topic -> opening), worker)) {
            producer.sendAsync("key", new byte[0]).thenRun(() -> {
                new CompletableFuture<>().completeOnTimeout(null, 200, TimeUnit.MILLISECONDS).join();
                hasEnded.set(true);
            });
            opening.complete(producer("two", new ArrayList<>()));
            producer.flush();
            assertTrue(hasEnded.get());
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void aCallbackCannotWaitForAnswers() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        CompletableFuture<Producer<?>> opening = new CompletableFuture<>();
        try (CleaveProducer producer = producer(client(topic -> opening), worker)) {
            CompletableFuture<Void> called = producer.sendAsync("key", new byte[0]).thenRun(() -> {
                assertThrows(IllegalStateException.class, () -> producer.send("key", new byte[0]));
                assertThrows(IllegalStateException.class, producer::flush);
            });
            opening.complete(producer("two", new ArrayList<>()));
            called.get(20, TimeUnit.SECONDS);
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void aStandardProducerThatIsOpenedAfterTheCloseIsClosed() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        CompletableFuture<Producer<?>> opening = new CompletableFuture<>();
        CountDownLatch isAsked = new CountDownLatch(1);
        List<String> called = Collections.synchronizedList(new ArrayList<>());
        Function<String, CompletableFuture<?>> open = topic -> {
            isAsked.countDown();
            return opening;
        };
        try (CleaveProducer producer = producer(client(open), worker)) {
            producer.sendAsync("key", new byte[0]);
            isAsked.await();
        } finally {
            worker.stop(0);
        }
        opening.complete(fake(Producer.class, (name, given) -> {
            called.add(name);
            return CompletableFuture.completedFuture(null);
        }));
        assertEquals(List.of("closeAsync"), called);
    }

    /** The token delays the request for the watch until the close has hung up, and the close waits for the standard producer then. */
    @Test
    void aWatchThatIsAnsweredDuringTheCloseEnds() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        CompletableFuture<Void> isClosing = new CompletableFuture<>();
        CompletableFuture<Void> goesOn = new CompletableFuture<>();
        AtomicReference<Thread> watch = new AtomicReference<>();
        Supplier<String> token = () -> {
            if (Thread.currentThread().getName().equals("cleave-watch")) {
                watch.set(Thread.currentThread());
                isClosing.join();
            }
            return "token";
        };
        Producer<?> standard = fake(Producer.class, (name, given) -> {
            if (name.equals("closeAsync")) {
                isClosing.complete(null);
                return goesOn;
            }
            return fake(TypedMessageBuilder.class, (setting, value) ->
                    setting.equals("sendAsync") ? CompletableFuture.completedFuture(MessageId.earliest) : null);
        });
        PulsarClient client = client(topic -> CompletableFuture.completedFuture(standard));
        try (CleaveProducer producer = new CleaveProducer(client, options(token, worker))) {
            producer.send("key", new byte[0]);
            waitFor(() -> watch.get() != null);
            Thread closing = new Thread(producer::close);
            closing.start();
            watch.get().join(5_000);
            assertFalse(watch.get().isAlive());
            goesOn.complete(null);
            closing.join();
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void anAnswerThatWaitsForACallbackSurvivesTheClose() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        CompletableFuture<Producer<?>> opening = new CompletableFuture<>();
        CompletableFuture<Void> isClosed = new CompletableFuture<>();
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        CompletableFuture<MessageId> second;
        try (CleaveProducer producer = producer(client(topic -> opening), worker)) {
            CompletableFuture<MessageId> first = producer.sendAsync("key", new byte[0]);
            first.thenRun(isClosed::join);
            second = producer.sendAsync("key", new byte[0]);
            opening.complete(producer("two", sent));
            waitFor(() -> sent.size() == 2 && first.isDone());
        } finally {
            worker.stop(0);
        }
        isClosed.complete(null);
        assertEquals(MessageId.earliest, second.get(20, TimeUnit.SECONDS));
    }

    /** A reserved name in a message of an application would change how consumers read the message. */
    @Test
    void refusesPropertiesWithReservedNames() throws Exception {
        HttpServer worker = worker(isWatch -> isWatch ? "" : layout(1, "", "two"));
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), worker)) {
            Map<String, String> reserved = Map.of("color", "red", "cleave.key", "base64");
            Throwable refusal =
                    assertThrows(IllegalArgumentException.class, () -> producer.sendAsync("key", new byte[] {'0'}, reserved, 0));
            assertTrue(refusal.getMessage().contains("cleave.key"), refusal.getMessage());
            producer.sendAsync("key", new byte[] {'1'}, Map.of("cleaver", "sharp"), 0).join();
        } finally {
            worker.stop(0);
        }
        assertEquals(List.of("two 1"), sent);
    }

    /** A lane that cannot be opened asks for the layout. The answer, of before the split, comes after the watch has sent the split. */
    @Test
    void aLateAnswerWithAnOlderLayoutIsNotTaken() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        CountDownLatch isSplit = new CountDownLatch(1);
        CountDownLatch isTaken = new CountDownLatch(1);
        HttpServer worker = worker(isWatch -> {
            int number = isWatch ? 0 : asked.incrementAndGet();
            if (isWatch) {
                isSplit.await();
            } else if (number == 2) {
                isTaken.await();
            }
            return isWatch ? event(layout(2, "", "two")) : number > 2 ? layout(2, "", "two") : layout(1, "", "closed");
        });
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), worker)) {
            producer.sendAsync("key", new byte[] {'0'});
            waitFor(() -> asked.get() == 2);
            isSplit.countDown();
            waitFor(() -> sent.contains("two 0"));
            sent.clear();
            isTaken.countDown();
            waitFor(() -> asked.get() == 3);
            producer.sendAsync("key", new byte[] {'1'});
            waitFor(() -> sent.contains("two 1"));
            assertEquals(List.of("two 1"), sent);
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void anOlderLayoutIsTakenIfItIsThePresentOne() throws Exception {
        CountDownLatch isRestored = new CountDownLatch(1);
        HttpServer worker = restored(isRestored);
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), worker)) {
            isRestored.countDown();
            assertSendsToOne(producer, sent);
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void anOlderLayoutInDoubtIsAskedForAgainIfAWorkerIsNotReady() throws Exception {
        assertTakesAnOlderLayoutAfterAUselessAnswer(NOT_READY);
    }

    @Test
    void anOlderLayoutInDoubtIsAskedForAgainIfAnAnswerIsUnreadable() throws Exception {
        assertTakesAnOlderLayoutAfterAUselessAnswer("no layout");
    }

    @Test
    void anOlderLayoutInDoubtIsAskedForAgainIfNoWorkerAnswers() throws Exception {
        assertTakesAnOlderLayoutAfterAUselessAnswer(null);
    }

    /** The next two requests after the restore of the database are sent to a worker with this answer; null: it is away. */
    private static void assertTakesAnOlderLayoutAfterAUselessAnswer(String answer) throws Exception {
        CountDownLatch isRestored = new CountDownLatch(1);
        HttpServer good = restored(isRestored);
        HttpServer useless = worker(isWatch -> answer);
        if (answer == null) {
            useless.stop(0);
        }
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), good, useless, useless)) {
            producer.send("", new byte[] {'0'}); // takes the turn of the first worker
            isRestored.countDown();
            assertSendsToOne(producer, sent);
        } finally {
            good.stop(0);
            useless.stop(0);
        }
    }

    @Test
    void anOlderLayoutThatComesDuringARequestIsAskedForAgain() throws Exception {
        assertTakesAnOlderLayoutThatComesDuringARequest(layout(2, "", "two")); // of before the restore
    }

    @Test
    void anOlderLayoutThatComesDuringAFailingRequestIsAskedForAgain() throws Exception {
        assertTakesAnOlderLayoutThatComesDuringARequest(NOT_READY);
    }

    /** The first open of the lane fails, so that the producer asks for the layout. The older layout comes before the answer. */
    private static void assertTakesAnOlderLayoutThatComesDuringARequest(String answer) throws Exception {
        AtomicInteger asked = new AtomicInteger();
        CountDownLatch isRestored = new CountDownLatch(1);
        HttpServer worker = worker(isWatch -> {
            int number = isWatch ? 0 : asked.incrementAndGet();
            if (isWatch || number == 2) {
                isRestored.await();
            }
            if (number == 2) {
                Thread.sleep(200); // the producer takes the layout of the watch
                return answer;
            }
            return isWatch ? event(layout(1, "", "one")) : number > 2 ? layout(1, "", "one") : layout(2, "", "late");
        });
        List<String> sent = Collections.synchronizedList(new ArrayList<>());
        try (CleaveProducer producer = producer(client(sent), worker)) {
            producer.send("key", new byte[] {'0'});
            isRestored.countDown();
            assertSendsToOne(producer, sent);
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void aProducerWhoseTopicWasDeletedDoesNotAskAgain() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        String created = layout(3, "", "three").replace("\"topic_id\": 1", "\"topic_id\": 2");
        HttpServer worker = worker(isWatch -> isWatch ? event(layout(1, "", "one")) + event(created)
                : asked.incrementAndGet() == 1 ? layout(2, "", "two") : NOT_READY);
        try (CleaveProducer producer = producer(client(new ArrayList<>()), worker)) {
            waitFor(() -> asked.get() == 2);
            Thread.sleep(2_500); // a request is repeated after 2 s
            assertEquals(2, asked.get());
            assertTrue(producer.sendAsync("key", new byte[0]).handle((id, error) -> error != null).join());
        } finally {
            worker.stop(0);
        }
    }

    @Test
    void settingsThatContradictLanesAreReplaced() throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl("pulsar://127.0.0.1:1").build()) {
            List<String> names = new ArrayList<>();
            for (int lane = 0; lane < 2; lane++) {
                ProducerBuilder<byte[]> given = client.newProducer().producerName("checkout").enableChunking(true)
                        .accessMode(ProducerAccessMode.Exclusive).maxPendingMessages(7);
                ProducerConfigurationData found = settings(CleaveProducer.withSettings(given, "one"));
                names.add(found.getProducerName());
                assertTrue(found.getProducerName().startsWith("checkout-"), found::toString);
                assertEquals(ProducerAccessMode.Shared, found.getAccessMode());
                assertFalse(found.isChunkingEnabled() || found.isBlockIfQueueFull() || found.getSendTimeoutMs() > 0, found::toString);
                assertEquals(7, found.getMaxPendingMessages());
            }
            assertEquals(2, Set.copyOf(names).size(), names::toString);
            assertNull(settings(CleaveProducer.withSettings(client.newProducer(), "one")).getProducerName());
        }
    }

    private static ProducerConfigurationData settings(ProducerBuilder<byte[]> builder) {
        return ((ProducerBuilderImpl<byte[]>) builder).getConf();
    }

    /** Starts a worker. `answer` returns the text of an answer: a layout, or the events of a watch, which then stays open. */
    private static HttpServer worker(Answer answer) throws IOException {
        HttpServer worker = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        worker.setExecutor(Executors.newCachedThreadPool());
        worker.createContext("/", exchange -> {
            boolean isWatch = exchange.getRequestURI().getPath().endsWith("/watch");
            try (OutputStream body = exchange.getResponseBody()) {
                String layout = isWatch ? "" : answer.to(false);
                exchange.sendResponseHeaders(layout.equals(NOT_READY) ? 503 : 200, 0);
                body.write((isWatch ? answer.to(true) : layout).getBytes(StandardCharsets.UTF_8));
                while (isWatch) {
                    body.flush();
                    Thread.sleep(50);
                    body.write('\n');
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        });
        worker.start();
        return worker;
    }

    /** Starts a worker whose database has the segment "two", and after its restore from a backup the older segment "one". */
    private static HttpServer restored(CountDownLatch isRestored) throws IOException {
        return worker(isWatch -> {
            if (isWatch) {
                isRestored.await();
            }
            String layout = isRestored.getCount() == 0 ? layout(1, "", "one") : layout(2, "", "two");
            return isWatch ? event(layout) : layout;
        });
    }

    /** Sends messages until one arrives in the segment "one". */
    private static void assertSendsToOne(CleaveProducer producer, List<String> sent) throws InterruptedException {
        waitFor(() -> {
            producer.sendAsync("key", new byte[] {'1'});
            return sent.contains("one 1");
        });
        assertTrue(sent.contains("one 1"));
    }

    private interface Answer {
        String to(boolean isWatch) throws InterruptedException;
    }

    private static CleaveProducer producer(PulsarClient client, HttpServer... workers) throws IOException {
        return new CleaveProducer(client, options(() -> "token", workers));
    }

    private static CleaveProducer.Options options(Supplier<String> token, HttpServer... workers) {
        List<String> addresses = Arrays.stream(workers).map(worker -> "http://127.0.0.1:" + worker.getAddress().getPort()).toList();
        return CleaveProducer.Options.of(addresses, token, "topic://acme/shop/orders");
    }

    private static String event(String layout) {
        return "event: layout\ndata: " + layout + "\n\n";
    }

    private static String layout(int segment, String splits, String topic) {
        return "{\"topic_id\": 1, \"data_plane\": \"pulsar\", \"epoch\": " + segment + ", \"segments\": [{\"segment_id\": " + segment
                + ", \"range_start\": 0, \"range_end\": 65535, \"bucket_splits\": [" + splits + "], \"backing_topic\": \"" + topic
                + "\"}]}";
    }

    private static String keyOfBucket(int bucket) {
        for (int i = 0; ; i++) {
            if ((CleaveProducer.hash(CleaveProducer.utf8("key-" + i)) & 0xffff) >>> 15 == bucket) {
                return "key-" + i;
            }
        }
    }

    private static void waitFor(BooleanSupplier isReached) throws InterruptedException {
        for (long until = System.nanoTime() + 20_000_000_000L; !isReached.getAsBoolean() && System.nanoTime() < until; ) {
            Thread.sleep(10);
        }
    }

    /**
     * Returns a standard client that records each message with its topic. Topic "one" answers none, topic "full" has no room for any,
     * topic "limited" refuses all, topic "closed" cannot be opened, which is recorded, topic "late" only in a later attempt, and topic
     * "typed" has another schema.
     */
    private static PulsarClient client(List<String> sent) {
        return client(topic -> opened(topic, sent));
    }

    private static PulsarClient client(Function<String, CompletableFuture<?>> opening) {
        return fake(PulsarClient.class, (name, given) -> {
            String[] topic = new String[1];
            return name.equals("newProducer") ? fake(ProducerBuilder.class, (setting, value) -> {
                topic[0] = setting.equals("topic") ? (String) value[0] : topic[0];
                return setting.equals("createAsync") ? opening.apply(topic[0]) : null;
            }) : null;
        });
    }

    private static CompletableFuture<?> opened(String topic, List<String> sent) {
        if (topic.equals("closed") || topic.equals("late") && !sent.contains(topic)) {
            sent.add(topic);
            return CompletableFuture.failedFuture(new PulsarClientException.TopicTerminatedException(topic));
        }
        if (topic.equals("typed")) {
            return CompletableFuture.failedFuture(new PulsarClientException.IncompatibleSchemaException(topic));
        }
        return CompletableFuture.completedFuture(producer(topic, sent));
    }

    private static Producer<?> producer(String topic, List<String> sent) {
        return fake(Producer.class, (name, given) -> {
            if (name.equals("closeAsync")) {
                return CompletableFuture.completedFuture(null);
            }
            String[] payload = new String[1];
            return fake(TypedMessageBuilder.class, (setting, value) -> {
                payload[0] = setting.equals("value") ? new String((byte[]) value[0], StandardCharsets.UTF_8) : payload[0];
                if (!setting.equals("sendAsync")) {
                    return null;
                }
                sent.add(topic + " " + payload[0]);
                if (topic.equals("full")) {
                    return CompletableFuture.failedFuture(new PulsarClientException.ProducerQueueIsFullError("full"));
                }
                if (topic.equals("limited")) {
                    return CompletableFuture.failedFuture(new PulsarClientException.NotAllowedException("limited"));
                }
                return topic.equals("one") ? new CompletableFuture<>() : CompletableFuture.completedFuture(MessageId.earliest);
            });
        });
    }

    /** Returns an object whose methods call `answer` with their name and arguments; null stands for the object itself. */
    private static <T> T fake(Class<T> type, BiFunction<String, Object[], Object> answer) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, given) -> {
            Object found = answer.apply(method.getName(), given);
            return found == null ? self : found;
        }));
    }

    private List<Map<?, ?>> list(String name) {
        List<Map<?, ?>> found = new ArrayList<>();
        ((List<?>) vectors.get(name)).forEach(item -> found.add((Map<?, ?>) item));
        assertFalse(found.isEmpty(), name);
        return found;
    }

    private static List<Integer> splits(Map<?, ?> vector) {
        List<Integer> found = new ArrayList<>();
        ((List<?>) vector.get("bucket_splits")).forEach(split -> found.add(((Number) split).intValue()));
        return found;
    }
}
