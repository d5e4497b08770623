"""What mgq-export minigpt4qwen says about wrong options and damaged checkpoints.

No case may leave a file behind (export_case).
"""

import json
import shutil
import unittest

import checkpoints
import torch
from export_case import ExportTest, load
from safetensors.torch import load_file, save_file

SIZE = ["--size", "tiny"]


class OptionErrors(ExportTest):
    """Wrong options are refused before any work."""

    def test_usage(self):
        """What argparse refuses is wrong usage, status 2."""
        self.fails("invalid choice: 'huge'", "--size", "huge", status=2)
        self.fails("'0' is neither a number from 1 nor 'dynamic'", *SIZE, "--micro-batch", 0, status=2)
        self.fails("'many' is neither", *SIZE, "--micro-batch", "many", status=2)
        self.fails("invalid choice: 'f16'", *SIZE, "--dtype", "f16", status=2)

    def test_sources(self):
        """Either a size or all three sources."""
        self.fails("--vision, --qformer, --llm missing: give")
        self.fails("--qformer, --llm missing: give", "--vision", "x")
        self.fails("give either --size, .*, or --vision", *SIZE, "--llm", "x")
        self.fails("give either --size, .*, or --vision", *SIZE, "--projection", "x")

    def test_train(self):
        """--train names parts of the model, each once, that agree with --lora."""
        self.fails("--train: 'vision' is no part of the model; the parts are projection, lora, ",
                   *SIZE, "--train", "vision")
        self.fails("'projection=1' is no part", *SIZE, "--train", "projection=1")
        self.fails("'vit_last' is no part", *SIZE, "--train", "vit_last")
        self.fails("'' is no part", *SIZE, "--train", "projection,")
        self.fails("'queries' is given twice", *SIZE, "--train", "queries,queries")
        for k in ("0", "3", "x", "-1"):
            self.fails(f"'vit_last={k}': the ViT has 2 blocks, K must be from 1 to 2", *SIZE,
                       "--train", f"vit_last={k}")
        self.fails("has 'lora', but the model has no adapters; add --lora", *SIZE, "--train", "lora")
        self.fails("leave one out", *SIZE, "--lora", "--train", "lora,llm")
        self.fails("--train does not train them", *SIZE, "--lora", "--train", "projection")

    def test_lora(self):
        """--lora has four settings with their ranges, and targets that exist."""
        self.fails("no such setting 'rank'", *SIZE, "--lora", "rank=8")
        self.fails("'q_proj' is not of the form NAME=VALUE", *SIZE, "--lora", "r=8,q_proj")
        self.fails("'r' is given twice", *SIZE, "--lora", "r=8,r=8")
        for word, wanted in (("r=0", "a whole number from 1"), ("r=x", "a whole number from 1"),
                             ("r=1.5", "a whole number from 1"), ("alpha=0", "a number above 0"),
                             ("alpha=inf", "a number above 0"),
                             ("dropout=1", "a number from 0 to below 1"),
                             ("dropout=nan", "a number from 0 to below 1")):
            self.fails(f"{word.split('=')[0]} must be {wanted}.*, not", *SIZE, "--lora", word)
        self.fails("LoRA target 'qproj' does not exist in the language model; its linear modules "
                   "are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj",
                   *SIZE, "--lora", "targets=q_proj,qproj")
        self.fails("LoRA target 'lm_head' does not exist", *SIZE, "--lora", "targets=lm_head")
        self.fails("LoRA target '' does not exist", *SIZE, "--lora", "targets=")

    def test_numbers(self):
        """Numbers out of range."""
        self.fails("--opset 17 is not supported yet; 18 to 23 are", *SIZE, "--opset", 17)
        self.fails("--opset 24 is not supported yet", *SIZE, "--opset", 24)
        for name in ("images", "length", "image-size", "records"):
            self.fails(f"--{name} must be at least 1, not 0", *SIZE, f"--{name}", 0)
        self.fails("no room for text: 6 images take 24 tokens", *SIZE, "--images", 6)
        self.fails("image of 30 pixels is not a whole number of patches of 14", *SIZE,
                   "--image-size", 30)
        self.fails("image token 256 is not in the vocabulary of 256", *SIZE, "--image-token-id", 256)

    def test_features(self):
        """Position embeddings are used before anything could be stored."""
        self.fails("--features: 'pos_embed' trains", *SIZE, "--features", "--train", "pos_embed")

    def test_output(self):
        """A folder that does not exist."""
        status, err = self.run_command("minigpt4qwen", *SIZE, "-o", self.work / "none" / "m.onnx")
        self.assertEqual(status, 1)
        self.assertRegex(err, "cannot write '.*none/m.onnx': its folder does not exist")
        self.fails("cannot write '.*none/d.safetensors': its folder does not exist", *SIZE,
                   "--data", self.work / "none" / "d.safetensors")
        self.fails("--data and -o both name", *SIZE, "--data", self.work / "refused.onnx")
        (self.work / "folder").mkdir()
        self.fails("cannot write '.*folder': it is a folder", *SIZE, "--data", self.work / "folder")


