"""The benchmark of bytes runs, and the fused model moves fewer of them."""

import re
import subprocess
import sys

import pytest
from support.servers import ROOT


@pytest.mark.slow
def test_the_fused_model_moves_fewer_bytes_than_the_ensemble():
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipelines"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = re.findall(r"^(ensemble|fused) +([\d,]+) +([\d,]+) +([\d,]+)$", finished.stdout, re.M)
    ensemble, fused = ([int(cell.replace(",", "")) for cell in cells] for _, *cells in sorted(rows))
    assert all(fewer < more for fewer, more in zip(fused, ensemble, strict=True))
