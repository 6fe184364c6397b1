"""hpcps.numpy: what scripts without PyTorch call; its results have the bits of those of hpcps.torch."""

import os
import sys

import numpy as np
import pytest
from forked import fork
from launched_scripts import launched

import hpcps.numpy as bps
from hpcps.errors import LaunchError, RunError, SpecError
from hpcps.rules import Median

SCRIPT = """
import sys
import numpy as np
kind = sys.argv[1]
if kind == "torch":
    import torch
    import hpcps.torch as bps
    given, taken = torch.from_numpy, lambda tensor: tensor.numpy()
else:
    import hpcps.numpy as bps
    assert "torch" not in sys.modules
    given = taken = np.asarray
bps.init()
found = []
for dtype in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"):
    # The partitions of a large array depend on its bytes only.
    large = [(1100, 1000)] if dtype in ("float32", "bool") else []
    for shape in ((), (0,), (7,), (5, 33), (300, 211), *large):
        values = np.random.default_rng(bps.rank()).normal(size=shape) * 9
        array = given(np.asarray(values).astype(dtype))
        found.append(bps.push_pull(array, average=dtype.startswith("float"), name=f"{dtype} {shape}"))
        found.append(bps.broadcast(array, 1, name=f"{dtype} {shape}"))
for options in ({"rule": "median"}, {"rule": {"kind": "krum", "f": 0}}, {"compression": "onebit"}, {}):
    table = given(np.random.default_rng(bps.rank()).normal(size=(40, 30)).astype(np.float32))
    found += [bps.push_pull(table, name=f"{options}", **options) for _ in range(3)]
handles = [bps.push_pull_async(table * k, average=False, name=f"handle {k}") for k in range(1, 4)]
found += [bps.synchronize(handle) for handle in reversed(handles)]
complex_ = bps.broadcast(given(np.full(3, 1j * bps.rank())), 2, name="complex")
found.append(complex_)
if bps.rank() == 0:
    with open(f"{kind}.bytes", "wb") as file:
        for each in found:
            file.write(str(taken(each).shape).encode() + taken(each).tobytes())
bps.shutdown()
"""

ENDS = """
import os, signal, sys
import numpy as np
import hpcps.numpy as bps
bps.init()
bps.push_pull(np.ones(3), name="w")
if bps.rank() == 1 and sys.argv[1] == "failed":
    raise ValueError("boom")
if bps.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
bps.push_pull(np.ones(3), name="w")
"""


@pytest.fixture
def alone():
    bps.init(alone=True)
    yield
    bps.shutdown()


@pytest.mark.usefixtures("starts_processes")
def test_results_have_the_bits_of_torch(tmp_path):
    def of_torch():
        os.chdir(tmp_path)
        sys.argv = ["script.py", "torch"]
        exec(SCRIPT.replace("bps.init()", "").replace("bps.shutdown()", ""), {})

    launched(tmp_path, SCRIPT, "numpy")
    fork(3, of_torch)
    one, other = ((tmp_path / f"{kind}.bytes").read_bytes() for kind in ("numpy", "torch"))
    assert len(one) > 1_000_000
    assert one == other


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("how", "why"), [("killed", "has ended"), ("failed", "has failed: ValueError: boom")])
def test_a_process_that_ends_is_named(how, why, tmp_path):
    printed = launched(tmp_path, ENDS, how, succeeds=False)
    assert f"waited for worker-1 in tensor 'w', 3 x float64, mean: worker-1 {why}" in printed
    assert printed.count("Traceback") == (how == "failed")


@pytest.mark.usefixtures("alone")
def test_arrays_of_any_form():
    table = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for array in (table.T, table[:, ::2], table[::-1], table.astype(">f4"), table.tolist(), 3.0, True):
        average = array is not True
        found = bps.push_pull(array, average)
        assert np.array_equal(found, array)
        assert found.flags.writeable
        assert found.dtype.isnative
    before = table.copy()
    result = bps.push_pull(table, name="t")
    result[:] = 7
    assert np.array_equal(table, before)
    assert bps.poll(handle := bps.push_pull_async(table)) in (True, False)
    table[:] = 0
    assert np.array_equal(bps.synchronize(handle), before)


@pytest.mark.usefixtures("alone")
def test_rules_by_name_table_and_object():
    for rule in ("median", {"kind": "median"}, Median()):
        assert bps.push_pull(np.float64([1, 2]), rule=rule).tolist() == [1, 2]


