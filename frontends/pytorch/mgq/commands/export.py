"""mgq-export: writes a model as an ONNX training graph for mgq-compile."""

import argparse
import os
import sys
from pathlib import Path

from mgq import errors, parts
from mgq.architecture import SIZES
from mgq.errors import UserError

EXTRA_0 = 151646  # Qwen's <|extra_0|>, which marks images in MPP-LLaVA
SMALL_IMAGE_TOKEN = 5  # of sizes whose vocabulary has no such token


def parse_arguments(argv):
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-export", description=__doc__)
    models = parser.add_subparsers(dest="model", required=True)
    add_minigpt4qwen(models.add_parser(
        "minigpt4qwen", help="ViT, Q-Former, projection, Qwen2; from folders, files or a size"
    ))
    add_module(models.add_parser(
        "module", help="any PyTorch module that returns a loss, made by a function in a file"
    ))
    return parser.parse_args(argv)


def add_minigpt4qwen(model):
    """Options of `mgq-export minigpt4qwen`."""
    weights = model.add_argument_group("weights")
    weights.add_argument("--size", choices=SIZES, help="random weights of a size")
    weights.add_argument("--vision", metavar="PATH",
                         help="ViT: a Hugging Face folder (BLIP-2), or LAVIS's eva_vit_g.pth")
    weights.add_argument("--qformer", metavar="PATH",
                         help="Q-Former: a Hugging Face folder, or a BLIP-2 checkpoint of LAVIS")
    weights.add_argument("--llm", metavar="DIR", help="folder of Qwen2, Qwen1.5 or Qwen")
    weights.add_argument("--projection", metavar="FILE.pth",
                         help="checkpoint with llm_proj.*; default: random")
    weights.add_argument("--seed", type=int, default=0, help="of random weights; default 0")
    train = model.add_argument_group("training")
    train.add_argument("--lora", nargs="?", const="", metavar="r=8,alpha=32,dropout=0,targets=...",
                       help="adapters on linear modules of the language model")
    train.add_argument("--train", metavar="PART,...",
                       help=f"of {', '.join(parts.PARTS)}; default: projection, and lora with --lora")
    shape = model.add_argument_group("shapes")
    shape.add_argument("--images", type=int, default=1, metavar="N", help="images a sample")
    shape.add_argument("--length", type=int, metavar="L", help="tokens a sample; default: the size's, or 512")
    shape.add_argument("--image-size", type=int, metavar="S", help="pixels; default: the ViT's")
    shape.add_argument("--micro-batch", type=micro_batch, default=1, metavar="B|dynamic",
                       help="samples; dynamic: as mgq-compile --dim=batch=N says")
    shape.add_argument("--image-token-id", type=int, metavar="ID",
                       help="token that images replace; default: that of the tokenizer in --llm, else Qwen's <|extra_0|>")
    output = model.add_argument_group("output")
    output.add_argument("--dtype", choices=("f32", "bf16"), default="f32",
                        help="of weights that do not train")
    output.add_argument("--features", action="store_true",
                        help="a graph that starts at image_features, and MODEL.prefix.onnx")
    output.add_argument("--data", metavar="FILE.safetensors", help="also write random records")
    output.add_argument("--records", type=int, default=8, help="micro-batches in --data")
    add_output(output)


def add_module(model):
    """Options of `mgq-export module`."""
    model.add_argument("factory", metavar="FILE.py:FACTORY",
                       help="function that returns (module, inputs[, settings])")
    model.add_argument("--inputs", metavar="FILE.safetensors",
                       help="example inputs; default: the factory's")
    model.add_argument("--trainable", metavar="GLOB,...",
                       help="default: the factory's, or the parameters that require gradients")
    add_output(model)


def add_output(model):
    """Options of both commands."""
    model.add_argument("--opset", type=int, default=20, metavar="N", help="18 to 23; default 20")
    model.add_argument("--no-weights", action="store_true", help="the graph alone")
    model.add_argument("-o", "--output", required=True, metavar="MODEL.onnx")


def micro_batch(text):
    """A positive number of samples, or `dynamic`."""
    if text == "dynamic":
        return text
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number from 1 nor 'dynamic'")
    return int(text)


