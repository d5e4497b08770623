"""mgq-export from folders and files: the same model whatever layout its weights come in."""

import json
import unittest

import checkpoints
import fixtures
import onnx
import torch
from export_case import ExportTest, first, load, random_records, torch_loss
from mgq import onnx_weights, tokenizer
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

TOKEN = 7  # that images replace
TABLE = 512  # tokens, enough for the tests' tokenizer


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

    def test_tied_embeddings(self):
        """A folder whose embedding table is its head too gives what a copy with two tables does."""
        checkpoints.write_qwen(self.work / "qwen", self.qwen)
        config = Qwen2Config(
            vocab_size=TABLE, hidden_size=64, intermediate_size=56, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
        model.save_pretrained(self.work / "tied")
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
        model.save_pretrained(self.work / "untied")
        fixtures.hf_tokenizer(self.work / "tied")
        tied = self.export(*self.options(llm="tied"), name="tied.onnx")
        untied = self.export(*self.options(llm="untied"), name="untied.onnx")
        batch = first(random_records(load(untied), 1, 2))
        loss = self.run_graph(untied, batch)
        self.assertEqual(self.run_graph(tied, batch), loss)
        self.assert_close(torch_loss(load(tied), batch), loss)

    def test_image_token_of_the_tokenizer(self):
        """A tokenizer beside the language model tells the image token."""
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=TABLE, hidden_size=64, intermediate_size=56, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2,
        )
        Qwen2ForCausalLM(config).save_pretrained(self.work / "llm")
        fixtures.hf_tokenizer(self.work / "llm")
        options = [word for word in self.options(llm="llm") if word not in ("--image-token-id", TOKEN)]
        proto = onnx_weights.read_onnx(self.export(*options))
        token = tokenizer.load(self.work / "llm").image
        self.assertEqual(onnx_weights.read_metadata(proto)["mgq.image_token_id"], str(token))

    def test_targets(self):
        """Names of first-generation Qwen's modules, as LoRA targets, mean those they became."""
        checkpoints.write_qwen(self.work / "qwen", self.qwen)
        path = self.export(*self.options(), "--no-weights", "--lora", "targets=c_attn,w2")
        names = {tensor.name.split(".")[-4] for tensor in onnx.load(
            path, load_external_data=False).graph.initializer if ".lora_A." in tensor.name}
        self.assertEqual(names, {"q_proj", "k_proj", "v_proj", "gate_proj"})
        self.fails("LoRA target 'w3' does not exist", *self.options(), "--lora", "targets=w3")

    def test_image_size(self):
        """Another image size: the class token's position stays, the grid is interpolated."""
        checkpoints.write_qwen(self.work / "qwen", self.qwen)
        model = load(self.export(*self.options(), "--image-size", 56))
        found = model.visual_encoder.embeddings.position_embedding
        self.assertEqual(list(found.shape), [1, 17, checkpoints.WIDTH])
        position = self.eva["pos_embed"]
        self.assertTrue(torch.equal(found[:, 0], position[:, 0]))
        grid = torch.nn.functional.interpolate(
            position[:, 1:].reshape(1, 2, 2, -1).permute(0, 3, 1, 2), (4, 4), mode="bicubic")
        self.assert_close(found[0, 1:], grid[0].flatten(1).T)

    def test_pieces(self):
        """Half-precision shards of torch.save and parts of MPP-LLaVA's pipeline are read too."""
        folder = self.work / "bins"
        checkpoints.write_qwen(folder, self.qwen)
        (folder / "model.safetensors").unlink()
        names = sorted(self.qwen)
        files = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(names)}
        for file in set(files.values()):
            torch.save({n: self.qwen[n].half() for n in names if files[n] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
        torch.save({f"visionpipe.{n}": t for n, t in self.projection.items()}, self.work / "proj.pth")
        model = load(self.export(*self.options(llm="bins"), "--dtype", "bf16"))
        found = dict(model.named_parameters())
        self.assertTrue(torch.equal(found["llm_proj.weight"], self.projection["llm_proj.weight"]))
        expected = self.qwen["transformer.h.1.mlp.w2.weight"].half().bfloat16().float()
        self.assertTrue(torch.equal(found["llm_model.model.layers.1.mlp.gate_proj.weight"], expected))

    def test_separate_folders(self):
        """Folders of the parts alone, and grouped queries: each part is Hugging Face's."""
        from transformers import (
            Blip2QFormerConfig, Blip2QFormerModel, Blip2VisionConfig, Blip2VisionModel)

        torch.manual_seed(5)
        vision = Blip2VisionModel(Blip2VisionConfig(
            **checkpoints.vision_config(), initializer_range=0.1)).eval()
        qformer = Blip2QFormerModel(Blip2QFormerConfig(**checkpoints.qformer_config())).eval()
        language = Qwen2ForCausalLM(Qwen2Config(
            **checkpoints.qwen2_config(num_key_value_heads=2))).eval()
        for name, part in (("vit", vision), ("qf", qformer), ("qwen2", language)):
            part.save_pretrained(self.work / name)
        self.fails("'.*qf' has no tensor 'query_tokens'; give a BLIP-2 folder",
                   *self.options("vit", "qf", "qwen2"))
        tensors = {**qformer.state_dict(), "query_tokens": self.blip2["query_tokens"]}
        save_file(tensors, self.work / "qf" / "model.safetensors")
        path = self.export(*self.options("vit", "qf", "qwen2"))
        batch = first(random_records(load(path), 1, 2))
        with torch.no_grad():
            image = vision(batch["pixel_values"]).last_hidden_state
            queries = self.blip2["query_tokens"].expand(2, -1, -1)
            seen = qformer(query_embeds=queries, encoder_hidden_states=image).last_hidden_state
            rows = checkpoints.linear(self.projection, "llm_proj", seen)
            text = language.get_input_embeddings()(batch["input_ids"])
            text[batch["input_ids"] == TOKEN] = rows.flatten(0, 1)
            expected = language(inputs_embeds=text, labels=batch["labels"]).loss
        self.assert_close(torch_loss(load(path), batch), expected)
        self.assert_close(self.run_graph(path, batch), expected)


if __name__ == "__main__":
    unittest.main()
