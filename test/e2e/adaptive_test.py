#!/usr/bin/env python3
"""However a step is cut into micro-batches, it is the same step.

A language model with dropout and a symbolic number of samples, whose steps of 12
may have 1 to 12 micro-batches. A run that replays one number computes the bits of
an executable that has only that, on any number of stages; numbers differ in the
order of sums only. A replayed sequence is the same bits on other stages, as
processes, after a resume in the middle, and from its own log. Replicas share the
samples of a step.
"""

import json

import onnx
from harness import Test, read_folder, read_log

import mlp  # harness adds its folder to the path
import st

STEPS = 8
BATCH = 12
COUNTS = (1, 3, 12)
SEQUENCE = {1: 3, 2: 3, 3: 12, 4: 1, 5: 1, 6: 4, 7: 2, 8: 6}


def write_inputs(test):
    """The model, data that fills no whole number of epochs, some labels ignored."""
    onnx.save(mlp.build(batch="batch", blocks=3, dropout=0.1), test.work / "model.onnx")
    data = {k: v.reshape(-1, 4) for k, v in mlp.data(40, batch=1).items()}
    data["labels"][3:9, 1:] = -100
    data["labels"][17] = -100
    st.write(test.work / "data.st", data)


def compile(test, name, *options):
    return test.compile(test.work / "model.onnx", mlp.TRAINABLE, *options, name=name)


def run(test, executable, name, *options, ranks=0, steps=STEPS):
    """Log and last checkpoint of a run."""
    folder = test.work / f"{name}-run"
    folder.mkdir(exist_ok=True)
    launcher = ["mpirun", "-n", ranks] if ranks else []
    test.run(
        *launcher, executable, "--data", test.work / "data.st", "--steps", steps,
        "--learning-rate", 1e-2, "--threads", 1, "--max-grad-norm", 1,
        "--output-dir", folder / "out", "--log-file", folder / "log", *options,
    )  # fmt: skip
    return read_log(folder / "log"), read_folder(folder / "out" / f"checkpoint-{steps}")


def replay(test, name, sequence):
    """Writes numbers of micro-batches by step; returns the options for them."""
    path = test.work / f"{name}.jsonl"
    lines = [json.dumps({"step": k, "micro_batches": v}) for k, v in sequence.items()]
    path.write_text("\n".join(lines) + "\n")
    return "--replay", path


def bits(result):
    """Losses, norms and parameters of a run."""
    log, folder = result
    tensors = {k: v for k, v in folder.items() if k.endswith(".safetensors")}
    return [(line["loss"], line["grad_norm"], line["samples"]) for line in log], tensors


def close(one, other):
    """Losses and norms differ by no more than sums in another order."""
    return len(one) == len(other) == STEPS and all(
        abs(a["loss"] - b["loss"]) <= 1e-5 * abs(b["loss"])
        and abs(a["grad_norm"] - b["grad_norm"]) <= 1e-4 * b["grad_norm"]
        for a, b in zip(one, other)
    )


def check_numbers(test, one, two):
    results = {}
    for count in COUNTS:
        fixed = compile(
            test, f"fixed{count}", f"--micro-batches={count}", f"--global-batch={BATCH}"
        )
        wanted = run(test, fixed, f"fixed{count}")
        got = run(test, two, f"constant{count}", *replay(test, f"constant{count}", {1: count}))
        results[count] = got
        test.check(bits(got) == bits(wanted), f"{count} micro-batches: bits of a fixed number")
        test.check(
            all(line["micro_batches"] == count for line in got[0]), f"{count} micro-batches: logged"
        )
    first = results[COUNTS[0]][0]
    test.check(len({line["loss"] for line in first}) == STEPS, "the model trains")
    test.check(all(close(results[c][0], first) for c in COUNTS), "numbers compute alike")
    plain = compile(test, "plain", "--dim=batch=4", "--micro-batches=3")
    ordered = run(test, plain, "plain", "--shuffle=off")
    wanted = run(test, one, "ordered", "--shuffle=off", *replay(test, "three", {1: 3}))
    test.check(bits(ordered) == bits(wanted), "in file order: bits of a program without range")


def check_sequence(test, one, two):
    options = replay(test, "sequence", SEQUENCE)
    whole = run(test, one, "one", *options)
    test.check([line["micro_batches"] for line in whole[0]] == list(SEQUENCE.values()), "replays")
    test.check(run(test, two, "two", *options) == whole, "a sequence on two stages: same bits")
    test.check(
        run(test, two, "processes", *options, ranks=2) == whole, "as two processes: same bits"
    )
    again = run(test, two, "again", "--replay", test.work / "one-run" / "log")
    test.check(again == whole, "a log replays itself")
    sparse = run(test, two, "sparse", *options, "--logging-steps", 5)
    test.check(
        [line["step"] for line in sparse[0]] == [1, 3, 4, 5, 6, 7, 8], "a log has each change"
    )
    again = run(test, one, "again", "--replay", test.work / "sparse-run" / "log")
    test.check(again == whole, "a log with gaps replays the run")
    run(test, two, "cut", *options, steps=3)
    cut = run(test, one, "cut", *options, "--resume-from-checkpoint", "latest")
    test.check(cut == whole, "resumed in the middle: same bits")


def check_replicas(test, one):
    split = compile(
        test, "replicas", "--micro-batches=1:6", f"--global-batch={BATCH}", "--replicas=2",
        "--stages=2",
    )  # fmt: skip
    sequence = {1: 1, 3: 6, 5: 2, 6: 3}
    threads = run(test, split, "replicas-threads", *replay(test, "replicas", sequence))
    processes = run(
        test, split, "replicas-processes", *replay(test, "replicas", sequence), ranks=4
    )
    whole = run(test, one, "whole", *replay(test, "whole", {1: 4}))
    test.check(processes == threads, "replicas as processes: same bits")
    test.check(close(threads[0], whole[0]), "two replicas learn what one does")


def check_evaluation(test, one):
    losses = set()
    for count in (1, 12):
        log = test.work / f"evaluate{count}.log"
        test.run(
            one, "--steps", 0, "--eval-data", test.work / "data.st", "--log-file", log,
            *replay(test, f"evaluate{count}", {1: count}),
        )  # fmt: skip
        losses.add(json.loads(log.read_text())["eval_loss"])
    test.check(len(losses) == 1, "evaluations do not depend on the number")


def main():
    test = Test("adaptive", __doc__)
    write_inputs(test)
    options = (f"--micro-batches=1:{BATCH}", f"--global-batch={BATCH}")
    one = compile(test, "range1", *options)
    two = compile(test, "range2", *options, "--stages=2")
    check_numbers(test, one, two)
    check_sequence(test, one, two)
    check_replicas(test, one)
    check_evaluation(test, one)
    test.end()


if __name__ == "__main__":
    main()
