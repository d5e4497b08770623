"""mgq-adapter to PEFT and back: names, settings, kinds of models, and what it refuses."""

import json
import os
import resource
import subprocess
import sys
import unittest
from pathlib import Path

import fixtures
import numpy as np
import onnx
import torch
from adapter_case import LORA, AdapterTest, export_tiny, random_values, write_checkpoint
from mgq.adapters.model import Model
from mgq.commands import adapter
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def write_model(path, shapes, metadata):
    """Writes an ONNX file with parameters of these shapes, random, and a sum of them as its loss."""
    rng = np.random.default_rng(3)
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [helper.make_node("ReduceSum", [n], [f"sum{i}"], keepdims=0) for i, n in enumerate(shapes)]
    nodes.append(helper.make_node("Sum", [f"sum{i}" for i in range(len(shapes))], ["loss"]))
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    model = helper.make_model(helper.make_graph(nodes, "model", [], [loss], weights))
    helper.set_model_props(model, metadata)
    onnx.save(model, str(path))
    return Path(path)


def lora_shapes(module, r=2, width=4):
    """Parameters of an adapted linear module."""
    return {
        f"{module}.base_layer.weight": (width, width),
        f"{module}.lora_A.default.weight": (r, width), f"{module}.lora_B.default.weight": (width, r),
    }


