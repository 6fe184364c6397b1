"""The exchange without I/O: results, orders of messages, mistakes and processes that end."""

import numpy as np
import pytest
from members import Members

from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import private
from hpcps.protocol.messages import Peer
from hpcps.rules import Median, TrimmedMean
from hpcps.session.buckets import ID
from hpcps.session.elements import COPIED, size_of
from hpcps.session.gathering import Rows
from hpcps.session.participant import Copies, Participant
from hpcps.session.reduction import BROADCAST, GATHER, table_of
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, TensorExchange

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]


def values(dtype, shape, seed):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.random(shape) < 0.3
    if dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 20, shape).astype(dtype)


def expected(arrays, reduction):
    dtype = arrays[0].dtype
    if dtype.kind == "b":
        return np.any(arrays, axis=0)
    if dtype.kind != "f":
        return np.sum(np.stack(arrays).astype(np.int64), axis=0).astype(dtype)
    total = arrays[0].astype(np.float64)
    for array in arrays[1:]:
        total = total + array
    return (total / (len(arrays) if reduction == "mean" else 1)).astype(dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_sum_is_that_of_float64_for_every_type(workers, servers):
    members = Members(workers, servers, near=servers > 0)
    for dtype in DTYPES:
        for size in (0, 1, 7, 20_003, 1_100_001 if dtype == "float32" else 70_001):
            arrays = [values(dtype, (size,), k) for k in range(workers)]
            results = members.combine(arrays, "sum", name=f"{dtype}/{size}")
            for result in results:
                np.testing.assert_array_equal(result, expected(arrays, "sum"))


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_large_tensors_are_sent_from_their_own_memory_unless_others_read_a_copy_in_place(dtype, near):
    world = [Peer("worker", 0), Peer("worker", 1), Peer("server", 0), Peer("server", 1)]
    size = 1_100_001
    participant = Participant(
        world[0], 2, Sharding.evenly(world), private, Copies(), shared_memory=False, neighbours=world if near else ()
    )
    tensor, _ = participant.declare(Declaration("x", dtype, ((size,),), "sum"))
    array = values(dtype, (size,), 0)
    given = array.view(np.uint8)
    sent = [send.message.values for send in participant.start(TensorExchange(tensor, [given], [given], 0.0))]
    assert len(sent) > 1
    # The last byte of what is no whole number of float32 has a copy.
    whole = [values for values in sent if np.shares_memory(values, array)]
    assert len(whole) == (0 if near else len(sent) - (dtype == "int8"))
    assert len({values.ctypes.data for values in sent}) == len(sent)
    np.testing.assert_array_equal(np.concatenate([values.view(np.uint8) for values in sent])[: given.size], given)


@pytest.mark.parametrize("servers", [0, 2])
def test_minimum_maximum_and_product_of_every_type(servers):
    members = Members(3, servers)
    wanted = {"min": np.minimum.reduce, "max": np.maximum.reduce, "product": np.multiply.reduce}
    for dtype in DTYPES:
        arrays = [values(dtype, (70_001 if dtype == "float32" else 7,), k) for k in range(3)]
        wide = [array.astype(np.float64 if dtype.startswith("float") else array.dtype) for array in arrays]
        for operation, reduced in wanted.items():
            for result in members.combine(arrays, operation, name=f"{dtype}/{operation}"):
                np.testing.assert_array_equal(result, reduced(wide).astype(dtype))
    arrays = [np.array([np.nan, 1, -np.inf], np.float32), np.array([2, np.nan, 3], np.float32), np.ones(3, np.float32)]
    np.testing.assert_array_equal(members.combine(arrays, "min", name="not finite")[0], [np.nan, np.nan, -np.inf])


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize("dtype", [*DTYPES, *COPIED])
def test_a_broadcast_keeps_the_bits_of_every_type(servers, dtype):
    for size in (1, 5, 70_003):
        bits = np.random.default_rng(size).integers(0, 256, size * size_of(dtype), np.uint8)
        members, targets = Members(3, servers), []
        for k, member in enumerate(members.workers):
            tensor = member.declare(Declaration("x", dtype, ((size,),), BROADCAST))
            targets.append(np.zeros_like(bits))
            member.start(tensor, [bits.copy()] if k == 1 else None, targets[-1:])
        members.run()
        for target in targets:
            np.testing.assert_array_equal(target, bits)


def gather(members, rows, name="x", dtype="int16", row=(3,)):
    """Gather rows of bytes; return what each worker gets."""
    targets = []
    for member, bits in zip(members.workers, rows, strict=True):
        tensor = member.declare(Declaration(name, dtype, ((1, *row),), GATHER))
        targets.append([])
        member.start(tensor, bits, targets[-1])
    members.run()
    return targets


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize(("dtype", "row"), [("int16", (3,)), ("int8", ()), ("complex128", (2,)), ("int16", (2, 0))])
def test_an_allgather_has_as_many_rows_as_each_worker_gives(servers, dtype, row):
    members, random = Members(4, servers), np.random.default_rng(0)
    size, kept = size_of(dtype) * int(np.prod(row)), []
    for counts in ((0, 0, 0, 0), (1, 0, 5, 2), (40_000, 3, 0, 1), (1, 1, 1, 1)):
        rows = [random.integers(0, 256, (count, size), np.uint8) for count in counts]
        kept.append((gather(members, rows, dtype=dtype, row=row), rows))
    for targets, rows in kept:  # also what came earlier is still there
        for found in targets:
            assert [part.shape for part in found] == [part.shape for part in rows]
            for got, given in zip(found, rows, strict=True):
                np.testing.assert_array_equal(got, given)


def test_an_allgather_with_a_wrong_number_of_rows_is_an_error_that_names_it():
    members = Members(2)
    with pytest.raises(RunError, match="an allgather of tensor 'x', rows of 3 x int16, gather has come with a wrong"):
        gather(members, [np.zeros((1, 6), np.uint8), np.zeros((1, 9), np.uint8)]), members.workers[0].check()
    rows = Rows(Declaration("x", "int16", ((1, 3),), GATHER), 2, private)
    for damaged in (np.zeros(0, np.float32), np.zeros(3, np.float32), np.full(5, -1, np.int32).view(np.float32)):
        with pytest.raises(RunError, match="wrong number of rows"):
            rows.of_all(damaged)


def test_types_that_are_only_copied_have_no_sum():
    with pytest.raises(SpecError, match="'x' is complex64: only a broadcast or an allgather takes it"):
        Members(1).workers[0].declare(Declaration("x", "complex64", ((3,),), "sum"))


def test_the_mean_is_that_of_float64_and_keeps_values_that_are_not_finite():
    members = Members(3)
    for dtype in ("float16", "float32", "float64"):
        arrays = [values(dtype, (5, 7), k) for k in range(3)]
        for result in members.combine(arrays, "mean", name=dtype):
            np.testing.assert_array_equal(result, expected(arrays, "mean"))
        arrays[1][2, 3] = np.inf
        assert np.isinf(members.combine(arrays, "mean", name=dtype)[0][2, 3])


def test_bfloat16_is_rounded_half_to_even():
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(1)
    tensors = [torch.randn(1001, generator=random).bfloat16() for _ in range(3)]
    tensors[0][5] = float("nan")
    arrays = [tensor.view(torch.int16).numpy().view(np.uint16) for tensor in tensors]
    (result, *_) = Members(3).combine(arrays, "sum", dtype="bfloat16")
    wanted = sum(tensor.double() for tensor in tensors).float().bfloat16()
    got = torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_worker_may_give_nothing():
    arrays = [None, values("float32", (30_001,), 1), None]
    for result in Members(3).combine(arrays, "sum"):
        np.testing.assert_array_equal(result, arrays[1])


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize(
    "rule",
    [Median(), TrimmedMean(trim=0.25), TrimmedMean(trim=0.25, before=({"kind": "nnm", "per": "block", "f": 1},))],
)
def test_a_rule_combines_as_it_does_outside(rule, servers):
    arrays, blocks = [values("float32", (50_010,), k) for k in range(4)], (20_000, 10, 30_000)
    wanted = rule(np.stack(arrays), blocks=blocks)
    for result in Members(4, servers).combine(arrays, table_of(rule), blocks=blocks):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "rule", [None, Median(), TrimmedMean(trim=0.25, before=({"kind": "nnm", "per": "block", "f": 1},))]
)
def test_small_tensors_share_messages_and_have_the_bits_of_separate_ones(rule, dtype):
    """In an order of its own for each worker; one value is not finite; the runs of the workers differ."""
    sizes, reduction = [5, 0, 1000, 3, 1, 16_000, 300], "mean" if rule is None else table_of(rule)
    arrays = [[values(dtype, (size,), 10 * k + t) for t, size in enumerate(sizes)] for k in range(4)]
    arrays[1][2][7] = np.nan
    separate = [Members(4).combine(list(each), reduction, "x") for each in zip(*arrays, strict=True)]
    members = Members(4)
    targets = [[np.zeros(array.nbytes, np.uint8) for array in own] for own in arrays]
    for k, member in enumerate(members.workers):
        declared = [member.declare(Declaration(f"t{t}", dtype, ((size,),), reduction)) for t, size in enumerate(sizes)]
        for t in np.random.default_rng(k).permutation(len(sizes) - 1):
            member.start(declared[t], [arrays[k][t].view(np.uint8)], [targets[k][t]])
            if (k, t) == (2, 3):
                member.flush()
    members.run()
    for t, wanted in enumerate(separate[:-1]):
        for k in range(4):
            np.testing.assert_array_equal(targets[k][t].view(dtype), wanted[k])


