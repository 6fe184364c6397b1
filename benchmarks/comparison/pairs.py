"""All pairs, by the kind of component."""

from comparison.attack_pairs import ATTACK_PAIRS
from comparison.own_attack_pairs import OWN_ATTACK_PAIRS
from comparison.preaggregator_pairs import PREAGGREGATOR_PAIRS
from comparison.rule_pairs import RULE_PAIRS

PAIRS = {"rules": RULE_PAIRS, "preaggregators": PREAGGREGATOR_PAIRS, "attacks": [*ATTACK_PAIRS, *OWN_ATTACK_PAIRS]}
"""One entry for each line of the comparison."""
