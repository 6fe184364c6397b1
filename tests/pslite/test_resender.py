from hpcps.transport.pslite.meta import Command, Control, Meta
from hpcps.transport.pslite.sender import Resender, signature


def test_a_signature_is_as_cpp_nodes_make_it():
    # MXNet's nodes name them so (test_mxnet_nodes.py runs with acknowledgements too).
    meta = Meta(control=Control(Command.BARRIER, group=7), request=True, app=0, customer=0, timestamp=1)
    assert signature(meta, 9, 1) == 0x0000_09_01_00000003
    heartbeat = Meta(control=Control(Command.HEARTBEAT), timestamp=2)
    assert signature(heartbeat, 9, 1) == 0xFFFF_09_01_00000004


def test_what_is_not_acknowledged_is_due_later_and_later_and_then_given_up():
    resender = Resender(1.0, 3)
    resender.sent(8, 5, (b"frame",), 0.0)
    assert resender.due(0.9) == ([], [])
    times = []
    for tick in range(1, 100):
        again, lost = resender.due(tick / 2)
        times += [tick / 2] * len(again)
        if lost:
            break
    assert times == [1.0, 3.0, 6.0]
    assert (lost[0].to, lost[0].sent, tick / 2) == (8, 4, 10.0)
    assert resender.outstanding() == 0
