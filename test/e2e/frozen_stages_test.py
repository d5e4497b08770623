#!/usr/bin/env python3
"""Stages on which nothing trains are ordinary stages.

a2 trains its projection only. It runs on 2, 3 and 4 stages with the projection
alone on each of them, where DeepSpeed crashes (issue 5071): the results are
those of one stage. By the trace, gradients go to the stage of the projection
and no further up; by its bytes, each is exactly the projection's output. With
adapters in the upper half of a1's blocks only, the stages below have no
backward and get no gradient.
"""

import json

from harness import DATA, UPSTREAM, Test, read_folder, read_log

LAYERS = [
    "visual_encoder.post_layernorm",
    "Qformer.encoder.layer.1.attention",
    "llm_proj",
    "llm_model.model.embed_tokens",
    "llm_model.model.layers.1.self_attn",
]
# The projection alone on stage 0 is no cut of this model: the tower is below.
CUTS = {
    2: [["llm_proj"], ["llm_model.model.embed_tokens"]],
    3: [
        ["llm_proj", "llm_model.model.embed_tokens"],
        ["visual_encoder.post_layernorm", "llm_proj"],
        ["llm_model.model.embed_tokens", "llm_model.model.layers.1.self_attn"],
    ],
    4: [
        ["visual_encoder.post_layernorm", "llm_proj", "llm_model.model.embed_tokens"],
        ["llm_proj", "llm_model.model.embed_tokens", "llm_model.model.layers.1.self_attn"],
        ["visual_encoder.post_layernorm", "Qformer.encoder.layer.1.attention", "llm_proj"],
    ],
}
STEPS, MICRO_BATCHES = 4, 4


def run(test, executable, name, model):
    folder = test.work / name
    folder.mkdir()
    test.run(
        executable, "--data", DATA / model / "inputs.safetensors", "--steps", STEPS,
        "--learning-rate", 1e-2, "--threads", 1, "--output-dir", folder / "out",
        "--log-file", folder / "log", "--trace", folder / "trace", "--summary", folder / "sum",
    )  # fmt: skip
    return read_log(folder / "log"), read_folder(folder / "out"), folder


def events(folder, kind):
    """Trace events of a kind: (rank, args)."""
    trace = json.loads((folder / "trace").read_text())["traceEvents"]
    return [(e["pid"], e["args"]) for e in trace if e.get("cat") == kind]


def check_across(test):
    """a9 trains below a frozen Q-Former, here alone on the middle stage."""
    model = DATA / "a9" / "model.onnx"
    one = test.compile(model, UPSTREAM, "--micro-batches=4", name="a9 one")
    cut = test.compile(
        model, UPSTREAM, "--micro-batches=4", "--stages=3", "--schedule=one_f_one_b",
        "--cuts=Qformer.encoder.layer.0.attention,llm_proj", name="a9 cut",
    )  # fmt: skip
    log, files, _ = run(test, one, "run a9 one", "a9")
    got_log, got_files, folder = run(test, cut, "run a9 cut", "a9")
    test.check((got_log, got_files) == (log, files), "across a frozen stage: same results")
    backward = {rank for rank, _ in events(folder, "backward")}
    test.check(backward == {0, 1, 2}, "across a frozen stage: backward on all stages")
    # By owner: the optimizer has work on stages 0 and 2 only.
    gradients = {a["peer"] for _, a in events(folder, "send") if a["traffic"] == "gradient"}
    test.check(gradients == {0, 1}, "across a frozen stage: gradients pass through it")


def main():
    test = Test("frozen-stages", __doc__)
    model = DATA / "a2" / "model.onnx"
    batches = f"--micro-batches={MICRO_BATCHES}"
    one = test.compile(model, "llm_proj.*", batches, name="one")
    log, files, _ = run(test, one, "run one", "a2")
    for stages, cuts in CUTS.items():
        for cut in cuts:
            name = f"{stages} {' '.join(c.split('.')[-1] for c in cut)}"
            executable = test.compile(
                model, "llm_proj.*", batches, f"--stages={stages}", "--schedule=one_f_one_b",
                f"--cuts={','.join(cut)}", "--frozen=stage", name=name,
            )  # fmt: skip
            got_log, got_files, folder = run(test, executable, f"run {name}", "a2")
            test.check(got_log == log and got_files == files, f"{name}: same results")
            # The stage of the projection: cuts at or below it.
            order = LAYERS.index("llm_proj")
            stage = sum(LAYERS.index(c) <= order for c in cut)
            sends = [(r, a) for r, a in events(folder, "send") if a["traffic"] == "gradient"]
            test.check(all(a["peer"] >= stage for _, a in sends), f"{name}: no gradient above")
            backward = {rank for rank, _ in events(folder, "backward")}
            test.check(
                backward == set(range(stage, stages)), f"{name}: backward from the projection up"
            )
            at_projection = sum(a["bytes"] for _, a in sends if a["peer"] == stage)
            # Between projection and embedding: 4 image tokens of 64; above: 24 tokens.
            tokens = 4 if "llm_model.model.embed_tokens" in cut else 24
            wanted = 0 if stage == stages - 1 else STEPS * MICRO_BATCHES * tokens * 64 * 4
            test.check(at_projection == wanted, f"{name}: {at_projection} gradient bytes")

    upper = test.compile(
        DATA / "a1" / "model.onnx", "*.layers.1.*.lora_[AB].*", batches, "--stages=3",
        "--schedule=one_f_one_b", "--frozen=stage", name="upper",
    )  # fmt: skip
    whole = test.compile(
        DATA / "a1" / "model.onnx", "*.layers.1.*.lora_[AB].*", batches, name="upper one"
    )
    upper_log, upper_files, folder = run(test, upper, "run upper", "a1")
    whole_log, whole_files, _ = run(test, whole, "run upper one", "a1")
    test.check((upper_log, upper_files) == (whole_log, whole_files), "upper half: same results")
    active = sorted({rank for rank, _ in events(folder, "backward")})
    test.check(active == list(range(active[0], 3)), f"upper half: backward on stages {active}")
    gradients = [a for _, a in events(folder, "send") if a["traffic"] == "gradient"]
    test.check(
        all(a["peer"] in active for a in gradients), "upper half: gradients go to active stages"
    )
    check_across(test)
    test.end()


if __name__ == "__main__":
    main()
