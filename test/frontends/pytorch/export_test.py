"""mgq-export minigpt4qwen: what each option writes, and that the model means what it should."""

import fnmatch
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

import onnx
import torch
from export_case import ExportTest, first, load, random_records, torch_loss
from mgq import export_minigpt4qwen, minigpt4qwen, onnx_weights, parts
from mgq.architecture import SIZES, Architecture, Lora
from mgq.sources.random import RandomSource
from safetensors.torch import load_file

VIT = "visual_encoder.encoder.layers"


def operators(path):
    """Operator -> how many nodes of a model file."""
    return Counter(node.op_type for node in read(path).graph.node)


def read(path):
    """The ModelProto without external data."""
    return onnx.load(path, load_external_data=False)


def metadata(path):
    """Metadata of a model file."""
    return onnx_weights.read_metadata(read(path))


def shapes(values):
    """name -> shape of graph inputs or outputs; names for symbolic dimensions."""
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in values}


class OptionsTest(ExportTest):
    """The smallest size."""

    def test_defaults(self):
        """Metadata, inputs and names that docs/Frontend.md promises."""
        path = self.export("--size", "tiny")
        self.assertEqual(metadata(path), {
            "mgq.image_token_id": "5", "mgq.tokens_per_image": "4", "mgq.images": "1",
            "mgq.image_size": "28", "mgq.length": "24", "mgq.vocabulary": "256",
            "mgq.train": "projection", "mgq.trainable": "llm_proj.*",
            "mgq.architecture": SIZES["tiny"].to_json(),
            "pixel_values.mean": "0.48145466,0.4578275,0.40821073",
            "pixel_values.std": "0.26862954,0.26130258,0.27577711",
        })
        graph = read(path).graph
        self.assertEqual(shapes(graph.input), {
            "pixel_values": [1, 3, 28, 28], "input_ids": [1, 24],
            "attention_mask": [1, 24], "labels": [1, 24]})
        self.assertEqual(shapes(graph.output), {"loss": []})
        self.assertEqual(read(path).opset_import[0].version, 20)
        self.check_names(path, None)

    def check_names(self, path, lora):
        """Every parameter is there under its name; no other weights are."""
        model = minigpt4qwen.build(SIZES["tiny"], 5, lora=lora)
        names = {name for name, _ in model.named_parameters()}
        found = {t.name: t for t in read(path).graph.initializer}
        self.assertEqual(names - set(found), set())
        tables = [n for n, t in found.items() if n not in names and
                  t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1]
        self.assertTrue(all(list(found[n].dims)[:2] == [1, 1] for n in tables), tables)

    def test_shapes(self):
        """--images, --length, --image-size, --micro-batch, --image-token-id."""
        path = self.export("--size", "tiny", "--images", 3, "--length", 40, "--image-size", 42,
                           "--micro-batch", 2, "--image-token-id", 0, "--no-weights")
        self.assertEqual(shapes(read(path).graph.input), {
            "pixel_values": [2, 3, 3, 42, 42], "input_ids": [2, 40],
            "attention_mask": [2, 40], "labels": [2, 40]})
        found = metadata(path)
        self.assertEqual([found[f"mgq.{key}"] for key in
                          ("images", "length", "image_size", "image_token_id")],
                         ["3", "40", "42", "0"])
        self.assertEqual(Architecture.from_json(found["mgq.architecture"]).image, 42)

    def test_adapters(self):
        """--lora: ranks, targets and metadata; every adapter has its own weights, no Dropout."""
        path = self.export("--size", "tiny", "--lora", "r=3,alpha=6,targets=q_proj,down_proj")
        lora = Lora(3, 6.0, 0.0, ("q_proj", "down_proj"))
        self.assertEqual(Lora.from_json(metadata(path)["mgq.lora"]), lora)
        self.assertEqual(metadata(path)["mgq.train"], "projection,lora")
        self.assertEqual(metadata(path)["mgq.trainable"], "llm_proj.*,*.lora_[AB].*")
        self.check_names(path, lora)
        ranks = {t.name: list(t.dims) for t in read(path).graph.initializer if ".lora_A." in t.name}
        self.assertEqual(sorted(ranks.values()), [[3, 64], [3, 64], [3, 128], [3, 128]])
        self.assertEqual(operators(path)["Dropout"], 0)

    def test_dropout(self):
        """Adapters' dropout is in training mode, one for each adapter; nothing else drops."""
        path = self.export("--size", "tiny", "--lora", "dropout=0.05", "--no-weights")
        graph = read(path).graph
        drops = [node for node in graph.node if node.op_type == "Dropout"]
        self.assertEqual(len(drops), 4)
        constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer
                     if not t.external_data}
        for node in drops:
            self.assertAlmostEqual(float(constants[node.input[1]]), 0.05, places=6)
            self.assertTrue(constants[node.input[2]])
            self.assertEqual(list(node.attribute), [])

    def test_opsets(self):
        """Attention stays one op where the opset has it."""
        for opset, attention in ((18, 0), (23, 6)):
            path = self.export("--size", "tiny", "--opset", opset, "--no-weights")
            self.assertEqual(read(path).opset_import[0].version, opset)
            self.assertEqual(operators(path)["Attention"] >= attention, True)
            self.assertEqual(operators(path)["Attention"] == 0, opset == 18)

    def test_no_path(self):
        """Nothing in the file tells where it was made."""
        for options in (["--lora"], ["--opset", "23", "--features"]):
            content = self.export("--size", "tiny", *options).read_bytes()
            for path in (self.work, Path.cwd(), Path.home(), Path(torch.__file__).parents[1],
                         Path(minigpt4qwen.__file__).parent):
                self.assertNotIn(str(path).encode(), content)
            self.assertNotIn(b".py", content)
            self.assertNotIn(b"site-packages", content)

    def test_seed(self):
        """--seed makes the weights; every parameter has its own."""
        files = [self.export("--size", "tiny", "--seed", seed, name=f"{i}.onnx")
                 for i, seed in enumerate((1, 1, 2))]
        contents = [file.read_bytes() for file in files]
        self.assertEqual(contents[0], contents[1])
        self.assertNotEqual(contents[0], contents[2])

    def test_data(self):
        """--data writes records that the model takes."""
        data = self.work / "d.safetensors"
        path = self.export("--size", "tiny", "--micro-batch", 2, "--data", data, "--records", 3)
        records = load_file(data)
        self.assertEqual(list(records["pixel_values"].shape), [3, 2, 3, 28, 28])
        self.assert_close(self.run_graph(path, first(records)), torch_loss(load(path), first(records)))


