"""Networks that people train, tiny and randomly initialised, with the batches and losses that their users give them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from batches import (
    LENGTH,
    RECORDS,
    SIDE,
    WORDS,
    Batch,
    columns,
    continuations,
    cross_entropy,
    forecast_loss,
    forecasting_data,
    histories,
    images,
    labelled_words,
    masked,
    masks,
    mean_of_records,
    mean_of_targets,
    own_loss,
    pixels,
    segmentation,
    sentences,
    spectra,
    squared_error,
    tabnet_loss,
    translations,
    vectors,
    waves,
)
from own_networks import (
    Recurrent,
    TimeDistributed,
    Transcriber,
    Variational,
    autoencoder,
    ctc,
    padded_tokens,
    transcripts,
)
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Entry:
    """A network as its users train it.

    Attributes:
        library: Whose it is.
        build: Makes the network, in training mode, with its dropout on.
        batch: Makes a batch of twice `RECORDS` records.
        loss: Mean loss of a batch.
        advice: Makes it trainable; the refusal of the network as it was written names it.
        refusal: What the refusal says, a regular expression.
        reason: Why it is refused, in words, where no advice helps.
        fast: Whether the ordinary suite runs it.
        draws: Whether it draws random numbers otherwise than by torch, so that draws do not belong to records.
    """

    library: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    advice: Callable[[nn.Module], nn.Module] | None = None
    refusal: str = ""
    reason: str = ""
    fast: bool = False
    draws: bool = False


ENTRIES: dict[str, Entry] = {}


# Networks of Hugging Face.

SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 16, "pad_token_id": 0, "num_labels": 3,
}  # fmt: skip
CAUSAL = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 2}
PICTURE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 3,
}
STAGES = {"image_size": SIDE, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
          "num_labels": 3}  # fmt: skip


def face(kind: str, task: str, **options: Any) -> Callable[[], nn.Module]:
    """A network of transformers from its configuration."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        return getattr(transformers, f"{kind}For{task}")(config).train()

    return build


def add_face(
    name: str, kind: str, task: str, batch: Any, loss: Any = own_loss, fast: bool = False, **options: Any
) -> None:
    draws = options.pop("draws", False)
    ENTRIES[name] = Entry("transformers", face(kind, task, **options), batch, loss, fast=fast, draws=draws)


_CLASSIFY, _CAUSAL, _MASKED = "SequenceClassification", "CausalLM", "MaskedLM"
add_face("BERT", "Bert", _CLASSIFY, sentences, fast=True, **SMALL)
add_face("BERT, masked words", "Bert", _MASKED, masked, mean_of_targets, **SMALL)
add_face("BERT, words", "Bert", "TokenClassification", labelled_words, mean_of_targets, **SMALL)
add_face("RoBERTa", "Roberta", _CLASSIFY, sentences, **SMALL)
add_face("ALBERT", "Albert", _CLASSIFY, sentences, embedding_size=8, **SMALL, hidden_dropout_prob=0.1)
add_face("ELECTRA", "Electra", _CLASSIFY, sentences, embedding_size=8, **SMALL)
add_face("ModernBERT", "ModernBert", _CLASSIFY, sentences, attention_dropout=0.1, mlp_dropout=0.1, cls_token_id=2,
         sep_token_id=2, bos_token_id=2, eos_token_id=2, local_attention=4, **SMALL)  # fmt: skip
add_face("DistilBERT", "DistilBert", _CLASSIFY, sentences, vocab_size=WORDS, dim=16, n_layers=2, n_heads=2,
         hidden_dim=24, max_position_embeddings=16, num_labels=3)  # fmt: skip
add_face("DeBERTa v2", "DebertaV2", _CLASSIFY, sentences, relative_attention=True, pos_att_type=["p2c", "c2p"],
         position_buckets=4, position_biased_input=False, fast=True, **SMALL)  # fmt: skip


def gpt2(task: str = "LMHeadModel", **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        config = transformers.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, pad_token_id=0, bos_token_id=2,
            eos_token_id=2, num_labels=3, **options,
        )  # fmt: skip
        return getattr(transformers, f"GPT2{task}")(config).train()

    return build


