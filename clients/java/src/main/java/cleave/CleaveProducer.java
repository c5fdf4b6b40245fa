package cleave;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.impl.ProducerBuilderImpl;

/**
 * Sends keyed messages to a topic of Cleave that is on Pulsar, and keeps the order of each key across splits and merges.
 *
 * <p>The producer reads the topic's layout from a Cleave worker and holds a watch open for later layouts. It hashes each key as
 * Cleave does and keeps one standard Pulsar producer for each entry bucket of a segment, so that a batch holds messages of one
 * bucket. When a segment is sealed, the producer waits for the layout with the segment's successors. It then resends, in the
 * order of the calls, every message of the segment that was not acknowledged, before any later message of the same keys.
 *
 * <p>Delivery is at least once: a message whose acknowledgement was lost is stored again in the successor. A message is retried
 * until it is stored, refused by the broker for good (too large, not authorized, another schema), or the producer is closed.
 *
 * <p>Each segment has several standard producers, and a message may be sent more than once. Settings of the standard client that do
 * not allow this are replaced (see {@link Options}).
 *
 * <p>Thread-safe. Messages of one key keep their order if one thread sends them. All state belongs to one thread of the producer,
 * the router. No code of the producer blocks a thread of the Pulsar client.
 */
public final class CleaveProducer implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(CleaveProducer.class.getName());
    private static final Duration CALL_TIMEOUT = Duration.ofSeconds(10);
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);
    /** Pause before a failed open, a full queue or a failed HTTP call is tried again. */
    private static final long RETRY_MS = 100;
    private static final long MAX_RETRY_MS = 2_000;
    /** Time that a standard producer has to answer after its segment left the layout; a broker may never answer. */
    private static final long GRACE_MS = 500;
    /** A standard producer that answers nothing for this time is opened again; a client may not hear that its topic was terminated. */
    private static final long MUTE_MS = 10_000;
    /** A watch that was silent for this time is opened again; workers send heartbeats more often. */
    private static final long SILENT_MS = 30_000;
    /** Time after which a segment that takes no messages is reported to a worker, and the pause between reports. */
    private static final long SUSPECT_AFTER_MS = 1_000;
    private static final long SUSPECT_EVERY_MS = 5_000;
    /** Names of properties that begin with this prefix are Cleave's own. */
    private static final String RESERVED = "cleave.";

    /**
     * Settings of a producer.
     *
     * @param workers addresses of Cleave workers, such as {@code http://cleave:8470}; any of them answers
     * @param token returns the bearer token ({@code cleave token}); called for each request, so it may return a fresh token
     * @param topic the topic, as {@code topic://tenant/namespace/name}
     * @param maxPendingMessages messages without an answer; {@link #sendAsync} blocks the caller when there are as many
     * @param settings applied to the builder of each standard producer, for compression, batching or encryption. The topic, the send
     *     timeout, {@code blockIfQueueFull}, the access mode (shared) and chunking (off) are replaced. Each standard producer gets a
     *     name of its own, which begins with {@code producerName}. Interceptors must not change the key or set an ordering key.
     */
    public record Options(
            List<String> workers,
            Supplier<String> token,
            String topic,
            int maxPendingMessages,
            UnaryOperator<ProducerBuilder<byte[]>> settings) {
        /** Returns options with at most 10,000 pending messages and the standard client's settings. */
        public static Options of(List<String> workers, Supplier<String> token, String topic) {
            return new Options(workers, token, topic, 10_000, UnaryOperator.identity());
        }
    }

    /** An ACTIVE segment: an inclusive range of segment hashes, the first bucket hashes of buckets 1, 2, ..., and a Pulsar topic. */
    public record Segment(long id, int rangeStart, int rangeEnd, List<Integer> bucketSplits, String backingTopic) {
        /** Returns the index of the entry bucket that holds a bucket hash. */
        public int bucketOf(int bucketHash) {
            int bucket = 0;
            while (bucket < bucketSplits.size() && bucketSplits.get(bucket) <= bucketHash) {
                bucket++;
            }
            return bucket;
        }
    }

    /** A topic's layout at one epoch. The segments tile the hashes 0 to 65535 and are sorted by range. */
    public record Layout(long topicId, String dataPlane, long epoch, List<Segment> segments) {
        /** Parses a layout document. Throws IllegalArgumentException for any other text. */
        public static Layout parse(String document) {
            Map<?, ?> fields = (Map<?, ?>) Json.parse(document);
            List<Segment> segments = new ArrayList<>();
            for (Object item : (List<?>) field(fields, "segments")) {
                Map<?, ?> segment = (Map<?, ?>) item;
                List<Integer> splits = new ArrayList<>();
                for (Object split : (List<?>) field(segment, "bucket_splits")) {
                    splits.add(((Number) split).intValue());
                }
                segments.add(new Segment(
                        number(segment, "segment_id"), (int) number(segment, "range_start"), (int) number(segment, "range_end"),
                        List.copyOf(splits), (String) field(segment, "backing_topic")));
            }
            segments.sort(Comparator.comparingInt(Segment::rangeStart));
            int next = 0;
            for (Segment segment : segments) {
                if (segment.rangeStart() != next || segment.rangeEnd() < next) {
                    throw new IllegalArgumentException("the segments of the layout do not tile 0 to 65535: " + document);
                }
                next = segment.rangeEnd() + 1;
            }
            if (next != 65_536) {
                throw new IllegalArgumentException("the segments of the layout do not tile 0 to 65535: " + document);
            }
            return new Layout(
                    number(fields, "topic_id"), (String) field(fields, "data_plane"), number(fields, "epoch"), List.copyOf(segments));
        }

        /** Returns the segment that owns a segment hash. */
        public Segment segmentOf(int segmentHash) {
            int low = 0;
            int high = segments.size() - 1;
            while (low < high) {
                int middle = (low + high + 1) >>> 1;
                if (segments.get(middle).rangeStart() <= segmentHash) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            return segments.get(low);
        }

        private static Object field(Map<?, ?> fields, String name) {
            Object value = fields.get(name);
            if (value == null) {
                throw new IllegalArgumentException("a layout document needs the field " + name);
            }
            return value;
        }

        private static long number(Map<?, ?> fields, String name) {
            return ((Number) field(fields, name)).longValue();
        }
    }

    /** A message that the application sent, until its answer is known. */
    private static final class Pending {
        final String key;
        final int hash;
        final byte[] payload;
        final Map<String, String> properties;
        final long eventTimeMs;
        final CompletableFuture<MessageId> answer = new CompletableFuture<>();
        /** Completes after the callbacks of `answer`. */
        final CompletableFuture<MessageId> delivered = new CompletableFuture<>();
        /** Position in the order of all messages of this producer; set by the router. */
        long number;

        Pending(String key, byte[] payload, Map<String, String> properties, long eventTimeMs) {
            this.key = key == null || key.isEmpty() ? null : key;
            this.hash = this.key == null ? 0 : hash(utf8(this.key));
            this.payload = payload;
            this.properties = Map.copyOf(properties);
            refuseReserved(this.properties.keySet());
            this.eventTimeMs = eventTimeMs;
        }
    }

    /** An entry bucket of a segment; bucket -1 takes messages without a key. */
    private record LaneId(Segment segment, int bucket) {}

    /** The messages of one entry bucket and its standard producer. Only the router uses it. */
    private static final class Lane {
        final LaneId id;
        /** Not given to the standard producer yet, in order. */
        final TreeSet<Pending> waiting = new TreeSet<>(Comparator.comparingLong(message -> message.number));
        /** Given to the standard producer, and not answered. */
        final Set<Pending> unanswered = new LinkedHashSet<>();
        Producer<byte[]> producer;
        boolean isOpening;
        /** The standard producer failed and is being closed; what it did not store goes back to `waiting`. */
        boolean isFailing;
        /** A timer is armed that tries the lane again. */
        boolean isPausing;
        /** The segment left the layout. */
        boolean isLeaving;
        /** When the standard producer last answered, or was given a message while it owed no answer. */
        long progressAt;
        long failingSince;
        long reportedAt;
        long retryMs = RETRY_MS;

        Lane(LaneId id) {
            this.id = id;
        }
    }

    private final PulsarClient client;
    private final Options options;
    private final String path;
    private final HttpClient http;
    private final ScheduledThreadPoolExecutor router;
    /** Completes the application's futures, in order, so that the application's code never runs in the router. */
    private final ExecutorService answers;
    private volatile Thread answersThread;
    private final Semaphore room;
    /** Messages whose answer was not delivered yet. */
    private final Set<Pending> open = ConcurrentHashMap.newKeySet();
    /** Error of the first message that failed since the last flush. */
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final Thread watch;
    private volatile boolean isClosed;
    private volatile InputStream stream;
    private volatile long heardAt;

    // Only the router uses these.
    private final Map<LaneId, Lane> lanes = new LinkedHashMap<>();
    private Layout layout;
    /** The newest layout, while messages of segments that it lacks are still in doubt. */
    private Layout next;
    private long numbers;
    private long turn;
    /** A request for the layout is in progress, or its repetition is due after a pause. */
    private boolean isAsking;
    /** An older layout came after the last request was sent, or the request about an older layout failed. */
    private boolean isInDoubt;
    private Throwable ending;

    /**
     * Opens a producer. Blocks until a worker has sent the layout.
     *
     * @param client a standard client for the cluster of the topic; the caller closes it after the producer
     * @throws IOException if no worker answers
     * @throws IllegalStateException if a worker refuses the request or the topic is not on Pulsar; the message has the reason
     */
    public CleaveProducer(PulsarClient client, Options options) throws IOException {
        if (options.workers().isEmpty() || options.maxPendingMessages() < 1) {
            throw new IllegalArgumentException("give at least one worker and at least one pending message");
        }
        this.client = Objects.requireNonNull(client);
        this.options = options;
        this.path = pathOf(options.topic());
        this.http = HttpClient.newBuilder().connectTimeout(CALL_TIMEOUT).version(HttpClient.Version.HTTP_1_1).build();
        this.room = new Semaphore(options.maxPendingMessages());
        this.layout = firstLayout();
        this.router = new ScheduledThreadPoolExecutor(1, daemon("cleave-router"));
        this.answers = Executors.newSingleThreadExecutor(task -> answersThread = daemon("cleave-answers").newThread(task));
        this.watch = daemon("cleave-watch").newThread(this::watch);
        this.router.scheduleWithFixedDelay(this::hangUpIfSilent, SILENT_MS / 6, SILENT_MS / 6, TimeUnit.MILLISECONDS);
        this.router.scheduleWithFixedDelay(this::closeMuteProducers, MUTE_MS / 10, MUTE_MS / 10, TimeUnit.MILLISECONDS);
        this.watch.start();
    }

    /**
     * Sends a message and waits until it is stored. Never call it in a thread of the Pulsar client. Throws IllegalStateException in a
     * callback of {@link #sendAsync}.
     */
    public MessageId send(String key, byte[] payload) {
        demandNoCallback();
        return sendAsync(key, payload).join();
    }

    /** Sends a message; see {@link #sendAsync(String, byte[], Map, long)}. */
    public CompletableFuture<MessageId> sendAsync(String key, byte[] payload) {
        return sendAsync(key, payload, Map.of(), 0);
    }

    /**
     * Sends a message. Blocks the calling thread only while {@code maxPendingMessages} messages have no answer.
     *
     * <p>One thread of the producer completes the futures and runs their callbacks, one after the other. A callback must be fast,
     * because messages whose callback waits do not count as messages without an answer. A callback may call this method.
     *
     * @param key decides the segment and the order; messages without a key (null or empty) take turns over the segments
     * @param payload must not be changed until the answer
     * @param eventTimeMs the message's event time in milliseconds; 0 for none
     * @return completes when the broker has stored the message; fails if the message is refused or the producer is closed
     * @throws IllegalArgumentException if the key has no UTF-8 form, or the name of a property begins with {@code cleave.}
     */
    public CompletableFuture<MessageId> sendAsync(String key, byte[] payload, Map<String, String> properties, long eventTimeMs) {
        Pending message = new Pending(key, payload, properties, eventTimeMs);
        room.acquireUninterruptibly();
        open.add(message);
        try {
            router.execute(() -> {
                message.number = numbers++;
                place(message);
            });
        } catch (RejectedExecutionException closed) {
            room.release();
            deliver(message, null, closedException());
        }
        return message.answer;
    }

    /**
     * Completes when every message sent before this call has an answer and its callbacks have run. Fails with the error of the first
     * message that failed since the last flush.
     */
    public CompletableFuture<Void> flushAsync() {
        return CompletableFuture.allOf(open.stream().map(message -> message.delivered).toArray(CompletableFuture[]::new))
                .handle((nothing, error) -> {
                    Throwable first = failure.getAndSet(null);
                    if (first != null || error != null) {
                        throw new CompletionException(cause(first != null ? first : error));
                    }
                    return nothing;
                });
    }

    /**
     * Waits like {@link #flushAsync}. Throws CompletionException if a message failed since the last flush, and IllegalStateException in
     * a callback of {@link #sendAsync}.
     */
    public void flush() {
        demandNoCallback();
        flushAsync().join();
    }

    /** Throws IllegalStateException in the thread of the callbacks, which would wait for itself. */
    private void demandNoCallback() {
        if (Thread.currentThread() == answersThread) {
            throw new IllegalStateException("a callback cannot wait for the answer to a message; call sendAsync or flushAsync");
        }
    }

    /** Closes the producer. Messages without an answer fail; call {@link #flush} first to have them stored. Safe to repeat. */
    @Override
    public void close() {
        isClosed = true;
        hangUp();
        CompletableFuture<Void> closed = new CompletableFuture<>();
        try {
            router.execute(() -> end(closedException()).whenComplete((nothing, error) -> closed.complete(null)));
            closed.completeOnTimeout(null, CLOSE_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS).join();
            watch.interrupt();
            router.shutdown(); // runs its queue, where a standard producer may wait to be closed
            // The router no longer answers messages that reached its queue meanwhile. Answers that wait here are delivered before.
            answers.execute(() -> open.forEach(message -> deliver(message, null, closedException())));
            answers.shutdown();
        } catch (RejectedExecutionException again) {
            return;
        }
        room.release(options.maxPendingMessages());
    }

    /** Returns the Murmur3 hash (x86, 32 bits, seed 0). The upper half is the segment hash, the lower half the bucket hash. */
    public static int hash(byte[] key) {
        int hash = 0;
        int tail = key.length & ~3;
        for (int i = 0; i < tail; i += 4) {
            int word = key[i] & 0xff | (key[i + 1] & 0xff) << 8 | (key[i + 2] & 0xff) << 16 | key[i + 3] << 24;
            hash = Integer.rotateLeft(hash ^ mixed(word), 13) * 5 + 0xe6546b64;
        }
        int word = 0;
        for (int i = key.length - 1; i >= tail; i--) {
            word = word << 8 | key[i] & 0xff;
        }
        hash ^= mixed(word) ^ key.length;
        hash = (hash ^ hash >>> 16) * 0x85ebca6b;
        hash = (hash ^ hash >>> 13) * 0xc2b2ae35;
        return hash ^ hash >>> 16;
    }

    private static int mixed(int word) {
        return Integer.rotateLeft(word * 0xcc9e2d51, 15) * 0x1b873593;
    }

    /** Returns the bytes of a key. Throws IllegalArgumentException for text with a lone surrogate, which has no UTF-8 form. */
    static byte[] utf8(String key) {
        try {
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(java.nio.CharBuffer.wrap(key));
            return Arrays.copyOf(encoded.array(), encoded.limit());
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("a key with a lone surrogate has no UTF-8 form; correct the key", error);
        }
    }

    private static void refuseReserved(Set<String> names) {
        for (String name : names) {
            if (name.startsWith(RESERVED)) {
                throw new IllegalArgumentException(
                        "property \"" + name + "\" begins with \"" + RESERVED + "\"; choose another name");
            }
        }
    }

    // The router: which lane a message goes to, and what its standard producer made of it.

    private void place(Pending message) {
        if (ending != null) {
            answer(message, null, ending);
            return;
        }
        Segment segment;
        int bucket = -1;
        if (message.key == null) {
            segment = layout.segments().get((int) (turn++ % layout.segments().size()));
        } else {
            segment = layout.segmentOf(message.hash >>> 16);
            bucket = segment.bucketOf(message.hash & 0xffff);
        }
        Lane lane = lanes.computeIfAbsent(new LaneId(segment, bucket), Lane::new);
        // A lane of a segment that the next layout lacks takes no messages: they would stay behind when the layout is adopted.
        lane.isLeaving |= next != null && !next.segments().contains(segment);
        lane.waiting.add(message);
        pump(lane);
    }

    /** Gives the waiting messages of a lane to its standard producer, which is opened first if there is none. */
    private void pump(Lane lane) {
        if (lane.isLeaving || lane.isFailing || lane.isOpening || lane.isPausing || ending != null) {
            return;
        }
        if (lane.producer == null) {
            open(lane);
        } else {
            fill(lane);
        }
    }

    /** Calls `pump` after a pause. Each lane has at most one such timer, however many messages are placed meanwhile. */
    private void pumpAfter(Lane lane, long milliseconds) {
        if (lane.isPausing) {
            return;
        }
        lane.isPausing = true;
        later(milliseconds, () -> {
            lane.isPausing = false;
            pump(lane);
        });
    }

    /** Gives waiting messages to the standard producer of a lane until the producer has no room. */
    private void fill(Lane lane) {
        while (!lane.waiting.isEmpty() && !lane.isFailing) {
            Pending message = lane.waiting.first();
            CompletableFuture<MessageId> answer = built(lane.producer, message).sendAsync();
            if (answer.isCompletedExceptionally() && isFull(failureOf(answer))) {
                pumpAfter(lane, RETRY_MS); // the messages behind it must not be sent first
                return;
            }
            lane.waiting.pollFirst();
            lane.progressAt = lane.unanswered.isEmpty() ? now() : lane.progressAt;
            lane.unanswered.add(message);
            answer.whenCompleteAsync((id, error) -> answered(lane, message, id, error), router);
        }
    }

    private void open(Lane lane) {
        lane.isOpening = true;
        CompletableFuture<Producer<byte[]>> opening;
        try {
            opening = withSettings(options.settings().apply(client.newProducer()), lane.id.segment().backingTopic()).createAsync();
        } catch (RuntimeException error) {
            opening = CompletableFuture.failedFuture(new PulsarClientException.InvalidConfigurationException(error));
        }
        opening.whenComplete((producer, error) -> {
            try {
                router.execute(() -> opened(lane, producer, error));
            } catch (RejectedExecutionException closed) {
                discard(producer);
            }
        });
    }

    /** Replaces the settings of a standard producer that lanes do not allow. */
    static ProducerBuilder<byte[]> withSettings(ProducerBuilder<byte[]> builder, String topic) {
        // Several lanes, and several processes, produce to one topic. The broker accepts each name once.
        if (builder instanceof ProducerBuilderImpl<byte[]> standard && standard.getConf().getProducerName() != null) {
            builder.producerName(standard.getConf().getProducerName() + "-" + UUID.randomUUID());
        }
        builder.accessMode(ProducerAccessMode.Shared);
        // A seal may cut a message of several chunks. The segment would then end with chunks that no consumer receives.
        builder.enableChunking(false);
        return builder.topic(topic).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(false);
    }

    private void opened(Lane lane, Producer<byte[]> producer, Throwable error) {
        lane.isOpening = false;
        if (lane.isLeaving || ending != null) {
            discard(producer);
        } else if (error == null) {
            lane.producer = producer;
            pump(lane);
        } else if (isFinal(error)) {
            List.copyOf(lane.waiting).forEach(message -> answer(message, null, error));
            lane.waiting.clear();
        } else {
            retry(lane, error);
        }
    }

    /** Closes a standard producer that came too late; null if it could not be opened. */
    private static void discard(Producer<byte[]> producer) {
        if (producer != null) {
            producer.closeAsync();
        }
    }

    private void answered(Lane lane, Pending message, MessageId id, Throwable error) {
        if (!lane.unanswered.contains(message)) {
            return; // the lane was settled without this answer
        }
        // An open that is not allowed is tried again. A message that is not allowed exceeds a limit of the topic's policies.
        if (error == null || isFinal(error) || cause(error) instanceof PulsarClientException.NotAllowedException) {
            lane.unanswered.remove(message);
            lane.progressAt = now();
            answer(message, id, error);
        } else {
            close(lane, error);
        }
        if (error == null) {
            lane.failingSince = 0;
            lane.retryMs = RETRY_MS;
        }
        if (lane.unanswered.isEmpty() && lane.producer != null && !lane.isLeaving) {
            fill(lane); // the queue of the standard producer is empty, so a pause would only delay the waiting messages
        }
        adoptWhenSettled();
    }

    /** Closes the standard producer of a lane. Then every message without an answer counts as not stored. */
    private void close(Lane lane, Throwable error) {
        if (lane.isFailing) {
            return;
        }
        lane.isFailing = true;
        Producer<byte[]> producer = lane.producer;
        lane.producer = null;
        CompletableFuture<Void> closed =
                producer == null ? CompletableFuture.completedFuture(null) : producer.closeAsync();
        closed.completeOnTimeout(null, CLOSE_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
                // The answers that the closing produced are in the router's queue by then.
                .whenCompleteAsync((nothing, ignored) -> settle(lane, error), router);
    }

    private void closeMuteProducers() {
        for (Lane lane : List.copyOf(lanes.values())) {
            if (!lane.unanswered.isEmpty() && now() - lane.progressAt >= MUTE_MS) {
                close(lane, new PulsarClientException.TimeoutException("no answer within " + MUTE_MS + " ms"));
            }
        }
    }

    private void settle(Lane lane, Throwable error) {
        lane.waiting.addAll(lane.unanswered);
        lane.unanswered.clear();
        lane.isFailing = false;
        if (!lane.isLeaving) {
            retry(lane, error);
        }
        adoptWhenSettled();
    }

    /** Opens a lane again after a pause. Asks for the layout, which may have changed, and reports a segment that takes nothing. */
    private void retry(Lane lane, Throwable error) {
        long now = now();
        if (lane.failingSince == 0) {
            lane.failingSince = now;
        }
        if (now - lane.failingSince >= SUSPECT_AFTER_MS && now - lane.reportedAt >= SUSPECT_EVERY_MS) {
            lane.reportedAt = now;
            LOG.log(System.Logger.Level.WARNING, "{0} takes no messages: {1}", lane.id.segment().backingTopic(), error);
            ask("/suspects", "{\"segment_id\": " + lane.id.segment().id() + "}");
        }
        pumpAfter(lane, lane.retryMs);
        lane.retryMs = Math.min(2 * lane.retryMs, MAX_RETRY_MS);
        askForLayout();
    }

    /** Returns the layout that was taken last. */
    private Layout newest() {
        return next != null ? next : layout;
    }

    /**
     * Takes a layout that a worker sent. It is routed by once the segments that are gone have no message in doubt.
     *
     * <p>A layout whose epoch is not higher than that of the newest layout is late, or the database was restored from a backup. The
     * producer asks for the layout, and takes it if `isPresent` is true: the worker was asked after the newest layout had been taken.
     */
    private void take(Layout found, boolean isPresent) {
        Layout newest = newest();
        if (ending != null || found.equals(newest)) {
            return;
        }
        if (found.topicId() != newest.topicId()) {
            end(new PulsarClientException.TopicDoesNotExistException(options.topic() + " was deleted and created again; open it again"));
            return;
        }
        if (found.epoch() <= newest.epoch() && !isPresent) {
            isInDoubt = true;
            askForLayout();
            return;
        }
        next = found;
        Set<Segment> active = Set.copyOf(found.segments());
        for (Lane lane : lanes.values()) {
            if (!lane.isLeaving && !active.contains(lane.id.segment())) {
                lane.isLeaving = true;
                if (lane.producer != null) {
                    later(lane.unanswered.isEmpty() ? 0 : GRACE_MS, () -> close(lane, null));
                }
            }
        }
        adoptWhenSettled();
    }

    private void adoptWhenSettled() {
        if (next == null || lanes.values().stream().anyMatch(lane -> lane.isLeaving && !lane.unanswered.isEmpty())) {
            return;
        }
        layout = next;
        next = null;
        List<Lane> left = lanes.values().stream().filter(lane -> lane.isLeaving).collect(Collectors.toList());
        left.forEach(lane -> lanes.remove(lane.id));
        left.stream()
                .flatMap(lane -> lane.waiting.stream())
                .sorted(Comparator.comparingLong(message -> message.number))
                .forEach(this::place);
    }

    /** Fails every message and closes the standard producers. */
    private CompletableFuture<Void> end(Throwable reason) {
        ending = ending == null ? reason : ending;
        List<CompletableFuture<Void>> closing = new ArrayList<>();
        for (Lane lane : lanes.values()) {
            List.copyOf(lane.unanswered).forEach(message -> answer(message, null, ending));
            List.copyOf(lane.waiting).forEach(message -> answer(message, null, ending));
            lane.unanswered.clear();
            lane.waiting.clear();
            if (lane.producer != null) {
                closing.add(lane.producer.closeAsync());
            }
        }
        lanes.clear();
        return CompletableFuture.allOf(closing.toArray(CompletableFuture[]::new));
    }

    private void answer(Pending message, MessageId id, Throwable error) {
        room.release();
        answers.execute(() -> deliver(message, id, error));
    }

    private void deliver(Pending message, MessageId id, Throwable error) {
        if (error != null) {
            failure.compareAndSet(null, error);
        }
        complete(message.answer, id, error);
        open.remove(message); // a flush that ends with the next line is not followed by another that fails
        complete(message.delivered, id, error);
    }

    private static void complete(CompletableFuture<MessageId> future, MessageId id, Throwable error) {
        if (error == null) {
            future.complete(id);
        } else {
            future.completeExceptionally(error);
        }
    }

    private void later(long milliseconds, Runnable task) {
        try {
            router.schedule(task, milliseconds, TimeUnit.MILLISECONDS);
        } catch (RejectedExecutionException closed) {
            LOG.log(System.Logger.Level.DEBUG, "closed meanwhile");
        }
    }

    private static TypedMessageBuilder<byte[]> built(Producer<byte[]> producer, Pending message) {
        TypedMessageBuilder<byte[]> builder = producer.newMessage().value(message.payload).properties(message.properties);
        if (message.key != null) {
            builder.key(message.key);
        }
        return message.eventTimeMs > 0 ? builder.eventTime(message.eventTimeMs) : builder;
    }

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private static Throwable failureOf(CompletableFuture<?> future) {
        return future.handle((value, error) -> error).join();
    }

    private static Throwable cause(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }

    private static boolean isFull(Throwable error) {
        return cause(error) instanceof PulsarClientException.ProducerQueueIsFullError
                || cause(error) instanceof PulsarClientException.MemoryBufferIsFullError;
    }

    /** Returns true if sending the message again is of no use. */
    private static boolean isFinal(Throwable error) {
        Throwable cause = cause(error);
        return cause instanceof PulsarClientException.InvalidMessageException
                || cause instanceof PulsarClientException.AuthorizationException
                || cause instanceof PulsarClientException.AuthenticationException
                || cause instanceof PulsarClientException.IncompatibleSchemaException
                || cause instanceof PulsarClientException.CryptoException
                || cause instanceof PulsarClientException.InvalidConfigurationException;
    }

    private PulsarClientException closedException() {
        return new PulsarClientException.AlreadyClosedException("the producer of " + options.topic() + " is closed; open another one");
    }

    private static ThreadFactory daemon(String name) {
        return task -> {
            Thread thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    // The workers: the layout, the watch, and reports.

    private static String pathOf(String topic) {
        String[] parts = topic.startsWith("topic://") ? topic.substring("topic://".length()).split("/", -1) : new String[0];
        if (parts.length != 3 || Arrays.stream(parts).anyMatch(String::isEmpty)) {
            throw new IllegalArgumentException(topic + " is not a scalable topic; name it as topic://tenant/namespace/name");
        }
        return "/api/v1/topics/" + Arrays.stream(parts)
                .map(part -> URLEncoder.encode(part, StandardCharsets.UTF_8).replace("+", "%20"))
                .collect(Collectors.joining("/"));
    }

    private HttpRequest.Builder request(String worker, String rest) {
        return HttpRequest.newBuilder(URI.create(worker.replaceAll("/+$", "") + path + rest))
                .timeout(CALL_TIMEOUT)
                .header("Authorization", "Bearer " + options.token().get());
    }

    private Layout firstLayout() throws IOException {
        IOException failure = null;
        for (String worker : options.workers()) {
            try {
                HttpResponse<String> response = http.send(request(worker, "/layout").build(), BodyHandlers.ofString());
                if (response.statusCode() == 200) {
                    Layout found = Layout.parse(response.body());
                    if (!found.dataPlane().equals("pulsar")) {
                        throw new IllegalStateException(options.topic() + " is on data plane " + found.dataPlane() + ", not on Pulsar");
                    }
                    return found;
                }
                if (response.statusCode() < 500) {
                    throw new IllegalStateException(worker + " answered " + response.statusCode() + ": " + response.body());
                }
                failure = new IOException(worker + " answered " + response.statusCode() + ": " + response.body());
            } catch (IOException error) {
                failure = new IOException("no worker answers at " + worker + ": " + error, error);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted while asking for the layout of " + options.topic(), error);
            }
        }
        throw failure;
    }

    /**
     * Asks the workers in turn for the layout, without blocking. At most one request is in progress. A request that fails while an
     * older layout is in doubt is repeated after a pause, because the watch does not send the older layout again.
     */
    private void askForLayout() {
        if (isAsking || ending != null) {
            return;
        }
        Layout newest = newest();
        boolean wasInDoubt = isInDoubt;
        isAsking = true;
        isInDoubt = false;
        ask("/layout", null).thenApply(CleaveProducer::layoutOf).whenCompleteAsync((found, error) -> {
            isAsking = false;
            if (error == null) {
                take(found, newest.equals(newest()));
                if (isInDoubt) { // an older layout came after the worker was asked
                    askForLayout();
                }
            } else if (wasInDoubt || isInDoubt) {
                askAfterPause();
            }
        }, router);
    }

    private void askAfterPause() {
        isAsking = true;
        isInDoubt = true;
        later(MAX_RETRY_MS, () -> {
            isAsking = false;
            askForLayout();
        });
    }

    /** Returns the layout of an answer. Throws RuntimeException if the answer has none. */
    private static Layout layoutOf(HttpResponse<String> response) {
        if (response.statusCode() != 200) {
            throw new IllegalArgumentException("a worker answered " + response.statusCode() + ": " + response.body());
        }
        return Layout.parse(response.body());
    }

    /** Sends a request to the next worker: a POST of `document`, or a GET without one. */
    private CompletableFuture<HttpResponse<String>> ask(String rest, String document) {
        try {
            HttpRequest.Builder request = request(options.workers().get((int) (turn++ % options.workers().size())), rest);
            if (document != null) {
                request.header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(document));
            }
            return http.sendAsync(request.build(), BodyHandlers.ofString());
        } catch (RuntimeException error) { // the application's function that returns the token
            return CompletableFuture.failedFuture(error);
        }
    }

    /** Holds the watch open. Runs in a thread of its own until the producer is closed. */
    private void watch() {
        long pause = RETRY_MS;
        for (int attempt = 0; !isClosed; attempt++) {
            try {
                String worker = options.workers().get(attempt % options.workers().size());
                HttpResponse<InputStream> response =
                        http.send(request(worker, "/layout/watch").build(), BodyHandlers.ofInputStream());
                try (InputStream body = response.body()) {
                    heardAt = System.nanoTime();
                    stream = body;
                    if (isClosed) {
                        return; // `close` may have hung up before
                    }
                    if (response.statusCode() == 200) {
                        pause = follow(body) ? 0 : RETRY_MS;
                    } else {
                        refused(new String(body.readAllBytes(), StandardCharsets.UTF_8));
                    }
                } finally {
                    stream = null;
                }
            } catch (IOException | RuntimeException error) {
                LOG.log(System.Logger.Level.DEBUG, "the watch of {0} ended: {1}", options.topic(), error);
            } catch (InterruptedException error) {
                return;
            }
            try {
                Thread.sleep(pause);
            } catch (InterruptedException error) {
                return;
            }
            pause = Math.min(Math.max(2 * pause, RETRY_MS), MAX_RETRY_MS);
        }
    }

    private void refused(String reason) {
        if (reason.contains("\"TopicNotFound\"")) {
            router.execute(() -> end(new PulsarClientException.TopicDoesNotExistException(options.topic() + " was deleted")));
        }
        LOG.log(System.Logger.Level.WARNING, "the watch of {0} was refused: {1}", options.topic(), reason);
    }

    /** Reads events until the stream ends. Returns true if only the token has run out. */
    private boolean follow(InputStream body) throws IOException {
        Events events = new Events();
        BufferedReader lines = new BufferedReader(new InputStreamReader(body, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            heardAt = System.nanoTime();
            if (events.take(line)) {
                if (events.name.equals("layout")) {
                    Layout found = Layout.parse(events.data);
                    router.execute(() -> take(found, false));
                } else if (events.name.equals("end")) {
                    return events.data.contains("token expired");
                }
            }
        }
        return false;
    }

    private void hangUpIfSilent() {
        if (System.nanoTime() - heardAt > SILENT_MS * 1_000_000) {
            hangUp();
        }
    }

    private void hangUp() {
        InputStream body = stream;
        try {
            if (body != null) {
                body.close();
            }
        } catch (IOException error) {
            LOG.log(System.Logger.Level.DEBUG, "closing the watch: {0}", error);
        }
    }

    /** Puts the lines of a {@code text/event-stream} together. */
    static final class Events {
        String name = "message";
        String data = "";
        private String nextName = "message";
        private StringBuilder nextData = new StringBuilder();

        /** Takes a line. Returns true if it ended an event, which `name` and `data` then hold. */
        boolean take(String line) {
            if (line.startsWith("event:")) {
                nextName = line.substring("event:".length()).strip();
            } else if (line.startsWith("data:")) {
                nextData.append(nextData.isEmpty() ? "" : "\n").append(line.substring("data:".length()).strip());
            } else if (line.isEmpty() && !nextData.isEmpty()) {
                name = nextName;
                data = nextData.toString();
                nextName = "message";
                nextData = new StringBuilder();
                return true;
            }
            return false;
        }
    }

    /** A reader of JSON: objects become maps, arrays lists, whole numbers Long, other numbers Double. */
    static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Object parse(String text) {
            Json json = new Json(text);
            Object value = json.value();
            if (json.peek() != '\0') {
                throw json.unexpected();
            }
            return value;
        }

        private Object value() {
            switch (peek()) {
                case '{': return object();
                case '[': return array();
                case '"': return string();
                default: return literal();
            }
        }

        private Map<String, Object> object() {
            Map<String, Object> fields = new HashMap<>();
            for (boolean more = begins('{', '}'); more; more = goesOn('}')) {
                if (peek() != '"') {
                    throw unexpected();
                }
                String name = string();
                demand(':');
                fields.put(name, value());
            }
            return fields;
        }

        private List<Object> array() {
            List<Object> items = new ArrayList<>();
            for (boolean more = begins('[', ']'); more; more = goesOn(']')) {
                items.add(value());
            }
            return items;
        }

        private boolean begins(char first, char last) {
            demand(first);
            return !skip(last);
        }

        private boolean goesOn(char last) {
            if (skip(last)) {
                return false;
            }
            demand(',');
            return true;
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            for (at++; at < text.length() && text.charAt(at) != '"'; at++) {
                char next = text.charAt(at);
                if (next == '\\' && ++at < text.length()) {
                    int escape = "bfnrt".indexOf(text.charAt(at));
                    next = escape >= 0 ? "\b\f\n\r\t".charAt(escape) : text.charAt(at);
                    if (next == 'u' && at + 4 < text.length()) {
                        next = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                        at += 4;
                    }
                }
                found.append(next);
            }
            if (at++ >= text.length()) {
                throw unexpected();
            }
            return found.toString();
        }

        private Object literal() {
            int start = at;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String found = text.substring(start, at);
            switch (found) {
                case "true": return Boolean.TRUE;
                case "false": return Boolean.FALSE;
                case "null": return null;
                default: return found.matches("-?\\d+") ? (Object) Long.valueOf(found) : Double.valueOf(found);
            }
        }

        /** Returns the next character that is no white space, without taking it; a zero at the end. */
        private char peek() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            return at < text.length() ? text.charAt(at) : '\0';
        }

        private boolean skip(char wanted) {
            boolean isThere = peek() == wanted;
            at += isThere ? 1 : 0;
            return isThere;
        }

        private void demand(char wanted) {
            if (!skip(wanted)) {
                throw unexpected();
            }
        }

        private IllegalArgumentException unexpected() {
            return new IllegalArgumentException("no JSON at character " + at + ": " + text);
        }
    }
}
