"""Networks of other libraries for the engine benchmark, randomly initialised, at the smallest of their usual sizes."""

from collections.abc import Callable
from typing import Any

import torch
from engine_models import Workload, images
from torch import Tensor, nn

WORDS, LENGTH = 5000, 64


class Scores(nn.Module):
    """A network of transformers that is called with one tensor and returns scores, classes in dimension 1."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, length) to scores (n, classes) or (n, words, length)."""
        # Positions for every record: Opacus cannot train a layer that is called with one row for all.
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        logits = self.network(tokens, position_ids=positions).logits
        return logits.transpose(1, 2) if logits.dim() == 3 else logits


def face(kind: str, task: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(vocab_size=WORDS, num_labels=10, **options)
        return Scores(getattr(transformers, f"{kind}{task}")(config).train())

    return make


def image_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=10, **options).train()

    return make


def resnet18() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=10, norm_layer=lambda channels: nn.GroupNorm(16, channels))


def low_rank() -> nn.Module:
    import peft

    network = face("Bert", "ForSequenceClassification", **BERT)().network
    options = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_dropout=0.1)
    return Scores(peft.get_peft_model(network, options))


class Recurrent(nn.Module):
    """An LSTM over the embedding of 64 words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64)
        self.recur = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, length) to scores (n, 10)."""
        return self.head(self.recur(self.embedding(tokens))[0][:, -1])


class Columns(nn.Module):
    """An FT-Transformer of 20 numerical columns."""

    def __init__(self) -> None:
        super().__init__()
        import rtdl_revisiting_models as rtdl

        self.network = rtdl.FTTransformer(
            n_cont_features=20, cat_cardinalities=[], d_out=10, n_blocks=3, d_block=96, attention_n_heads=8,
            attention_dropout=0.2, ffn_dropout=0.1, residual_dropout=0.0, ffn_d_hidden_multiplier=4 / 3,
        )  # fmt: skip

    def forward(self, columns: Tensor) -> Tensor:
        """Columns (n, 20) to scores (n, 10)."""
        return self.network(columns, None)


def sentences(size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(3, WORDS, (size, LENGTH)), torch.randint(10, (size,))


def continuations(size: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(3, WORDS, (size, LENGTH + 1))
    return tokens[:, :-1], tokens[:, 1:]


def columns(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 20), torch.randint(10, (size,))


BERT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
LLAMA = {**BERT, "intermediate_size": 688, "pad_token_id": 0}
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 4, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
SMALL = {"img_size": 32, "patch_size": 4}
SWIN = {"patch_size": 2, "window_size": 4, "embed_dim": 48, "depths": (2, 2, 2), "num_heads": (2, 4, 8)}

REAL = {
    "bert-mini-16": Workload(face("Bert", "ForSequenceClassification", **BERT), sentences, 16),
    "gpt2-mini-16": Workload(face("GPT2", "LMHeadModel", **GPT2), continuations, 16),
    "llama-mini-16": Workload(face("Llama", "ForCausalLM", **LLAMA), continuations, 16),
    "vit-tiny-16": Workload(image_model("vit_tiny_patch16_224", depth=6, **SMALL), images, 16),
    "swin-tiny-16": Workload(image_model("swin_tiny_patch4_window7_224", img_size=32, **SWIN), images, 16),
    "convnext-atto-16": Workload(image_model("convnext_atto"), images, 16),
    "resnet18-groupnorm-16": Workload(resnet18, images, 16),
    "lstm-32": Workload(Recurrent, sentences, 32),
    "ft-transformer-32": Workload(Columns, columns, 32),
    "lora-bert-mini-16": Workload(low_rank, sentences, 16),
}