class PartsTest(unittest.TestCase):
    """--train means exactly the parameters it names."""

    def trained(self, text, lora=None):
        """Names of the parameters that the globs of --train match."""
        model = minigpt4qwen.build(SIZES["tiny"], 5, lora=lora)
        blocks = SIZES["tiny"].vision.layers
        globs = parts.trainable_globs(parts.parse_parts(text, lora, blocks), blocks).split(",")
        names = [name for name, _ in model.named_parameters()]
        for glob in globs:
            self.assertTrue(fnmatch.filter(names, glob), glob)
        return names, {n for n in names if any(fnmatch.fnmatchcase(n, g) for g in globs)}

    def test_parts(self):
        starts = {
            "projection": ["llm_proj."],
            "queries": ["query_tokens"],
            "pos_embed": ["visual_encoder.embeddings.position_embedding"],
            "qformer": ["Qformer.", "visual_encoder.post_layernorm."],
            "vit_last=1": [f"{VIT}.1."],
            "vit_last=2": [f"{VIT}.0.", f"{VIT}.1."],
            "llm": ["llm_model."],
            "queries,vit_last=1": ["query_tokens", f"{VIT}.1."],
        }
        for text, expected in starts.items():
            names, found = self.trained(text)
            self.assertEqual(found, {n for n in names if n.startswith(tuple(expected))}, text)
            self.assertTrue(found)

    def test_lora(self):
        names, found = self.trained("lora", Lora())
        self.assertEqual(found, {n for n in names if ".lora_A." in n or ".lora_B." in n})
        self.assertEqual(len(found), 8)

    def test_text(self):
        """The text of --train goes back to itself."""
        for text in ("projection,queries,vit_last=2", "llm"):
            self.assertEqual(str(parts.parse_parts(text, None, 2)), text)


