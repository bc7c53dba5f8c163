# %% [markdown]
"""
# Fine-tune a language model privately, with LoRA

A tiny language model learns a language from public text. Then it learns the habits of private texts through LoRA: two
thin matrices beside each projection, to which alone noise is added. Texts are made here, so that nothing has to be
downloaded; with a real model only `from_pretrained` differs.
"""

# %%
import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_pac import DPSGD, Poisson

pl.seed_everything(0, verbose=False)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# %% [markdown]
"""
## Two dialects

Texts of 16 words from a vocabulary of 24. Each word calls for a few likely followers; private authors have favourites
of their own for half of the words.
"""

# %%
WORDS, LENGTH = 24, 16
public_habits = torch.full((WORDS, WORDS), 0.02).scatter(1, torch.rand(WORDS, WORDS).topk(2).indices, 1.0)
own_habits = torch.full((WORDS, WORDS), 0.02).scatter(1, torch.rand(WORDS, WORDS).topk(2).indices, 1.0)
private_habits = torch.where(torch.arange(WORDS)[:, None] % 2 == 0, own_habits, public_habits)


def write(habits: torch.Tensor, num_texts: int) -> torch.Tensor:
    texts = torch.randint(WORDS, (num_texts, 1))
    while texts.shape[1] < LENGTH:
        texts = torch.cat([texts, torch.multinomial(habits[texts[:, -1]], 1)], dim=1)
    return texts


public, private_texts, held_out = write(public_habits, 4000), write(private_habits, 4000), write(private_habits, 500)

# %% [markdown]
"""
## The model

The loss is averaged within each text first, as for any per-record guarantee: an average over the words of the whole
batch would let one text take weight from the others, and is refused.
"""


# %%
class Language(pl.LightningModule):
    def __init__(self, network: torch.nn.Module, learning_rate: float) -> None:
        super().__init__()
        self.network, self.learning_rate = network, learning_rate

    def loss(self, texts: torch.Tensor) -> torch.Tensor:
        logits = self.network(input_ids=texts).logits
        losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), texts[:, 1:], reduction="none")
        return losses.mean(dim=1).mean()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.loss(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.learning_rate)

    @torch.no_grad()
    def perplexity(self) -> float:
        return float(self.eval().loss(held_out).exp())


def fit(model: Language, texts: torch.Tensor, epochs: int, callbacks: list[pl.Callback]) -> Language:
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(texts), batch_size=200, shuffle=True))
    return model


config = LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
published = fit(Language(LlamaForCausalLM(config), 3e-3), public, 6, [])
before = published.perplexity()


# %% [markdown]
"""
## Fine-tuning

Once as usual, once with differential privacy for each text.
"""


# %%
def with_lora() -> Language:
    base = LlamaForCausalLM(config)
    base.load_state_dict(published.network.state_dict())
    modules = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return Language(get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=modules)), 1e-2)


ordinary = fit(with_lora(), private_texts, 5, [])
private = DPSGD(epsilon=3, delta=1e-5, sampling=Poisson(rate=0.1, batch_size=400))
protected = fit(with_lora(), private_texts, 5, [private])
trained = sum(p.numel() for p in protected.parameters() if p.requires_grad)
print(f"{trained:,} of {sum(p.numel() for p in protected.parameters()):,} parameters are trained")
perplexities = {
    "published model": before,
    "private, (3, 1e-5)": protected.perplexity(),
    "ordinary": ordinary.perplexity(),
}
for name, value in perplexities.items():
    print(f"{name:20} perplexity {value:.2f} on private texts that were not trained on")

# %%
figure, axes = plt.subplots(figsize=(6.4, 2.2), layout="constrained")
bars = axes.barh(list(perplexities), list(perplexities.values()), color=["grey", "C0", "C1"])
axes.bar_label(bars, fmt="%.1f", padding=3)
axes.set(xlabel="perplexity on private texts (lower is better)")
axes.invert_yaxis()
plt.show()

# %% [markdown]
"""
## Publish

The adapter and the merged model are computed from noised gradients and the published model alone.
"""

# %%
merged = protected.network.merge_and_unload()
print(type(merged).__name__, f"with {sum(p.numel() for p in merged.parameters()):,} parameters")

# %% [markdown]
"""
## What to take away

- Noise falls on the few numbers of the adapter; the published model costs nothing.
- `peft` and `transformers` are used as always: the callback finds out which parameters are trained.
- A record is a text here. If one person wrote several, protect persons: `unit=Persons(...)`.
"""
