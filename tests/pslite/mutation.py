"""Frames that are nearly right."""

import random

from hpcps.transport.pslite.encoding import encode
from hpcps.transport.pslite.meta import Command, Control, Meta, NodeInfo, NodeRole

WORKER = NodeInfo(NodeRole.WORKER, "127.0.0.1", 50123)
SERVER = NodeInfo(NodeRole.SERVER, "node-7.cluster", 40001, 8, True, 0)
METAS = [
    Meta(control=Control(Command.ADD_NODE, (WORKER,)), timestamp=0),
    Meta(control=Control(Command.ADD_NODE, (SERVER, WORKER, SERVER)), timestamp=3),
    Meta(control=Control(Command.BARRIER, group=7), request=True, app=0, customer=0, timestamp=1),
    Meta(control=Control(Command.HEARTBEAT, (SERVER,)), timestamp=9),
    Meta(control=Control(Command.ACK, signature=0xFFFF_0000_1234_5678)),
    Meta(head=0, request=True, push=True, app=0, customer=0, timestamp=5, data_types=(8, 11, 3), priority=-2),
    Meta(head=0, request=True, pull=True, app=0, customer=0, timestamp=6, data_types=(8, 11)),
    Meta(head=3, body=b"text", request=True, simple_app=True, app=0, customer=0, timestamp=7),
]
SAMPLES = [encode(meta) for meta in METAS]


def mutated(source: random.Random) -> bytes:
    """Return a sample frame with some of its bytes changed, missing, doubled, or from elsewhere."""
    frame = bytearray(source.choice(SAMPLES))
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(frame) + 1)
        match source.randrange(6):
            case 0 if frame:
                frame[at % len(frame)] ^= 1 << source.randrange(8)
            case 1 if frame:
                frame[at % len(frame)] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del frame[at : at + source.randint(1, 6)]
            case 3:
                frame[at:at] = source.randbytes(source.randint(1, 12))
            case 4:
                other = source.choice(SAMPLES)
                frame[at:] = other[source.randrange(len(other)) :]
            case 5:
                frame[at:at] = frame[max(at - 8, 0) : at]
    return bytes(frame)


def mutated_data(source: random.Random, valid: list[bytes]) -> list[bytes]:
    """Return data frames with some missing, added, cut, or changed."""
    frames = [bytes(frame) for frame in valid]
    for _ in range(source.randint(0, 2)):
        at = source.randrange(len(frames) + 1)
        match source.randrange(4):
            case 0:
                del frames[at : at + 1]
            case 1:
                frames.insert(at, source.randbytes(source.choice((0, 1, 4, 8, 24))))
            case 2 if frames:
                frames[at % len(frames)] = frames[at % len(frames)][: source.randrange(16)]
            case 3 if frames and frames[at % len(frames)]:
                frame = bytearray(frames[at % len(frames)])
                frame[source.randrange(len(frame))] ^= 1 << source.randrange(8)
                frames[at % len(frames)] = bytes(frame)
    return frames
