"""Rounds with a quorum, as they are defined: a plain simulation of who is in which round, and of the model."""

from heapq import heappop, heappush


class Worker:
    """A worker that adds (k + 1) (1 + t / 10) to the model in its step t, each of which takes so many seconds."""

    def __init__(self, index, seconds):
        self.index, self.seconds = index, seconds
        self.steps = 0

    def begin(self, time, round, count):
        """Get the model of a round."""
        self.began, self.round, self.lost, self.told, self.answered = time, round, False, False, False
        self.ends = time + count * self.seconds
        self.taken = count


def mean(pairs):
    pairs = list(pairs)
    return sum(value * weight for value, weight in pairs) / (sum(weight for _, weight in pairs) or 1)


def step(index, done):
    return (index + 1) * (1 + done / 10)


class Definition:
    """Play rounds; `rounds` holds for every group and round who arrived, who was late, dropped and abandoned."""

    def __init__(
        self, seconds, groups, needed, rounds, *, steps, late, abandon, grace=0.0, coordinator=None, weights=None
    ):
        self.weights = weights or (1,) * len(seconds)
        # Validators count alike in a run without weights.
        self.of_groups = [sum(weights[k] for k in group) if weights else 1 for group in groups]
        self.late, self.abandon, self.grace, self.coordinator = late, abandon, grace, coordinator
        self.groups, self.needed, self.count, self.last = groups, needed, steps, rounds - 1
        self.workers = [Worker(k, each) for k, each in enumerate(seconds)]
        self.rounds = [[] for _ in groups]
        self.model, self.time, self.events = 0.0, 0.0, []
        self.pending = [[] for _ in groups]
        self.back = [[] for _ in groups]
        for worker in self.workers:
            self._give(worker, 0)
        for round in range(rounds):
            self._play(round)

    def _give(self, worker, round):
        worker.begin(self.time, round, self.count)
        heappush(self.events, (worker.ends, worker.index, "ends", round))

    def _play(self, round):
        self.closed = [None] * len(self.groups)
        self.due = [None] * len(self.groups)
        for group in range(len(self.groups)):
            self._consider(group, round)
        while None in self.closed:
            self.time, index, what, number = heappop(self.events)
            if what == "grace":
                if number == (index, round) and self.closed[index] is None:
                    self._close(index, round)
                continue
            worker = self.workers[index]
            if number != worker.round or worker.answered or self.time != worker.ends:
                continue
            worker.answered = True
            group = next(g for g, members in enumerate(self.groups) if index in members)
            lost = worker.lost or worker.taken < self.count
            (self.back if lost else self.pending)[group].append((self.time, worker))
            self._consider(group, round)
        updates = []
        for arrived, answered in self.closed:
            updates.append([(sum(self._values(worker)), self.weights[worker.index]) for _, worker in arrived])
            for worker in answered:
                worker.steps += worker.taken
        self.model += mean(zip(map(mean, updates), self.of_groups, strict=True))
        for _, answered in self.closed:
            for worker in answered:
                self._give(worker, round + 1)

    def _values(self, worker):
        return [step(worker.index, worker.steps + n) for n in range(worker.taken)]

    def _consider(self, group, round):
        if self.closed[group] is not None:
            return
        members = [self.workers[k] for k in self.groups[group]]
        waiting = [worker for worker in members if not worker.answered]
        if round == self.last:
            if not waiting:
                self._close(group, round)
            return
        there = [worker.index for _, worker in self.pending[group]]
        if len(there) < self.needed[group] or (
            self.coordinator in self.groups[group] and self.coordinator not in there
        ):
            return
        if not [worker for worker in waiting if not worker.lost] or not self.grace:
            self._close(group, round)
        elif self.due[group] is None:
            self.due[group] = self.time + self.grace
            heappush(self.events, (self.due[group], group, "grace", (group, round)))

    def _close(self, group, round):
        order = sorted(self.pending[group], key=lambda answer: (answer[0], answer[1].index))
        if round < self.last and not self.grace:
            always = [n + 1 for n, (_, worker) in enumerate(order) if worker.index == self.coordinator]
            order = order[: max([self.needed[group], *always])]
        rest = [answer for answer in self.pending[group] if answer not in order]
        members = [self.workers[k] for k in self.groups[group]]
        inside = [worker for _, worker in order]
        back, self.back[group] = self.back[group], []
        self.pending[group] = rest
        if self.late == "drop":
            back, self.pending[group] = back + rest, []
        for worker in members:
            if worker in inside or worker.answered:
                continue
            worker.lost |= self.late == "drop"
            if self.abandon and round < self.last and not worker.told:
                worker.told = True
                done = int((self.time - worker.began) / worker.seconds) + 1
                if done < self.count:
                    worker.taken, worker.ends = done, worker.began + done * worker.seconds
                    heappush(self.events, (worker.ends, worker.index, "ends", worker.round))
        self.closed[group] = (order, inside + [worker for _, worker in back])
        back = sorted((worker for _, worker in back), key=lambda worker: worker.index)
        self.rounds[group].append(
            {
                "arrived": [worker.index for worker in inside],
                "late": [[worker.index, round - worker.round] for worker in inside if worker.round < round],
                "dropped": [[w.index, round - w.round] for w in back if w.taken == self.count],
                "abandoned": [[w.index, round - w.round, w.taken] for w in back if w.taken < self.count],
            }
        )
