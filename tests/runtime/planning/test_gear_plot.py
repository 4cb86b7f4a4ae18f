import sys

import pytest
from runtime.planning import brute

from ge_runtime.errors import RuntimeFault
from ge_runtime.planning.gear_report import compare, draw
from ge_runtime.planning.size_demand import SizeDemand

AXES = ("batch", "height", "width")


def demand_of(axes):
    counted = {(size,) * axes: 40 // size for size in (1, 2, 5, 30)}
    return SizeDemand.of(brute.histogram_of(counted, AXES[:axes]))


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("axes", "counts"), [(1, [3]), (2, [3]), (1, [1]), (1, range(1, 5)), (3, range(1, 4))]
)
def test_plots_are_png_files(tmp_path, axes, counts):
    demand = demand_of(axes)
    draw(tmp_path / "gears.png", demand, compare(demand, counts))
    assert (tmp_path / "gears.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.brute_force
def test_plot_without_padding(tmp_path):
    demand = SizeDemand.of(brute.histogram_of({(7,): 3}, ["tokens"]))
    draw(tmp_path / "gears.png", demand, compare(demand, [1]))
    assert (tmp_path / "gears.png").stat().st_size > 0


@pytest.mark.brute_force
def test_a_plot_of_three_axes_is_refused(tmp_path):
    demand = demand_of(3)
    with pytest.raises(RuntimeFault, match="found 3 axes, expected 1 or 2"):
        draw(tmp_path / "gears.png", demand, compare(demand, [2]))
    assert not list(tmp_path.iterdir())


def test_a_plot_without_matplotlib_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    demand = demand_of(1)
    with pytest.raises(RuntimeFault, match=r"pip install 'ge-runtime\[plot\]'"):
        draw(tmp_path / "gears.png", demand, compare(demand, [2]))
