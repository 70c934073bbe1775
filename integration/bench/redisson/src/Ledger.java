import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;

/** Records the messages that arrive, and checks them. It may be used by several threads. */
final class Ledger {
    /** Milliseconds without an arrival after which missing messages count as lost. */
    private static final long SILENCE = 30_000;

    private final List<Message> messages;
    private final AtomicLongArray arrived;
    private final AtomicInteger doubled = new AtomicInteger();
    private final AtomicInteger changed = new AtomicInteger();
    private final AtomicInteger left;
    private volatile long last = System.currentTimeMillis();

    Ledger(List<Message> messages) {
        this.messages = messages;
        arrived = new AtomicLongArray(messages.size());
        left = new AtomicInteger(messages.size());
    }

    void note(byte[] value) {
        long now = System.currentTimeMillis();
        last = now;
        int number = Message.number(value);
        if (number < 0 || number >= messages.size()) {
            changed.incrementAndGet();
        } else if (!arrived.compareAndSet(number, 0, now)) {
            doubled.incrementAndGet();
        } else {
            if (!Arrays.equals(value, messages.get(number).value())) {
                changed.incrementAndGet();
            }
            left.decrementAndGet();
        }
    }

    /** Returns when all messages arrived, or when no message arrives any more. */
    void await() throws InterruptedException {
        while (left.get() > 0 && System.currentTimeMillis() - last < SILENCE) {
            Thread.sleep(1);
        }
    }

    /** Returns the outcome that the bench reads, as JSON. */
    String judge(long[] due, long begun) {
        long[] lateness = new long[messages.size() - left.get()];
        int count = 0;
        for (int number = 0; number < due.length; number++) {
            if (arrived.get(number) != 0) {
                lateness[count++] = arrived.get(number) - due[number];
            }
        }
        Arrays.sort(lateness);
        long early = Arrays.stream(lateness).filter(late -> late < 0).count();
        return "{\"seconds\":%s,\"lost\":%d,\"doubled\":%d,\"early\":%d,\"changed\":%d,\"lateness\":%s}"
                .formatted((last - begun) / 1e3, left.get(), doubled.get(), early, changed.get(), Arrays.toString(lateness));
    }
}
