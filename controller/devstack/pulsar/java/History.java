import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/** Appends lines that `cleave check-history` reads. System.nanoTime is the machine's monotonic clock. Thread-safe. */
final class History implements AutoCloseable {
    private final FileOutputStream file;

    History(Path path) throws IOException {
        file = new FileOutputStream(path.toFile(), true);
    }

    /** Writes a line; a message is named by its payload, `PRODUCER NUMBER`, and its key. `more`: the fields of a consumer. */
    synchronized void note(String event, byte[] payload, String key, String... more) {
        String[] name = new String(payload, StandardCharsets.UTF_8).split(" ");
        StringBuilder line = new StringBuilder(System.nanoTime() + "\t" + event + "\t" + name[0] + "\t" + key + "\t" + name[1]);
        for (String field : more) {
            line.append("\t").append(field);
        }
        try {
            file.write(line.append("\n").toString().getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public synchronized void close() throws IOException {
        file.close();
    }
}
