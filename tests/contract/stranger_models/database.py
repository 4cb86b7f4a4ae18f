"""sqlite3 in memory: opened in `initialize`, and used by the same thread in `execute`."""

import sqlite3

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table seen (value real)")

    def execute(self, requests):
        for request in requests:
            row = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.database.executemany("insert into seen values (?)", [(float(v),) for v in row])
        total = self.database.execute("select sum(value) from seen").fetchone()
        text = np.array([str(total)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.database.close()
