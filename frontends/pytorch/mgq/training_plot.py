"""Curves of training logs as an SVG picture, and as TensorBoard's event files."""

import time

from mgq.errors import UserError
from mgq.files import whole_file
from mgq.training_log import SPEED

FIRST = (
    "loss",
    "grad_norm",
    "learning_rate",
    SPEED,
)  # panels, in this order; then all others by name
COLUMNS = 2
PANEL = (5.6, 2.8)  # inches
MARKED = 50  # points that still get a dot each


def panels(names):
    """Titles of the panels; eval_loss stands in the panel of the loss."""
    own = sorted(name for name in names if name not in (*FIRST, "eval_loss"))
    first = [name for name in FIRST if name in names or (name == "loss" and "eval_loss" in names)]
    return first + own


def draw(axes, series, name, run, number):
    """The curve of `name` of run `number`, and on the panel of the loss that of eval_loss."""
    color = f"C{number % 10}"
    if name in series:
        steps, values = series[name]
        dots = "o" if len(steps) <= MARKED else ""
        axes.plot(
            steps,
            values,
            color=color,
            linewidth=1,
            marker=dots,
            markersize=2,
            label=run,
            gid=f"curve-{name}-{number}",
        )
    if name == "loss" and "eval_loss" in series:
        steps, values = series["eval_loss"]
        label = f"{run} eval_loss" if run else "eval_loss"
        axes.plot(
            steps,
            values,
            "D--",
            color=color,
            linewidth=1,
            markersize=3,
            alpha=0.7,
            label=label,
            gid=f"curve-eval_loss-{number}",
        )


def plot(runs, path):
    """Draws runs (name -> series) into an SVG file. Equal logs give equal bytes."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    titles = panels({name for series in runs.values() for name in series})
    rows = -(-len(titles) // COLUMNS)
    with pyplot.rc_context(
        {"svg.hashsalt": "mgq", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
    ):
        size = PANEL[0] * min(COLUMNS, len(titles)), PANEL[1] * rows
        figure, grid = pyplot.subplots(
            rows, min(COLUMNS, len(titles)), squeeze=False, figsize=size, layout="constrained"
        )
        for axes, name in zip(grid.flat, titles):
            axes.set_title(name)
            axes.set_xlabel("step")
            for i, (run, series) in enumerate(runs.items()):
                draw(axes, series, name, run if len(runs) > 1 else None, i)
            if len(runs) > 1 or (
                name == "loss" and any("eval_loss" in series for series in runs.values())
            ):
                axes.legend(fontsize=7)
        for axes in grid.flat[len(titles) :]:
            axes.set_visible(False)
        try:
            with whole_file(path) as temporary:
                figure.savefig(temporary, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


class Events:
    """TensorBoard's event file of one run."""

    def __init__(self, folder):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = event_pb2, summary_pb2
        try:
            self.writer = EventFileWriter(str(folder))
        except OSError as error:
            raise UserError(f"cannot write '{folder}': {error.strerror}") from error

    def write(self, steps, first):
        """Writes `steps` (step -> scalars) from step `first` on; what was there from it on is void."""
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        self.writer.add_event(
            self.event.Event(wall_time=time.time(), step=first, session_log=start)
        )
        for step, values in steps.items():
            if step >= first:
                pairs = [
                    self.summary.Summary.Value(tag=name, simple_value=value)
                    for name, value in values.items()
                ]
                summary = self.summary.Summary(value=pairs)
                self.writer.add_event(
                    self.event.Event(wall_time=time.time(), step=step, summary=summary)
                )
        self.writer.flush()

    def close(self):
        self.writer.close()
