"""What has come for a standby."""

from hpcps.execution.standby.post import Post
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Credit, Peer
from hpcps.protocol.received import Replaced

SENDER = Peer("validator", 1)


def message(number, incarnation, skipped=None):
    return Delivered(SENDER, Envelope(SENDER, "run", Credit(round=number, partitions=1)), skipped, incarnation)


def test_a_server_knows_a_replacement_before_its_new_standby():
    """The standby has got a message of the predecessor, which the server has not taken."""
    post = Post(decides=False)
    post.put(message(4, incarnation=0, skipped=4))
    post.begin({SENDER: (1, 0)}, ())
    post.put(Replaced(SENDER, 1))
    for number in range(2):
        post.put(message(10 + number, incarnation=1))
    assert post.take_from(SENDER).envelope.message.round == 10
    assert post.take().envelope.message.round == 11, "the standby has taken the place"
    assert post.take() is None


def test_the_first_message_of_a_process_comes_before_it_says_that_it_is_ready():
    post = Post(decides=True)
    post.put(message(7, incarnation=1, skipped=7))
    post.put(Replaced(SENDER, 1))
    post.put(message(8, incarnation=1))
    post.begin({SENDER: (1, 8)}, ())
    assert post.take_from(SENDER).envelope.message.round == 8
