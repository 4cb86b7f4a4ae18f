"""compose.yaml's service for an Ascend card: what it is given, and its command on the simulator."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest
import yaml
from runtime.support.ascend import ENVIRONMENT, compile_om, token_gears
from runtime.support.graphs import ENCODER, write
from support.servers import ROOT, free_ports
from support.waiting import until

SERVICE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["npu"]
MODEL = """
name: "encoder"
backend: "python"
max_batch_size: 8
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "lengths" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "embedding" data_type: TYPE_FP32 dims: [ 4 ] }
parameters { key: "axes.input_ids" value { string_value: "tokens" } }
parameters { key: "axis_length.tokens" value { string_value: "lengths" } }
parameters { key: "limit.tokens" value { string_value: "32" } }
parameters { key: "range.input_ids" value { string_value: "0..15" } }
parameters { key: "mask.attention_mask" value { string_value: "tokens" } }
parameters { key: "devices" value { string_value: "npu:0" } }
"""


def filled(text):
    """With compose's defaults, and `$$` as a shell gets it."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")


def test_it_is_given_a_card_and_what_every_card_needs():
    assert [filled(device) for device in SERVICE["devices"]] == [
        *("/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
    ]
    mounts = [filled(volume).split(":") for volume in SERVICE["volumes"]]
    assert all(mode == "ro" for _, _, mode in mounts)
    assert {target for _, target, _ in mounts} == {
        *("/models", "/usr/local/Ascend", "/usr/local/dcmi", "/usr/local/bin/npu-smi"),
        "/etc/ascend_install.info",
    }


@pytest.mark.slow
def test_its_command_serves_on_the_simulator(tmp_path):
    version = tmp_path / "models" / "encoder" / "1"
    write(ENCODER, "onnxruntime", version)
    compile_om(version, *token_gears((1, 8), (4, 32)))
    shutil.copy(ROOT / "model_repository" / "text_encoder" / "1" / "model.py", version)
    (version.parent / "config.pbtxt").write_text(MODEL)
    exports = [f"export {name}={value}${{{name}:+:${name}}}" for name, value in ENVIRONMENT.items()]
    (tmp_path / "set_env.sh").write_text("\n".join(exports) + "\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugin"))),
        "CANN_SET_ENV": str(tmp_path / "set_env.sh"),
    }
    http, grpc, metrics = free_ports(3)
    command = [filled(word) for word in SERVICE["entrypoint"]]
    command += [SERVICE["command"].replace("/models", str(tmp_path / "models"))]
    command += [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    command += [f"--{front}-address=127.0.0.1" for front in ("http", "grpc", "metrics")]

    def is_ready():
        assert server.poll() is None, log.read_text()
        with suppress(URLError, ConnectionError):
            url = f"http://127.0.0.1:{http}/v2/models/encoder/ready"
            with urllib.request.urlopen(url) as answer:
                return answer.status == 200
        return False

    log = tmp_path / "log"
    with log.open("w") as written:
        server = subprocess.Popen(command, env=environment, stdout=written, stderr=written)
    try:
        until(is_ready, "the model")
    finally:
        server.terminate()
        server.wait()
    assert "npu:0 is AscendSimulator" in log.read_text()
