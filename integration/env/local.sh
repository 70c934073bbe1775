#!/usr/bin/env bash
# Starts a Kafka, a NATS server and a Redis on this machine. `local.sh up` starts the missing ones.
# `local.sh down` stops only servers that `up` started. Data stays in .servers/up.
# KAFKA_PORT, NATS_PORT and REDIS_PORT select other ports. REDIS=sentinel starts a Redis with a replica, on the next
# port, and three sentinels from SENTINEL_PORT on. REDIS=cluster starts a Redis Cluster of three primaries and three
# replicas, on six ports in a row.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
servers=${POSTDATE_SERVERS:-$PWD/.servers}
mkdir -p "$servers/up/kafka" "$servers/up/nats" "$servers/up/redis"
up=$(cd "$servers/up" && pwd -P)
kafka_port=${KAFKA_PORT:-9092}
nats_port=${NATS_PORT:-4222}
redis_port=${REDIS_PORT:-6379}
sentinel_port=${SENTINEL_PORT:-26379}
redis=${REDIS:-single}
nats=$(cd "$servers" && pwd)/nats/bin/nats-server
controller_port=$((kafka_port + 1))

complain() {
    echo "$@" >&2
    exit 1
}

# A process id may have been reused. A process is our server if it runs in the data folder.
runs() {
    local pid
    pid=$(cat "$up/$1.pid" 2>/dev/null) && [[ $(readlink "/proc/$pid/cwd") == "$up/$1" ]]
}

listens() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Refuses a port of another program, and a running server on another port than requested.
check() {
    local server=$1 port=$2 variable=$3
    if runs "$server"; then
        [[ $(cat "$up/$server.port") == "$port" ]] || complain "The $server of \`make up\` runs on port $(cat "$up/$server.port"): \`make down\` first."
    elif listens "$port"; then
        complain "Port $port is taken by another program. End it, or choose another port:  make up $variable=..."
    fi
}

# Starts a command in the server's data folder, detached from this terminal, unless it runs already.
start() {
    local server=$1 port=$2
    shift 2
    runs "$server" && return
    (cd "$up/$server" && exec setsid "$@") >"$up/$server.log" 2>&1 </dev/null &
    echo $! >"$up/$server.pid"
    echo "$port" >"$up/$server.port"
}

await() {
    local server=$1 port=$2
    for _ in $(seq 300); do
        listens "$port" && return
        kill -0 "$(cat "$up/$server.pid")" 2>/dev/null || complain "$server did not start: $(tail -n 5 "$up/$server.log")"
        sleep 0.2
    done
    complain "$server does not answer on port $port after a minute; its log is $up/$server.log"
}

start_redis() {
    start redis "$redis_port" redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$up/redis" \
        --appendonly yes --appendfsync everysec --save "" --maxmemory-policy noeviction
    await redis "$redis_port"
}

# Runs a command for each server of the group: its name and its port follow.
for_group() {
    local number
    for number in 0 1; do "$@" "redis$number" $((redis_port + number)); done
    for number in 0 1 2; do "$@" "sentinel$number" $((sentinel_port + number)); done
}

check_member() {
    case $1 in
        redis*) check "$1" "$2" REDIS_PORT ;;
        *) check "$1" "$2" SENTINEL_PORT ;;
    esac
}

# Each member has a file, in which the sentinels write who is the primary.
start_member() {
    local name=$1 port=$2 file=$up/$1/redis.conf
    mkdir -p "$up/$name"
    if [[ ! -e $file ]]; then
        printf '%s\n' "port $port" 'bind 127.0.0.1' "dir $up/$name" >"$file"
        case $name in
            redis*) printf '%s\n' 'appendonly yes' 'appendfsync everysec' 'save ""' 'maxmemory-policy noeviction' >>"$file" ;;
            *) printf '%s\n' "sentinel monitor orders 127.0.0.1 $redis_port 2" 'sentinel down-after-milliseconds orders 5000' >>"$file" ;;
        esac
        [[ $name != redis1 ]] || echo "replicaof 127.0.0.1 $redis_port" >>"$file"
    fi
    case $name in
        redis*) start "$name" "$port" redis-server "$file" ;;
        *) start "$name" "$port" redis-server "$file" --sentinel ;;
    esac
    await "$name" "$port"
}

