"""Small graphs in ONNX's text form: healthy ones, and ones whose answers depend on other rows.

Each has an input `x` and an output `y`. A family declares their types and the configuration.
"""

from dataclasses import dataclass

import onnx.parser
from runtime.support.configs import model_config, tensor

COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}
AXIS = {"axes.x": "n", "limit.n": "24"}
MASK = {**AXIS, "mask.mask": "n"}
NEUTRAL = {**AXIS, "padding.n": "neutral"}
EACH = {"axes.y": "n"}


@dataclass(frozen=True)
class Family:
    """The types of a graph's tensors, and its configuration."""

    header: str
    inputs: tuple
    outputs: tuple
    parameters: dict

    def model(self, body):
        return onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["": 17]>\ng {self.header}\n{{ {body} }}'
        )

    @property
    def config(self):
        return model_config(self.inputs, self.outputs, {**COST, **self.parameters}, name="seeded")


def _family(header, source, target, parameters):
    return Family(header, (tensor("x", *source),), (tensor("y", *target),), parameters)


ROWS = _family("(float[b,4] x) => (float[b,4] y)", ("FP32", [4]), ("FP32", [4]), {})
LABEL = _family("(float[b,4] x) => (int64[b,1] y)", ("FP32", [4]), ("INT64", [1]), {})
INTEGERS = _family("(int64[b,4] x) => (int64[b,4] y)", ("INT64", [4]), ("INT64", [4]), {})
INTEGER_LABEL = _family("(int64[b,4] x) => (int64[b,1] y)", ("INT64", [4]), ("INT64", [1]), {})
MASKED = _family(
    "(float[b,n] x, float[b,n] mask) => (float[b,1] y)", ("FP32", [-1]), ("FP32", [1]), MASK
)
MASKED_EACH = _family(
    "(float[b,n] x, float[b,n] mask) => (float[b,n] y)",
    ("FP32", [-1]),
    ("FP32", [-1]),
    MASK | EACH,
)
MASKED_IDS = _family(
    "(int64[b,n] x, int64[b,n] mask) => (int64[b,1] y)", ("INT64", [-1]), ("INT64", [1]), MASK
)
PADDED = _family("(float[b,n] x) => (float[b,1] y)", ("FP32", [-1]), ("FP32", [1]), NEUTRAL)
PADDED_EACH = _family(
    "(float[b,n] x) => (float[b,n] y)", ("FP32", [-1]), ("FP32", [-1]), NEUTRAL | EACH
)
LENGTHS = _family(
    "(float[b,n] x, int64[b] lengths) => (float[b,1] y)",
    ("FP32", [-1]),
    ("FP32", [1]),
    {**AXIS, "lengths.lengths": "n"},
)
GEARED = _family(
    "(float[b,n] x) => (float[b,1] y)",
    ("FP32", [-1]),
    ("FP32", [1]),
    {**NEUTRAL, "gears.batch": "1", "gears.n": "8, 24"},
)

ONE = "one = Constant <value: tensor = int64[1] {1}> () "
LAST = "end = Constant <value: tensor = int64[1] {-1}> () "
NOUGHT = "nought = Constant <value: tensor = int64[1] {0}> () "
MOST = "most = Constant <value: tensor = int64[1] {9223372036854775807}> () "
SLICE = ONE + LAST + NOUGHT + MOST
KERNEL = "w = Constant <value: tensor = float[1,1,3] {0.5, 1.0, -0.25}> () "
BIASED = "c = Constant <value: tensor = float[1] {0.3}> () "
SUM = "y = ReduceSum <keepdims: int = 1> (kept, one)"
RECURRENT = (
    "w = Constant <value: tensor = float[1,1,1] {0.7}> () "
    "r = Constant <value: tensor = float[1,1,1] {0.6}> () "
    + ONE
    + LAST
    + "t = Transpose <perm: ints = [1, 0]> (x) s = Unsqueeze (t, end) "
)

_NEXT_ROW = (
    SLICE + "head = Slice (x, nought, one, nought) tail = Slice (x, one, most, nought) "
    "other = Concat <axis: int = 0> (tail, head) "
)
_FAINT = "f = Constant <value: tensor = float[1] {0.000001}> () "
_TO_FLOAT = "v = Cast <to: int = 1> (x) "
_RANDOM = "u = RandomUniformLike <seed: float = 3.0, dtype: int = 1> (x) "

