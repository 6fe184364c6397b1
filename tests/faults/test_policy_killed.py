"""A run with a policy of local steps that is killed goes on from its checkpoint: with its speeds and its counts."""

from collections.abc import Callable

import pytest
from fault_runs import Play, assert_quiet
from test_killed_and_resumed import until_nobody_is_left, until_sealed

from hpcps.records.collect import collect

pytestmark = pytest.mark.soak

POLICY = (
    *("--set", "topology={servers=2, validators=0, workers=3}", "--set", "heterogeneity.slow={workers=[1], factor=8}"),
    *("--set", "train.epochs=300", "--set", "checkpoint.every=10"),
)


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("{kind='esync'}", ()),
        ("{kind='esync', blocking=false}", ("--set", "attack={kind='ipm', rate=0.4, from_epoch=20}")),
        ("{kind='dylu', most=8}", ("--set", "transport.kind=pslite")),
    ],
)
def test_a_killed_run_knows_the_speeds_and_counts_on(
    policy: str, more: tuple[str, ...], start: Callable[..., Play]
) -> None:
    arguments = (*POLICY, "--set", f"train.local_steps={policy}", *more)
    for _ in range(2):
        play = start(*arguments)
        until_sealed(play)
        play.kill()
        until_nobody_is_left(play)
    last = start(*arguments)
    assert last.end(200) == 0, last.text
    assert_quiet(last.text)
    lines = last.lines("server-0")
    assert lines[0]["continues"] > 0
    standings = next(line for line in lines if line["event"] == "local_steps")
    assert all(seconds is not None for seconds in standings["c"]), "the speeds are known before anyone reports a step"
    table = collect(last.run.path.parents[1]).table
    rounds = table[(table["event"] == "round") & (table["role"] == "server") & (table["index"] == 0)]
    assert rounds["round"].tolist() == list(range(len(rounds)))
    # 3 workers with 5 batches in an epoch
    assert (rounds["steps"].cumsum() / 15).tolist() == pytest.approx(rounds["epoch"].tolist())
    assert rounds["epoch"].iloc[-1] >= 300 > rounds["epoch"].iloc[-2]
    own = table[(table["event"] == "round") & (table["role"] == "worker")]
    assert own.groupby("round")["local_steps"].sum().tolist() == rounds["steps"].tolist()
    evaluations = table[table["event"] == "evaluation"]
    assert evaluations["epoch"].tolist() == list(range(1, 301))