class MeaningTest(ExportTest):
    """What the graphs compute."""

    def test_own_images(self):
        """A sample takes its own images: samples with 2, 1 and 0 images give in one
        micro-batch what they give alone."""
        path = self.export("--size", "tiny", "--images", 2, "--micro-batch", 3, "--length", 32)
        model = load(path)
        batch = first(random_records(model, 1, 3))
        places = (batch["input_ids"] == 5).nonzero()
        batch["input_ids"][1][places[places[:, 0] == 1, 1][4:]] = 9
        batch["input_ids"][2][batch["input_ids"][2] == 5] = 9
        batch["labels"][1, :20] = -100
        alone, counts = [], []
        for sample in range(3):
            one = {name: tensor[sample : sample + 1] for name, tensor in batch.items()}
            alone.append(torch_loss(model, one))
            counts.append((one["labels"][:, 1:] != -100).sum().item())
        expected = sum(a * c for a, c in zip(alone, counts)) / sum(counts)
        self.assert_close(torch_loss(model, batch), expected)
        self.assert_close(self.run_graph(path, batch), expected)
        # Pixels of an image without tokens change nothing; those of the first do.
        changed = {**batch, "pixel_values": batch["pixel_values"].clone()}
        changed["pixel_values"][1, 1] += 1
        changed["pixel_values"][2] += 1
        self.assertEqual(torch_loss(model, changed), torch_loss(model, batch))
        changed["pixel_values"][1, 0] += 1
        self.assertNotEqual(torch_loss(model, changed), torch_loss(model, batch))

    def test_gradients(self):
        """The compiled model's gradients are PyTorch's, for parts before and after the images'
        place; the number of samples is chosen at compile time."""
        path = self.export("--size", "tiny", "--micro-batch", "dynamic", "--images", 2,
                           "--length", 32, "--train", "projection,queries,pos_embed,vit_last=1")
        self.assertEqual(shapes(read(path).graph.input)["pixel_values"], ["batch", 2, 3, 28, 28])
        model = load(path)
        records = random_records(model, 1, 3)
        records["input_ids"][0, 0][records["input_ids"][0, 0] == 5] = 9
        log, gradients = self.train(path, records, compile_options=["--dim=batch=3"])
        names = dict(model.named_parameters())
        for name in gradients:
            names[name].requires_grad_()
        loss = model(**first(records))
        loss.backward()
        self.assert_close(log[0]["loss"], loss.item())
        self.assertEqual(len(gradients), 2 + 1 + 1 + 12)
        for name, gradient in gradients.items():
            self.assert_close(gradient, names[name].grad, 1e-4)

    def test_bf16(self):
        """--dtype bf16 holds for what does not train, and for a whole language model."""
        value = RandomSource(0).draw("query_tokens", (1, 4, 32))
        cases = {
            "projection": ["llm_proj."],
            "queries,pos_embed,vit_last=1": [
                "query_tokens", "visual_encoder.embeddings.position_embedding", f"{VIT}.1."],
            "llm": [],
        }
        for train, kept in cases.items():
            path = self.export("--size", "tiny", "--dtype", "bf16", "--train", train)
            types = {t.name: t.data_type for t in read(path).graph.initializer}
            for name, _ in minigpt4qwen.build(SIZES["tiny"], 5).named_parameters():
                wide = name.startswith(tuple(kept)) if kept else False
                self.assertEqual(types[name] == onnx.TensorProto.FLOAT, wide, name)
            found = dict(load(path).named_parameters())["query_tokens"]
            expected = value if "queries" in train else value.bfloat16().float()
            self.assertTrue(torch.equal(found, expected))
        path = self.export("--size", "tiny", "--dtype", "bf16", "--lora")
        adapters = [t for t in read(path).graph.initializer if ".lora_" in t.name]
        self.assertEqual({t.data_type for t in adapters}, {onnx.TensorProto.FLOAT})

    def features(self, train, name, features, *options):
        """A graph with --features and its prefix, named and shaped as they should be."""
        shape = ["--size", "tiny", "--images", 2, "--micro-batch", 2]
        rest = self.export(*shape, "--train", train, "--features", *options, name="rest.onnx")
        prefix = self.work / "rest.prefix.onnx"
        for file in (rest, prefix):
            self.assertEqual(metadata(file)["mgq.features"], name)
        self.assertNotIn("mgq.trainable", metadata(prefix))
        self.assertEqual(shapes(read(prefix).graph.output), {"image_features": features})
        self.assertEqual(list(shapes(read(prefix).graph.input)), ["pixel_values"])
        return rest, prefix

    def test_features_are_cut_below_what_trains(self):
        """The prefix ends before the first module that trains, whichever that is."""
        self.features("queries", f"{VIT}.1", [2, 2, 5, 32], "--no-weights")
        self.features("vit_last=2", "visual_encoder.embeddings", [2, 2, 5, 32], "--no-weights")

    def test_features(self):
        """The prefix and the rest give the bits of the whole, behind and within the ViT."""
        cuts = {
            "projection": ("Qformer", [2, 2, 4, 32]),
            "qformer,vit_last=1": (f"{VIT}.0", [2, 2, 5, 32]),
        }
        shape = ["--size", "tiny", "--images", 2, "--micro-batch", 2]
        for train, (name, features) in cuts.items():
            whole = self.export(*shape, "--train", train, name="whole.onnx")
            rest, prefix = self.features(train, name, features)
            records = random_records(load(whole), 1, 2)
            batch = first(records)
            expected, gradients = self.train(whole, records)
            found = self.run_graph(prefix, {"pixel_values": batch["pixel_values"]},
                                   "image_features")
            records["image_features"] = found.unsqueeze(0)
            del records["pixel_values"]
            log, again = self.train(rest, records)
            self.assertEqual(log[0]["loss"], expected[0]["loss"])
            self.assertEqual(sorted(again), sorted(gradients))
            for key, gradient in gradients.items():
                self.assertTrue(torch.equal(again[key], gradient), key)
            self.assertEqual(torch_loss(load(rest), batch), torch_loss(load(whole), batch))

    def test_parts_of_features(self):
        """In PyTorch, FrozenPrefix and FromFeatures are the two halves of the model."""
        weights = RandomSource(4)
        made = [minigpt4qwen.fill(
            minigpt4qwen.build(SIZES["tiny"], 5, 1, None, part, 1),
            lambda name, shape: weights.draw(name, shape),
        ) for part in (minigpt4qwen.MiniGPT4Qwen, minigpt4qwen.FrozenPrefix,
                       minigpt4qwen.FromFeatures)]
        batch = first(random_records(made[0]))
        pixels = batch.pop("pixel_values")
        with torch.no_grad():
            whole = made[0](pixels, **batch)
            self.assertEqual(made[2](made[1](pixels), **batch), whole)


