"""Folders as PEFT saves them, with what else was trained beside the adapter.

    adapter_config.json, adapter_model.safetensors    PEFT's own
    other_trained.safetensors                         weights that are not LoRA's
"""

import json
from pathlib import Path

import torch

from mgq.adapters.names import listed, lora_name, plain_name
from mgq.errors import UserError
from mgq.tensor_files import LazyTensor, open_safetensors, open_torch, read_json, write_safetensors

CONFIG = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"
OLD_ADAPTER = "adapter_model.bin"
OTHER = "other_trained.safetensors"
# Settings that leave the adapter's meaning alone, as their values here say; others that this
# version does not know must be unset.
EXPECTED = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
IGNORED = {
    "auto_mapping", "base_model_name_or_path", "corda_config",
    "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "peft_version", "qalora_group_size", "r", "revision", "runtime_config",
    "target_modules", "task_type",
}


def number(value):
    """8.0 as 8."""
    return int(value) if value == int(value) else value


def adapter_files(tensors, model, prefix, base):
    """(key -> LazyTensor, configuration) of PEFT for the LoRA matrices in `tensors`, parameters
    of `model` behind `prefix`. Matrices that did not train come from the model."""
    matrices = {}
    for name in {**model.parameters, **tensors}:
        lora = lora_name(name)
        if lora and lora.prefix == prefix:
            if lora.key in matrices:
                raise UserError(f"not supported yet: several adapters on '{lora.module}'")
            matrices[lora.key] = tensors.get(name) or model.parameters[name]
    ranks = {key: tensor.shape[0] for key, tensor in matrices.items() if ".lora_A." in key}
    if len(set(ranks.values())) != 1:
        raise UserError("not supported yet: adapters of several ranks: "
                        f"{', '.join(map(str, sorted(set(ranks.values()))))}")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if model.architecture else None,
        "base_model_name_or_path": base,
        "r": next(iter(ranks.values())),
        "lora_alpha": number(model.lora.alpha),
        "lora_dropout": model.lora.dropout,
        "target_modules": target_modules(matrices, model, prefix),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    return dict(sorted(matrices.items())), settings


def target_modules(keys, model, prefix):
    """Last names of the adapted modules; whole names where others have the same last name."""
    adapted = sorted({key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for key in keys})
    short = {module.rsplit(".", 1)[-1] for module in adapted}
    modules = {plain_name(name, prefix).rpartition(".")[0] for name in model.parameters
               if name.startswith(prefix) and ".lora_" not in name}
    others = [m for m in modules if m.rsplit(".", 1)[-1] in short and m not in adapted]
    return adapted if others or not model.named else sorted(short)


def write_folder(folder, tensors, model, prefix, base):
    """Writes the trained `tensors`, name -> LazyTensor; returns the names of the files."""
    trained = {name: lora_name(name) for name in tensors}
    other = {plain_name(name, prefix): tensors[name] for name in tensors if not trained[name]}
    files = []
    if any(lora and lora.prefix == prefix for lora in trained.values()):
        matrices, settings = adapter_files(tensors, model, prefix, base)
        write_safetensors(Path(folder) / ADAPTER, matrices, {"format": "pt"})
        write_settings(Path(folder) / CONFIG, settings)
        files += [CONFIG, ADAPTER]
    if other:
        write_safetensors(Path(folder) / OTHER, other, {"format": "pt"})
        files.append(OTHER)
    return files


def write_settings(path, settings):
    """Writes the configuration."""
    try:
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def check_settings(settings, path):
    """Refuses what would make another function of the same matrices."""
    for name, allowed in EXPECTED.items():
        value = settings.get(name, allowed[0])
        if value not in allowed:
            raise UserError(f"not supported yet: '{path}' has {name} {json.dumps(value)}")
    for name, value in settings.items():
        if name not in EXPECTED and name not in IGNORED and value:
            raise UserError(f"not supported yet: '{path}' has {name} {json.dumps(value)}")
    for name in ("r", "lora_alpha"):
        value = settings.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise UserError(f"'{path}' has {name} {json.dumps(value)}, expected a positive number")


def open_adapter(folder):
    """key -> LazyTensor of PEFT's file."""
    for name, opener in ((ADAPTER, open_safetensors), (OLD_ADAPTER, open_torch)):
        if (folder / name).exists():
            return opener(folder / name)
    raise UserError(f"'{folder}' has {CONFIG}, but neither {ADAPTER} nor {OLD_ADAPTER}")


