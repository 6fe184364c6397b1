"""Byzantine attacks.

- `base`: the base classes, who attacks and when
- `values`: change the own update
- `sending`: wrong labels, no update, a late update, wrong durations
- `omniscient`: the base of attacks that know the honest updates
- `shifted_mean`: shift the mean of the honest updates
- `copies`: send the work of others
- `over_rounds`: are consistent over the rounds
- `fang`: against Krum and against the trimmed mean
"""

from hpcps.attacks.base import (
    Attack,
    AttackContext,
    AttackSchedule,
    ByzantineAttack,
    NoAttack,
    attacked_blocks,
    attacker_count,
    attackers,
)
from hpcps.attacks.copies import Copycat, FreeRider, Mimic, MimicVariance
from hpcps.attacks.fang import FangKrum, FangTrimmedMean
from hpcps.attacks.omniscient import AdversaryContext, Omniscient
from hpcps.attacks.over_rounds import PoisonedFl, Rop
from hpcps.attacks.sending import ClockAttack, FastClock, LabelAttack, LabelFlip, Late, SendingAttack, Silent, SlowClock
from hpcps.attacks.shifted_mean import Alie, Ipm, MinMax, MinSum, SearchedAlie, SearchedIpm, Sparse
from hpcps.attacks.values import Drop, Gaussian, Infinite, Nan, Negative, Random, RandomScale, SignFlip, Zero

__all__ = [
    "AdversaryContext",
    "Alie",
    "Attack",
    "AttackContext",
    "AttackSchedule",
    "ByzantineAttack",
    "ClockAttack",
    "Copycat",
    "Drop",
    "FangKrum",
    "FangTrimmedMean",
    "FastClock",
    "FreeRider",
    "Gaussian",
    "Infinite",
    "Ipm",
    "LabelAttack",
    "LabelFlip",
    "Late",
    "Mimic",
    "MimicVariance",
    "MinMax",
    "MinSum",
    "Nan",
    "Negative",
    "NoAttack",
    "Omniscient",
    "PoisonedFl",
    "Random",
    "RandomScale",
    "Rop",
    "SearchedAlie",
    "SearchedIpm",
    "SendingAttack",
    "SignFlip",
    "Silent",
    "SlowClock",
    "Sparse",
    "Zero",
    "attacked_blocks",
    "attacker_count",
    "attackers",
]
