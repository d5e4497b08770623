"""Starts ranks as torchrun and Slurm would: processes with their variables."""

import os
import socket
import subprocess

NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def start(commands, launcher="torchrun", env=None, changes=()):
    """One process for each of `commands`. `env`: of all (this process' own);
    `changes`: rank -> what is different for it."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    processes = []
    for rank, command in enumerate(commands):
        own = dict(zip(NAMES[launcher], (rank, len(commands), rank), strict=True))
        own.update(place)
        own.update(dict(changes).get(rank, {}))
        processes.append(
            subprocess.Popen(
                [str(word) for word in command],
                env={**(env or os.environ), **{name: str(value) for name, value in own.items()}},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    return processes


def end(processes, timeout=120):
    """Exit statuses and errors."""
    errors = [process.communicate(timeout=timeout)[1] for process in processes]
    return [process.returncode for process in processes], errors
