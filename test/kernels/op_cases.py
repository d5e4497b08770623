"""Cases of ops_test.py: nn ops, inputs, and results by NumPy in f64."""

import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
FLOATS = [F32, F64, F16, BF16]
NAMES = {
    BF16: "bf16", F16: "f16", F32: "f32", F64: "f64",
    np.dtype(np.bool_): "i1", np.dtype(np.int8): "i8", np.dtype(np.int16): "i16",
    np.dtype(np.int32): "i32", np.dtype(np.int64): "i64", np.dtype(np.uint8): "ui8",
    np.dtype(np.uint16): "ui16", np.dtype(np.uint32): "ui32", np.dtype(np.uint64): "ui64",
}
CASES = []
random = np.random.default_rng(7)


def type_of(array):
    """The MLIR type of an array."""
    return "tensor<" + "".join(f"{dim}x" for dim in array.shape) + NAMES[array.dtype] + ">"


@dataclass
class Case:
    """`body` uses {types} and %0, %1, ... for the inputs and binds %r or %r:n."""

    name: str
    body: str
    inputs: list
    expected: list
    tolerance: float = 2.0
    scale: float = math.inf  # an absolute error may be this times the tolerance
    errors: int = 0
    types: list = field(init=False)

    def function(self):
        inputs = [type_of(array) for array in self.inputs]
        results = [type_of(array) for array in self.expected]
        arguments = ", ".join(f"%{i}: {kind}" for i, kind in enumerate(inputs))
        functional = f"({', '.join(inputs)}) -> ({', '.join(results)})"
        values = ["%r"] if len(results) == 1 else [f"%r#{i}" for i in range(len(results))]
        return (
            f"func.func @{self.name}({arguments}) -> ({', '.join(results)}) attributes {{nn.layer}} {{\n"
            f"  {self.body.replace('{types}', functional)}\n"
            f"  return {', '.join(values)} : {', '.join(results)}\n}}"
        )


def add(name, body, inputs, expected, **options):
    """Adds a case; expected results get the type that `body` names them by."""
    if not isinstance(expected, list):
        expected = [expected]
    for array in inputs:
        name += "_" + NAMES[array.dtype]
    CASES.append(Case(name, body, inputs, expected, **options))


def normal(shape, dtype=F32, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(dtype)


def wide(array):
    return array.astype(F64) if array.dtype.kind == "f" or array.dtype == BF16 else array


#===-------------------------------------------------------------------------===#
# Elementwise
#===-------------------------------------------------------------------------===#

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "ceil": np.ceil, "floor": np.floor,
    "round": np.round, "exp": np.exp, "sin": np.sin, "cos": np.cos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "tanh": np.tanh, "erf": erf,
    "tan": np.tan, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x), "softplus": lambda x: np.log1p(np.exp(x)),
    "reciprocal": lambda x: 1 / x,
}
POSITIVE = {"sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "log": np.log}
UNIT = {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}

for dtype in FLOATS:
    x = normal((5, 37), dtype, 2)
    positive = (np.abs(wide(x)) + 0.1).astype(dtype)
    unit = np.clip(wide(x) / 8, -0.9, 0.9).astype(dtype)
    for table, values in ((UNARY, x), (POSITIVE, positive), (UNIT, unit)):
        for kind, function in table.items():
            far = 8.0 if kind in ("gelu", "gelu_tanh", "tan") else 2.0
            add(f"unary_{kind}", f"%r = nn.unary {kind} %0 : {{types}}", [values],
                function(wide(values)).astype(dtype), tolerance=far)

special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 88.0, -87.0, 200.0, -200.0], F32)
with np.errstate(all="ignore"):
    for kind in ("exp", "tanh", "erf", "relu", "abs", "sigmoid"):
        add(f"special_{kind}", f"%r = nn.unary {kind} %0 : {{types}}", [special],
            UNARY[kind](wide(special)).astype(F32))
    add("special_log", "%r = nn.unary log %0 : {types}", [special], np.log(special))
add("is_nan", "%r = nn.unary is_nan %0 : {types}", [special], np.isnan(special))
add("is_inf", "%r = nn.unary is_inf %0 : {types}", [special], np.isinf(special))

BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum,
    "min": np.minimum, "mod": np.mod, "rem": np.fmod,
}
for dtype in FLOATS:
    a, b = normal((3, 4, 33), dtype, 3), normal((4, 1), dtype, 3)
    for kind, function in {**BINARY, "div": np.divide}.items():
        add(f"binary_{kind}", f"%r = nn.binary {kind} %0, %1 : {{types}}", [a, b],
            function(wide(a), wide(b)).astype(dtype), tolerance=4)
    base = (np.abs(wide(a)) + 0.1).astype(dtype)
    add("binary_pow", "%r = nn.binary pow %0, %1 : {types}", [base, b],
        (wide(base) ** wide(b)).astype(dtype))
