import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A message of the load. Its number is its position in the file.
 *
 * @param at a due time in epoch milliseconds, or a delay in milliseconds
 * @param value key, headers and payload, as they are in Redis
 */
record Message(long at, byte[] value) {
    private static final int DIGITS = 7;

    /**
     * Reads the messages file of the bench. It contains a JSON object with the common headers, then
     * the time, key and payload of each message. A length precedes each field except the time.
     */
    static List<Message> read(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        byte[] headers = field(bytes);
        List<Message> messages = new ArrayList<>();
        while (bytes.hasRemaining()) {
            long at = bytes.getLong();
            byte[] key = field(bytes);
            byte[] payload = field(bytes);
            ByteBuffer value = ByteBuffer.allocate(4 + key.length + headers.length + payload.length);
            value.putShort((short) key.length).put(key);
            value.putShort((short) headers.length).put(headers);
            messages.add(new Message(at, value.put(payload).array()));
        }
        return messages;
    }

    private static byte[] field(ByteBuffer bytes) {
        byte[] field = new byte[bytes.getInt()];
        bytes.get(field);
        return field;
    }

    /** Reads the number from the end of a payload, or returns -1. */
    static int number(byte[] value) {
        try {
            return Integer.parseInt(new String(value, value.length - DIGITS - 2, DIGITS, StandardCharsets.US_ASCII));
        } catch (NumberFormatException | IndexOutOfBoundsException e) {
            return -1;
        }
    }
}
