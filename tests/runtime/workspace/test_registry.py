import pytest

from ge_runtime.devices import Device
from ge_runtime.errors import ConfigFault, OutOfMemory, PoolClosed
from ge_runtime.testing import ManualClock
from ge_runtime.workspace import PoolRegistry

MIB = 2**20


@pytest.fixture
def pools():
    return PoolRegistry(ManualClock())


def test_models_of_a_device_share_one_pool(pools):
    first, second = (pools.join("npu:0", 12 * MIB, model) for model in ("a", "b"))
    assert first.pool is second.pool
    assert first.pool.capacity_bytes == 12 * MIB
    assert repr(second) == (
        "<Membership of b in <WorkspacePool workspace of npu:0: open, 0 of 12,582,912 bytes in 0 "
        "lease(s), 0 waiting>>"
    )


def test_another_capacity_is_a_fault_that_names_both_models(pools):
    for model in ("b", "a", "a"):
        pools.join("npu:0", 12 * MIB, model)
    with pytest.raises(ConfigFault) as raised:
        pools.join("npu:0", int(6.5 * MIB), "c")
    assert str(raised.value) == (
        "1 fault in the configuration of model 'c':\n"
        "  - parameter 'workspace_pool_mib': found 6.5, expected 12: device 'npu:0' has one pool "
        "in this process, which has that capacity for 'a', 'b'"
    )


def test_the_last_member_closes_the_pool(pools):
    first, second = (pools.join("npu:0", 12 * MIB, model) for model in ("a", "b"))
    first.leave()
    first.leave()
    with second.pool.lease(MIB, owner="b"):
        pass
    second.leave()
    with pytest.raises(PoolClosed):
        second.pool.lease(MIB, owner="b")


def test_after_the_last_member_another_capacity_is_accepted(pools):
    member = pools.join("npu:0", 12 * MIB, "a")
    member.leave()
    new = pools.join("npu:0", 6 * MIB, "a")
    member.leave()
    assert pools.join("npu:0", 6 * MIB, "b").pool is new.pool
    assert new.pool.capacity_bytes == 6 * MIB
    with new.pool.lease(MIB, owner="a"):
        pass


class PaperCard(Device[None]):
    """A card of 32 GiB that only counts its memory."""

    kind = "npu"

    def _obtain(self, nbytes):
        return None

    def _release(self, memory):
        pass


def test_two_workspaces_that_do_not_fit_side_by_side_are_refused():
    card = PaperCard("npu:0", 32 * 2**30)
    card.allocate("weights and workspace of ranker", 27 * 2**30)
    with pytest.raises(OutOfMemory) as raised:
        card.allocate("workspace of encoder", 6 * 2**30)
    assert str(raised.value) == (
        "npu:0: 'workspace of encoder': found 6,442,450,944 bytes wanted, expected at most "
        "5,368,709,120, which are free of 34,359,738,368"
    )
