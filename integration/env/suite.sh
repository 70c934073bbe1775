#!/usr/bin/env bash
# Runs one suite of tests and compares its time with its budget: `suite.sh NAME SECONDS COMMAND...`. It prints the time before the runner's own
# summary, which stays the last output. With BUDGET_FACTOR=3, as in .ci/run, a suite that takes three times its budget is ended.
set -uo pipefail
name=$1 budget=$2
shift 2
limit=()
[[ -z ${BUDGET_FACTOR:-} ]] || limit=(timeout --kill-after=10 $((budget * BUDGET_FACTOR)))
said=

report() {
    local verdict="of its budget of $budget s"
    ((SECONDS <= budget)) || verdict="OVER its budget of $budget s"
    printf 'suite %s: %d s %s\n' "$name" "$SECONDS" "$verdict"
    said=yes
}

# Cargo's progress bar needs a terminal, which a pipe is not.
"${limit[@]}" "$@" 2>&1 | {
    while IFS= read -r line || [[ $line ]]; do
        [[ $line != "test result: "* || $said ]] || report
        printf '%s\n' "$line"
    done
    [[ $said ]] || report
}
status=${PIPESTATUS[0]}
((status != 124)) || echo "suite $name: ended, because it took $BUDGET_FACTOR times its budget of $budget s" >&2
exit "$status"
