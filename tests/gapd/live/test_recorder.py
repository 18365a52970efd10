"""Recordings: every float comes back as it was, and no crash, cut or flipped bit goes unnoticed."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mcap.reader import make_reader

from gapd.errors import InputError
from gapd.live import recorder
from gapd.live.recorder import Recorder
from gapd.live.recording import Recording, read_frames, recover
from gapd.live.recording_format import RecordingError, frame_from_json, frame_json
from gapd.messages.frames import ENCODER, Frame

# Writes frames for ever, and says on standard output how many are written.
ENDLESS = """
import sys, time
from pathlib import Path
from gapd.messages.frames import Frame
from gapd.live.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), "arm")
for i in range(10**9):
    recorder.frame(Frame(i * 1e-3, ("j",), (i / 7,), command=(0.5,), sequence=i))
    time.sleep(1e-3)
    if i % 100 == 0:
        print(i, flush=True)
"""


def frames(count: int, seed: int = 1) -> list[Frame]:
    """Frames of random bits: subnormal, huge, not finite."""
    rng = np.random.default_rng(seed)

    def values(n: int) -> tuple[float, ...]:
        return tuple(rng.integers(2**64, size=n, dtype=np.uint64).view(np.float64).tolist())

    names = ("a", "b", "nan", "ü\n\x00")
    return [
        Frame(
            i / 500, names, values(4), values(4), (math.nan, math.inf, -math.inf, -0.0), values(3),
            dict(zip(("x", "inf"), values(2), strict=True)), {"v": 12.5}, sequence=i if i % 2 else None,
            episode_return=math.nan if i % 3 == 0 else None,
        )
        for i in range(count)
    ]  # fmt: skip


def bits(frame: Frame) -> bytes:
    """The frame with one kind of NaN."""
    return ENCODER.encode(msgspec.convert(_one_nan(msgspec.to_builtins(frame)), Frame))


def _one_nan(value: object) -> object:
    if isinstance(value, dict):
        return {k: _one_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_one_nan(v) for v in value]
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def record(folder: Path, written: list[Frame], **options: Any) -> list[Path]:
    made = Recorder(folder, "arm", **options)
    for frame in written:
        made.frame(frame)
    made.close()
    return made.finished


def test_every_float_comes_back_as_it_was(tmp_path: Path) -> None:
    written = frames(500)
    (path,) = record(tmp_path, written)
    assert [bits(f) for f in read_frames(path)] == [bits(f) for f in written]
    assert list(tmp_path.iterdir()) == [path]


def test_a_hundred_thousand_random_floats() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(2**64, size=100_000, dtype=np.uint64).view(np.float64)
    values = values[np.isfinite(values)]
    back = frame_from_json(frame_json(Frame(0.0, position=tuple(values.tolist()))))
    assert np.array(back.position).tobytes() == values.tobytes()


def test_frames_are_json_that_python_reads_too() -> None:
    frame = Frame(0.1, ("null",), (1 / 3,), sensors={"null": math.nan}, sequence=3)
    loaded = json.loads(frame_json(frame))
    assert (loaded["timestamp"], loaded["position"], loaded["sensors"]) == (0.1, [1 / 3], {"null": "nan"})
    assert bits(frame_from_json(frame_json(frame))) == bits(frame)


def test_times_schemas_and_events(tmp_path: Path) -> None:
    now = 50.0
    made = Recorder(tmp_path, "arm/7 ü", clock=lambda: now, wall_ns=lambda: 1_700_000_000_000_000_000)
    made.frame(Frame(12.25), arrival_s=49.5)
    now = 53.0
    made.event(12.5, "correction", {"floors": np.float64(1.5), "z": np.arange(2.0), "gap": math.nan, "names": ("a",)})
    for timestamp in (math.nan, -5.0, 1e300):
        made.frame(Frame(timestamp))
    made.close()
    (path,) = made.finished
    assert path.name == "arm_7_ü-20231114T221319Z-0000.mcap"
    with path.open("rb") as stream:
        read = list(make_reader(stream, validate_crcs=True).iter_messages(log_time_order=False))
    assert [m.log_time / 1e9 for _, _, m in read] == [1_699_999_999.5, *[1_700_000_003.0] * 4]
    assert [m.publish_time for _, _, m in read] == [12_250_000_000, 12_500_000_000, 0, 0, 9_200_000_000_000_000_000]
    for schema, channel, message in read:
        assert schema is not None
        assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
        assert json.loads(schema.data)["type"] == "object"
        assert set(json.loads(message.data)) <= set(json.loads(schema.data)["properties"])
    fields = json.loads(read[1][2].data)
    assert fields == {
        "timestamp": 12.5,
        "event": "correction",
        "fields": {"floors": 1.5, "z": [0.0, 1.0], "gap": None, "names": ["a"]},
    }
    arrivals = [arrival for arrival, _ in Recording(path).arrivals()]
    assert arrivals[1] - arrivals[0] == pytest.approx(3.5)


def test_the_wall_clock_may_jump_and_arrivals_do_not(tmp_path: Path) -> None:
    now, wall = 1.0, 10**18
    made = Recorder(tmp_path, "arm", max_bytes=1, clock=lambda: now, wall_ns=lambda: wall)
    for i in range(3):
        now, wall = 1.0 + 2 * i, wall - 10**15
        made.frame(Frame(float(i)))
    made.close()
    arrivals = [a for path in made.finished for a, _ in Recording(path).arrivals()]
    assert np.diff(arrivals).tolist() == pytest.approx([2.0, 2.0])


def test_rotation_by_size_keeps_all_frames_or_the_newest_files(tmp_path: Path) -> None:
    written = frames(1500)
    paths = record(tmp_path / "all", written, max_bytes=150_000)
    assert len(paths) > 2
    assert max(path.stat().st_size for path in paths) < 250_000
    assert [bits(f) for path in paths for f in read_frames(path)] == [bits(f) for f in written]
    paths = record(tmp_path / "two", written, max_bytes=150_000, keep=2)
    assert sorted((tmp_path / "two").iterdir()) == sorted(paths)[-2:]


def test_two_recorders_never_share_a_file(tmp_path: Path) -> None:
    made = [Recorder(tmp_path, "arm", wall_ns=lambda: 10**18, clock=lambda: 0.0) for _ in range(3)]
    for one in made:
        one.frame(Frame(0.0))
    for one in made:
        one.close()
    assert len(list(tmp_path.glob("*.mcap"))) == 3


def test_an_unfinished_file_is_read_and_then_recovered(tmp_path: Path) -> None:
    now = 0.0
    made = Recorder(tmp_path, "arm", clock=lambda: now)
    written = frames(300)
    for frame in written:
        now += 1 / 100  # a flush each second
        made.frame(frame)
    made.event(3.0, "drift", {})
    (part,) = tmp_path.glob("*.part")
    recording = Recording(part)
    read = [bits(f) for _, f in recording.arrivals()]
    assert recording.cut_off
    assert len(read) >= 200
    assert read == [bits(f) for f in written[: len(read)]]
    assert recover(tmp_path) == [], "it is being written"
    assert made._file is not None
    made._file.abandon()  # as the end of the process does
    (found,) = recover(tmp_path)
    assert found.path is not None
    assert (found.messages, found.damage) == (len(read), "")
    assert [bits(f) for f in read_frames(found.path)] == read
    assert list(tmp_path.iterdir()) == [found.path]
    with found.path.open("rb") as stream:
        assert len(list(make_reader(stream).iter_messages())) == len(read)


def test_killed_at_any_moment_at_most_a_second_is_lost(tmp_path: Path) -> None:
    for number in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, tmp_path], stdout=subprocess.PIPE, text=True, bufsize=1
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout as said:
            first = time.monotonic()
            counts = []
            for line in said:
                counts.append(int(line))
                if time.monotonic() > first + 1.6 + 0.3 * number:
                    break
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        (found,) = recover(tmp_path)
        assert found.path is not None
        read = [f.sequence for f in read_frames(found.path)]
        assert read == list(range(len(read)))
        assert len(read) > counts[-1] / 4, "the last second, not more"
        found.path.unlink()
        assert list(tmp_path.iterdir()) == []


def test_a_part_with_nothing_in_it_goes(tmp_path: Path) -> None:
    for name, content in (("a", b""), ("b", b"\x89MCAP0\r\n"), ("c", b"\x89MC")):
        (tmp_path / f"{name}.mcap.part").write_bytes(content)
    assert [(f.path, f.messages, f.damage) for f in recover(tmp_path)] == [(None, 0, "")] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_is_kept_beside_what_could_be_saved(tmp_path: Path) -> None:
    (path,) = record(tmp_path, frames(1500))
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x10
    part = path.rename(path.with_name(path.name + ".part"))
    part.write_bytes(data)
    (found,) = recover(tmp_path)
    assert "is damaged" in found.damage
    assert found.path is not None
    assert 0 < len(list(read_frames(found.path))) < 1500
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + ".part.damaged"]


def test_cut_anywhere_the_frames_before_are_read(tmp_path: Path) -> None:
    written = [bits(f) for f in frames(400)]
    (path,) = record(tmp_path, frames(400))
    data = path.read_bytes()
    counts = []
    for end in range(0, len(data), len(data) // 60):
        path.write_bytes(data[:end])
        try:
            read = [bits(f) for f in read_frames(path)]
        except InputError as error:
            assert "holds no JSON messages" in str(error)  # noqa: PT017
            read = []
        assert read == written[: len(read)]
        counts.append(len(read))
    assert counts == sorted(counts)


def test_flipped_bits_give_an_error_or_nothing_else(tmp_path: Path) -> None:
    """Wherever a bit flips, no frame comes out that was not written."""
    written = {bits(f) for f in frames(150)}
    (path,) = record(tmp_path, frames(150))
    data = path.read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            assert {bits(f) for f in read_frames(path)} <= written
        except InputError as error:
            refused += 1
            assert str(path) in str(error)  # noqa: PT017
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"timestamp,position\n1,2\n", "is damaged, or no MCAP file"),
        (b"", "holds no JSON messages"),
        (b"\x89MCAP0\r\n" + b"\x01" + struct.pack("<Q", 2**62), "exceeds limit"),
        (b"\x89MCAP0\r\n" + b"\x05" + struct.pack("<QHIQQ", 22, 9, 1, 2, 3), "a message of no channel"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(content)
    with pytest.raises(InputError, match=line) as caught:
        list(read_frames(path))
    assert "\n" not in str(caught.value)


def test_no_file_and_no_frame(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\); check path"):
        list(read_frames(tmp_path / "none.mcap"))
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory"):
        list(read_frames(tmp_path))
    made = Recorder(tmp_path, "arm")
    made._write(recorder.FRAMES, 0.0, b'{"timestamp": 1.0, "posision": []}', None)
    made.close()
    with pytest.raises(InputError, match=r"message 1 is no frame .*posision"):
        list(read_frames(made.finished[0]))


def test_a_full_disk_is_one_error_and_a_new_file_later(tmp_path: Path) -> None:
    now = 0.0
    made = Recorder(tmp_path, "arm", clock=lambda: now)
    made.frame(Frame(0.0))
    file = made._file
    assert file is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file.add = full  # type: ignore[assignment,method-assign]
    with pytest.raises(RecordingError, match=r"No space left on device\); free space"):
        made.frame(Frame(0.1))
    for _ in range(10):
        made.frame(Frame(0.2))
    assert made.dropped == 11
    now = 31.0
    made.frame(Frame(31.0))
    made.close()
    assert [f.timestamp for f in read_frames(made.finished[0])] == [31.0]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="correct the folder"):
        Recorder(tmp_path / "file" / "deep", "arm")