def read_folder(folder, model, prefix):
    """(name -> LazyTensor under the names of `model`, notes for the user)."""
    folder = Path(folder)
    found, notes = {}, []
    has_adapter, has_other = (folder / CONFIG).exists(), (folder / OTHER).exists()
    if not has_adapter and not has_other:
        hint = "; a checkpoint's model.safetensors is what --initial-parameters takes" \
            if (folder / "model.safetensors").exists() else ""
        raise UserError(f"'{folder}' is no folder of PEFT: it has neither {CONFIG} nor {OTHER}{hint}")
    if has_adapter:
        settings = read_json(folder / CONFIG)
        check_settings(settings, folder / CONFIG)
        matrices = open_adapter(folder)
        factor = scale(settings, model, folder / CONFIG)
        if factor != 1:
            notes.append(f"lora_B is multiplied by {factor:g}: alpha is "
                         f"{number(settings['lora_alpha'])} in '{folder / CONFIG}', "
                         f"{number(model.lora.alpha)} in '{model.path}'")
        found |= match_matrices(matrices, model, prefix, settings, folder, factor)
    if has_other:
        found |= match_other(open_safetensors(folder / OTHER), model, prefix, folder / OTHER)
    return found, notes


def scale(settings, model, path):
    """What lora_B is multiplied by, so that the model's alpha / r gives the adapter's."""
    if not any(map(lora_name, model.parameters)):
        raise UserError(f"'{path.parent}' has an adapter, but '{model.path}' has no LoRA; export "
                        "it with --lora")
    if model.lora is None:
        raise UserError(f"'{model.path}' has no metadata mgq.lora; say by --alpha what alpha it "
                        "was made with")
    return settings["lora_alpha"] / model.lora.alpha


def match_matrices(matrices, model, prefix, settings, folder, factor):
    """The adapter's matrices under the names of `model`."""
    names = {}
    for name in model.parameters:
        lora = lora_name(name)
        if lora and lora.prefix == prefix:
            names[lora.key] = name
    extra = sorted(set(matrices) - set(names))
    if extra:
        raise UserError(f"'{folder}' adapts what '{model.path}' does not: {listed(extra)}; its "
                        f"targets are {targets(names.values())}")
    found = {}
    for key, tensor in matrices.items():
        if not tensor.dtype.is_floating_point:
            raise UserError(f"not supported yet: {tensor.origin} is quantised: {tensor.dtype}")
        wanted = model.parameters[names[key]].shape
        check_rank(key, tensor, wanted, settings, model)
        if tensor.shape != wanted:
            raise UserError(f"{tensor.origin} has shape {list(tensor.shape)}, the model's is "
                            f"{list(wanted)}: the adapter is of another model")
        scaled = factor != 1 and ".lora_B." in key
        found[names[key]] = multiplied(tensor, factor) if scaled else tensor
    return found


def check_rank(key, tensor, wanted, settings, model):
    """Adapter, its configuration and the model must have one rank."""
    side = 0 if ".lora_A." in key else 1
    if len(tensor.shape) != len(wanted):
        return  # another shape altogether
    if tensor.shape[side] != settings["r"]:
        raise UserError(f"{tensor.origin} has rank {tensor.shape[side]}, its {CONFIG} says "
                        f"{settings['r']}")
    if tensor.shape[side] != wanted[side]:
        raise UserError(f"{tensor.origin} has rank {tensor.shape[side]}, '{model.path}' was "
                        f"exported with rank {wanted[side]}; export it with --lora "
                        f"r={tensor.shape[side]}")


def targets(names):
    """`q_proj, v_proj` of LoRA matrices."""
    return ", ".join(sorted({lora_name(name).module.rsplit(".", 1)[-1] for name in names}))


def multiplied(tensor, factor):
    """A LazyTensor times a number, in f32."""
    return LazyTensor(tensor.shape, lambda: tensor.load().float() * factor, tensor.origin,
                      torch.float32)


def match_other(tensors, model, prefix, path):
    """The other trained weights under the names of `model`."""
    names = {plain_name(name, prefix): name for name in model.parameters}
    found = {names.get(key, key): tensor for key, tensor in tensors.items()}
    model.check(found, f"'{path}'")
    return found
