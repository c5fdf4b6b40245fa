import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.loadbalance.LoadManager;
import org.apache.pulsar.broker.loadbalance.extensions.BrokerRegistry;
import org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl;
import org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerWrapper;
import org.apache.pulsar.broker.loadbalance.extensions.LoadManagerContext;
import org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitState;
import org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitStateChannel;
import org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitStateData;
import org.apache.pulsar.broker.loadbalance.extensions.models.SplitCounter;
import org.apache.pulsar.broker.loadbalance.extensions.models.SplitDecision;
import org.apache.pulsar.broker.loadbalance.extensions.strategy.DefaultNamespaceBundleSplitStrategyImpl;
import org.apache.pulsar.broker.namespace.NamespaceService;
import org.apache.pulsar.broker.service.BrokerService;
import org.apache.pulsar.common.naming.NamespaceBundle;
import org.apache.pulsar.common.naming.NamespaceBundleFactory;
import org.apache.pulsar.common.naming.NamespaceBundleSplitAlgorithm;
import org.apache.pulsar.common.naming.NamespaceName;
import org.apache.pulsar.policies.data.loadbalancer.NamespaceBundleStats;
import sun.misc.Unsafe;

/**
 * Asks Pulsar's extensible load manager which bundles a broker would split, without a broker. Some cycles in a row a line:
 * <pre>theme cap maxTopics maxSessions maxMsgRate maxMbytes hits perCycle bundlesOfTheNamespace | cycle | cycle ...</pre>
 * A cycle is bundles in the order in which they are looked at, name,topics,producers,consumers,msgRate,byteRate,owned,cuts
 * (cuts: how many points the algorithm finds; x: it fails), and ~name for a bundle that is being split. Answers the
 * line with what is split in each cycle and why; other lines are Pulsar's log.
 * Run with the lib directory of a Pulsar distribution as class path:
 * <pre>python -m tests.unit.bundles.domain.splitting.extensible_cycles |
 *   java -cp 'lib/*' PulsarExtensibleTriggerOracle.java | grep ' => '</pre>
 */
public class PulsarExtensibleTriggerOracle {
    static ServiceConfiguration configuration;
    static int bundleCount;
    static NamespaceService namespaces;
    static NamespaceBundleFactory factory;
    static BrokerService brokerService;
    static AtomicReference<LoadManager> manager;
    static ServiceUnitStateChannel channel;
    static Map<String, NamespaceBundleStats> stats;
    static Map<String, Boolean> owned;
    static Map<String, String> cuts;
    static Map<String, ServiceUnitStateData> states;

    static class Factory extends NamespaceBundleFactory {
        Factory() { super(null, null); }
        @Override
        public void invalidateBundleCache(NamespaceName namespace) { }
    }

    static class Namespaces extends NamespaceService {
        Namespaces() throws Exception { super(null); }
        @Override
        public int getBundleCount(NamespaceName namespace) { return bundleCount; }
        @Override
        public NamespaceBundleFactory getNamespaceBundleFactory() { return factory; }
        @Override
        public NamespaceBundleSplitAlgorithm getNamespaceBundleSplitAlgorithmByName(String name) { return null; }
        @Override
        public CompletableFuture<List<Long>> getSplitBoundary(
                NamespaceBundle bundle, List<Long> positions, NamespaceBundleSplitAlgorithm algorithm) {
            String wanted = cuts.get(bundle.toString());
            if (wanted.equals("x")) {
                return CompletableFuture.failedFuture(new IllegalStateException("no points"));
            }
            int parts = Integer.parseInt(wanted) + 1;
            if (parts == 1) {
                return CompletableFuture.completedFuture(null);
            }
            long lower = bundle.getKeyRange().lowerEndpoint();
            List<Long> points = new ArrayList<>();
            for (int part = 1; part < parts; part++) {
                points.add(lower + (bundle.getKeyRange().upperEndpoint() - lower) / parts * part);
            }
            return CompletableFuture.completedFuture(points);
        }
    }

    static class Bundles extends BrokerService {
        Bundles() throws Exception { super(null, null); }
        @Override
        public Map<String, NamespaceBundleStats> getBundleStats() { return stats; }
    }

    static class Manager extends ExtensibleLoadManagerImpl {
        @Override
        public ServiceUnitStateChannel getServiceUnitStateChannel() { return channel; }
    }