# Runs a command for each node of the cluster: its name and its port follow.
for_cluster() {
    local number
    for number in 0 1 2 3 4 5; do "$@" "node$number" $((redis_port + number)); done
}

check_node() {
    check "$1" "$2" REDIS_PORT
}

start_node() {
    mkdir -p "$up/$1"
    start "$1" "$2" redis-server --port "$2" --bind 127.0.0.1 --dir "$up/$1" --appendonly yes --appendfsync everysec --save "" \
        --maxmemory-policy noeviction --cluster-enabled yes --cluster-node-timeout 5000 --cluster-require-full-coverage no
    await "$1" "$2"
}

start_cluster() {
    local nodes=() number said
    for_cluster start_node
    for number in 0 1 2 3 4 5; do nodes+=("127.0.0.1:$((redis_port + number))"); done
    # Data of an earlier start includes the slots.
    grep -qs ' connected 0-' "$up/node0/nodes.conf" && return
    said=$(redis-cli --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes 2>&1) || complain "Redis does not create the cluster: $said"
}

java() {
    command java -cp "$servers/kafka/lib/*" "$@"
}

start_kafka() {
    local properties=$up/kafka.properties
    cat >"$properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$kafka_port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$kafka_port
log.dirs=$up/kafka/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
END
    [[ -e $up/kafka/data/meta.properties ]] || java kafka.tools.StorageTool format -t cG9zdGRhdGUtbG9jYWwtMQ -c "$properties" >/dev/null
    start kafka "$kafka_port" java -Xmx768m -cp "$servers/kafka/lib/*" kafka.Kafka "$properties"
}

topic() {
    local said
    said=$(java org.apache.kafka.tools.TopicCommand --bootstrap-server "127.0.0.1:$kafka_port" \
        --create --if-not-exists --topic "$1" --partitions "$2" "${@:3}" 2>&1) || complain "Kafka does not create the topic $1: $said"
}

# Uses the NATS protocol directly, so no client is needed. An existing equal stream is accepted.
stream() {
    local body="{\"name\":\"$1\",\"subjects\":[\"$2\"]}" line
    exec 4<>"/dev/tcp/127.0.0.1/$nats_port"
    printf 'CONNECT {"verbose":false}\r\nSUB answer 1\r\nPUB $JS.API.STREAM.CREATE.%s answer %d\r\n%s\r\n' "$1" ${#body} "$body" >&4
    while IFS= read -r -t 10 line <&4; do
        case $line in
            *'"error"'*) complain "NATS does not create the stream $1: $line" ;;
            *'"type"'*'stream_create_response'*)
                exec 4>&-
                return
                ;;
        esac
    done
    complain "NATS does not answer on port $nats_port; its log is $up/nats.log"
}

servers_up() {
    case $redis in
        single | sentinel | cluster) ;;
        *) complain "REDIS=$redis is unknown: write REDIS=sentinel or REDIS=cluster, or leave it out." ;;
    esac
    [[ $redis == single ]] || ! runs redis || complain "A single redis of \`make up\` runs: \`make down\` first."
    [[ $redis == sentinel ]] || ! runs redis0 || complain "\`make up REDIS=sentinel\` runs: \`make down\` first."
    [[ $redis == cluster ]] || ! runs node0 || complain "\`make up REDIS=cluster\` runs: \`make down\` first."
    case $redis in
        sentinel) for_group check_member ;;
        cluster) for_cluster check_node ;;
        *) check redis "$redis_port" REDIS_PORT ;;
    esac
    check nats "$nats_port" NATS_PORT
    check kafka "$kafka_port" KAFKA_PORT
    runs kafka || ! listens "$controller_port" || complain "Kafka also needs port $controller_port, which is taken. Choose another:  make up KAFKA_PORT=..."
    start nats "$nats_port" "$nats" -a 127.0.0.1 -p "$nats_port" -js -sd "$up/nats"
    start_kafka
    case $redis in
        sentinel) for_group start_member ;;
        cluster) start_cluster ;;
        *) start_redis ;;
    esac
    await nats "$nats_port"
    await kafka "$kafka_port"
    # Retention longer than the longest delay, so that a lost Redis can be filled again.
    topic orders.delayed 4 --config retention.ms=$((31 * 24 * 3600 * 1000))
    topic orders 4
    topic orders.dead 1
    topic orders.answers 1
    stream DELAYED 'delayed.>'
    stream ORDERS 'orders.>'
    stream EVENTS 'events.>'
    stream DEAD 'dead.>'
    next_steps
}

