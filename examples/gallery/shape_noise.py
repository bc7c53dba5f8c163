# %% [markdown]
"""
# Shape noise with SR-PAC

Four training sets might have been used, and which one is secret. A leader looks for noise that hides it at little
power, against a decoder that tries to find it. The game finds the shape; a proof that does not rely on the decoder
certifies it.
"""

# %%
import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import numpy as np
import torch

from lightning_pac import FullGaussian, SecretTable, StackelbergGame, calibrate_gaussian
from lightning_pac.modules import PosteriorDecoder

pl.seed_everything(0, verbose=False)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# %% [markdown]
"""
## The outputs of the four

Three of them are close together and one is far off: a single long direction, for which a formula pays a lot.
"""

# %%
outputs = torch.tensor([[-1.0, 0.1], [-1.0, 0.0], [1.0, -0.1], [1.0, 4.0]])
budget = 0.5  # nats; the secret has ln 4 = 1.39
by_formula = calibrate_gaussian(outputs.numpy(), budget, rule="logdet")

# %% [markdown]
"""
## The game

`PosteriorDecoder` is the best decoder of a finite secret, in closed form, so only the noise is trained.
"""

# %%
noise = FullGaussian(2)
game = StackelbergGame(
    SecretTable(outputs, secret="Which of four training sets was used."),
    PosteriorDecoder(outputs, noise),
    noise,
    budget,
)
trainer = pl.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(game)
released = game.certify(confidence=0.99)
print(f"log-det formula    noise power {by_formula.power:.2f}")
print(f"SR-PAC, certified  noise power {released.power:.2f} at {released.mutual_information:.3f} nats")
print(f"released           {released.release(outputs[2])}")

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
circle = np.stack([np.cos(np.linspace(0, 2 * np.pi, 100)), np.sin(np.linspace(0, 2 * np.pi, 100))])
axes.scatter(*outputs.T, color="black", zorder=3, label="the four outputs")
shapes = {"noise by formula": by_formula.covariance(), "noise by SR-PAC": released.noise.second_moment()}
for name, covariance in shapes.items():
    axes.plot(*(np.linalg.cholesky(covariance) @ circle), label=f"{name}, one deviation")
axes.set_aspect("equal", adjustable="datalim")
figure.legend(loc="outside upper center", ncols=3)  # in the axes it would hide the output that is far off
plt.show()

# %% [markdown]
"""
## What to take away

- The game proposes, the certificate decides: a decoder that fits badly cannot make noise look private.
- What is released is certified with a stated confidence, once for the mechanism.
- Noise is spent where outputs differ, not where they happen to be spread out.
"""