def check(args):
    """Numbers out of range."""
    from mgq.onnx_export import OPSETS

    if args.opset not in OPSETS:
        raise UserError(f"--opset {args.opset} is not supported yet; "
                        f"{OPSETS[0]} to {OPSETS[-1]} are")
    for name in ("images", "length", "image_size", "records"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    written = list(filter(None, (args.output, getattr(args, "data", None))))
    if len({os.path.realpath(path) for path in written}) < len(written):
        raise UserError(f"--data and -o both name '{args.output}'")
    for path in written:
        if Path(path).is_dir():
            raise UserError(f"cannot write '{path}': it is a folder")
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"cannot write '{path}': its folder does not exist")


def open_weights(args):
    """The Weights that the options name."""
    from mgq.sources import open as sources

    given = {name: getattr(args, name) for name in ("vision", "qformer", "llm")}
    missing = [f"--{name}" for name, path in given.items() if path is None]
    if args.size and (len(missing) < 3 or args.projection):
        raise UserError("give either --size, for random weights, or --vision, --qformer and --llm")
    if args.size:
        return sources.open_size(args.size, args.seed, args.length, args.image_size)
    if missing:
        raise UserError(f"{', '.join(missing)} missing: give --vision, --qformer and --llm, or "
                        "--size for random weights")
    return sources.open_checkpoints(
        **given, projection=args.projection, seed=args.seed, length=args.length,
        image=args.image_size,
    )


def image_token(args, vocabulary):
    """The token that images replace: the one asked for, that of the tokenizer in --llm, or
    <|extra_0|>."""
    token = args.image_token_id
    if token is None and args.llm:
        token = own_image_token(args.llm)
    if token is None and vocabulary <= EXTRA_0 and not args.size:
        raise UserError(f"the vocabulary of {vocabulary} tokens has no <|extra_0|> ({EXTRA_0}); "
                        "say which token images replace with --image-token-id")
    if token is None:
        token = EXTRA_0 if vocabulary > EXTRA_0 else SMALL_IMAGE_TOKEN
    if not 0 <= token < vocabulary:
        raise UserError(f"image token {token} is not in the vocabulary of {vocabulary} tokens; "
                        "choose one with --image-token-id")
    return token


def own_image_token(folder):
    """The image token of the tokenizer in `folder`; None where it has none, or no tokenizer."""
    from mgq import tokenizer

    if not any((Path(folder) / name).is_file() for name in tokenizer.FILES):
        return None
    return tokenizer.load(folder).image


def write_records(model, args):
    """Random records of the model, for trying it out."""
    from safetensors.torch import save_file

    from mgq import minigpt4qwen
    from mgq.files import whole_file

    samples = 1 if args.micro_batch == "dynamic" else args.micro_batch
    records = minigpt4qwen.random_records(model, args.records, samples, args.seed)
    agreed = minigpt4qwen.metadata(model.architecture, model.image_token_id, model.images)
    with whole_file(args.data) as target:
        save_file(records, target, agreed)


def export_minigpt4qwen(args):
    """Runs `mgq-export minigpt4qwen`."""
    check(args)
    lora = parts.parse_lora(args.lora) if args.lora is not None else None
    from mgq import export_minigpt4qwen as exporter

    from mgq.sources.open import lora_targets

    weights = open_weights(args)
    lora = lora_targets(weights, lora)
    request = exporter.Request(
        weights=weights,
        image_token_id=image_token(args, weights.architecture.vocabulary),
        train=args.train or parts.default_parts(lora),
        images=args.images,
        lora=lora,
        micro_batch=args.micro_batch,
        dtype=args.dtype,
        opset=args.opset,
        features=args.features,
        no_weights=args.no_weights,
    )
    model = exporter.export(request, args.output)
    if args.data:
        write_records(model, args)


def export_module(args):
    """Runs `mgq-export module`."""
    check(args)
    from mgq import export_module as exporter

    notes = exporter.export(args.factory, args.output, args.inputs, args.trainable, args.opset,
                            args.no_weights)
    for note in notes:
        print(f"mgq-export: note: {note}", file=sys.stderr)


def main(argv=None):
    """Runs mgq-export."""
    args = parse_arguments(argv)
    command = {"minigpt4qwen": export_minigpt4qwen, "module": export_module}[args.model]
    errors.run("mgq-export", lambda: command(args))


if __name__ == "__main__":
    main()
