"""How what several senders send becomes a result: in a round, and in the exchange of an own script.

- `attack_group`: the attackers that know what others send
- `collector`: which slots all senders have sent, and what they have sent of them; start here
- `encoding`: how senders encode what they send, and how it is decoded
- `outcomes`: what has become of the blocks
- `rule_state`: what the rule keeps from one call to the next
"""