ENTRIES["GPT-2"] = Entry("transformers", gpt2(), continuations, mean_of_records, fast=True)
ENTRIES["GPT-2, classes"] = Entry("transformers", gpt2("ForSequenceClassification"), sentences, own_loss)
add_face("OPT", "OPT", _CAUSAL, continuations, mean_of_records, vocab_size=WORDS, hidden_size=16, ffn_dim=24,
         num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16, pad_token_id=0, bos_token_id=2,
         eos_token_id=2, word_embed_proj_dim=16)  # fmt: skip
add_face("BLOOM", "Bloom", _CAUSAL, continuations, mean_of_records, vocab_size=WORDS, hidden_size=16, n_layer=2,
         n_head=2, hidden_dropout=0.1, bos_token_id=2, eos_token_id=2, pad_token_id=0)  # fmt: skip
add_face("Llama", "Llama", _CAUSAL, continuations, mean_of_records, fast=True, **CAUSAL)
add_face("Mistral", "Mistral", _CAUSAL, continuations, mean_of_records, sliding_window=4, **CAUSAL)
add_face("Qwen2", "Qwen2", _CAUSAL, continuations, mean_of_records, **CAUSAL)
add_face("Qwen3", "Qwen3", _CAUSAL, continuations, mean_of_records, **CAUSAL)
add_face("Gemma 2", "Gemma2", _CAUSAL, continuations, mean_of_records, **CAUSAL)
add_face("Phi-3", "Phi3", _CAUSAL, continuations, mean_of_records, **CAUSAL)
ENTRIES["Mixtral"] = Entry(
    "transformers", face("Mixtral", _CAUSAL, num_local_experts=3, experts_implementation="eager", **CAUSAL),
    continuations, mean_of_records, refusal="rows that __getitem__ of .* cannot be told apart into the 4 rows",
    reason="experts are given the tokens of all records in an order of their own",
)  # fmt: skip
add_face("Mamba", "Mamba", _CAUSAL, continuations, mean_of_records, vocab_size=WORDS, hidden_size=16, state_size=4,
         num_hidden_layers=2, pad_token_id=0, bos_token_id=2, eos_token_id=2, fast=True)  # fmt: skip
add_face("T5", "T5", "ConditionalGeneration", translations, mean_of_targets, vocab_size=WORDS, d_model=16, d_kv=8,
         d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
         relative_attention_num_buckets=8, fast=True)  # fmt: skip
add_face("BART", "Bart", "ConditionalGeneration", translations, mean_of_targets, vocab_size=WORDS, d_model=16,
         encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
         decoder_ffn_dim=24, max_position_embeddings=16, pad_token_id=0, bos_token_id=2, eos_token_id=2,
         decoder_start_token_id=2, forced_eos_token_id=None)  # fmt: skip

_IMAGES = "ImageClassification"
add_face("ViT", "ViT", _IMAGES, pixels, image_size=SIDE, patch_size=8, hidden_dropout_prob=0.1, fast=True, **PICTURE)
add_face("DeiT", "DeiT", _IMAGES, pixels, image_size=SIDE, patch_size=8, **PICTURE)
add_face("DINOv2", "Dinov2", _IMAGES, pixels, image_size=SIDE, patch_size=8, drop_path_rate=0.1, **PICTURE)
add_face("BEiT", "Beit", _IMAGES, pixels, image_size=SIDE, patch_size=8, use_relative_position_bias=True, **PICTURE)
add_face("Swin", "Swin", _IMAGES, pixels, fast=True, **STAGES)
add_face("Swin v2", "Swinv2", _IMAGES, pixels, **STAGES)
add_face("ConvNeXt", "ConvNext", _IMAGES, pixels, hidden_sizes=[8, 12], depths=[1, 1], num_stages=2,
         drop_path_rate=0.1, num_labels=3)  # fmt: skip
add_face("ConvNeXt v2", "ConvNextV2", _IMAGES, pixels, hidden_sizes=[8, 12], depths=[1, 1], num_stages=2,
         drop_path_rate=0.1, num_labels=3)  # fmt: skip
add_face("PoolFormer", "PoolFormer", _IMAGES, pixels, hidden_sizes=[8, 8, 12, 12], depths=[1, 1, 1, 1],
         drop_path_rate=0.1, num_labels=3)  # fmt: skip