DEFECTS = {
    # Rows see each other.
    "maximum over rows": (ROWS, "m = ReduceMax <axes: ints = [0]> (x) y = Sub (x, m)"),
    "minimum over rows": (ROWS, "m = ReduceMin <axes: ints = [0]> (x) y = Sub (x, m)"),
    "mean over rows": (ROWS, "m = ReduceMean <axes: ints = [0]> (x) y = Sub (x, m)"),
    "sum over rows": (ROWS, NOUGHT + "m = ReduceSum (x, nought) y = Add (x, m)"),
    "scale over the batch": (ROWS, "a = Abs (x) m = ReduceMax (a) y = Div (x, m)"),
    "dynamic quantization": (
        ROWS,
        "q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)",
    ),
    "batch statistics": (
        ROWS,
        "m = ReduceMean <axes: ints = [0]> (x) d = Sub (x, m) v = Mul (d, d) "
        "e = ReduceMean <axes: ints = [0]> (v) r = Sqrt (e) y = Div (d, r)",
    ),
    "faint mean over rows": (
        ROWS,
        _FAINT + "m = ReduceMean <axes: ints = [0]> (x) n = Mul (m, f) y = Add (x, n)",
    ),
    "softmax over rows": (ROWS, "y = Softmax <axis: int = 0> (x)"),
    "running sum over rows": (
        ROWS,
        "a = Constant <value: tensor = int64 {0}> () y = CumSum (x, a)",
    ),
    "the next row": (ROWS, _NEXT_ROW + "y = Add (x, other)"),
    "the rows turned": (
        ROWS,
        "s = Constant <value: tensor = int64[1] {-1}> () "
        "e = Constant <value: tensor = int64[1] {-9223372036854775807}> () "
        + NOUGHT
        + "o = Slice (x, s, e, nought, s) y = Sub (x, o)",
    ),
    "rows sorted": (
        ROWS,
        NOUGHT + "h = Shape (x) k = Gather (h, nought) y, i = TopK <axis: int = 0> (x, k)",
    ),
    "a threshold over the batch": (
        ROWS,
        "t = Constant <value: tensor = float {0.9}> () a = Abs (x) m = ReduceMax "
        "<keepdims: int = 0> (a) g = Greater (m, t) d = Add (x, x) y = Where (g, d, x)",
    ),
    "the number of rows": (
        ROWS,
        NOUGHT + "h = Shape (x) k = Gather (h, nought) f = Cast <to: int = 1> (k) y = Div (x, f)",
    ),
    "a label relative to the batch": (
        LABEL,
        "m = ReduceMean <axes: ints = [0]> (x) d = Sub (x, m) y = ArgMax <axis: int = 1> (d)",
    ),
    "a tie that other rows break": (
        INTEGER_LABEL,
        _TO_FLOAT + _FAINT + "m = ReduceMean <axes: ints = [0]> (v) p = Mul (m, f) d = Add (v, p) "
        "y = ArgMax <axis: int = 1> (d)",
    ),
    "whole numbers: maximum over rows": (
        INTEGERS,
        "m = ReduceMax <axes: ints = [0]> (x) y = Sub (x, m)",
    ),
    "whole numbers: the next row": (INTEGERS, _NEXT_ROW + "y = Add (x, other)"),
    # The mask or the lengths are not used, or wrongly.
    "mask ignored": (MASKED, "y = ReduceMean <axes: ints = [1]> (x)"),
    "mask ignored in the mean's divisor": (
        MASKED,
        "kept = Mul (x, mask) y = ReduceMean <axes: ints = [1]> (kept)",
    ),
    "maximum without the mask": (MASKED, "y = ReduceMax <axes: ints = [1]> (x)"),
    "mask one too long": (
        MASKED,
        SLICE + "h = Slice (mask, nought, one, one) t = Slice (mask, nought, end, one) "
        "long = Concat <axis: int = 1> (h, t) kept = Mul (x, long) s = ReduceSum (kept, one) "
        "k = ReduceSum (long, one) y = Div (s, k)",
    ),
    "mask one too short in padding alone": (
        MASKED,
        SLICE + "h = Slice (mask, nought, one, one) t = Slice (mask, one, most, one) "
        "short = Concat <axis: int = 1> (t, h) kept = Mul (x, short) " + SUM,
    ),
    "softmax over padding": (
        MASKED_EACH,
        "s = Softmax <axis: int = 1> (x) y = Mul (s, mask)",
    ),
    "weak mask": (
        MASKED_EACH,
        ONE.replace("one", "unused") + "one = Constant <value: tensor = float {1.0}> () "
        "five = Constant <value: tensor = float {5.0}> () i = Sub (one, mask) p = Mul (i, five) "
        "z = Sub (x, p) y = Softmax <axis: int = 1> (z)",
    ),
    "normalization over padding": (
        MASKED_EACH,
        "m = ReduceMean <axes: ints = [1]> (x) y = Sub (x, m)",
    ),
    "convolution before the mask": (
        MASKED_EACH,
        KERNEL + BIASED + ONE + "i = Unsqueeze (x, one) "
        "a = Conv <pads: ints = [1, 1]> (i, w, c) b = Conv <pads: ints = [1, 1]> (a, w) "
        "o = Squeeze (b, one) y = Mul (o, mask)",
    ),
    "positions from the padded end": (
        MASKED_EACH,
        "a = Constant <value: tensor = int64 {1}> () "
        "one = Constant <value: tensor = float {1.0}> () "
        "z = Sub (x, x) o = Add (z, one) p = CumSum <reverse: int = 1> (o, a) y = Mul (x, p)",
    ),
    "whole numbers: count without the mask": (
        MASKED_IDS,
        ONE + "z = Mul (x, mask) h = Shape (x) k = Gather (h, one) s = ReduceSum (z, one) "
        "y = Add (s, k)",
    ),
    "length of the batch": (
        LENGTHS,
        ONE + "h = Shape (x) k = Gather (h, one) f = Cast <to: int = 1> (k) s = ReduceSum (x, one) "
        "y = Div (s, f)",
    ),
    "longest row": (
        LENGTHS,
        ONE + "l = ReduceMax (lengths) f = Cast <to: int = 1> (l) s = ReduceSum (x, one) "
        "y = Div (s, f)",
    ),
    # Padding is said to be neutral.
    "padded mean": (PADDED, "y = ReduceMean <axes: ints = [1]> (x)"),
    "padded maximum": (PADDED, "y = ReduceMax <axes: ints = [1]> (x)"),
    "padded mean in gears": (GEARED, "y = ReduceMean <axes: ints = [1]> (x)"),
    "padded convolutions": (
        PADDED_EACH,
        KERNEL + BIASED + ONE + "i = Unsqueeze (x, one) "
        "a = Conv <pads: ints = [1, 1]> (i, w, c) b = Conv <pads: ints = [1, 1]> (a, w) "
        "y = Squeeze (b, one)",
    ),
    "padded pooling": (
        PADDED_EACH,
        ONE + "i = Unsqueeze (x, one) "
        "p = MaxPool <kernel_shape: ints = [3], pads: ints = [1, 1]> (i) y = Squeeze (p, one)",
    ),
    "padded normalization": (
        PADDED_EACH,
        "m = ReduceMean <axes: ints = [1]> (x) d = Sub (x, m) v = Mul (d, d) "
        "e = ReduceMean <axes: ints = [1]> (v) r = Sqrt (e) "
        "f = Constant <value: tensor = float {0.01}> () g = Add (r, f) y = Div (d, g)",
    ),
    "padded softmax": (PADDED_EACH, "y = Softmax <axis: int = 1> (x)"),
    "padded sum of exponentials": (PADDED, ONE + "kept = Exp (x) " + SUM),
    "running sum from the end of a constant": (
        PADDED_EACH,
        "a = Constant <value: tensor = int64 {1}> () e = Exp (x) "
        "y = CumSum <reverse: int = 1> (e, a)",
    ),
    "recurrence backwards": (
        PADDED_EACH,
        RECURRENT + "b = Constant <value: tensor = float[1,2] {0.2, 0.1}> () "
        'o, h = RNN <hidden_size: int = 1, direction = "reverse"> (s, w, r, b) '
        "p = Squeeze (o, one) q = Squeeze (p, end) y = Transpose <perm: ints = [1, 0]> (q)",
    ),
    "last element": (PADDED, SLICE + "y = Slice (x, end, most, one)"),
}
"""Name: family and body of graphs that serving must refuse."""

