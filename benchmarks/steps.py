"""Whole training steps, with and without the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

import atomsep
from benchmarks.alternatives import sampled_token_pairs

TURN = 10
"""Steps that a contender does before the next one's turn."""

Step = Callable[[], None]
LossOf = Callable[[], Any]


def variants(
    build: Callable[[], tuple[nn.Module, Callable[[nn.Module, LossOf], Step]]],
    target: str,
    tokens: Callable[[Any], Tensor],
    captured: bool = False,
) -> dict[str, Step]:
    """The step alone (twice, to see the noise), with the paper's sampling, and with atomsep.

    Each captured into a graph if asked for, which leaves the host with one launch a step.
    """
    model, step_of = build()
    contenders: dict[str, Step] = {}
    for name in ("without", "without, again"):
        contenders[name] = step_of(copy.deepcopy(model), lambda: 0)

    sampled = copy.deepcopy(model)
    latents: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> Any:
        latents[:] = [tokens(output)]
        return output.clone() if isinstance(output, Tensor) else None

    sampled.get_submodule(target).register_forward_hook(keep)
    contenders["paper's sampling"] = step_of(
        sampled, lambda: 1e-6 * sampled_token_pairs(latents.pop())
    )
    for mode in ("torch", "triton"):
        own = copy.deepcopy(model)
        attachment = atomsep.attach(own, target, weight=0.1)
        run = step_of(own, attachment.loss)

        def switched(run: Step = run, mode: str = mode) -> None:
            with atomsep.use_kernels(mode):
                run()

        name = {"torch": "atomsep, plain PyTorch", "triton": "atomsep, kernels"}[mode]
        contenders[name] = switched
    return {name: capture(run) for name, run in contenders.items()} if captured else contenders


def capture(step: Callable[[], object]) -> Step:
    """The same, replayed from a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    held = graph, step  # whose tensors the graph reads and writes
    return lambda: held[0].replay()


def resnet50() -> dict[str, Step]:
    """ResNet-50, batch 256, bf16, channels-last, at a layer that is overwritten in place."""

    def build() -> tuple[nn.Module, Callable[[nn.Module, LossOf], Step]]:
        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        x = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        y = torch.randint(1000, (256,), device="cuda")

        def step_of(model: nn.Module, loss_of: LossOf) -> Step:
            optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

            def step() -> None:
                with torch.autocast("cuda", torch.bfloat16):
                    task = F.cross_entropy(model(x), y)
                (task + loss_of()).backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        return model, step_of

    return variants(build, "layer1.2.bn3", lambda out: out.flatten(2).transpose(1, 2))


def dcgan(captured: bool = False) -> dict[str, Step]:
    """DCGAN as in PyTorch's examples, batch 128, fp32, at the last batch norm."""

    def block(inside: int, outside: int, stride: int, padding: int) -> list[nn.Module]:
        return [
            nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(True),
        ]

    def critic_block(inside: int, outside: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, outside, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.LeakyReLU(0.2, inplace=True),
        ]

    def build() -> tuple[nn.Module, Callable[[nn.Module, LossOf], Step]]:
        generator = nn.Sequential(
            *block(100, 512, 1, 0), *block(512, 256, 2, 1), *block(256, 128, 2, 1),
            *block(128, 64, 2, 1), nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
        ).cuda()  # fmt: skip
        first = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            *critic_block(64, 128), *critic_block(128, 256), *critic_block(256, 512),
            nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
        ).cuda()  # fmt: skip
        real = torch.randn(128, 3, 64, 64, device="cuda")
        ones, zeros = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")

        def step_of(generator: nn.Module, loss_of: LossOf) -> Step:
            critic = copy.deepcopy(first)
            settings = {"lr": 2e-4, "betas": (0.5, 0.999), "capturable": captured}
            for_critic = torch.optim.Adam(critic.parameters(), **settings)
            for_generator = torch.optim.Adam(generator.parameters(), **settings)

            def step() -> None:
                critic.zero_grad()
                F.binary_cross_entropy(critic(real), ones).backward()
                fake = generator(torch.randn(128, 100, 1, 1, device="cuda"))
                F.binary_cross_entropy(critic(fake.detach()), zeros).backward()
                for_critic.step()
                generator.zero_grad()
                task = F.binary_cross_entropy(critic(fake), ones)
                (task + loss_of()).backward()
                for_generator.step()

            return step

        return generator, step_of

    return variants(build, "10", lambda out: out.flatten(2).transpose(1, 2), captured)


def bert_base(captured: bool = False) -> dict[str, Step]:
    """BERT-base, 32 sequences of 128 with padding, bf16, at the first layer."""

    def build() -> tuple[nn.Module, Callable[[nn.Module, LossOf], Step]]:
        from transformers import BertConfig, BertForSequenceClassification

        model = BertForSequenceClassification(BertConfig()).cuda()
        lengths = torch.randint(16, 129, (32, 1), device="cuda")
        batch = {
            "input_ids": torch.randint(1000, 20000, (32, 128), device="cuda"),
            "attention_mask": (torch.arange(128, device="cuda") < lengths).long(),
            "labels": torch.randint(2, (32,), device="cuda"),
        }

        def step_of(model: nn.Module, loss_of: LossOf) -> Step:
            optimizer = torch.optim.AdamW(model.parameters(), 2e-5, fused=True, capturable=captured)

            def step() -> None:
                with torch.autocast("cuda", torch.bfloat16):
                    task = model(**batch).loss
                (task + loss_of()).backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        return model, step_of

    first = "bert.encoder.layer.0"
    return variants(build, first, lambda out: out if isinstance(out, Tensor) else out[0], captured)


CASES: dict[str, Callable[[], dict[str, Step]]] = {
    "ResNet-50 step, batch 256, bf16, channels-last, at layer1.2.bn3": resnet50,
    "DCGAN step, batch 128, fp32, at the last batch norm": dcgan,
    "BERT-base step, 32 x 128, bf16, masked, at layer 0": bert_base,
    "DCGAN step, captured into a graph": partial(dcgan, captured=True),
    "BERT-base step, captured into a graph": partial(bert_base, captured=True),
}
