"""The whole road: export, prepare, compile, train, adapter, PEFT, generate; and back."""

import json
import unittest

import fixtures
import torch
from adapter_case import (
    LORA, AdapterTest, compile_model, export_tiny, random_values, run_executable, write_checkpoint,
    write_records,
)
from mgq import generation, minigpt4qwen, onnx_weights
from mgq.adapters.model import Model
from mgq.commands import adapter, generate, prepare
from mgq.sources import base_name
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-5  # relative, of losses
STEPS = 8


def base_module(path):
    """The exported model without LoRA, on the exported values."""
    model = Model(path)
    weights = {base_name(name): tensor for name, tensor in model.parameters.items()}
    module = minigpt4qwen.build(
        model.architecture, int(model.metadata["mgq.image_token_id"]), int(model.metadata["mgq.images"])
    )
    return minigpt4qwen.fill(module, lambda name, shape: weights[name].load().float()).eval()


@torch.inference_mode()
def loss_of(module, data):
    """Mean cross-entropy over all labels of a data file."""
    mean, std = (torch.tensor([float(v) for v in text.split(",")]).view(3, 1, 1) for text in
                 (data.metadata["pixel_values.mean"], data.metadata["pixel_values.std"]))
    total, count = 0.0, 0
    for row in range(len(data.tensors["labels"])):
        ids, mask, labels = (data.tensors[name][row : row + 1] for name in
                             ("input_ids", "attention_mask", "labels"))
        pixels = (data.tensors["pixel_values"][row : row + 1].float() / 255 - mean) / std
        blocks = module.architecture.vision.layers
        logits = module.logits(module.read_image(module.see(pixels, blocks), blocks), ids, mask)
        total += float(nn.functional.cross_entropy(
            logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum"))
        count += int((labels[0, 1:] != -100).sum())
    return total / count


class Data:
    """A data file of mgq-prepare."""

    def __init__(self, path):
        from safetensors import safe_open

        self.path = path
        self.tensors = load_file(path)
        with safe_open(path, "pt") as file:
            self.metadata = file.metadata()


class Road(AdapterTest):
    """An export with LoRA, data, an executable, a checkpoint after STEPS steps."""

    options = ()  # of the export

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        work = cls.shared
        cls.model = export_tiny(work / "model.onnx", "--lora", LORA + ",dropout=0.1", "--length", 80, "--micro-batch", 2,
                                *cls.options)
        cls.tokenizer = fixtures.hf_tokenizer(work / "tokenizer")
        cls.records = write_records(work)
        prepare.main(["--data", str(cls.records), "--tokenizer", str(cls.tokenizer), "--model", str(cls.model),
                      "-o", str(work / "data"), "--workers", "1"])
        cls.data = Data(work / "data-00000.safetensors")
        cls.executable = compile_model(cls.model, work / "train")
        cls.log = run_executable(
            cls.executable, "--data", cls.data.path, "--eval-data", cls.data.path, "--steps", STEPS,
            "--learning-rate", 1e-2, "--output-dir", work / "out",
        )
        cls.checkpoint = work / "out" / f"checkpoint-{STEPS}"
        base_module(cls.model).llm_model.save_pretrained(work / "llm")
        # Eight steps from random weights say the same to everything; these values do not.
        cls.lively = write_checkpoint(work / "lively", random_values(cls.model, scale=0.5))

    def with_adapter(self, folder):
        """The base language model with the adapter as PEFT loads it, in the module with the
        other trained weights."""
        module = base_module(self.model)
        base = AutoModelForCausalLM.from_pretrained(self.shared / "llm", dtype=torch.float32)
        module.llm_model = PeftModel.from_pretrained(base, folder).eval()
        other = load_file(folder / "other_trained.safetensors")
        missing, unexpected = module.load_state_dict(other, strict=False)
        self.assertEqual(unexpected, [])
        return module

    def check_loss(self):
        """PyTorch's loss with the adapter is the executable's evaluation loss."""
        folder = self.work / "adapter"
        self.done(adapter, self.checkpoint, "--model", self.model, "-o", folder, "--base-model", self.shared / "llm")
        loss = loss_of(self.with_adapter(folder), self.data)
        wanted = self.log[-1]["eval_loss"]
        self.assertLess(abs(loss - wanted), TOLERANCE * wanted)
        without = loss_of(base_module(self.model), self.data)
        self.assertGreater(abs(without - wanted), 1e-2 * wanted)
        module = self.with_adapter(folder)
        module.llm_model = module.llm_model.unload()
        self.assertGreater(abs(loss_of(module, self.data) - wanted), 10 * TOLERANCE * wanted)  # LoRA matters


class RoadTest(Road):
    def test_loss_in_peft(self):
        """PyTorch's loss with the adapter is the executable's evaluation loss."""
        self.check_loss()

    def test_same_tokens(self):
        """transformers' generate with PEFT's adapter and mgq-generate give the same tokens, from
        the checkpoint and from the adapter's folder, alone and in a batch."""
        for checkpoint, different in ((self.checkpoint, 1), (self.lively, 3)):
            folder = self.work / checkpoint.name
            self.done(adapter, checkpoint, "--model", self.model, "-o", folder)
            module = self.with_adapter(folder)
            assistants = [
                generation.load(self.model, self.tokenizer, checkpoint, root=self.shared),
                generation.load(self.model, self.tokenizer, adapter=folder, root=self.shared),
            ]
            ours = assistants[0]
            questions = [ours.question(f"What is {i}?{'?' * (i % 3)}", [f"{i}.png"]) for i in (0, 1, 2)]
            questions += [ours.question("Which cat is this?", []), ours.question("Which?", [])]
            wanted = [self.reference(module, question, ours) for question in questions]
            self.assertGreaterEqual(len({tuple(ids) for ids in wanted}), different)
            for assistant in assistants:
                for batch in (1, 64):
                    self.assertEqual(generation.answer_ids(assistant, questions, 10, batch), wanted)

    def reference(self, module, question, assistant):
        """Tokens by transformers' own greedy generate."""
        pixels = torch.from_numpy(question.pixels).float() / 255
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (assistant.facts.mean, assistant.facts.std))
        blocks = module.architecture.vision.layers
        ids = torch.tensor([question.ids])
        embeddings = module.llm_model.get_input_embeddings()(ids)
        if len(pixels):
            features = module.read_image(module.see((pixels - mean) / std, blocks), blocks)
            embeddings[ids == module.image_token_id] = module.llm_proj(features)[0]
        tokens = assistant.template.tokenizer
        out = module.llm_model.generate(
            inputs_embeds=embeddings, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10,
            eos_token_id=[tokens.im_end, tokens.end], pad_token_id=tokens.end,
        )[0].tolist()
        return [token for token in out if token not in (tokens.im_end, tokens.end)]

    def test_command(self):
        """mgq-generate prints what the library answers, for one question and for a file of them."""
        questions = self.work / "questions.jsonl"
        lines = [{"question": "What is 0?", "image": "0.png"}, {"question": "Which?"}]
        questions.write_text("\n".join(map(json.dumps, lines)))
        common = ("--model", self.model, "--checkpoint", self.lively, "--tokenizer", self.tokenizer,
                  "--max-new-tokens", 6)
        assistant = generation.load(self.model, self.tokenizer, self.lively, root=self.shared)
        wanted = generation.answer(
            assistant, [assistant.question("What is 0?", ["0.png"]), assistant.question("Which?")], 6)
        out = self.done(generate, *common, "--question", "What is 0?", "--image", self.shared / "0.png")
        self.assertEqual(out.strip(), wanted[0].strip())
        out = self.done(generate, *common, "--questions", questions, "--images-root", self.shared, "--json")
        self.assertEqual([json.loads(line)["answer"] for line in out.splitlines()], wanted)
        self.assertEqual(json.loads(out.splitlines()[0])["question"], "<Img><image></Img>What is 0?")
        # Records of the training data: the answer is left out of the prompt.
        out = self.done(generate, *common, "--questions", self.records, "--json", "--batch", 5)
        self.assertEqual(len(out.splitlines()), 12)
        # The system message and the trained weights change the answer's tokens.
        asked = ("--model", self.model, "--tokenizer", self.tokenizer, "--question", "Which?", "--max-new-tokens", 12)
        outs = {self.done(generate, *asked), self.done(generate, *asked, "--checkpoint", self.lively),
                self.done(generate, *asked, "--system", "cat cat cat cat", "--checkpoint", self.lively)}
        self.assertEqual(len(outs), 3)

    def test_prompt_is_the_training_data(self):
        """A question's tokens are the first ones of its training sample, and so are its pixels."""
        assistant = generation.load(self.model, self.tokenizer, root=self.shared)
        ids = self.data.tensors["input_ids"]
        for row in (0, 3):
            record = json.loads(self.records.read_text())[row]
            pictures = [record["image"]] if "image" in record else []
            question = assistant.question(record["instruction"], pictures)
            self.assertEqual(ids[row, : len(question.ids)].tolist(), question.ids)
            answer = self.data.tensors["labels"][row, len(question.ids)]
            self.assertEqual(int(answer), int(ids[row, len(question.ids)]))  # the answer begins there
            for pixels in question.pixels:
                self.assertTrue(torch.equal(torch.from_numpy(pixels), self.data.tensors["pixel_values"][row]))

    def test_back_to_the_checkpoint(self):
        """A checkpoint that went to PEFT and back is the same file."""
        self.done(adapter, self.checkpoint, "--model", self.model, "-o", self.work / "adapter")
        self.done(adapter, self.work / "adapter", "--model", self.model, "-o", self.work / "back", "--to", "checkpoint")
        self.assertEqual((self.work / "back" / "model.safetensors").read_bytes(),
                         (self.checkpoint / "model.safetensors").read_bytes())

    def test_adapter_from_elsewhere(self):
        """An adapter that PEFT made, of another alpha, goes on in the executable: same loss."""
        module = base_module(self.model)
        config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        torch.manual_seed(5)
        module.llm_model = get_peft_model(module.llm_model, config)
        with torch.no_grad():
            for name, parameter in module.llm_model.named_parameters():
                if ".lora_" in name:
                    parameter.normal_(0, 0.2)
            module.llm_proj.weight.normal_(0, 0.2)
        module.llm_model.save_pretrained(self.work / "theirs")
        save_file({f"llm_proj.{k}": v for k, v in module.llm_proj.state_dict().items()},
                  self.work / "theirs" / "other_trained.safetensors")
        out = self.done(adapter, self.work / "theirs", "--model", self.model, "-o", self.work / "start",
                        "--to", "checkpoint")
        self.assertIn("lora_B is multiplied by 0.75: alpha is 6", out)
        log = run_executable(
            self.executable, "--eval-data", self.data.path, "--steps", 0,
            "--initial-parameters", self.work / "start" / "model.safetensors",
        )
        wanted = loss_of(module.eval(), self.data)
        self.assertLess(abs(log[-1]["eval_loss"] - wanted), TOLERANCE * wanted)
        self.assertGreater(abs(wanted - self.log[-1]["eval_loss"]), 1e-2)

    def test_load_model_agrees(self):
        """The module that mgq-generate asks has the executable's loss with the checkpoint."""
        assistant = generation.load(self.model, self.tokenizer, self.checkpoint)
        wanted = self.log[-1]["eval_loss"]
        self.assertLess(abs(loss_of(assistant.model, self.data) - wanted), TOLERANCE * wanted)


class NarrowRoadTest(Road):
    options = ("--dtype", "bf16")

    def test_loss_in_peft(self):
        """Frozen weights stored in bf16: the same, PyTorch computing in f32 with their values."""
        self.assertIn(torch.bfloat16, {tensor.dtype for tensor in Model(self.model).parameters.values()})
        self.check_loss()


if __name__ == "__main__":
    unittest.main()
