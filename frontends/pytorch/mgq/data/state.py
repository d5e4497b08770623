"""What a run has done, in PREFIX.state.json, so that the next one goes on from there."""

import contextlib
import fcntl
import json
import os
import re
from collections import Counter

from mgq.errors import UserError
from mgq.files import whole_file

FORMAT = 1


def shard_path(prefix, number):
    return prefix.with_name(f"{prefix.name}-{number:05}.safetensors")


def state_path(prefix):
    return prefix.with_name(f"{prefix.name}.state.json")


class State:
    """`shards`: of each finished one its file, rows, bytes, next item, counts and problems."""

    def __init__(self, prefix, settings, facts):
        self.prefix, self.settings, self.facts = prefix, settings, facts
        self.shards, self.complete = [], False

    @property
    def next_item(self):
        return self.shards[-1]["next_item"] if self.shards else 0

    def counts(self):
        """What happened to the samples so far, by name."""
        total = Counter()
        for shard in self.shards:
            total.update(shard["counts"])
        return total

    def problems(self):
        return [problem for shard in self.shards for problem in shard["problems"]]

    def save(self):
        content = {
            "format": FORMAT,
            "complete": self.complete,
            "counts": self.counts(),
            "settings": self.settings,
            "metadata": self.facts,
            "shards": self.shards,
        }
        path = state_path(self.prefix)
        with whole_file(path) as temporary:
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            # Names of files may hold bytes that are no text: escaped, they are JSON again.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")

    def keep_whole_shards(self):
        """Forgets shards from the first on whose file is not as it was written."""
        for i, shard in enumerate(self.shards):
            path = self.prefix.with_name(shard["file"]) if shard["file"] else None
            if path and (not path.is_file() or path.stat().st_size != shard["bytes"]):
                for later in self.shards[i:]:
                    if later["file"]:
                        self.prefix.with_name(later["file"]).unlink(missing_ok=True)
                del self.shards[i:]
                self.complete = False
                return path
        return None


def read(prefix):
    """The State of `prefix`, None if there is none."""
    path = state_path(prefix)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        state = State(prefix, content["settings"], content["metadata"])
        state.shards, state.complete = content["shards"], content["complete"]
        for shard in state.shards:  # raises where the file is not ours
            [shard[key] for key in ("file", "rows", "bytes", "next_item", "counts", "problems")]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: cannot be read as the state of an earlier run; use --restart"
        ) from error
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: written by another version of mgq-prepare; use --restart")
    return state


def existing_shards(prefix):
    """Files that look like shards of `prefix`."""
    pattern = re.compile(re.escape(prefix.name) + r"-\d{5,}\.safetensors")
    return sorted(path for path in prefix.parent.iterdir() if pattern.fullmatch(path.name))


def remove_leftovers(prefix):
    """Removes the unfinished files of a run that was killed."""
    pattern = re.compile(
        r"\.+" + re.escape(prefix.name) + r"(-\d{5,}\.safetensors|\.state\.json)\..+"
    )
    for path in prefix.parent.iterdir():
        if pattern.fullmatch(path.name):
            path.unlink(missing_ok=True)


def differences(old, new):
    """Names of the settings that differ, with their values."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name} ({old.get(name)} -> {new.get(name)})" for name in names]


def resume(prefix, settings, facts, restart, say):
    """The State to go on from. `say` reports what was found."""
    remove_leftovers(prefix)
    found = None if restart else read(prefix)
    if found is None:
        present = existing_shards(prefix)
        if present and not restart:
            raise UserError(
                f"'{present[0]}' exists, but no '{state_path(prefix).name}' tells what it is; choose another -o, or --restart"
            )
        return discard(prefix, present, settings, facts)
    if found.facts != facts:
        raise UserError(
            f"'{prefix}' has shards for another model: {'; '.join(differences(found.facts, facts))};"
            " choose another -o, or --restart"
        )
    known = [shard["file"] for shard in found.shards if shard["file"]]
    unknown = [path for path in existing_shards(prefix) if path.name not in known]
    # A kill between a shard and its entry in the state leaves one more.
    if unknown and unknown != [shard_path(prefix, len(known))]:
        raise UserError(
            f"'{unknown[-1]}' exists, but '{state_path(prefix).name}' does not tell what it is;"
            " choose another -o, or --restart"
        )
    changed = differences(found.settings, settings)
    if changed:
        say(f"starting again, since the last run: {'; '.join(changed)}")
        present = [prefix.with_name(name) for name in known]
        return discard(prefix, present + unknown, settings, facts)
    for path in unknown:
        path.unlink()
    damaged = found.keep_whole_shards()
    if damaged:
        say(f"'{damaged}' is missing or damaged: going on from there")
    elif found.shards and not found.complete:
        say(f"going on after {len(found.shards)} shards of an earlier run")
    return found


def discard(prefix, paths, settings, facts):
    """A State without shards; removes `paths`."""
    for path in paths:
        path.unlink(missing_ok=True)
    return State(prefix, settings, facts)


@contextlib.contextmanager
def locked(prefix):
    """Keeps other runs from the same prefix."""
    path = prefix.with_name(f".{prefix.name}.lock")
    try:
        file = open(path, "w")
    except OSError as error:
        raise UserError(f"cannot write '{prefix}': {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another mgq-prepare writes '{prefix}'") from error
        try:
            yield
        finally:
            os.unlink(path)
