"""Data buffers, datasets and tensor descriptions."""

import pytest
from simulator.support.driving import Blocked, ok
from simulator.support.models import Loaded, breaks, static_om

from ascend_simulator.codes import Code

INVALID = Code.INVALID_PARAM


def test_a_buffer_is_an_address_and_bytes(acl):
    buffer = acl.create_data_buffer(64, 1 << 33)
    assert acl.get_data_buffer_addr(buffer) == 64
    assert acl.get_data_buffer_size_v2(buffer) == 1 << 33
    assert acl.get_data_buffer_size(buffer) == 0  # the low 32 bits
    assert acl.update_data_buffer(buffer, 128, 7) == 0
    assert acl.get_data_buffer_addr(buffer) == 128
    assert acl.get_data_buffer_size(buffer) == 7
    assert acl.destroy_data_buffer(buffer) == 0


def test_datasets_list_buffers_in_order_and_echo_themselves(acl):
    dataset = acl.mdl.create_dataset()
    buffers = [acl.create_data_buffer(64 * place, 64) for place in range(3)]
    for count, buffer in enumerate(buffers):
        assert acl.mdl.get_dataset_num_buffers(dataset) == count
        assert acl.mdl.add_dataset_buffer(dataset, buffer) == (dataset, 0)
    assert [acl.mdl.get_dataset_buffer(dataset, place) for place in range(3)] == buffers
    assert acl.mdl.get_dataset_buffer(dataset, 3) == 0


def test_a_null_buffer_is_not_added(acl):
    dataset = acl.mdl.create_dataset()
    assert acl.mdl.add_dataset_buffer(dataset, 0) == (dataset, INVALID)
    assert acl.mdl.get_dataset_num_buffers(dataset) == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda acl, dataset, buffer, desc: acl.get_data_buffer_addr(buffer),
        lambda acl, dataset, buffer, desc: acl.destroy_data_buffer(buffer),
        lambda acl, dataset, buffer, desc: acl.mdl.get_dataset_num_buffers(dataset),
        lambda acl, dataset, buffer, desc: acl.mdl.destroy_dataset(dataset),
        lambda acl, dataset, buffer, desc: acl.get_tensor_desc_type(desc),
        lambda acl, dataset, buffer, desc: acl.destroy_tensor_desc(desc),
        lambda acl, dataset, buffer, desc: acl.get_data_buffer_addr(dataset),
    ],
)
def test_use_after_destruction_and_of_other_handles_is_found(acl, use):
    dataset, buffer = acl.mdl.create_dataset(), acl.create_data_buffer(64, 64)
    desc = acl.create_tensor_desc(0, [2, 3], 2)
    acl.destroy_data_buffer(buffer)
    acl.destroy_tensor_desc(desc)
    ok(acl.mdl.destroy_dataset(dataset))
    with breaks("model.dead-handle"):
        use(acl, dataset, buffer, desc)


def test_a_tensor_description_returns_its_values(acl):
    desc = acl.create_tensor_desc(9, [2, 3, 4], 2)
    assert acl.get_tensor_desc_type(desc) == 9
    assert acl.get_tensor_desc_format(desc) == 2
    assert acl.get_tensor_desc_num_dims(desc) == 3
    assert [acl.get_tensor_desc_dim_v2(desc, place) for place in range(3)] == [
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    assert acl.get_tensor_desc_dim_v2(desc, 3) == (0, INVALID)
    assert acl.get_tensor_desc_size(desc) == 2 * 3 * 4 * 8
    assert acl.get_tensor_desc_size(acl.create_tensor_desc(0, [-1, 3], 2)) == 0
    assert acl.create_tensor_desc(0, [-5], 2) == 0
    assert acl.create_tensor_desc(0, [-2], 2) != 0  # unknown rank


@pytest.mark.parametrize("dims", [3, "2,3", None, [2.5], {"a": 1}])
def test_dims_are_a_list_of_integers(acl, dims):
    with pytest.raises((TypeError, AttributeError)):
        acl.create_tensor_desc(0, dims, 2)


def test_a_dataset_keeps_a_copy_of_a_tensor_description(acl):
    dataset = acl.mdl.create_dataset()
    ok(acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(0, 0)))
    desc = acl.create_tensor_desc(0, [2, 3], 2)
    assert acl.mdl.set_dataset_tensor_desc(dataset, desc, 1) == (dataset, INVALID)
    assert acl.mdl.set_dataset_tensor_desc(dataset, desc, 0) == (dataset, 0)
    acl.destroy_tensor_desc(desc)
    own = acl.mdl.get_dataset_tensor_desc(dataset, 0)
    assert acl.get_tensor_desc_num_dims(own) == 2
    assert acl.mdl.get_dataset_tensor_desc(dataset, 1) == 0
    assert acl.mdl.set_dataset_tensor_desc(dataset, 0, 1) == (dataset, INVALID)
    assert acl.mdl.set_dataset_tensor_desc(dataset, 0, 0) == (dataset, 0)  # removes the description
    assert acl.mdl.get_dataset_tensor_desc(dataset, 0) == 0
    ok(acl.mdl.destroy_dataset(dataset))
    with breaks("model.dead-handle"):
        acl.get_tensor_desc_num_dims(own)


def test_buffers_and_datasets_outlive_the_executions_that_use_them(acl, tmp_path):
    loaded = Loaded(acl, static_om(tmp_path))
    stream = ok(acl.rt.create_stream())
    blocked = Blocked(stream)
    assert loaded.execute_async(stream) == 0
    for destroy in (
        lambda: acl.mdl.destroy_dataset(loaded.inputs.dataset),
        lambda: acl.mdl.destroy_dataset(loaded.outputs.dataset),
        lambda: acl.destroy_data_buffer(loaded.inputs.handles[0]),
        lambda: acl.destroy_data_buffer(loaded.outputs.handles[0]),
    ):
        with breaks("dataset.destroyed-in-use"):
            destroy()
    blocked.release()
    ok(acl.rt.synchronize_stream(stream))
    loaded.release()


def test_leftover_objects_are_reported_at_finalize(acl):
    acl.mdl.create_dataset()
    acl.create_data_buffer(0, 0)
    acl.mdl.create_desc()
    acl.mdl.create_config_handle()
    ok(acl.rt.reset_device(0))
    with breaks("process.finalize-leaks") as caught:
        acl.finalize()
    for kind in ("1 dataset", "1 data buffer", "1 model description", "1 load configuration"):
        assert kind in str(caught.value)
