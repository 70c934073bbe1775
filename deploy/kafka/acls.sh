#!/bin/sh
# Grants a Kafka user the rights that one route needs. Run it as an administrator, once per route:
#   BOOTSTRAP=kafka:9092 PRINCIPAL=User:postdate DEPLOYMENT=prod ROUTE=orders \
#   SOURCE=orders.delayed TARGET=orders DEAD_LETTER=orders.dead deploy/kafka/acls.sh
# Repeat it for each source and each target of `allow`, `allow_replies` and `outcomes`. Run it on both clusters if source and target are on different ones.
#   DELIVERY         at-least-once (default) or exactly-once, as in the route; exactly-once also grants the group of its markers
#   COMMAND_CONFIG   file of client properties for the login
#   ACTION           --add (default) or "--remove --force"
#   KAFKA_ACLS       path of Kafka's tool, default kafka-acls.sh
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

# Retries are written back to the source. The group keeps the offset commits, and has no members.
acl --operation Read --topic "$SOURCE"
acl --operation Write --topic "$SOURCE"
acl --operation Read --group "$DEPLOYMENT.$ROUTE"
# `postdate check` compares the retention with the longest delay.
acl --operation DescribeConfigs --topic "$SOURCE"
acl --operation Write --topic "$TARGET"
acl --operation Write --topic "$DEAD_LETTER"
# Redrive: reads the dead letters, and commits its position together with the copies. Its transactions also write to a group next to it.
acl --operation Read --topic "$DEAD_LETTER"
acl --operation Read --group "$DEPLOYMENT.$ROUTE.redrive" --resource-pattern-type prefixed
# Transactions of redrives, and of routes with exactly-once.
acl --operation Write --transactional-id "$DEPLOYMENT.$ROUTE." --resource-pattern-type prefixed
[ "$delivery" = exactly-once ] || exit 0
# The group of the delivered markers, and the one next to it that the first empty transaction writes to.
acl --operation Read --group "$DEPLOYMENT.$ROUTE.delivered" --resource-pattern-type prefixed