for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
    dtype = np.dtype(dtype)
    low = -100 if dtype.kind == "i" else 0
    a = random.integers(low, 120, (4, 9)).astype(dtype)
    b = random.integers(1, 7, (9,)).astype(dtype)
    if dtype.kind == "i":
        b[::2] *= -1
    else:
        a[0, :] += np.array(np.iinfo(dtype).max - 200, dtype)
    with np.errstate(all="ignore"):
        for kind, function in BINARY.items():
            add(f"binary_{kind}", f"%r = nn.binary {kind} %0, %1 : {{types}}", [a, b], function(a, b))
        quotient = np.trunc(a / b).astype(dtype) if dtype.itemsize < 8 else (
            a // b if dtype.kind == "u" else -(-a // b) * 0 + np.trunc(a / b).astype(dtype))
        add("binary_div", "%r = nn.binary div %0, %1 : {types}", [a, b], quotient)
    add("compare_lt", "%r = nn.compare lt %0, %1 : {types}", [a, b], a < b)
    for kind, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        add(f"binary_{kind}", f"%r = nn.binary {kind} %0, %1 : {{types}}", [a, b], function(a, b))
    for to in (F32, F16, BF16, F64, np.dtype(np.int64), np.dtype(np.int8), np.dtype(np.bool_)):
        add(f"cast_to_{NAMES[to]}", "%r = nn.cast %0 : {types}", [a], a.astype(to))
a, b = random.integers(0, 255, 12).astype(np.uint8), np.arange(12).astype(np.uint8)
add("binary_shl", "%r = nn.binary shl %0, %1 : {types}", [a, b], (a.astype(int) << b).astype(np.uint8))
add("binary_shr", "%r = nn.binary shr %0, %1 : {types}", [a, b], (a.astype(int) >> b).astype(np.uint8))
# Amounts outside the width leave copies of the sign.
for dtype in (np.dtype(np.int8), np.dtype(np.int32)):
    a, b = np.array([-5, -5, -5, 5, 5, -1], dtype), np.array([1, 100, -1, 1, -1, 0], dtype)
    add("binary_shl", "%r = nn.binary shl %0, %1 : {types}", [a, b], np.array([-10, 0, 0, 10, 0, -1], dtype))
    add("binary_shr", "%r = nn.binary shr %0, %1 : {types}", [a, b], np.array([-3, -1, -1, 2, 0, -1], dtype))
for kind, function in (("eq", np.equal), ("ne", np.not_equal), ("ge", np.greater_equal)):
    add(f"compare_{kind}", f"%r = nn.compare {kind} %0, %1 : {{types}}", [special, special[::-1].copy()],
        function(special, special[::-1]))
flags = random.integers(0, 2, (4, 1)).astype(bool)
add("not", "%r = nn.unary not %0 : {types}", [flags], ~flags)
x, y = normal((4, 5)), normal((5,))
add("select", "%r = nn.select %0, %1, %2 : {types}", [flags, x, y], np.where(flags, x, y))

edges = np.array([1.0, 1.00390625, 1.001953125, 1.005859375, 3.4e38, 1e-40, -1e-40, 65504, 65520,
                  6e-8, np.inf, np.nan], F64)
with np.errstate(all="ignore"):
    for source in (F64, F32):
        for to in (BF16, F16):
            add(f"cast_to_{NAMES[to]}", "%r = nn.cast %0 : {types}", [edges.astype(source)],
                edges.astype(source).astype(to))
for to in (np.int32, np.int64, np.uint8, np.bool_):
    x = np.array([0.0, 1.9, 100.5, 3.0], F32)
    add(f"cast_to_{NAMES[np.dtype(to)]}", "%r = nn.cast %0 : {types}", [x], x.astype(to))

#===-------------------------------------------------------------------------===#
# Shapes
#===-------------------------------------------------------------------------===#

for dtype in (F32, BF16, np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_)):
    x = random.integers(0, 2 if dtype == np.bool_ else 100, (2, 67, 35)).astype(dtype)
    add("transpose_021", "%r = nn.transpose %0 [0, 2, 1] : {types}", [x], x.transpose(0, 2, 1))
    add("transpose_210", "%r = nn.transpose %0 [2, 1, 0] : {types}", [x], x.transpose(2, 1, 0))
    add("transpose_102", "%r = nn.transpose %0 [1, 0, 2] : {types}", [x], x.transpose(1, 0, 2))
    add("reshape", "%r = nn.reshape %0 : {types}", [x], x.reshape(35, 134))
    add("slice", "%r = nn.slice %0 [0, 3, 30] to [2, 60, 4] by [1, 2, -5] : {types}", [x],
        x[:, 3:60:2, 30:4:-5])
    add("broadcast", "%r = nn.broadcast %0 : {types}", [x[:, :1]],
        np.broadcast_to(x[:, :1], (3, 2, 9, 35)).copy())
    value = x[0, 0, 0:1].reshape(())
    padded = np.full((4, 5 + 67, 35 * 2 + 1), value)
    padded[1:3, 2:69, 0:69:2] = x
    add("pad", "%r = nn.pad %0, %1 [1, 2, 0], [1, 3, 2] interior [0, 0, 1] : {types}", [x, value], padded)
    add("concat", "%r = nn.concat %0, %1 axis 1 : {types}", [x, x[:, 5:9].copy()],
        np.concatenate([x, x[:, 5:9]], 1))

