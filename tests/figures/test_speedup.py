"""The speed-up: strong and weak scaling from invented times, and the command on small simulated runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.figures.options import PlotOptions
from hpcps.figures.speedup import draw_speedups, speedup_table, speedups_of

SLOWEST = {1: 8.0, 2: 5.0, 4: 2.5}


def table(samples, *, mode="sync", rules=("average",), seeds=(1,), simulation="none", rounds=True):
    """Return a table of runs with 1, 2 and 4 workers that have these samples; T of seed s is s times `SLOWEST`."""
    rows = []
    for workers, total in samples:
        for rule in rules:
            for seed in seeds:
                run = {"run_id": f"{workers}-{total}-{rule}-{seed}", "workers": workers, "seed": seed, "mode": mode}
                run |= {"rule": rule, "variant": "", "outside": "", "status": "done", "simulation": simulation}
                run |= {"model": "mlp", "data": "digits", "epochs": 1, "data.shards": total}
                took = SLOWEST[workers] * seed
                rows.append(run | {"event": "start", "role": "worker", "index": 0, "transport": "inproc"})
                for worker in range(workers):
                    # In each of the two rounds another worker is the slowest; the evaluation does not count.
                    slow = [took / 2 if worker == number % workers else took / 8 for number in range(2)]
                    parts = [{"compute": each * 0.5, "wait": each * 0.3, "exchange": each * 0.2} for each in slow]
                    for number, part in enumerate(parts) if rounds else ():
                        rows.append(run | part | {"event": "round", "role": "worker", "index": worker, "round": number})
                        rows[-1] |= {"evaluate": 99.0}
                    share = {"samples": total / workers, "time": took + worker}
                    rows.append(run | share | {"event": "totals", "role": "worker", "index": worker})
    frame = pd.DataFrame(rows)
    swept = ["workers", "data.shards", *(["rule"] if len(rules) > 1 else []), "seed"]
    frame.attrs.update({"experiment": "x", "swept": swept, "outside": {}})
    return frame


STRONG = [(1, 800), (2, 800), (4, 800)]


def test_strong_scaling_is_the_ratio_of_the_times_of_the_slowest_workers():
    (shown,) = speedups_of(table(STRONG))
    (line,) = shown.lines
    assert not line.weak
    np.testing.assert_allclose(line.seconds.mean, [8, 5, 2.5])
    np.testing.assert_allclose(line.speedup.mean, [1, 1.6, 3.2])
    assert shown.measure.endswith("slowest worker's seconds; the roles of a run take turns in one process")
    assert speedup_table(shown).splitlines()[-1].split("|")[3:8] == [
        *(" " * 7 + "4 ", " " * 5 + "800 ", "   2.5 ", "     3.20 ", " " * 15 + "80 ")
    ]


def test_runs_in_no_time_have_no_speed_up():
    with pytest.raises(RunError, match="no runs that take simulated time: give the simulation costs"):
        speedups_of(table(STRONG, simulation="modelled", rounds=False).assign(time=0.0))


def test_weak_scaling_multiplies_by_the_samples_and_both_may_share_a_run():
    (shown,) = speedups_of(table([*STRONG, (1, 200), (2, 400)]))
    strong, weak = shown.lines
    assert (strong.weak, weak.weak) == (False, True)
    np.testing.assert_allclose(weak.samples, [200, 400, 800])
    np.testing.assert_allclose(weak.speedup.mean, [1, 2 * 1.6, 4 * 3.2])
    ((name, figure),) = draw_speedups([shown], PlotOptions())
    assert name == "speedup"
    assert [axes.get_title() for axes in figure.axes] == [
        "strong: equal samples in total",
        "weak: equal samples per worker",
    ]
    ideal, runs = figure.axes[0].lines
    np.testing.assert_allclose(ideal.get_ydata(), [1, 2, 4])
    np.testing.assert_allclose(runs.get_ydata(), [1, 1.6, 3.2])


def test_the_band_is_the_spread_of_the_seeds():
    (shown,) = speedups_of(table(STRONG, seeds=(1, 3)))
    (line,) = shown.lines
    assert line.seeds == 2
    np.testing.assert_allclose(line.speedup.high, 2 * np.array([1, 1.6, 3.2]))
    np.testing.assert_allclose(line.speedup.low, 2 / 3 * np.array([1, 1.6, 3.2]))
    assert "[lowest–highest of the seeds]" in speedup_table(shown)
    same = table(STRONG, seeds=(1, 1.0000001))
    assert "[" not in speedup_table(speedups_of(same)[0])


def test_runs_with_other_settings_are_other_lines_and_other_samples_are_not_compared():
    (shown,) = speedups_of(table(STRONG, rules=("average", "median")))
    assert [one.line for one in shown.lines] == ["average", "median"]
    with pytest.raises(RunError, match=r"The samples by the number of workers are 1: 800, 2: 700, 4: 900$"):
        speedups_of(table([(1, 800), (2, 700), (4, 900)]))
    with pytest.raises(RunError, match="no finished runs"):
        speedups_of(table(STRONG).assign(status="failed"))


@pytest.mark.parametrize(
    ("keys", "simulated"), [({"mode": "async"}, False), ({"rounds": False, "simulation": "x"}, True)]
)
def test_without_common_rounds_the_time_is_that_of_the_last_worker(keys, simulated):
    (shown,) = speedups_of(table(STRONG, **keys))
    np.testing.assert_allclose(shown.lines[0].seconds.mean, [8, 6, 5.5])
    assert shown.measure.startswith("simulated time; T: seconds from" if simulated else "T: seconds from")


def test_runs_with_a_quorum_have_no_common_rounds():
    frame = table(STRONG)
    closed = frame.drop_duplicates("run_id").assign(event="round", role="validator", round=0, arrived=1)
    quorum = pd.concat([frame, closed[closed["workers"] == 4]])
    quorum.attrs = frame.attrs
    (shown,) = speedups_of(quorum)
    # The runs of one figure have the same T: also those that wait for all workers.
    np.testing.assert_allclose(shown.lines[0].seconds.mean, [8, 6, 5.5])
    assert "last round of its last worker (runs with a quorum have no common rounds)" in shown.measure
    ((_, figure),) = draw_speedups([shown], PlotOptions())
    # The heading is wrapped: a line of it is not longer than the figure is wide.
    assert max(map(len, figure.get_suptitle().splitlines())) < 17 * figure.get_size_inches()[0]


@pytest.mark.thorough
def test_the_speed_up_of_a_quorum_is_by_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"topology.validators": 0, "simulation.kind": "modelled", "train.quorum": 0.5, "data.shards": 4}
    # Half of the workers are slow, so the samples of each number of workers are those of the rounds that they miss.
    classes = [f'[{{ name = "slow", workers = {slow}, factor = 3.5 }}]' for slow in ([1], [1, 3])]
    sweep = f'[[sweep]]\n"topology.workers" = [2, 4]\n"heterogeneity.classes" = [{", ".join(classes)}]\n'
    step = '[simulation.step]\nkind = "constant"\nseconds = 1.0\n'
    file = tmp_path / "closes.toml"
    file.write_text(small_experiment("closes", keys, step + sweep))
    results = ["--results", str(tmp_path)]
    assert main(["run", str(file), *results]) == 0
    capsys.readouterr()
    assert main(["plot", *results, "speedup", "closes"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| –")]
    # 9 rounds of a second; the last one waits for the slow workers, which began at 8 s after two steps of 3.5 s.
    assert [[cell.strip() for cell in row[3:7]] for row in rows] == [
        ["2", "104", "11.5", "2.00"],
        ["4", "208", "11.5", "4.00"],
    ]


@pytest.mark.thorough
def test_the_command_draws_simulated_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"topology.validators": 0, "train.epochs": 1, "simulation.kind": "modelled"}
    sweep = '[[sweep]]\n"topology.workers" = [1, 2]\n"data.shards" = [1, 2]\n"simulation.hosts" = [2, 3]\n'
    costs = '[simulation.step]\nkind = "constant"\nseconds = 0.1\n[simulation.remote]\nlatency = 0.025\n'
    file = tmp_path / "scale.toml"
    file.write_text(small_experiment("scale", keys, costs + sweep))
    results = ["--results", str(tmp_path)]
    assert main(["run", str(file), *results]) == 0
    capsys.readouterr()
    assert main(["plot", *results, "speedup", "scale"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "simulated time; T: sum over the rounds of the slowest worker's seconds" in lines
    # 160 samples are 20 steps of 0.1 s, each with two messages, or half as many with two workers.
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines if line.startswith("| –")]
    assert rows == [["strong", "1", "160", "3", "1.00", "100"], ["strong", "2", "160", "1.5", "2.00", "100"]]
    assert (tmp_path / "scale/figures/speedup.png").stat().st_size > 10_000
