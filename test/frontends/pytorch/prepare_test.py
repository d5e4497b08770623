"""mgq-prepare as users run it: shards, workers, counts, progress."""

import contextlib
import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import unittest

import fixtures
import numpy as np
from mgq.commands import prepare
from mgq.data import shards
from prepare_case import ENVIRONMENT, MARK, PrepareTest, record
from safetensors import safe_open
from safetensors.numpy import load_file


class ShardsTest(PrepareTest):
    def test_layout(self):
        """One row a sample under the graph's names, the model's metadata, aligned integers first."""
        self.prepare("--workers", 1)
        path = self.work / "out" / "train-00000.safetensors"
        with safe_open(path, "np") as file:
            metadata = file.metadata()
            shapes = {
                name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape())
                for name in file.keys()
            }
        self.assertEqual(
            shapes,
            {
                "input_ids": ("I64", [24, 80]),
                "attention_mask": ("I64", [24, 80]),
                "labels": ("I64", [24, 80]),
                "pixel_values": ("U8", [24, 3, 28, 28]),
            },
        )
        self.assertEqual(
            metadata,
            {
                "mgq.image_token_id": "5",
                "mgq.tokens_per_image": "4",
                "mgq.images": "1",
                "mgq.image_size": "28",
                "mgq.length": "80",
                "mgq.vocabulary": "256",
                "pixel_values.mean": "0.5,0.5,0.5",
                "pixel_values.std": "0.25,0.25,0.25",
            },
        )
        entries, _, offset = shards.read_header(path)
        for name in ("input_ids", "attention_mask", "labels"):
            self.assertEqual((entries[name]["data_offsets"][0] + offset) % 64 % 8, 0)

    def test_sizes(self):
        """Shards have the rows asked for, the last one the rest; together they are one file's rows."""
        self.prepare("--workers", 1, output="one/train")
        self.prepare("--workers", 1, "--shard-size", 7)
        parts = [load_file(self.work / "out" / name) for name in self.files()]
        self.assertEqual([len(part["labels"]) for part in parts], [7, 7, 7, 3])
        whole = load_file(self.work / "one" / "train-00000.safetensors")
        for name, values in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)

    def test_micro_batches(self):
        """Shards hold whole micro-batches of the model; copies without labels fill the last one."""
        self.prepare("--workers", 1, output="one/train")
        whole = load_file(self.work / "one" / "train-00000.safetensors")
        fixtures.model_without_weights(self.model, length=80, micro_batch=5)
        status, out, _ = self.run_command("--workers", 1, "--shard-size", 8)
        self.assertEqual(status, 0)
        self.assertIn("24 samples in 3 files", out)
        self.assertIn("\n  copies without labels, to fill the last micro-batch: 1\n", out)
        parts = [load_file(self.work / "out" / name) for name in self.files()]
        self.assertEqual([len(part["labels"]) for part in parts], [10, 10, 5])
        for name, values in whole.items():
            found = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(found[:24], values)
            np.testing.assert_array_equal(
                found[24], np.full(80, -100) if name == "labels" else values[23]
            )
        fixtures.model_without_weights(self.model, length=80, micro_batch="samples")
        self.prepare("--workers", 1, "--micro-batch", 5, "--shard-size", 8, output="symbolic/train")
        self.assertEqual(self.files("symbolic"), self.files())

    def test_folder_as_output(self):
        """A folder gets files called data-NNNNN."""
        self.prepare("--workers", 1, output="out/")
        self.prepare("--workers", 1, output="out")
        self.assertEqual(list(self.files()), ["data-00000.safetensors"])

    def test_workers(self):
        """Any number of workers gives the same bytes."""
        data = self.write(
            "bad.json", [*self.records, {"foo": 1}, record("none.png"), *self.records]
        )
        expected = None
        for workers in (1, 2, 5):
            options = (
                "--workers",
                workers,
                "--shard-size",
                10,
                "--transform=train",
                "--variants",
                3,
            )
            self.prepare(*options, data=data, output=f"w{workers}/train")
            found = self.files(f"w{workers}"), self.state(f"w{workers}/train")
            expected = expected or found
            self.assertEqual(found, expected)
        self.assertEqual(len(expected[0]), 15)
        self.assertEqual(
            expected[1]["counts"],
            {
                "samples": 144,
                "unusable record": 3,
                "unreadable picture": 3,
                "texts cut at the length": 2 * 3 * 3,  # the answers of three records
            },
        )

    def test_variants_and_weights(self):
        """Variants and repeats of a record have the same text and other crops; another seed has others."""
        options = ("--workers", 1, "--transform=train", "--variants", 2)
        self.prepare(*options, data=f"{self.data}:2")
        rows = load_file(self.work / "out" / "train-00000.safetensors")
        self.assertEqual(len(rows["labels"]), 96)
        same = [0, 24, 48, 72]  # both variants of both passes
        for row in same:
            np.testing.assert_array_equal(rows["input_ids"][row], rows["input_ids"][0])
        self.assertEqual(len({rows["pixel_values"][row].tobytes() for row in same}), 4)
        self.prepare(*options, "--seed", 1, output="seed/train")
        other = load_file(self.work / "seed" / "train-00000.safetensors")
        self.assertTrue((other["pixel_values"][0] != rows["pixel_values"][0]).any())

    def test_shuffle(self):
        """--shuffle mixes the samples of all files; nothing else changes, whoever makes them."""
        self.prepare("--workers", 1, output="one/train")
        self.prepare("--workers", 1, "--shuffle")
        self.prepare("--workers", 3, "--shuffle", output="three/train")
        self.assertEqual(self.files(), self.files("three"))
        sets = []
        for folder in ("one", "out"):
            rows = load_file(self.work / folder / "train-00000.safetensors")
            sets.append(
                [b"".join(rows[name][i].tobytes() for name in sorted(rows)) for i in range(24)]
            )
        self.assertEqual(sorted(sets[0]), sorted(sets[1]))
        self.assertNotEqual(sets[0], sets[1])

    def test_memory(self):
        """A data file of 60 MB takes little more memory than one of a few kB."""
        code = (
            "from mgq.commands.prepare import main; main()\n"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
        )
        peaks = []
        for number in (3, 3000):
            chat = {"instruction": "a", "output": "b", "notes": "x" * 20000}
            data = self.write("memory.json", [chat] * number)
            arguments = self.arguments("--workers", 1, "--restart", data=data)
            command = [sys.executable, "-c", code, *arguments]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            peaks.append(int(done.stdout.split()[-1]))
        self.assertLess(peaks[1] - peaks[0], 16 << 10, peaks)  # kB

    def test_several_files(self):
        """Files follow each other, each with its own folder of pictures."""
        fixtures.picture(self.work / "more" / "0.png", seed=99)
        second = self.write("second.json", [record("0.png")])
        status, _, err = self.run_command(
            "--workers", 1, "--data", second, "--images-root", self.work / "more"
        )
        self.assertEqual(status, 0, err)
        rows = load_file(self.work / "out" / "train-00000.safetensors")
        self.assertEqual(len(rows["labels"]), 25)
        self.assertTrue((rows["pixel_values"][24] != rows["pixel_values"][0]).any())

    def test_pictures_beside_the_file(self):
        """Without --images-root pictures are sought beside the data file."""
        data = self.work / "images" / "here.json"
        data.write_text(json.dumps(self.records[:2]))
        arguments = self.arguments("--workers", 1, data=data)
        del arguments[2:4]
        with contextlib.redirect_stdout(io.StringIO()):
            prepare.main(arguments)
        self.assertEqual(len(load_file(self.work / "out" / "train-00000.safetensors")["labels"]), 2)

    def test_counts(self):
        """What is cut, dropped and skipped is counted, and named in the state."""
        data = self.write(
            "odd.json",
            [
                record("0.png"),
                record("0.png", answer="long " * 40),  # cut
                record("0.png", text="long " * 40),  # the whole answer is cut, marks stay
                {
                    "image": "0.png",
                    "instruction": "long " * 40 + MARK,
                    "output": "x",
                },  # the image would be cut
                {"image": ["0.png", "2.png"], "instruction": MARK * 2, "output": "x"},
                {"image": "0.png", "instruction": MARK * 2, "output": "x"},
                {"image": "0.png", "instruction": "no mark", "output": "x"},
                {"instruction": MARK, "output": "x"},
                record("none.png"),
                {"video": ["0.png"], "instruction": "no mark", "output": "x"},
                {"video": ["0.png"], "instruction": MARK * 2, "output": "x"},
            ],
        )
        status, out, err = self.run_command("--workers", 1, data=data)
        self.assertEqual(status, 0)
        self.assertEqual(
            self.state()["counts"],
            {
                "samples": 3,
                "texts cut at the length": 2,
                "an image is beyond the length": 1,
                "unusable record": 6,
                "unreadable picture": 1,
            },
        )
        self.assertIn("3 samples in 1 file", out)
        self.assertIn("left out: unusable record: 6", out)
        self.assertIn("odd.json: record 10: has 0 marks for its video, expected 1", err)
        self.assertIn("odd.json: record 11: has 2 marks for its video, expected 1", err)
        self.assertRegex(err, "odd.json: record 4: [0-9]+ tokens, its last image ends beyond 80")
        self.assertIn("odd.json: record 5: has 2 pictures, but the model takes 1 a sample", err)
        self.assertIn("odd.json: record 6: image marks: 2, but pictures: 1", err)
        self.assertIn("odd.json: record 7: image marks: 0, but pictures: 1", err)
        self.assertIn("odd.json: record 8: image marks: 1, but pictures: 0", err)
        self.assertIn("odd.json: record 9: picture 'none.png': no such file in", err)
        ids = load_file(self.work / "out" / "train-00000.safetensors")["input_ids"]
        self.assertEqual((ids == fixtures.IMAGE_TOKEN).sum(1).tolist(), [4, 4, 4])

    def test_no_labels(self):
        """With --labels=assistant a sample whose answer is beyond the length is dropped."""
        data = self.write("long.json", [record("0.png"), record("0.png", text="long " * 40)])
        self.prepare("--workers", 1, "--labels=assistant", "--on-error=stop", data=data)
        self.assertEqual(self.state()["counts"], {"samples": 1, "no label is left": 1})

    def test_many_problems(self):
        """The screen shows the first problems of many, the state all, each record once."""
        data = self.write("bad.json", [self.records[0], *[{"foo": 1}] * 30])
        err = self.prepare("--workers", 1, data=f"{data}:3")
        self.assertEqual(err.count("left out: /"), 20)
        self.assertIn("further samples that are left out: see", err)
        state = self.state()
        self.assertEqual(state["counts"]["unusable record"], 90)
        self.assertEqual(sum(len(shard["problems"]) for shard in state["shards"]), 30)

    def test_names(self):
        """Names of files and pictures may be Chinese, or bytes that are no text at all."""
        fixtures.picture(self.work / "images" / "猫.png")
        path = os.fsencode(self.work / "数据") + b"\xff.json"
        with open(path, "w") as file:
            json.dump([record("猫.png"), record("狗.png")], file, ensure_ascii=False)
        name = os.fsdecode(path)
        self.prepare("--workers", 1, data=name)
        self.assertEqual(self.state()["counts"], {"samples": 1, "unreadable picture": 1})
        self.assertIn("picture '狗.png'", self.state()["shards"][0]["problems"][0])
        self.assertIn("nothing to do", self.prepare("--workers", 1, data=name))

    def test_endless_text(self):
        """A text that is too much for the tokenizer's library is the record's problem, not the run's."""
        fixtures.qwen_tokenizer(self.work / "tok")
        data = self.write(
            "long.json", [{"instruction": " " * 10**6, "output": "x"}, self.records[0]]
        )
        options = ("--workers", 1, "--vocabulary", 600, "--image-token-id", 278)
        fixtures.model_without_weights(self.model, length=200, vocabulary=None, image_token_id=None)
        err = self.prepare(*options, data=data)
        self.assertIn("record 1: a text of 1000000 characters is too much for tiktoken", err)
        self.assertEqual(self.state()["counts"], {"samples": 1, "unusable record": 1})

    def test_system_message(self):
        """--system is the system message of records without their own."""
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        own = [{"role": "system", "content": "Kind."}, *chat]
        data = self.write("chat.json", [{"messages": chat}, {"messages": own}])
        self.prepare("--workers", 1, "--system", "Kind.", data=data)
        ids = load_file(self.work / "out" / "train-00000.safetensors")["input_ids"]
        np.testing.assert_array_equal(ids[0], ids[1])

    def test_special_marks(self):
        """--special-marks=tokens: marks in text are tokens, but never image tokens; the end token is masked."""
        data = self.write(
            "marks.json",
            [{"instruction": "a<|image_pad|>", "output": "b<|im_end|>c<|endoftext|>d"}],
        )
        self.prepare("--workers", 1, "--special-marks=tokens", data=data)
        rows = load_file(self.work / "out" / "train-00000.safetensors")
        ids, mask = rows["input_ids"][0], rows["attention_mask"][0]
        self.assertEqual((ids == 2).sum(), 4)
        self.assertEqual((ids == 5).sum(), 0)
        np.testing.assert_array_equal(mask, ids != 0)
        last = np.flatnonzero(ids)[-1]
        self.assertEqual((mask[: last + 1] == 0).sum(), 1)


class ProgressTest(PrepareTest):
    CODE = (
        "from mgq.data import progress\nprogress.Progress.__init__.__defaults__ = (0,)\n"
        "from mgq.commands.prepare import main; main()"
    )

    def test_lines(self):
        """Without a terminal progress is plain lines."""
        command = [sys.executable, "-c", self.CODE, *self.arguments("--workers", 1)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.assertRegex(done.stderr, r"(?m)^mgq-prepare: 12 of 24 samples, \d+ a second$")
        self.assertNotIn("\r", done.stderr)

    def test_bar(self):
        """On a terminal it is one bar."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        command = [sys.executable, "-c", self.CODE, *self.arguments("--workers", 2)]
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=follower
        )
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):
            while part := os.read(leader, 4096):
                shown += part
        os.close(leader)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, shown)
        self.assertRegex(shown.decode(), r"\rmgq-prepare: 100%.*24/24")


if __name__ == "__main__":
    unittest.main()
