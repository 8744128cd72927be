"""What a stub finds out about its shared memory before it is ready."""

from pathlib import Path

from protocol import messages
from shm.store import Store
from stub.segments import Segments


def load(directory: str, probe: messages.Handle) -> messages.Load:
    return messages.Load(messages.LOAD, "serve", "", "", {}, probe, directory)


def test_a_nonce_that_was_read_back_is_the_proof_and_the_first_segment_has_the_status_word():
    server = Store("/dev/shm")
    try:
        block = server.allocate(5)
        block.view[:] = b"nonce"
        segments = Segments(load("/dev/shm", messages.Handle(*block[:3])))
        assert segments.status is not None
        assert segments.ready(True) == messages.Ready(messages.READY, b"nonce", segments.status.name, True)
        segments.close()
        assert not Path("/dev/shm", segments.status.name).exists()
    finally:
        server.close()


def test_where_the_server_s_memory_is_not_ours_there_is_no_segment_and_tensors_go_into_frames(tmp_path: Path):
    segments = Segments(load(str(tmp_path), messages.Handle("", 0, 0)))
    assert segments.ready() == messages.Ready(messages.READY, b"", "")
    assert segments.placer.place([("x", "UINT8", (1,), b"a")]).frames == [b"a"]
    assert list(tmp_path.iterdir()) == []


def test_the_segments_have_the_tag_that_the_stub_was_told(tmp_path):
    own = Store(str(tmp_path))
    block = own.allocate(5)
    segments = Segments(load(str(tmp_path), messages.Handle(*block[:3]))._replace(tag="0123abcd"))
    assert segments.status.name.split("-")[2].startswith("0123abcd")
    segments.close()
    own.close()
