import java.util.List;

/**
 * The messages to schedule.
 *
 * @param rate messages a second, or 0 for full speed
 * @param isAbsolute each message has a due time, not a delay
 */
record Load(List<Message> messages, int rate, boolean isAbsolute) {
}
