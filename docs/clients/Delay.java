import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends a message that is due in ten seconds, and waits for it. With a JDK and the jars that `make up` has fetched:
 *
 * <pre>java -cp '.servers/kafka/lib/*' docs/clients/Delay.java [BROKER]</pre>
 */
public class Delay {
    public static void main(String[] arguments) throws Exception {
        String broker = arguments.length > 0 ? arguments[0] : "127.0.0.1:9092";
        String key = "java-" + System.nanoTime();
        ProducerRecord<String, String> message = new ProducerRecord<>("orders.delayed", key, "close it unless it was paid");
        message.headers().add("postdate-after", "10s".getBytes(StandardCharsets.UTF_8));
        Map<String, Object> producing = Map.of("bootstrap.servers", broker);
        Instant sent = Instant.now();
        try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            producer.send(message).get();
        }
        System.out.println("sent " + key + ", due in ten seconds");

        Map<String, Object> consuming = Map.of("bootstrap.servers", broker, "group.id", key, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            while (Instant.now().isBefore(sent.plusSeconds(30))) {
                for (var arrived : consumer.poll(Duration.ofSeconds(1))) {
                    if (key.equals(arrived.key())) {
                        long due = Long.parseLong(new String(arrived.headers().lastHeader("postdate-due").value(), StandardCharsets.UTF_8));
                        double seconds = Duration.between(sent, Instant.now()).toMillis() / 1e3;
                        System.out.printf("arrived after %.1f s, stamped %d ms after its due: %s%n", seconds, arrived.timestamp() - due, arrived.value());
                        for (var header : arrived.headers()) {
                            System.out.println("  " + header.key() + ": " + new String(header.value(), StandardCharsets.UTF_8));
                        }
                        return;
                    }
                }
            }
        }
        System.err.println("it did not arrive within 30 s: is the service running?");
        System.exit(1);
    }
}