    static class Broker extends PulsarService {
        Broker() { super(null); }
        @Override
        public ServiceConfiguration getConfiguration() { return configuration; }
        @Override
        public NamespaceService getNamespaceService() { return namespaces; }
        @Override
        public BrokerService getBrokerService() { return brokerService; }
        @Override
        public AtomicReference<LoadManager> getLoadManager() { return manager; }
    }

    static Unsafe unsafe;

    @SuppressWarnings("unchecked")
    static <T> T bare(Class<T> kind) throws Exception { return (T) unsafe.allocateInstance(kind); }

    @SuppressWarnings("unchecked")
    static <T> T standing(Class<T> kind, Map<String, java.util.function.Function<Object[], Object>> answers) {
        return (T) Proxy.newProxyInstance(
                kind.getClassLoader(), new Class<?>[] {kind},
                (proxy, method, given) -> answers.get(method.getName()).apply(given));
    }

    public static void main(String[] args) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        unsafe = (Unsafe) field.get(null);
        factory = bare(Factory.class);
        namespaces = bare(Namespaces.class);
        brokerService = bare(Bundles.class);
        manager = new AtomicReference<>(new ExtensibleLoadManagerWrapper(bare(Manager.class)));
        channel = standing(ServiceUnitStateChannel.class, Map.of(
                "getOwnershipEntrySet", given -> states.entrySet(),
                "isOwner", given -> owned.get((String) given[0])));
        Broker broker = bare(Broker.class);
        BrokerRegistry registry = standing(BrokerRegistry.class, Map.of("getBrokerId", given -> "broker"));
        LoadManagerContext context = standing(LoadManagerContext.class, Map.of("brokerRegistry", given -> registry));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] cycles = line.split("\\|");
            configure(cycles[0].trim().split(" "));
            var strategy = new DefaultNamespaceBundleSplitStrategyImpl(new SplitCounter());
            List<String> answers = new ArrayList<>();
            for (int i = 1; i < cycles.length; i++) {
                read(cycles[i].trim());
                TreeSet<String> chosen = new TreeSet<>();
                for (SplitDecision decision : strategy.findBundlesToSplit(context, broker)) {
                    chosen.add(decision.getSplit().serviceUnit() + ":" + decision.getReason());
                }
                answers.add(chosen.toString());
            }
            System.out.println(line + " => " + String.join(" | ", answers));
        }
        System.exit(0);
    }

    static void configure(String[] part) {
        configuration = new ServiceConfiguration();
        configuration.setLoadBalancerNamespaceMaximumBundles(Integer.parseInt(part[1]));
        configuration.setLoadBalancerNamespaceBundleMaxTopics(Integer.parseInt(part[2]));
        configuration.setLoadBalancerNamespaceBundleMaxSessions(Integer.parseInt(part[3]));
        configuration.setLoadBalancerNamespaceBundleMaxMsgRate(Integer.parseInt(part[4]));
        configuration.setLoadBalancerNamespaceBundleMaxBandwidthMbytes(Integer.parseInt(part[5]));
        configuration.setLoadBalancerNamespaceBundleSplitConditionHitCountThreshold(Integer.parseInt(part[6]));
        configuration.setLoadBalancerMaxNumberOfBundlesToSplitPerCycle(Integer.parseInt(part[7]));
        bundleCount = Integer.parseInt(part[8]);
    }

    static void read(String cycle) {
        stats = new LinkedHashMap<>();
        owned = new HashMap<>();
        cuts = new HashMap<>();
        states = new LinkedHashMap<>();
        for (String word : cycle.isEmpty() ? new String[0] : cycle.split(" ")) {
            if (word.startsWith("~")) {
                states.put(word.substring(1),
                        new ServiceUnitStateData(ServiceUnitState.Splitting, "broker", "broker", 1));
                continue;
            }
            String[] figures = word.split(",");
            NamespaceBundleStats bundle = new NamespaceBundleStats();
            bundle.topics = Long.parseLong(figures[1]);
            bundle.producerCount = Integer.parseInt(figures[2]);
            bundle.consumerCount = Integer.parseInt(figures[3]);
            bundle.msgRateIn = Double.parseDouble(figures[4]);
            bundle.msgThroughputIn = Double.parseDouble(figures[5]);
            stats.put(figures[0], bundle);
            owned.put(figures[0], figures[6].equals("1"));
            cuts.put(figures[0], figures[7]);
        }
    }
}
