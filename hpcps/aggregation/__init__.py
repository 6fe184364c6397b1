"""How what several senders send becomes a result: in a round, and in the exchange of an own script.

- `collector`: which slots all senders have sent, and what they have sent of them
- `encoding`: how senders encode what they send, and how it is decoded
- `rule_state`: what the rule keeps from one call to the next
- `outcomes`: what has become of the blocks
- `attack_group`: the attackers that know what others send
"""
