import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

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
        String redis = options.get("--redis");
        List<Message> messages = Message.read(Path.of(options.get("--messages")));
        int rate = Integer.parseInt(options.getOrDefault("--rate", "0"));
        warmUp(redis, messages);
        try (BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
                Queues queues = new Queues(redis, "delayed")) {
            System.out.println("ready");
            if (commands.readLine() != null) {
                System.out.println(run(mode, queues, messages, rate, options.containsKey("--absolute")));
                commands.readLine();
            }
        }
    }

    private static String run(String mode, Queues queues, List<Message> messages, int rate, boolean isAbsolute)
            throws Exception {
        long begun = System.currentTimeMillis();
        long[] due = messages.stream().mapToLong(Message::at).toArray();
        if (mode.equals("store")) {
            queues.store(messages, due, rate, isAbsolute);
            return "{\"seconds\":%s}".formatted((System.currentTimeMillis() - begun) / 1e3);
        }
        Ledger ledger = new Ledger(messages);
        queues.take(ledger);
        if (mode.equals("steady")) {
            queues.store(messages, due, rate, isAbsolute);
        }
        ledger.await();
        return ledger.judge(due, begun);
    }

    private static void warmUp(String redis, List<Message> messages) throws Exception {
        List<Message> some = IntStream.range(0, Math.min(WARM_UP, messages.size()))
                .mapToObj(number -> new Message(0, messages.get(number).value()))
                .toList();
        try (Queues queues = new Queues(redis, "warm-up")) {
            run("steady", queues, some, 0, false);
        }
    }
}
