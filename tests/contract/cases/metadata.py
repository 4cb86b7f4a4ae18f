"""Health, metadata, configuration and readiness, of the server and of every probe."""

from __future__ import annotations

import json
import re

from contract.casebook import bodies, case, chapter, get, infer, maps_in_any_order, tensor
from contract.probes import BROKEN, PROBES

GOOD = [name for name in PROBES if name not in BROKEN]
OVERFLOW = "99999999999999999999"
X1 = tensor("X", "FP32", [1], [1])


def _names(body: bytes) -> bytes:
    listed = [(item["name"], item["version"]) for item in json.loads(body)["model_stats"]]
    return repr(listed).encode()


# Durations and times differ in each run; only whether they are zero is compared.
durations = bodies(lambda body: re.sub(rb'("ns"|"last_inference"):[1-9]\d*', rb"\1:N", body))
# Counts depend on earlier cases, so only the names of the models are compared.
names_alone = bodies(_names)

CASES = [
    *chapter(
        "server",
        case("live", get("/v2/health/live"), 200),
        # The server is never ready, because some probes fail on purpose.
        case("ready", get("/v2/health/ready"), 400),
        case("metadata", get("/v2"), 200),
    ),
    *chapter(
        "model",
        *(case(f"metadata of {name}", get(f"/v2/models/{name}"), 200) for name in GOOD),
        *(
            case(
                f"config of {name}",
                get(f"/v2/models/{name}/config"),
                200,
                unstable=maps_in_any_order,
            )
            for name in GOOD
        ),
        *(case(f"ready: {name}", get(f"/v2/models/{name}/ready"), 200) for name in GOOD),
    ),
    *chapter(
        "version",
        case("metadata of one", get("/v2/models/versions/versions/1"), 200),
        case("metadata of all", get("/v2/models/versions"), 200),
        case("config of one", get("/v2/models/versions/versions/3/config"), 200),
        case("ready", get("/v2/models/versions/versions/3/ready"), 200),
        case("not in the policy: metadata", get("/v2/models/versions/versions/2"), 404),
        case("not in the policy: ready", get("/v2/models/versions/versions/2/ready"), 400),
        case("leading zeros", get("/v2/models/vector/versions/001"), 200),
        case("zero", get("/v2/models/vector/versions/0"), 404),
        case("infer takes the greatest", infer("versions", X1), 200),
        case("infer of one", infer("versions/1", X1), 200),
        case("infer of one not in the policy", infer("versions/2", X1), 404),
        *(
            case(
                f"unknown{path or ': metadata'}", get(f"/v2/models/vector/versions/7{path}"), status
            )
            for path, status in (("", 404), ("/config", 404), ("/ready", 400), ("/stats", 400))
        ),
        case("unknown: infer", infer("vector/7", X1), 404),
        *(
            case(
                f"too large{path or ': metadata'}",
                get(f"/v2/models/vector/versions/{OVERFLOW}{path}"),
                400,
            )
            for path in ("", "/config", "/ready", "/stats")
        ),
        case("too large: infer", infer(f"vector/{OVERFLOW}", X1), 400),
        case("too large of an unknown model", infer(f"nobody/{OVERFLOW}", X1), 400),
    ),
    *chapter(
        "statistics",
        case("of a warmed model", get("/v2/models/warmed/stats"), 200, unstable=durations),
        case("of a model that was never asked", get("/v2/models/unasked/stats"), 200),
        case("of a version", get("/v2/models/unasked/versions/1/stats"), 200),
        case("of a model", get("/v2/models/versions/stats"), 200, unstable=names_alone),
        case("of all models", get("/v2/models/stats"), 200, unstable=names_alone),
    ),
    *chapter(
        "unknown model",
        *(
            case(path or "/", get(f"/v2/models/nobody{path}"), status)
            for path, status in (
                ("", 404),
                ("/config", 404),
                ("/ready", 400),
                ("/stats", 400),
                ("/versions/1", 404),
                ("/versions/1/config", 404),
                ("/versions/1/ready", 400),
                ("/versions/1/stats", 400),
            )
        ),
        case("infer", infer("nobody", X1), 404),
        case("infer of a version", infer("nobody/1", X1), 404),
        case("a name of other letters", get("/v2/models/Modèle"), 404),
        case("a name with quotes", get('/v2/models/a"b\\c'), 404),
    ),
    *chapter(
        "broken model",
        *(case(f"{name}: metadata", get(f"/v2/models/{name}"), 404) for name in BROKEN),
        *(case(f"{name}: config", get(f"/v2/models/{name}/config"), 404) for name in BROKEN),
        *(case(f"{name}: ready", get(f"/v2/models/{name}/ready"), 400) for name in BROKEN),
        *(case(f"{name}: statistics", get(f"/v2/models/{name}/stats"), 400) for name in BROKEN),
        *(case(f"{name}: infer", infer(name, X1), 404) for name in BROKEN),
    ),
]
