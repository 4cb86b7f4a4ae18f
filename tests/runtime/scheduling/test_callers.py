import math

import pytest

from ge_runtime.errors import Cancelled, Expired
from ge_runtime.scheduling.request_batch import ANONYMOUS_CALLER, Caller


def test_a_caller_without_deadline_waits_for_ever():
    assert ANONYMOUS_CALLER.abandonment(1e9, ask=True) is None


def test_a_deadline_that_is_now_has_not_passed():
    assert Caller(deadline=5.0).abandonment(5.0, ask=True) is None


def test_a_passed_deadline_says_by_how_much():
    fault = Caller(deadline=5.0).abandonment(5.25, ask=True)
    assert isinstance(fault, Expired)
    assert "passed by 250.0 ms" in str(fault)


def test_a_cancelled_request_is_told_so():
    assert isinstance(Caller(is_cancelled=lambda: True).abandonment(0.0, ask=True), Cancelled)


def test_the_server_is_not_asked_about_an_expired_request():
    caller = Caller(deadline=0.0, is_cancelled=lambda: pytest.fail("asked"))
    assert isinstance(caller.abandonment(math.inf, ask=True), Expired)


def test_nobody_is_asked_who_need_not_be():
    assert Caller(is_cancelled=lambda: pytest.fail("asked")).abandonment(0.0, ask=False) is None
