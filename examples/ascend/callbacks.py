"""Execute a classifier on a pool of datasets; a callback receives each result."""

import sys

import acl
from shared import Card, Model, check, download, got, pictures, upload

POOL, COUNT = 2, 6
BLOCK = 1

answers = []
stop = False


def serve(arguments):
    """Process the stream's callbacks, in a separate thread."""
    context, timeout = arguments
    check(acl.rt.set_context(context), "set_context")
    while not stop:
        acl.rt.process_report(timeout)


def take(arguments):
    """Store the result of one execution; called back by the stream."""
    number, outputs = arguments
    scores = download(outputs.ptrs[0], 10)
    answers.append((number, int(scores.argmax())))


with Card() as card:
    model = Model(sys.argv[1])
    pool = [model.buffers() for _ in range(POOL)]
    for (inputs, _), picture in zip(pool, pictures(POOL), strict=True):
        upload(picture, inputs.ptrs[0], inputs.sizes[0])
    thread = got(acl.util.start_thread(serve, [card.context, 100]))
    check(acl.rt.subscribe_report(thread, card.stream), "subscribe_report")
    for number in range(COUNT):
        inputs, outputs = pool[number % POOL]
        ret = acl.mdl.execute_async(model.id, inputs.dataset, outputs.dataset, card.stream)
        check(ret, "execute_async")
        check(acl.rt.launch_callback(take, [number, outputs], BLOCK, card.stream))
    check(acl.rt.synchronize_stream(card.stream), "synchronize_stream")
    check(acl.rt.unsubscribe_report(thread, card.stream), "unsubscribe_report")
    stop = True
    check(acl.util.stop_thread(thread), "stop_thread")
    model.release()

print("classes:", [index for _, index in sorted(answers)])
