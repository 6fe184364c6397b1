"""Compressors against plain transcriptions, value by value; their codes from anywhere; the codec of an update."""

import hashlib
import math
import struct
import tracemalloc
import warnings
import zlib
from functools import lru_cache

import numpy as np
import pytest
import torch
import zstandard
from small_experiment import small_experiment

from hpcps.compression import (
    Bf16,
    Codec,
    Compressor,
    DeMo,
    Dithering,
    Fp16,
    Int8,
    Lossless,
    Onebit,
    PowerSGD,
    Qsgd,
    Randomk,
    Sign,
    SparseLoco,
    Topk,
)
from hpcps.compression.signs import mean_in_order
from hpcps.errors import SpecError
from hpcps.numerics import coding, kernels
from hpcps.numerics.coding import TILE
from hpcps.numerics.layout import Layout
from hpcps.registry import active
from hpcps.spec.load import load_experiment

GENERATOR = np.random.default_rng(5)
EDGES = [0.0, -0.0, 1.0, -1.0, 65504, 65519, 65520, -70000, 3.4028235e38, -3.4028235e38, 1e-45, 5.9e-8, 3e-8, 2.0**-24]
EDGES += [2.0**-14, 6.1e-5, -6.0e-5, 2.0**-25, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 2049, 2051]
VECTORS = {
    "edges": np.array(EDGES, np.float32),
    "normal": GENERATOR.standard_normal(TILE + 37).astype(np.float32),
    "small": (GENERATOR.standard_normal(1000) * 2e-5).astype(np.float32),
    "bits": GENERATOR.integers(0, 2**32, 5000, np.uint32).view(np.float32),
    "one": np.array([-3.5], np.float32),
    "zero": np.zeros(70, np.float32),
}
GOLDEN = [
    ("topk", {"k": 0.01, "order": "heap"}, 5000, "718d80b039dc2bd2"),
    ("topk", {"k": 50, "order": "heap"}, 333, "946c7043aeccec68"),
    ("topk", {"k": 0.3, "order": "heap"}, 64, "679e1bb5e86035b1"),
    ("randomk", 0.01, 5000, "c38678fd0bf36e1d"),
    ("randomk", 20, 333, "bdbd51c49460725e"),
]
DITHERED = [
    ("dithering", {"k": 5}, 700, "92cd779f952e2d57"),
    ("dithering", {"k": 4, "partition": "natural", "norm": "l2"}, 333, "d15032d3e7f121df"),
]
needs_numba = pytest.mark.skipif(not kernels.installed(), reason="numba is missing")
FINITE = {name: values[np.isfinite(values)] for name, values in VECTORS.items()}


def every_compressor():
    kinds = active().of("compressors").usable()
    return [kinds[name]() for name in kinds if issubclass(kinds[name], Compressor)]


COMPRESSORS = every_compressor()


def decoded(compressor, values):
    return compressor.decode(compressor.encode(values).tobytes(), len(values))


@pytest.mark.parametrize("values", FINITE.values(), ids=FINITE)
def test_fp16_rounds_as_struct_and_saturates(values):
    with np.errstate(over="ignore"):
        expected = [math.copysign(min(abs(x), 65504), x) for x in values.tolist()]
        expected = [struct.unpack("<e", struct.pack("<e", x))[0] for x in expected]
    np.testing.assert_array_equal(decoded(Fp16(), values), np.array(expected, np.float32))


@pytest.mark.parametrize("values", FINITE.values(), ids=FINITE)
def test_bf16_rounds_as_torch_and_saturates(values):
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    largest = struct.unpack("<f", struct.pack("<I", 0x7F7F0000))[0]
    expected = np.where(np.isinf(expected), np.copysign(np.float32(largest), values), expected)
    np.testing.assert_array_equal(decoded(Bf16(), values), expected)


@pytest.mark.parametrize("values", FINITE.values(), ids=FINITE)
def test_int8_is_within_half_a_step_of_the_largest(values):
    largest = float(np.abs(values).max())
    code = Int8().encode(values)
    assert len(code) == 4 + len(values)
    assert struct.unpack("<f", code[:4].tobytes())[0] == pytest.approx(largest / 127)
    error = np.abs(decoded(Int8(), values).astype(np.float64) - values)
    assert error.max() <= largest / 127 * 0.5001
    if largest:
        assert np.abs(code[4:].view(np.int8)).max() == 127


def onebit(values, scaling):
    """Return the encoding as BytePS 0.2.5 computes it, one value after another."""
    total = 0.0
    for x in values.tolist():
        total += abs(x)
    scale = total / len(values) if scaling else 1.0
    code = b""
    for start in range(0, len(values), 32):
        word = 0
        for x in [*values[start : start + 32].tolist(), *[0.0] * 32][:32]:
            word = word << 1 | (x < 0)
        code += struct.pack("<I", word)
    return code + struct.pack("<f", scale)


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("name", FINITE)
def test_onebit_has_the_bytes_of_byteps(name, scaling):
    values = FINITE[name]
    compressor = Onebit(scaling=scaling)
    code = compressor.encode(values).tobytes()
    assert code == onebit(values, scaling)
    scale = struct.unpack("<f", code[-4:])[0]
    expected = np.where(values < 0, np.float32(-scale), np.float32(scale))
    np.testing.assert_array_equal(compressor.decode(code, len(values)), expected)


