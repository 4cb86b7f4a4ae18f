"""Each HTTP operation has its RPC, and each RPC its operation."""

from tritonclient.grpc import service_pb2 as pb

from reference_server.frontends.grpc import methods as grpc_methods
from reference_server.frontends.http import routes as http_routes
from reference_server.frontends.http.routes import Operation

RPCS = {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
#: Two HTTP operations may be one RPC.
RPC_OF = {
    Operation.LIVE: "ServerLive",
    Operation.READY: "ServerReady",
    Operation.MODEL_READY: "ModelReady",
    Operation.SERVER_METADATA: "ServerMetadata",
    Operation.MODEL_METADATA: "ModelMetadata",
    Operation.MODEL_CONFIG: "ModelConfig",
    Operation.MODEL_STATISTICS: "ModelStatistics",
    Operation.ALL_STATISTICS: "ModelStatistics",
    Operation.INFER: "ModelInfer",
    Operation.LOG_SETTINGS: "LogSettings",
    Operation.TRACE_SETTINGS: "TraceSetting",
    Operation.SYSTEM_REGION_STATUS: "SystemSharedMemoryStatus",
    Operation.SYSTEM_REGION_REGISTER: "SystemSharedMemoryRegister",
    Operation.SYSTEM_REGION_UNREGISTER: "SystemSharedMemoryUnregister",
    Operation.CUDA_REGION_STATUS: "CudaSharedMemoryStatus",
    Operation.CUDA_REGION_REGISTER: "CudaSharedMemoryRegister",
    Operation.CUDA_REGION_UNREGISTER: "CudaSharedMemoryUnregister",
    Operation.REPOSITORY_INDEX: "RepositoryIndex",
    Operation.REPOSITORY_LOAD: "RepositoryModelLoad",
    Operation.REPOSITORY_UNLOAD: "RepositoryModelUnload",
}
#: Operations of one protocol only: text models and the description over HTTP, the stream over gRPC.
HTTP_ALONE = {Operation.GENERATE, Operation.GENERATE_STREAM, Operation.OPENAPI}
GRPC_ALONE = {"ModelStreamInfer"}


def test_every_operation_has_its_rpc():
    assert set(RPC_OF) | HTTP_ALONE == set(Operation)


def test_every_rpc_has_its_operation():
    assert set(RPC_OF.values()) | GRPC_ALONE == RPCS


def test_both_have_the_same_categories():
    for operation, rpc in RPC_OF.items():
        assert http_routes.CATEGORY[operation] == grpc_methods.CATEGORY[rpc]
