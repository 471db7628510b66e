"""The command line: what it prints, how it exits."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from atomsep.cli.arguments import chosen_methods, chosen_seeds
from atomsep.cli.main import explain, main
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.registry import EXPERIMENTS
from atomsep.experiments.runs import find_results
from atomsep.methods import METHODS


def call(*arguments: str) -> int:
    """The exit code of a call within this process."""
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    code = exit.value.code
    return code if isinstance(code, int) else int(code is not None)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def test_train_prints_the_strength_the_metric_and_the_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call("train", "synthetic", "--tiny", "--method", "atom", "--seed", "3") == 0
    out = capsys.readouterr().out
    assert "Training synthetic with atom, seed 3" in out
    assert "At the first step the method's gradient at its layer is" in out
    assert "in the charge" in out
    [result] = find_results(tmp_path / "runs")
    assert f"{result['metrics']['accuracy']:.4f}" in out
    assert "runs/synthetic-tiny/atom-" in out

    assert call("train", "synthetic", "--tiny", "--method", "atom", "--seed", "3") == 0
    assert "This run is finished. To train it again, remove runs/" in capsys.readouterr().out


def test_decoding_images_is_shown_and_done_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atomsep.cli.display.SPEAK_EVERY", 0)
    for number in range(10):
        file = tmp_path / "mine" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (25 * number, 0, 0)).save(file)
    settings = ["folder=mine", "epochs=1", "batch=4", "image=16", "stages=1", "stem=cifar"]
    changes = [part for each in settings for part in ("--set", each)]
    options = ["--device", "cpu", "--data-on", "device", "--method", "plain", *changes]
    for seed, shown in (("0", True), ("1", False)):
        assert call("train", "own-images", *options, "--seed", seed) == 0
        out = capsys.readouterr().err
        assert ("8 of 8 images are decoded" in out) == shown
        assert ("2 of 2 images are decoded" in out) == shown
    assert len(list(Path("data/cache").glob("images-*"))) == 2


@pytest.mark.parametrize(
    ("weight", "hint"),
    [
        ("1000", "large: the method outweighs the task"),
        ("0.00001", "small, and may have no"),
    ],
)
def test_an_odd_ratio_gets_a_hint(
    capsys: pytest.CaptureFixture[str], weight: str, hint: str
) -> None:
    assert call("train", "synthetic", "--tiny", "--set", f"weight={weight}") == 0
    assert hint in capsys.readouterr().out


def test_a_large_ratio_that_is_usual_is_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "synthetic", "--tiny") == 0
    out = capsys.readouterr().out
    assert "This is usual for this experiment at its own weight" in out
    assert "This is large" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train sythetic", "there is no experiment 'sythetic'; did you mean 'synthetic'?"),
        ("train synthetic -m atmo", "no method 'atmo' for synthetic; did you mean 'atom'?"),
        ("train synthetic --set epocs=1", "no setting 'epocs'; did you mean 'epochs'?"),
        ("train synthetic --tiny --set layer=embd", "did you mean 'embed'"),
        ("train synthetic --tiny --set lr=3", "no setting 'lr'; did you mean 'learning_rate'?"),
        (
            "train synthetic --tiny --set layer=head",
            "no token axis. Attach to a layer before pooling or flattening",
        ),
        (
            "train synthetic --tiny -m hinge-2 --set layer=head",
            "Choose another layer with --set layer=NAME",
        ),
        ("train synthetic --tiny --set method.tau=1", "has no option 'tau'"),
        ("sweep synthetic --methods plain,atm", "there is no method 'atm'; did you mean 'atom'?"),
        ("sweep synthetic --methods plain,foo", "there is no method 'foo'. Available: plain, "),
        (
            "sweep synthetic --seeds few",
            "seeds must be a number of seeds, or the seeds",
        ),
        ("sweep synthetic --search --seeds 101,", "seed 101 is in both --seeds and --search-seeds"),
        ("sweep synthetic --search-seeds 5", "write 5, for seed 5, or 100-104 for several"),
        ("table nowhere", "there is no folder nowhere; train something first"),
        ("table . --format html", "there is no format 'html'"),
        ("table .", "there is no finished run under ."),
        ("report nowhere", "there is no folder nowhere; train something first"),
        ("report .", "there is no finished run under ."),
        ("list synthetc", "did you mean 'synthetic'?"),
        ("train synthetic --set batch=9999999999999999999999", "batch must be at most 2147483647"),
        ("train synthetic --seed 99999999999999999999", "a seed must be between 0 and 92233720"),
        ("sweep synthetic --seeds 999999999999", "is more than 10000 seeds; choose fewer"),
        ("sweep synthetic --mps --device cpu", "--mps needs an NVIDIA GPU; leave it out, or"),
        ("sweep synthetic --seeds 5-99999999999999999999", "is more than 10000 seeds"),
        ("train own-images --set folder=json:decoder", "folder=json:decoder must be a function"),
        (
            "train own-images",
            "name the folder of the images with --set folder=FOLDER: FOLDER/train/",
        ),
        (
            "sweep own-images --set folder=nowhere",
            "there is no folder nowhere; name one with the la",
        ),
        ("train own-text --set file=x.csv", "there is no file x.csv; name a .csv or .tsv with a"),
    ],
)
def test_errors_are_sentences(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert call(*arguments.split()) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("atomsep: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_a_traceback_comes_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--debug", "train", "nothing") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train", "atomsep: Missing argument"),
        ("train synthetic --seed -1", "Invalid value for '--seed'"),
        ("train synthetic --devices 999999999", "Invalid value for '--devices'"),
        ("sweep synthetic --jobs 0", "Invalid value for '--jobs'"),
        ("sweep synthetic --jobs many", "'many' is neither auto nor a number from 1 to 1024"),
        ("train synthetic --epochs 3", "epochs is a setting of synthetic: write --set epochs=3"),
        ("train synthetic --lr=0.1", "--lr; learning_rate is a setting of synthetic: write --set"),
        ("sweep pets --batch", "batch is a setting of pets: write --set batch=VALUE\nSee: "),
        ("train synthetic --zzz 3", "No such option: --zzz\nSee: atomsep train --help"),
        ("tarin synthetic", "No such command 'tarin'. Did you mean 'train'?\nSee: atomsep --help"),
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert call(*arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert "Start with atomsep list" in capsys.readouterr().out


def test_memory_that_runs_out_is_said(tmp_path: Path) -> None:
    """A real limit: the samples of the largest number that a setting takes need 43 GB."""
    limit = 16 << 30
    command = [sys.executable, "-m", "atomsep", "train", "synthetic", "--tiny"]
    done = subprocess.run(
        [*command, "--set", "train_samples=2147483647"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("atomsep: memory ran out (")
    assert done.stderr.endswith("; try a smaller batch, fewer samples or a smaller model\n")


def test_memory_of_a_gpu_that_runs_out_is_said_with_where_else_the_data_can_be() -> None:
    sentence, code = explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert code == 1
    assert sentence.endswith(
        "; in a training, --data-on host leaves the model more of the GPU's memory"
    )


def test_a_bug_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "broken", replace(EXPERIMENTS["synthetic"], settings=None))
    assert call("list", "broken") == 1
    assert "Traceback" in capsys.readouterr().err


def test_list_shows_every_experiment_method_and_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*EXPERIMENTS, *METHODS))
    for experiment in EXPERIMENTS.values():
        assert call("list", experiment.name) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in ("learning_rate", "evaluate_every", *experiment.methods))


@pytest.mark.parametrize("command", ["train", "sweep", "table", "report", "list"])
def test_help_teaches(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert call(command, "--help") == 0
    out = capsys.readouterr().out
    assert command == "list" or f"atomsep {command} " in out
    assert "--help" in out


@pytest.mark.parametrize("command", ["", "train", "sweep", "report", "layers", "list"])
def test_help_shows_flags_as_they_are_written(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert call(*command.split(), "--help") == 0
    out = capsys.readouterr().out
    assert "bool" not in out.lower()
    if command == "train":
        assert "--tiny " in out
        assert "KEY=VALUE" in out
    assert "}..." not in out.replace("{RUN}...", "")
    if command == "report":
        assert "report.html in the current folder" in " ".join(out.split())


def test_a_search_without_its_data_fails_at_once(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call("train", "cola", "--device", "cpu", "--method", "plain") == 1
    sentence = capfd.readouterr().err
    assert sentence.startswith("atomsep: there is no folder data/cola")
    search = ("sweep", "cola", "--search", "--device", "cpu", "--methods", "atom", "--seeds", "1")
    assert call(*search) == 1
    assert sentence in capfd.readouterr().err
    assert len(list(tmp_path.rglob("log.txt"))) == 1, "no other trial was tried"


def test_sweep_and_table_in_real_processes(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sweep = ("sweep", "synthetic", "--tiny", "--methods", "plain,atom", "--seeds", "3", "-j", "2")
    assert call(*sweep) == 0
    out = capfd.readouterr().out
    assert out.startswith("### "), "no bar in the Markdown for a file or another program"
    assert "Finished: 6 runs" in out
    assert "Finished: 6 runs in runs; tables: atomsep table runs" in out
    assert len(find_results(tmp_path / "runs")) == 6
    tables = {}
    for format in ("markdown", "latex", "csv"):
        assert call("table", "runs", "--format", format) == 0
        tables[format] = capfd.readouterr().out
    assert call("table", "runs", "--out", "tables") == 0
    assert "tables/mixtures-tiny.md, .tex, .csv" in capfd.readouterr().out
    for format, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        written = (tmp_path / "tables" / f"mixtures-tiny.{ending}").read_text()
        assert written.strip() in tables[format]
    assert "| Cross-Entropy" in tables["markdown"]
    assert r"\begin{tabular}" in tables["latex"]
    assert "experiment" in tables["csv"].splitlines()[0]


def test_search_goes_by_held_out_samples(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    search = ("--search", "--search-seeds", "100,", "--set", "learning_rate=0.3")
    arguments = ("sweep", "synthetic", "--tiny", "--methods", "atom", "--seeds", "1")
    assert call(*arguments, *search) == 0
    found = json.loads(next(tmp_path.glob("runs/synthetic-tiny/search-*.json")).read_text())
    validated = find_results(tmp_path / "runs", validation=True)
    assert {result["seed"] for result in validated} == {100}
    reported = {result["method"]: result for result in find_results(tmp_path / "runs")}
    assert reported["atom"]["settings"]["weight"] == found["weights"]["atom"]
    best = max(
        (result for result in validated if result["method"] == "atom"),
        key=lambda result: result["metrics"]["accuracy"],
    )
    assert found["weights"]["atom"] == best["settings"]["weight"]
    out = capfd.readouterr().out
    assert "Search" in out
    assert "Finished: 1 run in runs;" in out


def test_interrupted_it_exits_with_130_and_continues(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atomsep", "train", "synthetic", "--tiny"]
    command += ["--set", "epochs=3000", "--checkpoint-seconds", "1000"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "At the first step" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
        assert process.wait() == 130
    assert "Stopped. The same command continues from the checkpoint in" in rest
    [checkpoint] = (tmp_path / "runs").rglob("checkpoint.pt")
    assert checkpoint.stat().st_size > 0


def test_methods_and_seeds_are_read_as_said() -> None:
    assert chosen_methods("all", ("plain", "atom")) == ["plain", "atom"]
    assert chosen_seeds("2") == [0, 1]
    with pytest.raises(ExperimentError, match="not '0'"):
        chosen_seeds("0")
