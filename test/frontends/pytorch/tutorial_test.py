"""docs/FromCheckpointToAdapter.md: every command in it runs, on tiny checkpoints of these names."""

import json
import os
import re
import subprocess
import sys
import unittest

import checkpoints
import fixtures
import torch
from adapter_case import AdapterTest

PAGE = fixtures.ROOT / "docs" / "FromCheckpointToAdapter.md"
COMMANDS = ("export", "prepare", "adapter", "generate", "log")
LLM = "Qwen1.5-7B-Chat"


def blocks():
    """(language, text) of each block of commands, in order."""
    return re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


class TutorialTest(AdapterTest):
    def make_programs(self):
        """A folder of the commands, for PATH."""
        programs = self.work / "bin"
        programs.mkdir()
        for name in COMMANDS:
            path = programs / f"mgq-{name}"
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mgq.commands.{name} "$@"\n')
            path.chmod(0o755)
        (programs / "mgq-compile").symlink_to(os.environ["MGQ_COMPILE"])
        return programs

    def make_files(self, folder):
        """Tiny checkpoints, a tokenizer, pictures and records under the page's names."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        draw = checkpoints.Draw(2)
        checkpoints.write_blip2(folder / "blip2-opt-2.7b", checkpoints.make_eva(draw) | checkpoints.make_blip2(draw))
        torch.manual_seed(3)
        language = Qwen2ForCausalLM(Qwen2Config(**checkpoints.qwen2_config(vocab_size=256)))
        language.save_pretrained(folder / LLM)
        fixtures.hf_tokenizer(folder / LLM)
        for name, numbers in (("train", range(20)), ("heldout", range(20, 25))):
            records = [{"image": f"{i % 5}.png", "conversations": [
                {"from": "human", "value": f"<image>\nWhat is {i}?"}, {"from": "gpt", "value": f"cat {i % 3}"},
            ]} for i in numbers]
            (folder / f"{name}.json").write_text(json.dumps(records))
        for i in range(5):
            fixtures.picture(folder / "pictures" / f"{i}.png", seed=i)

    def test_page(self):
        """Each block succeeds, in the order of the page, and leaves what the page says."""
        folder = self.work / "road"
        folder.mkdir()
        self.make_files(folder)
        environment = os.environ | {
            "PATH": f"{self.make_programs()}:{os.environ['PATH']}",
            "PYTHONPATH": str(fixtures.ROOT / "frontends" / "pytorch"),
        }
        outputs = []
        found = blocks()
        self.assertGreaterEqual(len(found), 11)
        for language, text in found:
            program = ["sh", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
            done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}{done.stderr}")
            outputs.append(done.stdout)
        names = sorted(path.name for path in (folder / "adapter").iterdir())
        self.assertEqual(names, ["adapter_config.json", "adapter_model.safetensors", "other_trained.safetensors"])
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        evaluated = next(out for out in outputs if out.startswith("evaluation after step 0"))
        self.assertIn(f"loss {log[-1]['eval_loss']:.6f}", evaluated)
        answers = next(out for out in outputs if out.count('{"question"') == 5)
        self.assertIn("What is 24?", answers)
        self.assertTrue((folder / "more" / "checkpoint-10").is_dir())


if __name__ == "__main__":
    unittest.main()
