import com.google.common.collect.BoundType;
import com.google.common.collect.Range;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.namespace.NamespaceService;
import org.apache.pulsar.common.naming.*;
import org.apache.pulsar.common.policies.data.stats.TopicStatsImpl;
import sun.misc.Unsafe;

/**
 * Asks Pulsar's own split algorithms, without a broker. One case a line on stdin, its answer on stdout:
 * <pre>algorithm lower upper maxMsgRate maxMbytes percent positions topics</pre>
 * positions: comma-separated or "-"; topics: name/hash/msgRate/byteRate, comma-separated or "-".
 * Run with the lib directory of a Pulsar distribution as class path:
 * <pre>java -cp 'lib/*' PulsarSplitOracle.java < cases</pre>
 */
public class PulsarSplitOracle {
    static final Map<String, Long> HASHES = new HashMap<>();
    static List<String> topics;

    static class Service extends NamespaceService {
        Service() throws Exception { super(null); }
        @Override
        public CompletableFuture<List<String>> getOwnedTopicListForNamespaceBundle(NamespaceBundle bundle) {
            return CompletableFuture.completedFuture(topics);
        }
    }

    static class Factory extends NamespaceBundleFactory {
        Factory() { super(null, null); }
        @Override
        public long getLongHashCode(String name) { return HASHES.get(name); }
    }

    public static void main(String[] args) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        Service service = (Service) unsafe.allocateInstance(Service.class);
        Factory factory = (Factory) unsafe.allocateInstance(Factory.class);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.trim().split(" "), service, factory));
        }
    }

    static String answer(String[] part, Service service, Factory factory) {
        long lower = Long.decode(part[1]);
        long upper = Long.decode(part[2]);
        BoundType end = upper == 0xffffffffL ? BoundType.CLOSED : BoundType.OPEN;
        NamespaceBundle bundle = new NamespaceBundle(NamespaceName.get("t/n"),
                Range.range(lower, BoundType.CLOSED, upper, end), factory);
        List<Long> positions = new ArrayList<>();
        if (!part[6].equals("-")) {
            for (String position : part[6].split(",")) {
                positions.add(Long.decode(position));
            }
        }
        topics = new ArrayList<>();
        Map<String, TopicStatsImpl> stats = new HashMap<>();
        if (!part[7].equals("-")) {
            for (String topic : part[7].split(",")) {
                String[] figures = topic.split("/");
                topics.add(figures[0]);
                HASHES.put(figures[0], Long.decode(figures[1]));
                TopicStatsImpl one = new TopicStatsImpl();
                one.msgRateIn = Double.parseDouble(figures[2]);
                one.msgThroughputIn = Double.parseDouble(figures[3]);
                stats.put(figures[0], one);
            }
        }
        try {
            BundleSplitOption option = part[0].startsWith("flow")
                    ? new FlowOrQpsEquallyDivideBundleSplitOption(service, bundle, positions, stats,
                        Integer.parseInt(part[3]), Integer.parseInt(part[4]), Integer.parseInt(part[5]))
                    : new BundleSplitOption(service, bundle, positions);
            List<Long> cuts = NamespaceBundleSplitAlgorithm.of(part[0]).getSplitBoundary(option).get();
            return String.valueOf(cuts);
        } catch (Exception error) {
            return "error " + error.getClass().getSimpleName();
        }
    }
}
