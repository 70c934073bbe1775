"""Holds a dashboard against Grafana's own schema: reads it into the classes that Grafana generates from that, writes it again, and tells what
did not come back, one line each. usage: dashboard.py FILE, with grafana_foundation_sdk where Python looks for it."""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def differences(ours, theirs, place):
    """What of `ours` the schema has no place for."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from differences(value, theirs[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: the schema does not know it"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs)):
            yield from differences(*pair, f"{place}[{index}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} is read as {theirs!r}"


register_default_plugins()
with open(sys.argv[1], encoding="utf-8") as file:
    dashboard = json.load(file)
written = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
found = list(differences(dashboard, written, "dashboard"))
print("\n".join(found), file=sys.stderr)
sys.exit(1 if found else 0)