_DEEP = " ".join(f"a{i} = MatMul (h{i}, w) h{i + 1} = Tanh (a{i})" for i in range(40))
_NUMBERS = ", ".join(f"{((7 * i * i + 3 * i) % 11 - 5.17) / 3:.4f}" for i in range(16))
_WEIGHTS = f"w = Constant <value: tensor = float[4,4] {{{_NUMBERS}}}> () "
_MASKED_SUM = ONE + "kept = Mul (x, mask) "

HEALTHY = {
    "identity": (ROWS, "y = Identity (x)"),
    "softmax of a row": (ROWS, "y = Softmax <axis: int = 1> (x)"),
    "product": (ROWS, _WEIGHTS + "y = MatMul (x, w)"),
    "deep product": (ROWS, _WEIGHTS + "h0 = Identity (x) " + _DEEP + " y = Identity (h40)"),
    "normalization of a row": (
        ROWS,
        "m = ReduceMean <axes: ints = [1]> (x) d = Sub (x, m) v = Mul (d, d) "
        "e = ReduceMean <axes: ints = [1]> (v) r = Sqrt (e) y = Div (d, r)",
    ),
    "row sorted": (ROWS, "k = Constant <value: tensor = int64[1] {4}> () y, i = TopK (x, k)"),
    "running sum of a row": (
        ROWS,
        "a = Constant <value: tensor = int64 {1}> () y = CumSum (x, a)",
    ),
    "huge numbers": (
        ROWS,
        "f = Constant <value: tensor = float {1e30}> () y = Mul (x, f)",
    ),
    "not a number": (ROWS, "y = Log (x)"),
    "label": (LABEL, "y = ArgMax <axis: int = 1> (x)"),
    "deep label": (
        LABEL,
        _WEIGHTS + "h0 = Identity (x) " + _DEEP + " y = ArgMax <axis: int = 1> (h40)",
    ),
    "label of whole numbers": (INTEGER_LABEL, "y = ArgMax <axis: int = 1> (x)"),
    "deep label of whole numbers": (
        INTEGER_LABEL,
        _WEIGHTS + _TO_FLOAT + "h0 = Sin (v) " + _DEEP + " y = ArgMax <axis: int = 1> (h40)",
    ),
    "whole numbers": (INTEGERS, "y = Add (x, x)"),
    "masked mean": (
        MASKED,
        _MASKED_SUM + "s = ReduceSum (kept, one) k = ReduceSum (mask, one) y = Div (s, k)",
    ),
    "masked sum": (MASKED, _MASKED_SUM + SUM),
    "masked softmax": (
        MASKED_EACH,
        "o = Constant <value: tensor = float {1.0}> () "
        "f = Constant <value: tensor = float {10000.0}> () i = Sub (o, mask) p = Mul (i, f) "
        "z = Sub (x, p) y = Softmax <axis: int = 1> (z)",
    ),
    "softmax masked afterwards": (
        MASKED_EACH,
        ONE + "s = Softmax <axis: int = 1> (x) kept = Mul (s, mask) t = ReduceSum (kept, one) "
        "y = Div (kept, t)",
    ),
    "masked sum of whole numbers": (MASKED_IDS, _MASKED_SUM + SUM),
    "length of the row": (
        LENGTHS,
        ONE + "f = Cast <to: int = 1> (lengths) l = Unsqueeze (f, one) s = ReduceSum (x, one) "
        "y = Div (s, l)",
    ),
    "padded sum": (PADDED, ONE + "kept = Identity (x) " + SUM),
    "padded maximum of squares": (PADDED, "q = Mul (x, x) y = ReduceMax <axes: ints = [1]> (q)"),
    "padded convolution": (
        PADDED_EACH,
        KERNEL + ONE + "i = Unsqueeze (x, one) a = Conv <pads: ints = [1, 1]> (i, w) "
        "y = Squeeze (a, one)",
    ),
    "padded running sum": (
        PADDED_EACH,
        "a = Constant <value: tensor = int64 {1}> () y = CumSum (x, a)",
    ),
    "recurrence": (
        PADDED_EACH,
        RECURRENT + "o, h = RNN <hidden_size: int = 1> (s, w, r) p = Squeeze (o, one) "
        "q = Squeeze (p, end) y = Transpose <perm: ints = [1, 0]> (q)",
    ),
    "padded sum in gears": (GEARED, ONE + "kept = Identity (x) " + SUM),
}
"""Name: family and body of graphs that serving must accept."""
