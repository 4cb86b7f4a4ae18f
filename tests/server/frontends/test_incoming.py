"""Fair reading: portions in order, the rest in later loop iterations, no reading ahead."""

from hypothesis import given
from hypothesis import strategies as st

from reference_server.frontends.connections import PORTION_BYTES, SCRATCH_BYTES, Incoming
from reference_server.frontends.event_loop import SHARE_S


class Scene:
    """A loop whose time advances by `cost_s` for each portion, and a connection's transport."""

    def __init__(self, cost_s=0.0, plain=lambda: 0, whole=lambda data: 0):
        self.now_s = 0.0
        self.cost_s = cost_s
        self.turns = []
        self.portions = []
        self.is_reading = True
        self.incoming = Incoming(
            self._handle, plain, self.turns.append, lambda: self.now_s, whole=whole
        )
        self.incoming.begin(self)

    def _handle(self, data):
        self.portions.append(bytes(data))
        self.now_s += self.cost_s

    def receive(self, data):
        """Pass bytes in a buffer that is reused at once."""
        buffer = bytearray(data)
        self.incoming.receive(memoryview(buffer))
        buffer[:] = bytes(len(buffer))

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def turn(self):
        """Run one loop iteration; return the portions that it handled."""
        before = len(self.portions)
        turns, self.turns[:] = self.turns[:], []
        for call in turns:
            call()
        return self.portions[before:]

    @property
    def received(self):
        return b"".join(self.portions)


def text_of(size):
    return bytes(at * 7 % 251 for at in range(size))


def test_reads_that_fill_the_buffer_have_one_share_together():
    scene = Scene(cost_s=SHARE_S / 3, plain=lambda: SCRATCH_BYTES)
    for expected in (True, True, False):
        assert scene.is_reading
        scene.receive(text_of(SCRATCH_BYTES))
        assert scene.is_reading is expected
    assert (len(scene.portions), scene.turn(), scene.is_reading) == (3, [], True)
    assert scene.turns == []


def test_reads_that_do_not_fill_the_buffer_do_not_pause():
    scene = Scene(cost_s=SHARE_S / 3, plain=lambda: SCRATCH_BYTES)
    for size in (SCRATCH_BYTES, SCRATCH_BYTES, SCRATCH_BYTES - 1) * 2:
        scene.receive(text_of(size))
        assert scene.is_reading


def test_reading_in_place_counts_for_the_share():
    scene = Scene(plain=lambda: SCRATCH_BYTES)
    scene.now_s = 1.0
    place = memoryview(bytearray(SCRATCH_BYTES))
    for expected in (True, False):
        assert scene.incoming.buffer(lambda: place) is place
        scene.now_s += 0.6 * SHARE_S
        scene.incoming.receive(place, len(place))
        assert scene.is_reading is expected


def test_nothing_is_read_in_place_while_bytes_wait_before_it():
    scene = Scene(cost_s=SHARE_S)
    place = memoryview(bytearray(SCRATCH_BYTES))
    scene.receive(text_of(2 * PORTION_BYTES))
    assert scene.incoming.buffer(lambda: place) is None
    scene.turn()
    assert scene.incoming.buffer(lambda: place) is place
    assert scene.incoming.buffer(lambda: None) is None


def test_a_tensor_is_not_cut():
    scene = Scene(plain=lambda: 3 * PORTION_BYTES)
    scene.receive(bytes(3 * PORTION_BYTES))
    assert scene.portions == [bytes(3 * PORTION_BYTES)]


def test_portions_end_at_frame_boundaries():
    scene = Scene(whole=lambda data: min(len(data), 3_000))
    text = text_of(7_000)
    scene.receive(text)
    assert scene.portions == [text[:3_000], text[3_000:6_000], text[6_000:]]


def test_a_held_connection_gets_nothing_until_released():
    scene = Scene()
    scene.incoming.hold()
    assert not scene.is_reading
    scene.receive(b"read before it was paused")
    assert scene.portions == []
    scene.incoming.release()
    assert not scene.is_reading
    scene.turn()
    assert (scene.received, scene.is_reading) == (b"read before it was paused", True)


def test_holding_while_bytes_are_handled_keeps_what_follows():
    scene = Scene(plain=lambda: scene.incoming.hold() or 0)
    scene.receive(text_of(3 * PORTION_BYTES))
    assert len(scene.portions) == 1
    assert scene.turn() == []
    scene.incoming.release()
    assert len(scene.turn()) == 1


@given(
    st.lists(st.integers(0, 5 * PORTION_BYTES), max_size=6),
    st.floats(0, 2 * SHARE_S),
    st.lists(st.sampled_from(["turn", "hold", "release"]), max_size=20),
    st.integers(0, 3 * PORTION_BYTES),
)
def test_all_bytes_are_passed_on_in_order(sizes, cost_s, steps, plain):
    scene = Scene(cost_s, lambda: plain)
    sent = b""
    steps = iter(steps)
    for number, size in enumerate(sizes):
        while not scene.is_reading:
            step = next(steps, "release")
            scene.turn() if step == "turn" else getattr(scene.incoming, step)()
            if step == "release":
                scene.turn()
        scene.receive(data := bytes([number]) * size)
        sent += data
        assert sent.startswith(scene.received)
    scene.incoming.release()
    while scene.turns:
        scene.turn()
    assert (scene.received, scene.is_reading) == (sent, True)
