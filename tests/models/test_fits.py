"""Networks of the matrix through a whole private fit, with the checks of their loss before it."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from batches import RECORDS
from checks import Training, rows
from entries import ENTRIES
from torch.utils.data import DataLoader

from lightning_pac import SRPPSGD, TwoWorldScenario


def fit(name: str, folder: Path) -> tuple[Training, list[torch.Tensor]]:
    """The model after two private steps, and what its trained parameters were before."""
    torch.manual_seed(0)
    entry = ENTRIES[name]
    network = entry.build()
    model = Training(network if entry.advice is None else entry.advice(network), entry.loss)
    batch = entry.batch()
    records: list[Any] = [rows(batch, i) for i in range(2 * RECORDS)]
    before = [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad]
    private = SRPPSGD(TwoWorldScenario(num_differing=2), noise_multiplier=1.0, renyi_order=4)
    pl.Trainer(
        max_steps=2, callbacks=[private], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, accelerator="cpu", devices=1,
    ).fit(model, DataLoader(records, batch_size=RECORDS, shuffle=True))  # fmt: skip
    return model, before


@pytest.mark.models
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "BERT", "GPT-2", "T5", "Mamba", "Swin", "Wav2Vec2, as configured", "DoRA on Llama", "Prompt tuning on GPT-2",
        "ResNet (timm)", "Unet (segmentation_models_pytorch)", "FT-Transformer", "TemporalFusionTransformer",
        "LSTM, packed", "VAE", "CTC",
    ],
)  # fmt: skip
def test_network_is_trained(name: str, tmp_path: Path) -> None:
    model, before = fit(name, tmp_path)
    after = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_a_trained_adapter_has_changed_and_merges_into_an_ordinary_network(tmp_path: Path) -> None:
    model, before = fit("LoRA on Llama", tmp_path)
    after = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    tokens = torch.arange(3, 12)[None]
    with torch.no_grad():
        adapted = model.network.eval()(tokens).logits
        with model.network.disable_adapter():
            published = model.network(tokens).logits
        merged = model.network.merge_and_unload()
        assert type(merged).__name__ == "LlamaForCausalLM"
        assert torch.allclose(merged(tokens).logits, adapted, atol=1e-5)
    assert not torch.allclose(adapted, published, atol=1e-3)
