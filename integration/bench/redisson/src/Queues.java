import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.config.Config;

/** Schedules messages with delayed queues of Redisson, and receives the due ones. */
final class Queues implements AutoCloseable {
    /** As many as the default workload has partitions. A transfer searches the whole list of its queue. */
    private static final int QUEUES = Integer.getInteger("q", 4);
    /** Requests in flight. Redisson has no bulk request for delayed messages, so they determine the speed. */
    private static final int IN_FLIGHT = Integer.getInteger("f", 256);
    private static final int WORKERS = Integer.getInteger("w", 2 * QUEUES);
    /** Messages that a worker takes in one request, after the first one. */
    private static final int BATCH = 500;

    private final RedissonClient redisson;
    private final List<RBlockingQueue<byte[]>> due = new ArrayList<>();
    private final List<RDelayedQueue<byte[]>> delayed = new ArrayList<>();
    private final List<Thread> workers = new ArrayList<>();
    private volatile boolean isClosed;

    Queues(String redis, String name) {
        Config config = new Config();
        config.setCodec(ByteArrayCodec.INSTANCE);
        config.useSingleServer().setAddress("redis://" + redis).setConnectionPoolSize(Integer.getInteger("p", 64));
        redisson = Redisson.create(config);
        for (int queue = 0; queue < QUEUES; queue++) {
            due.add(redisson.getBlockingQueue(name + queue));
            delayed.add(redisson.getDelayedQueue(due.get(queue)));
        }
    }

    /**
     * Schedules all messages, at full speed or at the given rate. It records when each one is due.
     */
    void store(List<Message> messages, long[] dues, int rate, boolean isAbsolute) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long begun = System.currentTimeMillis();
        for (int number = 0; number < messages.size(); number++) {
            while (rate > 0 && number >= (System.currentTimeMillis() - begun) * rate / 1_000) {
                Thread.sleep(1);
            }
            free.acquire();
            Message message = messages.get(number);
            long now = System.currentTimeMillis();
            dues[number] = isAbsolute ? message.at() : now + message.at();
            delayed.get(number % QUEUES)
                    .offerAsync(message.value(), Math.max(0, dues[number] - now), TimeUnit.MILLISECONDS)
                    .whenComplete((nothing, error) -> {
                        if (error != null) {
                            failure.compareAndSet(null, error);
                        }
                        free.release();
                    });
        }
        free.acquire(IN_FLIGHT);
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
    }

    /** Starts the workers, which pass every due message to the ledger. */
    void take(Ledger ledger) {
        for (int worker = 0; worker < WORKERS; worker++) {
            RBlockingQueue<byte[]> queue = due.get(worker % QUEUES);
            workers.add(new Thread(() -> work(queue, ledger)));
        }
        workers.forEach(Thread::start);
    }

    private void work(RBlockingQueue<byte[]> queue, Ledger ledger) {
        try {
            while (!isClosed) {
                byte[] first = queue.poll(1, TimeUnit.SECONDS);
                if (first != null) {
                    ledger.note(first);
                    queue.poll(BATCH).forEach(ledger::note);
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() throws InterruptedException {
        isClosed = true;
        for (Thread worker : workers) {
            worker.join();
        }
        redisson.shutdown();
    }
}
