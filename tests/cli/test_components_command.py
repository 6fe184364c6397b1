"""`hpcps components`: what it answers to a wrong argument."""

import pytest

from hpcps.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["krum"], "unknown kind of component 'krum': did you mean `hpcps components rules krum`? There are: rules,"),
        (
            ["rule"],
            "unknown kind of component 'rule': did you mean 'rules'? There are: rules, preaggregators, attacks,",
        ),
        (["xyz"], "unknown kind of component 'xyz'. There are: rules, preaggregators, attacks,"),
        (["rules", "xyz"], "unknown rule 'xyz'. There are: aksel, average,"),
    ],
)
def test_a_wrong_argument_is_answered_with_the_right_ones(arguments, said, capsys):
    assert main(["components", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"hpcps: {said}")
