"""Byzantine attacks."""

from hpcps.attacks.alie import Alie
from hpcps.attacks.base import Attack, ByzantineAttack
from hpcps.attacks.constant import Infinite, Nan, Zero
from hpcps.attacks.context import AdversaryContext, AttackContext
from hpcps.attacks.copycat import Copycat
from hpcps.attacks.drop import Drop
from hpcps.attacks.fang import FangKrum, FangTrimmedMean
from hpcps.attacks.free_rider import FreeRider
from hpcps.attacks.gaussian import Gaussian
from hpcps.attacks.ipm import Ipm
from hpcps.attacks.labels import LabelAttack, LabelFlip
from hpcps.attacks.mimic import Mimic, MimicVariance
from hpcps.attacks.min_max import MinMax, MinSum
from hpcps.attacks.negative import Negative
from hpcps.attacks.none import NoAttack
from hpcps.attacks.omniscient import Omniscient
from hpcps.attacks.random import Random
from hpcps.attacks.randomscale import RandomScale
from hpcps.attacks.schedule import AttackSchedule
from hpcps.attacks.searched import SearchedAlie, SearchedIpm
from hpcps.attacks.selection import attacked_blocks, attacker_count, attackers
from hpcps.attacks.sending import Late, SendingAttack, Silent
from hpcps.attacks.sign_flip import SignFlip

__all__ = [
    "AdversaryContext",
    "Alie",
    "Attack",
    "AttackContext",
    "AttackSchedule",
    "ByzantineAttack",
    "Copycat",
    "Drop",
    "FangKrum",
    "FangTrimmedMean",
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
    "Random",
    "RandomScale",
    "SearchedAlie",
    "SearchedIpm",
    "SendingAttack",
    "SignFlip",
    "Silent",
    "Zero",
    "attacked_blocks",
    "attacker_count",
    "attackers",
]