WHISPER = {
    "vocab_size": WORDS, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_source_positions": 10, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 2,
    "decoder_start_token_id": 2, "dropout": 0.1, "num_labels": 3, "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
add_face("Whisper", "Whisper", "ConditionalGeneration",
         spectra(lambda: torch.randint(3, WORDS, (2 * RECORDS, LENGTH))), **WHISPER)  # fmt: skip
add_face(
    "Whisper, classes", "Whisper", "AudioClassification", spectra(lambda: torch.arange(2 * RECORDS) % 3), **WHISPER
)
WAV2VEC2 = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": (8, 8),
    "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2, "classifier_proj_size": 8, "num_labels": 3, "mask_time_length": 2,
}  # fmt: skip
add_face("Wav2Vec2", "Wav2Vec2", _CLASSIFY, waves, apply_spec_augment=False, layerdrop=0.0, **WAV2VEC2)
add_face("Wav2Vec2, as configured", "Wav2Vec2", _CLASSIFY, waves, draws=True, fast=True, **WAV2VEC2)


# Adapters of peft.


def adapted(base: Callable[[], nn.Module], adapter: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import peft

        return peft.get_peft_model(base(), getattr(peft, f"{adapter}Config")(**options)).train()

    return build


_BERT = face("Bert", _CLASSIFY, **SMALL)
_LLAMA = face("Llama", _CAUSAL, **CAUSAL)
_PROJECTIONS = {"target_modules": ["q_proj", "v_proj"]}
_TASKS = {"CAUSAL_LM": (continuations, mean_of_records), "SEQ_CLS": (sentences, own_loss)}


def add_adapted(name: str, base: Any, adapter: str, task: str, fast: bool = False, **options: Any) -> None:
    batch, loss = _TASKS[task]
    ENTRIES[name] = Entry("peft", adapted(base, adapter, task_type=task, **options), batch, loss, fast=fast)


add_adapted("LoRA on BERT", _BERT, "Lora", "SEQ_CLS", r=4, lora_dropout=0.1, fast=True)
add_adapted("LoRA on GPT-2", gpt2(), "Lora", "CAUSAL_LM", r=4, lora_dropout=0.1, fan_in_fan_out=True)
add_adapted("LoRA on Llama", _LLAMA, "Lora", "CAUSAL_LM", r=4, lora_dropout=0.1, **_PROJECTIONS)
add_adapted(
    "LoRA on Llama, embeddings too", _LLAMA, "Lora", "CAUSAL_LM", r=4, target_modules=["embed_tokens", "q_proj"]
)
add_adapted("LoRA on ViT", face("ViT", _IMAGES, image_size=SIDE, patch_size=8, **PICTURE), "Lora", "SEQ_CLS", r=4,
            target_modules=["query", "value", "projection"])  # fmt: skip
ENTRIES["LoRA on ViT"] = Entry(
    "peft",
    adapted(
        face("ViT", _IMAGES, image_size=SIDE, patch_size=8, **PICTURE),
        "Lora",
        r=4,
        target_modules=["q_proj", "v_proj", "query", "value"],
    ),
    pixels,
    own_loss,
)
add_adapted("DoRA on Llama", _LLAMA, "Lora", "CAUSAL_LM", r=4, use_dora=True, fast=True, **_PROJECTIONS)
add_adapted("IA3 on Llama", _LLAMA, "IA3", "CAUSAL_LM", target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"], fast=True)  # fmt: skip
add_adapted("AdaLoRA on Llama", _LLAMA, "AdaLora", "CAUSAL_LM", init_r=4, target_r=2, total_step=10, **_PROJECTIONS)
add_adapted("LoHa on Llama", _LLAMA, "LoHa", "CAUSAL_LM", r=4, **_PROJECTIONS)
add_adapted("VeRA on Llama", _LLAMA, "Vera", "CAUSAL_LM", r=4, **_PROJECTIONS)
add_adapted("Prompt tuning on GPT-2", gpt2(), "PromptTuning", "CAUSAL_LM", num_virtual_tokens=3, fast=True)
add_adapted("Prompt tuning on BERT", _BERT, "PromptTuning", "SEQ_CLS", num_virtual_tokens=3)
add_adapted("P-tuning on GPT-2", gpt2(), "PromptEncoder", "CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8)
add_adapted("Prefix tuning on GPT-2", gpt2(), "PrefixTuning", "CAUSAL_LM", num_virtual_tokens=3)


# Networks of timm, torchvision and segmentation_models_pytorch.

NORMALIZES = r"normalizes over the batch.*fix_batch_norm"


def fix_batch_norm(network: nn.Module) -> nn.Module:
    import lightning_pac

    return lightning_pac.fix_batch_norm(network)


def image_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=3, **options).train()

    return build


def _timm(module: str) -> Any:
    return importlib.import_module(f"timm.models.{module}")


def add_image_model(name: str, build: Any, library: str = "timm", normalizes: bool = False, fast: bool = False,
                    batch: Any = None, loss: Any = cross_entropy) -> None:  # fmt: skip
    advice = {"advice": fix_batch_norm, "refusal": NORMALIZES} if normalizes else {}
    ENTRIES[f"{name} ({library})"] = Entry(library, build, batch or images(), loss, fast=fast, **advice)


_PATCHES = {"img_size": SIDE, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
_TINY_VIT = {"drop_rate": 0.1, "drop_path_rate": 0.1, "attn_drop_rate": 0.1, **_PATCHES}
add_image_model("ViT", image_model("vit_tiny_patch16_224", class_token=True, init_values=0.1, **_TINY_VIT), fast=True)
add_image_model("DeiT", image_model("deit_tiny_distilled_patch16_224", **_TINY_VIT))
add_image_model("CaiT", image_model("cait_xxs24_224", img_size=SIDE, patch_size=8, embed_dim=16, depth=2, num_heads=2,
                                    drop_path_rate=0.1))  # fmt: skip
add_image_model("BEiT", image_model("beit_base_patch16_224", **_TINY_VIT))
add_image_model("EVA-02", image_model("eva02_tiny_patch14_224", **_TINY_VIT))
add_image_model("Swin", image_model("swin_tiny_patch4_window7_224", img_size=SIDE, patch_size=2, window_size=4,
                                    embed_dim=8, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.1),
                fast=True)  # fmt: skip
add_image_model("Swin v2", image_model("swinv2_tiny_window8_256", img_size=SIDE, patch_size=2, window_size=4,
                                       embed_dim=8, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.1))  # fmt: skip
add_image_model("Mixer", lambda: _timm("mlp_mixer").MlpMixer(3, SIDE, 3, 8, num_blocks=2, embed_dim=16,
                                                              drop_path_rate=0.1))  # fmt: skip
add_image_model("PoolFormer", lambda: _timm("metaformer").MetaFormer(depths=(1, 1), dims=(8, 12), num_classes=3,
                                                                     drop_path_rate=0.1))  # fmt: skip
add_image_model("ConvNeXt", image_model("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 4, 8, 8), drop_path_rate=0.1))
add_image_model("NFNet", image_model("test_nfnet"))
add_image_model("ResNet", image_model("resnet10t", channels=(8, 8, 12, 12), stem_width=8), normalizes=True, fast=True)
add_image_model("EfficientNet", image_model("test_efficientnet", drop_path_rate=0.1), normalizes=True, fast=True)
add_image_model("MobileNetV3", image_model("mobilenetv3_small_050", drop_rate=0.1), normalizes=True)
add_image_model("DenseNet", image_model("densenet121", growth_rate=4, block_config=(1, 1)), normalizes=True)
add_image_model("RegNet", image_model("regnetx_002"), normalizes=True)
add_image_model("MaxViT", image_model("test_maxvit", img_size=64), normalizes=True, batch=images(64))
add_image_model("CoAtNet", image_model("test_coatnet", img_size=64), normalizes=True, batch=images(64))


def vision(make: Callable[[Any], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return make(torchvision.models).train()

    return build


def add_vision(name: str, make: Callable[[Any], nn.Module], **options: Any) -> None:
    add_image_model(name, vision(make), "torchvision", **options)


add_vision("ResNet-18", lambda m: m.resnet18(num_classes=3), normalizes=True)
add_vision("ResNet-18, GroupNorm", lambda m: m.resnet18(num_classes=3, norm_layer=lambda c: nn.GroupNorm(8, c)))
add_vision("MobileNetV3", lambda m: m.mobilenet_v3_small(num_classes=3, width_mult=0.3), normalizes=True)
add_vision("DenseNet", lambda m: m.DenseNet(4, (2, 1), 8, drop_rate=0.1, num_classes=3), normalizes=True, fast=True)
add_vision("ViT", lambda m: m.VisionTransformer(SIDE, 8, 2, 2, 16, 24, dropout=0.1, num_classes=3))
add_vision("Swin", lambda m: m.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], dropout=0.1, num_classes=3))
add_vision("Swin v2", lambda m: m.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], num_classes=3,
                                                  block=m.swin_transformer.SwinTransformerBlockV2,
                                                  downsample_layer=m.swin_transformer.PatchMergingV2))  # fmt: skip
add_vision("ConvNeXt", lambda m: m.ConvNeXt([m.convnext.CNBlockConfig(8, 12, 1), m.convnext.CNBlockConfig(12, None, 1)],
                                            stochastic_depth_prob=0.1, num_classes=3))  # fmt: skip


add_vision("DeepLabV3", lambda m: m.segmentation.DeepLabV3(
    m._utils.IntermediateLayerGetter(m.resnet18(norm_layer=nn.BatchNorm2d), {"layer4": "out"}),
    m.segmentation.deeplabv3.DeepLabHead(512, 3, [2, 4])),
    normalizes=True, batch=masks(), loss=segmentation)  # fmt: skip


def unet() -> nn.Module:
    import segmentation_models_pytorch as smp

    return smp.Unet(
        "tu-resnet10t", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 8), classes=3
    ).train()


add_image_model("Unet", unet, "segmentation_models_pytorch", normalizes=True, batch=masks(), loss=segmentation)


# Networks for tables and time series.


def tabular(kind: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import rtdl_revisiting_models

        return getattr(rtdl_revisiting_models, kind)(*args, **options).train()

    return build


_FT = {"attention_dropout": 0.2, "ffn_dropout": 0.1, "residual_dropout": 0.1, "ffn_d_hidden_multiplier": 4 / 3}
ENTRIES["FT-Transformer"] = Entry(
    "rtdl_revisiting_models",
    tabular("FTTransformer", n_cont_features=5, cat_cardinalities=[3, 3], d_out=1, n_blocks=2, d_block=16,
            attention_n_heads=2, **_FT),
    columns, squared_error,
)  # fmt: skip
ENTRIES["ResNet (table)"] = Entry(
    "rtdl_revisiting_models",
    tabular("ResNet", d_in=6, d_out=1, n_blocks=2, d_block=16, d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0),
    vectors, squared_error, fix_batch_norm, NORMALIZES,
)  # fmt: skip


def tabnet() -> nn.Module:
    from pytorch_tabnet.tab_network import TabNet

    return TabNet(6, 1, group_attention_matrix=torch.eye(6)).train()


ENTRIES["TabNet"] = Entry("pytorch_tabnet", tabnet, vectors, tabnet_loss, fix_batch_norm, NORMALIZES)


def forecasting(kind: str, known: bool, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import pytorch_forecasting

        return getattr(pytorch_forecasting, kind).from_dataset(forecasting_data(known), **options).train()

    return build


for _kind, _options in {
    "NBeats": {"widths": [8, 8], "num_blocks": [1, 1], "num_block_layers": [2, 2], "dropout": 0.1},
    "NHiTS": {"hidden_size": 8, "dropout": 0.1},
    "TemporalFusionTransformer": {
        "hidden_size": 8,
        "attention_head_size": 2,
        "hidden_continuous_size": 4,
        "dropout": 0.1,
    },
}.items():
    _known = _kind.startswith("Temporal")
    _build = forecasting(_kind, _known, **_options)
    ENTRIES[_kind] = Entry("pytorch_forecasting", _build, histories(_known), forecast_loss)


# Networks that people write themselves.

ENTRIES["LSTM, packed"] = Entry("own", lambda: Recurrent(nn.LSTM), padded_tokens, cross_entropy, fast=True)
ENTRIES["GRU, packed"] = Entry("own", lambda: Recurrent(nn.GRU), padded_tokens, cross_entropy)
ENTRIES["VAE"] = Entry("own", Variational, vectors, lambda network, batch: network.loss(batch[0]), fast=True)
ENTRIES["Autoencoder"] = Entry("own", autoencoder, images(16), lambda n, batch: F.mse_loss(n(batch[0]), batch[0]))
ENTRIES["CTC"] = Entry("own", Transcriber, transcripts, ctc, fast=True)
ENTRIES["Frames as records"] = Entry(
    "own", TimeDistributed, lambda: (torch.randn(2 * RECORDS, 5, 3, 8, 8), torch.arange(2 * RECORDS) % 3), cross_entropy
)
