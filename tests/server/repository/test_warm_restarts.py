"""A restarted instance is warmed up like a newly loaded one."""

import numpy as np
import pytest
from server.support.model_folders import write_model

from reference_server.core.errors import ServerError
from reference_server.testing import open_model

CONFIG = """
    backend: "python"
    input { name: "DIES" data_type: TYPE_BOOL dims: [1] }
    output { name: "BEFORE" data_type: TYPE_INT32 dims: [1] }
    model_warmup { name: "one" batch_size: 1 count: 3 inputs {
        key: "DIES" value { data_type: TYPE_BOOL dims: [1] zero_data: true } } }
"""
#: Returns the number of earlier executions in its process, and can end the process.
COUNTING = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = -1

        def execute(self, requests):
            if pb_utils.get_input_tensor_by_name(requests[0], "DIES").as_numpy().item():
                os._exit(3)
            self.seen += 1
            seen = pb_utils.Tensor("BEFORE", np.array([self.seen], np.int32))
            return [pb_utils.InferenceResponse([seen])]
"""


@pytest.mark.brute_force
def test_restarted_instance_is_warmed_up_again(tmp_path):
    folder = write_model(tmp_path, "m", CONFIG, COUNTING)
    with open_model(folder, options=["--backend-config=python,host=process"]) as model:
        asked = {"DIES": np.array([False])}
        assert model.infer(asked).outputs["BEFORE"] == [3]
        assert model.infer(asked).outputs["BEFORE"] == [4]
        with pytest.raises(ServerError, match="is not healthy"):
            model.infer({"DIES": np.array([True])})
        assert model.infer(asked).outputs["BEFORE"] == [3]
