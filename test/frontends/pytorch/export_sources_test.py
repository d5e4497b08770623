"""mgq-export from folders and files: the same model whatever layout its weights come in."""

import unittest

import checkpoints
import torch
from export_case import ExportTest, first, load, random_records, torch_loss

TOKEN = 7  # that images replace


class SourcesTest(ExportTest):
    """One set of random weights in every layout."""

    def setUp(self):
        super().setUp()
        draw = checkpoints.Draw(1)
        self.eva, self.blip2 = checkpoints.make_eva(draw), checkpoints.make_blip2(draw)
        self.qwen = checkpoints.make_qwen(draw)
        self.projection = draw.linear("llm_proj", checkpoints.QWEN_WIDTH, checkpoints.BERT_WIDTH)
        self.all = self.eva | self.blip2 | self.qwen | self.projection
        torch.save(self.eva, self.work / "eva_vit_g.pth")
        torch.save({"model": self.blip2}, self.work / "blip2.pth")
        torch.save(self.projection, self.work / "proj.pth")

    def options(self, vision="eva_vit_g.pth", qformer="blip2.pth", llm="qwen"):
        """Options that name the three, and a projection."""
        return ["--vision", self.work / vision, "--qformer", self.work / qformer,
                "--llm", self.work / llm, "--projection", self.work / "proj.pth",
                "--image-token-id", TOKEN, "--length", 24, "--micro-batch", 2]

    def test_lavis_and_qwen(self):
        """LAVIS files and a first-generation folder mean what their own models compute."""
        checkpoints.write_qwen(self.work / "qwen", self.qwen, shards=3)
        path = self.export(*self.options())
        model = load(path)
        records = random_records(model, 2, 2)
        records["attention_mask"][:, 1, -3:] = 0
        records["labels"][:, 1, -3:] = -100
        batch = first(records)
        expected = checkpoints.loss(self.all, batch, TOKEN)
        self.assert_close(torch_loss(model, batch), expected, 1e-6)
        self.assert_close(self.run_graph(path, batch), expected)
        log, gradients = self.train(path, records)
        self.assert_close(log[0]["loss"], expected)
        weight = self.all["llm_proj.weight"].requires_grad_()
        checkpoints.loss(self.all, batch, TOKEN).backward()
        self.assert_close(gradients["llm_proj.weight"], weight.grad, 1e-4)

    def test_huggingface(self):
        """Folders that Hugging Face's classes save give the same loss, sharded or not."""
        checkpoints.write_qwen(self.work / "qwen", self.qwen)
        lavis = self.export(*self.options())
        batch = first(random_records(load(lavis), 1, 2))
        expected = self.run_graph(lavis, batch)
        for shards in (None, "60KB"):
            blip2, qwen2 = f"blip2-{shards}", f"qwen2-{shards}"
            checkpoints.write_blip2(self.work / blip2, self.all, shards)
            checkpoints.write_qwen2(self.work / qwen2, checkpoints.to_qwen2(self.qwen), shards)
            several = (self.work / qwen2 / "model.safetensors.index.json").exists()
            self.assertEqual(several, shards is not None)
            path = self.export(*self.options(blip2, blip2, qwen2))
            # The norm after the ViT has 1e-6 in one and 1e-5 in the other.
            self.assert_close(self.run_graph(path, batch), expected)
            self.assert_close(torch_loss(load(path), batch), expected)


if __name__ == "__main__":
    unittest.main()