#===-------------------------------------------------------------------------===#
# Indexing
#===-------------------------------------------------------------------------===#

table = normal((11, 13, 6))
for dtype in (np.int64, np.int32):
    index = random.integers(-11, 11, (2, 3)).astype(dtype)
    add("gather_0", "%r = nn.gather %0, %1 axis 0 : {types}", [table, index], table[index])
    add("gather_2", "%r = nn.gather %0, %1 axis 2 : {types}", [table, index // 2],
        np.take(table, index // 2, 2))
bad = np.array([1, 11, -12], np.int64)
add("gather_bad", "%r = nn.gather %0, %1 axis 0 : {types}", [table, bad], table[[1, 0, 0]], errors=2)
for dtype in (F32, BF16):
    grad = normal((2, 3, 13, 6), dtype)
    index = np.array([[1, 4, 1], [10, -1, 4]])
    total = np.zeros((11, 13, 6))
    np.add.at(total, index, wide(grad))
    add("gather_grad", "%r = nn.gather_grad %0, %1 axis 0 : {types}", [grad, index], total.astype(dtype))
index = random.integers(-11, 11, (5, 13, 6))
add("gather_elements", "%r = nn.gather_elements %0, %1 axis 0 : {types}", [table, index],
    np.take_along_axis(table, index, 0))
updates = normal((5, 13, 6))
for kind in ("replace", "add", "mul", "max", "min"):
    right = table.copy()
    for at in np.ndindex(*index.shape):
        to = (index[at], *at[1:])
        old, new = right[to], updates[at]
        right[to] = {"replace": new, "add": old + new, "mul": old * new, "max": max(old, new),
                     "min": min(old, new)}[kind]
    add(f"scatter_elements_{kind}", f"%r = nn.scatter_elements {kind} %0, %1, %2 axis 0 : {{types}}",
        [table, index, updates], right)
index = np.stack([random.integers(0, 11, (4, 2)), random.integers(-13, 13, (4, 2))], -1)
add("gather_nd", "%r = nn.gather_nd %0, %1 batch_dims 0 : {types}", [table, index],
    table[index[..., 0], index[..., 1]])
batched = random.integers(0, 13, (11, 3, 1))
add("gather_nd_batch", "%r = nn.gather_nd %0, %1 batch_dims 1 : {types}", [table, batched],
    np.stack([table[i, batched[i, :, 0]] for i in range(11)]))
updates = normal((4, 2, 6))
right = table.copy()
np.add.at(right, (index[..., 0], index[..., 1]), updates)
add("scatter_nd_add", "%r = nn.scatter_nd add %0, %1, %2 : {types}", [table, index, updates], right)
mask = random.integers(0, 2, (2, 12)).astype(bool)
text, image = normal((2, 12, 7)), normal((24, 7))
right = text.copy()
right[mask] = image[: mask.sum()]
add("masked_scatter", "%r = nn.masked_scatter %0, %1, %2 : {types}", [text, mask, image], right)
right = np.zeros((24, 7), F32)
right[: mask.sum()] = text[mask]
add("masked_gather", "%r = nn.masked_gather %0, %1 : {types}", [text, mask], right)

#===-------------------------------------------------------------------------===#
# Reductions
#===-------------------------------------------------------------------------===#

for dtype in FLOATS:
    x = normal((6, 70, 130), dtype)
    w = wide(x)
    for axes in ([0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        name = "".join(map(str, axes))
        add(f"reduce_sum_{name}", f"%r = nn.reduce sum %0 axes {axes} : {{types}}", [x],
            np.asarray(w.sum(tuple(axes))).astype(dtype), tolerance=16)
        add(f"reduce_max_{name}", f"%r = nn.reduce max %0 axes {axes} keep_dims : {{types}}", [x],
            w.max(tuple(axes), keepdims=True).astype(dtype))
    small = (1 + w[:, :5, :9] / 8).astype(dtype)
    add("reduce_prod", "%r = nn.reduce prod %0 axes [1, 2] : {types}", [small],
        wide(small).prod((1, 2)).astype(dtype), tolerance=32)
x = random.integers(-50, 50, (6, 70)).astype(np.int32)
add("reduce_min", "%r = nn.reduce min %0 axes [1] : {types}", [x], x.min(1))
add("reduce_sum_int", "%r = nn.reduce sum %0 axes [0] : {types}", [x], x.sum(0).astype(np.int32))
for last in (False, True):
    flag = " select_last" if last else ""
    right = 69 - x[:, ::-1].argmax(1) if last else x.argmax(1)
    add(f"arg_max{int(last)}", f"%r = nn.arg_reduce max %0 axis 1{flag} : {{types}}", [x], right)
add("arg_min", "%r = nn.arg_reduce min %0 axis 0 keep_dims : {types}", [x], x.argmin(0)[None])
x = normal((5, 40, 3))
add("cumsum", "%r = nn.cumsum %0 axis 1 : {types}", [x], wide(x).cumsum(1).astype(F32), tolerance=16)
right = np.concatenate([wide(x)[:, ::-1].cumsum(1)[:, ::-1][:, 1:], np.zeros((5, 1, 3))], 1)
add("cumsum_exclusive", "%r = nn.cumsum %0 axis 1 exclusive reverse : {types}", [x],
    right.astype(F32), tolerance=16)

#===-------------------------------------------------------------------------===#
# Rows
#===-------------------------------------------------------------------------===#


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x, epsilon, centered):
    d = x - x.mean(-1, keepdims=True) if centered else x
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + epsilon)


for dtype in FLOATS:
    x, g = normal((3, 9, 133), dtype, 3), normal((3, 9, 133), dtype)
    scale, bias = normal((133,), dtype), normal((133,), dtype)
    w, wg = wide(x), wide(g)
    for axis in (1, 2):
        add(f"softmax_{axis}", f"%r = nn.softmax %0 axis {axis} : {{types}}", [x],
            softmax(w, axis).astype(dtype), tolerance=4)
        add(f"log_softmax_{axis}", f"%r = nn.log_softmax %0 axis {axis} : {{types}}", [x],
            np.log(softmax(w, axis)).astype(dtype), tolerance=4)
    attributes = "{axis = 2 : i64, epsilon = 1.0e-5 : f64}"
    add("layer_norm", f"%r = nn.layer_norm %0 scale %1 bias %2 {attributes} : {{types}}", [x, scale, bias],
        (norm(w, 1e-5, True) * wide(scale) + wide(bias)).astype(dtype), tolerance=8)
    add("rms_norm", f"%r = nn.rms_norm %0 scale %1 {attributes} : {{types}}", [x, scale],
        (norm(w, 1e-5, False) * wide(scale)).astype(dtype), tolerance=8)
    for name, centered in (("layer_norm", True), ("rms_norm", False)):
        unit = norm(w, 1e-5, centered)
        d = w - w.mean(-1, keepdims=True) if centered else w
        inverse = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
        level = wg.mean(-1, keepdims=True) if centered else 0
        right = inverse * (wg - level - unit * (wg * unit).mean(-1, keepdims=True))
        add(f"{name}_grad", f"%r = nn.{name}_grad %0, %1 {attributes} : {{types}}", [x, g],
            right.astype(dtype), tolerance=8)
    angle = random.uniform(0, 6, (9, 16))
    x = normal((2, 3, 9, 16), dtype)
    cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
    w, c, s = wide(x), wide(cos), wide(sin)
    half = lambda v: np.concatenate([-v[..., 8:], v[..., :8]], -1)
    pairs = lambda v: np.stack([-v[..., 1::2], v[..., ::2]], -1).reshape(v.shape)
    add("rope", "%r = nn.rope %0, %1, %2 : {types}", [x, cos, sin], (w * c + half(w) * s).astype(dtype))
    add("rope_pairs", "%r = nn.rope %0, %1, %2 interleaved : {types}", [x, cos, sin],
        (w * c + pairs(w) * s).astype(dtype))
    add("rope_grad", "%r = nn.rope %0, %1, %2 transposed : {types}", [x, cos, sin],
        (w * c - half(w * s)).astype(dtype))
    logits, labels = normal((7, 150), dtype, 3), np.array([0, 149, -100, 5, 17, -100, 33])
    weight, grad = np.abs(normal((150,), dtype)), normal((7,), dtype)
    p = softmax(wide(logits), 1)
    kept = labels != -100
    safe = np.where(kept, labels, 0)
    factor = np.where(kept, wide(weight)[safe], 0)
    hot = np.eye(150)[safe]
    ignore = "{ignore_index = -100 : i64}"
    add("cross_entropy", f"%r = nn.cross_entropy %0, %1 weight %2 {ignore} : {{types}}",
        [logits, labels, weight], (-np.log(p[range(7), safe]) * factor).astype(dtype), tolerance=4)
    add("cross_entropy_grad", f"%r = nn.cross_entropy_grad %0, %1, %2 weight %3 {ignore} : {{types}}",
        [logits, labels, grad, weight],
        ((p - hot) * (wide(grad) * factor)[:, None]).astype(dtype), tolerance=4)
    add("label_weights", f"%r = nn.label_weights %0 weight %1 {ignore} : {{types}}", [labels, weight],
        factor.astype(dtype))
# One row, whose loop over rows goes: what it computes of itself stays with it.
x, g = normal((1, 1, 40)), normal((1, 1, 40))
logits, label, grad = normal((1, 150), scale=3), np.array([17]), normal((1,))
attributes = "{axis = 2 : i64, epsilon = 1.0e-5 : f64}"
for name, centered in (("layer_norm", True), ("rms_norm", False)):
    unit, d = norm(wide(x), 1e-5, centered), wide(x) - (wide(x).mean() if centered else 0)
    level = wide(g).mean() if centered else 0
    right = (wide(g) - level - unit * (wide(g) * unit).mean()) / np.sqrt((d * d).mean() + 1e-5)
    add(f"{name}_grad_row", f"%r = nn.{name}_grad %0, %1 {attributes} : {{types}}", [x, g],
        right.astype(F32), tolerance=8)
p = softmax(wide(logits), 1)
add("cross_entropy_grad_row", "%r = nn.cross_entropy_grad %0, %1, %2 : {types}", [logits, label, grad],
    ((p - np.eye(150)[label]) * wide(grad)).astype(F32), tolerance=4)
add("cross_entropy_bad", "%r = nn.cross_entropy %0, %1 : {types}", [normal((2, 5)) * 0, np.array([5, 1])],
    np.full(2, np.log(5), F32), errors=1)

#===-------------------------------------------------------------------------===#
# Products
#===-------------------------------------------------------------------------===#

for dtype in [*FLOATS, np.dtype(np.int32)]:
    def make(*shape):
        return normal(shape, dtype) if dtype.kind != "i" else random.integers(-9, 9, shape).astype(dtype)
    for name, flags, sa, sb in (
        ("nn", "", (37, 45), (45, 53)), ("nt", " transpose_b", (2, 9, 45), (53, 45)),
        ("tn", " transpose_a", (45, 37), (45, 53)), ("batch", "", (3, 2, 8, 16), (3, 2, 16, 24)),
        ("batch_nt", " transpose_b", (6, 8, 16), (6, 24, 16)), ("spread", "", (3, 1, 8, 16), (2, 16, 24)),
        ("shared", "", (8, 16), (2, 16, 24)),
    ):
        a, b = make(*sa), make(*sb)
        wa = wide(a).swapaxes(-1, -2) if "_a" in flags else wide(a)
        wb = wide(b).swapaxes(-1, -2) if "_b" in flags else wide(b)
        add(f"matmul_{name}", f"%r = nn.matmul %0, %1{flags} : {{types}}", [a, b],
            (wa @ wb).astype(dtype), tolerance=8)


def convolution(x, w, strides, dilations, pads, groups):
    """Two-dimensional convolution, slowly."""
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    n, outs, (kh, kw) = x.shape[0], w.shape[0], w.shape[2:]
    height = (x.shape[2] - dilations[0] * (kh - 1) - 1) // strides[0] + 1
    length = (x.shape[3] - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    y = np.zeros((n, outs, height, length))
    for o in range(outs):
        group = o // (outs // groups)
        part = x[:, group * w.shape[1] : (group + 1) * w.shape[1]]
        for i in range(kh):
            for j in range(kw):
                window = part[:, :, i * dilations[0] :: strides[0], j * dilations[1] :: strides[1]]
                y[:, o] += np.einsum("nchw,c->nhw", window[:, :, :height, :length], w[o, :, i, j])
    return y


for name, strides, dilations, pads, groups in (
    ("patch", (3, 3), (1, 1), ((0, 0), (0, 0)), 1), ("general", (2, 1), (1, 2), ((1, 0), (2, 1)), 2),
):
    x, w = normal((2, 4, 12, 9)), normal((6, 4 // groups, 3, 3))
    y = convolution(wide(x), wide(w), strides, dilations, pads, groups)
    attributes = (
        f"{{strides = array<i64: {strides[0]}, {strides[1]}>, dilations = array<i64: {dilations[0]}, {dilations[1]}>, "
        f"pads_before = array<i64: {pads[0][0]}, {pads[1][0]}>, pads_after = array<i64: {pads[0][1]}, {pads[1][1]}>, "
        f"groups = {groups} : i64}}"
    )
    add(f"conv_{name}", f"%r = nn.conv %0, %1 {attributes} : {{types}}", [x, w], y.astype(F32), tolerance=8)
    g = normal(y.shape)
    # Convolution is linear in both: gradients from what unit inputs give.
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for at in np.ndindex(*x.shape[1:]):
        unit = np.zeros((1, *x.shape[1:]))
        unit[0][at] = 1
        dx[(slice(None), *at)] = (convolution(unit, wide(w), strides, dilations, pads, groups) * g).sum((1, 2, 3))
    for at in np.ndindex(*w.shape):
        unit = np.zeros(w.shape)
        unit[at] = 1
        dw[at] = (convolution(wide(x), unit, strides, dilations, pads, groups) * g).sum()
    add(f"conv_grad_input_{name}", f"%r = nn.conv_grad_input %0, %1 {attributes} : {{types}}", [g, w],
        dx.astype(F32), tolerance=8)
    add(f"conv_grad_weight_{name}", f"%r = nn.conv_grad_weight %0, %1 {attributes} : {{types}}", [x, g],
        dw.astype(F32), tolerance=8)

#===-------------------------------------------------------------------------===#
# Pooling
#===-------------------------------------------------------------------------===#

x = normal((2, 3, 7, 8))
pool = ("strides = array<i64: 2, 1>, dilations = array<i64: 1, 2>, pads_before = array<i64: 1, 0>, "
        "pads_after = array<i64: 0, 1>, groups = 1 : i64")
height, length = (7 + 1 - 2) // 2 + 1, (8 + 1 - 2 * 2 - 1) // 1 + 1
g = normal((2, 3, height, length))
largest, mean = np.zeros(g.shape), np.zeros(g.shape)
d_largest, d_mean = np.zeros(x.shape), np.zeros(x.shape)
for n, c, i, j in np.ndindex(*g.shape):
    places = [(i * 2 - 1 + a, j + 2 * b) for a in range(2) for b in range(3)]
    places = [(a, b) for a, b in places if 0 <= a < 7 and 0 <= b < 8]
    values = [x[n, c, a, b] for a, b in places]
    largest[n, c, i, j], mean[n, c, i, j] = max(values), np.mean(values, dtype=F64)
    d_largest[(n, c, *places[int(np.argmax(values))])] += g[n, c, i, j]
    for place in places:
        d_mean[(n, c, *place)] += g[n, c, i, j] / len(places)
window = "window [2, 3] {" + pool + "}"
add("pool_max", f"%r = nn.pool max %0 {window} : {{types}}", [x], largest.astype(F32))
add("pool_average", f"%r = nn.pool average %0 {window} : {{types}}", [x], mean.astype(F32))
add("pool_max_grad", f"%r = nn.pool_grad max %0, %1 {window} : {{types}}", [x, g], d_largest.astype(F32))
add("pool_average_grad", f"%r = nn.pool_grad average %0, %1 {window} : {{types}}", [x, g],
    d_mean.astype(F32))

# Windows that overlap within a row: lanes share one, and another has its elements next.
g, d_mean = normal((2, 3, 15)), np.zeros((2, 3, 15))
for j in range(15):
    places = [a for a in (j - 1, j, j + 1) if 0 <= a < 15]
    d_mean[..., places] += wide(g)[..., j : j + 1] / len(places)
pool = ("strides = array<i64: 1>, dilations = array<i64: 1>, pads_before = array<i64: 1>, "
        "pads_after = array<i64: 1>, groups = 1 : i64")
add("pool_average_grad_rows", f"%r = nn.pool_grad average %0, %1 window [3] {{{pool}}} : {{types}}",
    [normal((2, 3, 15)), g], d_mean.astype(F32))

#===-------------------------------------------------------------------------===#
# Attention
#===-------------------------------------------------------------------------===#


def attention(q, k, v, scale, causal, softcap, mask):
    """Result, probabilities and raw scores; key heads are repeated."""
    s = q @ k.swapaxes(-1, -2) * scale
    t = np.tanh(s / softcap) if softcap else None
    if softcap:
        s = softcap * t
    if mask is not None and mask.dtype != bool:
        s = s + mask
    seen = np.ones(s.shape, bool)
    if mask is not None and mask.dtype == bool:
        seen &= mask
    if causal is not None:
        i, j = np.indices(s.shape[-2:])
        seen &= j <= i + causal
    s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    return p @ v, p, t


for dtype in FLOATS:
    for name, heads, kv, tq, tk, causal, softcap, mask, *widths in (
        ("plain", 4, 4, 9, 13, None, 0, None), ("grouped", 6, 2, 11, 11, 0, 0, None),
        ("from_end", 2, 1, 5, 12, 7, 0, None), ("bool", 2, 2, 8, 10, None, 0, "bool", 16, 8),
        ("bias", 2, 2, 8, 10, 2, 0, "float", 8, 16), ("cap", 2, 2, 8, 8, 0, 5.0, None),
        # Several tiles of queries and keys, or few values of a thread; widths that are no round numbers.
        ("tiles", 2, 1, 70, 131, 61, 0, None, 24, 8), ("odd", 1, 1, 20, 40, None, 0, "bool", 7, 9),
        ("wide", 1, 1, 17, 20, 3, 0, "bool", 128, 72), ("blind", 2, 2, 24, 9, -15, 0, "bool", 8, 8),
        ("hidden", 2, 2, 8, 18, None, 0, "lowest", 16, 8), ("filled", 1, 1, 40, 70, 30, 0, None, 76, 88),
        ("few", 2, 1, 17, 17, None, 0, "float", 20, 20), ("one", 1, 1, 100, 1, None, 0, None, 100, 36),
    ):
        if mask == "lowest" and dtype not in (F32, F64):
            continue
        width, value_width = widths or (16, 12)
        q, k = normal((2, heads, tq, width), dtype), normal((2, kv, tk, width), dtype)
        v, g = normal((2, kv, tk, value_width), dtype), normal((2, heads, tq, value_width), dtype)
        m = None
        if mask == "bool":
            m = random.integers(0, 2, (2, 1, tq, tk)).astype(bool)
            m[0, 0, 3] = False
        elif mask == "float":
            m = normal((heads, 1, tk), dtype)
        elif mask == "lowest":
            m = np.zeros((tq, tk), dtype)
            m[3], m[5, 4:] = np.finfo(F32).min, np.finfo(F32).min
        repeat = lambda x: np.repeat(wide(x), heads // kv, 1)
        wm = None if m is None else wide(m)
        y, p, t = attention(wide(q), repeat(k), repeat(v), 0.25, causal, softcap, wm)
        extra = [] if m is None else [m]
        options = "scale = 0.25 : f64" + (f", softcap = {softcap} : f64" if softcap else "")
        if causal:
            options += ", causal_from_end"
        flag = " causal" if causal is not None else ""
        mask_at = lambda i: f" mask %{i}" if extra else ""
        add(f"attention_{name}", f"%r = nn.attention %0, %1, %2{mask_at(3)}{flag} {{{options}}} : {{types}}",
            [q, k, v, *extra], y.astype(dtype), tolerance=4)
        dp = wide(g) @ repeat(v).swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * 0.25
        if softcap:
            ds = ds * (1 - t * t)
        group = lambda x: x.reshape(2, kv, heads // kv, *x.shape[2:]).sum(2)
        right = [ds @ repeat(k), group(ds.swapaxes(-1, -2) @ wide(q)), group(p.swapaxes(-1, -2) @ wide(g))]
        add(f"attention_grad_{name}",
            f"%r:3 = nn.attention_grad %0, %1, %2, %3, %4{mask_at(5)}{flag} {{{options}}} : {{types}}",
            [q, k, v, y.astype(dtype), g, *extra], [x.astype(dtype) for x in right], tolerance=8)

#===-------------------------------------------------------------------------===#
# No elements
#===-------------------------------------------------------------------------===#

none, some = np.zeros((2, 0, 4), F32), normal((2, 3, 4))
for kind, value in (("sum", 0), ("prod", 1), ("max", -math.inf), ("min", math.inf)):
    add(f"empty_reduce_{kind}", f"%r = nn.reduce {kind} %0 axes [1] keep_dims : {{types}}", [none],
        np.full((2, 1, 4), value, F32))
add("empty_reduce", "%r = nn.reduce sum %0 axes [0] : {types}", [none], none[0])
add("empty_unary", "%r = nn.unary exp %0 : {types}", [none], none)
add("empty_add", "%r = nn.binary add %0, %1 : {types}", [none, some[:1, :1].copy()], none)
add("empty_reshape", "%r = nn.reshape %0 : {types}", [none], none.reshape(5, 2, 0))
add("empty_slice", "%r = nn.slice %0 [0, 3, 0] to [2, 3, 4] by [1, 1, 1] : {types}", [some], none)
add("empty_concat", "%r = nn.concat %0, %1 axis 1 : {types}", [none, some], some)
add("empty_pad", "%r = nn.pad %0, %1 [0, 1, 0], [0, 1, 0] interior [0, 0, 0] : {types}",
    [none, np.array(3, F32)], np.full((2, 2, 4), 3, F32))
add("empty_product", "%r = nn.matmul %0, %1 : {types}", [none.swapaxes(1, 2).copy(), none],
    np.zeros((2, 4, 4), F32))
add("empty_gather", "%r = nn.gather %0, %1 axis 1 : {types}", [some, np.zeros(0, np.int64)], none)
add("empty_scatter_nd", "%r = nn.scatter_nd add %0, %1, %2 : {types}",
    [some, np.zeros((0, 1), np.int64), np.zeros((0, 3, 4), F32)], some)
add("empty_scatter_elements", "%r = nn.scatter_elements add %0, %1, %2 axis 1 : {types}",
    [some, np.zeros((2, 0, 4), np.int64), none], some)
add("empty_passed_on", "%s = nn.unary neg %0 : (tensor<2x0x4xf32>) -> tensor<2x0x4xf32> "
    "%r = nn.concat %s, %1 axis 1 : {types}", [none, some], some)

#===-------------------------------------------------------------------------===#
# Linear layers: products and what follows them, which cuBLASLt may do with them
#===-------------------------------------------------------------------------===#


def linear(name, dtype, steps, added, result=F32):
    """steps(x w^T, bias, addend): x 3 x 10 x 24, w 40 x 24 of type `dtype`, bias 40 of the result's
    type, addend 3 x 10 x 40 of f32. `steps` are pairs of an op, where {p} is the value so far and
    {t} its type, and its NumPy function."""
    x, w, b = normal((3, 10, 24), dtype), normal((40, 24), dtype), normal((40,), result)
    r = normal((3, 10, 40))
    inputs = [x, w, b, *([r] if added else [])]
    wide_type, type_x, type_w = "tensor<3x10x40xf32>", "tensor<3x10x24xf32>", "tensor<40x24xf32>"
    lines = [
        f"%x = nn.cast %0 : ({type_of(x)}) -> {type_x}", f"%w = nn.cast %1 : ({type_of(w)}) -> {type_w}",
        f"%b = nn.cast %2 : ({type_of(b)}) -> tensor<40xf32>",
        f"%v0 = nn.matmul %x, %w transpose_b : ({type_x}, {type_w}) -> {wide_type}",
    ]
    value = wide(x) @ wide(w).T
    for number, (text, function) in enumerate(steps):
        lines.append(f"%v{number + 1} = {text}".replace("{p}", f"%v{number}").replace("{t}", wide_type))
        value = function(value, wide(b), r.astype(F64))
    value = value.astype(result)
    lines.append(f"%r = nn.cast %v{len(steps)} : ({wide_type}) -> {type_of(value)}")
    add(f"linear_{name}", "\n  ".join(lines), inputs, value, tolerance=8)


BIAS = ("nn.binary add {p}, %b : ({t}, tensor<40xf32>) -> {t}", lambda p, b, r: p + b)
RESIDUAL = ("nn.binary add %3, {p} : ({t}, {t}) -> {t}", lambda p, b, r: r + p)
GELU = ("nn.unary gelu_tanh {p} : ({t}) -> {t}", lambda p, b, r: UNARY["gelu_tanh"](p))
for dtype in (F32, F16, BF16):
    linear("bias", dtype, [BIAS], False)
    linear("residual", dtype, [RESIDUAL], True)
    linear("bias_residual", dtype, [BIAS, RESIDUAL], True)
    linear("gelu", dtype, [BIAS, GELU], False)
    linear("all", dtype, [BIAS, RESIDUAL, GELU], True)
    if dtype != F32:
        linear("narrow", dtype, [BIAS], False, result=dtype)
        linear("narrow_gelu", dtype, [BIAS, GELU], False, result=dtype)
x, w, b, first, second = normal((30, 24)), normal((40, 24)), normal((40,)), normal((4, 24)), normal((40, 4))
add("linear_lora",
    "%half = nn.constant dense<0.5> : tensor<f32>\n"
    "  %base = nn.matmul %0, %1 transpose_b : (tensor<30x24xf32>, tensor<40x24xf32>) -> tensor<30x40xf32>\n"
    "  %sum = nn.binary add %base, %2 : (tensor<30x40xf32>, tensor<40xf32>) -> tensor<30x40xf32>\n"
    "  %low = nn.matmul %0, %3 transpose_b : (tensor<30x24xf32>, tensor<4x24xf32>) -> tensor<30x4xf32>\n"
    "  %high = nn.matmul %low, %4 transpose_b : (tensor<30x4xf32>, tensor<40x4xf32>) -> tensor<30x40xf32>\n"
    "  %part = nn.binary mul %high, %half : (tensor<30x40xf32>, tensor<f32>) -> tensor<30x40xf32>\n"
    "  %r = nn.binary add %sum, %part : (tensor<30x40xf32>, tensor<30x40xf32>) -> tensor<30x40xf32>",
    [x, w, b, first, second],
    (wide(x) @ wide(w).T + b + wide(x) @ wide(first).T @ wide(second).T / 2).astype(F32), tolerance=8)
