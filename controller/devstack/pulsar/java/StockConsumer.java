import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Reads all segments of a topic by a pattern until SIGTERM, and writes down what it was handed. It knows nothing of Cleave.
 *
 * <p>Arguments: SERVICE_URL TOPICS_PATTERN NAME HISTORY SUBSCRIPTION TYPE individual|cumulative WORK_MS.
 */
public final class StockConsumer {
    public static void main(String[] given) throws Exception {
        Ending ending = new Ending();
        boolean isCumulative = given[6].equals("cumulative");
        long workMs = Long.parseLong(given[7]);
        Attachments attachments = new Attachments();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(given[0]).build();
                History history = new History(Path.of(given[3]));
                Consumer<byte[]> consumer = subscribe(builder(client, given, attachments), ending)) {
            CompletableFuture<Void> last = CompletableFuture.completedFuture(null);
            while (!ending.isWanted()) {
                Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                String topic = message.getTopicName();
                String[] where = {given[2], topic.substring(topic.lastIndexOf('-') + 1), "", attachments.of(topic)};
                history.note("delivered", message.getData(), message.getKey(), where);
                history.note("begun", message.getData(), message.getKey(), where);
                Thread.sleep(workMs);
                history.note("ended", message.getData(), message.getKey(), where);
                last = (isCumulative ? consumer.acknowledgeCumulativeAsync(message) : consumer.acknowledgeAsync(message))
                        .thenRun(() -> history.note("acknowledged", message.getData(), message.getKey(), where))
                        .exceptionally(lost -> null); // the message comes again
            }
            last.get(5, TimeUnit.SECONDS);
        }
    }

    /** Subscribes, and tries again after a failure: a broker that dies fails the subscriptions to all segments. */
    private static Consumer<byte[]> subscribe(ConsumerBuilder<byte[]> builder, Ending ending) throws Exception {
        while (true) {
            try {
                return builder.subscribe();
            } catch (PulsarClientException failed) {
                System.err.println("not subscribed, trying again: " + failed.getMessage());
                if (ending.isWanted()) {
                    throw failed;
                }
                Thread.sleep(1000);
            }
        }
    }

    private static ConsumerBuilder<byte[]> builder(PulsarClient client, String[] given, Attachments attachments) {
        SubscriptionType type = SubscriptionType.valueOf(given[5]);
        ConsumerBuilder<byte[]> builder = client.newConsumer()
                .topicsPattern(Pattern.compile(given[1]))
                .subscriptionName(given[4])
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .consumerName(given[2])
                .receiverQueueSize(100)
                .isAckReceiptEnabled(true);
        // The client refuses a listener for other types.
        return type == SubscriptionType.Failover ? builder.consumerEventListener(attachments) : builder;
    }

    /** Names the periods in which this consumer is the active one of a segment. */
    private static final class Attachments implements ConsumerEventListener {
        private static final long serialVersionUID = 1;
        private final long process = System.nanoTime();
        private final ConcurrentHashMap<String, Integer> periods = new ConcurrentHashMap<>();

        String of(String topic) {
            return Long.toHexString(process) + "." + periods.getOrDefault(topic, 0);
        }

        @Override
        public void becameActive(Consumer<?> consumer, int partition) {
            periods.merge(consumer.getTopic(), 1, Integer::sum);
        }

        @Override
        public void becameInactive(Consumer<?> consumer, int partition) {}
    }
}
