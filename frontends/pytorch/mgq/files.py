"""Output files appear under their final name only when they are whole."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from mgq.errors import UserError


@contextlib.contextmanager
def whole_file(path):
    """A temporary path beside `path`; renamed to it on success, removed on failure."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write '{path}': it is a folder")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error
    os.close(handle)
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(name, 0o666 & ~mask)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise UserError(f"cannot write '{path}': {error.strerror or error}") from error
        raise


@contextlib.contextmanager
def whole_folder(path):
    """A temporary folder beside `path`, which it becomes on success.

    An existing folder of that name is replaced.
    """
    path = Path(path)
    try:
        name = tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(name, 0o777 & ~mask)
    try:
        yield Path(name)
        if path.exists():
            shutil.rmtree(path)
        os.replace(name, path)
    except BaseException:
        shutil.rmtree(name, ignore_errors=True)
        raise
