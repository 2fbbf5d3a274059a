"""Draw where classes changed: the realized model's compared with the float model's."""

from __future__ import annotations

from quantpipe.report.figures.canvas import BAD, MARK, QUIET, Canvas
from quantpipe.types.figures import ConfusionFigure


def confusion(found: ConfusionFigure) -> str:
    """Return the samples that got another class, by the class before and after."""
    classes, counts = found["classes"], found["counts"]
    size = len(classes)
    with Canvas(
        min(4.6, 1.6 + 0.28 * size), min(4.2, 1.2 + 0.28 * size), "Classes of the float and the realized model"
    ) as canvas:
        ax = canvas.axes[0]
        ax.grid(visible=False)
        for row in range(size):
            for column in range(size):
                number = counts[row][column]
                if number:
                    colour = MARK if row == column else BAD
                    ax.annotate(str(number), (column, row), ha="center", va="center", size=8, color=colour)
        ax.set_xticks(range(size), [str(c) for c in classes], size=7)
        ax.set_yticks(range(size), [str(c) for c in classes], size=7)
        ax.set_xlim(-0.5, size - 0.5)
        ax.set_ylim(size - 0.5, -0.5)
        ax.plot([-0.5, size - 0.5], [-0.5, size - 0.5], color=QUIET, linewidth=0.4)
        ax.set_xlabel("class of the realized model")
        ax.set_ylabel("class of the float model")
        return canvas.svg()
