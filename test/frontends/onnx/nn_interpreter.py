"""Computes nn IR with NumPy: slow, obvious, apart from the compiler's kernels.

It reads what `mgq-translate --mlir-print-op-generic` prints, one op a line, and
knows the ops that the importer builds. Tests compare it with ONNX's reference.
"""

import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "i1": np.bool_,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64,
}  # fmt: skip


# ---- Reading -----------------------------------------------------------------


def parse_type(text):
    """tensor<2x3xf32> as shape (None where dynamic) and dtype."""
    *dims, element = re.fullmatch(r"tensor<(.*)>", text.strip()).group(1).split("x")
    return tuple(None if d == "?" else int(d) for d in dims), DTYPES[element]


def split_top(text, separator=","):
    """Splits at separators outside brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(text):
        if c == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif c in "<([{":
            depth += 1
        elif c in ")]}" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def parse_dense(text):
    """dense<...> : tensor<...> as an array."""
    body, kind = re.fullmatch(r"dense<(.*)> : (tensor<[^>]*>)", text, re.S).groups()
    shape, dtype = parse_type(kind)
    if body == "":
        return np.zeros(shape, dtype)
    if body.startswith('"0x'):
        raw = bytes.fromhex(body[3:-1])
        if dtype == np.bool_:
            bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
            return bits[: math.prod(shape)].astype(bool).reshape(shape)
        data = np.frombuffer(raw, dtype)
        return np.full(shape, data[0]) if data.size == 1 else data.reshape(shape)
    words = re.findall(r"[^\[\],\s]+", body)
    values = np.array([parse_number(word, dtype) for word in words], dtype)
    return np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)


def parse_number(word, dtype):
    if word in ("true", "false"):
        return word == "true"
    if word.startswith("0x") and not np.issubdtype(dtype, np.integer):
        size = np.dtype(dtype).itemsize
        return np.frombuffer(int(word, 16).to_bytes(size, "little"), dtype)[0]
    return int(word) if np.issubdtype(dtype, np.integer) else float(word)


def parse_attribute(text):
    if text.startswith("dense<"):
        return parse_dense(text)
    if text.startswith(("array<i64", "array<i32")):
        return [int(v) for v in re.findall(r"-?\d+", text[len("array<i64") :])]
    if text.startswith("#nn<"):
        return re.fullmatch(r"#nn<\w+ (\w+)>", text).group(1)
    if text.startswith('"'):
        return text[1:-1]
    if text.startswith("@"):
        return text[1:].strip('"')
    if text == "unit":
        return True
    number = re.fullmatch(r"(\S+) : (i64|i32|f64)", text)
    if number and number.group(2) == "f64":
        value = number.group(1)
        if value.startswith("0x"):
            return float(np.frombuffer(int(value, 16).to_bytes(8, "little"), np.float64)[0])
        return float(value)
    return int(number.group(1)) if number else text


def parse_attributes(text):
    result = {}
    for part in split_top(text):
        name, _, value = part.partition(" = ")
        result[name.strip().strip('"')] = parse_attribute(value.strip()) if value else True
    return result


OP = re.compile(
    r'^\s*(?:(%\S+) = )?"([\w.]+)"\(([^)]*)\)(?: <\{(.*)\}>)?(?: \{.*\})? : \((.*)\) -> (.*)$', re.S
)


class Program:
    """A module: parameters, inputs and the ops of @model."""

    def __init__(self, text, folder):
        self.params, self.ops, self.inputs, self.folder = {}, [], [], Path(folder)
        self.input_names = re.findall(r'nn\.input = "((?:[^"\\]|\\.)*)"', text)
        self.output_names = re.findall(r'nn\.output = "((?:[^"\\]|\\.)*)"', text)
        for line in text.splitlines():
            block = re.match(r"\s*\^bb0\((.*)\):", line)
            if block:
                self.inputs = re.findall(r"(%\w+): ", block.group(1))
            found = OP.match(line)
            if not found:
                continue
            result, name, operands, attributes, _, types = found.groups()
            attributes = parse_attributes(attributes or "")
            operands = [o.strip() for o in operands.split(",") if o.strip()]
            if name == "nn.param":
                self.params[attributes["sym_name"]] = attributes
            elif name.startswith("nn.") or name == "func.return":
                self.ops.append((result, name, operands, attributes, types))

    def param(self, name):
        p = self.params[name]
        shape, dtype = parse_type(p["type"])
        with open(self.folder / p["file"], "rb") as file:
            file.seek(p["offset"])
            return np.frombuffer(file.read(p["length"]), dtype).reshape(shape)

    def run(self, inputs):
        """Results by name; `inputs` by name."""
        values = dict(zip(self.inputs, (inputs[name] for name in self.input_names)))
        for result, name, operands, attributes, types in self.ops:
            args = [values[operand] for operand in operands]
            if name == "func.return":
                return dict(zip(self.output_names, args))
            shape, dtype = parse_type(types)
            if name == "nn.param_ref":
                value = self.param(attributes["param"])
            elif name == "nn.constant":
                value = attributes["value"]
            else:
                with np.errstate(all="ignore"):
                    value = OPS[name[3:]](args, attributes, shape, dtype)
            value = np.asarray(value)
            matches = len(value.shape) == len(shape) and all(
                want in (None, have) for want, have in zip(shape, value.shape)
            )
            assert matches, f"{name} gave {value.shape}, its type says {shape}"
            values[result] = value.astype(dtype)
        raise ValueError("no return")


# ---- Ops ---------------------------------------------------------------------

erf = np.vectorize(math.erf, otypes=[np.float64])


def wide(x):
    """Floats as f64, so that results are those of exact arithmetic."""
    return x.astype(np.float64) if x.dtype.kind == "f" or x.dtype == DTYPES["bf16"] else x


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


UNARY = {
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "ceil": np.ceil, "floor": np.floor,
    "round": np.round, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "tanh": np.tanh, "erf": erf, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x), "softplus": lambda x: np.logaddexp(x, 0),
    "not": np.invert, "is_nan": np.isnan, "is_inf": np.isinf,
}  # fmt: skip


def divide(x, y):
    """Integers: toward zero."""
    if x.dtype.kind == "i":
        return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))
    return x // y if x.dtype.kind == "u" else x / y


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": divide, "pow": np.power,
    "max": np.maximum, "min": np.minimum, "mod": np.mod, "rem": np.fmod,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
REDUCE = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def op_cast(a, at, shape, dtype):
    if dtype == np.bool_:
        return a[0] != 0
    if a[0].dtype.kind == "f" and np.issubdtype(dtype, np.integer):
        return np.trunc(a[0]).astype(np.int64)
    return a[0]


def op_matmul(a, at, shape, dtype):
    x, y = wide(a[0]), wide(a[1])
    x = x.swapaxes(-1, -2) if at.get("transpose_a") else x
    y = y.swapaxes(-1, -2) if at.get("transpose_b") else y
    return x @ y


def windows(x, at, kernel):
    """All windows: for each kernel position, the strided part of padded x."""
    n = len(kernel)
    for position in np.ndindex(*kernel):
        yield position, tuple(
            slice(p * d, None, s) for p, d, s in zip(position, at["dilations"], at["strides"])
        )


def pad_spatial(x, at, value):
    pads = [(0, 0), (0, 0), *zip(at["pads_before"], at["pads_after"])]
    return np.pad(x, pads, constant_values=value)


def op_conv(a, at, shape, dtype):
    x, w, groups = pad_spatial(wide(a[0]), at, 0), wide(a[1]), at["groups"]
    out = np.zeros(shape)
    each = shape[1] // groups
    per = x.shape[1] // groups
    for g in range(groups):
        xg, wg = x[:, g * per : (g + 1) * per], w[g * each : (g + 1) * each]
        for position, parts in windows(x, at, w.shape[2:]):
            part = xg[(slice(None), slice(None), *parts)]
            part = part[(slice(None), slice(None), *(slice(0, s) for s in shape[2:]))]
            out[:, g * each : (g + 1) * each] += np.einsum(
                "nc...,oc->no...", part, wg[(slice(None), slice(None), *position)]
            )
    return out


def op_conv_grad_input(a, at, shape, dtype):
    grad, w, groups = wide(a[0]), wide(a[1]), at["groups"]
    padded = [s + b + e for s, b, e in zip(shape[2:], at["pads_before"], at["pads_after"])]
    out = np.zeros((*shape[:2], *padded))
    each, per = grad.shape[1] // groups, shape[1] // groups
    for g in range(groups):
        gg, wg = grad[:, g * each : (g + 1) * each], w[g * each : (g + 1) * each]
        for position in np.ndindex(*w.shape[2:]):
            parts = tuple(
                slice(p * d, p * d + (m - 1) * s + 1, s)
                for p, d, s, m in zip(position, at["dilations"], at["strides"], grad.shape[2:])
            )
            out[(slice(None), slice(g * per, (g + 1) * per), *parts)] += np.einsum(
                "no...,oc->nc...", gg, wg[(slice(None), slice(None), *position)]
            )
    return out[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(at["pads_before"], shape[2:])))]


def op_pool(a, at, shape, dtype):
    x, kind = wide(a[0]), at["kind"]
    low = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    padded = pad_spatial(x, at, low if kind == "max" else 0)
    inside = pad_spatial(np.ones_like(x, np.float64), at, 1 if at.get("count_padding") else 0)
    total, count = np.full(shape, low if kind == "max" else 0, padded.dtype), np.zeros(shape)
    for _, parts in windows(x, at, at["window"]):
        index = (slice(None), slice(None), *parts)
        cut = (slice(None), slice(None), *(slice(0, s) for s in shape[2:]))
        part = padded[index][cut]
        total = np.maximum(total, part) if kind == "max" else total + part
        count += inside[index][cut]
    return total if kind == "max" else total / count


def op_slice(a, at, shape, dtype):
    index = []
    for start, limit, stride in zip(at["starts"], at["limits"], at["strides"]):
        index.append(slice(start, None if limit < 0 else limit, stride))
    return a[0][tuple(index)].reshape(shape)


def op_pad(a, at, shape, dtype):
    out = np.full(shape, a[1], dtype)
    index = tuple(
        slice(b, b + (d - 1) * (i + 1) + 1 if d else b, i + 1)
        for b, d, i in zip(at["before"], a[0].shape, at["interior"])
    )
    out[index] = a[0]
    return out


def op_dynamic_slice(a, at, shape, dtype):
    index = [slice(None)] * a[0].ndim
    for start, end, axis, step in zip(*(v.tolist() for v in a[1:])):
        index[axis] = slice(start, end, step)
    return a[0][tuple(index)]


def positive(indices, size):
    return np.where(indices < 0, indices + size, indices)


COMBINE = {
    "replace": lambda old, new: new, "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new, "max": max, "min": min,
}  # fmt: skip


def op_scatter_elements(a, at, shape, dtype):
    out, indices, axis = a[0].copy(), positive(a[1], a[0].shape[at["axis"]]), at["axis"]
    for place in np.ndindex(*indices.shape):
        to = list(place)
        to[axis] = indices[place]
        out[tuple(to)] = COMBINE[at["kind"]](out[tuple(to)], a[2][place])
    return out


def op_scatter_nd(a, at, shape, dtype):
    out = a[0].copy()
    for place in np.ndindex(*a[1].shape[:-1]):
        to = tuple(a[1][place])
        old, new = out[to], a[2][place]
        out[to] = {
            "replace": new, "add": old + new, "mul": old * new,
            "max": np.maximum(old, new), "min": np.minimum(old, new),
        }[at["kind"]]  # fmt: skip
    return out


def op_gather_nd(a, at, shape, dtype):
    batch = at["batch_dims"]
    out = np.empty(shape, dtype)
    for place in np.ndindex(*a[1].shape[:-1]):
        out[place] = a[0][(*place[:batch], *a[1][place])]
    return out


def op_arg_reduce(a, at, shape, dtype):
    x, axis = wide(a[0]), at["axis"]
    find = np.argmax if at["kind"] == "max" else np.argmin
    if at.get("select_last"):
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    else:
        found = find(x, axis)
    return found.reshape(shape)


def op_cumsum(a, at, shape, dtype):
    x, axis = wide(a[0]), at["axis"]
    x = np.flip(x, axis) if at.get("reverse") else x
    out = np.cumsum(x, axis)
    out = out - x if at.get("exclusive") else out
    return np.flip(out, axis) if at.get("reverse") else out


def softmax(x, axis):
    top = np.max(x, axis, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


def op_softmax(a, at, shape, dtype):
    e = np.exp(wide(a[0]) - np.max(wide(a[0]), at["axis"], keepdims=True))
    return e / np.sum(e, at["axis"], keepdims=True)


def log_softmax(x, axis):
    x = x - np.max(x, axis, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis, keepdims=True))


def op_layer_norm(a, at, shape, dtype):
    x, axes = wide(a[0]), tuple(range(at["axis"], a[0].ndim))
    x = x - np.mean(x, axes, keepdims=True)
    y = x / np.sqrt(np.mean(x * x, axes, keepdims=True) + at["epsilon"])
    has_scale, has_bias = (s > 0 for s in at["operandSegmentSizes"][1:])
    y = y * wide(a[1]) if has_scale else y
    return y + wide(a[-1]) if has_bias else y


def op_rms_norm(a, at, shape, dtype):
    x, axes = wide(a[0]), tuple(range(at["axis"], a[0].ndim))
    y = x / np.sqrt(np.mean(x * x, axes, keepdims=True) + at["epsilon"])
    return y * wide(a[1]) if len(a) > 1 else y


def op_attention(a, at, shape, dtype):
    q, k, v = (wide(x) for x in a[:3])
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = at["scale"] * (q @ k.swapaxes(-1, -2))
    if at.get("softcap", 0) > 0:
        scores = at["softcap"] * np.tanh(scores / at["softcap"])
    if len(a) > 3:
        scores = np.where(a[3], scores, -np.inf) if a[3].dtype == bool else scores + wide(a[3])
    if at.get("causal"):
        offset = scores.shape[3] - scores.shape[2] if at.get("causal_from_end") else 0
        seen = np.tril(np.ones(scores.shape[2:], bool), offset)
        scores = np.where(seen, scores, -np.inf)
    return softmax(scores, 3) @ v


def op_rope(a, at, shape, dtype):
    x, cos, sin = (wide(v) for v in a)
    if at.get("interleaved"):
        turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    else:
        half = x.shape[-1] // 2
        turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def op_label_weights(a, at, shape, dtype):
    labels, ignore = a[0], at.get("ignore_index")
    valid = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    weights = wide(a[1])[np.where(valid, labels, 0)] if len(a) > 1 else np.ones(labels.shape)
    return np.where(valid, weights, 0)


def op_cross_entropy(a, at, shape, dtype):
    weights = op_label_weights(a[1:], at, shape, dtype)
    labels = np.where(weights != 0, a[1], 0)
    return -weights * log_softmax(wide(a[0]), 1)[np.arange(labels.size), labels]


OPS = {
    "unary": lambda a, at, s, d: UNARY[at["kind"]](wide(a[0])),
    "binary": lambda a, at, s, d: BINARY[at["kind"]](wide(a[0]), wide(a[1])),
    "compare": lambda a, at, s, d: COMPARE[at["predicate"]](a[0], a[1]),
    "select": lambda a, at, s, d: np.where(a[0], a[1], a[2]),
    "cast": op_cast, "matmul": op_matmul, "conv": op_conv,
    "conv_grad_input": op_conv_grad_input, "pool": op_pool,
    "reshape": lambda a, at, s, d: a[0].reshape([-1 if v is None else v for v in s]),
    "transpose": lambda a, at, s, d: a[0].transpose(at["permutation"]),
    "broadcast": lambda a, at, s, d: np.broadcast_to(a[0], s),
    "slice": op_slice, "pad": op_pad, "dynamic_slice": op_dynamic_slice,
    "concat": lambda a, at, s, d: np.concatenate(a, at["axis"]),
    "gather": lambda a, at, s, d: np.take(a[0], positive(a[1], a[0].shape[at["axis"]]), at["axis"]),
    "gather_elements": lambda a, at, s, d: np.take_along_axis(
        a[0][tuple(slice(0, n) if i != at["axis"] else slice(None) for i, n in enumerate(s))],
        positive(a[1], a[0].shape[at["axis"]]), at["axis"]),
    "scatter_elements": op_scatter_elements, "scatter_nd": op_scatter_nd,
    "gather_nd": op_gather_nd, "non_zero": lambda a, at, s, d: np.array(np.nonzero(a[0])),
    "shape": lambda a, at, s, d: np.array(a[0].shape),
    "reduce": lambda a, at, s, d: REDUCE[at["kind"]](wide(a[0]), tuple(at["axes"])).reshape(s),
    "arg_reduce": op_arg_reduce, "cumsum": op_cumsum, "softmax": op_softmax,
    "log_softmax": lambda a, at, s, d: log_softmax(wide(a[0]), at["axis"]),
    "layer_norm": op_layer_norm, "rms_norm": op_rms_norm, "attention": op_attention,
    "rope": op_rope, "label_weights": op_label_weights, "cross_entropy": op_cross_entropy,
}  # fmt: skip
