"""The command atc: its flags, limits, codes, and the interface of its models."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from runtime.support.graphs import onnx_model
from simulator.conftest import SITE
from simulator.support.models import (
    FLOAT,
    SOC,
    compile_to,
    image,
    node,
    nonzero,
    rows,
    rows_om,
    static_om,
    texts,
    texts_om,
)

from ascend_simulator import atc
from ascend_simulator.compiler.flags import CompileFault
from ascend_simulator.models import om


def refusal(folder, model, /, **flags):
    """Return the code with which atc refuses a command line, and check that it leaves no file."""
    before = set(folder.glob("*.om"))
    with pytest.raises(CompileFault) as caught:
        compile_to(folder, model, **flags)
    assert set(folder.glob("*.om")) == before
    assert not list(folder.glob(".*"))
    return caught.value.code


BATCH = {"input_shape": "x:-1,4"}
DIMS = {"input_format": "ND", "input_shape": "ids:-1,-1;mask:-1,-1"}
IMAGE = {"input_shape": "x:1,1,-1,-1"}
MANY = ",".join(map(str, range(1, 102)))


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("code", "model", "flags"),
    [
        # how many gears, how many values, which values
        ("E10035", rows, {**BATCH, "dynamic_batch_size": "4"}),
        ("E10035", image, {**IMAGE, "dynamic_image_size": "4,4"}),
        ("E10035", texts, {**DIMS, "dynamic_dims": "1,2,1,2"}),
        ("E10036", rows, {**BATCH, "dynamic_batch_size": MANY}),
        ("E10037", texts, {**DIMS, "dynamic_dims": "1,2,1,2;1,2,1"}),
        ("E10037", image, {**IMAGE, "dynamic_image_size": "4,4;5"}),
        ("E10038", rows, {**BATCH, "dynamic_batch_size": "1,0"}),
        ("E10038", texts, {**DIMS, "dynamic_dims": "1,2,1,2;1,-2,1,2"}),
        ("E10039", rows, {**BATCH, "dynamic_batch_size": "1,2,1"}),
        ("E10039", image, {**IMAGE, "dynamic_image_size": "4,4;4,4"}),
        ("E10045", texts, {**DIMS, "dynamic_dims": "1;2"}),
        ("E10046", texts, {**DIMS, "dynamic_dims": "1,2,1;2,2,1"}),
        ("E10001", texts, {**DIMS, "dynamic_dims": "1,2,1,2,9;2,2,1,2,9"}),
        ("E10020", image, {**IMAGE, "dynamic_image_size": "4,4,4;5,5,5"}),
        ("E10033", rows, {**BATCH, "dynamic_batch_size": "1,two"}),
        ("E10033", rows, {**BATCH, "dynamic_batch_size": "1;2;4"}),
        ("E10033", rows, {**BATCH, "dynamic_batch_size": "1,2,,"}),
        ("E10033", rows, {**BATCH, "dynamic_batch_size": "1,1_0"}),
        ("E10001", texts, {**DIMS, "dynamic_dims": "1,2,1,two;2,2,2,2"}),
        ("E10004", rows, {**BATCH, "dynamic_batch_size": ""}),
        # one family only, and where its -1 may be
        (
            "E10009",
            rows,
            {**BATCH, "dynamic_batch_size": "1,2", "dynamic_dims": "1;2", "input_format": "ND"},
        ),
        ("E10009", image, {**IMAGE, "dynamic_image_size": "4,4;5,5", "dynamic_batch_size": "1,2"}),
        ("E10055", rows, {**BATCH, "input_shape_range": "x:[1~4,4]"}),
        ("E10031", rows, {"input_shape": "x:2,4", "dynamic_batch_size": "1,2"}),
        ("E10040", texts, {**DIMS, "input_shape": "ids:1,2;mask:1,2", "dynamic_dims": "1;2"}),
        ("E10040", rows, {"input_shape": "x:1~8,4", "dynamic_batch_size": "1,2"}),
        ("E10018", image, {**IMAGE, "dynamic_batch_size": "1,2"}),
        ("E10018", texts, {"input_shape": "ids:-1,-1;mask:-1,-1", "dynamic_batch_size": "1,2"}),
        ("E10019", texts, {"input_shape": "ids:-1,2;mask:-1,2", "dynamic_image_size": "1,2;3,4"}),
        ("E10001", texts, {**DIMS, "input_format": "NCHW", "dynamic_dims": "1,2,1,2;2,2,2,2"}),
        ("E10001", image, {**IMAGE, "input_format": "ND", "dynamic_image_size": "1,2;3,4"}),
        ("E11005", texts, {"input_shape": "ids:-1,4", "dynamic_batch_size": "1,2"}),
        # --input_shape
        ("E10002", rows, {"input_shape": "x"}),
        ("E10002", rows, {"input_shape": "x:two,4"}),
        ("E10002", rows, {"input_shape": "x:1~2~3,4"}),
        ("E10002", rows, {"input_shape": "x:1_0,4"}),
        ("E10002", rows, {"input_shape": ":1,4"}),
        ("E10002", rows, {"input_shape": "x:1,4;x:2,4"}),
        ("E10011", rows, {"input_shape": "x:0,4"}),
        ("E10011", rows, {"input_shape": "x:-2,4"}),
        ("E10011", rows, {"input_shape": "x:5~3,4"}),
        ("E10016", rows, {"input_shape": "z:1,4"}),
        ("E10049", rows, {"input_shape": "x:1,4,1"}),
        ("E10050", rows, {"input_shape": "x:1,5"}),
        # the other flags
        ("E10054", rows, {"soc_version": ""}),
        ("E10054", rows, {"model": ""}),
        ("E10001", rows, {"soc_version": "Kunpeng"}),
        ("E10001", rows, {"soc_version": "Ascend910B9"}),
        ("E10001", rows, {"soc_version": "ascend910B3"}),
        ("E10001", rows, {"framework": "3"}),
        ("E10001", rows, {"mode": "30"}),
        ("E10001", rows, {"input_format": "CHWN"}),
        ("E10001", rows, {"precision_mode_v2": "mixed_float16"}),
        ("E10056", rows, {"precision_mode": "force_fp16"}),
        ("E10006", rows, {"disable_reuse_memory": "2"}),
        ("E10001", rows, {"no_such_flag": "1"}),
        ("E10001", rows, {"output_type": "INT8"}),
        ("E10055", rows, {"external_weight": "1"}),
        ("E10055", rows, {"input_fp16_nodes": "x", "input_shape": "x:2,4"}),
        ("E10055", rows, {"output_type": "FP16", "input_shape": "x:2,4"}),
        (
            "E10016",
            rows,
            {"input_fp16_nodes": "z", "precision_mode_v2": "fp16", "input_shape": "x:2,4"},
        ),
        ("E10001", rows, {"log": "verbose"}),
        ("E10001", rows, {"op_select_implmode": "fast"}),
        ("E10001", rows, {"optypelist_for_implmode": "Pooling"}),
        ("E10001", rows, {"op_compiler_cache_mode": "on"}),
        ("E10001", rows, {"op_debug_level": "5"}),
        ("E10001", rows, {"buffer_optimize": "on"}),
        ("E10005", rows, {"enable_single_stream": "1"}),
        ("E10006", rows, {"deterministic": "true"}),
        ("E10006", rows, {"enable_small_channel": "2"}),
        ("E10001", rows, {"model": "my model.onnx"}),
        ("E10001", rows, {"output": "m@1", "input_shape": "x:2,4"}),
        ("E10022", rows, {"output": "/tmp/", "input_shape": "x:2,4"}),
        ("E10410", rows, {"model": "/no/such.onnx"}),
        ("E10001", rows, {"output": "/no/such/folder/m", "input_shape": "x:2,4"}),
    ],
)
def test_atc_refuses_with_the_code_of_its_list(tmp_path, code, model, flags):
    assert refusal(tmp_path, model(), **flags) == code


@pytest.mark.parametrize(
    ("model", "flags", "text"),
    [
        (rows, {**BATCH, "dynamic_batch_size": "4"}, "--dynamic_batch_size: found 1 gear"),
        (rows, {**BATCH, "dynamic_batch_size": "1;2"}, "--dynamic_batch_size=1;2: found"),
        (rows, {**BATCH, "dynamic_batch_size": MANY}, "--dynamic_batch_size: found 101 gears"),
        (image, {**IMAGE, "dynamic_image_size": "4,4;5"}, "--dynamic_image_size=4,4;5: gear (5,)"),
        (image, {**IMAGE, "dynamic_image_size": "4,4;4,4"}, "=4,4;4,4: found a repeated gear"),
        (
            texts,
            {**DIMS, "dynamic_dims": "1,2,1,2;1,0,1,2"},
            "--dynamic_dims=1,2,1,2;1,0,1,2: found 0",
        ),
        (texts, {**DIMS, "dynamic_dims": "1,2,1;2,2,1"}, "--dynamic_dims: found 3 values"),
        (
            image,
            {**IMAGE, "dynamic_image_size": "4,4;5,5", "dynamic_batch_size": "1,2"},
            "found --dynamic_batch_size and --dynamic_image_size, expected one of them",
        ),
        (image, {**IMAGE, "dynamic_batch_size": "1,2"}, "--dynamic_batch_size: found -1 in 'x'"),
        (
            rows,
            {"log": "verbose"},
            "--log=verbose: expected one of default, debug, info, warning, error, null",
        ),
        (rows, {"disable_reuse_memory": "2"}, "--disable_reuse_memory=2: expected one of 0, 1"),
        (rows, {"output": "/tmp/"}, "--output=/tmp/: expected a file name"),
    ],
)
def test_a_refusal_names_the_flag_and_what_was_found(tmp_path, model, flags, text):
    with pytest.raises(CompileFault, match=re.escape(text)):
        compile_to(tmp_path, model(), **flags)


def test_blanks_around_a_name_are_stripped(tmp_path):
    path = compile_to(tmp_path, texts(), input_shape="ids:2,4; mask:2,4")
    assert om.read(path).manifest.family == "static"


def test_paths_may_be_chinese(tmp_path):
    onnx.save(rows(2), tmp_path / "模型.onnx")
    files = [f"--model={tmp_path / '模型.onnx'}", f"--output={tmp_path / '模型'}"]
    assert atc.run(["--framework=5", f"--soc_version={SOC}", *files]) == tmp_path / "模型.om"


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3", "Ascend910_9392"])
def test_documented_chips_are_accepted(tmp_path, soc):
    path = compile_to(tmp_path, rows(2), soc_version=soc, precision_mode_v2="fp16")
    assert om.read(path).manifest.soc == soc


@pytest.mark.parametrize("soc", ["Ascend310", "Ascend310P3"])
def test_origin_is_refused_on_matrix_units_without_fp32(tmp_path, soc):
    with pytest.raises(CompileFault, match=f"MatMul of FP32: the matrix units of {soc} support"):
        compile_to(tmp_path, rows(2), soc_version=soc)
    assert compile_to(tmp_path, texts(), "texts", soc_version=soc)  # none of FP32
    assert compile_to(tmp_path, rows(2), soc_version="Ascend310B1")


def test_the_simulated_chip_is_accepted(tmp_path, monkeypatch):
    with pytest.raises(CompileFault, match=r"expected one of Ascend310, .*, AscendSimulator$"):
        compile_to(tmp_path, rows(2), soc_version="Simulated9")
    monkeypatch.setenv("ASCEND_SIMULATOR_SOC", "Simulated9")
    assert compile_to(tmp_path, rows(2), soc_version="Simulated9")


def test_atc_needs_a_framework(tmp_path):
    with pytest.raises(CompileFault) as caught:
        atc.run(["--model=m.onnx", "--output=m", f"--soc_version={SOC}"])
    assert caught.value.code == "E10007"


@pytest.mark.parametrize("argument", ["model.onnx", "-model=m", "--", "--=5"])
def test_atc_takes_flags_only(argument):
    with pytest.raises(CompileFault) as caught:
        atc.run([argument])
    assert caught.value.code == "E10001"


def test_atc_takes_256_gears_for_a_950_and_100_for_others(tmp_path):
    path = rows_om(tmp_path, MANY, soc_version="Ascend950PR_9599")
    assert len(om.read(path).manifest.shapes) == 101
    hundred = MANY.rsplit(",", 1)[0]
    assert len(om.read(rows_om(tmp_path, hundred)).manifest.shapes) == 100


def test_a_name_and_a_value_may_be_two_arguments(tmp_path):
    onnx.save(rows(2), tmp_path / "m.onnx")
    arguments = ["--framework", "5", "--soc_version", SOC, "--log", "error"]
    files = ["--model", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "m")]
    assert atc.run([*arguments, *files]) == tmp_path / "m.om"


def test_flags_that_only_tune_a_compiler_change_nothing(tmp_path):
    plain = Path(static_om(tmp_path)).read_bytes()
    tuned = compile_to(
        tmp_path,
        rows(),
        "static",
        input_shape="x:2,4",
        op_select_implmode="high_precision",
        aicore_num="8|",
        external_weight="0",
    )
    assert Path(tuned).read_bytes() == plain


def test_gears_keep_the_order_of_the_flag(tmp_path):
    manifest = om.read(rows_om(tmp_path, "8,1,4")).manifest
    assert [shapes.gear for shapes in manifest.shapes] == [(8,), (1,), (4,)]
    assert manifest.shapes[manifest.largest].gear == (8,)


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (rows, {**BATCH, "dynamic_batch_size": "1,2,"}),
        (texts, {**DIMS, "dynamic_dims": "1,2,1,2;2,2,2,2;"}),
    ],
)
def test_a_separator_may_end_a_list_of_gears(tmp_path, model, flags):
    assert len(om.read(compile_to(tmp_path, model(), **flags)).manifest.shapes) == 2


def two_inputs():
    """a [n, 2], b [m, 2], with independent dims."""
    return onnx_model(
        [node("ReduceSum", ["a"], ["y"]), node("ReduceSum", ["b"], ["z"])],
        [("a", FLOAT, ["n", 2]), ("b", FLOAT, ["m", 2])],
        [("y", FLOAT, [1, 1]), ("z", FLOAT, [1, 1])],
    )


def test_a_gear_is_a_tuple_in_the_order_of_input_shape(tmp_path):
    path = compile_to(
        tmp_path,
        two_inputs(),
        input_format="ND",
        input_shape="b:-1,2;a:-1,2",
        dynamic_dims="1,10;2,20;3,5",
    )
    manifest = om.read(path).manifest
    assert [shapes.inputs for shapes in manifest.shapes] == [
        ((10, 2), (1, 2)),
        ((20, 2), (2, 2)),
        ((5, 2), (3, 2)),
    ]


def test_one_batch_gear_sets_the_first_dim_of_every_input(tmp_path):
    path = compile_to(tmp_path, two_inputs(), input_shape="a:-1,2;b:-1,2", dynamic_batch_size="1,6")
    assert om.read(path).manifest.shapes[1].inputs == ((6, 2), (6, 2))


def test_an_input_that_is_not_listed_keeps_its_fixed_dims(tmp_path):
    model = two_inputs()
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 7
    path = compile_to(tmp_path, model, input_shape="a:-1,2", dynamic_batch_size="1,6")
    assert om.read(path).manifest.shapes[1].inputs == ((6, 2), (7, 2))


@pytest.mark.parametrize(
    ("compiled", "family", "dims", "planned"),
    [
        (static_om, "static", (2, 4), True),
        (rows_om, "batch", (-1, 4), True),
        (
            lambda folder: compile_to(folder, rows(), input_shape="x:-1,4"),
            "dynamic",
            (-1, 4),
            False,
        ),
        (lambda folder: compile_to(folder, rows()), "dynamic", (-1, 4), False),
        (lambda folder: compile_to(folder, nonzero(), input_shape="x:5"), "dynamic", (5,), False),
    ],
)
def test_the_flags_determine_the_models_interface(tmp_path, compiled, family, dims, planned):
    manifest = om.read(compiled(tmp_path)).manifest
    assert manifest.family == family
    assert manifest.inputs[0].dims == dims
    assert (manifest.work_bytes > 0) == planned


def test_ranges_are_kept(tmp_path):
    path = compile_to(tmp_path, rows(), input_shape="x:2~8,4")
    (tensor,) = om.read(path).manifest.inputs
    assert tensor.ranges == ((2, 8), (4, 4))


def test_gears_are_refused_for_dims_that_depend_on_data(tmp_path):
    flags = {"input_shape": "x:-1", "dynamic_batch_size": "1,2"}
    assert refusal(tmp_path, nonzero(), **flags) == "E10055"


def test_gears_are_refused_for_a_graph_with_a_branch(tmp_path):
    branch = onnx.helper.make_graph(
        [node("Identity", ["x"], ["inner"])],
        "branch",
        [],
        [onnx.helper.make_tensor_value_info("inner", FLOAT, None)],
    )
    model = onnx_model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["truth"], to=9),
            node("If", ["truth"], ["y"], then_branch=branch, else_branch=branch),
        ],
        [("x", FLOAT, ["n", 4])],
        [("y", FLOAT, ["n", 4])],
    )
    assert refusal(tmp_path, model, **BATCH, dynamic_batch_size="1,2") == "E10055"
    path = compile_to(tmp_path, model, input_shape="x:2,4")
    assert om.read(path).manifest.family == "dynamic"


def test_gears_are_refused_for_a_quantised_model(tmp_path):
    model = onnx_model(
        [node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])],
        [("x", FLOAT, ["n", 4])],
        [("y", onnx.TensorProto.UINT8, ["n", 4])],
    )
    assert refusal(tmp_path, model, **BATCH, dynamic_batch_size="1,2") == "E10055"
    assert om.read(compile_to(tmp_path, model, input_shape="x:2,4")).manifest.family == "static"


def test_a_310b_has_no_free_shapes(tmp_path):
    assert refusal(tmp_path, rows(), soc_version="Ascend310B1") == "E10055"
    assert rows_om(tmp_path, soc_version="Ascend310B1")


@pytest.mark.parametrize("opset", [10, 19])
def test_opsets_outside_11_to_18_are_refused(tmp_path, opset):
    model = rows(2)
    model.opset_import[0].version = opset
    assert refusal(tmp_path, model) == "E10501"


def test_operators_that_are_not_onnx_s_are_refused(tmp_path):
    model = rows(2)
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert refusal(tmp_path, model) == "E10501"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (onnx.TensorProto.INT64, {"input_fp16_nodes": "x"}),
        (onnx.TensorProto.DOUBLE, {"input_fp16_nodes": "x"}),
        (onnx.TensorProto.DOUBLE, {"output_type": "FP16"}),
        (onnx.TensorProto.DOUBLE, {"output_type": "FP32"}),
        (onnx.TensorProto.FLOAT16, {"output_type": "FP32"}),
    ],
)
def test_impossible_input_and_output_types_are_refused(tmp_path, kind, flags):
    model = onnx_model([node("Identity", ["x"], ["y"])], [("x", kind, [2])], [("y", kind, [2])])
    assert refusal(tmp_path, model, precision_mode_v2="fp16", **flags) == "E10055"


def test_types_that_the_graph_already_has_are_accepted(tmp_path):
    kind = onnx.TensorProto.FLOAT16
    model = onnx_model([node("Identity", ["x"], ["y"])], [("x", kind, [2])], [("y", kind, [2])])
    flags = {"input_fp16_nodes": "x", "output_type": "FP16", "precision_mode_v2": "fp16"}
    manifest = om.read(compile_to(tmp_path, model, **flags)).manifest
    assert [each.dtype for each in (*manifest.inputs, *manifest.outputs)] == [1, 1]


def test_strings_are_refused(tmp_path):
    string = onnx.TensorProto.STRING
    model = onnx_model([node("Identity", ["x"], ["y"])], [("x", string, [2])], [("y", string, [2])])
    assert refusal(tmp_path, model) == "E10501"


def test_shapes_that_do_not_fit_the_graph_are_refused(tmp_path):
    model = onnx_model(
        [node("Add", ["a", "b"], ["y"])],
        [("a", FLOAT, ["n", 2]), ("b", FLOAT, ["m", 2])],
        [("y", FLOAT, ["k", 2])],
    )
    assert refusal(tmp_path, model, input_shape="a:2,2;b:3,2") == "E10059"


def test_a_file_that_is_not_onnx_is_refused(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(CompileFault) as caught:
        atc.run(
            [
                "--framework=5",
                f"--model={tmp_path / 'bad.onnx'}",
                "--output=m",
                "--soc_version=" + SOC,
            ]
        )
    assert caught.value.code == "E10041"


def test_names_of_outputs_say_node_and_port(tmp_path):
    names = [tensor.name for tensor in om.read(texts_om(tmp_path)).manifest.outputs]
    assert names == ["sum:0:total", "mul:0:kept"]


def test_an_output_may_be_an_input_or_a_constant(tmp_path):
    model = onnx_model(
        [], [("x", FLOAT, [2])], [("x", FLOAT, [2]), ("c", FLOAT, [1])], {"c": np.float32([1])}
    )
    for precision in ("origin", "fp16"):
        path = compile_to(tmp_path, model, precision_mode_v2=precision)
        assert [tensor.name for tensor in om.read(path).manifest.outputs] == ["x:0:x", "c:0:c"]


def test_the_command_says_simulator_and_leaves_a_file(tmp_path, capsys):
    onnx.save(rows(2), tmp_path / "m.onnx")
    arguments = ["--framework=5", f"--model={tmp_path / 'm.onnx'}", f"--soc_version={SOC}"]
    assert atc.main([*arguments, f"--output={tmp_path / 'm'}"]) == 0
    reported = capsys.readouterr().out
    assert "simulator" in reported.splitlines()[0]
    assert reported.splitlines()[-1] == "ATC run success, welcome to the next use."
    assert (tmp_path / "m.om").is_file()


def test_the_command_has_help_and_fails_with_code_and_reason(capsys):
    assert atc.main(["--help"]) == 0
    assert "--precision_mode_v2" in capsys.readouterr().out
    assert atc.main(["--framework=5"]) == 1
    assert "E10054: --model is missing or empty" in capsys.readouterr().err


def test_invalid_settings_are_named(capsys, monkeypatch):
    monkeypatch.setenv("ASCEND_SIMULATOR_COMPILE_MS", "long")
    assert atc.main(["--framework=5"]) == 2
    assert "ASCEND_SIMULATOR_COMPILE_MS" in capsys.readouterr().err


def test_compile_ms_delays_atc(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_SIMULATOR_COMPILE_MS", "20")
    begin = time.perf_counter()
    static_om(tmp_path)
    assert time.perf_counter() - begin >= 0.02


@pytest.mark.brute_force
def test_atc_is_a_command(tmp_path):
    onnx.save(rows(2), tmp_path / "m.onnx")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(SITE.parents[1]),
        "ASCEND_SIMULATOR_COMPILE_MS": "1",
    }
    done = subprocess.run(
        [
            SITE / "bin/atc",
            *("--framework=5", f"--model={tmp_path / 'm.onnx'}", f"--output={tmp_path / 'm'}"),
            f"--soc_version={SOC}",
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert om.read(str(tmp_path / "m.om")).manifest.precision == "fp16"
