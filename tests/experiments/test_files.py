"""What is said of paths that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.files import CONTINUES, write_state, write_text, writing

NOWHERE = Path("/proc/nowhere/file")


def test_only_what_belongs_to_a_run_can_be_continued() -> None:
    with pytest.raises(ExperimentError) as error:
        write_text(NOWHERE, "a table")
    reason = "No such file or directory"
    assert str(error.value) == (
        f"{NOWHERE} cannot be written ({reason}); fix that and repeat the command"
    )
    for write in (
        lambda: write_state(NOWHERE, {}),
        lambda: write_text(NOWHERE, "metrics", then=CONTINUES),
    ):
        with pytest.raises(ExperimentError, match="the run continues from its last checkpoint$"):
            write()


@pytest.mark.parametrize("path", ["picture.jpg", "picture.jpg/runs/synthetic"])
def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path, path: str) -> None:
    picture = tmp_path / "picture.jpg"
    picture.touch()
    with pytest.raises(ExperimentError) as error, writing(tmp_path / path):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert f"({picture} is a file, not a folder); choose another folder and" in str(error.value)
