"""mgq-generate: batches, several images, limits, exports with --features, and what it refuses."""

import json
import unittest

import fixtures
import torch
from adapter_case import LORA, AdapterTest, export_tiny, random_values, write_checkpoint
from mgq import generation
from mgq.commands import adapter, generate
from safetensors.torch import load_file, save_file

LENGTH = 100


@torch.inference_mode()
def without_cache(assistant, question, new_tokens):
    """Greedy tokens, the whole sequence computed anew for each."""
    model, facts, tokens = assistant.model, assistant.facts, assistant.template.tokenizer
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (facts.mean, facts.std))
    pixels = torch.zeros(facts.images, 3, facts.image_size, facts.image_size)
    for i, image in enumerate(question.pixels):
        pixels[i] = (torch.from_numpy(image).float() / 255 - mean) / std
    blocks = model.architecture.vision.layers
    features = model.read_image(model.see(pixels[None] if facts.images > 1 else pixels, blocks), blocks)
    ids, answer = list(question.ids), []
    while len(answer) < new_tokens:
        row = torch.tensor([ids])
        token = int(model.logits(features, row, torch.ones_like(row))[0, -1].argmax())
        if token in (tokens.im_end, tokens.end):
            break
        answer.append(token)
        ids.append(token)
    return answer


class GenerateTest(AdapterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = export_tiny(cls.shared / "model.onnx", "--lora", LORA, "--length", LENGTH, "--images", 2)
        cls.tokenizer = fixtures.hf_tokenizer(cls.shared / "tokenizer")
        cls.checkpoint = write_checkpoint(cls.shared / "checkpoint", random_values(cls.model, scale=0.5))
        cls.pictures = [fixtures.picture(cls.shared / f"{i}.png", seed=i) for i in range(3)]

    def ask(self, *options, model=None):
        """Standard output of mgq-generate."""
        return self.done(generate, *self.arguments(model), *options)

    def error(self, *options, model=None, status=1):
        return self.refused(generate, *self.arguments(model), *options, status=status)

    def arguments(self, model):
        return ("--model", model or self.model, "--tokenizer", self.tokenizer)

    def assistant(self, model=None):
        return generation.load(model or self.model, self.tokenizer, self.checkpoint)

    def test_batches(self):
        """Questions with two images, one and none, of many lengths, have the tokens of each alone
        computed without a cache, however they are batched, in the order asked."""
        ours = self.assistant()
        a, b, c = self.pictures
        questions = [
            ours.question("Which <image> or <image>?", [a, b]), ours.question("cat", [c]), ours.question("cat"),
            ours.question("Is <image> not <image>? Say!", [b, a]), ours.question("What?", [a]), ours.question("?"),
            ours.question("Which cat is it?" * 2),
        ]
        wanted = [without_cache(ours, question, 8) for question in questions]
        self.assertGreater(len({tuple(ids) for ids in wanted}), 4)
        for batch in (1, 2, 3, 64):
            self.assertEqual(generation.answer_ids(ours, questions, 8, batch), wanted)

    def test_end(self):
        """An answer ends at the end token, at the tokens asked for, or at the model's length."""
        ours = self.assistant()
        questions = [ours.question(text) for text in ("?", "What is this cat?", "cat cat cat cat")]
        answers = generation.answer_ids(ours, questions, 1000)
        for question, ids in zip(questions, answers):
            self.assertEqual(without_cache(ours, question, LENGTH - len(question.ids)), ids)
        self.assertIn(LENGTH, [len(q.ids) + len(ids) for q, ids in zip(questions, answers)])
        self.assertEqual([len(ids) for ids in generation.answer_ids(ours, questions, 1)], [1, 1, 1])
        # The first token of an answer as the end of another one's.
        ours.template.tokenizer.im_end = answers[0][2]
        self.assertEqual(generation.answer_ids(ours, questions[:1], 10)[0], answers[0][: answers[0].index(answers[0][2])])
        self.assertEqual(generation.answer(ours, []), [])

    def test_marks(self):
        """Where pictures stand: by MPP's bare mark, by LLaVA's, or before the text."""
        ours, image = self.assistant(), [5] * 4
        tokens = ours.template.tokenizer

        def ids(text, *pictures):
            return ours.question(text, pictures).ids

        def has(found, *parts):
            wanted = [t for part in parts for t in (part if isinstance(part, list) else tokens.encode(part))]
            text = ",".join(map(str, found))
            self.assertIn(",".join(map(str, wanted)), text)

        a = self.pictures[0]
        has(ids("Is <ImageHere> it?", a), "user", "\n", "Is ", image, " it?")
        has(ids("Is <image> it?", a), "user", "\n", "Is <Img>", image, "</Img> it?")
        has(ids("It?", a), "user", "\n", "<Img>", image, "</Img>It?")
        has(ids("It?", a, a), "<Img>", image, "</Img><Img>", image, "</Img>It?")
        self.assertEqual(ids("<|image_pad|>").count(5), 0)  # text gives no image tokens

    def test_features(self):
        """An export with --features answers as the whole does, if its prefix is there."""
        whole = export_tiny(self.work / "whole.onnx", "--lora", LORA, "--length", LENGTH)
        model = export_tiny(self.work / "part.onnx", "--lora", LORA, "--length", LENGTH, "--features")
        options = ("--checkpoint", self.checkpoint, "--question", "What?", "--image", self.pictures[0],
                   "--max-new-tokens", 8)
        self.assertEqual(self.ask(*options, model=model), self.ask(*options, model=whole))
        (self.work / "part.prefix.onnx").unlink()
        message = self.error(*options, model=model)
        self.assertIn("starts at image_features, and '", message)
        self.assertIn("part.prefix.onnx', which leads there, is not beside it", message)

    def test_system(self):
        """--system stands in the prompt; without it, Qwen's."""
        ours = self.assistant()
        self.assertIn("You are a helpful assistant.", ours.template.tokenizer.decode(ours.question("?").ids))
        other = generation.load(self.model, self.tokenizer, system="Be brief.")
        self.assertIn("<|im_start|>system\nBe brief.<|im_end|>", other.template.tokenizer.decode(other.question("?").ids))

    def test_questions(self):
        """Records of every format of mgq-prepare may be questions; history stays, the last answer goes."""
        records = [
            {"instruction": ["<ImageHere>A?", "B?"], "output": ["a", "b"], "image": "0.png"},
            {"conversations": [{"from": "human", "value": "<image>B?"}, {"from": "gpt", "value": "x"}], "image": "1.png"},
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "C?"}]},
            {"question": "D?", "image": ["0.png", "1.png"]},
        ]
        path = self.shared / "questions.json"
        path.write_text(json.dumps(records))
        lines = self.ask("--questions", path, "--json", "--max-new-tokens", 2).splitlines()
        self.assertEqual([json.loads(line)["question"] for line in lines],
                         ["B?", "<Img><image></Img>B?", "C?", "<Img><image></Img><Img><image></Img>D?"])
        # Chunk by chunk (16 batches of 1 and of 64) the answers are the same.
        path.write_text(json.dumps(records * 5))
        chunks = self.ask("--questions", path, "--json", "--max-new-tokens", 2, "--batch", 1).splitlines()
        self.assertEqual(chunks, lines * 5)
        path.write_text(json.dumps(records))
        plain = self.ask("--questions", path, "--max-new-tokens", 2).splitlines()
        self.assertEqual(plain[0], "B?")
        ours = self.assistant()
        ours = generation.Assistant(ours.model, ours.facts, ours.template, self.shared)
        from mgq.data import conversations

        text = ours.template.tokenizer.decode(ours.ask(conversations.parse(records[0])).ids)
        self.assertIn("A?<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nB?<|im_end|>\n"
                      "<|im_start|>assistant\n", text)
        self.assertTrue(text.endswith("<|im_start|>assistant\n"))

    def test_video(self):
        """A video's frames stand where its one mark does, as many as the model takes."""
        path = self.shared / "video.json"
        path.write_text(json.dumps([{"question": "What?", "video": ["0.png", "1.png", "2.png", "2.png"]}]))
        self.assertEqual(json.loads(self.ask("--questions", path, "--json", "--max-new-tokens", 1))["question"],
                         "<Img><image></Img>What?")
        ours = generation.load(self.model, self.tokenizer, root=self.shared)
        for text in ("What?", "<video>What?", "<image>What?"):
            asked = ours.ask(generation.conversation_of(text, (), ["0.png", "1.png", "2.png", "2.png"]))
            self.assertEqual(asked.ids.count(5), 8)
            two = ours.question("<image><image>", ["0.png", "2.png"])
            self.assertTrue((asked.pixels == two.pixels).all())

    def test_bad_questions(self):
        """What a question's text and pictures must be."""
        a, b, c = self.pictures
        for options, text in (
            (("<image> or <image>?", "--image", a), "image marks: 2, but pictures: 1"),
            (("<image>?", "--image", a, b), "image marks: 1, but pictures: 2"),
            (("?", "--image", a, b, c), "has 3 pictures, but the model takes 2 a sample"),
            (("?", "--image", self.work / "no.png"), "no.png': no such file"),
            (("?", "--image", self.model), "no picture of a known format"),
            (("long " * 40,), f"the model takes {LENGTH} with the answer"),
        ):
            message = self.error("--question", *options)
            self.assertIn(text, message)
            self.assertIn("--question: ", message)

    def test_bad_files(self):
        """Faults of a file of questions are told with the record."""
        path = self.work / "q.jsonl"
        for text, wanted in (
            ('{"question": "a"}\n{"question": 3}', "q.jsonl: record 2: 'question' is a number, expected text"),
            ('{"question": "a", "image": "no.png"}', "record 1: picture 'no.png': no such file"),
            ('{"answer": "a"}', "record 1: unknown format, its keys are: 'answer'"),
            ('{"question": ', "line 1: record 1: "),
            ("", "no records"),
        ):
            path.write_text(text)
            self.assertIn(wanted, self.error("--questions", path))
        self.assertIn("cannot be read", self.error("--questions", self.work / "absent"))

    def test_bad_models(self):
        """Models, tokenizers and trained weights that do not go together."""
        asked = ("--question", "?")
        empty = export_tiny(self.work / "graph.onnx", "--no-weights")
        self.assertIn("graph.onnx.data", self.error(*asked, model=empty))
        other = fixtures.model_without_weights(self.work / "other.onnx")
        self.assertIn("was not written by 'mgq-export minigpt4qwen'", self.error(*asked, model=other))
        self.assertIn("cannot read", self.error(*asked, model=self.work / "absent.onnx"))
        small = export_tiny(self.work / "small.onnx", "--lora", "r=2", "--length", LENGTH)
        self.assertIn("has shape [4, 64]", self.error(*asked, "--checkpoint", self.checkpoint, model=small))
        self.done(adapter, self.checkpoint, "--model", self.model, "-o", self.work / "adapter")
        self.assertIn("exported with rank 2", self.error(*asked, "--adapter", self.work / "adapter", model=small))
        self.assertIn("is not a checkpoint", self.error(*asked, "--checkpoint", self.shared))
        self.assertIn("does not exist", self.error(*asked, "--tokenizer", self.work / "absent"))
        qwen = fixtures.qwen_tokenizer(self.work / "qwen")
        self.assertIn("ordinary token", self.error(*asked, "--tokenizer", qwen))

    def test_adapter_alone(self):
        """An adapter whose folder has LoRA only leaves the model's own projection."""
        folder = self.work / "adapter"
        self.done(adapter, self.checkpoint, "--model", self.model, "-o", folder)
        (folder / "other_trained.safetensors").unlink()
        loaded = dict(generation.load(self.model, self.tokenizer, adapter=folder).model.named_parameters())
        own = dict(generation.load(self.model, self.tokenizer).model.named_parameters())
        values = load_file(self.checkpoint / "model.safetensors")
        self.assertTrue(torch.equal(loaded["llm_proj.weight"], own["llm_proj.weight"]))
        loras = [name for name in values if ".lora_" in name]
        self.assertEqual(len(loras), 8)
        for name in loras:
            self.assertTrue(torch.equal(loaded[name], values[name]))
        save_file({}, folder / "other_trained.safetensors")
        self.ask("--question", "?", "--adapter", folder, "--max-new-tokens", 1)

    def test_dtype(self):
        """--dtype=bf16 computes in bf16: other numbers, nearly the same."""
        whole = self.assistant()
        narrow = generation.load(self.model, self.tokenizer, self.checkpoint, dtype=torch.bfloat16)
        self.assertEqual({p.dtype for p in narrow.model.parameters()}, {torch.bfloat16})
        question = whole.question("What?", [self.pictures[0]])
        with torch.inference_mode():
            features = [generation.features_of(a, [question]) for a in (whole, narrow)]
        difference = (features[0] - features[1].float()).norm() / features[0].norm()
        self.assertTrue(1e-4 < difference < 0.1, difference)
        self.ask("--question", "What?", "--image", self.pictures[0], "--dtype", "bf16", "--max-new-tokens", 2)

    def test_usage(self):
        """Wrong usage exits with 2."""
        for options, text in (
            ((), "one of the arguments --question --questions is required"),
            (("--question", "?", "--questions", "x"), "not allowed with argument --question"),
            (("--questions", "x", "--image", "y"), "--image is for --question"),
            (("--question", "?", "--images-root", "y"), "--images-root is for --questions"),
            (("--question", "?", "--checkpoint", "x", "--adapter", "y"), "not allowed with argument"),
            (("--question", "?", "--max-new-tokens", 0), "invalid count value: '0'"),
            (("--question", "?", "--batch", "x"), "invalid count value: 'x'"),
        ):
            self.assertIn(text, self.error(*options, status=2))


if __name__ == "__main__":
    unittest.main()