class WeightsTest(ExportTest):
    """Weights in the file and beside it."""

    def test_outside(self):
        """Weights beside the file are those inside it; load_model reads both."""
        options = ["--size", "tiny", "--lora"]
        inside = self.export(*options, name="in.onnx")
        with mock.patch.object(onnx_weights, "INLINE_LIMIT", 1000):
            outside = self.export(*options, name="out.onnx")
        self.assertLess(outside.stat().st_size, inside.stat().st_size / 2)
        found, expected = (dict(load(path).named_parameters()) for path in (outside, inside))
        source = RandomSource(0)
        self.assertEqual(list(found), list(expected))
        for name, value in found.items():
            self.assertTrue(torch.equal(value, expected[name]), name)
            self.assertTrue(torch.equal(value, source.draw(name, tuple(value.shape))), name)
        batch = first(random_records(load(outside)))
        self.assertEqual(self.run_graph(outside, batch), self.run_graph(inside, batch))
        onnx.checker.check_model(outside)

    def test_no_weights(self):
        """--no-weights writes the same graph, and names the file that is not there."""
        path = self.export("--size", "tiny", "--no-weights")
        self.assertEqual([p.name for p in self.work.iterdir()], [path.name])
        places = [{e.key: e.value for e in t.external_data} for t in read(path).graph.initializer
                  if t.external_data]
        self.assertEqual({place["location"] for place in places}, {"model.onnx.data"})
        whole = self.export("--size", "tiny", name="whole.onnx")
        weights = sum(int(place["length"]) for place in places)
        self.assertLess(path.stat().st_size, whole.stat().st_size - 0.9 * weights)
        self.assertEqual([n.op_type for n in read(path).graph.node],
                         [n.op_type for n in read(whole).graph.node])
        self.tool("MGQ_COMPILE", path, "-o", self.work / "ir.mlir", "--stop-after=kernels")

    def test_ordinary_export(self):
        """Tracing without values gives the graph and weights of a model that has them."""
        from mgq import onnx_export

        model = minigpt4qwen.build(SIZES["tiny"], 5)
        source = RandomSource(0)
        minigpt4qwen.fill(model, source.draw)
        exported = onnx_export.export_graph(model, minigpt4qwen.example(model, 1))
        values = dict(model.named_parameters())
        ordinary = self.work / "ordinary.onnx"
        onnx_weights.save(exported, ordinary, lambda name, shape: source.tensor(name, shape))
        path = self.export("--size", "tiny")
        a, b = onnx.load(path).graph, onnx.load(ordinary).graph
        self.assertEqual([n.SerializeToString() for n in a.node],
                         [n.SerializeToString() for n in b.node])
        self.assertEqual([t.SerializeToString() for t in a.initializer],
                         [t.SerializeToString() for t in b.initializer])
        self.assertEqual(set(values) - {t.name for t in b.initializer}, set())


class RequestTest(unittest.TestCase):
    """Who stays f32."""

    def test_stored_as_bf16(self):
        trained = parts.parse_parts("projection,vit_last=1", None, 2)
        globs = parts.trainable_globs(trained, 2)
        stored = export_minigpt4qwen.stored_as_bf16
        self.assertFalse(stored("llm_proj.bias", trained, globs))
        self.assertFalse(stored(f"{VIT}.1.mlp.fc1.weight", trained, globs))
        self.assertTrue(stored(f"{VIT}.0.mlp.fc1.weight", trained, globs))
        self.assertTrue(stored("llm_model.lm_head.weight", trained, globs))


if __name__ == "__main__":
    unittest.main()
