"""Names that differ between two servers, and noise: only true differences are left."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from replay.serving import serving
from replay.traffic import inputs, response, write_capture
from support.http2 import message

from triton_replay.__main__ import main
from triton_replay.capture.files import Exchange, read_capture
from triton_replay.capture.records import Request, Response, StreamMessage
from triton_replay.capture.renaming import Names, parse_names
from triton_replay.comparing.differences import compare_answers
from triton_replay.comparing.side_by_side import Results
from triton_replay.comparing.tolerances import parse_tolerances
from triton_replay.errors import ReplayError
from triton_replay.wire.bodies import read_body
from triton_replay.wire.grpc_messages import messages, read_requests, with_prefix

SERVICE = "/inference.GRPCInferenceService"
NAMES = Names({"m": "n"}, {"1": "2", "m:3": "4", "x:1": "9"}, {"y": "z", "m/u": "v", "x/y": "w"})


def http(target, body=b"", headers=()):
    return Exchange(Request(0, 0, 0, 0, "POST", target, headers, len(body), body), None)


def grpc(method, *sent):
    first, *later = (message(one.SerializeToString()) for one in sent)
    asked = Request(0, 0, 0, 0, "POST", f"{SERVICE}/{method}", (), len(first), first)
    following = [StreamMessage(0, True, 0, len(body), body) for body in later]
    return Exchange(dataclasses.replace(asked, protocol="grpc"), None, tuple(following))


@pytest.mark.parametrize(
    ("target", "renamed"),
    [
        ("/v2/models/m/infer", "/v2/models/n/infer"),
        ("/v2/models/m/versions/1/infer?a=1", "/v2/models/n/versions/2/infer?a=1"),
        ("/v2/models/m/versions/3", "/v2/models/n/versions/4"),
        ("/v2/models/x/versions/1/config", "/v2/models/x/versions/9/config"),
        ("/v2/repository/models/m/load", "/v2/repository/models/n/load"),
        ("/v2/models/m", "/v2/models/n"),
        ("/v2/models/mm/ready", "/v2/models/mm/ready"),
        ("/v2/models/stats", "/v2/models/stats"),
        ("/v2/health/live", "/v2/health/live"),
    ],
)
def test_paths_have_the_names_of_the_second_server(target, renamed):
    names = dataclasses.replace(NAMES, models={"m": "n", "stats": "s"})
    assert names.renamed(http(target)).request.target == renamed


@pytest.mark.parametrize("binary", [b"", b"\0\1\2\3"])
@pytest.mark.parametrize("compressed", [False, True])
def test_requested_outputs_are_renamed_in_json(binary, compressed):
    document = {"inputs": [], "outputs": [{"name": "y"}, {"name": "u"}, {"name": "x"}]}
    text = json.dumps(document).encode()
    body = gzip.compress(text + binary) if compressed else text + binary
    headers = (("Content-Encoding", "gzip"),) if compressed else ()
    if binary:
        headers += (("Inference-Header-Content-Length", str(len(text))),)
    found = NAMES.renamed(http("/v2/models/m/infer", body, (("A", "b"), *headers))).request
    read = read_body(found.headers, found.body)
    assert [one["name"] for one in read.document["outputs"]] == ["z", "v", "x"]
    assert bytes(read.binary) == binary
    assert found.body_size == len(found.body)
    assert found.headers[0] == ("A", "b")


@pytest.mark.parametrize("body", [b"", b"not JSON", b'{"outputs": 3}', b'{"outputs": [{}, 1]}'])
def test_bodies_without_known_outputs_stay_unchanged(body):
    assert NAMES.renamed(http("/v2/models/m/infer", body)).request.body == body


def test_calls_and_streams_have_the_names_of_the_second_server():
    asked = messages.ModelInferRequest(model_name="m", model_version="1")
    asked.outputs.add(name="y")
    asked.raw_input_contents.append(b"\0\1")
    found = NAMES.renamed(grpc("ModelStreamInfer", asked, asked))
    for body in (found.request.body, found.messages[0].body):
        (one,) = read_requests(body)
        named = (one.model_name, one.model_version, one.outputs[0].name, *one.raw_input_contents)
        assert named == ("n", "2", "z", b"\0\1")
    assert found.messages[0].body_size == len(found.messages[0].body)
    packed = with_prefix(gzip.compress(asked.SerializeToString()), compressed=True)
    exchange = grpc("ModelInfer", asked)
    compressed = dataclasses.replace(exchange.request, body=packed, body_size=len(packed))
    found = NAMES.renamed(dataclasses.replace(exchange, request=compressed)).request
    assert read_requests(found.body)[0].model_name == "n"
    assert found.body_size == len(found.body)


def test_other_calls_are_renamed_if_they_name_a_model():
    metadata = messages.ModelMetadataRequest(name="m", version="3")
    body = NAMES.renamed(grpc("ModelMetadata", metadata)).request.body
    assert body == message(b"\n\1n\x12\x014")
    load = grpc("RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="m"))
    assert NAMES.renamed(load).request.body == message(b"\x12\1n")
    for method, kind in (
        ("SystemSharedMemoryStatus", messages.SystemSharedMemoryStatusRequest(name="m")),
        ("ModelInfer", messages.ModelInferRequest(model_name="x")),
        ("Unknown", messages.ModelInferRequest(model_name="m")),
    ):
        exchange = grpc(method, kind)
        assert NAMES.renamed(exchange).request.body == exchange.request.body


def test_unknown_models_and_invalid_pairs_are_refused():
    known = [http("/v2/models/a/infer"), grpc("ModelInfer", messages.ModelInferRequest())]
    for names, option in (
        (Names(models={"m": "n"}), "--map-model"),
        (Names(versions={"m:1": "2", "1": "2"}), "--map-version"),
        (Names(outputs={"m/y": "z", "y": "z"}), "--map-output"),
    ):
        with pytest.raises(ReplayError, match=f"{option}: found model m; expected .* capture: a"):
            names.check(known)
    Names().check(known)
    NAMES.check([http("/v2/models/m"), http("/v2/models/x")])
    for text in ("a", "=b", "a="):
        with pytest.raises(ReplayError, match=rf"--map-version: found '{text}', expected \[MODEL:"):
            parse_names((), [text], ())


def answer(values, output="y", model="m", **fields):
    tensor = {"name": output, "datatype": "BYTES", "shape": [len(values)], "data": values}
    body = json.dumps({"model_name": model, **fields, "outputs": [tensor]}).encode()
    return Response(0, 0, 0, 200, (), len(body), body)


def found(a, b, rules, body=b"{}"):
    asked = http("/v2/models/m/infer", body).request
    both = (Exchange(asked, one) for one in (a, b))
    return [(one.kind, one.output) for one in compare_answers("m", *both, rules)]


def test_answers_are_compared_under_the_names_of_the_first_server():
    a = answer(["1"], model_version="1")
    b = answer(["1"], "z", "n", model_version="2")
    rules = parse_tolerances((), (), NAMES)
    assert found(a, b, rules) == []
    assert found(a, answer(["2"], "z", "n", model_version="2"), rules) == [("values", "y")]
    other = found(a, answer(["1"], "z", "o", model_version="3"), rules)
    assert other == [("field", "model_name"), ("field", "model_version")]
    assert len(found(a, b, parse_tolerances(()))) == 4


def test_swapped_outputs_are_no_noise_of_the_first_server(tmp_path, capsys):
    def respond(y, z):
        tensors = [
            {"name": name, "datatype": "INT8", "shape": [1], "data": [value]}
            for name, value in (("y", y), ("z", z))
        ]
        body = json.dumps({"outputs": tensors}).encode()
        return lambda n, x: Response(n, 0, 1, 200, (), len(body), body)

    a, again, b = (
        write_capture(tmp_path / name, respond(*values), inputs(1))
        for name, values in (("a", (1, 2)), ("again", (1, 2)), ("b", (2, 1)))
    )
    swapped = ["--map-output=y=z", "--map-output=z=y"]
    assert main(["compare", str(a), str(b), f"--learn={again}", *swapped]) == 0
    assert "second replay" not in capsys.readouterr().out
    results = Results(parse_tolerances((), (), parse_names((), (), ["y=z", "z=y"])))
    first, second, other = (read_capture(path).exchanges[0] for path in (a, again, b))
    results.add([(first, 1)], [(other, 1)], (second, 1))
    (verdict,) = results.judged(0.05)
    assert (verdict.groups, verdict.noise) == ((), ())
    words = ["compare", str(a), str(b), "--map-output=y=z", "--tolerance=w:abs=1"]
    assert main(words) == 2
    expected = "--tolerance: found w; expected outputs of the responses: m/y, m/z"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ignored", "fields"),
    [
        ("parameters.*_ms", ["parameters"]),
        ("parameters.*_ms, parameters.list[1]", []),
        ("parameters", []),
        ("*", []),
        ("parameters.list", ["parameters", "parameters"]),
        ("outputs.y", ["parameters", "parameters", "parameters"]),
    ],
)
def test_a_pattern_ignores_a_field_with_its_parts(ignored, fields):
    a = answer(["1"], parameters={"a_ms": 1, "b_ms": {"c": 1}, "list": [1, 2]})
    b = answer(["1"], parameters={"a_ms": 2, "b_ms": {"c": 2}, "list": [1, 3]})
    assert [output for _, output in found(a, b, parse_tolerances((), [ignored]))] == fields


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "differs"),
    [
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', "json", False),
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}', "abs=1", True),
        ('{"a": 1.0}', '{"a": 1.05}', "json", True),
        ('{"a": 1.0}', '{"a": 1.05}', "json,abs=0.1", False),
        ('{"a": 1.0}', '{"a": 1.05}', "y:json,rel=0.1", False),
        ('{"a": 1}', '{"a": true}', "json,abs=1", True),
        ('{"a": "1"}', '{"a": "2"}', "json,abs=1", True),
        ('{"a": 1, "ms": 1}', '{"a": 1, "ms": 2}', "json", False),
        ("text", "text", "json", False),
        ("text", "1", "json", True),
    ],
)
def test_texts_are_compared_as_json_if_a_tolerance_says_so(a, b, tolerance, differs):
    rules = parse_tolerances([tolerance], ["outputs.y.ms"])
    expected = [("values", "y")] if differs else []
    assert found(answer(["x", a]), answer(["x", b]), rules) == expected


SERVERS = json.loads(Path(__file__).with_name("servers.json").read_text())


@pytest.mark.parametrize("server", SERVERS["responses"])
def test_recorded_answers_of_other_servers_do_not_differ_from_tritonservers(server):
    recorded = (SERVERS["responses"][name] for name in ("tritonserver 2.51.0", server))
    for sent, *texts in zip(SERVERS["requests"], *recorded, strict=True):
        bodies = [text.encode() for text in texts]
        a, b = (Response(0, 0, 0, 200, (), len(body), body) for body in bodies)
        assert found(a, b, parse_tolerances(()), sent.encode()) == []


def test_compare_learns_from_a_second_replay_of_the_first_server(tmp_path, capsys):
    def server(seed, offset=0.0, version="1"):
        random = np.random.default_rng(seed)

        def respond(number, x):
            noisy = x + random.uniform(-1e-3, 1e-3, x.shape).astype(np.float32) + offset
            made = response(number, noisy.astype(np.float32), binary=False)
            document = json.loads(made.body)
            document["parameters"] = {"ms": random.random(), "version": version}
            body = json.dumps(document).encode()
            return dataclasses.replace(made, body=body, body_size=len(body))

        return respond

    def compared(name, respond):
        path = write_capture(tmp_path / name, respond, inputs(30))
        code = main(["compare", str(first), str(path), f"--learn={again}"])
        return code, capsys.readouterr().out

    first = write_capture(tmp_path / "a", server(1), inputs(30))
    again = write_capture(tmp_path / "again", server(2), inputs(30))
    code, out = compared("equal", server(3))
    assert code == 0
    assert "field: m, parameters.ms in 30 requests\nvalues: m, y in 30 requests" in out
    code, out = compared("other", server(4, version="2"))
    assert code == 1
    assert "1. field: m, parameters\n   30 of 30 requests, always" in out
    assert "version: '1' and '2'" in out
    code, out = compared("wrong", server(5, offset=0.03))
    assert code == 1
    assert "m, y\n   30 of 30 requests, always" in out
    assert main(["compare", str(first), str(first)]) == 0
    assert "second replay" not in capsys.readouterr().out


def test_a_replay_to_a_renamed_model_is_compared_with_the_recording(tmp_path, capsys):
    recorded = write_capture(tmp_path / "a", lambda n, x: response(n, x), inputs(2))
    captures = {name: tmp_path / name for name in ("m", "n")}
    with serving() as server:
        words = ["replay", str(recorded), f"--server={server}", "--speed=max"]
        assert main([*words, f"--output={captures['m']}"]) == 0
        assert main([*words, f"--output={captures['n']}", "--map-model=m=n"]) == 0
        assert main([*words, f"--output={tmp_path / 'x'}", "--map-model=x=n"]) == 2
        ab = ["ab", str(recorded), f"--a={server}", f"--b={server}"]
        assert main([*ab, "--map-model=m=n", "--learn"]) == 0
        assert main([*ab, "--map-model=x=n"]) == 2
    targets = {one.request.target for one in read_capture(captures["n"]).exchanges}
    assert targets == {"/v2/models/n/infer"}
    words = ["compare", str(captures["m"]), str(captures["n"])]
    assert main(words) == 2
    assert "2 of 2 requests with the same number differ; expected" in capsys.readouterr().err
    assert main([*words, "--map-model=m=n"]) == 0
    assert main([*words, "--map-model=m=o"]) == 2
    assert "with the same number differ after mapping of names" in capsys.readouterr().err
    assert main([*words, "--map-model=m=n", "--map-output=y=z"]) == 2
    expected = "--map-output: found y; expected outputs of the responses: none"
    assert expected in capsys.readouterr().err
