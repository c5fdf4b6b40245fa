import cleave.CleaveProducer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Sends numbered messages of random keys until SIGTERM, and writes down what was stored.
 *
 * <p>Arguments: SERVICE_URL TOPIC NAME HISTORY WORKERS TOKEN KEYS MESSAGES_A_SECOND.
 */
public final class StockProducer {
    public static void main(String[] given) throws Exception {
        Ending ending = new Ending();
        int keys = Integer.parseInt(given[6]);
        int rate = Integer.parseInt(given[7]);
        CleaveProducer.Options options = CleaveProducer.Options.of(List.of(given[4].split(",")), () -> given[5], given[1]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(given[0]).build();
                History history = new History(Path.of(given[3]));
                CleaveProducer producer = new CleaveProducer(client, options)) {
            Random random = new Random(given[2].hashCode());
            int[] numbers = new int[keys];
            long began = System.nanoTime();
            for (long sent = 0; !ending.isWanted(); ) {
                long due = (System.nanoTime() - began) / 1_000_000 * rate / 1_000;
                for (; sent < due; sent++) {
                    int number = random.nextInt(keys);
                    String key = "key-" + number;
                    byte[] payload = (given[2] + " " + numbers[number]++).getBytes(StandardCharsets.UTF_8);
                    producer.sendAsync(key, payload).thenRun(() -> history.note("sent", payload, key));
                }
                Thread.sleep(10);
            }
            producer.flush();
        }
    }
}
