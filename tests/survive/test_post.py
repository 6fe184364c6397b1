"""What has come for a standby."""

from hpcps.execution.standby.post import Post
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Credit, Peer
from hpcps.protocol.received import REPLACED, Lost, Replaced

SENDER = Peer("validator", 1)


def message(number, incarnation, skipped=None):
    return Delivered(SENDER, Envelope(SENDER, "run", Credit(round=number, partitions=1)), skipped, incarnation)


def test_a_server_knows_a_replacement_before_its_new_standby():
    """The standby has got a message of the predecessor, which the server has not taken."""
    post = Post()
    post.put(message(4, incarnation=0, skipped=4))
    post.begin({SENDER: (1, 0)}, ())
    post.put(Replaced(SENDER, 1))
    for number in range(2):
        post.put(message(10 + number, incarnation=1))
    assert post.take_from(SENDER).envelope.message.round == 10
    assert post.take().envelope.message.round == 11, "the standby has taken the place"
    assert post.take() is None


def test_the_first_message_of_a_process_comes_before_it_says_that_it_is_ready():
    post = Post()
    post.put(message(7, incarnation=1, skipped=7))
    post.put(Replaced(SENDER, 1))
    post.put(message(8, incarnation=1))
    post.begin({SENDER: (1, 8)}, ())
    assert post.take_from(SENDER).envelope.message.round == 8


def test_a_loss_that_the_server_knows_is_none_of_the_process_after_it():
    """The new standby hears of it twice: from the list of nodes, and as the death of the process."""
    post = Post()
    post.put(Lost(SENDER, REPLACED, incarnation=1))
    post.put(Lost(SENDER, "its connection has closed", incarnation=2))
    post.begin({SENDER: (2, 7)}, {SENDER})
    post.put(Replaced(SENDER, 3))
    assert post.take_replaced(SENDER, 3) == Replaced(SENDER, 3)
    post.put(message(1, incarnation=3))
    assert post.take().envelope.message.round == 1, "the standby has taken the place"
    post.put(Lost(SENDER, "it has sent nothing for 5 s", incarnation=3))
    assert post.take().incarnation == 3


def test_a_process_that_was_lost_before_the_standby_came_is_made_up_for():
    """The server still has to take both losses, and what was between them."""
    post = Post()
    post.put(Lost(SENDER, "its connection has closed", incarnation=1))
    post.begin({SENDER: (0, 7)}, ())
    assert post.take_lost(SENDER).incarnation == 1
    assert post.take_replaced(SENDER, 2) is None
    assert post.take_replaced(SENDER, 1) == Replaced(SENDER, 1)
    assert post.take_lost(SENDER).cause == "its connection has closed"
    assert post.take() is None
