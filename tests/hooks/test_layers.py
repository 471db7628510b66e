"""The layer finder: what it finds is what `attach` takes, and the model is left as it was."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torchvision
from by_hand import bert, bert_batch
from torch import Tensor, nn

import atomsep

IMAGES = torch.randn(5, 3, 64, 64)


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=7)


def dcgan() -> nn.Sequential:
    def up(narrow: int, wide: int, stride: int, padding: int) -> list[nn.Module]:
        convolution = nn.ConvTranspose2d(narrow, wide, 4, stride, padding, bias=False)
        return [convolution, nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]

    last = nn.ConvTranspose2d(8, 3, 4, 2, 1)
    return nn.Sequential(*up(10, 16, 1, 0), *up(16, 8, 2, 1), last, nn.Tanh())


def test_a_resnet_starts_in_its_first_block_before_the_activation(resnet: nn.Module) -> None:
    found = atomsep.layers(resnet, IMAGES)
    assert found.recommended == "layer1.0.bn2"
    assert "first block" in found.reason
    layer = found["layer1.0.bn2"]
    assert (layer.layout, layer.tokens, layer.features) == ("channels_first", 256, 64)
    assert (layer.signed, layer.skipped, layer.kind) == (True, 0, "BatchNorm2d")
    assert not found["relu"].signed
    assert "fc" not in [layer.name for layer in found]


def test_a_vision_transformer_starts_with_its_first_block_without_the_class_token() -> None:
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=7)
    found = atomsep.layers(model, torch.randn(5, 3, 32, 32))
    assert found.recommended == "encoder.layers.encoder_layer_0"
    layer = found[found.recommended]
    assert (layer.layout, layer.tokens, layer.skipped) == ("channels_last", 16, 1)
    assert found["conv_proj"].skipped == 0


def test_a_text_model_takes_a_mapping() -> None:
    found = atomsep.layers(bert(), bert_batch())
    assert found.recommended == "bert.encoder.layer.0"
    assert found[found.recommended].shape == (4, 7, 16)


def test_positional_arguments_are_a_tuple() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = atomsep.layers(model, (torch.randn(5, 7, 16), torch.zeros(7, 7)))
    assert found.recommended == "layers.0"


def test_a_generator_starts_with_its_last_hidden_layer() -> None:
    found = atomsep.layers(dcgan(), torch.randn(5, 10, 1, 1))
    assert found.recommended == "4"  # the batch norm before the last ReLU
    assert "generator" in found.reason


def test_a_model_from_images_to_images_is_no_generator() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3))
    assert atomsep.layers(model, torch.randn(5, 3, 9, 9)).recommended == "1"


@pytest.mark.filterwarnings("ignore::atomsep.AtomWarning")  # rectified layers are among them
@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_every_layer_found_can_be_attached_to(name: str, resnet: nn.Module) -> None:
    model, batch = (resnet, (IMAGES,)) if name == "resnet" else (bert(), bert_batch())
    model.train()
    found = atomsep.layers(model, batch)
    step = max(1, len(found) // 8)
    for layer in found.found[::step]:
        with atomsep.attach(model, layer.name) as attachment:
            model(*batch) if isinstance(batch, tuple) else model(**batch)
            assert attachment.loss().isfinite()
            assert attachment.importance[0].numel() == layer.tokens


def test_refused_layers_are_those_that_attach_refuses() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 2, x.shape[-1])  # samples become windows

    model = nn.Sequential(nn.Linear(3, 8), Cut(), nn.Linear(8, 8))
    batch = torch.randn(5, 6, 3)
    found = atomsep.layers(model, batch)
    assert [layer.name for layer in found] == ["0"]
    assert set(found.refused) == {"1", "2"}
    with atomsep.attach(model, "2"), pytest.raises(ValueError, match="windows") as refusal:
        model(batch)
    assert found.refused["2"] == str(refusal.value)
    with pytest.raises(KeyError, match="not certain"):
        found["2"]


def test_the_model_stays_as_it_was(resnet: nn.Module) -> None:
    resnet.train()
    resnet.layer1.eval()  # a mode of its own
    modes = [module.training for module in resnet.modules()]
    state = {name: value.clone() for name, value in resnet.state_dict().items()}
    generators = torch.get_rng_state(), random.getstate()
    atomsep.layers(resnet, IMAGES)
    assert [module.training for module in resnet.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in resnet.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert all(p.grad is None for p in resnet.parameters())
    assert_no_hooks(resnet)


class Counting(nn.Module):
    """Draws noise and counts its calls, in every mode; may fail."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.fails = fails
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.calls, Tensor)
        self.calls += 1
        hidden: Tensor = self.inner(x) + torch.randn(4)
        if self.fails:
            raise KeyError("of the model")
        return hidden


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind_even_if_the_model_fails(fails: bool) -> None:
    model = Counting(fails)
    before = torch.get_rng_state()
    if fails:
        with pytest.raises(KeyError, match="of the model"):
            atomsep.layers(model, torch.randn(5, 7, 3, generator=torch.Generator()))
    else:
        atomsep.layers(model, torch.randn(5, 7, 3, generator=torch.Generator()))
    assert model.training
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert_no_hooks(model)


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no layer of this Sequential has tokens"):
        atomsep.layers(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(5, 3))
    for model in (nn.Sequential(nn.Linear(3, 4)), nn.Linear(3, 4)):
        with pytest.raises(ValueError, match=r"one vector per sample, such as \(5, 4\), without"):
            atomsep.layers(model, torch.randn(5, 3))


