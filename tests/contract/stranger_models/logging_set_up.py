"""logging.basicConfig, a logger of the module, and warnings that are caught."""

import logging
import warnings

import numpy as np
import triton_python_backend_utils as pb_utils

logging.basicConfig(level=logging.INFO)
logger = logging.getLogger(__name__)


class TritonPythonModel:
    def execute(self, requests):
        logger.info("executing")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("old")
        told = (
            f"{logger.name} {logger.isEnabledFor(logging.INFO)} {[str(w.message) for w in caught]}"
        )
        text = np.array([told], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