def test_many_small_tensors_take_few_messages():
    members = Members(3)
    declared = [
        [member.declare(Declaration(f"t{t}", "float32", ((1000,),), "sum")) for t in range(200)]
        for member in members.workers
    ]
    members.run()
    for step in range(2):
        members.messages = 0
        for member, tensors in zip(members.workers, declared, strict=True):
            data = np.full(1000, step + 1, np.float32).view(np.uint8)
            targets = [np.zeros(4000, np.uint8) for _ in tensors]
            exchanges = [
                member.start(tensor, [data], [target]) for tensor, target in zip(tensors, targets, strict=True)
            ]
        members.run()
        # Four buckets of 65 tensors, the last one not full, at three aggregators: 2 tensors to the others, 2 results.
        assert members.messages == 4 * (2 + 2)
        assert all(exchange.done for exchange in exchanges)
        assert all((target.view(np.float32) == 3 * (step + 1)).all() for target in targets)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("naive_async", "asynchronous"),
        ("medain", "median"),
        ({"kind": "trimmed_mean", "f": 2}, "f = 2"),
    ],
)
def test_a_rule_that_cannot_combine_is_refused(rule, reason):
    with pytest.raises(SpecError, match=reason):
        Members(4).workers[0].declare(Declaration("x", "float32", ((3,),), table_of(rule)))


