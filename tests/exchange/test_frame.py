"""A frame comes back as it was packed, and any damage to it is a MessageError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_dgc.errors import MessageError
from elastic_dgc.exchange import frame
from elastic_dgc.exchange.ask import Key, Kind

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
keys = st.builds(Key, st.sampled_from(Kind), int64, int32, int32)
RUN = bytes(range(16))


def pack(key: Key, payload: bytes, view: int = 3, sender: int = 1) -> bytes:
    return frame.pack_header(RUN, view, key, sender, len(payload), frame.checksum(payload)) + payload


def parse(data: bytes) -> tuple[frame.Header, bytes]:
    header = frame.parse_header(data[: frame.HEADER_BYTES])
    payload = data[frame.HEADER_BYTES :]
    frame.check_payload(header, len(payload), frame.checksum(payload))
    return header, payload


@given(keys, st.binary(max_size=64), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_frame_comes_back(key: Key, payload: bytes, view: int, sender: int) -> None:
    header, back = parse(pack(key, payload, view, sender))
    assert (header.run, header.view, header.key, header.sender, back) == (RUN, view, key, sender, payload)


@given(keys, st.binary(max_size=64), st.data())
def test_a_flipped_bit_is_a_message_error(key: Key, payload: bytes, data: st.DataObject) -> None:
    bad = bytearray(pack(key, payload))
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(MessageError):
        parse(bytes(bad))


@given(keys, st.binary(max_size=64), st.data())
def test_a_cut_frame_is_a_message_error(key: Key, payload: bytes, data: st.DataObject) -> None:
    whole = pack(key, payload)
    with pytest.raises(MessageError, match="cut off"):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(min_size=frame.HEADER_BYTES, max_size=frame.HEADER_BYTES))
def test_junk_is_not_one_of_our_peers(junk: bytes) -> None:
    with pytest.raises(MessageError, match="not one of our peers"):
        frame.parse_header(b"GET " + junk[4:])


def test_the_checksum_goes_on_over_chunks() -> None:
    assert frame.checksum(b"two", frame.checksum(b"one")) == frame.checksum(b"onetwo")


@pytest.mark.parametrize(
    ("key", "view", "length"),
    [
        (Key(Kind.ROW, 0, 0), 0, frame.MAX_PAYLOAD_BYTES + 1),
        (Key(Kind.ROW, 2**63, 0), 0, 0),
        (Key(Kind.ROW, 0, 2**31), 0, 0),
        (Key(Kind.ROW, 0, 0), -1, 0),
    ],
)
def test_what_does_not_fit_is_refused_when_packing(key: Key, view: int, length: int) -> None:
    with pytest.raises(MessageError):
        frame.pack_header(RUN, view, key, 0, length, 0)
