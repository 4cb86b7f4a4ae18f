"""Copy on a stream from and to pinned memory; the host waits once, at the end."""

import acl
from shared import DEVICE_TO_HOST, HOST_TO_DEVICE, HUGE_FIRST, Card, check, got

SIZE = 4096

with Card() as card:
    device = got(acl.rt.malloc(SIZE, HUGE_FIRST))
    source, target = got(acl.rt.malloc_host(SIZE)), got(acl.rt.malloc_host(SIZE))
    check(acl.rt.memset(source, SIZE, 7, SIZE), "memset")
    check(acl.rt.memcpy_async(device, SIZE, source, SIZE, HOST_TO_DEVICE, card.stream))
    check(acl.rt.memcpy_async(target, SIZE, device, SIZE, DEVICE_TO_HOST, card.stream))
    check(acl.rt.synchronize_stream(card.stream), "synchronize_stream")
    received = acl.util.ptr_to_bytes(target, SIZE)
    check(acl.rt.free(device), "free")
    check(acl.rt.free_host(source), "free_host")
    check(acl.rt.free_host(target), "free_host")

print("equal:", received == b"\x07" * SIZE)