def test_the_mean_of_integers_is_refused():
    with pytest.raises(SpecError, match="average=False"):
        Members(2).workers[0].declare(Declaration("x", "int64", ((3,),), "mean"))


@pytest.mark.parametrize(
    "other",
    [
        ("b", "float32", ((10,),), "sum"),
        ("a", "float64", ((10,),), "sum"),
        ("a", "float32", ((11,),), "sum"),
        ("a", "float32", ((2, 5),), "sum"),
        ("a", "float32", ((10, 1),), "sum"),
        ("a", "float32", ((4,), (6,)), "sum"),
        ("a", "float32", ((10,),), "mean"),
        ("a", "float32", ((1_000_000,),), "sum"),
    ],
)
@pytest.mark.parametrize("servers", [0, 1, 3])
def test_every_process_names_the_first_difference(other, servers):
    members = Members(3, servers)
    for member in members.workers:
        tensor = member.declare(Declaration("zero", "float32", ((1,),), "sum"))
        member.start(tensor, [np.zeros(4, np.uint8)], [np.zeros(4, np.uint8)])
        odd = other if member.peer.index == 1 else ("a", "float32", ((10,),), "sum")
        member.declare(Declaration(*odd))
        tensor = member.declare(Declaration("c", "float32", ((1_000_000 + member.peer.index,),), "sum"))
        data = np.zeros(4 * tensor.declaration.size, np.uint8)
        member.start(tensor, [data], [data])
        for each in members.all:
            each.step()
    members.run()
    for member in members.all:
        assert "tensor 1 differs" in str(member.error)
        assert "'a', 10 x float32, sum" in str(member.error)
        assert "worker-1" in str(member.error)
    with pytest.raises(RunError, match="tensor 1 differs"):
        members.workers[2].declare(Declaration("d", "int8", ((1,),), "sum"))


def test_a_tensor_is_declared_once():
    (member,) = Members(1).workers
    member.declare(Declaration("x", "float32", ((3,),), "sum"))
    with pytest.raises(SpecError, match=r"'x', 3 x float32, sum, in test_member.py, line .*, and is now 'x', 4 x"):
        member.declare(Declaration("x", "float32", ((4,),), "sum"))


