"""Cached arrays: whole or absent, never stale, made once by whichever process comes first."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import start

from atomsep.experiments.cache import NoRoomError, cached_arrays, growing
from atomsep.experiments.errors import ExperimentError

SOURCE = "source.bin"


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "atomsep"


class Maker:
    """Makes one array from the source, and counts how often; waits for a sign if there is one."""

    def __init__(self, folder: Path, wait: bool = False) -> None:
        self.folder, self.wait = folder, wait

    def __call__(self, part: Path) -> None:
        with open(self.folder / "calls", "a") as file:
            file.write("x")
        values = np.frombuffer((self.folder / SOURCE).read_bytes(), "uint8")
        np.save(part / "values.npy", values)
        if self.wait:
            (self.folder / "in the middle").touch()
            wait_for(self.folder / "go on")
        np.save(part / "twice.npy", 2 * values.astype("int64"))

    def calls(self) -> int:
        return len((self.folder / "calls").read_text())


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.005)


def get(folder: Path, make: Maker, size: int = 32) -> dict[str, torch.Tensor]:
    return cached_arrays(folder / "cache", "set", {"size": size}, [folder / SOURCE], make)


def get_in_a_process(folder: Path, wait: bool, name: str) -> None:
    found = get(folder, Maker(folder, wait))
    torch.save(found["twice"].clone(), folder / name)


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    (tmp_path / SOURCE).write_bytes(bytes(range(10)))
    return Maker(tmp_path)


def test_arrays_are_made_once(tmp_path: Path, make: Maker) -> None:
    first, second = get(tmp_path, make), get(tmp_path, make)
    assert make.calls() == 1
    assert set(first) == {"values", "twice"}
    assert first["values"].tolist() == list(range(10))
    assert second["twice"].tolist() == list(range(0, 20, 2))


def test_arrays_may_be_larger_than_the_memory(tmp_path: Path, make: Maker) -> None:
    """A writable mapping of that size would be refused."""
    get(tmp_path, make)
    [place] = (path.parent for path in tmp_path.rglob("about.json"))
    about = {"descr": "|u1", "fortran_order": False, "shape": (2**42,)}
    with open(place / "values.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, about)
        size = file.tell() + 2**42
        try:
            file.truncate(size)  # takes no space on disk
        except OSError:
            pytest.skip("this file system has no files of 4 TB")
    about = json.loads((place / "about.json").read_text())
    about["sizes"]["values.npy"] = size
    (place / "about.json").write_text(json.dumps(about))
    values = get(tmp_path, make)["values"]
    assert values.shape == (2**42,)
    assert int(values[-1]) == 0


@pytest.mark.parametrize("change", ["time", "size", "key", "name", "missing"])
def test_other_sources_or_keys_give_other_arrays(tmp_path: Path, make: Maker, change: str) -> None:
    get(tmp_path, make)
    source, size = tmp_path / SOURCE, 32
    if change == "time":
        then = source.stat().st_mtime_ns
        source.write_bytes(bytes(range(10, 20)))
        os.utime(source, ns=(then, then + 1))
    elif change == "size":
        then = source.stat().st_mtime_ns
        source.write_bytes(bytes(range(11)))
        os.utime(source, ns=(then, then))
    elif change == "key":
        size = 64
    elif change == "missing":
        kept = source.rename(tmp_path / "kept")
        cached_arrays(tmp_path / "cache", "set", {"size": 32}, [source], lambda part: None)
        kept.rename(source)
        assert len(get(tmp_path, make)["values"]) == 10
        return
    else:
        other = source.rename(tmp_path / "other.bin")
        source.symlink_to(other)
        found = cached_arrays(tmp_path / "cache", "set", {"size": 32}, [other], make)
        assert found["values"].tolist() == list(range(10))
        assert make.calls() == 2
        return
    found = get(tmp_path, make, size)
    assert make.calls() == 2
    assert bytes(found["values"].tolist()) == source.read_bytes()


def test_a_killed_process_leaves_nothing_that_is_read(tmp_path: Path, make: Maker) -> None:
    process = start(get_in_a_process, tmp_path, True, "killed")
    wait_for(tmp_path / "in the middle")
    process.kill()
    process.join()
    (left,) = (tmp_path / "cache").glob(".*.part")
    assert [file.name for file in left.iterdir()] == ["values.npy"]
    assert get(tmp_path, make)["twice"].tolist() == list(range(0, 20, 2))
    assert not left.exists()
    assert make.calls() == 2


def test_a_second_process_waits_for_the_first(tmp_path: Path, make: Maker) -> None:
    first = start(get_in_a_process, tmp_path, True, "first")
    wait_for(tmp_path / "in the middle")
    second = start(get_in_a_process, tmp_path, False, "second")
    second.join(0.3)
    assert second.is_alive()
    (tmp_path / "go on").touch()
    first.join()
    second.join()
    assert torch.equal(torch.load(tmp_path / "first"), torch.load(tmp_path / "second"))
    assert make.calls() == 1


def test_an_error_while_making_leaves_nothing(tmp_path: Path, make: Maker) -> None:
    def fail(part: Path) -> None:
        np.save(part / "values.npy", np.zeros(3))
        raise ExperimentError("an image is damaged")

    with pytest.raises(ExperimentError, match="an image is damaged"):
        cached_arrays(tmp_path / "cache", "set", {"size": 32}, [tmp_path / SOURCE], fail)
    assert not [each for each in (tmp_path / "cache").iterdir() if each.is_dir()]
    assert len(get(tmp_path, make)["values"]) == 10


def test_a_folder_that_cannot_be_written_gives_the_user_s_cache(
    tmp_path: Path, make: Maker, user_cache: Path
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be, which refuses even root")
    assert len(get(tmp_path, make)["values"]) == 10
    assert len(get(tmp_path, make)["values"]) == 10
    assert make.calls() == 1
    assert len(list(user_cache.glob("set-*"))) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_gives_the_user_s_cache(
    tmp_path: Path, make: Maker, user_cache: Path
) -> None:
    (tmp_path / "cache").mkdir(mode=0o555)
    assert len(get(tmp_path, make)["values"]) == 10
    assert len(list(user_cache.glob("set-*"))) == 1


def test_no_folder_at_all_is_refused(tmp_path: Path, make: Maker, user_cache: Path) -> None:
    (tmp_path / "cache").touch()
    user_cache.parent.touch()
    with pytest.raises(NoRoomError, match="can be written"):
        get(tmp_path, make)


def test_a_set_larger_than_the_disk_is_refused_before_it_is_made(
    tmp_path: Path, make: Maker
) -> None:
    with pytest.raises(NoRoomError, match="of free space for decoded data"):
        cached_arrays(tmp_path / "cache", "set", {}, [], make, expected=10**18)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(NoRoomError, match="of free space for decoded data"):
        cached_arrays(tmp_path / "cache", "set", {}, [], make, expected=free // 2, share=0.1)
    assert not (tmp_path / "calls").exists()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    def fill_the_disk(part: Path) -> None:
        with open("/dev/full", "w") as full:
            full.write("x")

    with pytest.raises(NoRoomError, match="No space left") as caught:
        cached_arrays(tmp_path / "cache", "set", {}, [], fill_the_disk)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


@pytest.mark.parametrize("damage", ["cut", "removed", "rewritten", "about"])
def test_a_damaged_array_is_refused(tmp_path: Path, make: Maker, damage: str) -> None:
    get(tmp_path, make)
    (place,) = (tmp_path / "cache").glob("set-*")
    file = place / "values.npy"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "removed":
        file.unlink()
    elif damage == "rewritten":
        file.write_bytes(b"x" * file.stat().st_size)
    else:
        (place / "about.json").write_text("{")
    with pytest.raises(ExperimentError, match=f"{place.name} is damaged .*; delete that folder"):
        get(tmp_path, make)


@pytest.mark.parametrize(("shape", "kind"), [((), "uint8"), ((3, 4), "float32"), ((), "int64")])
def test_an_array_written_in_parts_is_numpy_s(
    tmp_path: Path, shape: tuple[int, ...], kind: str
) -> None:
    parts = [np.arange(n * int(np.prod(shape))).reshape(n, *shape).astype(kind) for n in (2, 0, 5)]
    with growing(tmp_path / "grown.npy", shape, kind) as append:
        for part in parts:
            append(part)
    found = np.load(tmp_path / "grown.npy")
    assert found.dtype == kind
    np.testing.assert_array_equal(found, np.concatenate(parts))
    with growing(tmp_path / "empty.npy", shape, kind):
        pass
    assert np.load(tmp_path / "empty.npy", mmap_mode="c").shape == (0, *shape)
