"""What an ONNX model says of its parameters; their values are read when needed."""

from pathlib import Path

from mgq.adapters.names import listed, lora_name
from mgq.architecture import Architecture, Lora
from mgq.errors import UserError
from mgq.globs import matches
from mgq.onnx_weights import open_weights, read_metadata, read_onnx

LANGUAGE_PREFIX = "llm_model."  # of MiniGPT4Qwen


class Model:
    """`parameters`: name -> LazyTensor of every float initializer; `lora`, `architecture`:
    None where the metadata has none."""

    def __init__(self, path):
        proto = read_onnx(path)
        self.path = Path(path)
        self.metadata = read_metadata(proto)
        self.parameters = open_weights(path, proto)
        self.named = "mgq.trainable" in self.metadata  # initializers have their names
        self.lora = self._parse("mgq.lora", Lora)
        self.architecture = self._parse("mgq.architecture", Architecture)

    def _parse(self, key, kind):
        if key not in self.metadata:
            return None
        try:
            return kind.from_json(self.metadata[key])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"'{self.path}': metadata {key} is damaged: {error}") from error

    def trainable(self, globs=None):
        """Names of the parameters that train, by `globs` or by the metadata."""
        globs = globs or self.metadata.get("mgq.trainable")
        if not globs:
            raise UserError(f"'{self.path}' has no metadata mgq.trainable; say what trains by "
                            "--trainable=GLOB,..., as for mgq-compile")
        found = [name for name in self.parameters if matches(globs, name)]
        if not found:
            raise UserError(f"'{self.path}' has no parameter that matches '{globs}'")
        return found

    def prefix(self, given=None, names=None):
        """What stands before the names of the model that PEFT has wrapped: of `names`, by
        default all parameters. `given`: --prefix."""
        loras = filter(None, (lora_name(name) for name in names or self.parameters))
        found = sorted({lora.prefix for lora in loras})
        if given is not None:
            given = given.rstrip(".") + "." if given else ""
            if given not in found:
                raise UserError(f"--prefix={given}: no adapters are there; they are behind "
                                f"{listed(found) or 'no prefix'}")
            return given
        if len(found) > 1:
            raise UserError(f"adapters are on several models, behind {listed(found)}; choose one "
                            "by --prefix")
        return found[0] if found else LANGUAGE_PREFIX if self.architecture else ""

    def check(self, tensors, where):
        """Every tensor must be a parameter of this model, of its shape."""
        if not self.named:  # exported by other means: initializers have lost names
            return
        extra = [name for name in tensors if name not in self.parameters]
        if extra:
            raise UserError(f"{where} is not of '{self.path}': the model has no parameter "
                            f"{listed(extra)}")
        for name, tensor in tensors.items():
            wanted = self.parameters[name].shape
            if tensor.shape != wanted:
                raise UserError(f"{tensor.origin} has shape {list(tensor.shape)}, the parameter "
                                f"of '{self.path}' has {list(wanted)}")
