"""HTTP itself: framing, connections, methods and URLs.

The real server does not answer some valid HTTP, which is therefore not here: an empty line before a
request, requests after a trailer of a chunked body, a first line without a version, and a request
(other than infer) received in one piece with an earlier one that is answered at once: it waits
until more bytes arrive.
"""

from __future__ import annotations

from contract.casebook import case, chapter, document, get, infer, infer_path, post, tensor

X = tensor("X", "FP32", [2], [1, 2])
BODY = document(X)
MODEL = "/v2/models/vector"
PATH = infer_path("vector")
INFER = infer("vector", X)
CHUNKED = {"Transfer-Encoding": "chunked"}
CLOSE = get(MODEL, headers={"Connection": "close"})

# All endpoints that only read.
READ_ONLY = [
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/vector",
    "/v2/models/vector/ready",
    "/v2/models/vector/config",
    "/v2/models/vector/stats",
    "/v2/models/vector/versions/1",
    "/v2/models/stats",
]

UNKNOWN_URLS = [
    *("/", "//", "/v1", "/v2/", "/V2", "//v2", "/v2//health/live", "/v3/health/live"),
    *("/v2/health", "/v2/health/", "/v2/health/live/", "/v2/health/alive", "/v2/models"),
    *("/v2/models/", "/v2/models/vector/", "/v2/models/vector/nothing", "/v2/models/vector/infer/"),
    *("/v2/models/vector/versions", "/v2/models/vector/versions/", "/v2/models/vector/versions/a"),
    *("/v2/models/vector/versions/-1", "/v2/models/vector/versions/1.0", "/v2/models/a/b/c"),
    *("/v2/models/vector/versions/1/infer/", "/v2/models/stats/", "/metrics", "/favicon.ico"),
]


def chunked(*chunks: bytes, length: int | None = None) -> bytes:
    """Write an infer request with a chunked body, and optionally a Content-Length."""
    head = get(PATH, method="POST", headers=CHUNKED)
    if length is not None:
        head = head.replace(b"Host", b"Content-Length: %d\r\nHost" % length)
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + b"0\r\n\r\n"


def with_lines(*lines: str) -> bytes:
    """Write a request head from lines that may be of any form."""
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def offering(request: bytes) -> bytes:
    """Return the request with an offer of another protocol."""
    return request.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost")


EXTENDED_CHUNK = chunked(BODY.encode()).replace(b"\r\n{", b";a=b\r\n{")

