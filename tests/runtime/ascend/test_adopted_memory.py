"""Memory of the process that a card is told to reach, and to forget."""

import gc
import mmap
import weakref

import numpy as np
import pytest

from ge_runtime.ascend.checker import DriverFault
from ge_runtime.ascend.pyacl import PyAclDriver
from ge_runtime.engines.places import CardPlace


def adopted(place):
    memory = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    place.adopt(memory)
    return memory


def test_it_is_let_go_of_when_it_is_disowned():
    place = CardPlace(0)
    memory = adopted(place)
    there = weakref.ref(memory)
    place.disown(memory)
    place.disown(memory)
    del memory
    gc.collect()
    assert there() is None
    place.close()


def test_what_the_card_does_not_let_go_of_stays_mapped(monkeypatch):
    place = CardPlace(0)
    memory = adopted(place)
    there = weakref.ref(memory)

    def refuse(driver, address):
        raise DriverFault("acl.rt.host_unregister", 507899)

    with monkeypatch.context() as patch:
        patch.setattr(PyAclDriver, "host_unregister", refuse)
        with pytest.raises(DriverFault):
            place.disown(memory)
    del memory
    gc.collect()
    assert there() is not None
    place.disown(there())
    gc.collect()
    assert there() is None
    place.close()
