"""In Triton's model processes, the installed package gives way to Triton's module of that name."""

import json
import shutil
from urllib.request import Request, urlopen

from server.support.model_folders import VECTOR, write_model
from support.servers import ROOT, start_tritonserver

PACKAGE = "triton_python_backend_utils"
BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


def test_models_get_tritons_module_though_the_package_is_found_first(oracle_installed, tmp_path):
    # A model process looks into the model's folder, as into all that is installed, before Triton's.
    folder = write_model(tmp_path, "m", VECTOR)
    shutil.copytree(ROOT / PACKAGE, folder / "1" / PACKAGE)
    with start_tritonserver(tmp_path, allow_grpc=False, allow_metrics=False) as server:
        request = Request(f"http://{server.http}/v2/models/m/infer", json.dumps(BODY).encode())
        with urlopen(request) as reply:
            assert json.load(reply)["outputs"][0]["data"] == [1, 2]
