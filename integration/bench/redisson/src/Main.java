import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.redisson.api.RedissonClient;

/**
 * Keeps messages in Redis until they are due, with the Java library Redisson.
 *
 * <p>`make bench` runs it for comparison with Postdate. It checks the messages that arrive. The bench
 * measures its processor time. The arguments and the protocol are those of asynq/main.go.
 */
public final class Main {
    /** Messages that pass through other queues before the measurement, because a fresh JVM is slow. */
    private static final int WARM_UP = 20_000;

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        String mode = words[words.length - 1];
        for (int at = 0; at < words.length - 1; at++) {
            boolean isFlag = words[at].equals("--absolute");
            options.put(words[at], isFlag ? "" : words[++at]);
        }
        List<Message> messages = Message.read(Path.of(options.get("--messages")));
        Load load = new Load(messages, Integer.parseInt(options.getOrDefault("--rate", "0")),
                options.containsKey("--absolute"));
        RedissonClient redisson = Queues.connect(options.get("--redis"));
        try {
            run(redisson, "warm-up", "steady", warmUp(messages));
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            System.out.println("ready");
            if (commands.readLine() != null) {
                System.out.println(run(redisson, "delayed", mode, load));
                commands.readLine();
            }
        } finally {
            redisson.shutdown();
        }
    }

    /** Returns the outcome that the bench reads, as JSON. */
    private static String run(RedissonClient redisson, String name, String mode, Load load) throws Exception {
        long begun = System.currentTimeMillis();
        long[] due = load.messages().stream().mapToLong(Message::at).toArray();
        try (Queues queues = new Queues(redisson, name)) {
            if (mode.equals("store")) {
                queues.store(load, due);
                return "{\"seconds\":%s,\"lost\":0,\"doubled\":0,\"early\":0,\"changed\":0}"
                        .formatted((System.currentTimeMillis() - begun) / 1e3);
            }
            Ledger ledger = new Ledger(load.messages());
            queues.take(ledger);
            if (mode.equals("steady")) {
                queues.store(load, due);
            }
            ledger.await();
            return ledger.judge(due, begun);
        }
    }

    private static Load warmUp(List<Message> messages) {
        List<Message> some = messages.stream()
                .limit(WARM_UP)
                .map(message -> new Message(0, message.value()))
                .toList();
        return new Load(some, 0, false);
    }
}
