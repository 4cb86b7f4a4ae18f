"""Execute one model on images of several sizes; height and width are set before each run."""

import sys

import acl
from shared import Card, Model, check, download, pictures, upload

with Card():
    model = Model(sys.argv[1])
    inputs, outputs = model.buffers()
    gears = acl.mdl.get_dynamic_hw(model.desc, -1)[0]["hw"]
    for height, width in gears:
        upload(pictures(1, height, width), inputs.ptrs[0], inputs.sizes[0])
        place = model.gear_place()
        check(acl.mdl.set_dynamic_hw_size(model.id, inputs.dataset, place, height, width))
        check(acl.mdl.execute(model.id, inputs.dataset, outputs.dataset), "execute")
        scores = download(outputs.ptrs[0], 10)
        print(f"{height} x {width} class:", scores.argmax())
    model.release()
