"""LoRA's dropout through mgq-export: an executable drops what numpy's Philox says, and learns what
PyTorch and PEFT learn with these masks. Evaluation and mgq-run drop nothing."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

import torch
from export_case import ExportTest, first, load, random_records, torch_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
import philox  # noqa: E402

RATIO = 0.25
LORA = "r=4,alpha=8,dropout=0.25,targets=q_proj,v_proj"
SAMPLES = 2


class Masks:
    """Stands in for all dropout modules of a model: op K is the K-th that runs."""

    def __init__(self, model):
        self.seed, self.step, self.op = 42, 0, 0
        places = [
            (module, name)
            for prefix, module in model.named_modules()
            for name, child in module.named_children()
            if isinstance(child, torch.nn.Dropout) and ".lora_dropout" in f".{prefix}"
        ]
        self.count = len(places)
        for module, name in places:
            module._modules[name] = MaskedDropout(self)

    def start(self, step):
        self.step, self.op = step, 0


class MaskedDropout(torch.nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.masks = masks

    def forward(self, x):
        masks = self.masks
        kept = philox.kept(tuple(x.shape), SAMPLES, RATIO, masks.seed, masks.step, 0, masks.op)
        masks.op += 1
        return x * torch.tensor(kept * philox.scale(RATIO))


class DropoutTest(ExportTest):
    def check_opset(self, opset):
        """Losses of three steps, gradients of the first."""
        path = self.export(
            "--size", "tiny", "--lora", LORA, "--micro-batch", SAMPLES, "--opset", opset
        )
        model = load(path)
        records = random_records(model, records=3, samples=SAMPLES)
        log, gradients = self.train(path, records, steps=3)
        masks = Masks(model)
        self.assertEqual(masks.count, 4)
        trained = {name: p for name, p in model.named_parameters()
                   if ".lora_" in name or name.startswith("llm_proj.")}
        for parameter in trained.values():
            parameter.requires_grad_()
        adam = torch.optim.AdamW(
            trained.values(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05
        )
        for step in range(3):
            masks.start(step)
            adam.zero_grad()
            loss = model(**{name: tensor[step] for name, tensor in records.items()})
            loss.backward()
            self.assertEqual(masks.op, masks.count)
            self.assert_close(log[step]["loss"], loss.item(), 1e-5)
            if step == 0:
                self.check_gradients(gradients, trained)
            adam.step()

    def check_gradients(self, gradients, trained):
        self.assertEqual(set(gradients), set(trained))
        for name, parameter in trained.items():
            if parameter.grad.norm() == 0:  # of lora_A, where lora_B starts as zero
                self.assertEqual(gradients[name].norm(), 0, name)
            else:
                self.assert_close(gradients[name], parameter.grad, 1e-4)

    def test_opset_20(self):
        self.check_opset(20)

    def test_opset_23(self):
        self.check_opset(23)

    def test_evaluation_drops_nothing(self):
        """mgq-run and --eval-data give the loss of the model in evaluation mode."""
        path = self.export("--size", "tiny", "--lora", LORA, "--micro-batch", SAMPLES)
        model = load(path).eval()
        records = random_records(model, records=1, samples=SAMPLES)
        expected = torch_loss(model, first(records))
        self.assert_close(self.run_graph(path, first(records)), expected)
        self.train(path, records)
        log = self.work / "eval.jsonl"
        words = [self.work / "train", "--data", self.work / "data.safetensors", "--steps", 1,
                 "--eval-data", self.work / "data.safetensors", "--learning-rate", 0, "--log-file", log]
        subprocess.run(list(map(str, words)), check=True, capture_output=True, timeout=300)
        line = [json.loads(text) for text in log.read_text().splitlines()][-1]
        self.assert_close(line["eval_loss"], expected)


if __name__ == "__main__":
    unittest.main()