def test_a_layer_with_one_feature_is_refused_as_attach_does() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 1, 3), nn.Sigmoid())
    images = torch.randn(5, 3, 9, 9)
    found = atomsep.layers(model, images)
    assert [layer.name for layer in found] == ["0"]
    assert list(found.refused) == ["1", "2"]
    assert "(5, 1, 5, 5): its tokens have only one feature" in found.refused["1"]
    atomsep.attach(model, "1")
    with pytest.raises(ValueError, match="only one feature"):
        model(images)
    with pytest.raises(ValueError, match="can be attached to without further arguments; layer '0'"):
        atomsep.layers(nn.Sequential(nn.Conv2d(3, 1, 3)), images)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_lazy_modules_are_initialised() -> None:
    lazy = nn.Sequential(
        *(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), Pooled(), nn.LazyLinear(2))
    )
    before = torch.get_rng_state()
    found = atomsep.layers(lazy, torch.randn(5, 3, 9, 9, generator=torch.Generator()))
    assert [layer.name for layer in found] == ["0", "1", "2"]
    assert found.recommended == "1"
    assert torch.equal(torch.get_rng_state(), before)
    assert lazy.training
    statistics = lazy[1].running_mean
    assert isinstance(statistics, Tensor)
    assert (statistics == 0).all(), "batch norms do not see the example"


def test_the_report_starts_with_the_recommendation_and_names_refused_layers() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 2, x.shape[-1])  # samples become windows

    found = atomsep.layers(nn.Sequential(nn.Linear(3, 8), Cut()), torch.randn(5, 6, 3))
    first, columns, row, last = str(found).splitlines()
    assert first.startswith("recommended: 0 (")
    assert columns.startswith("layer ")
    assert row.startswith("0 ")
    assert last == "layers that need arguments to attach: 1 (1); .refused says which"
    assert "layers that need" not in str(replace(found, refused={}))
    many = replace(found, refused=dict.fromkeys("abcdefg", "why"))
    assert str(many).endswith("7 (a, b, c, d, e, ...); .refused says which")


def test_a_model_with_rectified_layers_alone_has_no_recommendation() -> None:
    class Rectified(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    found = atomsep.layers(nn.Sequential(Rectified(3, 8)), torch.randn(5, 7, 3))
    assert found.recommended is None
    assert "rectified" in found.reason


def assert_no_hooks(model: nn.Module) -> None:
    hooks: list[Any] = []
    for module in model.modules():
        hooks += [*module._forward_hooks, *module._forward_pre_hooks]
        assert "forward" not in vars(module)
    assert not hooks
