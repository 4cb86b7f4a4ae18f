"""The shared memory RPCs."""

from __future__ import annotations

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb

from reference_server.codecs import proto_regions
from reference_server.frontends.grpc.calls import Method, immediate
from reference_server.gateway.shared_memory import SharedMemory


def methods(shared_memory: SharedMemory) -> Mapping[str, Method]:
    """The methods, by their names."""

    def system_status(
        request: pb.SystemSharedMemoryStatusRequest,
    ) -> pb.SystemSharedMemoryStatusResponse:
        return proto_regions.system_status(shared_memory.system_status(request.name))

    def system_register(
        request: pb.SystemSharedMemoryRegisterRequest,
    ) -> pb.SystemSharedMemoryRegisterResponse:
        shared_memory.system_register(request.name, request.key, request.byte_size, request.offset)
        return pb.SystemSharedMemoryRegisterResponse()

    def system_unregister(
        request: pb.SystemSharedMemoryUnregisterRequest,
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        shared_memory.system_unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def cuda_status(
        request: pb.CudaSharedMemoryStatusRequest,
    ) -> pb.CudaSharedMemoryStatusResponse:
        return proto_regions.cuda_status(shared_memory.cuda_status(request.name))

    def cuda_register(
        request: pb.CudaSharedMemoryRegisterRequest,
    ) -> pb.CudaSharedMemoryRegisterResponse:
        shared_memory.cuda_register(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        return pb.CudaSharedMemoryRegisterResponse()

    def cuda_unregister(
        request: pb.CudaSharedMemoryUnregisterRequest,
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        shared_memory.cuda_unregister(request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    return {
        "SystemSharedMemoryStatus": immediate(pb.SystemSharedMemoryStatusRequest, system_status),
        "SystemSharedMemoryRegister": immediate(
            pb.SystemSharedMemoryRegisterRequest, system_register
        ),
        "SystemSharedMemoryUnregister": immediate(
            pb.SystemSharedMemoryUnregisterRequest, system_unregister
        ),
        "CudaSharedMemoryStatus": immediate(pb.CudaSharedMemoryStatusRequest, cuda_status),
        "CudaSharedMemoryRegister": immediate(pb.CudaSharedMemoryRegisterRequest, cuda_register),
        "CudaSharedMemoryUnregister": immediate(
            pb.CudaSharedMemoryUnregisterRequest, cuda_unregister
        ),
    }
