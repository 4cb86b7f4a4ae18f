"""Registered regions as the messages of Triton's gRPC service."""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc.service_pb2 import (
    CudaSharedMemoryStatusResponse,
    SystemSharedMemoryStatusResponse,
)

from reference_server.core.metadata import CudaRegion, SystemRegion


def system_status(regions: Sequence[SystemRegion]) -> SystemSharedMemoryStatusResponse:
    """The regions by their names."""
    return SystemSharedMemoryStatusResponse(
        regions={
            region.name: SystemSharedMemoryStatusResponse.RegionStatus(
                name=region.name,
                key=region.key,
                offset=region.offset,
                byte_size=region.byte_size,
            )
            for region in regions
        }
    )


def cuda_status(regions: Sequence[CudaRegion]) -> CudaSharedMemoryStatusResponse:
    """The regions by their names."""
    return CudaSharedMemoryStatusResponse(
        regions={
            region.name: CudaSharedMemoryStatusResponse.RegionStatus(
                name=region.name, device_id=region.device_id, byte_size=region.byte_size
            )
            for region in regions
        }
    )
