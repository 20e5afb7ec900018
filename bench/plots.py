"""Pictures of what was measured: medians by number of Services, as SVG; needs the dependency group `bench`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.changes import ONE_ENDPOINT
from bench.new_flows import CONNTRACK, NEW_FLOWS, NO_RULES
from bench.samples import Cell, Sample, medians
from bench.whole_command import FULL_SYNC

_PLOTS: Sequence[tuple[str, str, Mapping[str, str], float, str]] = (
    ("full-sync", FULL_SYNC, {"whole": "-", "floor": ":"}, 1.0, "seconds (dotted: the floor)"),
    (
        "one-endpoint",
        ONE_ENDPOINT,
        {"whole": "-", "floor": ":", "smallest input": "--"},
        1e3,
        "milliseconds (dotted: the floor; dashed: the smallest input)",
    ),
    ("new-flows", NEW_FLOWS, {"median": "-"}, 1.0, "microseconds, median"),
)
"""Name of the file, scenario, measures with the style of their lines, scale of values, label of the axis."""

_COLOURS = {
    ("nft", "linear"): "#c0392b",
    ("nft", "tree"): "#e59866",
    ("legacy", "linear"): "#1f618d",
    ("legacy", "tree"): "#7fb3d5",
}
_OTHER = "#239b56"
_WITHOUT_SERVICES = {NO_RULES: "--", CONNTRACK: "-."}


def write_plots(samples: Sequence[Sample], folder: Path) -> Sequence[Path]:
    """Write a picture for each scenario that has one and was measured with two sizes at least."""
    # Neither a date nor random ids: the same values make the same file.
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bench"
    written = []
    for name, scenario, styles, scale, label in _PLOTS:
        found = {cell: measures for cell, measures in medians(samples).items() if cell.scenario == scenario}
        if len({cell.services for cell in found if cell.dispatch not in _WITHOUT_SERVICES}) > 1:
            path = folder / f"{name}.svg"
            _plot(found, styles, scale, f"{scenario}: {label}", path)
            written.append(path)
    return written


def _plot(
    found: Mapping[Cell, Mapping[str, float]], styles: Mapping[str, str], scale: float, title: str, path: Path
) -> None:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    lines: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        lines.setdefault((cell.backend, cell.dispatch), []).append(cell)
    for (backend, dispatch), cells in lines.items():
        colour = _COLOURS.get((backend, dispatch), _OTHER)
        name = dispatch if backend in dispatch else f"{backend}, {dispatch}"
        for measure, style in styles.items():
            values = [found[cell][measure] * scale for cell in cells]
            if dispatch in _WITHOUT_SERVICES:
                axes.axhline(values[0], color="#909497", linestyle=_WITHOUT_SERVICES[dispatch], label=dispatch)
            else:
                label = name if style == "-" else None
                axes.plot([cell.services for cell in cells], values, style, marker=".", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="Services, of 5 endpoints each", title=title)
    axes.title.set_fontsize(10)
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
