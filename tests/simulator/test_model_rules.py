"""Each rule about models: a scenario that violates it, in strict and in lenient mode.

A scenario ends with the one call that violates its rule. In lenient mode that call returns the
table's result: a code if the simulator cannot continue, else a device's result.
"""

import warnings

import pytest
from runtime.support.images import shown_graph
from simulator.support.driving import MIB, Blocked, fill, ok
from simulator.support.models import Loaded, breaks, compile_to, rows, rows_om, static_om

from ascend_simulator import RULES, SimulatorWarning, report

SCENARIOS = {}
CAUTIONS = {"model.gear-not-set"}


def scenario(rule, lenient=0):
    """`lenient` is the result of the last call in lenient mode."""

    def enter(function):
        SCENARIOS[function.__name__] = rule, lenient, function
        return function

    return enter


@scenario("model.dead-handle", lenient=100000)
def uses_a_destroyed_dataset(acl, folder):
    dataset = acl.mdl.create_dataset()
    ok(acl.mdl.destroy_dataset(dataset))
    return acl.mdl.destroy_dataset(dataset)


@scenario("model.dead-handle", lenient=0)
def asks_a_destroyed_description(acl, folder):
    desc = acl.mdl.create_desc()
    ok(acl.mdl.destroy_desc(desc))
    return acl.mdl.get_num_inputs(desc)


@scenario("dataset.destroyed-in-use")
def destroys_a_dataset_in_use(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(loaded.execute_async())
    return acl.mdl.destroy_dataset(loaded.inputs.dataset)


@scenario("dataset.description-destroyed", lenient=None)
def destroys_the_description_that_a_dataset_has(acl, folder):
    dataset, desc = acl.mdl.create_dataset(), acl.create_tensor_desc(0, [2], 2)
    ok(acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(0, 0)))
    ok(acl.mdl.set_dataset_tensor_desc(dataset, desc, 0))
    return acl.destroy_tensor_desc(acl.mdl.get_dataset_tensor_desc(dataset, 0))


@scenario("model.memory-unaligned", lenient=(1, 0))
def loads_into_the_middle_of_a_line(acl, folder):
    work = ok(acl.rt.malloc(4 * MIB, 0))
    return acl.mdl.load_from_file_with_mem(static_om(folder), work + 32, 2 * MIB, 0, 0)


@scenario("model.dynamic-with-memory", lenient=(1 << 31, 0))
def plans_a_model_with_free_shapes(acl, folder):
    path = compile_to(folder, rows(), input_shape="x:-1,4")
    work = ok(acl.rt.malloc(MIB, 0))
    return acl.mdl.load_from_file_with_mem(path, work, MIB, 0, 0)


@scenario("model.other-context", lenient=107004)
def unloads_in_another_context(acl, folder):
    mid = ok(acl.mdl.load_from_file(static_om(folder)))
    ok(acl.rt.create_context(0))
    return acl.mdl.unload(mid)


@scenario("model.unload-while-executing")
def unloads_while_it_executes(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(loaded.execute_async())
    return acl.mdl.unload(loaded.id)


@scenario("model.weights-changed")
def writes_the_weights(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    fill(loaded.weights, b"other")
    return loaded.execute()


@scenario("model.short-buffer")
def passes_a_short_buffer(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], loaded.inputs.ptrs[0], 31))
    return loaded.execute()


@scenario("model.null-buffer", lenient=100000)
def passes_a_null_input(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], 0, 32))
    return loaded.execute()


@scenario("model.null-buffer", lenient=100000)
def passes_a_null_output_and_does_not_wait(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], 0, 24))
    return loaded.execute_async()


@scenario("model.overlapping-memory")
def puts_an_output_into_the_workspace(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], loaded.work, 24))
    return loaded.execute()


@scenario("model.busy")
def executes_on_two_streams(acl, folder):
    loaded = Loaded(acl, static_om(folder))
    ok(loaded.execute_async(ok(acl.rt.create_stream())))
    return loaded.execute_async(ok(acl.rt.create_stream()))


