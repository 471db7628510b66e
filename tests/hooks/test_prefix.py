"""Class, distillation and register tokens: left out where the rest makes the grid of the image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import atomsep
from atomsep.hooks.prefix import Prefix


class Vision(nn.Module):
    """Patches with tokens in front, under the names that models give them."""

    def __init__(self, **tokens: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, 4)
        self.norm = nn.LayerNorm(6)
        for name, count in tokens.items():
            shape = (6,) if "embedding" in name else (1, count, 6)
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.names = list(tokens)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        front = [getattr(self, name).view(1, -1, 6).expand(len(x), -1, 6) for name in self.names]
        return self.norm(torch.cat([*front, x], 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        ({}, 0),
        ({"cls_token": 1}, 1),
        ({"class_token": 1}, 1),
        ({"class_embedding": 1}, 1),
        ({"cls_token": 1, "distillation_token": 1}, 2),
        ({"cls_token": 1, "reg_token": 4}, 5),
        ({"cls_token": 1, "register_tokens": 3}, 4),
        ({"cls_register_token": 10}, 10),
        ({"cls_token2": 1}, 1),
    ],
)
@pytest.mark.parametrize("size", [(16, 16), (8, 20), (18, 14)])
def test_the_tokens_in_front_are_left_out(
    tokens: dict[str, int], count: int, size: tuple[int, int]
) -> None:
    model = Vision(**tokens)
    attachment = atomsep.attach(model, "norm", weight=1.0)
    images = torch.randn(2, 3, *size)
    latent = model(images)
    left = latent.shape[1] - count
    assert attachment.importance.shape == (2, left)
    torch.testing.assert_close(attachment.loss(), atomsep.AtomLoss()(latent[:, -left:]))
    number = "token," if count == 1 else f"{count} tokens,"
    assert (f" without the first {number}" in repr(attachment)) == (count > 0)


@pytest.mark.parametrize("size", [(16, 16), (8, 20), (18, 14)])
def test_a_token_in_front_that_no_name_tells_is_not_passed_over(size: tuple[int, int]) -> None:
    model, images = Vision(other=1), torch.randn(2, 3, *size)
    attachment = atomsep.attach(model, "norm")
    with pytest.warns(atomsep.AtomWarning, match="one more than a grid .* pass skip_tokens=1"):
        latent = model(images)
    model(images)  # once
    assert attachment.importance.shape == latent.shape[:2]
    attachment.detach()
    for given in (0, 1):
        with atomsep.attach(model, "norm", skip_tokens=given) as explicit:
            model(images)
            assert explicit.importance.shape == (2, latent.shape[1] - given)


def test_a_number_that_is_passed_counts() -> None:
    model = Vision(cls_token=1)
    attachment = atomsep.attach(model, "norm", skip_tokens=0)
    model(torch.randn(2, 3, 16, 16))
    assert attachment.importance.shape == (2, 17)
    for wrong in (-1, "all", 0.5):
        with pytest.raises(ValueError, match="skip_tokens must be at least 0, or 'auto'"):
            atomsep.attach(model, "norm", skip_tokens=wrong)  # type: ignore[arg-type]


def test_an_evaluation_outside_the_model_skips_as_before() -> None:
    model = Vision(cls_token=1)
    attachment = atomsep.attach(model, "norm")
    model(torch.randn(2, 3, 16, 16))
    with torch.no_grad():
        model.norm(torch.randn(3, 5, 6))
    assert attachment.importance.shape == (3, 4)


class Configured(nn.Module):
    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6))
        self.config = type("Config", (), settings)()


@pytest.mark.parametrize(
    ("settings", "tokens", "image", "count"),
    [
        ({"num_register_tokens": 4}, 21, (2, 3, 16, 16), 5),  # with a class token
        ({"num_register_tokens": 4}, 20, (2, 3, 16, 16), 4),
        ({"num_register_tokens": 4}, 16, (2, 3, 16, 16), 0),  # the grid is there by itself
        ({"num_register_tokens": 4}, 19, (2, 3, 16, 16), None),  # nothing fits
        ({"num_register_tokens": 4, "patch_size": 2}, 69, (2, 3, 16, 16), 5),
        ({"num_register_tokens": 4, "patch_size": (4, 8)}, 13, (2, 3, 16, 16), 5),
        ({"num_register_tokens": 1, "patch_size": 4}, 65, (2, 8, 3, 16, 16), 1),  # 4 frames of 16
        ({}, 17, (2, 3, 16, 16), 0),
    ],
)
def test_numbers_in_a_configuration(
    settings: dict[str, object], tokens: int, image: tuple[int, ...], count: int | None
) -> None:
    model = Configured(**settings)
    assert Prefix(model, model.inner[0]).of(tokens, [image]) == count


def test_tokens_of_another_part_of_the_model() -> None:
    vision = nn.ModuleDict({"inner": Vision(cls_token=1)})
    model = nn.ModuleDict({"vision": vision, "head": Configured()})
    prefix, image = Prefix(model, model["head"].inner[0]), [(2, 3, 16, 16)]
    assert prefix.of(17, image) == 1
    assert prefix.of(17, image, other_inputs=True) == 0  # these may be 17 words
    near = Prefix(model, vision["inner"].norm)
    assert near.of(17, image, other_inputs=True) == 1
    assert near.of(7, image, other_inputs=True) is None


@pytest.mark.parametrize("size", [(16, 16), (18, 14)])
def test_tokens_that_fit_no_grid_all_count_and_that_is_said(size: tuple[int, int]) -> None:
    model, images = Vision(cls_token=1, detection_tokens=2), torch.randn(2, 3, *size)
    attachment = atomsep.attach(model, "norm", weight=1.0)
    with pytest.warns(atomsep.AtomWarning, match="the rest is not a grid .* or skip_tokens=0"):
        latent = model(images)
    model(images)  # once
    assert attachment.importance.shape == latent.shape[:2]
    assert "class tokens, but it is not certain which they are" in repr(attachment)
    attachment.detach()
    for given in (0, 3):
        with atomsep.attach(model, "norm", skip_tokens=given) as explicit:
            model(images)
            assert explicit.importance.shape == (2, latent.shape[1] - given)
    real = torch.ones(latent.shape[:2], dtype=torch.bool)
    real[:, 0] = real[:, -2:] = False
    with atomsep.attach(
        model, "norm", weight=1.0, skip_tokens=0, mask=lambda args, kwargs: real
    ) as masked:
        latent = model(images)
        torch.testing.assert_close(masked.loss(), atomsep.AtomLoss()(latent[:, 1:-2]))
