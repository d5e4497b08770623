"""mgq-adapter: trained weights from a checkpoint to PEFT or MPP-LLaVA, and back."""

import argparse
import dataclasses
from pathlib import Path

from mgq.errors import UserError, run
from mgq.files import whole_folder

# What this command writes: a folder of nothing else may be replaced.
OURS = {"adapter_config.json", "adapter_model.safetensors", "other_trained.safetensors",
        "model.pth", "model.safetensors"}


def parse_arguments(argv):
    """The command line."""
    parser = argparse.ArgumentParser(prog="mgq-adapter", description=__doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE",
        help="a checkpoint's folder or its model.safetensors; with --to=checkpoint, a folder of "
             "PEFT or a checkpoint .pth of MPP-LLaVA")
    add("--model", required=True, metavar="MODEL.onnx", help="the export that it belongs to")
    add("-o", "--output", required=True, metavar="FOLDER")
    add("--to", choices=("peft", "mpp", "checkpoint"), default="peft",
        help="peft (default): adapter_model.safetensors, adapter_config.json, other_trained.safetensors; "
             "mpp: model.pth; checkpoint: model.safetensors for --initial-parameters")
    add("--base-model", metavar="NAME_OR_DIR", help="base_model_name_or_path of the adapter, with --to=peft")
    add("--missing", choices=("error", "keep"), default="error",
        help="with --to=checkpoint: what to do about parameters that SOURCE lacks; keep: the model's own values")
    add("--trainable", metavar="GLOB,...",
        help="with --to=checkpoint: what trains, as for mgq-compile; default: the model's mgq.trainable")
    add("--prefix", metavar="NAME", help="which of several models with adapters")
    add("--alpha", type=float, metavar="X", help="LoRA's alpha, of a model whose metadata does not tell")
    args = parser.parse_args(argv)
    for option, default, formats in (
        ("base_model", None, ("peft",)), ("missing", "error", ("checkpoint",)),
        ("trainable", None, ("checkpoint",)), ("prefix", None, ("peft", "checkpoint")),
    ):
        if getattr(args, option) != default and args.to not in formats:
            parser.error(f"--{option.replace('_', '-')} has no meaning with --to={args.to}")
    if args.alpha is not None and not 0 < args.alpha < float("inf"):
        parser.error(f"--alpha is {args.alpha}, expected a positive number")
    return args


def check_output(folder, source):
    """A folder of other things is not replaced, nor what is read."""
    folder = Path(folder)
    if Path(source).resolve().is_relative_to(folder.resolve()):
        raise UserError(f"'{folder}' would replace its source '{source}'; give another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot write '{folder}': it is a file")
    others = sorted(p.name for p in folder.iterdir() if p.name not in OURS) if folder.exists() else []
    if others:
        raise UserError(f"'{folder}' exists and holds '{others[0]}', which is not mgq-adapter's; "
                        "give another folder")


def open_model(args):
    """The Model, with --alpha in its place."""
    from mgq.adapters.model import Model
    from mgq.architecture import Lora

    model = Model(args.model)
    if args.alpha is None:
        return model
    if model.lora and model.lora.alpha != args.alpha:
        raise UserError(f"--alpha is {args.alpha:g}, but the metadata of '{args.model}' has "
                        f"{model.lora.alpha:g}")
    model.lora = model.lora or dataclasses.replace(Lora(), alpha=args.alpha)
    return model


def to_peft(args, model):
    """Writes a folder of PEFT."""
    from mgq.adapters import checkpoint, peft_folder
    from mgq.adapters.names import lora_name

    tensors = checkpoint.open_checkpoint(args.source)
    model.check(tensors, f"checkpoint '{args.source}'")
    loras = [name for name in tensors if lora_name(name)]
    if loras and model.lora is None:
        raise UserError(f"'{args.model}' has no metadata mgq.lora; say by --alpha what alpha its "
                        "adapters were made with")
    prefix = model.prefix(args.prefix, loras) if loras or args.prefix else model.prefix()
    with whole_folder(args.output) as folder:
        files = peft_folder.write_folder(folder, tensors, model, prefix, args.base_model)
    print(f"{args.output}: {', '.join(files)}")
    if not loras:
        print("the checkpoint has no LoRA matrices: there is no adapter for PEFT to load")
    left = [name for name in loras if lora_name(name).prefix != prefix]
    if left:
        print(f"{len(left)} matrices of adapters on other models are left out: see --prefix")


def to_mpp(args, model):
    """Writes a checkpoint of MPP-LLaVA."""
    from mgq.adapters import checkpoint, mpp

    tensors = checkpoint.open_checkpoint(args.source)
    model.check(tensors, f"checkpoint '{args.source}'")
    with whole_folder(args.output) as folder:
        notes = mpp.write_file(folder, tensors, model)
    print("\n".join([f"{args.output}: {mpp.FILE}", *notes]))


def to_checkpoint(args, model):
    """Writes initial parameters."""
    from mgq.adapters import checkpoint, peft_folder
    from mgq.adapters.names import listed

    names = model.trainable(args.trainable)
    if Path(args.source).is_dir():
        found, notes = peft_folder.read_folder(args.source, model, model.prefix(args.prefix))
        left = len(set(found) - set(names))
    else:
        from mgq.adapters import mpp

        found, left = mpp.read_file(args.source, model, names)
        notes = []
    tensors, kept = checkpoint.complete(found, model, names, args.missing == "keep", f"'{args.source}'")
    with whole_folder(args.output) as folder:
        checkpoint.write_checkpoint(folder, tensors, model)
    if kept:
        notes.append(f"{len(kept)} parameters keep the values of '{args.model}': {listed(kept)}")
    if left:
        notes.append(f"{left} tensors of '{args.source}' are left out: they do not train here")
    print("\n".join([f"{args.output}: {checkpoint.FILE}", *notes]))


def main(argv=None):
    """Runs mgq-adapter."""
    args = parse_arguments(argv)

    def convert():
        check_output(args.output, args.source)
        model = open_model(args)
        {"peft": to_peft, "mpp": to_mpp, "checkpoint": to_checkpoint}[args.to](args, model)

    run("mgq-adapter", convert)


if __name__ == "__main__":
    main()