def test_a_tensor_is_exchanged_once_at_a_time():
    member = Members(2).workers[0]
    tensor = member.declare(Declaration("x", "uint8", ((3,),), "sum"))
    data = np.zeros(3, np.uint8)
    member.start(tensor, [data], [data])
    with pytest.raises(RunError, match="'x' is being exchanged"):
        member.start(tensor, [data], [data])


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("error", ["", "ValueError: boom"])
@pytest.mark.parametrize("late", [False, True])
def test_the_others_say_whom_they_waited_for(servers, error, late):
    members = Members(3, servers)
    if late:
        members.workers[2].leave(error)
        members.run()
    for member in members.workers[:2]:
        if late:
            with pytest.raises(RunError, match="tensor 'fc'") as raised:
                member.start(
                    member.declare(Declaration("fc", "uint8", ((3,),), "sum")),
                    [np.zeros(3, np.uint8)],
                    [np.zeros(3, np.uint8)],
                )
            assert "worker-2" in str(raised.value)
            continue
        member.start(
            member.declare(Declaration("fc", "uint8", ((3,),), "sum")), [np.zeros(3, np.uint8)], [np.zeros(3, np.uint8)]
        )
    if not late:
        members.workers[2].leave(error)
        members.run()
        for member in members.workers[:2]:
            assert "worker-2" in str(member.error)
            assert "'fc'" in str(member.error)
            assert (error or "ended its script") in str(member.error)


class MuteError(Exception):
    """Cannot be turned into text."""

    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("error", [MuteError(), OSError("caf\udce9")], ids=["mute", "surrogate"])
def test_an_error_ends_the_session_in_all_processes_whatever_its_text_is(error):
    members = Members(3)
    members.all[1].fail(error)
    members.run()
    texts = [str(member.error) for member in members.all]
    assert all(type(error).__name__ in text and text.encode() for text in texts)
    assert len({*texts}) == 1


def test_a_worker_may_leave_while_others_wait_for_results_that_it_has():
    members = Members(2, 1)
    targets = [np.zeros(3, np.uint8) for _ in range(2)]
    for member, target in zip(members.workers, targets, strict=True):
        member.start(member.declare(Declaration("x", "uint8", ((3,),), "sum")), [np.ones(3, np.uint8)], [target])
        member.flush()
    while members.workers[1].participant.exchanges:
        members.all[2].step()
        members.workers[1].step()
    members.workers[1].leave()
    members.run()
    assert members.workers[0].error is None
    assert targets[0].tolist() == [2, 2, 2]


def test_an_exchange_that_takes_too_long_names_the_late_worker(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("hpcps.session.member.time.monotonic", lambda: clock[0])
    members = Members(3, timeout=10.0)
    for member in members.workers[:2]:
        member.start(
            member.declare(Declaration("fc", "uint8", ((3,),), "sum")), [np.zeros(3, np.uint8)], [np.zeros(3, np.uint8)]
        )
    for clock[0] in (1.0, 20.0):
        members.workers[1].watch()
        members.run()
    assert "worker-1 waited 10 s for worker-2 in tensor 'fc'" in str(members.workers[0].error)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(30))
def test_random_programs_end_with_the_right_sums(seed, monkeypatch):
    """The same tensors, begun and waited for in another order by every worker, which are late at random."""
    random = np.random.default_rng(seed)
    workers, servers, count = int(random.integers(1, 6)), int(random.integers(0, 3)), int(random.integers(1, 9))
    monkeypatch.setattr("hpcps.session.buckets._SHARED_PARTITION", 1 << 19)
    weights = None if seed % 3 else [int(random.integers(0, 4)) for _ in range(workers + servers - 1)] + [1]
    members = Members(workers, servers, shared_memory=seed % 2 == 0, weights=weights)
    sizes = [int(random.choice([0, 1, 5, 1000, 17_000, 300_000])) for _ in range(count)]
    declared = [
        [member.declare(Declaration(f"t{k}", "float32", ((size,),), "sum")) for k, size in enumerate(sizes)]
        for member in members.workers
    ]
    for step in range(3):
        data = [[random.standard_normal(size).astype(np.float32) for size in sizes] for _ in range(workers)]
        results = [[np.zeros(4 * size, np.uint8) for size in sizes] for _ in range(workers)]
        programs = [list(random.permutation(count)) for _ in range(workers)]
        while any(programs):
            k = int(random.integers(workers))
            if programs[k] and random.random() < 0.5:
                t = programs[k].pop()
                members.workers[k].start(declared[k][t], [data[k][t].view(np.uint8)], [results[k][t]])
            elif random.random() < 0.3:
                members.workers[int(random.integers(workers))].flush()
            else:
                for member in random.choice(members.all, 3):
                    member.step()
        members.run(random)
        for t, size in enumerate(sizes):
            wanted = expected([data[k][t] for k in range(workers)], "sum")
            for k in range(workers):
                assert size == len(wanted)
                np.testing.assert_array_equal(results[k][t].view(np.float32), wanted, err_msg=f"step {step}")


