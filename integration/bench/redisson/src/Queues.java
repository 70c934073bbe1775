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
    private static final int QUEUES = 4;
    /** Requests in flight. Redisson has no bulk request for delayed messages, so they determine the speed. */
    private static final int IN_FLIGHT = 256;
    private static final int WORKERS = 2 * QUEUES;
    /** Messages that a worker takes in one request, after the first one. */
    private static final int BATCH = 500;

    /** Milliseconds. The default of 3 s ends the program on a busy machine. */
    private static final int TIMEOUT = 30_000;

    private final List<RBlockingQueue<byte[]>> due = new ArrayList<>();
    private final List<RDelayedQueue<byte[]>> delayed = new ArrayList<>();
    private final List<Thread> workers = new ArrayList<>();

    static RedissonClient connect(String redis) {
        Config config = new Config();
        config.setCodec(ByteArrayCodec.INSTANCE);
        config.useSingleServer()
                .setAddress("redis://" + redis)
                .setTimeout(TIMEOUT)
                .setSubscriptionTimeout(TIMEOUT);
        return Redisson.create(config);
    }

    /** Opens the queues. As long as they are open, Redisson transfers messages that are due. */
    Queues(RedissonClient redisson, String name) {
        for (int queue = 0; queue < QUEUES; queue++) {
            due.add(redisson.getBlockingQueue(name + queue));
            delayed.add(redisson.getDelayedQueue(due.get(queue)));
        }
    }

    /**
     * Schedules all messages, at full speed or at the given rate. It records when each one is due.
     */
    void store(Load load, long[] dues) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long begun = System.currentTimeMillis();
        for (int number = 0; number < load.messages().size(); number++) {
            while (load.rate() > 0 && number >= (System.currentTimeMillis() - begun) * load.rate() / 1_000) {
                Thread.sleep(1);
            }
            free.acquire();
            Message message = load.messages().get(number);
            long now = System.currentTimeMillis();
            dues[number] = load.isAbsolute() ? message.at() : now + message.at();
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

    private static void work(RBlockingQueue<byte[]> queue, Ledger ledger) {
        try {
            while (true) {
                ledger.note(queue.take());
                queue.poll(BATCH).forEach(ledger::note);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Call it while no message arrives: an interrupted worker may lose one. */
    @Override
    public void close() throws InterruptedException {
        for (Thread worker : workers) {
            worker.interrupt();
            worker.join();
        }
        delayed.forEach(RDelayedQueue::destroy);
    }
}