class CheckpointErrors(ExportTest):
    """Checkpoints that are damaged, incomplete, or of something else."""

    def setUp(self):
        super().setUp()
        draw = checkpoints.Draw(1)
        self.eva, self.blip2 = checkpoints.make_eva(draw), checkpoints.make_blip2(draw)
        self.qwen = checkpoints.make_qwen(draw)
        torch.save(self.eva, self.work / "eva.pth")
        torch.save({"model": self.blip2}, self.work / "blip2.pth")
        checkpoints.write_qwen(self.work / "qwen", self.qwen)

    def options(self, vision="eva.pth", qformer="blip2.pth", llm="qwen"):
        return ["--vision", self.work / vision, "--qformer", self.work / qformer, "--llm",
                self.work / llm, "--image-token-id", 7, "--length", 24]

    def save(self, name, tensors):
        torch.save(tensors, self.work / name)
        return name

    def without(self, tensors, name):
        return {key: value for key, value in tensors.items() if key != name}

    def test_paths(self):
        """What is not there, or of the wrong kind."""
        self.fails("'.*none' does not exist", *self.options("none"))
        self.fails("'.*none' does not exist", *self.options(llm="none"))
        self.fails("--llm '.*eva.pth' is not a folder", *self.options(llm="eva.pth"))
        self.fails("cannot read '.*x/config.json': No such file", *self.options(llm=self.empty("x")))
        self.fails("'.*config.json' is not JSON", *self.options(llm=self.empty("y", "{")))
        self.fails("config.json' has model_type 'qwen'; expected blip-2 or blip_2_vision_model",
                   *self.options("qwen"))
        self.fails("has model_type 'qwen'; expected blip-2 or blip_2_qformer",
                   *self.options(qformer="qwen"))
        llama = self.empty("llama", json.dumps({"model_type": "llama"}))
        self.fails("not supported yet: .* of type 'llama'; qwen2 and qwen are", *self.options(llm=llama))
        self.fails("has no weights: neither model.safetensors nor pytorch_model.bin",
                   *self.options(llm=self.empty("z", json.dumps(checkpoints.QWEN_CONFIG))))
        self.fails("no <|extra_0|>.*--image-token-id".replace("|", r"\|"), *self.options()[:6], "--length", 24)

    def empty(self, name, config=None):
        """A folder with nothing but a config.json."""
        (self.work / name).mkdir()
        if config is not None:
            (self.work / name / "config.json").write_text(config)
        return name

    def test_missing_tensors(self):
        """A tensor that is not there is named with its file."""
        cases = {
            "eva": (self.eva, ["blocks.1.attn.v_bias", "pos_embed", "cls_token",
                               "blocks.0.mlp.fc1.weight", "blocks.1.norm2.bias"]),
            "blip2": (self.blip2, ["query_tokens", "ln_vision.bias",
                                   "Qformer.bert.encoder.layer.2.crossattention.self.key.bias",
                                   "Qformer.bert.encoder.layer.1.output_query.dense.weight"]),
        }
        for kind, (tensors, names) in cases.items():
            for name in names:
                file = self.save("part.pth", self.without(tensors, name))
                options = self.options(file) if kind == "eva" else self.options(qformer=file)
                self.fails(f"'.*part.pth' has no tensor '{name}'", *options)
        for name in ("transformer.h.1.attn.c_attn.bias", "lm_head.weight", "transformer.h.0.mlp.w2.weight"):
            checkpoints.write_qwen(self.work / "qwen", self.without(self.qwen, name))
            self.fails(f"'.*qwen' has no tensor '{name}'", *self.options())

    def test_wrong_shapes(self):
        """A tensor of another shape is named with both."""
        wrong = {**self.eva, "blocks.1.mlp.fc2.bias": torch.zeros(3)}
        self.fails(r"tensor 'blocks.1.mlp.fc2.bias' of '.*' has shape \[3\], expected \[176\]",
                   *self.options(self.save("wrong.pth", wrong)))
        wrong = {**self.qwen, "transformer.h.0.attn.c_attn.weight": torch.zeros(64, 64)}
        checkpoints.write_qwen(self.work / "qwen", wrong)
        self.fails(r"c_attn.weight' of '.*' has shape \[64, 64\], expected \[192, 64\]", *self.options())
        torch.save({"llm_proj.weight": torch.zeros(5, 5)}, self.work / "proj.pth")
        checkpoints.write_qwen(self.work / "qwen", self.qwen)
        projection = ["--projection", self.work / "proj.pth"]
        self.fails("'.*proj.pth' has no tensor 'llm_proj.bias'|expected", *self.options(), *projection)

    def test_not_checkpoints(self):
        """Files of something else."""
        self.fails("is no EVA-ViT of LAVIS", *self.options("blip2.pth"))
        self.fails("is no BLIP-2 checkpoint of LAVIS", *self.options(qformer="eva.pth"))
        (self.work / "text.pth").write_text("hello")
        self.fails("cannot read '.*text.pth' as a PyTorch checkpoint", *self.options("text.pth"))
        self.fails("holds no dictionary of tensors", *self.options(self.save("list.pth", [1])))
        code = self.save("code.pth", {"model": {"a": Harmless()}})
        self.fails("cannot read '.*code.pth'.*holds more than tensors", *self.options(code))

    def test_truncated(self):
        """A file that ends early is named."""
        whole = (self.work / "eva.pth").read_bytes()
        (self.work / "short.pth").write_bytes(whole[: len(whole) // 2])
        self.fails("cannot read '.*short.pth' .*truncated", *self.options("short.pth"))
        weights = self.work / "qwen" / "model.safetensors"
        whole = weights.read_bytes()
        for length, message in ((len(whole) - 1, "is truncated: it ends before tensor"),
                                (100, "not a whole safetensors header"), (3, "not a whole")):
            weights.write_bytes(whole[:length])
            self.fails(message, *self.options())
        weights.write_bytes(whole[:8] + b"x" * (len(whole) - 8))
        self.fails("its safetensors header is not readable", *self.options())

    def test_index(self):
        """An index that names shards or tensors that are not there."""
        folder = self.work / "shards"
        checkpoints.write_qwen(folder, self.qwen, shards=3)
        shard = folder / "model-00002-of-00003.safetensors"
        tensors = load_file(shard)
        name = sorted(tensors)[0]
        save_file(self.without(tensors, name), shard)
        self.fails(f"promises tensor '{name}' in 'model-00002-of-00003.safetensors', which lacks",
                   *self.options(llm="shards"))
        shard.unlink()
        self.fails("index.json' names 'model-00002-of-00003.safetensors', which does not exist",
                   *self.options(llm="shards"))
        (folder / "model.safetensors.index.json").write_text("{}")
        self.fails("index.json' is damaged: it has no weight_map", *self.options(llm="shards"))

    def test_refused_settings(self):
        """Settings of a folder that the model here does not have."""
        cases = [({"no_bias": False}, "no_bias False; True is"),
                 ({"rotary_pct": 0.5}, "rotary_pct 0.5; 1.0 is"),
                 ({"kv_channels": 8}, "kv_channels 8 with 4 heads for width 64"),
                 ({"seq_length": 16}, "--length 24 is beyond the 16 tokens"),
                 ({"tie_word_embeddings": True}, "tie_word_embeddings True")]
        for change, message in cases:
            checkpoints.write_qwen(self.work / "qwen", self.qwen, **change)
            self.fails(f"not supported yet: .*{message}", *self.options())
        base = {"model_type": "qwen2", **checkpoints.qwen2_config()}
        cases = [({"hidden_act": "gelu"}, "not supported yet: .*hidden_act 'gelu'; 'silu' is"),
                 ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None},
                  "rotary embedding of type 'yarn'"),
                 ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
                  "sliding window of 8 tokens, and --length is 24"),
                 ({"max_position_embeddings": 16}, "--length 24 is beyond the 16 positions")]
        for i, (change, message) in enumerate(cases):
            folder = self.empty(f"qwen2-{i}", json.dumps(base | change))
            self.fails(message, *self.options(llm=folder))
        del base["hidden_size"]
        folder = self.empty("no-size", json.dumps(base))
        self.fails("no-size/config.json' has no 'hidden_size'", *self.options(llm=folder))

    def test_config_numbers(self):
        """Numbers of config.json that are none, or that do not fit one another."""
        base = {"model_type": "qwen2", **checkpoints.qwen2_config(rope_parameters=None)}
        cases = [({"num_hidden_layers": "two"}, "num_hidden_layers is 'two', expected a whole number"),
                 ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number"),
                 ({"num_attention_heads": 3}, "64 is not a multiple of num_attention_heads 3"),
                 ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
                 ({"rope_theta": "x"}, "rope_theta is 'x', expected a number above 0"),
                 ({"rms_norm_eps": -1}, "rms_norm_eps is -1, expected a number above 0")]
        for i, (change, message) in enumerate(cases):
            folder = self.empty(f"numbers-{i}", json.dumps(base | change))
            self.fails(f"numbers-{i}/config.json': .*{message}", *self.options(llm=folder))
        checkpoints.write_qwen(self.work / "qwen", self.qwen, vocab_size=None)
        self.fails("vocab_size is None, expected a whole number", *self.options())

    def test_quantised(self):
        """Integers are no weights."""
        name = "transformer.h.0.mlp.w1.weight"
        tensors = self.qwen | {name: (self.qwen[name] * 10).to(torch.int8)}
        checkpoints.write_qwen(self.work / "qwen", tensors)
        self.fails(f"not supported yet: tensor '{name}' of .* has type torch.int8, as weights that "
                   "were quantised", *self.options())

    def test_whole_file_goes_first(self):
        """An index beside a whole file is left over from before, as transformers sees it."""
        (self.work / "qwen" / "model.safetensors.index.json").write_text("{}")
        status, err = self.run_command("minigpt4qwen", *self.options(), "--no-weights", "-o",
                                       self.work / "model.onnx")
        self.assertEqual((status, err), (0, ""))

    def test_mixed(self):
        """A ViT file needs the norm that its Q-Former's file has."""
        checkpoints.write_blip2(self.work / "hf", self.eva | self.blip2)
        self.fails("--vision '.*eva.pth' is a file of LAVIS, whose last norm is in its Q-Former's",
                   *self.options(qformer="hf"))


class LoadErrors(ExportTest):
    """load_model of files that are no exports, or incomplete."""

    def test_load(self):
        from mgq.errors import UserError

        path = self.export(*SIZE, "--no-weights")
        for file, message in ((path, "cannot read '.*model.onnx.data': No such file"),
                              (self.work / "none.onnx", "cannot read '.*none.onnx'"),
                              (self.text("x.onnx"), "'.*x.onnx' is not an ONNX model")):
            with self.assertRaisesRegex(UserError, message):
                load(file)
        rest = self.export(*SIZE, "--features", name="rest.onnx")
        (self.work / "rest.prefix.onnx").unlink()
        with self.assertRaisesRegex(UserError, "cannot read '.*rest.prefix.onnx'"):
            load(rest)
        shutil.rmtree(self.work)
        self.work.mkdir()

    def text(self, name):
        (self.work / name).write_text("hello")
        return self.work / name


class Harmless:
    """An object that a checkpoint must not bring to life."""


if __name__ == "__main__":
    unittest.main()
