"""How far a run is: a bar on a terminal, else a line now and then. On standard error."""

import sys
import time

LINE_SECONDS = 10


class Progress:
    """`total` items, of which `begin` were done before."""

    def __init__(self, name, total, begin, seconds=LINE_SECONDS):
        self.name, self.total, self.done, self.begin = name, total, begin, begin
        self.seconds, self.start = seconds, time.monotonic()
        self.last = self.start
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread: workers are forked
            self.bar = tqdm(
                total=total, initial=begin, desc=name, unit="sample", dynamic_ncols=True
            )

    def advance(self):
        self.done += 1
        if self.bar is not None:
            self.bar.update()
        elif time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            rate = (self.done - self.begin) / (self.last - self.start)
            print(
                f"{self.name}: {self.done} of {self.total} samples, {rate:.0f} a second",
                file=sys.stderr,
                flush=True,
            )

    def say(self, text):
        """A message between two states of the bar."""
        text = f"{self.name}: {text}"
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()
