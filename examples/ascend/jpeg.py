"""Decode and resize a JPEG file with DVPP, and classify its brightness."""

import sys
from pathlib import Path

import acl
import numpy as np
from shared import Card, Model, check, download, got, upload

YUV420SP = 1
SIDE = 32


def align(side, multiple):
    """Round up to a multiple."""
    return -(-side // multiple) * multiple


def picture(width, height, width_stride, height_stride):
    """Return the description of a new image buffer, and its address."""
    size = width_stride * height_stride * 3 // 2
    ptr = got(acl.media.dvpp_malloc(size))
    desc = acl.media.dvpp_create_pic_desc()
    acl.media.dvpp_set_pic_desc_data(desc, ptr)
    acl.media.dvpp_set_pic_desc_size(desc, size)
    acl.media.dvpp_set_pic_desc_format(desc, YUV420SP)
    acl.media.dvpp_set_pic_desc_width(desc, width)
    acl.media.dvpp_set_pic_desc_height(desc, height)
    acl.media.dvpp_set_pic_desc_width_stride(desc, width_stride)
    acl.media.dvpp_set_pic_desc_height_stride(desc, height_stride)
    return desc, ptr


with Card() as card:
    channel = acl.media.dvpp_create_channel_desc()
    check(acl.media.dvpp_create_channel(channel), "dvpp_create_channel")
    scaling = acl.media.dvpp_create_resize_config()
    data = Path(sys.argv[2]).read_bytes()
    host = acl.util.bytes_to_ptr(data)
    width, height, _ = got(acl.media.dvpp_jpeg_get_image_info(host, len(data)))
    width, height = width // 2 * 2, height // 2 * 2  # the decoder returns even sides
    file = got(acl.media.dvpp_malloc(len(data)))
    check(acl.rt.memcpy(file, len(data), host, len(data), 1), "memcpy")
    big, big_ptr = picture(width, height, align(width, 128), align(height, 16))
    ret = acl.media.dvpp_jpeg_decode_async(channel, file, len(data), big, card.stream)
    check(ret, "dvpp_jpeg_decode_async")
    small, small_ptr = picture(SIDE, SIDE, align(SIDE, 16), align(SIDE, 2))
    ret = acl.media.dvpp_vpc_resize_async(channel, big, small, scaling, card.stream)
    check(ret, "dvpp_vpc_resize_async")
    check(acl.rt.synchronize_stream(card.stream), "synchronize_stream")
    brightness = download(small_ptr, (SIDE, SIDE), np.uint8)
    for ptr in (file, big_ptr, small_ptr):
        check(acl.media.dvpp_free(ptr), "dvpp_free")
    for desc in (big, small):
        check(acl.media.dvpp_destroy_pic_desc(desc), "dvpp_destroy_pic_desc")
    check(acl.media.dvpp_destroy_resize_config(scaling), "dvpp_destroy_resize_config")
    check(acl.media.dvpp_destroy_channel(channel), "dvpp_destroy_channel")
    check(acl.media.dvpp_destroy_channel_desc(channel), "dvpp_destroy_channel_desc")
    model = Model(sys.argv[1])
    inputs, outputs = model.buffers()
    grey = np.broadcast_to(brightness / np.float32(255), (1, 3, SIDE, SIDE))
    upload(np.ascontiguousarray(grey, np.float32), inputs.ptrs[0], inputs.sizes[0])
    check(acl.mdl.execute(model.id, inputs.dataset, outputs.dataset), "execute")
    print("class:", download(outputs.ptrs[0], 10).argmax())
    model.release()
