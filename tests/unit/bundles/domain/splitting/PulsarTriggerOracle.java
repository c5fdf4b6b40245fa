import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.loadbalance.LoadData;
import org.apache.pulsar.broker.loadbalance.impl.BundleSplitterTask;
import org.apache.pulsar.broker.namespace.NamespaceService;
import org.apache.pulsar.common.naming.NamespaceName;
import org.apache.pulsar.policies.data.loadbalancer.BrokerData;
import org.apache.pulsar.policies.data.loadbalancer.BundleData;
import org.apache.pulsar.policies.data.loadbalancer.LocalBrokerData;
import org.apache.pulsar.policies.data.loadbalancer.NamespaceBundleStats;
import sun.misc.Unsafe;

/**
 * Asks Pulsar's modular load manager which bundles it would split, without a broker. One cycle a line on stdin:
 * <pre>cap maxTopics maxSessions maxMsgRate maxMbytes bundlesOfTheNamespace bundle...</pre>
 * A bundle: name,topics,producers,consumers,msgRate,byteRate,longTermMsgRate,longTermByteRate, the last two "-"
 * where nothing is known. Answers on stdout, in brackets; other lines are Pulsar's log.
 * Run with the lib directory of a Pulsar distribution as class path:
 * <pre>java -cp 'lib/*' PulsarTriggerOracle.java < cycles | grep '^\['</pre>
 */
public class PulsarTriggerOracle {
    static ServiceConfiguration configuration;
    static NamespaceService namespaces;
    static int bundleCount;

    static class Namespaces extends NamespaceService {
        Namespaces() throws Exception { super(null); }
        @Override
        public int getBundleCount(NamespaceName namespace) { return bundleCount; }
    }

    static class Broker extends PulsarService {
        Broker() { super(null); }
        @Override
        public ServiceConfiguration getConfiguration() { return configuration; }
        @Override
        public NamespaceService getNamespaceService() { return namespaces; }
    }

    public static void main(String[] args) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        namespaces = (NamespaceService) unsafe.allocateInstance(Namespaces.class);
        Broker broker = (Broker) unsafe.allocateInstance(Broker.class);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            LoadData load = read(line.trim().split(" "));
            System.out.println(new TreeSet<>(new BundleSplitterTask().findBundlesToSplit(load, broker).keySet()));
        }
    }

    static LoadData read(String[] part) {
        configuration = new ServiceConfiguration();
        configuration.setLoadBalancerNamespaceMaximumBundles(Integer.parseInt(part[0]));
        configuration.setLoadBalancerNamespaceBundleMaxTopics(Integer.parseInt(part[1]));
        configuration.setLoadBalancerNamespaceBundleMaxSessions(Integer.parseInt(part[2]));
        configuration.setLoadBalancerNamespaceBundleMaxMsgRate(Integer.parseInt(part[3]));
        configuration.setLoadBalancerNamespaceBundleMaxBandwidthMbytes(Integer.parseInt(part[4]));
        bundleCount = Integer.parseInt(part[5]);
        LoadData load = new LoadData();
        Map<String, NamespaceBundleStats> latest = new HashMap<>();
        for (int i = 6; i < part.length; i++) {
            String[] figures = part[i].split(",");
            NamespaceBundleStats stats = new NamespaceBundleStats();
            stats.topics = Long.parseLong(figures[1]);
            stats.producerCount = Integer.parseInt(figures[2]);
            stats.consumerCount = Integer.parseInt(figures[3]);
            stats.msgRateIn = Double.parseDouble(figures[4]);
            stats.msgThroughputIn = Double.parseDouble(figures[5]);
            latest.put(figures[0], stats);
            if (!figures[6].equals("-")) {
                BundleData averages = new BundleData(10, 1000);
                averages.getLongTermData().setMsgRateIn(Double.parseDouble(figures[6]));
                averages.getLongTermData().setMsgRateOut(0);
                averages.getLongTermData().setMsgThroughputIn(Double.parseDouble(figures[7]));
                averages.getLongTermData().setMsgThroughputOut(0);
                load.getBundleData().put(figures[0], averages);
            }
        }
        LocalBrokerData local = new LocalBrokerData();
        local.setLastStats(latest);
        load.getBrokerData().put("broker", new BrokerData(local));
        return load;
    }
}
