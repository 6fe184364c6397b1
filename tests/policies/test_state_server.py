"""The state server and the policies, without roles: any order of reports, silent and late roles, changing speeds."""

import heapq
from math import floor

import pytest
from fast import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from hpcps.policies import DyLU, ESync, RoleProgress
from hpcps.policies.local_steps import StateServer, clipped

QUICK = settings(derandomize=True, deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))


def play_round(server, round, speeds, start=0.0, latency=0.0, late=()):
    """Play one round on a clock without errors; return the steps of each role, and when the last one was told to stop.

    Args:
        server: the state server.
        round: the round.
        speeds: seconds per step of each role; a function of the number of steps taken, or a number.
        start: when the round begins.
        latency: seconds of each message.
        late: pairs of a role, and the seconds by which it begins later.
    """
    pace = [each if callable(each) else lambda k, each=each: each for each in speeds]
    delays, steps = dict(late), [0] * len(speeds)
    events = [(start + delays.get(role, 0.0) + latency, role, 0) for role in range(len(speeds))]
    heapq.heapify(events)
    end = start
    while events:
        now, role, k = heapq.heappop(events)
        further = 1
        if k == 0:
            server.begin(role, round, now)
            now -= 2 * latency  # it has begun already: there is no answer to wait for
        else:
            steps[role] = k
            further = server.report(role, round, k, pace[role](k), now)
        end = max(end, now)
        if further:
            took = sum(pace[role](k + step + 1) for step in range(further))
            heapq.heappush(events, (now + 2 * latency + took, role, k + further))
    return steps, end


def closed_form(c, margin, most=1000):
    """Return the steps of each role by the closed form of the paper."""
    slowest = c.index(max(c))
    return [1 if role == slowest else min(most, max(1, floor((c[slowest] - margin) / each))) for role, each in
            enumerate(c)]  # fmt: skip


@pytest.mark.parametrize(
    ("c", "epsilon", "expected"),
    [
        ((3.5, 0.03), 0.5, (99, 100)),  # an exact tie
        ((0.3, 0.02), 0.5, (1,)),
        ((0.3, 0.02), 0.005, (14,)),
        ((1.0, 0.0999, 0.3), 0.05, (9,)),
        ((0.03, 3.5), 0.49, (100,)),
    ],
)
def test_the_numbers_of_the_paper(c, epsilon, expected):
    server = StateServer(ESync(epsilon=epsilon), len(c), len(c))
    play_round(server, 0, c)
    for round in (1, 2):
        steps, _ = play_round(server, round, c, start=100.0 * round)
        assert max(steps) in expected
        assert steps[c.index(max(c))] == 1


@QUICK
@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=6),
    st.floats(0, 0.5),
    st.sampled_from(("seconds", "share")),
)
def test_without_latency_the_steps_are_those_of_the_closed_form(milliseconds, epsilon, unit):
    c = [each / 1000 for each in milliseconds]
    margin = epsilon if unit == "seconds" else epsilon * max(c)
    policy = ESync(epsilon=margin) if unit == "seconds" else ESync(epsilon_share=epsilon)
    server = StateServer(policy, len(c), len(c))
    total = sum(play_round(server, 0, c)[0])
    slowest = c.index(max(c))
    for round in range(1, 4):
        steps, _ = play_round(server, round, c, start=10.0 * round)
        total += sum(steps)
        for role, (found, expected) in enumerate(zip(steps, closed_form(c, margin), strict=True)):
            near = (c[slowest] - margin) / c[role]
            tie = abs(near - round_(near)) < 1e-6  # rounding of the clock decides
            if role != slowest and c[role] < c[slowest]:
                assert abs(found - expected) <= tie, (role, found, expected)
            assert found >= 1
    assert server.steps == total


round_ = round


@QUICK
@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 300))
def test_dylu_gives_steps_in_proportion_to_speed(milliseconds, most):
    c = [each / 1000 for each in milliseconds]
    server = StateServer(DyLU(most=most), len(c), len(c))
    play_round(server, 0, c)
    steps, _ = play_round(server, 1, c, start=1000.0)
    for found, each in zip(steps, c, strict=True):
        exact = min(c) / each * most
        assert abs(found - max(1, floor(exact))) <= (abs(exact - round_(exact)) < 1e-4)
    assert max(steps) == most


def test_steps_without_duration_are_possible():
    """In one process without simulated timing."""
    for policy, expected in ((DyLU(most=4), [4, 4]), (ESync(), [1, 1])):
        server = StateServer(policy, 2, 2)
        play_round(server, 0, (0.0, 0.0))
        assert play_round(server, 1, (0.0, 0.0))[0] == expected


def test_a_state_goes_on_as_if_nothing_had_happened():
    servers = [StateServer(ESync(epsilon=0.1), 3, 2) for _ in range(2)]
    for round in range(3):
        play_round(servers[0], round, (1.0, 0.07, 0.3))
    servers[1].restore(servers[0].state())
    for round in range(3, 5):
        played = [play_round(server, round, (1.0, 0.07, 0.3)) for server in servers]
        assert played[0] == played[1]
    assert servers[0].steps == servers[1].steps
    assert servers[0].progress == servers[1].progress


