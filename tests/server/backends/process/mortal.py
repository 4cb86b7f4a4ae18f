"""A model whose process ends, or sends invalid messages, as its input requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from server.backends import kit

from reference_server.backends.process_host.instance import ProcessInstance

Start = Callable[..., ProcessInstance]
UNHEALTHY = "Stub process 'm_0_0' is not healthy."
HERE = "the process of instance 'm_0_0' "

#: Ends or misbehaves as its input requests; otherwise it answers.
MORTAL = kit.executing(
    "import ctypes, os, signal, sys",
    "how = pb_utils.get_input_tensor_by_name(requests[0], 'HOW').as_numpy().item().decode()",
    "if how == 'exit': os._exit(3)",
    "if how == 'segfault': ctypes.string_at(0)",
    "if how == 'kill': os.kill(os.getpid(), signal.SIGKILL)",
    "if how == 'hang': signal.pause()",
    "if how == 'stop': os.kill(os.getpid(), signal.SIGSTOP)",
    "import socket",
    "ends = sys.orig_argv[5:7]",  # of its connection
    "events, jobs = (socket.socket(fileno=os.dup(int(end))) for end in ends)",
    "mine = jobs if how.startswith('answers ') else events",
    "said = bytes.fromhex(how.partition(' ')[2]) if ' ' in how else b''",
    "if said: mine.sendall(said); signal.pause()",
    "if how == 'shuts': mine.shutdown(socket.SHUT_WR); signal.pause()",
    "text = np.array([how], object)",
    "return [pb_utils.InferenceResponse([pb_utils.Tensor('TEXT', text)]) for _ in requests]",
)


def asks(how: str):
    return kit.request(HOW=np.array([how.encode()], object))


def said(instance: ProcessInstance, how: str) -> object:
    return kit.outputs(kit.answer(instance, asks(how)))["TEXT"]
