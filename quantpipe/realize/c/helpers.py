"""The small functions that kernels of a C model call: rounding, narrowing, overflow. Each is written where it is used.

They implement `quantpipe/intmath.py` in C. No signed number is shifted left, and no negative one to the right, so every
step is defined by the standard. Products of floats are stored before they are used, so that no compiler fuses them with
a sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.types import FixedRounding, Overflow, Rounding

ROUND: Mapping[str, str] = {mode.value: f"qp_round_{mode.value}" for mode in Rounding}
"""Rounding -> helper that rounds a real number."""
SHIFT: Mapping[str, str] = {mode.value: f"qp_shift_{mode.value}" for mode in Rounding}
"""Rounding -> helper that divides by a power of two."""
FIXED: Mapping[str, str] = {"double": "qp_fixed_two", "single": "qp_fixed_one", "single_away": "qp_fixed_away"}
"""Rounding of a fixed-point multiplication -> helper."""
LIMIT: Mapping[str, str] = {Overflow.WRAP.value: "qp_wrap", Overflow.SATURATE.value: "qp_saturate"}
"""Overflow of an accumulator -> helper."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "qp_shift_half_up": ("qp_floor",),
    "qp_shift_half_even": ("qp_floor",),
    "qp_shift_half_away": ("qp_floor",),
    "qp_shift_floor": ("qp_floor",),
    "qp_fixed_two": ("qp_clamp", "qp_floor"),
    "qp_fixed_one": ("qp_clamp", "qp_floor"),
    "qp_fixed_away": ("qp_clamp", "qp_floor"),
    "qp_saturate": ("qp_clamp",),
    "qp_wrap": ("qp_floor",),
}
"""Helper -> those that it calls."""


def _shift(mode: str, up: str) -> str:
    return f"""static int64_t qp_shift_{mode}(int64_t v, int n)
{{
    int64_t below, rest, half;
    if (n <= 0)
        return v * ((int64_t)1 << -n);
    below = qp_floor(v, n);
    rest = v - below * ((int64_t)1 << n);
    half = (int64_t)1 << (n - 1);
    return below + ({up} ? 1 : 0);
}}
"""


HELPERS: Mapping[str, str] = {
    "qp_clamp": """static int64_t qp_clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}
""",
    "qp_floor": """static int64_t qp_floor(int64_t v, int n)
{
    return v >= 0 ? v >> n : -((-(v + 1)) >> n) - 1;
}
""",
    "qp_shift_half_up": _shift("half_up", "rest >= half"),
    "qp_shift_half_even": _shift("half_even", "rest > half || (rest == half && (below % 2) != 0)"),
    "qp_shift_half_away": _shift("half_away", "rest > half || (rest == half && below >= 0)"),
    "qp_shift_floor": """static int64_t qp_shift_floor(int64_t v, int n)
{
    return n <= 0 ? v * ((int64_t)1 << -n) : qp_floor(v, n);
}
""",
    "qp_fixed_two": """static int64_t qp_fixed_two(int64_t v, int32_t m, int shift)
{
    int64_t product, below, rest, half;
    if (shift > 0)
        v = qp_clamp(v * ((int64_t)1 << shift), INT32_MIN, INT32_MAX);
    product = v * m;
    product += product >= 0 ? (int64_t)1 << 30 : 1 - ((int64_t)1 << 30);
    v = qp_clamp(product / ((int64_t)1 << 31), INT32_MIN, INT32_MAX);
    if (shift >= 0)
        return v;
    below = qp_floor(v, -shift);
    rest = v - below * ((int64_t)1 << -shift);
    half = (int64_t)1 << (-shift - 1);
    return below + (rest > half || (rest == half && below >= 0) ? 1 : 0);
}
""",
    "qp_fixed_one": """static int64_t qp_fixed_one(int64_t v, int32_t m, int shift)
{
    int64_t sum = v * m + ((int64_t)1 << (30 - shift));
    return qp_clamp(qp_floor(sum, 31 - shift), INT32_MIN, INT32_MAX);
}
""",
    "qp_fixed_away": """static int64_t qp_fixed_away(int64_t v, int32_t m, int shift)
{
    int64_t product = v * m, half = (int64_t)1 << (30 - shift);
    int64_t size = qp_floor((product < 0 ? -product : product) + half, 31 - shift);
    return qp_clamp(product < 0 ? -size : size, INT32_MIN, INT32_MAX);
}
""",
    "qp_down": """static int64_t qp_down(int64_t v, int64_t n)
{
    return (int64_t)(((uint64_t)v + (((uint64_t)1 << n) >> 1)) >> n);
}
""",
    "qp_up": """static int64_t qp_up(int64_t v, int64_t n)
{
    return (int64_t)((uint64_t)v << n);
}
""",
    "qp_bits": """static int64_t qp_bits(int64_t v)
{
    int64_t count = 0;
    for (; v > 0; v >>= 1)
        count++;
    return count;
}
""",
    "qp_sqrt": """static int64_t qp_sqrt(int64_t v)
{
    int64_t root = 0, bit = (int64_t)1 << 30;
    for (; bit > 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= v)
            root += bit;
    return root;
}
""",
    "qp_wrap": """static int64_t qp_wrap(int64_t v, int bits)
{
    int64_t half = (int64_t)1 << (bits - 1);
    return v - qp_floor(v + half, bits) * 2 * half;
}
""",
    "qp_saturate": """static int64_t qp_saturate(int64_t v, int bits)
{
    int64_t half = (int64_t)1 << (bits - 1);
    return qp_clamp(v, -half, half - 1);
}
""",
    "qp_round_half_even": """static float qp_round_half_even(float v)
{
    return rintf(v);
}
""",
    "qp_round_floor": """static float qp_round_floor(float v)
{
    return floorf(v);
}
""",
    "qp_round_half_up": """static float qp_round_half_up(float v)
{
    float below = floorf(v);
    return below + floorf(2.0f * (v - below));
}
""",
    "qp_round_half_away": """static float qp_round_half_away(float v)
{
    float size = fabsf(v), below = floorf(size), whole = below + floorf(2.0f * (size - below));
    return v < 0.0f ? -whole : whole;
}
""",
    "qp_product": """static float qp_product(float a, float b)
{
    volatile float product = a * b;
    return product;
}
""",
    "qp_scaled": """static float qp_scaled(int64_t v, float ratio, float added)
{
    volatile double product = (double)v * (double)ratio;
    volatile double sum = product + (double)added;
    return (float)sum;
}
""",
    "qp_whole": """static int32_t qp_whole(float v, int32_t low, int32_t high)
{
    return v <= (float)low ? low : v >= (float)high ? high : (int32_t)v;
}
""",
}
"""Name -> its text, each behind those that it calls."""

REAL = frozenset({"qp_product", "qp_scaled", "qp_whole", *ROUND.values()})
"""Helpers that compute in real numbers."""

KNOWN_FIXED = frozenset(mode.value for mode in FixedRounding) & frozenset(FIXED)
"""Fixed-point roundings that are written."""
