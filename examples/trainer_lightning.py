"""Lightning: a callback for a LightningModule that stays as it is."""

import lightning
import torch
import torchvision
from torch.nn import functional as F

import atomsep
from atomsep.integrations.lightning import AtomModeling


class Classifier(lightning.LightningModule):
    """A ResNet-18, written without a thought of atom modeling."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=10)

    def training_step(self, batch: tuple, batch_idx: int) -> torch.Tensor:
        """The task's loss."""
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(0)
loader = [(torch.randn(4, 3, 32, 32), torch.randint(10, (4,))) for _ in range(4)]
quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)

# [start:lightning]
module = Classifier()
attachment = atomsep.attach(module, "net.layer1.1.bn2", weight=0.2)
trainer = lightning.Trainer(max_epochs=1, callbacks=[AtomModeling(attachment)], **quiet)
trainer.fit(module, loader)
# [end:lightning]
print({name: round(value, 3) for name, value in attachment.stats.items()})
