"""mgq-log: curves of training logs, for TensorBoard or as an SVG picture."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from mgq.errors import UserError, run
from mgq.training_log import TrainingLog
from mgq.training_plot import Events, plot


def seconds(text):
    """A positive number of seconds."""
    value = float(text)
    if not value > 0:
        raise ValueError
    return value


def make_parser():
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-log", description=__doc__)
    parser.add_argument(
        "logs", nargs="+", metavar="FILE.jsonl", help="what --log-file wrote; several are compared"
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="write event files to DIR, of several logs to DIR/NAME"
    )
    parser.add_argument("--plot", metavar="FILE.svg")
    parser.add_argument(
        "--follow", action="store_true", help="go on as the logs grow, until Ctrl-C"
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2,
        metavar="SECONDS",
        help="between looks, with --follow",
    )
    return parser


def parse_arguments(argv):
    """Options that contradict each other are wrong usage."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not args.tensorboard and not args.plot:
        parser.error("nothing to do: give --tensorboard DIR or --plot FILE.svg")
    return args


def run_names(paths):
    """A different name for each log: of its file, with as many folders as that takes."""
    parts = [Path(path).absolute().with_suffix("").parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UserError("the same log is given twice")
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names


class Report:
    """Logs and what becomes of them."""

    def __init__(self, args):
        self.args = args
        self.names = run_names(args.logs)
        self.logs = [TrainingLog(path) for path in args.logs]
        self.events = [None] * len(self.logs)

    def missing(self):
        """The logs that are not there."""
        return [log.path for log in self.logs if not log.path.exists()]

    def update(self, last):
        """Reads what is new; writes what it changes. Returns whether something did."""
        firsts = [
            log.update(last) if log.path.exists() or not self.args.follow else None
            for log in self.logs
        ]
        for i, first in enumerate(firsts):
            if self.args.tensorboard and first is not None:
                if self.events[i] is None:
                    folder = Path(self.args.tensorboard)
                    self.events[i] = Events(
                        folder / self.names[i] if len(self.logs) > 1 else folder
                    )
                self.events[i].write(self.logs[i].steps, first)
        changed = any(first is not None for first in firsts)
        if self.args.plot and changed:
            plot(
                {name: log.series() for name, log in zip(self.names, self.logs) if log.steps},
                self.args.plot,
            )
        return changed

    def close(self):
        for events in self.events:
            if events is not None:
                events.close()


def follow(report, interval):
    """Looks for what is new until Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    for path in report.missing():
        if not path.parent.is_dir():
            raise UserError(f"log '{path}' cannot be read: there is no folder '{path.parent}'")
        print(f"mgq-log: waiting for '{path}'", file=sys.stderr, flush=True)
    while True:
        done = ended.is_set()
        report.update(last=done)
        if done:
            return
        ended.wait(interval)


def command(argv):
    """Parses, reads, writes."""
    args = parse_arguments(argv)
    report = Report(args)
    try:
        if args.follow:
            follow(report, args.interval)
            return
        report.update(last=True)
        for log in report.logs:
            if not log.steps:
                raise UserError(f"log '{log.path}' has no steps yet")
    finally:
        report.close()


def main(argv=None):
    """Runs mgq-log."""
    run("mgq-log", lambda: command(argv))


if __name__ == "__main__":
    main()
