"""Results of a Job's items in order, from one process or several."""

import ctypes
import multiprocessing
import signal
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from mgq.errors import UserError

CHUNK_BYTES = 4 << 20  # pixels that a worker hands back at a time
CHUNK_ITEMS = 64
PR_SET_PDEATHSIG = 1  # of prctl: a signal when the parent ends

job = None  # of this worker


def start_worker(parents_job):
    """Ctrl-C is the parent's business; its end is the worker's."""
    global job
    job = parents_job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def work(begin, end):
    return [job.result(position) for position in range(begin, end)]


def chunks(begin, end, row_bytes):
    size = max(1, min(CHUNK_ITEMS, CHUNK_BYTES // row_bytes))
    return ((at, min(at + size, end)) for at in range(begin, end, size))


def results(job, begin, end, workers, row_bytes):
    """Yields the result of each item from `begin` to `end`, whoever made it."""
    if workers == 1:
        yield from map(job.result, range(begin, end))
        return
    todo, waiting = chunks(begin, end, row_bytes), deque()
    # Forked: the tokenizer is there already.
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, start_worker, (job,))
    try:
        while True:
            while len(waiting) < 2 * workers and (chunk := next(todo, None)):
                waiting.append(pool.submit(work, *chunk))
            if not waiting:
                return
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps for want of memory; try fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