@pytest.mark.sample(4)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bps.push_pull(["a", "b"], name="w"),
            "array 'w' is <U1, which cannot be exchanged: use one of float16",
        ),
        (lambda: bps.push_pull([None]), r"an array without a name is no array of numbers: \[None\]"),
        (lambda: bps.push_pull([[1.0], [1.0, 2.0]], name="w"), "array 'w' is no array of numbers: .*inhomogeneous"),
        (lambda: bps.push_pull(np.ma.array([1.0, 2.0], mask=[0, 1])), "has a mask, and exchanges have none"),
        (lambda: bps.push_pull(np.ones(2, np.longdouble), name="w"), "array 'w' is .*, which cannot be exchanged: use"),
        (lambda: bps.push_pull(np.ones(2, np.int32), name="w"), "'w' is int32: the mean is for floats"),
        (
            lambda: bps.push_pull(np.ones(2, np.uint32), False, name="w"),
            "array 'w' is uint32, which cannot",
        ),
        (lambda: bps.push_pull(np.ones(2), "w"), "average is 'w': give the name of a tensor as name='w'"),
        (lambda: bps.push_pull(np.ones(2), False, rule="median"), "a rule is in place of the mean"),
        (lambda: bps.push_pull(np.ones(2), rule="nobody"), "nobody"),
        (lambda: bps.push_pull(np.ones(2), rule=3), "rule must be the name, the table or an object of one"),
        (lambda: bps.push_pull(np.ones(2), compression="onebit"), "compressors are for float32"),
        (lambda: bps.broadcast(np.ones(2), 0.0, "w"), "the root_rank of array 'w' is 0.0: the ranks go from 0 to 0"),
        (lambda: bps.broadcast(np.ones(2, "U1"), 0, "w"), "array 'w' is <U1, which .* uint32"),
        (lambda: bps.broadcast(np.ones(2), 1, "w"), "the root_rank of array 'w' is 1: the ranks go from 0 to 0"),
        (
            lambda: bps.push_pull(np.ones(2), priority="high"),
            "priority is 'high': give a whole number; a larger",
        ),
        (lambda: bps.push_pull_async(np.ones(2), priority=0.5), "priority is 0.5: give a whole number"),
        (lambda: [bps.push_pull(np.ones(k), name="w") for k in (2, 3)], "declared before .* use another name"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(SpecError, match=message):
        call()


def test_what_there_is_before_init():
    assert not bps.is_initialized()
    with pytest.raises(RunError, match=r"call init\(\) first"):
        bps.push_pull(np.ones(2))


@pytest.mark.parametrize("timeout", ["600", [0, 1], -1, 0, True, float("nan")])
def test_a_timeout_that_is_no_positive_number_is_refused(timeout):
    with pytest.raises(SpecError, match=r"the timeout of init\(\) is .*: give a number of seconds"):
        bps.init(timeout, alone=True)


def test_a_credit_of_less_than_a_partition_is_refused(monkeypatch):
    with pytest.raises(SpecError, match=r"credit is 4096: give the bytes .*, at least 786432, .* or 0 for no bound"):
        bps.init(alone=True, credit=4096)
    monkeypatch.setenv("BYTEPS_SCHEDULING_CREDIT", "-1")
    with pytest.raises(SpecError, match=r"BYTEPS_SCHEDULING_CREDIT is '-1': give a number of partitions, or 0 for no"):
        bps.init(alone=True)
    assert not bps.is_initialized()


def test_processes_of_torchrun_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LaunchError, match=r"only hpcps\.torch joins: start the script with `hpcps launch`"):
        bps.init()


@pytest.mark.usefixtures("alone")
def test_a_script_uses_one_front_end():
    torch = pytest.importorskip("torch")
    import hpcps.torch

    for call in (hpcps.torch.init, lambda: hpcps.torch.push_pull(torch.ones(2))):
        with pytest.raises(RunError, match=r"hpcps.numpy.init\(\) has joined .*: hpcps.torch needs its own init"):
            call()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("compression", [None, "onebit", "int8", "topk"])
def test_an_empty_array_has_nothing_to_encode(compression):
    for rule in (None, "median"):
        found = bps.push_pull(np.zeros((0, 3), np.float32), name=f"empty {rule}", compression=compression, rule=rule)
        assert found.shape == (0, 3)