def test_the_mean_is_that_of_a_sum_in_order_also_where_rounding_decides():
    """A value on the boundary between two float32 numbers: the fast sum cannot decide."""
    boundary = 1 + 2.0**-24
    for values in ([boundary * 4, 0, 0, 0], [4, 2.0**-22, 1e-9, -1e-9], [2.0**-22, 4, 0, 1e-30]):
        values = np.array(values, np.float32)
        total = 0.0
        for x in values.tolist():
            total += abs(x)
        assert mean_in_order(values) == np.float32(total / 4)


def test_sign_is_a_bit_and_a_fixed_scale():
    values = np.array([0.5, -2, 0, -0.0, -1e-30, 3, 4, 5, -6], np.float32)
    compressor = Sign(scale=0.25)
    assert compressor.encode(values).tobytes() == struct.pack("<f", 0.25) + bytes([0b01001000, 0b10000000])
    assert decoded(compressor, values).tolist() == [0.25, -0.25, 0.25, 0.25, -0.25, 0.25, 0.25, 0.25, -0.25]


def pairs(code):
    """Return the indices and the values of a sparse code."""
    table = np.frombuffer(code, np.uint32).reshape(-1, 2)
    return table[:, 0], table[:, 1].copy().view(np.float32)


@pytest.mark.parametrize("order", ["index", "heap"])
@pytest.mark.parametrize(
    ("k", "n", "count"), [(0.01, 333, 3), (0.1, 40, 4), (7, 1000, 7), (0.001, 50, 1), (90, 30, 15)]
)
def test_topk_sends_the_largest_values(k, n, count, order):
    values, compressor = VECTORS["normal"][:n], Topk(k=k, order=order)
    indices, found = pairs(compressor.encode(values))
    assert sorted(indices) == sorted(np.argsort(-np.abs(values))[:count])
    np.testing.assert_array_equal(found, values[indices])
    expected = np.zeros(n, np.float32)
    expected[indices] = found
    np.testing.assert_array_equal(decoded(compressor, values), expected)


@pytest.mark.sample(6)
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("n", [2, 50, 2 * TILE + 5])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_numba)])
def test_of_equal_magnitudes_topk_sends_the_first_in_the_order_of_indices(compiled, n, share):
    select = coding.select_largest
    if compiled:
        kernels.ready()
        from hpcps.numerics.kernels.coding import select_largest as select
    spaced = np.tile(np.array([1, -1, 2.0**-149, 3e38], np.float32), n // 4 + 1)[:n]
    for values in (ramp(n), spaced, GENERATOR.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)):
        expected = np.sort(np.argsort(-np.abs(values), kind="stable")[: max(1, int(share * n))])
        found = np.full((len(expected) + 1, 2), 7, np.uint32)
        select(values.view(np.uint32), found[:-1])
        np.testing.assert_array_equal(found[:-1, 0], expected)
        np.testing.assert_array_equal(found[:-1, 1], values[expected].view(np.uint32))
        assert (found[-1] == 7).all()


def ramp(n):
    """Return values that any program computes alike, with many equal magnitudes."""
    return ((np.arange(n, dtype=np.int64) * 7919 % 201 - 100) / 64).astype(np.float32)


@pytest.mark.parametrize(("kind", "k", "n", "digest"), GOLDEN + DITHERED)
def test_codes_have_the_bytes_of_byteps(kind, k, n, digest):
    """The digests are of what its sources, compiled, return: see test_byteps.py."""
    compressor, kept = active().of("compressors")[kind](**(k if isinstance(k, dict) else {"k": k})), {}
    code = b"".join(compressor.encode(ramp(n), kept).tobytes() for _ in range(3))
    assert hashlib.sha256(code).hexdigest()[:16] == digest


def test_randomk_draws_what_the_generator_says():
    values, kept, compressor = VECTORS["normal"][:777], {}, Randomk(k=5, seed=2021)
    a = b = 2021
    for _ in range(3):
        indices, found = pairs(compressor.encode(values, kept))
        for index in indices:
            t, s = a, b
            t = (t ^ t << 23) % 2**64
            t ^= t >> 17
            t ^= s ^ s >> 26
            a, b = s, t
            assert index == (t + s) % 2**64 % 777
        np.testing.assert_array_equal(found, values[indices])