class PeftTest(AdapterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = export_tiny(cls.shared / "model.onnx", "--lora", LORA + ",dropout=0.25")
        cls.values = random_values(cls.model)
        cls.checkpoint = write_checkpoint(cls.shared / "out" / "checkpoint-7", cls.values)

    def to_peft(self, *options, source=None, model=None, output="adapter"):
        return self.done(adapter, source or self.checkpoint, "--model", model or self.model,
                         "-o", self.work / output, *options)

    def back(self, *options, source="adapter", model=None):
        return self.done(adapter, self.work / source, "--model", model or self.model,
                         "-o", self.work / "back", "--to=checkpoint", *options)

    def error(self, *options, source=None, model=None, output="failed", status=1):
        """The message of a refused conversion, which leaves nothing behind."""
        before = sorted(self.work.rglob("*"))
        message = self.refused(adapter, source or self.checkpoint, "--model", model or self.model,
                               "-o", self.work / output, *options, status=status)
        self.assertEqual(sorted(self.work.rglob("*")), before)
        return message

    def adapter_error(self, change=None, matrices=None, *options):
        """The message for a folder of PEFT after `change` of its settings and tensors."""
        folder = self.work / "adapter"
        if not folder.exists():
            self.to_peft()
            self.settings = json.loads((folder / "adapter_config.json").read_text())
            self.matrices = load_file(folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(self.settings | (change or {})))
        save_file(self.matrices | (matrices or {}), folder / "adapter_model.safetensors")
        return self.error("--to=checkpoint", *options, source=folder)

    # To PEFT.

    def test_files(self):
        """PEFT's names, its settings from the model's metadata, the rest under its own names."""
        out = self.to_peft("--base-model", "org/base")
        self.assertIn("adapter_config.json, adapter_model.safetensors, other_trained.safetensors", out)
        folder = self.work / "adapter"
        settings = json.loads((folder / "adapter_config.json").read_text())
        self.assertEqual(settings, settings | {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base", "r": 4,
            "lora_alpha": 8, "lora_dropout": 0.25, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        })
        start = "llm_model.base_model.model.model.layers.0.self_attn.q_proj.lora_"
        matrices = load_file(folder / "adapter_model.safetensors")
        self.assertEqual(len(matrices), 8)
        for side in "AB":
            self.assertTrue(torch.equal(matrices[f"{Q0}{side}.weight"], self.values[f"{start}{side}.default.weight"]))
        other = load_file(folder / "other_trained.safetensors")
        self.equal(other, {name: v for name, v in self.values.items() if name.startswith("llm_proj.")})

    def test_model_file_alone(self):
        """The checkpoint may be given as its model.safetensors."""
        self.to_peft()
        self.to_peft(source=self.checkpoint / "model.safetensors", output="same")
        for name in ("adapter_model.safetensors", "other_trained.safetensors"):
            self.assertEqual(*((self.work / f / name).read_bytes() for f in ("adapter", "same")))

    def test_no_lora(self):
        """A projection alone gives no adapter, says so, and goes back."""
        model = export_tiny(self.work / "p.onnx")
        values = random_values(model)
        out = self.to_peft(source=write_checkpoint(self.work / "p", values), model=model)
        self.assertIn("no LoRA matrices", out)
        self.assertEqual([p.name for p in (self.work / "adapter").iterdir()], ["other_trained.safetensors"])
        self.back(model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)

    def test_all_parts(self):
        """Queries, positions, Q-Former and blocks of the ViT keep their names and come back."""
        model = export_tiny(self.work / "m.onnx", "--train=projection,queries,pos_embed,qformer,vit_last=1,lora",
                            "--lora", "r=2,targets=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
        values = random_values(model)
        self.to_peft(source=write_checkpoint(self.work / "c", values), model=model)
        other = load_file(self.work / "adapter" / "other_trained.safetensors")
        self.assertIn("query_tokens", other)
        self.assertIn("visual_encoder.embeddings.position_embedding", other)
        self.assertEqual(sorted(other), sorted(n for n in values if ".lora_" not in n))
        self.back(model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)

    def test_language_model(self):
        """Trained weights of the language model have Hugging Face's names, and come back."""
        model = export_tiny(self.work / "m.onnx", "--train=projection,llm", "--dtype=bf16")
        values = random_values(model)
        dtypes = {name: Model(model).parameters[name].dtype for name in values}
        self.assertEqual(set(dtypes.values()), {torch.float32, torch.bfloat16})
        values = {name: value.to(dtypes[name]) for name, value in values.items()}
        self.to_peft(source=write_checkpoint(self.work / "c", values), model=model)
        other = load_file(self.work / "adapter" / "other_trained.safetensors")
        for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"):
            self.assertTrue(torch.equal(other[name], values[f"llm_model.{name}"]))
        self.back(model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)

    def test_half_of_the_adapter(self):
        """Matrices that did not train come from the model: PEFT wants both sides."""
        values = {name: v for name, v in self.values.items() if ".lora_A." not in name}
        self.to_peft(source=write_checkpoint(self.work / "b", values))
        matrices = load_file(self.work / "adapter" / "adapter_model.safetensors")
        model = Model(self.model)
        name = "llm_model.base_model.model.model.layers.1.self_attn.v_proj.lora_A.default.weight"
        key = Q0.replace("layers.0", "layers.1").replace("q_proj", "v_proj") + "A.weight"
        self.assertTrue(torch.equal(matrices[key], model.parameters[name].load()))
        self.assertEqual(len(matrices), 8)

    def test_folders(self):
        """What is no checkpoint, and which one to give instead."""
        self.assertIn("cannot read", self.error(source=self.work / "nowhere"))
        self.assertIn("is a folder of checkpoints; give one of them, the last is '", self.error(source=self.shared / "out"))
        write_checkpoint(self.shared / "many" / "checkpoint-9", self.values)
        write_checkpoint(self.shared / "many" / "checkpoint-10", self.values)
        self.assertIn("checkpoint-10'", self.error(source=self.shared / "many"))
        empty = self.shared / "empty"
        empty.mkdir()
        self.assertIn("it has no model.safetensors", self.error(source=empty))
        damaged = write_checkpoint(self.work / "damaged", self.values)
        whole = (damaged / "model.safetensors").read_bytes()
        (damaged / "model.safetensors").write_bytes(whole[:-1])
        self.assertIn("is truncated", self.error(source=damaged))
        (damaged / "model.safetensors").write_bytes(b"no")
        self.assertIn("damaged or truncated", self.error(source=damaged))

    def test_other_models(self):
        """A checkpoint of another model is refused by name and by shape; so is another file."""
        other = export_tiny(self.work / "m.onnx", "--lora", "r=2")
        self.assertRegex(self.error(model=other), r"lora_A.default.weight' of .* has shape \[4, 64\], .* \[2, 64\]")
        plain = export_tiny(self.work / "p.onnx")
        self.assertIn("the model has no parameter 'llm_model.base_model", self.error(model=plain))
        self.assertIn("and 7 more", self.error(model=write_model(self.work / "w.onnx", {"w": (2,)}, {"mgq.trainable": "w"})))
        self.assertIn("is not an ONNX model", self.error(model=self.checkpoint / "model.safetensors"))
        self.assertIn("cannot read", self.error(model=self.work / "absent.onnx"))
        self.to_peft()
        self.assertIn("it is a folder of PEFT, which --to=checkpoint reads", self.error(source=self.work / "adapter"))
        torch.save({}, self.work / "model.pth")
        self.assertIn("is a file of PyTorch, which --to=checkpoint reads", self.error(source=self.work / "model.pth"))
        self.assertIn("is what --initial-parameters takes", self.error("--to=checkpoint", source=self.checkpoint))
        message = self.error("--to=checkpoint", source=self.checkpoint / "model.safetensors")
        self.assertIn("is a safetensors file; expected a folder of PEFT", message)
        integers = {"llm_proj.bias": torch.ones(64, dtype=torch.int64)}
        self.assertIn("expected floating-point", self.error(source=write_checkpoint(self.work / "i", integers)))

    def test_output(self):
        """A folder of this command is replaced, one with other things is not."""
        self.to_peft()
        self.to_peft()
        for source in ("adapter", "adapter/adapter_model.safetensors", "../" + self.work.name + "/adapter"):
            message = self.error("--to=checkpoint", source=self.work / source, output="adapter")
            self.assertIn("would replace its source", message)
        (self.work / "adapter" / "notes.txt").write_text("mine")
        self.assertIn("holds 'notes.txt', which is not mgq-adapter's", self.error(output="adapter"))
        (self.work / "file").write_text("")
        self.assertIn("it is a file", self.error(output="file"))
        self.assertIn("cannot write", self.error(output="no/such/folder"))

    def test_full_disk(self):
        """What cannot be written leaves nothing behind."""
        values = {name: v for name, v in self.values.items() if ".lora_" in name}
        lora = write_checkpoint(self.work / "lora", values)
        for source, limit, options in (
            (self.checkpoint, 5000, ()), (lora, 100, ()), (self.checkpoint, 5000, ("--to=mpp",)),
            (self.checkpoint, 100, ("--to=mpp",)),
        ):
            arguments = [source, "--model", self.model, "-o", self.work / "full", *options]
            done = subprocess.run(
                [sys.executable, "-m", "mgq.commands.adapter", *map(str, arguments)], capture_output=True, text=True,
                env=os.environ | {"PYTHONPATH": str(fixtures.ROOT / "frontends" / "pytorch")},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^mgq-adapter: error: cannot write '.*\n$")
            self.assertEqual([p.name for p in self.work.iterdir()], ["lora"])

    def test_usage(self):
        """Options that mean nothing for a format exit with 2."""
        for options in (("--to=mpp", "--base-model=x"), ("--missing=keep",), ("--trainable=*",),
                        ("--to=mpp", "--prefix=x"), ("--to=checkpoint", "--base-model=x")):
            self.assertIn("has no meaning with --to=", self.error(*options, status=2))
        self.assertIn("expected a positive number", self.error("--alpha=-1", status=2))
        self.assertIn("but the metadata of", self.error("--alpha=9"))

    # Back.

    def test_types(self):
        """An adapter in bf16, in PEFT's older file format, is widened exactly."""
        self.to_peft()
        folder = self.work / "adapter"
        narrow = {k: v.bfloat16() for k, v in load_file(folder / "adapter_model.safetensors").items()}
        torch.save(narrow, folder / "adapter_model.bin")
        (folder / "adapter_model.safetensors").unlink()
        self.back()
        wanted = {n: v.bfloat16().float() if ".lora_" in n else v for n, v in self.values.items()}
        self.equal(load_file(self.work / "back" / "model.safetensors"), wanted)

    def test_alpha(self):
        """Of another alpha, lora_B is rescaled, lora_A stays."""
        self.to_peft()
        path = self.work / "adapter" / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 16}))
        self.assertIn("lora_B is multiplied by 2", self.back())
        back = load_file(self.work / "back" / "model.safetensors")
        for name, value in self.values.items():
            self.assertTrue(torch.equal(back[name], 2 * value if ".lora_B." in name else value))

    def test_missing(self):
        """What the source lacks is an error that lists it, or the model's own."""
        self.to_peft()
        (self.work / "adapter" / "other_trained.safetensors").unlink()
        message = self.error("--to=checkpoint", source=self.work / "adapter")
        self.assertIn("lacks 2 of the 10 parameters that train: 'llm_proj.weight', 'llm_proj.bias'; --missing=keep", message)
        out = self.back("--missing=keep")
        self.assertIn("2 parameters keep the values of", out)
        wanted = {n: Model(self.model).parameters[n].load() for n in ("llm_proj.weight", "llm_proj.bias")}
        self.equal(load_file(self.work / "back" / "model.safetensors"), self.values | wanted)

    def test_trainable(self):
        """--trainable says what else trains; the rest of the source is left out and counted."""
        self.to_peft()
        self.assertIn("2 tensors of", self.back("--trainable=*.lora_[AB].*"))
        back = load_file(self.work / "back" / "model.safetensors")
        self.equal(back, {n: v for n, v in self.values.items() if ".lora_" in n})
        message = self.error("--to=checkpoint", "--trainable=nothing.*", source=self.work / "adapter")
        self.assertIn("no parameter that matches 'nothing.*'", message)

    def test_unlike_adapters(self):
        """Rank, targets and shapes must be the model's."""
        message = self.adapter_error({"r": 2})
        self.assertIn("has rank 4, its adapter_config.json says 2", message)
        shrunk = {k: (v[:2] if "lora_A" in k else v[:, :2]).contiguous() for k, v in self.matrices.items()}
        self.assertIn("exported with rank 4; export it with --lora r=2", self.adapter_error({"r": 2}, shrunk))
        extra = {Q0.replace("q_proj", "k_proj") + "A.weight": torch.ones(4, 64)}
        self.assertIn("adapts what", self.adapter_error(matrices=extra))
        self.assertIn("its targets are q_proj, v_proj", self.adapter_error(matrices=extra))
        wide = {Q0 + "A.weight": torch.ones(4, 65)}
        self.assertIn("[4, 65], the model's is [4, 64]: the adapter is of another model", self.adapter_error(matrices=wide))
        flat = {Q0 + "A.weight": torch.ones(4)}
        self.assertIn("the adapter is of another model", self.adapter_error(matrices=flat))
        plain = export_tiny(self.work / "p.onnx")
        message = self.error("--to=checkpoint", source=self.work / "adapter", model=plain)
        self.assertIn("has no LoRA; export it with --lora", message)

    def test_not_supported(self):
        """Settings that make another function of the matrices are refused by name."""
        for name, value in (
            ("use_rslora", True), ("use_dora", True), ("bias", "all"), ("modules_to_save", ["lm_head"]),
            ("peft_type", "ADALORA"), ("init_lora_weights", "pissa"),
            ("rank_pattern", {"q_proj": 2}), ("alpha_pattern", {"q_proj": 2}), ("lora_bias", True),
            ("trainable_token_indices", [1]), ("use_qalora", True), ("layer_replication", [[0, 1]]),
            ("some_later_setting", 3), ("init_lora_weights", "lora_ga"), ("alora_invocation_tokens", [1]),
        ):
            message = self.adapter_error({name: value})
            self.assertIn("not supported yet: ", message)
            self.assertIn(f"has {name} {json.dumps(value)}", message)
        quantised = {Q0 + "A.weight": torch.ones(4, 64, dtype=torch.int8)}
        self.assertIn("is quantised: torch.int8", self.adapter_error(matrices=quantised))
        self.assertIn("has r 0, expected a positive number", self.adapter_error({"r": 0}))
        self.assertIn("has lora_alpha null", self.adapter_error({"lora_alpha": None}))

    def test_damaged_folders(self):
        """Files that are not there or cannot be read."""
        self.assertIn("is no folder of PEFT", self.error("--to=checkpoint", source=self.shared))
        self.to_peft()
        folder = self.work / "adapter"
        matrices = folder / "adapter_model.safetensors"
        whole = matrices.read_bytes()
        matrices.write_bytes(whole[: len(whole) // 2])
        self.assertIn("is truncated", self.error("--to=checkpoint", source=folder))
        matrices.unlink()
        self.assertIn("neither adapter_model.safetensors nor", self.error("--to=checkpoint", source=folder))
        (folder / "adapter_model.bin").write_bytes(b"what?")
        self.assertIn("as a PyTorch checkpoint", self.error("--to=checkpoint", source=folder))
        matrices.write_bytes(whole)
        (folder / "adapter_config.json").write_text("{")
        self.assertIn("is not JSON", self.error("--to=checkpoint", source=folder))
        (folder / "adapter_config.json").unlink()
        save_file({"llm_proj.wight": torch.ones(1)}, folder / "other_trained.safetensors")
        self.assertIn("the model has no parameter 'llm_proj.wight'", self.error("--to=checkpoint", source=folder))
        save_file({"llm_proj.bias": torch.ones(1)}, folder / "other_trained.safetensors")
        self.assertIn("has shape [1]", self.error("--to=checkpoint", "--missing=keep", source=folder))

    # Models that are not MiniGPT4Qwen.

    def test_other_architecture(self):
        """A wrapped model anywhere in a module; targets by whole names where others share the last."""
        shapes = lora_shapes("net.base_model.model.block.0.fc") | {
            "net.base_model.model.block.1.fc.weight": (4, 4), "head.weight": (2, 4)}
        model = write_model(self.work / "m.onnx", shapes, {"mgq.trainable": "*.lora_[AB].*,head.*"})
        values = random_values(model)
        source = write_checkpoint(self.work / "c", values)
        self.assertIn("say by --alpha", self.error(source=source, model=model))
        self.to_peft("--alpha=3.5", source=source, model=model)
        settings = json.loads((self.work / "adapter" / "adapter_config.json").read_text())
        self.assertEqual(settings["target_modules"], ["block.0.fc"])
        self.assertEqual((settings["r"], settings["lora_alpha"], settings["task_type"]), (2, 3.5, None))
        matrices = load_file(self.work / "adapter" / "adapter_model.safetensors")
        self.assertEqual(sorted(matrices), [f"base_model.model.block.0.fc.lora_{side}.weight" for side in "AB"])
        self.back("--alpha=3.5", model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)
        self.assertIn("say by --alpha", self.error("--to=checkpoint", source=self.work / "adapter", model=model))

    def test_loads_in_peft(self):
        """Adapters on some layers of a model of another kind load in PEFT: the same logits."""
        from peft import LoraConfig, PeftModel, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        base = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=40, n_positions=12)).eval()
        base.save_pretrained(self.work / "base")
        config = LoraConfig(r=2, lora_alpha=5, target_modules=["c_attn", "c_proj"], layers_to_transform=[0, 2],
                            fan_in_fan_out=True)
        wrapped = get_peft_model(base, config).eval()
        shapes = {f"net.{name}": tuple(p.shape) for name, p in wrapped.named_parameters()}
        model = write_model(self.work / "m.onnx", shapes, {"mgq.trainable": "*.lora_[AB].*"})
        values = random_values(model, scale=0.5)
        source = write_checkpoint(self.work / "c", values)
        self.to_peft("--alpha=5", source=source, model=model)
        wrapped.load_state_dict({n.removeprefix("net."): v for n, v in values.items()}, strict=False)
        fresh = GPT2LMHeadModel.from_pretrained(self.work / "base").eval()
        ids = torch.arange(10)[None]
        with torch.inference_mode():
            without = fresh(ids).logits
            loaded = PeftModel.from_pretrained(fresh, self.work / "adapter").eval()
            wanted = wrapped(ids).logits
            self.assertTrue(torch.allclose(loaded(ids).logits, wanted, rtol=1e-5, atol=1e-6))
            self.assertFalse(torch.allclose(without, wanted, rtol=1e-2, atol=1e-2))
        self.back("--alpha=5", model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)
        # How the base's weights lie (fan_in_fan_out) changes nothing in the adapter's.
        wrapped.save_pretrained(self.work / "theirs")
        self.assertTrue(json.loads((self.work / "theirs" / "adapter_config.json").read_text())["fan_in_fan_out"])
        self.back("--alpha=5", source="theirs", model=model)
        self.equal(load_file(self.work / "back" / "model.safetensors"), values)

    def test_several_models(self):
        """Of several wrapped models --prefix chooses one."""
        shapes = lora_shapes("a.base_model.model.fc") | lora_shapes("b.base_model.model.fc")
        model = write_model(self.work / "m.onnx", shapes, {"mgq.trainable": "*.lora_[AB].*"})
        values = random_values(model)
        source = write_checkpoint(self.work / "c", values)
        message = self.error("--alpha=2", source=source, model=model)
        self.assertIn("adapters are on several models, behind 'a.', 'b.'; choose one by --prefix", message)
        self.assertIn("they are behind 'a.', 'b.'", self.error("--alpha=2", "--prefix=c", source=source, model=model))
        out = self.to_peft("--alpha=2", "--prefix=b", source=source, model=model)
        self.assertIn("2 matrices of adapters on other models are left out", out)
        matrices = load_file(self.work / "adapter" / "adapter_model.safetensors")
        name = "b.base_model.model.fc.lora_A.default.weight"
        self.assertTrue(torch.equal(matrices["base_model.model.fc.lora_A.weight"], values[name]))
        out = self.back("--alpha=2", "--prefix=b.", "--missing=keep", model=model)
        back = load_file(self.work / "back" / "model.safetensors")
        self.assertTrue(torch.equal(back[name], values[name]))

    def test_without_names(self):
        """An export by other means has lost the names of its weights: the checkpoint's are taken."""
        model = write_model(self.work / "m.onnx", {"val_1": (4, 4)}, {})
        values = {n: torch.ones(s) for n, s in lora_shapes("base_model.model.fc").items() if ".lora_" in n}
        source = write_checkpoint(self.work / "c", values)
        self.to_peft("--alpha=2", source=source, model=model)
        settings = json.loads((self.work / "adapter" / "adapter_config.json").read_text())
        self.assertEqual(settings["target_modules"], ["fc"])
        message = self.error("--to=checkpoint", "--alpha=2", source=self.work / "adapter", model=model)
        self.assertIn("has no metadata mgq.trainable", message)

    def test_other_kinds_of_adapters(self):
        """Adapters on embeddings, several on a module, several ranks: not supported yet."""
        embedding = {"base_model.model.emb.lora_embedding_A.default": (2, 4)}
        for shapes, text in (
            (embedding, "parameter 'base_model.model.emb.lora_embedding_A.default'"),
            (lora_shapes("base_model.model.fc") | {"base_model.model.fc.lora_A.second.weight": (2, 4)},
             "several adapters on 'fc'"),
            (lora_shapes("base_model.model.a") | lora_shapes("base_model.model.b", r=3), "adapters of several ranks: 2, 3"),
        ):
            model = write_model(self.work / "m.onnx", shapes, {"mgq.trainable": "*.lora_*"})
            source = write_checkpoint(self.work / "c", random_values(model))
            self.assertIn(f"not supported yet: {text}", self.error("--alpha=2", source=source, model=model))


if __name__ == "__main__":
    unittest.main()
