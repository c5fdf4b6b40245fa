package cleave;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import cleave.CleaveProducer.Layout;
import cleave.CleaveProducer.Segment;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Compares the producer with the vectors that Cleave's own rules made. */
class ConformanceTest {
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
