"""Output files are whole or absent, and errors are one message."""

import errno
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from mgq.errors import UserError
from mgq.files import whole_file, whole_folder


class WholeFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def test_file_appears_when_whole(self):
        """Nothing has the final name while the file is written; after it, only that."""
        with whole_file(self.folder / "a") as path:
            path.write_text("1")
            self.assertFalse((self.folder / "a").exists())
        self.assertEqual(self.names(), ["a"])
        self.assertEqual((self.folder / "a").read_text(), "1")

    def test_failure_leaves_the_old_file(self):
        """A failure removes what was written and keeps the older file."""
        (self.folder / "a").write_text("old")
        with self.assertRaises(RuntimeError):
            with whole_file(self.folder / "a") as path:
                path.write_text("new")
                raise RuntimeError
        self.assertEqual(self.names(), ["a"])
        self.assertEqual((self.folder / "a").read_text(), "old")

    def test_what_cannot_be_written(self):
        """A folder of that name, or a disk that is full, is said of the final name."""
        with self.assertRaisesRegex(UserError, "cannot write '.*': it is a folder"):
            with whole_file(self.folder):
                self.fail("begins to write")
        with self.assertRaisesRegex(UserError, "cannot write '.*/a': No space left"):
            with whole_file(self.folder / "a"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.assertEqual(self.names(), [])

    def test_folder_is_replaced_whole(self):
        """A folder replaces the older one of its name, files that are gone too."""
        for name in ("x", "y"):
            with whole_folder(self.folder / "f") as path:
                (path / name).write_text(name)
        self.assertEqual(self.names(), ["f"])
        self.assertEqual([p.name for p in (self.folder / "f").iterdir()], ["y"])

    def test_folder_failure_leaves_nothing(self):
        """A failure removes the unfinished folder."""
        with self.assertRaises(RuntimeError):
            with whole_folder(self.folder / "f") as path:
                (path / "x").write_text("x")
                raise RuntimeError
        self.assertEqual(self.names(), [])

    def test_unwritable_place_is_named(self):
        """A place that does not exist is the user's error, with the path in it."""
        for opened in (whole_file, whole_folder):
            with self.assertRaisesRegex(UserError, "cannot write '.*/none/a'"):
                with opened(self.folder / "none" / "a"):
                    pass


class Run(unittest.TestCase):
    def test_error_is_one_message(self):
        """A UserError ends with exit status 1 and one line, no traceback."""
        code = (
            "from mgq.errors import UserError, run\n"
            "def main(): raise UserError('what')\n"
            "run('mgq-x', main)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "mgq-x: error: what\n")


if __name__ == "__main__":
    unittest.main()
