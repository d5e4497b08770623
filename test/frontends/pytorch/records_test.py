"""Records of mgq-prepare: JSON files in bounded memory, the formats' errors, weights."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import fixtures  # noqa: F401  finds mgq
from mgq.data import conversations, records, sampling
from mgq.data.conversations import MARK, RecordError
from mgq.errors import UserError

RECORDS = [
    {"a": 1},
    {"b": ["x, {", 'q"\\', "图\n"], "c": {"d": []}},
    "text",
    3.5,
    -1.5e300,
    None,
    {},
]


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "data.json"

    def tearDown(self):
        self.folder.cleanup()

    def read(self, text):
        self.path.write_bytes(text.encode() if isinstance(text, str) else text)
        index = records.index(self.path)
        return [index.read(i) for i in range(len(index))]

    def test_lists_and_lines(self):
        """A list, however it is spaced, and JSON lines give the same records."""
        self.assertEqual(self.read(json.dumps(RECORDS)), RECORDS)
        self.assertEqual(self.read(json.dumps(RECORDS, indent=3, ensure_ascii=False)), RECORDS)
        self.assertEqual(self.read("\ufeff" + json.dumps(RECORDS)), RECORDS)
        lines = "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS)
        self.assertEqual(self.read(lines), RECORDS)
        self.assertEqual(self.read(lines.replace("\n", "\r\n\r\n") + "\n\n"), RECORDS)

    def test_reading_in_pieces(self):
        """Wherever the file is cut into the pieces that are read, the records are the same."""
        text = json.dumps(RECORDS * 3, ensure_ascii=False, indent=1)
        for size in range(1, 40):
            with mock.patch.object(records, "CHUNK", size):
                self.assertEqual(self.read(text), RECORDS * 3)

    def test_errors_name_line_and_record(self):
        """Bad JSON is found where it is, whatever the pieces that are read."""
        good = '[\n{"a": 1},\n'
        cases = {
            good + '{"b" 2}]': "line 3: record 2: Expecting ':' delimiter",
            good + '{"b": 2} {"c": 3}]': r"line 3: record 3: expected ',' or '\]'",
            good + '{"b": 2}': "line 3: record 3: the file ends within its list",
            good + '{"b": "2': "line 3: record 2: Unterminated string",
            good + '{"b": [1, 2': "line 3: record 2: Expecting ',' delimiter",
            good + '{"b": 2},]': "line 3: record 3: ',' before the end of the list",
            good + '{"b": 2}]\n\n{}': "line 5: record 3: text after the end of the list",
            '{"a": 1}\n{"b": tru}\n': "line 2: record 2: Expecting value",
            "[" * 100000: "line 1: record 1: nested too deeply",
        }
        for size in (7, records.CHUNK):
            for text, message in cases.items():
                with self.subTest(text[:40], size=size), mock.patch.object(records, "CHUNK", size):
                    with self.assertRaisesRegex(UserError, f"data.json: {message}"):
                        self.read(text)
        with self.assertRaisesRegex(UserError, "data.json: line 2: not UTF-8: invalid start byte"):
            self.read(b'{"a": 1}\n{"b": "\xff"}')
        for text in ("", " \n", "[]", "[ ]\n"):
            with self.assertRaisesRegex(UserError, "data.json: no records"):
                self.read(text)

    def test_missing_file(self):
        """A file that is not there is named."""
        with self.assertRaisesRegex(
            UserError, "data file '/no/file.json' cannot be read: No such file"
        ):
            records.index("/no/file.json")
        os.mkfifo(self.path)
        for path in (self.path, self.folder.name):
            with self.assertRaisesRegex(UserError, "is no file that can be read twice"):
                records.index(path)


def turns(*roles):
    return [{"from": role, "value": "x"} for role in roles]


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


class FormatsTest(unittest.TestCase):
    ERRORS = [
        ("text", "is text, expected an object"),
        (
            {"foo": 1, "bar": 2},
            "unknown format, its keys are: 'bar', 'foo'; supported: 'instruction' and 'output', 'conversations', 'messages'",
        ),
        ({}, "unknown format, its keys are: none"),
        ({"instruction": "a"}, "unknown format, its keys are: 'instruction'"),
        (
            {"instruction": ["a", "b"], "output": ["c"]},
            "'instruction' has 2 entries, but 'output' has 1",
        ),
        ({"instruction": ["a"], "output": "c"}, "'instruction' is a list, but 'output' is text"),
        ({"instruction": "a", "output": 3}, "'output' 1 is a number, expected text"),
        (
            {"instruction": ["a", None], "output": ["c", "d"]},
            "'instruction' 2 is null, expected text",
        ),
        (
            {"instruction": "a", "output": "\ud800"},
            "'output' 1 has half of a surrogate pair at character 1",
        ),
        (
            {"instruction": "a", "input": "b", "output": "c"},
            "has 'input' beside 'instruction'; not supported yet",
        ),
        ({"instruction": [], "output": []}, "has no turns"),
        ({"instruction": "a", "output": "b", "image": 3}, "image 1 is a number, expected text"),
        ({"instruction": "a", "output": "b", "image": ["x", ""]}, "image 2 is empty"),
        (
            {"instruction": "a", "output": "b", "image": "x", "video": "y"},
            "has both 'image' and 'video', expected one",
        ),
        (
            {"instruction": "a", "output": "b", "video": ["x", True]},
            "video frame 2 is a truth value",
        ),
        ({"conversations": []}, "has no turns"),
        ({"conversations": {}}, "'conversations' is an object, expected a list"),
        ({"conversations": ["x"]}, "turn 1 is text, expected an object"),
        (
            {"conversations": turns("human", "bot")},
            "turn 2 has the unknown role 'bot' in 'from'; supported: user, human, assistant, gpt, system",
        ),
        ({"conversations": turns("gpt")}, "has no turns"),
        (
            {"conversations": turns("human", "system")},
            "turn 2 is a system message; expected one, before all other turns",
        ),
        ({"conversations": turns("system", "system")}, "turn 2 is a system message"),
        ({"conversations": [{"from": "human"}]}, "'value' of turn 1 is null, expected text"),
        (chat(("tool", "x")), "turn 1 has the unknown role 'tool' in 'role'"),
        ({"messages": [{"content": "x"}]}, "turn 1 has the unknown role None"),
        (
            chat(("user", [{"type": "audio"}])),
            "'content' of turn 1, part 1, has type 'audio'; supported: text, image_url, image",
        ),
        (chat(("user", [3])), "'content' of turn 1, part 1, is a number"),
        (chat(("user", [{"type": "text"}])), "part 1, 'text' is null"),
        (
            chat(("user", [{"type": "image_url", "image_url": {"url": "https://host/a.png"}}])),
            "its image is the address 'https://host/a.png'; not supported yet: download it",
        ),
        (
            chat(("user", [{"type": "image", "image": "data:image/png,xx"}])),
            "is a data URL without base64",
        ),
        (
            chat(("user", [{"type": "image", "image": "data:image/png;base64,?"}])),
            "is a data URL with bad base64",
        ),
        (
            chat(("user", "a"), ("assistant", [{"type": "image", "image": "x"}])),
            "not supported yet: 'content' of turn 2 has a picture in a turn of the assistant",
        ),
        (
            chat(("user", [{"type": "image", "image": "x"}])) | {"image": "y"},
            "names pictures both within its messages and beside them",
        ),
    ]

    def test_errors(self):
        """What is wrong with a record is said with what was found in it."""
        for record, message in self.ERRORS:
            with self.subTest(message), self.assertRaises(RecordError) as caught:
                conversations.parse(record)
            self.assertIn(message, str(caught.exception))

    def test_addresses_of_files(self):
        """A file URL is the path that it names."""
        record = chat(("user", [{"type": "image_url", "image_url": "file:///a%20b.png"}]))
        self.assertEqual(conversations.parse(record).pictures, ("/a b.png",))

    def test_parts_without_their_picture(self):
        """An image part that names none stands for the next picture beside the messages."""
        part = {"type": "image", "text": None}
        record = chat(("user", [part, {"type": "text", "text": "a"}, part])) | {
            "images": ["x", "y"]
        }
        found = conversations.parse(record)
        self.assertEqual(found.pictures, ("x", "y"))
        self.assertEqual(found.turns[0].parts, ("<Img>", MARK, "</Img>a<Img>", MARK, "</Img>"))

    def test_video_marks(self):
        """<video> is a mark of records with a video only."""
        record = {"conversations": [{"from": "human", "value": "<video>\nA"}], "video": "v.mp4"}
        parts = ("<Img>", MARK, "</Img>\nA")
        self.assertEqual(conversations.parse(record).turns[0].parts, parts)
        del record["video"]
        self.assertEqual(conversations.parse(record).turns[0].parts, ("<video>\nA",))


class SamplingTest(unittest.TestCase):
    def items(self, *arguments):
        plan = sampling.Plan(*arguments)
        return [
            (item.file, item.record, item.number, item.variant)
            for item in map(plan.__getitem__, range(len(plan)))
        ]

    def test_weights(self):
        """2.5 takes each record twice and half of them once more; 0.5 takes half of them."""
        items = self.items([4, 6], [2.5, 0.5], 1, 7)
        first = [record for file, record, number, _ in items if file == 0 and number < 2]
        self.assertEqual(first, [0, 1, 2, 3] * 2)
        again = [record for file, record, number, _ in items if file == 0 and number == 2]
        self.assertEqual((len(again), again), (2, sorted(set(again))))
        half = [record for file, record, *_ in items if file == 1]
        self.assertEqual((len(half), half), (3, sorted(set(half))))
        self.assertEqual(len(items), 13)

    def test_seed(self):
        """The seed chooses the part of a file; the same seed the same part."""
        parts = [self.items([100], [0.3], 1, seed) for seed in (1, 1, 2)]
        self.assertEqual(len(parts[0]), 30)
        self.assertEqual(parts[0], parts[1])
        self.assertNotEqual(parts[0], parts[2])

    def test_variants(self):
        """Variants follow each other like epochs, each with a seed of its own."""
        items = self.items([2], [1], 3, 7)
        self.assertEqual(
            [(record, variant) for _, record, _, variant in items],
            [(record, variant) for variant in range(3) for record in (0, 1)],
        )
        plan = sampling.Plan([2], [2], 3, 7)
        seeds = {plan[i].seed(7, picture) for i in range(len(plan)) for picture in (0, 1)}
        self.assertEqual(len(seeds), 24)

    def test_shuffle(self):
        """Shuffled, the same items stand in another order, which the seed decides."""
        ordered = self.items([50, 30], [1.5, 1], 2, 7)
        shuffled = [self.items([50, 30], [1.5, 1], 2, seed, True) for seed in (7, 7, 8)]
        self.assertEqual(sorted(shuffled[0]), sorted(ordered))
        self.assertEqual(shuffled[0], shuffled[1])
        self.assertNotEqual(shuffled[0], ordered)
        self.assertNotEqual(shuffled[0], shuffled[2])


if __name__ == "__main__":
    unittest.main()
