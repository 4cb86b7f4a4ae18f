"""Execute one model with batches of several sizes; the gear is set before each execution."""

import sys

import acl
from shared import Card, Model, check, download, pictures, upload

with Card():
    model = Model(sys.argv[1])
    inputs, outputs = model.buffers()
    for batch in (1, 4, 2):
        upload(pictures(batch), inputs.ptrs[0], inputs.sizes[0])
        place = model.gear_place()
        check(acl.mdl.set_dynamic_batch_size(model.id, inputs.dataset, place, batch))
        check(acl.mdl.execute(model.id, inputs.dataset, outputs.dataset), "execute")
        scores = download(outputs.ptrs[0], (batch, 10))
        print(batch, "classes:", scores.argmax(1).tolist())
    model.release()
