"""How long a false worker is not found: 1 - (1 - p)^k of them are found within k false rounds."""

import numpy as np
import pytest
from audited import audited, audits_of, play_audited
from executed import run_here
from scipy.stats import chisquare

from hpcps.attacks import attackers
from hpcps.protocol.messages import Peer
from hpcps.roles.sync.audit import Auditor

MOST = 10**6


def fits(delays, share, rounds):
    """Return the p-value of delays, in false rounds from 1 on; those not found within `rounds` have more."""
    cuts = [k for k in range(1, rounds + 1) if len(delays) * share * (1 - share) ** (k - 1) >= 5]
    within = lambda k: 1 - (1 - share) ** k  # noqa: E731
    edges = [0, *cuts, MOST]
    expected = np.diff([within(k) for k in edges]) * len(delays)
    found = np.histogram(delays, np.array(edges) + 0.5)[0]
    return chisquare(found, expected).pvalue


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
def test_the_draws_of_all_workers_have_the_distribution(share):
    delays = []
    for seed in range(150):
        run = audited(share, workers=10, seed=seed)
        workers = tuple(Peer("worker", k) for k in range(10))
        auditor = Auditor(Peer("validator", 0), run, workers, None)
        for worker in workers:
            delays.append(next(k for k in range(1, MOST) if auditor.draws(worker, k - 1)))
    assert len(delays) == 1500
    assert fits(delays, share, round(3 / share)) > 0.001


def test_another_distribution_does_not_pass():
    delays = np.random.default_rng(1).geometric(0.07, 1500)
    assert fits(delays, 0.07, 50) > 0.001
    assert fits(delays, 0.05, 50) < 0.001


def false_rounds(seed, folder, share, every=1):
    """Return after how many false rounds each attacker of a run is found."""
    attack = {"kind": "sign_flip", "rate": 0.7, "scope": "worker", "every": every, "on": 1}
    train = {"epochs": 15 * every, "batch_size": 16, "local_steps": 1, "device": "cpu"}
    data = {"name": "digits", "limit": 440, "test_limit": 8}
    checks = {"rule": {"kind": "average"}, "audit": {"share": share}}
    run = audited(workers=10, seed=seed, attack=attack, train=train, data=data, validation=checks)
    _, excluded = audits_of(run_here(run, folder))
    who = attackers(run.attack, 10, seed)
    assert set(excluded) <= set(who)
    return [excluded[k][0] // every + 1 if k in excluded else MOST - 1 for k in who]


@pytest.mark.thorough
@pytest.mark.sample(1, 1)
@pytest.mark.parametrize("every", [1, 3])
def test_in_runs_the_attackers_are_found_as_late_as_the_draws_say(tmp_path, every):
    """Of attackers that attack once in three rounds, the false rounds count."""
    delays = [delay for seed in range(1, 6) for delay in false_rounds(seed, tmp_path / str(seed), 0.2, every)]
    assert len(delays) == 35
    assert fits(delays, 0.2, 10) > 0.001


@pytest.mark.soak
def test_100_000_audits_of_honest_workers_find_nothing(tmp_path):
    count, seed = 0, 0
    kinds = [{"kind": "none"}, {"kind": "topk"}, {"kind": "qsgd"}, {"kind": "topk", "memory": "ef21"}]
    while count < 100_000:
        seed += 1
        train = {"epochs": 60, "batch_size": 16, "local_steps": 1 + seed % 3, "device": "cpu"}
        communication = {"compression": kinds[seed % 4], "participation": 0.8, "skip_rate": 0.2}
        run = audited(1.0, workers=10, seed=seed, train=train, communication=communication)
        audits, excluded = play_audited(run, tmp_path / str(seed))
        assert not excluded, seed
        count += len(audits)
