"""The profile of small requests: samples count for the code that they are of."""

from benchmarks.where import Profile, counted

STACKS = """\
thread (1): MainThread;main (/x/a.py:9);_run (/x/reference_server/frontends/http/reading.py:8) 6
thread (1): MainThread;main (/x/a.py:9);run (/usr/lib/python3.11/asyncio/runners.py:1) 2
thread (2): uvloop_0;_worker (/usr/lib/python3.11/concurrent/futures/thread.py:81) 50
thread (3): add_sub_0;execute (/tmp/models/add_sub/1/model.py:5) 1
thread (3): add_sub_0;run (/x/reference_server/scheduling/instance_scheduler.py:5) 1
"""


def test_samples_count_for_the_room_of_the_innermost_frame():
    rooms, functions = counted(STACKS)
    assert rooms == {
        ("event loop", "HTTP"): 6,
        ("event loop", "event loop"): 2,
        ("instance", "the model"): 1,
        ("instance", "schedulers"): 1,
    }
    assert functions.most_common(1) == [("_run (frontends/http/reading.py)", 6)]


def test_the_parts_of_a_request_add_up():
    rooms, functions = counted(STACKS)
    profile = Profile(50.0, 1.0, rooms, functions)
    assert profile.us(rooms["event loop", "HTTP"]) == 30.0
    assert sum(map(profile.us, rooms.values())) == 50.0
