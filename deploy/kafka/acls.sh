#!/bin/sh
# Grants one user of Kafka what one route of Postdate needs, and nothing else. To be run by somebody who may, once a route:
#   BOOTSTRAP=kafka:9092 PRINCIPAL=User:postdate DEPLOYMENT=prod ROUTE=orders \
#   SOURCE=orders.delayed TARGET=orders DEAD_LETTER=orders.dead deploy/kafka/acls.sh
# A route with several sources, or an `allow` of several targets, takes it once with each; so does a source on another cluster than its target.
#   DELIVERY         at-least-once, the default, or exactly-once, as the route's `delivery`: only then are transactions granted
#   COMMAND_CONFIG   a file of client properties, to log in with
#   ACTION           --add, the default, or "--remove --force"
#   KAFKA_ACLS       where Kafka's own tool lies, by default kafka-acls.sh on the path
set -eu

delivery=${DELIVERY:-at-least-once}
case $delivery in
    at-least-once | exactly-once) ;;
    *)
        echo "DELIVERY is $delivery: at-least-once or exactly-once, as the route has it" >&2
        exit 2
        ;;
esac

acl() {
    # shellcheck disable=SC2086
    "${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" ${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} \
        ${ACTION:---add} --allow-principal "$PRINCIPAL" "$@"
}

# The source is read, by a consumer group; and what is to be tried again goes back through it.
acl --operation Read --topic "$SOURCE"
acl --operation Write --topic "$SOURCE"
acl --operation Read --group "$DEPLOYMENT.$ROUTE"
# For `postdate check`, which compares its retention to the longest delay.
acl --operation DescribeConfigs --topic "$SOURCE"
acl --operation Write --topic "$TARGET"
acl --operation Write --topic "$DEAD_LETTER"
[ "$delivery" = exactly-once ] || exit 0
# Transactions, the group that holds what they have delivered, and the one beside it that a first, empty transaction writes to.
acl --operation Write --transactional-id "$DEPLOYMENT.$ROUTE." --resource-pattern-type prefixed
acl --operation Read --group "$DEPLOYMENT.$ROUTE.delivered" --resource-pattern-type prefixed
