"""Copy synchronously: host to device, within the device, and back."""

import acl
import numpy as np
from shared import DEVICE_TO_DEVICE, HUGE_FIRST, Card, check, download, got, upload

SIZE = 4096

with Card():
    first = got(acl.rt.malloc(SIZE, HUGE_FIRST))
    second = got(acl.rt.malloc(SIZE, HUGE_FIRST))
    sent = np.arange(SIZE // 4, dtype=np.float32)
    upload(sent, first, SIZE)
    check(acl.rt.memcpy(second, SIZE, first, SIZE, DEVICE_TO_DEVICE), "memcpy")
    received = download(second, sent.shape)
    check(acl.rt.free(first), "free")
    check(acl.rt.free(second), "free")

print("equal:", np.array_equal(sent, received))
