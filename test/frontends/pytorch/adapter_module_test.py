"""The road of a model that is no MiniGPT4Qwen: mgq-export module, train, adapter, PEFT."""

import unittest

import torch
from adapter_case import AdapterTest, compile_model, random_values, run_executable, write_checkpoint
from mgq.adapters.model import Model
from mgq.commands import adapter, export
from mgq.globs import matches, split_globs
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2LMHeadModel

TOLERANCE = 1e-5  # relative, of losses
FACTORY = '''
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Loss(nn.Module):
    """Mean cross-entropy of the next token; a trained scale of the logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scale = nn.Parameter(torch.ones(40))

    def forward(self, ids):
        logits = self.net(input_ids=ids, use_cache=False).logits * self.scale
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def base():
    torch.manual_seed(1)
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=40, n_positions=12,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config)


def model(**settings):
    settings = dict(r=2, lora_alpha=5, target_modules=["c_attn"], layers_to_transform=[0, 2],
                    fan_in_fan_out=True) | settings
    module = Loss(get_peft_model(base(), LoraConfig(**settings)))
    return module, {"ids": torch.zeros(2, 12, dtype=torch.long)}


def stabilised():
    return model(use_rslora=True)


def two():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = model()[0], model(lora_alpha=7)[0]

        def forward(self, ids):
            return self.a(ids) + self.b(ids)

    return Two(), {"ids": torch.zeros(2, 12, dtype=torch.long)}
'''


class ModuleTest(AdapterTest):
    def setUp(self):
        super().setUp()
        (self.work / "nets.py").write_text(FACTORY)

    def export(self, factory):
        """The file of a factory's module."""
        path = self.work / f"{factory}.onnx"
        self.done(export, "module", f"{self.work / 'nets.py'}:{factory}", "-o", path)
        return path

    def test_road(self):
        """PyTorch's loss with the adapter in PEFT is the executable's evaluation loss."""
        model = self.export("model")
        executable = compile_model(model, self.work / "train")
        ids = torch.randint(0, 40, (8, 12), generator=torch.Generator().manual_seed(2))
        save_file({"ids": ids}, self.work / "data.safetensors")
        data = ("--data", self.work / "data.safetensors", "--eval-data", self.work / "data.safetensors")
        log = run_executable(executable, *data, "--steps", 6, "--learning-rate", 3e-2, "--output-dir", self.work / "out")
        folder = self.work / "adapter"
        self.done(adapter, self.work / "out" / "checkpoint-6", "--model", model, "-o", folder)
        scope = {}
        exec(FACTORY, scope)
        scope["base"]().save_pretrained(self.work / "base")
        net = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(self.work / "base"), folder).eval()
        scale = load_file(folder / "other_trained.safetensors")["scale"]
        wanted = log[-1]["eval_loss"]
        self.assertLess(abs(self.loss(net, ids, scale) - wanted), TOLERANCE * wanted)
        without = net.unload()
        self.assertGreater(abs(self.loss(without, ids, scale) - wanted), 20 * TOLERANCE * wanted)  # LoRA matters
        self.done(adapter, folder, "--model", model, "-o", self.work / "back", "--to=checkpoint")
        self.equal(load_file(self.work / "back" / "model.safetensors"),
                   load_file(self.work / "out" / "checkpoint-6" / "model.safetensors"))

    @torch.inference_mode()
    def loss(self, net, ids, scale):
        """The module's loss of all records."""
        logits = net(ids).logits * scale
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()

    def test_metadata(self):
        """The export tells alpha and rank; not where adapters scale otherwise, or two differ."""
        lora = Model(self.export("model")).lora
        self.assertEqual((lora.rank, lora.alpha, lora.targets), (2, 5, ("c_attn",)))
        for factory in ("stabilised", "two"):
            path = self.export(factory)
            self.assertIsNone(Model(path).lora)
            source = write_checkpoint(self.work / factory, random_values(path))
            message = self.refused(adapter, source, "--model", path, "-o", self.work / "f")
            self.assertIn("say by --alpha", message)

    def test_globs(self):
        """Names are matched as mgq-compile matches them."""
        self.assertEqual(split_globs("a,b\\,c,[,x]d,[!],]e"), ["a", "b\\,c", "[,x]d", "[!],]e"])
        for glob, good, bad in (
            ("a.*", "a.b.c", "ab.c"), ("a?c", "a.c", "ac"), ("[AB]x", "Bx", "Cx"), ("[!A-C]x", "Dx", "Bx"),
            ("[]x]y", "]y", "ay"), (r"a\*", "a*", "ab"), (r"a\[b\]", "a[b]", "ab"), ("x,y.*", "y.z", "z"),
            ("a+b", "a+b", "aab"), ("[^a]", "b", "a"),
        ):
            self.assertTrue(matches(glob, good), glob)
            self.assertFalse(matches(glob, bad), glob)


if __name__ == "__main__":
    unittest.main()