class AnyOrder(RuleBasedStateMachine):
    """Reports in any order, of any round, with any durations and moments; answers follow the rule as it is published.

    The model keeps all that it was told, in plain dictionaries, and applies the five points of the rule.
    """

    ROLES, WORKERS, MOST, EPSILON = 4, 3, 6, 0.25

    def __init__(self):
        super().__init__()
        self.server = StateServer(ESync(epsilon=self.EPSILON, most=self.MOST), self.ROLES, self.WORKERS)
        self.now, self.newest = 0.0, 0
        self.durations = {role: [] for role in range(self.ROLES)}
        self.begun, self.ready, self.te = set(), set(), {}
        self.taken, self.latest = {}, dict.fromkeys(range(self.ROLES), 0)

    def c(self, role):
        last = sorted(self.durations[role][-3:])
        return last[(len(last) - 1) // 2] if last else 0.0

    def enter(self, round):
        if round > self.newest:
            self.newest = round
            self.begun, self.ready = set(), set()

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.now += seconds

    @rule(role=st.integers(0, ROLES - 1), ahead=st.integers(0, 1))
    def begin(self, role, ahead):
        round = self.newest + ahead
        self.enter(round)
        self.server.begin(role, round, self.now)
        self.begun.add(role)
        self.te[role] = self.now

    @rule(role=st.integers(0, ROLES - 1), k=st.integers(1, MOST), seconds=st.floats(0, 2), ahead=st.integers(-1, 1))
    def report(self, role, k, seconds, ahead):
        round = max(0, self.newest + ahead)
        self.enter(round)
        self.durations[role].append(seconds)
        if round >= self.latest[role]:  # a role begins no round before it has reported all steps of the one before
            self.latest[role] = round
            self.taken[role, round] = max(k, self.taken.get((role, round), 0))
        answer = self.server.report(role, round, k, seconds, self.now)
        if round < self.newest:
            assert answer == 0
            return
        self.begun.add(role)
        self.te[role] = self.now
        assert answer == self.expected(role, k)
        if answer == 0:
            self.ready.add(role)

    def expected(self, role, k):
        slowest = max(range(self.ROLES), key=lambda each: (self.c(each), -each))
        if role in self.ready or k >= self.MOST:
            return 0
        if slowest == role or slowest in self.ready or not self.durations[slowest]:
            return 0
        if slowest not in self.begun:
            return 1
        rest = self.c(slowest) - (self.now - self.te[slowest])
        return 0 if self.c(role) + self.EPSILON > rest else 1

    @invariant()
    def progress_is_what_was_reported(self):
        for role, known in enumerate(self.server.progress):
            assert isinstance(known, RoleProgress)
            assert known.begun == (role in self.begun)
            assert known.ready == (role in self.ready)

    @precondition(lambda self: self.taken)
    @invariant()
    def every_step_of_a_worker_counts_once(self):
        assert self.server.steps == sum(k for (role, _), k in self.taken.items() if role < self.WORKERS)


def test_reports_in_any_order():
    run_state_machine_as_test(
        AnyOrder, settings=settings(derandomize=True, deadline=None, max_examples=examples(60), stateful_step_count=40)
    )


def lying(server, round, role, factor):
    """Let a role report its durations times a factor."""
    honest = server.report
    server.report = lambda *given: honest(*given[:3], given[3] * (factor if given[0] == role else 1), given[4])
    try:
        return play_round(server, round, [0.05, 0.05, 0.05, 0.15], start=10.0 * round)[0]
    finally:
        server.report = honest


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("policy", [ESync, DyLU])
def test_measured_durations_do_not_depend_on_what_a_role_reports(policy, factor):
    honest, measuring, believing = (
        StateServer(policy(durations=way), 4, 4) for way in ("reported", "measured", "reported")
    )
    for round in range(3):
        want = play_round(honest, round, [0.05, 0.05, 0.05, 0.15], start=10.0 * round)[0]
        assert lying(measuring, round, 0, factor) == want
        believed = lying(believing, round, 0, factor)
        assert believed != want or (policy is ESync and factor < 1) or round == 0
        for role, each in enumerate(measuring.progress):
            assert each.c == pytest.approx(0.15 if role == 3 else 0.05)


def test_a_duration_is_measured_from_one_message_to_the_next():
    """Whatever they say: one step in 0.05 s, two steps in 0.2 s, and one in 0.15 s."""
    server, measured = StateServer(ESync(durations="measured"), 2, 2), []
    server.begin(0, 0, 1.0)
    for k, now in ((1, 1.05), (3, 1.25), (4, 1.4)):
        server.report(0, 0, k, 1e6, now)
        measured.append(server.progress[0].c)
    assert measured == pytest.approx([0.05, 0.05, 0.1]), "lower medians"


def test_without_a_beginning_nothing_is_measured():
    server = StateServer(ESync(durations="measured"), 2, 2)
    assert server.report(0, 0, 1, 1e-9, 5.0) == 0
    assert server.progress[0].c is None


def test_durations_are_limited_by_the_median_of_the_others():
    progress = [RoleProgress(c=c) for c in (0.05, 0.04, 9.0, 1e-6, None)]
    assert clipped(progress, None) is progress
    assert [each.c for each in clipped(progress, 3.0)] == pytest.approx([0.05, 0.04, 0.12, 0.05 / 3, None], nan_ok=True)
    assert clipped(progress[:1], 3.0) == progress[:1]
