"""Private labels, and the data module that trains a student on them."""

from lightning_pac.modules.distillation.distilled_data_module import DistilledDataModule
from lightning_pac.modules.distillation.private_labels import PrivateLabels, label_privately
from lightning_pac.modules.distillation.saved_responder import SavedResponder

__all__ = [
    "DistilledDataModule",
    "PrivateLabels",
    "SavedResponder",
    "label_privately",
]
