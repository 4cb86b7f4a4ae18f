"""Test model folders with the server's own loader, schedulers and counters, without ports.

    with open_model("model_repository/bert") as model:
        response = model.infer({"TEXT": ["hello"]})
        assert response.outputs["LABEL"].tolist() == [b"greeting"]

Models run on threads of the test's process, so `breakpoint()` works in them. With pytest, the
fixtures `triton_model` and `triton_repository` open models and close them after the test.
"""

from reference_server.core.errors import Code, ServerError
from reference_server.testing.clients import HttpReply
from reference_server.testing.model import Model, Response, ResponseStream, Stub
from reference_server.testing.repository import (
    ModelRepository,
    OpenModel,
    OpenRepository,
    open_model,
    open_repository,
)

__all__ = [
    "Code",
    "HttpReply",
    "Model",
    "ModelRepository",
    "OpenModel",
    "OpenRepository",
    "Response",
    "ResponseStream",
    "ServerError",
    "Stub",
    "open_model",
    "open_repository",
]
