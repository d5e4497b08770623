"""mgq-export: writes a model as an ONNX training graph for mgq-compile."""

import argparse

from safetensors.torch import save_file

from mgq import export, minigpt4qwen


def parse_arguments(argv):
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-export", description=__doc__)
    models = parser.add_subparsers(dest="model", required=True)
    model = models.add_parser(
        "minigpt4qwen", help="random weights; LoRA on q and v and the projection train"
    )
    model.add_argument("--size", choices=minigpt4qwen.SIZES, default="tiny")
    model.add_argument("--micro-batch", type=int, default=1, help="samples")
    model.add_argument("--length", type=int, help="tokens; default: the size's")
    model.add_argument("--lora", type=parse_rank, default=8, metavar="r=N",
                       help="rank of the adapters; default r=8")
    model.add_argument("--seed", type=int, default=0)
    model.add_argument("--records", type=int, default=8, help="micro-batches in --data")
    model.add_argument("--data", help="also write random records to this safetensors file")
    model.add_argument("-o", "--output", required=True, metavar="MODEL.onnx")
    return parser.parse_args(argv)


def parse_rank(text):
    """`r=8` or `8` as a number."""
    return int(text.removeprefix("r="))


def main(argv=None):
    """Runs mgq-export."""
    args = parse_arguments(argv)
    size = minigpt4qwen.SIZES[args.size]
    length = args.length or size.length
    metadata = minigpt4qwen.metadata(length)
    records = minigpt4qwen.random_records(
        size, args.records, args.micro_batch, length, args.seed
    )
    model = minigpt4qwen.build(size, length, args.lora, args.seed)
    example = {name: tensor[0] for name, tensor in records.items()}
    exported = export.export_loss(model, example)
    trainable = {"mgq.trainable": minigpt4qwen.TRAINABLE}
    export.save(exported, args.output, {**metadata, **trainable})
    if args.data:
        save_file(records, args.data, metadata)


if __name__ == "__main__":
    main()