@needs_numba
def test_compiled_loops_equal_their_definitions():
    kernels.ready()
    from hpcps.numerics.kernels import coding as compiled

    for values in FINITE.values():
        halves = np.empty((2, len(values)), np.float16)
        assert coding.narrow(values, halves[0]) == compiled.narrow(values, halves[1])
        np.testing.assert_array_equal(halves[0].view(np.uint16), halves[1].view(np.uint16))
        back = np.empty(len(values), np.float32)
        compiled.widen(halves[1], back)
        np.testing.assert_array_equal(back, halves[1].astype(np.float32))
        upper = np.empty((2, len(values)), np.uint16)
        beyond = [each.round_to_upper(values.view(np.uint32), upper[k]) for k, each in enumerate((coding, compiled))]
        assert beyond[0] == beyond[1]
        np.testing.assert_array_equal(upper[0], upper[1])
        largest = np.uint32(coding.largest_magnitude(values.view(np.uint32))).view(np.float32)
        factor = np.float32(127) / max(largest, np.float32(1e-30))
        words, buckets = -(-len(values) // 32), -(-len(values) // coding.BUCKET)
        sums = np.empty(buckets)
        coding.sum_squares(values, sums)
        norms = np.minimum(np.sqrt(sums), 3.4e38).astype(np.float32)
        norms[1:2] = 0
        cases = [
            ("lengthen", (upper[0],), np.empty(len(values), np.uint32)),
            ("round_products", (values, factor), np.empty(len(values), np.int8)),
            ("pack_signs", (values,), np.empty(words, np.uint32)),
            ("sum_squares", (values,), sums),
        ]
        for levels, width in ((1, 2), (7, 4), (127, 8)):
            cases.append(("quantize", (values, norms, levels, width), np.empty(-(-len(values) * width // 8), np.uint8)))
        for name, given, out in cases:
            found = []
            for each in (coding, compiled):
                getattr(each, name)(*given, *([np.random.SFC64(1)] if name == "quantize" else []), out)
                found.append(out.copy())
            np.testing.assert_array_equal(found[0], found[1], err_msg=name)
        assert compiled.largest_magnitude(values.view(np.uint32)) == largest.view(np.uint32)
        assert largest == np.abs(values).max()
        magnitudes = np.abs(values).astype(np.float64)
        for each in (coding, compiled):
            assert each.sum_magnitudes(values) == pytest.approx(magnitudes.sum(), rel=1e-14)
    for n, k in ((5, 1), (6, 2), (200, 50), (999, 3)):
        here, there = [(np.empty(k, np.uint32), np.empty(k, np.float32)) for _ in range(2)]
        for values in (ramp(n), VECTORS["normal"][:n]):
            coding.select_by_heap(values, *here)
            compiled.select_by_heap(values, *there)
            np.testing.assert_array_equal(here, there)
        states = np.full((2, 2), 77, np.uint64)
        with np.errstate(over="ignore"):
            coding.draw_indices(states[0], n, here[0])
        compiled.draw_indices(states[1], n, there[0])
        np.testing.assert_array_equal(here[0], there[0])
        np.testing.assert_array_equal(states[0], states[1])
        for natural in (False, True):
            words = np.zeros((2, n), np.uint32)
            with np.errstate(over="ignore"):
                bits = coding.dither(values, states[0], 16, 4.0, words[0], natural)
            assert compiled.dither(values, states[1], 16, 4.0, words[1], natural) == bits > 0
            np.testing.assert_array_equal(words[0], words[1])
            assert coding.undither(words[0], bits, 16, np.float32(4), here[1][:0]) is False
            back = np.empty((2, n), np.float32)
            assert coding.undither(words[0], bits, 16, np.float32(4), back[0])
            assert compiled.undither(words[0], bits, 16, np.float32(4), back[1])
            np.testing.assert_array_equal(back[0], back[1])
            with np.errstate(over="ignore"):
                assert coding.undither(words[0], bits, 16, np.float32(3e38), back[0])
            assert compiled.undither(words[0], bits, 16, np.float32(3e38), back[1])
            np.testing.assert_array_equal(back[0], back[1])
            assert np.isfinite(back).all()


@needs_numba
@pytest.mark.parametrize("shape", [(3, 5), (40, 128), (30, 1000), (2, 20_001)], ids=str)
def test_compiled_products_equal_their_definitions(shape):
    kernels.ready()
    from hpcps.numerics.kernels import coding as compiled

    draws = np.random.default_rng(3)
    matrix, left, right = (draws.standard_normal(s, np.float32) for s in (shape, (shape[0], 3), (shape[1], 3)))
    matrix[1] = -0.0
    np.testing.assert_allclose(coding.product(matrix, right), matrix @ right, rtol=0, atol=1e-3)
    out = np.empty((2, matrix.size - 2), np.float32)
    for place, each in enumerate((coding, compiled)):
        each.multiply_out(left, right, out[place])
    for a, b in (
        *((getattr(coding, name)(*given), getattr(compiled, name)(*given)) for name, given in
          (("product", (matrix, right)), ("transposed_product", (matrix, left)))),
        out,
    ):  # fmt: skip
        assert a.tobytes() == b.tobytes()


@needs_numba
def test_dithering_writes_long_distances_and_large_levels():
    kernels.ready()
    compressor, values = Dithering(k=65_535), np.zeros(200_001, np.float32)
    values[[3, 300, 70_300, 200_000]] = 1.0, -1.0, 0.5, -0.25
    found = compressor.decode(compressor.encode(values), len(values))
    np.testing.assert_allclose(found, values, rtol=0, atol=1 / 65_535)


@pytest.mark.parametrize("keys", [{"k": 4}, {"k": 3, "partition": "natural"}, {"k": 8, "norm": "l2"}], ids=str)
def test_dithering_draws_levels_without_bias(keys):
    values = np.array([1.0, -0.3, 0.05, 0.0, -0.77], np.float32)
    compressor, kept, trials = Dithering(**keys), {}, 4000
    found = np.array([compressor.decode(compressor.encode(values, kept), 5) for _ in range(trials)])
    scale = float(np.linalg.norm(values.astype(np.float64))) if "norm" in keys else 1.0
    steps = found * compressor.levels / scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)
    if "partition" in keys:
        assert set(np.abs(np.rint(steps)).ravel()) <= {0, 1, 2, 4}
    # The standard deviation of a mean is at most half of the largest distance between levels.
    bound = 4 * 0.5 * (0.5 if "partition" in keys else scale / compressor.levels) / trials**0.5
    assert np.abs(found.mean(axis=0) - values).max() < bound


BLOCKS = [np.float32(sign * x) * np.ones(1, np.float32) for x in (0.3, 0.7, 1.1, 2.9, 1e-3, 123.4) for sign in (1, -1)]


@pytest.mark.parametrize("partition", ["linear", "natural"])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_dithering_reads_what_it_writes(partition, norm):
    """The norm of a single value may be rounded to less than the value, and seed 1 draws very small numbers first."""
    draws = np.random.default_rng(1)
    blocks = [*BLOCKS, *(draws.standard_normal(n).astype(np.float32) for n in (1, 1, 1, 2, 3, 10) * 5)]
    for k in (1, 4, 16):
        compressor = Dithering(k=k, partition=partition, norm=norm)
        for values in blocks:
            scale = np.abs(values).max() if norm == "max" else np.linalg.norm(values)
            found = decoded(compressor, values)
            assert (np.abs(found) <= scale * 1.000001).all()
            if len(values) == 1:
                np.testing.assert_allclose(found, values, rtol=1e-6)


@pytest.mark.parametrize("kind", ["dithering", "int8", "qsgd", "sign", "onebit", "topk", "lossless", "powersgd"])
@pytest.mark.parametrize("size", [1e-44, 1e-40, 1e-37, 1e-36, 5e-36, 1e-30, 1e-23, 1e-20, 1.9e19, 1e20, 1e36, 3.4e38])
def test_blocks_of_any_size_are_decoded(kind, size):
    each = active().of("compressors").usable()[kind]
    names = [{"norm": "max"}, {"norm": "l2"}] if "norm" in each.model_fields else [{}]
    parts = [{}, {"partition": "natural"}] if kind == "dithering" else [{}]
    values = np.array([[1, -1, 0.5, 0.25, -0.7, 1], [0.9, 0, -0.3, 0.8, 1, 1]]) * size
    values = np.minimum(values, 3.4028234e38).astype(np.float32).ravel()
    for keys in (left | right for left in names for right in parts):
        compressor = each(**keys).for_block((2, 6))
        found = decoded(compressor, values)
        assert np.isfinite(found).all(), keys
        assert found.any() or (kind == "int8" and size < 5e-39), keys
        if kind in ("dithering", "int8"):
            norm = np.linalg.norm(values.astype(float)) if keys.get("norm") == "l2" else float(np.abs(values).max())
            assert float(np.abs(found).max()) <= norm * 1.001 + 2e-38


def test_int8_encodes_small_blocks_with_the_smallest_normal_scale():
    tiny = float(np.finfo(np.float32).tiny)
    for largest in (9.9e-36, 1.6e-36, 1.4e-36, 1e-37, 1e-38, 6e-39):
        values = (largest * np.array([1, -1, 0.5, -0.25, 0.01])).astype(np.float32)
        code = Int8().encode(values)
        scale = struct.unpack("<f", code[:4].tobytes())[0]
        assert scale == pytest.approx(max(tiny, largest / 127), rel=1e-5)
        assert np.abs(decoded(Int8(), values).astype(float) - values).max() <= scale * 0.5001
    assert not decoded(Int8(), np.array([5.8e-39, -1e-45], np.float32)).any()


def test_the_norm_of_dithering_is_that_of_byteps_where_squares_are_normal_numbers():
    for values in (VECTORS["normal"][:5000], VECTORS["small"], np.array([0.3], np.float32)):
        total = 0.0
        for x in values:
            total += float(np.float32(x * x))
        assert Dithering(norm="l2")._norm(values) == math.sqrt(total)


@pytest.mark.sample(1, 4)
@pytest.mark.parametrize("levels", [1, 5, 7, 100])
@pytest.mark.parametrize("norm", ["l2", "max"])
def test_qsgd_draws_levels_without_bias_as_a_plain_transcription_does(norm, levels):
    values = np.concatenate([VECTORS["normal"][:300], np.zeros(100, np.float32)])
    compressor, kept, trials = Qsgd(levels=levels, norm=norm, seed=9), {}, 3000
    width = {1: 2, 5: 4, 7: 4}.get(levels, 8)
    found = np.empty((trials, 400), np.float32)
    for trial in range(trials):
        code = compressor.encode(values, kept)
        found[trial] = compressor.decode(code, 400)
        if trial > 2:
            continue
        assert len(code) == 16 + 400 * width // 8
        norms = [struct.unpack_from("<f", code.tobytes(), 4 * k)[0] for k in range(4)]
        random = np.random.SFC64([9, trial, zlib.crc32(code[:16].tobytes())]).random_raw(256)
        for i in range(400):
            bucket = values[i // 128 * 128 : i // 128 * 128 + 128].astype(float)
            largest = np.linalg.norm(bucket) if norm == "l2" else np.abs(bucket).max()
            assert norms[i // 128] == pytest.approx(largest)
            code_of = int(code[16 + i * width // 8]) >> i * width % 8 & (1 << width) - 1
            share = abs(float(values[i])) / norms[i // 128] * levels if largest else 0.0
            drawn = (int(random[i // 2]) >> 32 * (i % 2) & 0xFFFFFFFF) >> 8
            level = math.floor(share) + (drawn / 2**24 >= 1 - share % 1)
            if abs(drawn / 2**24 - (1 - share % 1)) > 1e-4:  # else rounding decides
                assert code_of - levels == (-level if values[i] < 0 else level)
    scale = np.repeat(norms, 128)[:400]
    error = np.abs(found.mean(axis=0) - values)
    assert (error <= 5 * 0.5 * scale / levels / trials**0.5).all()
    assert error[:300].mean() > 0
    assert len({row.tobytes() for row in found}) == trials
    again, kept = Qsgd(levels=levels, norm=norm, seed=9), {}
    assert [again.decode(again.encode(values, kept), 400).tobytes() for _ in range(3)] == [
        r.tobytes() for r in found[:3]
    ]


def test_qsgd_draws_no_level_above_the_largest():
    """Of two million values some get a random number so near 1 that the sum is rounded to the next level."""
    ones = np.ones(1 << 21, np.float32)
    assert Qsgd(levels=127, norm="max").encode(ones)[4 * (1 << 14) :].max() == 254


def test_qsgd_refuses_what_is_no_level():
    code = Qsgd(levels=5).encode(VECTORS["normal"][:131])
    for place, byte, reason in ((8, 0xF0, "a code"), (-1, 0x10, "bits after"), (3, 0x80, "a norm")):
        changed = code.copy()
        changed[place] |= np.uint8(byte)
        with pytest.raises(ValueError, match=reason):
            Qsgd(levels=5).decode(changed, 131)


def sparse_loco(values, k):
    """Return the encoding of a plain transcription."""
    levels, indices, codes = b"", [], []
    for start in range(0, len(values), 4096):
        chunk = values[start : start + 4096].tolist()
        sent = sorted(sorted(range(len(chunk)), key=lambda i: (-abs(chunk[i]), i))[: max(1, min(k, len(chunk) // 2))])
        mean = sum(abs(chunk[i]) for i in sent) / len(sent)
        for those in ([i for i in sent if abs(chunk[i]) < mean], [i for i in sent if abs(chunk[i]) >= mean]):
            levels += struct.pack("<f", sum(abs(chunk[i]) for i in those) / max(len(those), 1))
        indices += sent
        codes += [(abs(chunk[i]) >= mean) + 2 * (math.copysign(1, chunk[i]) < 0) for i in sent]
    packed = b"".join(
        int.to_bytes(sum(index << 12 * j for j, index in enumerate(indices[i : i + 2])), 3, "little")
        for i in range(0, len(indices), 2)
    )
    packed += bytes(sum(c << 2 * j for j, c in enumerate(codes[i : i + 4])) for i in range(0, len(codes), 4))
    return levels + packed


@pytest.mark.parametrize("k", [1, 3, 64])
@pytest.mark.parametrize("values", [VECTORS["normal"][:9001], ramp(4096 + 50), VECTORS["zero"], VECTORS["one"]])
def test_sparse_loco_sends_what_a_plain_transcription_sends(values, k):
    compressor = SparseLoco(k=k)
    code = compressor.encode(values).tobytes()
    assert code == sparse_loco(values, k)
    back = compressor.decode(code, len(values))
    sent = np.flatnonzero(back)
    assert (np.sign(back[sent]) == np.sign(values[sent])).all()
    levels = {struct.unpack_from("<f", code, 4 * i)[0] for i in range(2 * -(-len(values) // 4096))}
    assert set(np.abs(back[sent]).tolist()) <= levels


def cosines(n):
    """Return the matrix of the orthonormal DCT-II."""
    rows = [[math.cos(math.pi * k * (2 * x + 1) / (2 * n)) for x in range(n)] for k in range(n)]
    return np.array(rows) * np.sqrt(np.where(np.arange(n) == 0, 1, 2) / n)[:, None]


@pytest.mark.parametrize(
    ("shape", "k", "chunk"), [((5, 7), 4, 64), ((70, 130), 20, 64), ((300,), 8, 64), ((9, 3), 0.2, 4)]
)
def test_demo_sends_the_largest_coefficients_of_a_plain_transform(shape, k, chunk):
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    compressor = DeMo(k=k, chunk=chunk).for_block(shape)
    code = compressor.encode(values.ravel())
    got = compressor.decode(code.tobytes(), values.size).reshape(len(values) if values.ndim > 1 else 1, -1)
    matrix, number = np.atleast_2d(values).astype(np.float64), 0
    for top in range(0, len(matrix), chunk):
        for left in range(0, matrix.shape[1], chunk):
            part = slice(top, top + chunk), slice(left, left + chunk)
            tile = matrix[part]
            down, across = (cosines(size) for size in tile.shape)
            spectrum = down @ tile @ across.T
            count = max(1, min(int(k * tile.size) if k < 1 else k, tile.size // 2))
            spectrum[np.abs(spectrum) < np.sort(np.abs(spectrum), axis=None)[-count]] = 0
            np.testing.assert_allclose(got[part], down.T @ spectrum @ across, atol=1e-6)
            number += count
    assert len(code) == 4 * number + 4 * -(-number // 2)


def test_demo_keeps_most_of_smooth_values_and_refuses_wrong_codes():
    x = np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64)
    compressor = DeMo(k=16).for_block(x.shape)
    assert np.abs(compressor.decode(compressor.encode(x.ravel()), 4096) - x.ravel()).max() < 0.02
    assert np.isnan(compressor.decode(compressor.encode(np.where(x.ravel() > 0.5, np.inf, 0)), 4096)).all()
    code = compressor.encode(x.ravel())
    places = code[:32].view(np.uint16)
    for wrong in (places[::-1].copy(), np.zeros(16, np.uint16), np.append(places[:-1], np.uint16(4096))):
        with pytest.raises(ValueError, match="do not ascend, or exceed"):
            compressor.decode(np.concatenate((wrong.view(np.uint8), code[32:])), 4096)
    with pytest.raises(ValueError, match="bytes"):
        compressor.decode(code[:-1], 4096)
    odd = DeMo(k=1, chunk=64)
    with pytest.raises(ValueError, match="bits after the last index"):
        odd.decode(np.array([1, 2, 0, 0], np.uint16).view(np.uint8), 64)


def test_sparse_loco_refuses_wrong_magnitudes_indices_and_bits():
    values = VECTORS["normal"][:4200]
    code = SparseLoco(k=3).encode(values)  # two chunks: 16 bytes of magnitudes, 9 of indices, 2 of codes
    assert len(code) == 27
    for place, bytes_, reason in (
        (0, struct.pack("<f", -1), "magnitudes"),
        (0, struct.pack("<f", 1e9), "magnitudes"),
        (16, code[19:22].tobytes(), "ascend"),
        (22, b"\xff\xff\xff", "exceed"),
        (26, b"\xf0", "bits after"),
    ):
        changed = code.copy()
        changed[place : place + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
        with pytest.raises(ValueError, match=reason):
            SparseLoco(k=3).decode(changed, 4200)


def test_powersgd_takes_steps_of_the_power_method():
    """Against a plain Gram-Schmidt transcription, in float64; the kept matrix leads to the best approximation."""
    generator = np.random.default_rng(5)
    matrix = generator.standard_normal((30, 4)) @ generator.standard_normal((4, 40)) * [1.0] * 40
    matrix = (matrix + 0.1 * generator.standard_normal((30, 40))).astype(np.float32)
    compressor, kept = PowerSGD(rank=2).for_block((30, 5, 8)), {}
    q = None
    for _ in range(40):
        code = compressor.encode(matrix.ravel(), kept)
        assert len(code) == 4 * 2 * 70
        back = compressor.decode(code, 1200).reshape(30, 40)
        if q is not None:
            p = matrix.astype(float) @ q
            p[:, 0] /= np.linalg.norm(p[:, 0])
            p[:, 1] -= p[:, 0] * (p[:, 0] @ p[:, 1])
            p[:, 1] /= np.linalg.norm(p[:, 1])
            np.testing.assert_allclose(back, p @ (p.T @ matrix), atol=1e-4)
        q = kept["q"].astype(float)
    left, sizes, right = np.linalg.svd(matrix)
    np.testing.assert_allclose(back, left[:, :2] * sizes[:2] @ right[:2], atol=0.05)
    whole = PowerSGD(rank=4, rows=30)
    exact = (matrix[:, :2] @ matrix[:2]).ravel()
    np.testing.assert_allclose(decoded(whole, exact), exact, atol=1e-5 * np.abs(exact).max())


def test_the_bits_of_powersgd_are_the_same_on_every_machine():
    """As sums in a fixed order are, and products of BLAS are not."""
    values = ((np.arange(512 * 500, dtype=np.uint64) * 2654435761 % 65521).astype(np.float32) - 32760) / 65536
    kept, digest = {}, hashlib.sha256()
    for _ in range(2):
        digest.update(PowerSGD(rows=512).encode(values, kept).tobytes())
    assert digest.hexdigest()[:16] == "c053ce25a4bb43e9"


def test_powersgd_sends_vectors_and_small_matrices_as_they_are_and_recovers_from_zero():
    values = VECTORS["normal"][:60]
    for shape in ((60,), (6, 10)):
        np.testing.assert_array_equal(decoded(PowerSGD().for_block(shape), values), values)
    compressor, kept = PowerSGD(rank=1, rows=7), {}  # 7 x 9, three more zeros
    for given in (np.zeros(60, np.float32), np.full(60, np.nan, np.float32), *[np.ones(60, np.float32)] * 5):
        back = compressor.decode(compressor.encode(given, kept), 60)
        assert np.isnan(back).all() == np.isnan(given).all()
    assert np.abs(back - 1).max() < 0.5


@pytest.mark.parametrize("name", VECTORS)
def test_lossless_returns_the_bits(name):
    values = np.tile(VECTORS[name], 9)  # more than a chunk
    code = Lossless().encode(values)
    assert Lossless().decode(code, len(values)).tobytes() == values.tobytes()
    assert len(code) <= values.nbytes + 8
    if name in ("zero", "normal"):
        assert len(code) < values.nbytes * {"zero": 0.1, "normal": 0.9}[name]


def framed(frame):
    return struct.pack("<I", len(frame)) + frame


def test_lossless_refuses_bombs_and_what_is_no_frame():
    """A bomb is small, and what it expands to is not allocated."""
    good, bomb = bytes(4000), zstandard.compress(bytes(2**28))
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(good)
    frame = zstandard.compress(good)
    assert Lossless().decode(framed(frame), 1000).tobytes() == good
    lying = zstandard.compress(bytes(4000 + 2**20))
    lying = lying[:4] + frame[4:7] + lying[9:]  # the header of the small one, the blocks of the large one
    tracemalloc.start()
    for wrong in (bomb[:3999], unknown, frame + b"x", frame + frame, frame[:-1], b"", b"x" * 30, lying):
        with pytest.raises(ValueError, match=r"."):
            Lossless().decode(framed(wrong), 1000)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    for wrong in (framed(frame)[:-1], framed(frame) + b"\0", framed(frame)[:3], b""):
        with pytest.raises(ValueError, match="bytes"):
            Lossless().decode(wrong, 1000)


def test_lossless_without_its_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("hpcps.compression.lossless.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs the package zstandard.*pip install 'hpcps\[lossless\]'"):
        Lossless().encode(VECTORS["normal"])
    path = tmp_path / "small.toml"
    path.write_text(small_experiment("small", tables='[communication]\ncompression = "lossless"\n'))
    with pytest.raises(SpecError, match=r"lossless needs the package zstandard"):
        load_experiment(path)


def test_sparse_codes_with_wrong_indices_are_refused():
    values = VECTORS["normal"][:100]
    for compressor in (Topk(k=4), Randomk(k=4)):
        code = compressor.encode(values)
        for index in (100, 2**32 - 1):
            changed = code.copy()
            changed[:4].view(np.uint32)[0] = index
            with pytest.raises(ValueError, match="an index of"):
                compressor.decode(changed, 100)
    twice = Topk(k=4).encode(values)
    twice[:8] = twice[8:16]
    with pytest.raises(ValueError, match="an index that occurs twice"):
        Topk(k=4).decode(twice, 100)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_stay_so(compressor, bad):
    for place in (0, 700, TILE + 5):
        values = VECTORS["normal"].copy()
        values[place] = bad
        assert not np.isfinite(decoded(compressor, values)).all()


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
def test_where_a_vector_is_divided_does_not_show_if_coordinates_are_seen(compressor):
    values = VECTORS["normal"]
    parts = np.concatenate([decoded(compressor, part) for part in np.split(values, [1, 100, TILE - 3])])
    same = np.array_equal(parts, decoded(compressor, values))
    assert same == (compressor.granularity == "coordinate")


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
def test_codes_from_anywhere_are_refused_or_decoded_and_nothing_else(compressor):
    """Truncated, extended, with changed bits, and of noise: nothing is written beyond the values."""
    generator = np.random.default_rng(0)  # its own: few codes of some compressors can be decoded
    values = VECTORS["normal"][:333]
    code = compressor.encode(values)
    outcomes = {"refused": 0, "decoded": 0}
    for trial in range(300):
        changed = code.copy()
        match trial % 3:
            case 0:
                changed = np.resize(changed, generator.integers(0, 2 * len(code)))
            case 1:
                changed[generator.integers(0, len(code), 3)] ^= generator.integers(0, 256, 3).astype(np.uint8)
            case 2:
                changed = generator.integers(0, 256, len(code)).astype(np.uint8)
        out = np.full(len(values) + 2, np.float32(7))
        try:
            compressor.read(changed, out[1:-1])
            outcomes["decoded"] += 1
        except ValueError:
            outcomes["refused"] += 1
        assert out[0] == out[-1] == 7
    assert outcomes["refused"] > 80
    assert outcomes["decoded"] > 0 or compressor.kind in ("sign", "dithering")


LAYOUT = Layout.of([("a", (40, 30)), ("b", (3,)), ("c", (700,)), ("d", (0,)), ("e", (257,))])


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0]])
def test_the_codec_leaves_small_blocks_alone_and_says_what_is_lost(compressor, mask):
    codec, mask = Codec(compressor, LAYOUT), np.array(mask, np.bool_)
    values = GENERATOR.standard_normal(LAYOUT.size).astype(np.float32)
    payload = values[LAYOUT.spread(mask)]
    out, errors = np.empty(codec.most_elements(LAYOUT, 0), np.float32), np.full(LAYOUT.size, np.float32(9))
    words = codec.encode(LAYOUT, 0, mask, payload, out, errors)
    back = codec.decode(LAYOUT, 0, mask, words)
    # What is sent and what is lost add up to the values, and what is not sent is not touched.
    lost = (payload - back) * np.float32(compressor.error_share())
    np.testing.assert_allclose(errors[LAYOUT.spread(mask)], lost, rtol=1e-6, atol=1e-6)
    assert (errors[~LAYOUT.spread(mask)] == 9).all()
    if mask[1]:
        assert (errors[1200:1203] == 0).all()
    assert words.size <= payload.size + 2  # the sizes of blocks with one dimension, which powersgd does not encode
    if mask.all():
        assert (errors[:1200] != 0).any() == (compressor.kind != "lossless")
        expected = decoded(compressor.for_block((40, 30)), payload[:1200])
        np.testing.assert_array_equal(back[:1200], expected)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda each: each.kind)
def test_the_codec_refuses_what_is_not_an_update(compressor):
    codec, mask = Codec(compressor, LAYOUT), np.array([1, 1, 1, 1, 1], np.bool_)
    values = GENERATOR.standard_normal(LAYOUT.size).astype(np.float32)
    words = codec.encode(LAYOUT, 0, mask, values, np.empty(codec.most_elements(LAYOUT, 0), np.float32)).copy()
    wrong = [words[:-1], words[:0], words[:5], np.append(words, np.float32(0)), np.append(words, words)]
    for size in (2**32 - 1, 2**31, 5000, 0, 1):
        changed = words.copy()
        changed[:1].view(np.uint32)[0] = size
        wrong.append(changed)
    for each in wrong:
        with pytest.raises(ValueError, match="its encoding"):
            codec.decode(LAYOUT, 0, mask, each)


def test_a_plugin_may_say_the_size_as_any_whole_number_and_a_wrong_one_is_an_error():
    class Own(Fp16):
        more: int = 1

        def write(self, values, code, kept):
            return np.int64(super().write(values, code, kept) + self.more)

    def encode(codec):
        mask = np.array([1, 0, 0, 0, 0], np.bool_)
        return codec.encode(LAYOUT, 0, mask, np.zeros(1200, np.float32), np.zeros(9000, np.float32))

    with pytest.raises(SpecError, match=r"its write\(\) returned .*2401.*: it must be a size of at most 2400 bytes"):
        encode(Codec(Own(), LAYOUT))
    np.testing.assert_array_equal(encode(Codec(Own(more=0), LAYOUT)), encode(Codec(Fp16(), LAYOUT)))


def test_kernels_are_loaded_when_loops_have_taken_as_long(monkeypatch):
    for name, value in (("ready", lru_cache(lambda: True)), ("_looped", 0), ("SMALLEST", 1000)):
        monkeypatch.setattr(kernels, name, value)
    assert [kernels.enough_looped(400) for _ in range(4)] == [False, False, True, True]
    assert kernels.enough_looped(1)


def test_the_compressor_none_returns_the_bytes_of_float32():
    none, values = active().of("compressors")["none"](), np.array([1.5, np.nan, -0.0])
    code = none.encode(values)
    assert code.tobytes() == values.astype(np.float32).tobytes() == none.decode(code.tobytes(), 3).tobytes()
    with pytest.raises(ValueError, match="an encoding of 12 bytes instead of 8"):
        none.decode(code, 2)


def test_functions_do_not_warn_of_damaged_codes():
    code = Dithering().encode(np.full(100, 3e38, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dithering().decode(code, 100)
