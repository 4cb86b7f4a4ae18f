"""Copy on one stream and execute on another; events keep the order."""

import sys

import acl
from shared import HOST_TO_DEVICE, Card, Model, check, download, got, pictures

with Card() as card:
    model = Model(sys.argv[1])
    inputs, outputs = model.buffers()
    size = inputs.sizes[0]
    copies = got(acl.rt.create_stream())
    copied, executed = got(acl.rt.create_event()), got(acl.rt.create_event())
    pinned = got(acl.rt.malloc_host(size))
    check(acl.rt.record_event(executed, card.stream), "record_event")
    for count in (1, 2):
        picture = pictures(count)[:1].tobytes()
        check(acl.rt.memcpy(pinned, size, acl.util.bytes_to_ptr(picture), size, 0), "memcpy")
        check(acl.rt.stream_wait_event(copies, executed), "stream_wait_event")
        check(acl.rt.memcpy_async(inputs.ptrs[0], size, pinned, size, HOST_TO_DEVICE, copies))
        check(acl.rt.record_event(copied, copies), "record_event")
        check(acl.rt.stream_wait_event(card.stream, copied), "stream_wait_event")
        ret = acl.mdl.execute_async(model.id, inputs.dataset, outputs.dataset, card.stream)
        check(ret, "execute_async")
        check(acl.rt.record_event(executed, card.stream), "record_event")
        check(acl.rt.synchronize_stream(card.stream), "synchronize_stream")
        print("class:", download(outputs.ptrs[0], 10).argmax())
    check(acl.rt.free_host(pinned), "free_host")
    for event in (copied, executed):
        check(acl.rt.destroy_event(event), "destroy_event")
    check(acl.rt.synchronize_stream(copies), "synchronize_stream")
    check(acl.rt.destroy_stream(copies), "destroy_stream")
    model.release()
