"""mgq-prepare: pictures or video frames and conversations -> training data for mgq executables."""

import argparse
import os
import sys
from pathlib import Path

from mgq import tokenizer
from mgq.data import chat, features, metadata, prepare, records, sampling, state
from mgq.data.samples import Job, beyond_vocabulary
from mgq.errors import UserError, run


def count(text):
    """A positive number."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def make_parser():
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-prepare", description=__doc__)
    add = parser.add_argument
    add(
        "--data",
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE[:WEIGHT]",
        help="JSON list or JSON lines of records; WEIGHT: how often each is taken, 1 by default",
    )
    add(
        "--images-root",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="folder of the pictures, one for all files or one for each; default: that of the file",
    )
    add("--tokenizer", required=True, metavar="DIR")
    add("--model", metavar="MODEL.onnx", help="the export that the data is for")
    add(
        "-o",
        "--output",
        required=True,
        metavar="PREFIX",
        help="writes PREFIX-00000.safetensors, ...; in a folder: DIR/data-00000.safetensors",
    )
    add(
        "--labels",
        choices=chat.LABELS,
        default="mpp",
        help="mpp: also the marks of all turns; assistant: answers and their end",
    )
    add(
        "--system",
        default=chat.SYSTEM,
        metavar="TEXT",
        help="system message of records without one",
    )
    add(
        "--special-marks",
        choices=("text", "tokens"),
        default="text",
        help="what <|im_end|> and the like are within a record's text",
    )
    add(
        "--transform",
        choices=("eval", "train"),
        default="eval",
        help="of pictures; train: random crops and flips",
    )
    add(
        "--variants", type=count, metavar="K", help="samples of each record, with --transform=train"
    )
    add("--shuffle", action="store_true", help="mix the samples of all files")
    add("--seed", type=int, default=42, help="of crops, flips, parts of files and --shuffle")
    add(
        "--on-error",
        choices=("skip", "stop"),
        default="skip",
        help="what to do about a bad record or picture",
    )
    add("--shard-size", type=count, metavar="N", help="samples a file; default: about 1 GiB")
    add("--workers", type=count, metavar="N", help="processes; default: one for each core")
    add("--restart", action="store_true", help="discard what is there instead of going on from it")
    add(
        "--features",
        metavar="MODEL.prefix.onnx",
        help="store what this frozen prefix makes of the pixels",
    )
    add("--mgq-run", metavar="PATH", help="the program that runs it")
    facts = parser.add_argument_group("in place of what --model tells")
    facts.add_argument("--image-token-id", type=int, metavar="ID")
    for name in ("tokens-per-image", "images", "image-size", "length", "vocabulary", "micro-batch"):
        facts.add_argument(f"--{name}", type=count, metavar="N")
    for name in ("mean", "std"):
        facts.add_argument(f"--{name}", type=metadata.three_numbers, metavar="R,G,B")
    return parser


def parse_arguments(argv):
    """Options that contradict each other are wrong usage."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.variants and args.transform != "train":
        parser.error(
            "--variants needs --transform=train: without random crops all variants are equal"
        )
    if args.mgq_run and not args.features:
        parser.error("--mgq-run needs --features")
    return args


def data_file(text):
    """(path, weight) of `FILE[:WEIGHT]`."""
    path, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    try:
        value = float(weight)
    except ValueError:
        return Path(text), 1.0
    if not 0 < value < float("inf"):
        raise UserError(f"--data {text}: weight {weight}, expected a positive number")
    return Path(path), value


def read_facts(args):
    """What the data must agree on with its model."""
    names = [name for name in (*metadata.KEYS, "micro_batch") if name != "features"]
    given = metadata.Facts(**{name: getattr(args, name) for name in names})
    if args.features and not Path(args.features).is_file():
        raise UserError(f"--features '{args.features}' does not exist")
    path = args.model or args.features  # the prefix knows all but the shape of the tokens
    model = metadata.read_model(path)[0] if path else None
    facts = metadata.combine(model, given, path)
    if args.features and facts.features is None:
        raise UserError(
            f"model '{path}' starts from pixels: leave out --features, or export it with --features"
        )
    if facts.features is not None and not args.features:
        raise UserError(
            f"model '{args.model}' starts from '{facts.features}': give --features MODEL.prefix.onnx"
        )
    return facts


