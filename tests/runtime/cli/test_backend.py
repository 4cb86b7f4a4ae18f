"""`ge-runtime backend`: the files that it writes."""

import ast

from ge_runtime.cli import main


def test_the_backend_is_a_folder_with_a_model(tmp_path, capsys):
    assert main(["backend", str(tmp_path)]) == 0
    file = tmp_path / "ge" / "model.py"
    assert capsys.readouterr().out == f"{file}\n"
    (model,) = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    assert model.name == "TritonPythonModel"


def test_writing_it_again_changes_nothing(tmp_path):
    main(["backend", str(tmp_path)])
    first = (tmp_path / "ge" / "model.py").read_bytes()
    assert main(["backend", str(tmp_path)]) == 0
    assert (tmp_path / "ge" / "model.py").read_bytes() == first


def test_a_missing_directory_is_refused(tmp_path, capsys):
    assert main(["backend", str(tmp_path / "nowhere")]) == 2
    expected = "nowhere: found no such folder, expected Triton's --backend-directory, by default "
    assert expected in capsys.readouterr().err
