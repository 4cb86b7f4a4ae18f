import pytest

from ascend_simulator.codes import Code
from ge_runtime.npu.driver.cann_values import (
    DriverFault,
    FailureKind,
    ReturnCodeChecker,
    code_name,
    failure_kind,
)

pytestmark = pytest.mark.brute_force


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (100000, FailureKind.REFUSED),
        (107002, FailureKind.REFUSED),
        (145013, FailureKind.REFUSED),
        (300000, FailureKind.REFUSED),
        (145006, FailureKind.FILE),
        (100013, FailureKind.FILE),
        (207001, FailureKind.MEMORY),
        (245000, FailureKind.MEMORY),
        *((code, FailureKind.MEMORY) for code in (207005, 207009, 207011, 207012)),
        (207014, FailureKind.RETRY),
        *((code, FailureKind.OVERFLOW) for code in (207003, 207016, 207017)),
        *((code, FailureKind.RELOAD) for code in (507015, 507017, 507034, 507035, 507056)),
        *((code, FailureKind.LOST) for code in (207020, 507055, 507901)),
        (507002, FailureKind.RETRY),
        (107022, FailureKind.RELOAD),
        (500002, FailureKind.RELOAD),
        (507011, FailureKind.RELOAD),
        (507999, FailureKind.RELOAD),
        (507010, FailureKind.LOST),
        (507046, FailureKind.LOST),
        (507899, FailureKind.LOST),
    ],
)
def test_a_code_says_what_to_do(code, kind):
    assert failure_kind(code) is kind


def test_names_are_those_of_the_headers():
    """Held against a list that was written by others."""
    for code in Code:
        assert code_name(code) in (str(int(code)), f"{int(code)} ACL_ERROR_{code.name}")
    assert code_name(207001) == "207001 ACL_ERROR_RT_MEMORY_ALLOCATION"
    assert code_name(1) == "1"


@pytest.fixture
def checker():
    return ReturnCodeChecker(lambda: "EL0004: no\n memory")


def test_success_and_what_is_called_fine_pass(checker):
    assert checker.status("acl.rt.free", 0) == 0
    assert checker.status("acl.init", 100002, 100002) == 100002
    assert checker.value("acl.rt.malloc", (64, 0)) == 64
    assert checker.value("acl.rt.get_device", (0, 0)) == 0  # 0 is a valid value
    assert checker.handle("acl.mdl.create_desc", 7) == 7


def test_a_failure_has_function_code_kind_message_and_cure(checker):
    with pytest.raises(DriverFault) as raised:
        checker.value("acl.rt.malloc", (0, 207001))
    fault = raised.value
    assert (fault.function, fault.code, fault.kind) == ("acl.rt.malloc", 207001, FailureKind.MEMORY)
    assert str(fault) == (
        "acl.rt.malloc: 207001 ACL_ERROR_RT_MEMORY_ALLOCATION, too little memory: EL0004: no memory"
    )
    with pytest.raises(DriverFault, match="HwHiAiUser"):
        checker.status("acl.rt.set_device", 207006)
    with pytest.raises(DriverFault, match="streams, events, notifies or queues are used up"):
        checker.status("acl.rt.create_stream", 207008)


def test_a_handle_of_0_is_a_failure(checker):
    with pytest.raises(DriverFault, match=r"acl.mdl.create_dataset"):
        checker.handle("acl.mdl.create_dataset", 0)


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_failure_without_a_text_is_reported(nothing):
    """acl.get_recent_err_msg returns None if there was no error."""
    silent = ReturnCodeChecker(lambda: nothing)
    with pytest.raises(DriverFault) as raised:
        silent.status("acl.rt.malloc", 207001)
    assert str(raised.value) == (
        "acl.rt.malloc: 207001 ACL_ERROR_RT_MEMORY_ALLOCATION, too little memory"
    )
    with pytest.raises(DriverFault, match=r"acl.mdl.create_dataset: 200000"):
        silent.handle("acl.mdl.create_dataset", 0)
    with pytest.raises(DriverFault, match=r"acl.mdl.get_num_inputs: 100000"):
        silent.getter("acl.mdl.get_num_inputs", 0)
