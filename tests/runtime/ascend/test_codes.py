import pytest

from ascend_simulator.codes import Code
from ge_runtime.ascend.checker import Checker, DriverFault
from ge_runtime.ascend.codes import Kind, kind_of, name_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (100000, Kind.OURS),
        (107002, Kind.OURS),
        (145013, Kind.OURS),
        (300000, Kind.OURS),
        (145006, Kind.FILE),
        (100013, Kind.FILE),
        (207001, Kind.MEMORY),
        (245000, Kind.MEMORY),
        (507002, Kind.RETRY),
        (107022, Kind.RELOAD),
        (500002, Kind.RELOAD),
        (507011, Kind.RELOAD),
        (507999, Kind.RELOAD),
        (507010, Kind.LOST),
        (507046, Kind.LOST),
        (507899, Kind.LOST),
    ],
)
def test_a_code_says_what_to_do(code, kind):
    assert kind_of(code) is kind


def test_names_are_those_of_the_headers():
    """Held against a list that was written by others."""
    for code in Code:
        assert name_of(code) in (str(int(code)), f"{int(code)} ACL_ERROR_{code.name}")
    assert name_of(207001) == "207001 ACL_ERROR_RT_MEMORY_ALLOCATION"
    assert name_of(1) == "1"


@pytest.fixture
def checker():
    return Checker(lambda: "EL0004: no\n memory")


def test_success_and_what_is_called_fine_pass(checker):
    assert checker.status("acl.rt.free", 0) == 0
    assert checker.status("acl.init", 100002, 100002) == 100002
    assert checker.value("acl.rt.malloc", (64, 0)) == 64
    assert checker.value("acl.mdl.load_from_file", (0, 0)) == 0  # a model may have the id 0
    assert checker.handle("acl.mdl.create_desc", 7) == 7


def test_a_failure_tells_function_code_kind_message_and_cure(checker):
    with pytest.raises(DriverFault) as raised:
        checker.value("acl.rt.malloc", (0, 207001))
    fault = raised.value
    assert (fault.function, fault.code, fault.kind) == ("acl.rt.malloc", 207001, Kind.MEMORY)
    assert str(fault) == (
        "acl.rt.malloc: 207001 ACL_ERROR_RT_MEMORY_ALLOCATION, too little memory: EL0004: no memory"
    )
    with pytest.raises(DriverFault, match="HwHiAiUser"):
        checker.status("acl.rt.set_device", 207006)


def test_a_handle_of_0_is_a_failure(checker):
    with pytest.raises(DriverFault, match=r"acl.mdl.create_dataset"):
        checker.handle("acl.mdl.create_dataset", 0)