def load_tokenizer(args, facts):
    """The tokenizer with the model's image token; both must fit its vocabulary."""
    loaded = tokenizer.load(args.tokenizer, facts.image_token_id)
    if loaded.image is None:
        raise UserError(
            f"tokenizer '{args.tokenizer}' has none of {', '.join(tokenizer.IMAGE_TOKENS)}; give --image-token-id"
        )
    if facts.vocabulary is not None:
        for token in (loaded.im_start, loaded.im_end, loaded.end, loaded.image):
            if token >= facts.vocabulary:
                raise beyond_vocabulary(loaded, token, facts.vocabulary)
    return loaded


def image_roots(args, files):
    """The folder of pictures of each data file."""
    roots = args.images_root or [path.parent for path, _ in files]
    if len(roots) not in (1, len(files)):
        raise UserError(
            f"--images-root names {len(roots)} folders for {len(files)} data files, expected one or as many"
        )
    for root in roots:
        if not Path(root).is_dir():
            raise UserError(f"--images-root '{root}' is no folder")
    return [Path(root) for root in roots] * (len(files) if len(roots) == 1 else 1)


def output_prefix(text):
    """PREFIX, or DIR/data for a folder; its folder exists."""
    prefix = Path(text) / "data" if text.endswith("/") or Path(text).is_dir() else Path(text)
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{text}': {error.strerror}") from error
    return prefix


def settings_of(args, files, job, capacity, prefix_graph):
    """All that decides the bytes of shards but the model's metadata, by the options' names."""
    settings = {
        f"data {i}": f"{path.name}:{weight:g} {index.digest[:16]}"
        for i, ((path, weight), index) in enumerate(zip(files, job.sources), 1)
    }
    settings |= {f"images-root {i}": str(root) for i, root in enumerate(job.roots, 1)}
    settings |= {
        "tokenizer": job.template.tokenizer.digest()[:16],
        "labels": args.labels,
        "system": args.system,
        "special-marks": args.special_marks,
        "transform": args.transform,
        "variants": args.variants or 1,
        "shuffle": args.shuffle,
        "seed": args.seed,
        "shard-size": capacity,
        "micro-batch": job.facts.micro_batch,
    }
    if prefix_graph is not None:
        settings["features"] = prefix_graph.digest()[:16]
    return settings


def make_job(args, files, facts):
    """Reads where records are, and the tokenizer."""
    roots = image_roots(args, files)
    loaded = load_tokenizer(args, facts)
    sources = [records.index(path) for path, _ in files]
    plan = sampling.Plan(
        map(len, sources),
        [weight for _, weight in files],
        args.variants or 1,
        args.seed,
        args.shuffle,
    )
    if not len(plan):
        raise UserError("the weights leave no record")
    template = chat.Template(
        loaded,
        facts.length,
        facts.tokens_per_image,
        args.labels,
        args.system,
        args.special_marks == "tokens",
    )
    return Job(sources, roots, plan, template, facts, args.seed, args.transform == "train")


def report(found):
    """What became of the samples, on standard output."""
    files = [shard for shard in found.shards if shard["file"]]
    counts = found.counts()
    made = counts.pop(prepare.SAMPLES, 0)
    words = [
        f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((made, "sample"), (len(files), "file"))
    ]
    print(f"{' in '.join(words)}, {found.prefix}-*.safetensors")
    for name, number in sorted(counts.items()):
        if number:
            left_out = "" if name in (prepare.CUT, prepare.FILL) else "left out: "
            print(f"  {left_out}{name}: {number}")
    if not made:
        raise UserError(f"no sample is left; '{state.state_path(found.prefix)}' tells why")


def command(argv):
    """Parses, prepares, reports."""
    args = parse_arguments(argv)
    files = [data_file(text) for text in args.data]
    facts = read_facts(args)
    prefix_graph = None
    if args.features:
        prefix_graph = features.Prefix(args.features, features.find_mgq_run(args.mgq_run), facts)
    job = make_job(args, files, facts)
    capacity = args.shard_size or max(1, prepare.SHARD_BYTES // prepare.row_bytes(job))
    values = {
        **facts.to_metadata(),
        metadata.KEYS["image_token_id"]: str(job.template.tokenizer.image),
    }
    prefix = output_prefix(args.output)
    settings = settings_of(args, files, job, capacity, prefix_graph)
    with state.locked(prefix):
        say = lambda text: print(f"mgq-prepare: {text}", file=sys.stderr, flush=True)
        found = state.resume(prefix, settings, values, args.restart, say)
        if found.complete:
            say("nothing to do: all samples are there")
        else:
            workers = args.workers or len(os.sched_getaffinity(0))
            prepare.Run(job, found, capacity, args.on_error == "stop", prefix_graph).run(workers)
    report(found)


def main(argv=None):
    """Runs mgq-prepare."""
    run("mgq-prepare", lambda: command(argv))


if __name__ == "__main__":
    main()
