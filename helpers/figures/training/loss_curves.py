"""Two runs of the same training as curves, and how far apart they drift."""

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.figure import Figure

from helpers.figures.frame.chart import Chart
from helpers.style import FUSED, LIMIT, STYLE, TITLE_SIZE, UNFUSED


def loss_chart(unfused: Mapping[int, float], fused: Mapping[int, float], floor: float, where: str) -> Chart:
    """The losses of both runs over the steps, and below, on a logarithmic axis, the difference of each step's two.

    Args:
        unfused, fused: step -> loss, of the same steps.
        floor: the least mean loss that any model can have.
        where: the machine, such as `recorded("h200").label`.

    Raises:
        ValueError: no step, or not the same steps.
    """
    if not fused or unfused.keys() != fused.keys():
        raise ValueError(f"loss_chart takes two runs of the same steps, got {len(unfused)} and {len(fused)} steps")
    steps = list(fused)
    apart = [abs(fused[step] - unfused[step]) for step in steps]
    ends = f"{fused[steps[0]]:.2f} to {fused[steps[-1]]:.2f}"
    title = f"Fused or not, the loss falls from {ends}; no step's two differ by more than {max(apart):.0e}"
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 4.4))
        upper, lower = figure.add_axes((0.1, 0.42, 0.76, 0.47)), figure.add_axes((0.1, 0.11, 0.76, 0.22))
        upper.plot(steps, [unfused[step] for step in steps], color=UNFUSED, linewidth=5, solid_capstyle="round")
        upper.plot(steps, [fused[step] for step in steps], color=FUSED, linewidth=1.5)
        upper.axhline(floor, color=LIMIT, linewidth=1, linestyle="--")
        upper.set(ylabel="loss", ylim=(0, None), xlim=(steps[0], steps[-1] or 1))
        upper.text(1.01, floor, "least possible", transform=upper.get_yaxis_transform(), va="center")
        middle = len(steps) // 3
        upper.annotate(
            "unfused (wide) and fused (thin)",
            (steps[middle], fused[steps[middle]]),
            xytext=(30, 24),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": LIMIT},
        )
        upper.tick_params(labelbottom=False)
        lower.semilogy(steps, [each or None for each in apart], "o", color=LIMIT, markersize=3)
        lower.set(ylabel="difference", xlabel=f"step, on {where}", xlim=upper.get_xlim())
        figure.text(12 / 576, 1 - 16 / 316, title, size=TITLE_SIZE, weight="bold", va="center")
    return Chart(figure, f"{title}. {len(steps)} steps on {where}; no model's mean can be below {floor:.2f}.")
