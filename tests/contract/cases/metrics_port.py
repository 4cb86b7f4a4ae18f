"""HTTP on the metrics port. test_metrics.py tests the content of the page."""

from __future__ import annotations

from contract.casebook import bodies, case, chapter, get, post

REFUSAL = '{"error":"Method Not Allowed"}'
PAGE = "# HELP nv_inference_request_success Number of successful inference requests"
# The rest of the page has durations, which vary.
beginning = bodies(lambda body: body[: len(PAGE)])

CASES = chapter(
    "metrics port",
    *(
        case(f"page: {target}", get(target), 200, PAGE, unstable=beginning)
        for target in (
            "/metrics",
            "/metrics/",
            "/metrics?x=1",
            "/metrics/?/x",
            "http://localhost/metrics",
        )
    ),
    *(
        case(f"empty: {target}", get(target), 200, "Content-Length: 0")
        for target in (
            *("/", "/x", "/metrics/x", "//metrics", "/metrics//", "/Metrics", "/metricsx"),
            *("/metrics#x", "/v2", "/v2/health/ready", "/%6Detrics"),
        )
    ),
    *(
        case(f"{method} {target}", get(target, method=method), 405, REFUSAL)
        for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "FOO")
        for target in ("/metrics", "/x")
    ),
    case("a body", post("/metrics", "abc"), 405, REFUSAL),
    case(
        "no other form is offered",
        get(
            "/metrics",
            headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
        ),
        200,
        PAGE,
        unstable=beginning,
    ),
    case("closed when asked", get("/x", headers={"Connection": "close"}), 200),
    case("HTTP/1.0", b"GET /x HTTP/1.0\r\n\r\n", 200),
    case(
        "HTTP/1.0 keep-alive",
        b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        200,
        PAGE,
        unstable=beginning,
    ),
    case("GET *", get("*"), None),
    case("garbage", b"garbage\r\n\r\n", None),
)
