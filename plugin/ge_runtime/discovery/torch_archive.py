"""Copies archives of torch.export without the pickles that torch would execute."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile, ZipFile

from ge_runtime.engines.torch import SAMPLE_INPUTS, TABLES_OF_TENSORS, pickled_tensor
from ge_runtime.errors import ArtifactFault


def copy_archive(file: Path, copy: Path) -> Path:
    """Copy a .pt2 archive with empty example inputs, and return the copy.

    torch.export.load unpickles the example inputs, and weights or constants that are marked as
    pickled. A pickle can execute any code. The graph does not need the example inputs.

    Raises:
        ArtifactFault: The file is no .pt2 archive, or has pickled weights.
    """
    try:
        with ZipFile(file) as archive, ZipFile(copy, "w") as target:
            names = archive.namelist()
            if any(name.endswith(("/constants.pkl", "/data.pkl")) for name in names):
                raise ArtifactFault(
                    f"{file}: found a TorchScript or pickled file, expected an archive of "
                    "torch.export; load it in torch, and save "
                    "`torch.export.save(torch.export.export(model, inputs), 'model.pt2')`"
                )
            if not any(name.endswith("/models/model.json") for name in names):
                raise ArtifactFault(
                    f"{file}: found no models/model.json, expected an archive of torch.export of "
                    "torch 2.8 or newer; save it again with `torch.export.save`"
                )
            for name in names:
                content = archive.read(name)
                if name.endswith(TABLES_OF_TENSORS) and (pickled := pickled_tensor(content)):
                    raise ArtifactFault(
                        f"{file}: found {pickled} as a pickle, which can execute any code; "
                        "expected tensors. Save the program without objects or tensor subclasses"
                    )
                target.writestr(name, b"" if SAMPLE_INPUTS in f"/{name}" else content)
    except (BadZipFile, OSError, ValueError) as error:
        raise ArtifactFault(f"{file}: found no readable .pt2 archive: {error}") from error
    return copy