next_steps() {
    local elsewhere=""
    [[ $redis_port == 6379 || $redis != single ]] || elsewhere+="POSTDATE_STORE__REDIS__URL=redis://127.0.0.1:$redis_port "
    [[ $kafka_port == 9092 ]] || elsewhere+="POSTDATE_KAFKA__MAIN__BROKERS='[\"127.0.0.1:$kafka_port\"]' "
    local edge=$elsewhere
    [[ $nats_port == 4222 ]] || edge+="POSTDATE_NATS__EDGE__URL=nats://127.0.0.1:$nats_port "
    cat <<END

Kafka answers on 127.0.0.1:$kafka_port, NATS on 127.0.0.1:$nats_port and Redis on 127.0.0.1:$redis_port. Next, the service:

    cargo build --release
    ${elsewhere}target/release/postdate run --config config/kafka.toml

In a second terminal, send a message that is due in ten seconds and wait for it, with a client that you know:

    python3 -m venv .venv && .venv/bin/pip install confluent-kafka && .venv/bin/python docs/clients/delay.py 127.0.0.1:$kafka_port
    (cd docs/clients/go && go run . 127.0.0.1:$kafka_port)
    (cd docs/clients/node && npm install && node delay.js 127.0.0.1:$kafka_port)    # Node.js 22.22 or later
    java -cp '$servers/kafka/lib/*' docs/clients/Delay.java 127.0.0.1:$kafka_port    # a JDK: \`apt-get install openjdk-17-jdk-headless\`

With kcat (a Debian package), send here, and watch the target in a third terminal:

    echo 'close it unless it was paid' | kcat -b 127.0.0.1:$kafka_port -P -t orders.delayed -k order-42 -H postdate-after=10s
    kcat -b 127.0.0.1:$kafka_port -C -t orders -o end -u -q -f '%k: %s  [%h]\\n'

From NATS to NATS, instead, with the streams DELAYED and ORDERS; config/bridge.toml goes between the two:

    ${edge}target/release/postdate run --config config/nats.toml
    ${edge}target/release/postdate send --config config/nats.toml --route orders --subject delayed.orders.eu --in 10s 'close it unless it was paid'

END
    [[ $redis != cluster ]] || cat <<END
Redis is a cluster. Instead of \`url\`, write into [store.redis] of the configuration:

    cluster = { servers = ["127.0.0.1:$redis_port", "127.0.0.1:$((redis_port + 1))", "127.0.0.1:$((redis_port + 2))"] }

END
    [[ $redis != sentinel ]] || cat <<END
Redis has sentinels. Instead of \`url\`, write into [store.redis] of the configuration:

    sentinel = { servers = ["127.0.0.1:$sentinel_port", "127.0.0.1:$((sentinel_port + 1))", "127.0.0.1:$((sentinel_port + 2))"], master = "orders" }

END
    echo '`make down` ends the servers and keeps their data.'
}

stop() {
    if runs "$1"; then
        local pid
        pid=$(cat "$up/$1.pid")
        kill "$pid"
        for _ in $(seq 300); do
            runs "$1" || break
            sleep 0.1
        done
        if runs "$1"; then
            kill -9 "$pid"
        fi
        echo "$1 is down."
    else
        echo "$1 was not up."
    fi
    rm -f "$up/$1.pid" "$up/$1.port"
}

case ${1:-} in
    up) servers_up ;;
    down)
        stop kafka
        stop nats
        for member in sentinel{0,1,2} redis{0,1} node{0,1,2,3,4,5}; do
            ! runs "$member" || stop "$member"
        done
        stop redis
        ;;
    *) complain "usage: ${BASH_SOURCE[0]} up|down" ;;
esac