def test_small_tensors_that_wait_end_with_the_session():
    member, other = Members(2).workers
    tensors = [member.declare(Declaration(name, "uint8", ((3,),), "sum")) for name in "ab"]
    data = np.zeros(3, np.uint8)
    first = member.start(tensors[0], [data], [data])
    member.fail(RunError("boom"))
    assert str(first.error) == "boom"
    late = TensorExchange(tensors[1], data, data, 0.0)  # another thread began it when it failed
    member._queue.append(late)
    member.flush()
    assert str(late.error) == "boom"
    other.step()
    assert str(other.error) == "boom"


@pytest.mark.parametrize(("servers", "weights"), [(0, None), (1, None), (1, (1, 1, 1, 3))])
def test_every_process_hears_that_the_others_leave_in_turn(servers, weights):
    members = Members(3, servers, weights=weights)
    for member in members.all:
        member.leave()
        members.run()
    assert all(member.alone and member.error is None for member in members.all)


def test_messages_are_of_the_session():
    assert len(ID.encode()) <= 10


def test_unequal_numbers_of_steps_are_an_error_that_names_both():
    members = Members(3)
    for worker, steps in zip(members.workers, (4, 3, 4), strict=True):
        worker.steps = steps
        worker.leave()
    members.run()
    said = [worker.unequal_steps() for worker in members.workers]
    assert "worker-0 has taken 4, and worker-1 3: a process that skips a step" in said[0]
    assert "worker-1 has taken 3, and worker-0 4" in said[1]
    assert "worker-2 has taken 4, and worker-1 3" in said[2]
    members.workers[1].steps = 4
    members = Members(3)
    for worker in members.workers:
        worker.steps = 4
        worker.leave()
    members.run()
    assert not any(worker.unequal_steps() for worker in members.workers)


def test_blocks_that_no_worker_has_are_named_to_all():
    members, sizes = Members(3), ((2,), (3,), (4,))
    exchanges = []
    for worker, absent in zip(members.workers, ((0, 1), (1,), (1, 2)), strict=True):
        tensors = [worker.declare(Declaration(name, "float32", sizes, "sum")) for name in "ab"]
        data = [np.ones(9, np.float32).view(np.uint8) for _ in tensors]
        exchanges += [worker.start(tensors[0], [data[0]], [data[0]], absent=absent)]
        exchanges += [worker.start(tensors[1], [data[1]], [data[1]], absent=absent if worker.peer.index else ())]
    members.run()
    assert [list(exchange.unused) for exchange in exchanges] == [[1], []] * 3


def test_a_process_that_has_ended_names_one_that_gives_no_sign_of_life(monkeypatch):
    """One that computes for long answers; the time between two looks counts up to a second."""
    moment = [0.0]
    monkeypatch.setattr("hpcps.session.member.time.monotonic", lambda: moment[0])
    members = Members(3, timeout=20.0)
    ended, busy, silent = members.all

    def pass_seconds(seconds, *alive):
        for _ in range(round(seconds / 0.5)):
            moment[0] += 0.5
            ended.watch()
            for member in (ended, *alive):
                while member.step():
                    pass

    ended.leave()
    pass_seconds(200, busy, silent)
    moment[0] += 1000.0  # all were suspended
    pass_seconds(10, busy)
    assert ended.silent == ""
    pass_seconds(15, busy)
    assert (
        "worker-0 has ended its script, and waits for worker-2, which has given no sign of life for 2" in ended.silent
    )
    assert ended.error is None
    assert busy.error is None