@scenario("model.no-tail")
def packs_tensors_too_tight(acl, folder):
    loaded = Loaded(acl, static_om(folder, 4))  # 64 bytes in
    block = ok(acl.rt.malloc(MIB, 0))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], block, 64))
    ok(acl.update_data_buffer(loaded.outputs.handles[0], block + 64, 48))
    return loaded.execute()


@scenario("model.other-gear")
def sets_the_gear_of_another_slot_last(acl, folder):
    loaded = Loaded(acl, rows_om(folder))
    ok(loaded.set_batch(8))
    other = loaded.buffers(loaded.inputs.sizes)
    ok(acl.mdl.set_dynamic_batch_size(loaded.id, other.dataset, 1, 4))
    return loaded.execute()


@scenario("model.gear-not-set")
def sets_no_gear(acl, folder):
    return Loaded(acl, rows_om(folder)).execute()


@scenario("model.aipp-not-set", lenient=507011)
def sets_no_parameters_of_images(acl, folder):
    conf = folder / "aipp.cfg"
    conf.write_text("aipp_op { aipp_mode: dynamic max_src_image_size: 24 }")
    model = shown_graph(1)
    path = compile_to(folder, model, input_shape="image:1,1,4,6", insert_op_conf=str(conf))
    return Loaded(acl, path).execute()


@scenario("model.gear-elsewhere")
def sets_the_gear_at_the_place_of_an_input(acl, folder):
    loaded = Loaded(acl, rows_om(folder))
    ok(loaded.set_batch(4))
    return acl.mdl.set_dynamic_batch_size(loaded.id, loaded.inputs.dataset, 0, 4)


@scenario("model.gear-content")
def sets_the_gear_of_another_model_in_the_same_buffer(acl, folder):
    path = rows_om(folder)
    loaded, other = Loaded(acl, path), Loaded(acl, path)
    ok(loaded.set_batch(8))
    ok(acl.mdl.set_dynamic_batch_size(other.id, loaded.inputs.dataset, 1, 4))
    return loaded.execute()


@scenario("model.gear-content", lenient=507011)
def writes_the_gear_itself(acl, folder):
    loaded = Loaded(acl, rows_om(folder))
    ok(loaded.set_batch(4))
    fill(loaded.inputs.ptrs[1], bytes(8))
    return loaded.execute()


@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name][0] not in CAUTIONS])
def test_strict_mode_raises(started, tmp_path, name):
    rule, _, run = SCENARIOS[name]
    acl = started()
    with breaks(rule):
        run(acl, tmp_path)
    ok(acl.rt.synchronize_device())


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name][0] in CAUTIONS])
def test_a_caution_only_warns(started, tmp_path, name, mode):
    rule, _, run = SCENARIOS[name]
    acl = started(mode=mode)
    with pytest.warns(SimulatorWarning, match=rule):
        assert run(acl, tmp_path) == 0


@pytest.mark.brute_force
@pytest.mark.parametrize("name", SCENARIOS)
def test_lenient_mode_counts_and_continues_as_a_device(started, tmp_path, name):
    rule, answer, run = SCENARIOS[name]
    acl = started(mode="lenient")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(acl, tmp_path) == answer
        acl.rt.synchronize_device()
    assert any(f"[{rule}]" in str(each.message) for each in caught)
    assert report().broken[rule] >= 1


def test_every_rule_about_models_has_a_scenario():
    rules = {rule for rule in RULES if rule.startswith(("model.", "dataset."))}
    assert {rule for rule, _, _ in SCENARIOS.values()} == rules


def test_a_blocked_stream_blocks_its_model(started, tmp_path):
    acl = started()
    loaded = Loaded(acl, static_om(tmp_path))
    one, two = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    blocked = Blocked(one)
    ok(loaded.execute_async(one))
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, one))
    ok(acl.rt.stream_wait_event(two, event))
    assert loaded.execute_async(two) == 0  # one after the other
    blocked.release()
    ok(acl.rt.synchronize_stream(two))
