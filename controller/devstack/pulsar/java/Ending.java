import java.util.concurrent.TimeUnit;

/** Tells the main thread that SIGTERM came, and keeps the process until that thread has ended. */
final class Ending {
    private volatile boolean isWanted;

    Ending() {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isWanted = true;
            try {
                main.join(TimeUnit.SECONDS.toMillis(120));
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
    }

    boolean isWanted() {
        return isWanted;
    }
}
