"""What the tests share: reproducible examples, poisoned memory."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported

collect_ignore = ["experiments/sweeps/toy_experiment.py", "experiments/sweeps/dying_experiment.py"]
"""Their import registers an experiment, also when doctest searches them for examples."""

pytest.register_assert_rewrite("loss_batches", "masked_models", "tiny_gans", "tiny_runs")

# Tests press Ctrl-C, which a job in the background ignores, with all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

settings.register_profile("atomsep", deadline=None, derandomize=True, database=None)
settings.load_profile("atomsep")


SLOW = {
    *("cli/test_cli.py", "cli/test_demo.py", "cli/test_start.py", "test_examples.py"),
    "cli/test_two_processes.py",
    *(f"core/kernels/test_{name}.py" for name in ("kernel_ops", "origin", "strength_kernels")),
    *("core/kernels/test_measure_kernels.py", "core/kernels/test_pairs_kernels.py"),
    *(f"experiments/test_{name}.py" for name in ("cache", "full_disk", "graphs", "kills")),
    *(f"experiments/test_{name}.py" for name in ("own_experiments", "runs", "trained", "training")),
    *("cli/test_explain.py", "experiments/test_atoms_file.py", "experiments/test_recording.py"),
    *("cli/test_faithful_command.py", "experiments/test_faithfulness.py"),
    *(
        f"experiments/gan/test_{name}.py"
        for name in ("evaluation", "faces", "faces_runs", "fidelity", "gan", "stacked")
    ),
    *(f"core/test_{name}.py" for name in ("averaging", "data_parallel", "distributed")),
    *(f"core/test_rank_{name}.py" for name in ("agreement", "draws", "order", "shares")),
    *("experiments/images/test_images.py", "experiments/text/test_text.py"),
    *("experiments/sweeps/test_search.py", "experiments/sweeps/test_sweep.py"),
    *("core/test_large_batches.py", "experiments/sweeps/test_ray.py"),
    *(f"integrations/test_{name}.py" for name in ("hugging_face", "lightning")),
    "integrations/test_sentence_transformers.py",
    *("hooks/test_attach_regimes.py", "hooks/test_compiled.py", "hooks/test_mask_calls.py"),
    *("hooks/test_layout_compiled.py", "hooks/test_layout_models.py"),
    "experiments/test_compiled_training.py",
    *("methods/test_method_registry.py", "cli/test_layers_command.py", "test_study_rules.py"),
    "test_zoo.py",
    *("report/test_figures.py", "report/test_report_browser.py"),
}
"""Files that train, compile, interpret kernels or start processes: not part of make test-fast."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and str(item.path.relative_to(here)) in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh memory holds NaN, so that an output left unwritten shows."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled


@pytest.fixture
def study_methods(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The study's methods and experiments, which other tests of this process do not see."""
    from atomsep.experiments import entry_points
    from atomsep.experiments.registry import EXPERIMENTS
    from atomsep.methods import METHODS

    before = [(registry, dict(registry)) for registry in (METHODS, EXPERIMENTS)]
    monkeypatch.setattr(entry_points, "IMPORTED", [])
    entry_points.import_extensions(["study.rules", "study.small"])
    yield
    for name in ("study.rules", "study.small"):
        sys.modules.pop(name)  # to be registered again by the next import
    for registry, content in before:
        registry.clear()
        registry.update(content)
