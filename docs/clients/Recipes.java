import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The recipes of docs/recipes, with short delays. It ends with an error if a message is missing, repeated or too much.
 * With a JDK and the jars that `make up` has fetched:
 *
 * <pre>java -cp '.servers/kafka/lib/*' docs/clients/Recipes.java [BROKER]</pre>
 */
public class Recipes {
    static final String RUN = "java-" + System.nanoTime();
    static KafkaProducer<String, String> producer;

    static KafkaProducer<String, String> connect(String broker) {
        // The defaults are idempotent and wait for the in-sync replicas.
        Map<String, Object> settings = Map.of("bootstrap.servers", broker);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** Returns when the in-sync replicas have the record. A repeat after an error may store it twice. */
    static void send(String key, String value, Map<String, String> headers) throws Exception {
        var record = new ProducerRecord<>("orders.delayed", key, value);
        headers.forEach((name, text) -> record.headers().add(name, text.getBytes(StandardCharsets.UTF_8)));
        producer.send(record).get();
    }

    // Order timeout.

    static void orderPlaced(String order, String timeout) throws Exception {
        send(order, "close", Map.of("postdate-after", timeout, "postdate-id", "close:" + order));
    }

    static void closeUnlessPaid(String order, String origin) {
        // In your database, these lines are one transaction.
        if (!DONE.add(origin)) {
            return;
        }
        if (!PAID.contains(order)) {
            CLOSED.add(order);
        }
    }

    // Cancel on payment.

    static void orderPaid(String order) throws Exception {
        PAID.add(order);
        send(order, null, Map.of("postdate-op", "cancel", "postdate-id", "close:" + order));
    }

    // Cancel on payment, with an answer.

    static final ObjectMapper JSON = new ObjectMapper();
    static KafkaConsumer<String, String> answers;

    /** Without a group: each process reads all answers and takes its own. */
    static KafkaConsumer<String, String> readAnswersFromNow(String broker) {
        Map<String, Object> settings = Map.of("bootstrap.servers", broker, "isolation.level", "read_committed");
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        var partitions = consumer.partitionsFor("orders.answers").stream().map(it -> new TopicPartition(it.topic(), it.partition())).toList();
        consumer.assign(partitions);
        consumer.seekToEnd(partitions);
        // It is lazy: this finds the ends before a request is sent.
        partitions.forEach(consumer::position);
        return consumer;
    }

    /** Returns the outcome. Empty: it is not known in time. */
    static Optional<String> cancelAndWait(String order, Duration timeout) throws Exception {
        String request = order + ":" + System.nanoTime();
        send(order, null, Map.of(
            "postdate-op", "cancel", "postdate-id", "close:" + order,
            "postdate-reply-to", "orders.answers", "postdate-request-id", request));
        var end = Instant.now().plus(timeout);
        while (Instant.now().isBefore(end)) {
            for (var record : answers.poll(Duration.ofMillis(200))) {
                var answer = JSON.readTree(record.value());
                if (request.equals(answer.get("request_id").asText())) {
                    return Optional.of(answer.get("outcome").asText());
                }
            }
        }
        return Optional.empty();
    }

    // Reminder.

    static void appointmentSet(String appointment, Instant start, Map<String, Duration> leads) throws Exception {
        for (var lead : leads.entrySet()) {
            var due = start.minus(lead.getValue());
            var headers = new HashMap<>(Map.of("postdate-id", lead.getKey() + ":" + appointment));
            if (due.isAfter(Instant.now())) {
                headers.put("postdate-at", String.valueOf(due.toEpochMilli()));
            } else {
                headers.put("postdate-op", "cancel");
            }
            send(appointment, "remind " + start, headers);
        }
    }

    // Debounce.

    static void documentEdited(String document, String quiet) throws Exception {
        send(document, "index", Map.of("postdate-after", quiet, "postdate-id", "index:" + document));
    }

    static void documentEditedOften(String document, Duration window) throws Exception {
        long number = System.currentTimeMillis() / window.toMillis();
        String end = String.valueOf((number + 1) * window.toMillis());
        send(document, "index-window", Map.of("postdate-at", end, "postdate-id", "index:" + document + ":" + number));
    }

    // Retry with backoff.

    static void retry(String key, String value, Map<String, String> headers, Duration first, Duration longest, int attempts) throws Exception {
        int attempt = Integer.parseInt(headers.getOrDefault("attempt", "1")) + 1;
        if (attempt > attempts) {
            GIVEN_UP.add(key); // Write it to a topic of its own.
            return;
        }
        double delay = Math.min(first.toMillis() * Math.pow(2, attempt - 2), longest.toMillis()) * ThreadLocalRandom.current().nextDouble(0.8, 1.2);
        var kept = new HashMap<>(headers);
        kept.keySet().removeIf(name -> name.startsWith("postdate-"));
        kept.put("attempt", String.valueOf(attempt));
        // The origin of the first attempt: each attempt is a new record with an origin of its own.
        kept.putIfAbsent("first-origin", headers.get("postdate-origin"));
        kept.put("postdate-after", String.valueOf(Math.round(delay)));
        // An id has no `/`, and at most 128 characters.
        var name = UUID.nameUUIDFromBytes(kept.get("first-origin").getBytes(StandardCharsets.UTF_8));
        kept.put("postdate-id", "retry:" + name + ":" + attempt);
        send(key, value, kept);
    }

    // The consumer of all recipes.

    interface Handler {
        void handle(String key, String value, Map<String, String> headers) throws Exception;
    }

    static void consume(String broker, Handler handler, Duration duration) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", broker, "group.id", RUN, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "isolation.level", "read_committed");
        var end = Instant.now().plus(duration);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("orders"));
            while (Instant.now().isBefore(end)) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    var headers = new HashMap<String, String>();
                    for (var header : record.headers()) {
                        if (header.value() != null) {
                            headers.put(header.key(), new String(header.value(), StandardCharsets.UTF_8));
                        }
                    }
                    // A record that Postdate did not deliver has no origin.
                    headers.putIfAbsent("postdate-origin", record.topic() + "/" + record.partition() + "/" + record.offset());
                    handler.handle(record.key(), record.value(), headers);
                    // After the work: a crash before this line repeats the record.
                    consumer.commitSync(Map.of(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1)));
                }
            }
        }
    }

    // The run.

    static final Set<String> DONE = new HashSet<>(), PAID = new HashSet<>();
    static final List<String> CLOSED = new ArrayList<>(), GIVEN_UP = new ArrayList<>();
    static final Map<String, Integer> ARRIVED = new TreeMap<>();

    static void handle(String key, String value, Map<String, String> headers) throws Exception {
        if (key == null || !key.startsWith(RUN)) {
            return;
        }
        ARRIVED.merge(key.substring(RUN.length()) + " " + value.split(" ")[0], 1, Integer::sum);
        if (value.equals("close")) {
            closeUnlessPaid(key, headers.get("postdate-origin"));
            closeUnlessPaid(key, headers.get("postdate-origin"));
        } else if (value.equals("charge") && Integer.parseInt(headers.getOrDefault("attempt", "1")) < 3) {
            retry(key, value, headers, Duration.ofMillis(500), Duration.ofHours(1), 10);
        } else if (value.equals("refund")) {
            retry(key, value, headers, Duration.ofMillis(500), Duration.ofHours(1), 2);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String broker = arguments.length > 0 ? arguments[0] : "127.0.0.1:9092";
        producer = connect(broker);
        var leads = Map.of("day", Duration.ofDays(1), "soon", Duration.ofSeconds(2));
        var now = Instant.now();
        answers = readAnswersFromNow(broker);
        for (String order : List.of("-unpaid", "-paid", "-late", "-asked")) {
            orderPlaced(RUN + order, "5s");
        }
        orderPaid(RUN + "-paid");
        var outcomes = List.of(cancelAndWait(RUN + "-asked", Duration.ofSeconds(10)), cancelAndWait(RUN + "-asked", Duration.ofSeconds(10)));
        PAID.add(RUN + "-late"); // Paid, and the cancel comes too late.
        appointmentSet(RUN + "-visit", now.plusSeconds(8), leads);
        appointmentSet(RUN + "-visit", now.plusSeconds(9), leads);
        for (int edit = 0; edit < 5; edit++) {
            documentEdited(RUN + "-text", "3s");
            documentEditedOften(RUN + "-text", Duration.ofSeconds(4));
        }
        send(RUN + "-charge", "charge", Map.of("postdate-after", "500ms"));
        // Straight to the target, with a null header.
        var refund = new ProducerRecord<>("orders", RUN + "-refund", "refund");
        refund.headers().add("trace", null);
        producer.send(refund).get();
        consume(broker, Recipes::handle, Duration.ofSeconds(arguments.length > 1 ? Integer.parseInt(arguments[1]) : 12));
        producer.close();
        answers.close();

        if (!outcomes.equals(List.of(Optional.of("cancelled"), Optional.of("not_found")))) {
            System.err.println("the answers are " + outcomes);
            System.exit(1);
        }
        Integer windows = ARRIVED.remove("-text index-window");
        var expected = Map.of("-unpaid close", 1, "-late close", 1, "-visit remind", 1, "-text index", 1, "-charge charge", 3, "-refund refund", 2);
        boolean asExpected = ARRIVED.equals(expected) && windows != null && windows <= 2;
        if (!asExpected || !CLOSED.equals(List.of(RUN + "-unpaid")) || !GIVEN_UP.equals(List.of(RUN + "-refund"))) {
            System.err.println("arrived " + ARRIVED + " and " + windows + " windows, closed " + CLOSED + ", given up " + GIVEN_UP);
            System.exit(1);
        }
        System.out.println("each recipe has done what it says");
    }
}
