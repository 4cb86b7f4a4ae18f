"""DVPP: decoding of JPEG files, resizing and cropping, and the requirements on pictures."""

import io
import sys

import numpy as np
import pytest
from PIL import Image
from simulator.support.driving import D2H, H2D, ok
from simulator.support.models import breaks

from ascend_simulator import report

NV12, NV21 = 1, 2
WIDTH, HEIGHT = 100, 62


def jpeg(width=WIDTH, height=HEIGHT, mode="RGB", **options):
    """A file whose left half is dark red and whose right half is white."""
    image = Image.new("RGB", (width, height), (120, 10, 10))
    image.paste((255, 255, 255), (width // 2, 0, width, height))
    file = io.BytesIO()
    image.convert(mode).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def up(side, multiple):
    return -(-side // multiple) * multiple


class Dvpp:
    """A helper as programs have it: a channel, a stream, picture descriptions in new memory."""

    def __init__(self, acl):
        self.acl, self.media = acl, acl.media
        self.stream = ok(acl.rt.create_stream())
        self.channel = self.media.dvpp_create_channel_desc()
        ok(self.media.dvpp_create_channel(self.channel))
        self.scaling = self.media.dvpp_create_resize_config()

    def file(self, data):
        ptr = ok(self.media.dvpp_malloc(len(data)))
        host = np.frombuffer(data, np.uint8)
        ok(self.acl.rt.memcpy(ptr, len(data), host.ctypes.data, len(data), H2D))
        return ptr

    def picture(self, width, height, across=16, down=2, layout=NV12, data=None, size=None):
        strides = up(width, across), up(height, down)
        size = size or strides[0] * strides[1] * 3 // 2
        desc = self.media.dvpp_create_pic_desc()
        data = ok(self.media.dvpp_malloc(size)) if data is None else data
        media = self.media
        ok(media.dvpp_set_pic_desc_data(desc, data))
        ok(media.dvpp_set_pic_desc_size(desc, size))
        ok(media.dvpp_set_pic_desc_format(desc, layout))
        ok(media.dvpp_set_pic_desc_width(desc, width))
        ok(media.dvpp_set_pic_desc_height(desc, height))
        ok(media.dvpp_set_pic_desc_width_stride(desc, strides[0]))
        ok(media.dvpp_set_pic_desc_height_stride(desc, strides[1]))
        return desc

    def decoded(self, data, width=WIDTH, height=HEIGHT, **options):
        desc = self.picture(width, height, 128, 16, **options)
        ptr = self.file(data)
        code = self.media.dvpp_jpeg_decode_async(self.channel, ptr, len(data), desc, self.stream)
        assert code == 0
        return desc

    def wait(self):
        return self.acl.rt.synchronize_stream(self.stream)

    def planes(self, desc):
        """Return luma and the two chroma planes of a picture, without its strides."""
        media, host = self.media, np.zeros(self.media.dvpp_get_pic_desc_size(desc), np.uint8)
        data = media.dvpp_get_pic_desc_data(desc)
        ok(self.acl.rt.memcpy(host.ctypes.data, host.nbytes, data, host.nbytes, D2H))
        width, height = media.dvpp_get_pic_desc_width(desc), media.dvpp_get_pic_desc_height(desc)
        stride = media.dvpp_get_pic_desc_width_stride(desc)
        rows = media.dvpp_get_pic_desc_height_stride(desc)
        y = host[: rows * stride].reshape(rows, stride)[:height, :width]
        colours = host[rows * stride :][: rows * stride // 2].reshape(rows // 2, stride // 2, 2)
        return y, colours[: height // 2, : width // 2]


@pytest.fixture
def dvpp(acl):
    return Dvpp(acl)


def test_a_file_is_decoded_asynchronously(dvpp):
    desc = dvpp.decoded(jpeg())
    assert dvpp.wait() == 0
    y, colours = dvpp.planes(desc)
    red = Image.new("RGB", (1, 1), (120, 10, 10)).convert("YCbCr").getpixel((0, 0))
    assert abs(int(y[5, 5]) - red[0]) <= 3
    assert np.abs(colours[3, 3].astype(int) - red[1:]).max() <= 4
    assert y[5, -5] >= 252
    assert np.abs(colours[3, -3].astype(int) - 128).max() <= 3
    assert dvpp.media.dvpp_get_pic_desc_ret_code(desc) == 0
    assert dvpp.media.dvpp_get_pic_desc_format(desc) == NV12


def test_nv21_has_the_chroma_order_swapped(dvpp):
    one, other = dvpp.decoded(jpeg()), dvpp.decoded(jpeg(), layout=NV21)
    assert dvpp.wait() == 0
    np.testing.assert_array_equal(dvpp.planes(one)[1], dvpp.planes(other)[1][..., ::-1])


def test_grey_files_have_no_colour(dvpp):
    desc = dvpp.decoded(jpeg(mode="L"))
    assert dvpp.wait() == 0
    assert (dvpp.planes(desc)[1] == 128).all()


def test_odd_dims_are_made_even(dvpp):
    desc = dvpp.decoded(jpeg(99, 61), 99, 61)
    assert dvpp.wait() == 0
    media = dvpp.media
    assert (media.dvpp_get_pic_desc_width(desc), media.dvpp_get_pic_desc_height(desc)) == (98, 60)


def test_the_smallest_file_is_decoded(dvpp):
    dvpp.decoded(jpeg(32, 32), 32, 32)
    assert dvpp.wait() == 0


def test_the_header_of_a_file_has_its_dims_and_bytes(dvpp):
    data = np.frombuffer(jpeg(), np.uint8)
    media, given = dvpp.media, (data.ctypes.data, data.nbytes)
    assert media.dvpp_jpeg_get_image_info(*given) == (WIDTH, HEIGHT, 3, 0)
    assert media.dvpp_jpeg_predict_dec_size(*given, NV12) == (128 * 64 * 3 // 2, 0)
    assert media.dvpp_jpeg_predict_dec_size(*given, 12) == (0, 200001)
    noise = np.zeros(64, np.uint8)
    for bad in ((noise.ctypes.data, 64), (0, 64), (noise.ctypes.data, 0)):
        assert media.dvpp_jpeg_get_image_info(*bad) == (0, 0, 0, 100000)
    with breaks("memory.device-for-host"):
        media.dvpp_jpeg_get_image_info(dvpp.file(jpeg()), data.nbytes)


@pytest.mark.parametrize(
    ("data", "dims", "message"),
    [
        (jpeg(progressive=True), (WIDTH, HEIGHT), "a progressive file"),
        (jpeg(16, 16), (16, 16), "16 x 16 pixels"),
        (jpeg(), (WIDTH, 64), "100 x 62 pixels, which differ from the description"),
        (b"no file", (WIDTH, HEIGHT), "cannot identify"),
        (jpeg()[:-200], (WIDTH, HEIGHT), "truncated"),
    ],
)
def test_a_file_that_cannot_be_decoded_is_a_failure_of_the_stream(dvpp, data, dims, message):
    desc = dvpp.decoded(data, *dims)
    assert dvpp.wait() == 507018
    assert message in dvpp.acl.get_recent_err_msg()
    assert dvpp.media.dvpp_get_pic_desc_ret_code(desc) == 507018


@pytest.mark.parametrize(
    ("soc", "across", "fits"),
    [
        *(("Ascend310", 64, False), ("Ascend310", 128, True), ("Ascend910A", 64, False)),
        *(("Ascend310P3", 64, True), ("Ascend910B3", 64, True), ("Ascend910B3", 16, False)),
    ],
)
def test_each_chip_has_a_stride_of_its_decoder(started, soc, across, fits):
    acl = started(soc=soc)
    dvpp = Dvpp(acl)
    desc, data = dvpp.picture(160, 64, across, 16), jpeg(160, 64)
    given = (dvpp.channel, dvpp.file(data), len(data), desc, dvpp.stream)
    if fits:
        assert dvpp.media.dvpp_jpeg_decode_async(*given) == 0
        assert dvpp.wait() == 0
    else:
        with breaks("dvpp.picture"):
            dvpp.media.dvpp_jpeg_decode_async(*given)


def test_a_picture_is_resized(dvpp):
    small = dvpp.picture(32, 32)
    big = dvpp.decoded(jpeg())
    assert (
        dvpp.media.dvpp_vpc_resize_async(dvpp.channel, big, small, dvpp.scaling, dvpp.stream) == 0
    )
    assert dvpp.wait() == 0
    y, colours = dvpp.planes(small)
    assert y.shape == (32, 32)
    assert (y[:, 20:] >= 250).all()
    assert (y[:, :10] < 60).all()
    assert np.abs(colours[:, 10:].astype(int) - 128).max() <= 4
    red = Image.new("RGB", (1, 1), (120, 10, 10)).convert("YCbCr").getpixel((0, 0))
    assert np.abs(colours[:, :5].astype(int) - red[1:]).max() <= 4


def test_an_area_is_cut_and_pasted(dvpp):
    media, big = dvpp.media, dvpp.decoded(jpeg())
    right = media.dvpp_create_roi_config(60, 91, 0, 31)
    cut, board = dvpp.picture(64, 64), dvpp.picture(64, 64)
    assert media.dvpp_vpc_crop_async(dvpp.channel, big, cut, right, dvpp.stream) == 0
    place = media.dvpp_create_roi_config(0, 15, 32, 47)
    given = (dvpp.channel, big, board, right, place, dvpp.stream)
    assert media.dvpp_vpc_crop_and_paste_async(*given) == 0
    assert dvpp.wait() == 0
    assert (dvpp.planes(cut)[0] >= 250).all()
    y, _ = dvpp.planes(board)
    assert (y[32:48, :16] >= 250).all()
    assert (y[:32] == 0x7F).all()  # the rest is unchanged
    for handle in (right, place):
        assert media.dvpp_destroy_roi_config(handle) == 0


def test_an_area_has_its_own_colours(dvpp):
    big, cut = dvpp.decoded(jpeg()), dvpp.picture(16, 16)
    middle = dvpp.media.dvpp_create_roi_config(44, 59, 8, 23)  # red up to column 50
    assert dvpp.media.dvpp_vpc_crop_async(dvpp.channel, big, cut, middle, dvpp.stream) == 0
    assert dvpp.wait() == 0
    _, colours = dvpp.planes(cut)
    red = Image.new("RGB", (1, 1), (120, 10, 10)).convert("YCbCr").getpixel((0, 0))
    assert np.abs(colours[:, :2].astype(int) - red[1:]).max() <= 8
    assert np.abs(colours[:, 4:].astype(int) - 128).max() <= 8


def test_colours_that_rgb_lacks_are_decoded_as_the_file_has_them(dvpp):
    file = io.BytesIO()
    Image.new("YCbCr", (64, 64), (60, 240, 240)).save(file, "JPEG", quality=95)
    desc = dvpp.decoded(file.getvalue(), 64, 64)
    assert dvpp.wait() == 0
    y, colours = dvpp.planes(desc)
    assert np.abs(y.astype(int) - 60).max() <= 2
    assert np.abs(colours.astype(int) - 240).max() <= 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 31}, "width 31, expected an even number"),
        ({"width_stride": 40}, "width stride 40, expected 32 (a multiple of 16)"),
        ({"width_stride": 16}, "width stride 16"),
        ({"height_stride": 33}, "height stride 33, expected 32 (a multiple of 2)"),
        ({"size": 100}, "size 100, expected 1,536 or more"),
        ({"width": 8}, "width 8, expected 10 to 4096"),
        ({"height": 4}, "height 4, expected 6 to 4096"),
    ],
)
def test_picture_requirements_are_checked(dvpp, changed, message):
    small, big = dvpp.picture(32, 32), dvpp.decoded(jpeg())
    for name, given in changed.items():
        ok(getattr(dvpp.media, f"dvpp_set_pic_desc_{name}")(small, given))
    with breaks("dvpp.picture") as raised:
        dvpp.media.dvpp_vpc_resize_async(dvpp.channel, big, small, dvpp.scaling, dvpp.stream)
    assert message in str(raised.value)


def test_lenient_mode_refuses_a_picture_by_its_code(started):
    acl = started(mode="report")
    dvpp = Dvpp(acl)
    one, other = dvpp.picture(32, 32), dvpp.picture(33, 32)
    given = (dvpp.channel, one, other, dvpp.scaling, dvpp.stream)
    assert dvpp.media.dvpp_vpc_resize_async(*given) == 100000
    assert report().broken == {"dvpp.picture": 1}


@pytest.mark.parametrize(("dims", "fits"), [((512, 512), True), ((514, 512), False)])
def test_a_side_grows_sixteen_times_at_most(dvpp, dims, fits):
    given = (dvpp.channel, dvpp.picture(32, 32), dvpp.picture(*dims), dvpp.scaling, dvpp.stream)
    if fits:
        assert dvpp.media.dvpp_vpc_resize_async(*given) == dvpp.wait() == 0
    else:
        with breaks("dvpp.picture"):
            dvpp.media.dvpp_vpc_resize_async(*given)


@pytest.mark.parametrize("area", [(1, 31, 0, 31), (0, 30, 0, 31), (0, 31, 0, 33), (8, 7, 0, 31)])
def test_an_area_is_inside_with_even_start_and_odd_end(dvpp, area):
    one, other = dvpp.picture(32, 32), dvpp.picture(32, 32)
    roi = dvpp.media.dvpp_create_roi_config(*area)
    with breaks("dvpp.picture"):
        dvpp.media.dvpp_vpc_crop_async(dvpp.channel, one, other, roi, dvpp.stream)


def test_formats_that_are_not_simulated_have_a_code(dvpp):
    one, other = dvpp.picture(32, 32), dvpp.picture(32, 32, layout=12)
    given = (dvpp.channel, one, other, dvpp.scaling, dvpp.stream)
    assert dvpp.media.dvpp_vpc_resize_async(*given) == 200001


def test_a_picture_without_data_is_refused(dvpp):
    given = (dvpp.channel, dvpp.picture(32, 32), dvpp.picture(32, 32, data=0), dvpp.scaling)
    assert dvpp.media.dvpp_vpc_resize_async(*given, dvpp.stream) == 100000
    assert "the picture has no data" in dvpp.acl.get_recent_err_msg()


def test_a_resize_needs_its_configuration(dvpp):
    given = (dvpp.channel, dvpp.picture(32, 32), dvpp.picture(32, 32))
    assert dvpp.media.dvpp_vpc_resize_async(*given, 0, dvpp.stream) == 100000


def test_an_area_is_shrunk_by_its_own_sides(dvpp):
    """From column 576 on there are 64 columns, which is not too many for 16."""
    wide, small = dvpp.picture(640, 64), dvpp.picture(16, 16)
    area = dvpp.media.dvpp_create_roi_config(576, 639, 0, 63)
    assert dvpp.media.dvpp_vpc_crop_async(dvpp.channel, wide, small, area, dvpp.stream) == 0
    assert dvpp.wait() == 0


def test_pictures_lie_in_memory_of_dvpp(dvpp):
    plain = dvpp.picture(32, 32, data=ok(dvpp.acl.rt.malloc(1536, 0)))
    given = (dvpp.channel, dvpp.picture(32, 32), plain, dvpp.scaling, dvpp.stream)
    with breaks("dvpp.memory"):
        dvpp.media.dvpp_vpc_resize_async(*given)


def test_dvpp_and_rt_memory_are_freed_by_their_own_functions(dvpp):
    ptr, plain = ok(dvpp.media.dvpp_malloc(64)), ok(dvpp.acl.rt.malloc(64, 0))
    with breaks("memory.free-while-held"):
        dvpp.acl.rt.free(ptr)
    with breaks("dvpp.bad-free"):
        dvpp.media.dvpp_free(plain)
    assert dvpp.media.dvpp_free(0) == 100000
    assert dvpp.media.dvpp_free(ptr) == 0
    with breaks("dvpp.bad-free"):
        dvpp.media.dvpp_free(ptr)


def test_memory_of_a_picture_that_is_written_is_not_freed(dvpp):
    desc = dvpp.decoded(jpeg())
    ptr = dvpp.media.dvpp_get_pic_desc_data(desc)
    with breaks("memory.free-while-in-use"):
        dvpp.media.dvpp_free(ptr)
    assert dvpp.wait() == 0
    assert dvpp.media.dvpp_free(ptr) == 0


def test_a_channel_is_created_before_it_is_used(dvpp):
    media = dvpp.media
    closed = media.dvpp_create_channel_desc()
    assert media.dvpp_set_channel_desc_mode(closed, 1) == 0
    one = dvpp.picture(32, 32)
    assert media.dvpp_vpc_resize_async(closed, one, one, dvpp.scaling, dvpp.stream) == 100000
    assert media.dvpp_destroy_channel(closed) == 100000
    assert media.dvpp_create_channel(dvpp.channel) == 100000


def test_leftover_media_objects_are_reported_at_finalize(dvpp):
    media = dvpp.media
    picture, area = media.dvpp_create_pic_desc(), media.dvpp_create_roi_config(0, 1, 0, 1)
    assert set(report().live) >= {
        *("1 DVPP channel description(s)", "1 picture description(s)", "1 DVPP channel(s)"),
        *("1 area configuration(s)", "1 resize configuration(s)"),
    }
    assert media.dvpp_set_resize_config_interpolation(dvpp.scaling, 1) == 0
    assert media.dvpp_destroy_pic_desc(picture) == media.dvpp_destroy_roi_config(area) == 0
    assert media.dvpp_destroy_resize_config(dvpp.scaling) == 0
    assert media.dvpp_destroy_channel(dvpp.channel) == 0
    assert media.dvpp_destroy_channel_desc(dvpp.channel) == 0
    assert report().live == ["stream 1"]


def test_a_missing_pillow_is_reported_with_instructions(acl, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r'pip install "ascend-simulator\[media\]"'):
        acl.media.dvpp_create_channel(acl.media.dvpp_create_channel_desc())