CASES = [
    *chapter(
        "connection",
        case("stays open", get(MODEL), 200),
        case("closed when asked", get(MODEL, headers={"Connection": "close"}), 200),
        case("closed when asked in capitals", get(MODEL, headers={"Connection": "CLOSE"}), 200),
        case("kept when asked", get(MODEL, headers={"Connection": "keep-alive"}), 200),
        case("HTTP/1.0", b"GET /v2/models/vector HTTP/1.0\r\n\r\n", 200),
        case("HTTP/1.0 empty answer", b"GET /v2/health/live HTTP/1.0\r\n\r\n", 200),
        case(
            "HTTP/1.0 keep-alive",
            b"GET /v2/models/vector HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            200,
        ),
        case("two requests in one piece", INFER * 2, 200, replies=2),
        case("twenty requests in one piece", INFER * 20, 200, replies=20),
        case("a faulty one first", post(PATH, "{") + INFER, 200, replies=2),
        case("an unknown URL second", INFER + get("/x"), 404, replies=2),
        case("the second is asked to close", INFER + CLOSE, 200, replies=2),
        case("a request in three pieces", (INFER[:9], INFER[9:80], INFER[80:]), 200),
        case("a body after its head", tuple(INFER.partition(b"\r\n\r\n")), 200),
        case("an error keeps the connection", get("/nothing"), 404),
        case("a fault in the body keeps the connection", post(PATH, "{"), 500),
    ),
    *chapter(
        "framing",
        case("no host", b"GET /v2/models/vector HTTP/1.1\r\n\r\n", 200),
        case(
            "header names in any case",
            post(PATH, BODY).replace(b"Content-Length", b"cONTENT-lENGTH"),
            200,
        ),
        case(
            "no space behind the colon",
            with_lines("GET /v2/models/vector HTTP/1.1", "Host:localhost"),
            200,
        ),
        case(
            "spaces around a value",
            with_lines("GET /v2/models/vector HTTP/1.1", "Host:   localhost  "),
            200,
        ),
        case("HTTP/1.2", b"GET /v2/models/vector HTTP/1.2\r\n\r\n", 200),
        case("HTTP/2.0", b"GET /v2/models/vector HTTP/2.0\r\n\r\n", 200),
        case(
            "an upgrade is not taken",
            get(MODEL, headers={"Connection": "Upgrade", "Upgrade": "h2c"}),
            200,
        ),
        *(
            case(f"an upgrade {what}", (*pieces, INFER), 200, replies=2)
            for what, pieces in (
                ("with a body", [offering(INFER)]),
                ("with chunks", [offering(chunked(BODY.encode()))]),
                ("with chunks and a length", [offering(chunked(BODY.encode(), length=len(BODY)))]),
                ("with chunks in pieces", offering(chunked(BODY.encode())).partition(b"\r\n\r\n")),
            )
        ),
        case(
            "two lengths of an upgrade",
            offering(INFER).replace(b"Host", b"Content-Length: 2\r\nHost"),
            500,
        ),
        case("two hosts", INFER.replace(b"Host", b"Host: other\r\nHost") + INFER, 200, replies=2),
        case("close among other words", get(MODEL, headers={"Connection": "x, close"}), 200),
        case(
            "the same length twice",
            post(PATH, BODY).replace(b"Host", b"Content-Length: %d\r\nHost" % len(BODY)),
            200,
        ),
        case("two lengths", post(PATH, BODY).replace(b"Host", b"Content-Length: 2\r\nHost"), 500),
        case("a URL of 9000 letters", get("/v2/models/" + "a" * 9000), None),
        case("a hundred headers", get(MODEL, headers={f"X-{n}": "v" for n in range(100)}), 200),
        case("a long header", get(MODEL, headers={"X-Long": "v" * 4000}), 200),
        case("garbage", b"garbage\r\n\r\n", None),
        case("another protocol", b"GET /v2/models/vector FTP/1.1\r\n\r\n", None),
        case(
            "a header without a colon",
            with_lines("GET /v2/models/vector HTTP/1.1", "Host localhost"),
            None,
        ),
        case("bare line feeds", b"GET /v2/models/vector HTTP/1.1\nHost: localhost\n\n", None),
        case(
            "a folded header",
            with_lines("GET /v2/models/vector HTTP/1.1", "X-A: one", " two"),
            None,
        ),
        case("a folded length", INFER.replace(b"Content-Length:", b"Content-Length:\r\n"), None),
        case(
            "a folded line before the headers",
            INFER.replace(b"Host", b" X: y\r\nHost") + INFER,
            200,
            replies=2,
        ),
        case("a space before a colon", INFER.replace(b"Length:", b"Length :"), 200),
        case("a line feed alone", INFER.replace(b"Host", b"X: y\nHost"), None),
        case("absolute URL", get("http://localhost/v2/models/vector"), 200),
        case("query", get(MODEL + "?x=1"), 200),
        case("empty query", get(MODEL + "?"), 200),
        case("query behind a model", get("/v2/models/vector?a=b&c=/d"), 200),
        case("fragment", get(MODEL + "#top"), 404),
        case("percent signs stay", get("/v2/models/vec%74or"), 404),
        case("semicolon", get("/v2/models/vector;x"), 404),
        case("chunked body", chunked(BODY.encode()), 200),
        case("chunks and length 0", chunked(BODY.encode(), length=0), 200),
        case("line feeds alone between chunks", chunked(b"{}").replace(b"}\r\n", b"}\n"), None),
        case("chunked body in small chunks", chunked(*(b"%c" % b for b in BODY.encode())), 200),
        case("chunk with an extension", EXTENDED_CHUNK, None),
        case(
            "chunk length of letters", get(PATH, method="POST", headers=CHUNKED) + b"zz\r\n", None
        ),
        *(
            case(f"chunks and {what}", chunked(BODY.encode(), length=len(BODY) + more), status)
            for what, more, status in (
                ("their length", 0, 200),
                ("a shorter length", -1, 500),
                ("a longer length", 2, 400),
            )
        ),
        case(
            "chunks announced twice",
            chunked(BODY.encode()).replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
            200,
        ),
        *(
            case(f"coding {coding}", post(PATH, BODY, headers={"Transfer-Encoding": coding}), 200)
            for coding in ("identity", "gzip")
        ),
        case("a zero in a header", with_lines("GET /v2 HTTP/1.1", "Host: a\0b"), 200),
        case("chunked and empty", chunked(), 200),
        case("no length is an empty body", get(PATH, method="POST"), 200),
        case("length zero", post(PATH, b""), 200),
        case(
            "length with a plus",
            get(PATH, method="POST", headers={"Content-Length": "+2"}) + b"{}",
            None,
        ),
        case("length negative", get(PATH, method="POST", headers={"Content-Length": "-1"}), None),
        case("length of letters", get(PATH, method="POST", headers={"Content-Length": "x"}), None),
        case("bytes behind the announced length", post(PATH, BODY) + b"GARBAGE\r\n\r\n", 200),
        case(
            "expectation",
            (
                get(
                    PATH,
                    method="POST",
                    headers={"Content-Length": str(len(BODY)), "Expect": "100-continue"},
                ),
                BODY.encode(),
            ),
            200,
            replies=2,
        ),
        case("a body on GET", get(MODEL, headers={"Content-Length": "3"}) + b"abc", 200),
        case("any content type", post(PATH, BODY, headers={"Content-Type": "text/plain"}), 200),
        case("no accepted type", post(PATH, BODY, headers={"Accept": "image/png"}), 200),
    ),
    *chapter(
        "method",
        *(
            case(f"{method} {path}", get(path, method=method), 405)
            for path in READ_ONLY
            for method in ("POST", "HEAD", "PUT", "DELETE")
        ),
        *(
            case(f"{method} {PATH}", get(PATH, method=method), 405)
            for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
        ),
        case("unknown", get("/v2", method="FOO"), 405),
        case("lower case", get("/v2", method="get"), None),
        case("CONNECT", get("/v2", method="CONNECT"), None),
        case("TRACE", get("/v2", method="TRACE"), 405),
        case("OPTIONS *", get("*", method="OPTIONS"), None),
    ),
    *chapter(
        "url",
        *(case(path, get(path), 404) for path in UNKNOWN_URLS),
        case("POST to an unknown one", post("/v2/nothing", "{}"), 404),
        case("HEAD of an unknown one", get("/v2/nothing", method="HEAD"), 404),
    ),
]
