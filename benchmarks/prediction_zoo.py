"""How far are predictions from what torch's allocator hands out, over the models of transformers?

    python benchmarks/prediction_zoo.py [NAME ...] [--full] [--short]
    TRAINLEAN_DEVICE=cuda python benchmarks/prediction_zoo.py [NAME ...]

Each case is a small configuration and a setup. Its prediction is held against a real training of two optimizer steps, without
any meter: on this CPU its peak is read from torch.profiler's memory events, on a card from the caching allocator, whose
predicted bytes it is held against. `--full` traces all layers; `--large` takes the cases in the sizes that
people train, which need a card; `--short` takes the cases of SHORT.
"""

import argparse
import gc
import logging
import sys
import time
import warnings
from typing import NamedTuple

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from trainlean.costs.batches import map_tensors
from trainlean.costs.predict import predict_run
from trainlean.costs.subject import subject_of
from trainlean.costs.training import AUTOCAST, OPTIMIZERS, add_adapters, enable_checkpointing
from trainlean.setup import TrainingSetup
from trainlean.workspace import the_device

NEAR = 0.005
TEXT = dict(
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=128,
    vocab_size=500,
    num_hidden_layers=4,
)
GROUPED = dict(TEXT, num_key_value_heads=2)
BOTH = dict(
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    vocab_size=500,
)
IMAGE = dict(
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=128,
    num_hidden_layers=4,
    image_size=32,
    patch_size=4,
)
SOUND = dict(
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=128,
    num_hidden_layers=3,
    vocab_size=32,
    conv_dim=(16, 16),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    layerdrop=0.0,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    num_feat_extract_layers=2,
    mask_time_length=2,
    classifier_proj_size=32,
)


class Case(NamedTuple):
    """A configuration's class and values, its task, and how it is trained."""

    name: str
    kind: str
    values: dict
    task: str | None
    settings: dict

    @property
    def config(self):
        return getattr(transformers, self.kind)(**self.values)

    @property
    def setup(self):
        usual = subject_of(self.config, self.task).usual_length
        length = {None: None, 16000: 1600}.get(usual, 48)
        size = 2 if usual == 16000 else 4
        return TrainingSetup(**dict(micro_batch=size, sequence_length=length) | self.settings)


CASES = [
    Case("bert", "BertConfig", dict(**TEXT), None, {}),
    Case("bert mlm", "BertConfig", dict(**TEXT), "masked-lm", dict(padded=True, attention="sdpa")),
    Case("roberta", "RobertaConfig", dict(**TEXT), None, dict(checkpointing=True)),
    Case(
        "xlm-roberta tok",
        "XLMRobertaConfig",
        dict(**TEXT),
        "token-classification",
        dict(attention="sdpa"),
    ),
    Case(
        "distilbert",
        "DistilBertConfig",
        dict(dim=64, n_heads=4, hidden_dim=128, n_layers=4, vocab_size=500),
        None,
        {},
    ),
    Case("albert", "AlbertConfig", dict(**TEXT, embedding_size=32), None, {}),
    Case(
        "electra",
        "ElectraConfig",
        dict(**TEXT, embedding_size=32),
        None,
        dict(optimizer="adafactor"),
    ),
    Case(
        "deberta-v2",
        "DebertaV2Config",
        dict(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=32),
        None,
        {},
    ),
    Case("deberta", "DebertaConfig", dict(**TEXT), None, {}),
    Case("mpnet", "MPNetConfig", dict(**TEXT), None, {}),
    Case(
        "modernbert",
        "ModernBertConfig",
        dict(
            **TEXT,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
            local_attention=16,
        ),
        None,
        dict(attention="sdpa"),
    ),
    Case(
        "modernbert e",
        "ModernBertConfig",
        dict(
            **TEXT,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
            local_attention=16,
        ),
        "masked-lm",
        {},
    ),
    Case(
        "funnel",
        "FunnelConfig",
        dict(d_model=64, n_head=4, d_head=16, d_inner=128, vocab_size=500, block_sizes=[1, 1]),
        None,
        {},
    ),
    Case(
        "xlnet",
        "XLNetConfig",
        dict(d_model=64, n_head=4, d_inner=128, n_layer=3, vocab_size=500),
        None,
        {},
    ),
    Case(
        "xlm",
        "XLMConfig",
        dict(emb_dim=64, n_heads=4, n_layers=3, vocab_size=500),
        "sequence-classification",
        {},
    ),
    Case("camembert qa", "CamembertConfig", dict(**TEXT), "question-answering", {}),
    Case("squeezebert", "SqueezeBertConfig", dict(**TEXT, embedding_size=64), None, {}),
    Case(
        "mobilebert",
        "MobileBertConfig",
        dict(
            vocab_size=500,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=64,
            embedding_size=32,
            intra_bottleneck_size=32,
        ),
        None,
        {},
    ),
    Case("convbert", "ConvBertConfig", dict(**TEXT), None, {}),
    Case("longformer", "LongformerConfig", dict(**TEXT, attention_window=16), None, {}),
    Case("bigbird", "BigBirdConfig", dict(**TEXT, attention_type="original_full"), None, {}),
    Case(
        "fnet",
        "FNetConfig",
        dict(hidden_size=64, num_hidden_layers=4, intermediate_size=128, vocab_size=500),
        None,
        {},
    ),
    Case(
        "rembert",
        "RemBertConfig",
        dict(**TEXT, input_embedding_size=32, output_embedding_size=32),
        None,
        {},
    ),
    Case("roformer", "RoFormerConfig", dict(**TEXT, embedding_size=64), None, {}),
    Case("layoutlm", "LayoutLMConfig", dict(**TEXT), None, {}),
    Case("esm", "EsmConfig", dict(**TEXT, pad_token_id=1, mask_token_id=3), "masked-lm", {}),
    Case(
        "gpt2",
        "GPT2Config",
        dict(n_embd=64, n_head=4, n_layer=4, vocab_size=500),
        "causal-lm",
        {},
    ),
    Case(
        "gpt2 sdpa",
        "GPT2Config",
        dict(n_embd=64, n_head=4, n_layer=4, vocab_size=500),
        "causal-lm",
        dict(attention="sdpa", checkpointing=2),
    ),
    Case(
        "gpt-neo",
        "GPTNeoConfig",
        dict(
            hidden_size=64,
            num_heads=4,
            num_layers=4,
            attention_types=[[["global", "local"], 2]],
            vocab_size=500,
            window_size=16,
        ),
        "causal-lm",
        {},
    ),
    Case(
        "gptj",
        "GPTJConfig",
        dict(n_embd=64, n_head=4, n_layer=3, rotary_dim=8, vocab_size=500),
        "causal-lm",
        {},
    ),
    Case("gpt-neox", "GPTNeoXConfig", dict(**TEXT), "causal-lm", dict(attention="sdpa")),
    Case(
        "opt",
        "OPTConfig",
        dict(
            hidden_size=64,
            num_attention_heads=4,
            ffn_dim=128,
            num_hidden_layers=4,
            vocab_size=500,
            word_embed_proj_dim=64,
        ),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "bloom",
        "BloomConfig",
        dict(hidden_size=64, n_head=4, n_layer=3, vocab_size=500),
        "causal-lm",
        {},
    ),
    Case("llama", "LlamaConfig", dict(**GROUPED), "causal-lm", {}),
    Case(
        "llama sdpa",
        "LlamaConfig",
        dict(**GROUPED),
        "causal-lm",
        dict(attention="sdpa", accumulation_steps=2),
    ),
    Case(
        "llama sdpa padded",
        "LlamaConfig",
        dict(**GROUPED),
        "causal-lm",
        dict(attention="sdpa", padded=True, precision="bf16"),
    ),
    Case(
        "llama sel",
        "LlamaConfig",
        dict(**GROUPED),
        "causal-lm",
        dict(attention="sdpa", checkpointing="selective"),
    ),
    Case("llama lora", "LlamaConfig", dict(**GROUPED), "causal-lm", dict(attention="sdpa", lora=4)),
    Case(
        "llama seqcls",
        "LlamaConfig",
        dict(**GROUPED, pad_token_id=0),
        "sequence-classification",
        dict(attention="sdpa", optimizer="momentum"),
    ),
    Case(
        "mistral",
        "MistralConfig",
        dict(**GROUPED, sliding_window=16),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "qwen2",
        "Qwen2Config",
        dict(**GROUPED),
        "causal-lm",
        dict(attention="sdpa", optimizer="sgd"),
    ),
    Case(
        "qwen3",
        "Qwen3Config",
        dict(**GROUPED, head_dim=16),
        "causal-lm",
        dict(attention="sdpa", checkpointing=True),
    ),
    Case("gemma", "GemmaConfig", dict(**GROUPED, head_dim=16), "causal-lm", {}),
    Case(
        "gemma2",
        "Gemma2Config",
        dict(**GROUPED, head_dim=16, sliding_window=16),
        "causal-lm",
        {},
    ),
    Case(
        "gemma3",
        "Gemma3TextConfig",
        dict(**dict(GROUPED, num_hidden_layers=12), head_dim=16, sliding_window=16),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case("phi", "PhiConfig", dict(**TEXT), "causal-lm", dict(attention="sdpa")),
    Case(
        "phi3", "Phi3Config", dict(**GROUPED, pad_token_id=0), "causal-lm", dict(attention="sdpa")
    ),
    Case(
        "falcon",
        "FalconConfig",
        dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=3, vocab_size=500),
        "causal-lm",
        {},
    ),
    Case("olmo2", "Olmo2Config", dict(**GROUPED), "causal-lm", dict(attention="sdpa")),
    Case("stablelm", "StableLmConfig", dict(**GROUPED), "causal-lm", dict(attention="sdpa")),
    Case("cohere", "CohereConfig", dict(**GROUPED), "causal-lm", dict(attention="sdpa")),
    Case("granite", "GraniteConfig", dict(**GROUPED), "causal-lm", dict(attention="sdpa")),
    Case("starcoder2", "Starcoder2Config", dict(**GROUPED), "causal-lm", dict(attention="sdpa")),
    Case(
        "smollm3",
        "SmolLM3Config",
        dict(**GROUPED, pad_token_id=0),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "mixtral",
        "MixtralConfig",
        dict(**GROUPED, num_experts_per_tok=2, num_local_experts=4),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "mixtral bf16",
        "MixtralConfig",
        dict(**GROUPED, num_experts_per_tok=2, num_local_experts=4),
        "causal-lm",
        dict(attention="sdpa", precision="bf16"),
    ),
    Case(
        "qwen2-moe",
        "Qwen2MoeConfig",
        dict(
            **GROUPED,
            num_experts_per_tok=2,
            num_experts=4,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            decoder_sparse_step=2,
        ),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "qwen3-moe",
        "Qwen3MoeConfig",
        dict(
            **dict(GROUPED, num_hidden_layers=8),
            num_experts_per_tok=2,
            num_experts=4,
            moe_intermediate_size=32,
            mlp_only_layers=[0, 1],
            head_dim=16,
        ),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "olmoe",
        "OlmoeConfig",
        dict(**GROUPED, num_experts_per_tok=2, num_experts=4),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "deepseek-v3",
        "DeepseekV3Config",
        dict(
            **dict(TEXT, num_hidden_layers=6),
            num_key_value_heads=4,
            moe_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
            qk_nope_head_dim=8,
        ),
        "causal-lm",
        dict(attention="sdpa"),
    ),
    Case(
        "gpt-oss",
        "GptOssConfig",
        dict(**GROUPED, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16),
        "causal-lm",
        {},
    ),
    Case(
        "granitemoe",
        "GraniteMoeConfig",
        dict(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
        "causal-lm",
        {},
    ),
    Case(
        "jetmoe",
        "JetMoeConfig",
        dict(
            hidden_size=64,
            num_hidden_layers=3,
            num_key_value_heads=2,
            kv_channels=16,
            intermediate_size=64,
            num_local_experts=4,
            vocab_size=500,
        ),
        "causal-lm",
        {},
    ),
    Case(
        "mamba",
        "MambaConfig",
        dict(hidden_size=64, num_hidden_layers=3, vocab_size=500, state_size=8),
        "causal-lm",
        {},
    ),
    Case(
        "mamba2",
        "Mamba2Config",
        dict(
            hidden_size=64,
            num_hidden_layers=3,
            vocab_size=500,
            state_size=8,
            num_heads=8,
            head_dim=16,
            n_groups=1,
            chunk_size=16,
        ),
        "causal-lm",
        {},
    ),
    Case(
        "jamba",
        "JambaConfig",
        dict(
            **GROUPED,
            num_experts=2,
            num_experts_per_tok=1,
            mamba_d_state=8,
            use_mamba_kernels=False,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
        ),
        "causal-lm",
        {},
    ),
    Case(
        "rwkv",
        "RwkvConfig",
        dict(
            hidden_size=64,
            num_hidden_layers=3,
            vocab_size=500,
            attention_hidden_size=64,
            context_length=64,
        ),
        "causal-lm",
        {},
    ),
    Case(
        "recurrent-gemma",
        "RecurrentGemmaConfig",
        dict(**GROUPED, head_dim=16, lru_width=64, attention_window_size=16),
        "causal-lm",
        {},
    ),
    Case(
        "t5",
        "T5Config",
        dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=500),
        "seq2seq-lm",
        {},
    ),
    Case(
        "t5 ckpt",
        "T5Config",
        dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=500),
        "seq2seq-lm",
        dict(checkpointing=True),
    ),
    Case(
        "mt5 cls",
        "MT5Config",
        dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=500),
        "sequence-classification",
        {},
    ),
    Case("bart cls", "BartConfig", dict(**BOTH), "sequence-classification", {}),
    Case("bart", "BartConfig", dict(**BOTH), "seq2seq-lm", dict(attention="sdpa", padded=True)),
    Case("mbart", "MBartConfig", dict(**BOTH), "seq2seq-lm", dict(attention="sdpa")),
    Case("pegasus", "PegasusConfig", dict(**BOTH), "seq2seq-lm", dict(precision="bf16")),
    Case(
        "marian",
        "MarianConfig",
        dict(**BOTH, pad_token_id=1, decoder_start_token_id=1),
        "seq2seq-lm",
        {},
    ),
    Case("led", "LEDConfig", dict(**BOTH, attention_window=16), "seq2seq-lm", {}),
    Case(
        "prophetnet",
        "ProphetNetConfig",
        dict(
            hidden_size=64,
            encoder_ffn_dim=128,
            num_encoder_layers=2,
            num_encoder_attention_heads=4,
            decoder_ffn_dim=128,
            num_decoder_layers=2,
            num_decoder_attention_heads=4,
            vocab_size=500,
        ),
        "seq2seq-lm",
        {},
    ),
    Case("vit", "ViTConfig", dict(**IMAGE), None, {}),
    Case("vit bf16", "ViTConfig", dict(**IMAGE), None, dict(precision="bf16", attention="sdpa")),
    Case("vit mim", "ViTConfig", dict(**IMAGE, encoder_stride=4), "masked-image-modeling", {}),
    Case("deit", "DeiTConfig", dict(**IMAGE), None, dict(attention="sdpa")),
    Case("beit", "BeitConfig", dict(**IMAGE), None, {}),
    Case("dinov2", "Dinov2Config", dict(**IMAGE), None, dict(attention="sdpa")),
    Case(
        "swin",
        "SwinConfig",
        dict(
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 6],
            num_heads=[2, 4],
            window_size=4,
        ),
        None,
        {},
    ),
    Case(
        "convnext",
        "ConvNextConfig",
        dict(hidden_sizes=[16, 32], depths=[2, 3], num_stages=2, image_size=32),
        None,
        {},
    ),
    Case(
        "resnet",
        "ResNetConfig",
        dict(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 5]),
        None,
        {},
    ),
    Case("mobilenet-v2", "MobileNetV2Config", dict(image_size=32), None, {}),
    Case(
        "efficientnet",
        "EfficientNetConfig",
        dict(image_size=32, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
        None,
        {},
    ),
    Case(
        "regnet",
        "RegNetConfig",
        dict(embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], groups_width=8),
        None,
        {},
    ),
    Case(
        "segformer",
        "SegformerConfig",
        dict(
            image_size=32,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_encoder_blocks=2,
            sr_ratios=[2, 1],
            num_attention_heads=[1, 2],
            patch_sizes=[7, 3],
            strides=[4, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=32,
        ),
        None,
        {},
    ),
    Case(
        "videomae",
        "VideoMAEConfig",
        dict(**dict(IMAGE, patch_size=8), num_frames=4),
        "video-classification",
        {},
    ),
    Case(
        "poolformer",
        "PoolFormerConfig",
        dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]),
        None,
        {},
    ),
    Case("levit", "LevitConfig", dict(image_size=64), None, {}),
    Case("wav2vec2", "Wav2Vec2Config", dict(**SOUND), None, {}),
    Case("wav2vec2 ctc", "Wav2Vec2Config", dict(**SOUND), "ctc", dict(attention="sdpa")),
    Case("hubert", "HubertConfig", dict(**SOUND), None, {}),
    Case("wavlm", "WavLMConfig", dict(**SOUND, num_buckets=32, max_bucket_distance=80), None, {}),
    Case(
        "whisper",
        "WhisperConfig",
        dict(
            **BOTH,
            num_mel_bins=16,
            max_source_positions=32,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        ),
        "speech-seq2seq",
        dict(attention="sdpa"),
    ),
    Case(
        "ast",
        "ASTConfig",
        dict(
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=128,
            num_hidden_layers=3,
            max_length=64,
            num_mel_bins=32,
        ),
        None,
        {},
    ),
    Case("speech2text", "Speech2TextConfig", dict(**BOTH, conv_channels=32), "speech-seq2seq", {}),
    Case(
        "bert adafactor bf16 x2",
        "BertConfig",
        dict(**TEXT),
        None,
        dict(precision="bf16", optimizer="adafactor", accumulation_steps=2),
    ),
    Case(
        "bert every second",
        "BertConfig",
        dict(**dict(TEXT, num_hidden_layers=9)),
        None,
        dict(checkpointing=2),
    ),
    Case(
        "bert selective",
        "BertConfig",
        dict(**TEXT),
        None,
        dict(checkpointing="selective", attention="sdpa", padded=True),
    ),
    Case("bert lora", "BertConfig", dict(**TEXT), None, dict(lora=4, accumulation_steps=2)),
    Case(
        "t5 padded lora",
        "T5Config",
        dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=500),
        "seq2seq-lm",
        dict(padded=True, lora=4),
    ),
    Case(
        "vit momentum",
        "ViTConfig",
        dict(**IMAGE),
        None,
        dict(optimizer="momentum", checkpointing=3),
    ),
    Case(
        "opt lora bf16",
        "OPTConfig",
        dict(
            hidden_size=64,
            num_attention_heads=4,
            ffn_dim=128,
            num_hidden_layers=4,
            vocab_size=500,
            word_embed_proj_dim=64,
        ),
        "causal-lm",
        dict(lora=4, precision="bf16"),
    ),
]
SHORT = ("llama sdpa", "mixtral", "t5")


def _wide(hidden, layers, heads, inner, vocabulary, **more) -> dict:
    return dict(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
    ) | dict(more)


_BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
_T5 = dict(
    d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu"
)
_GPT2 = dict(n_embd=1024, n_layer=24, n_head=16)
_LLAMA = _wide(
    2048, 16, 32, 8192, 128256, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True
)
_QWEN = _wide(896, 24, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True)
LARGE = [  # in the sizes that people train, up to some 20 GiB: for a card
    Case("bert-base", "BertConfig", {}, None, dict(micro_batch=16, sequence_length=128)),
    Case(
        "bert-base eager fp16",
        "BertConfig",
        {},
        None,
        dict(micro_batch=16, sequence_length=512, precision="fp16", attention="eager"),
    ),
    Case(
        "roberta-base bf16",
        "RobertaConfig",
        dict(max_position_embeddings=514),
        None,
        dict(micro_batch=8, sequence_length=512, precision="bf16", attention="sdpa", padded=True),
    ),
    Case(
        "distilbert momentum",
        "DistilBertConfig",
        {},
        None,
        dict(micro_batch=32, sequence_length=256, optimizer="momentum", attention="sdpa"),
    ),
    Case(
        "deberta-v3-base",
        "DebertaV2Config",
        _BASE
        | dict(
            vocab_size=128100,
            relative_attention=True,
            position_buckets=256,
            pos_att_type=["p2c", "c2p"],
        ),
        None,
        dict(micro_batch=8, sequence_length=256),
    ),
    Case(
        "modernbert-base bf16",
        "ModernBertConfig",
        {},
        "masked-lm",
        dict(micro_batch=8, sequence_length=512, precision="bf16", attention="sdpa"),
    ),
    Case(
        "gpt2-medium",
        "GPT2Config",
        _GPT2,
        "causal-lm",
        dict(micro_batch=4, sequence_length=1024, attention="sdpa"),
    ),
    Case(
        "gpt2-medium 2x4 bf16",
        "GPT2Config",
        _GPT2,
        "causal-lm",
        dict(
            micro_batch=2,
            accumulation_steps=4,
            sequence_length=1024,
            precision="bf16",
            attention="sdpa",
            checkpointing=True,
        ),
    ),
    Case(
        "gpt-neox-410m",
        "GPTNeoXConfig",
        _wide(1024, 24, 16, 4096, 50432),
        "causal-lm",
        dict(micro_batch=4, sequence_length=1024, precision="bf16", attention="sdpa"),
    ),
    Case(
        "llama-1b lora",
        "LlamaConfig",
        _LLAMA,
        "causal-lm",
        dict(micro_batch=2, sequence_length=1024, precision="bf16", attention="sdpa", lora=8),
    ),
    Case(
        "llama-1b every layer",
        "LlamaConfig",
        _LLAMA,
        "causal-lm",
        dict(
            micro_batch=2,
            sequence_length=1024,
            precision="bf16",
            attention="sdpa",
            checkpointing=True,
            optimizer="adafactor",
        ),
    ),
    Case(
        "llama-1b selective fp32",
        "LlamaConfig",
        _LLAMA,
        "causal-lm",
        dict(
            micro_batch=1,
            sequence_length=1024,
            attention="sdpa",
            checkpointing="selective",
            optimizer="sgd",
        ),
    ),
    Case(
        "qwen-0.5b",
        "Qwen2Config",
        _QWEN,
        "causal-lm",
        dict(micro_batch=4, sequence_length=1024, precision="bf16", attention="sdpa"),
    ),
    Case(
        "qwen-0.5b padded",
        "Qwen2Config",
        _QWEN,
        "causal-lm",
        dict(
            micro_batch=4,
            sequence_length=512,
            precision="bf16",
            attention="sdpa",
            padded=True,
            checkpointing=2,
        ),
    ),
    Case(
        "gemma2-500m",
        "Gemma2Config",
        _wide(1024, 16, 8, 4096, 256000, num_key_value_heads=4, head_dim=128),
        "causal-lm",
        dict(micro_batch=2, sequence_length=512, precision="bf16"),
    ),
    Case(
        "mixtral-8x160m",
        "MixtralConfig",
        _wide(768, 8, 12, 2048, 32000, num_key_value_heads=4),
        "causal-lm",
        dict(micro_batch=2, sequence_length=512, precision="bf16", attention="sdpa"),
    ),
    Case("t5-base", "T5Config", _T5, "seq2seq-lm", dict(micro_batch=8, sequence_length=256)),
    Case(
        "bart-base bf16",
        "BartConfig",
        dict(
            d_model=768,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        "seq2seq-lm",
        dict(micro_batch=8, sequence_length=256, precision="bf16", attention="sdpa"),
    ),
    Case(
        "vit-large",
        "ViTConfig",
        dict(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        ),
        None,
        dict(micro_batch=16, attention="sdpa"),
    ),
    Case(
        "dinov2-base bf16",
        "Dinov2Config",
        {},
        None,
        dict(micro_batch=16, precision="bf16", attention="sdpa"),
    ),
    Case(
        "swin-base",
        "SwinConfig",
        dict(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]),
        None,
        dict(micro_batch=8),
    ),
    Case(
        "convnext-base",
        "ConvNextConfig",
        dict(depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024]),
        None,
        dict(micro_batch=16),
    ),
    Case("resnet-50", "ResNetConfig", {}, None, dict(micro_batch=16)),
    Case(
        "wav2vec2-base",
        "Wav2Vec2Config",
        dict(apply_spec_augment=False, layerdrop=0.0),
        None,
        dict(micro_batch=4, sequence_length=48000),
    ),
    Case(
        "whisper-small bf16",
        "WhisperConfig",
        dict(
            d_model=768,
            encoder_layers=12,
            decoder_layers=12,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        ),
        None,
        dict(micro_batch=4, sequence_length=128, precision="bf16"),
    ),
    Case(
        "mamba-130m",
        "MambaConfig",
        dict(hidden_size=768, num_hidden_layers=6),
        "causal-lm",
        dict(micro_batch=2, sequence_length=256),
    ),
]


def make(subject, setup):
    """The model as the setup trains it, with random weights."""
    torch.manual_seed(0)
    module = subject.make(setup)
    enable_checkpointing(module, setup.checkpointing)
    return add_adapters(module, setup.lora)


def train(subject, setup, module, device="cpu"):
    """Two optimizer steps of the plain loop."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    dtype = AUTOCAST[setup.precision]
    optimizer = OPTIMIZERS[setup.optimizer](trained)
    for _ in range(2):
        for _ in range(setup.accumulation_steps):
            batch = map_tensors(lambda tensor: tensor.to(device), subject.batch(setup))
            with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
                loss = subject.loss(module, batch) / setup.accumulation_steps
            loss.backward()
            del loss, batch
        optimizer.step()
        optimizer.zero_grad()


def allocator_peak(subject, setup) -> int:
    """The most bytes that torch's CPU allocator has handed out while the model is trained, weights included."""
    with _watched() as making:
        module = make(subject, setup)
    live = peak = sum(_changes(making))
    gc.collect()
    with _watched() as training:
        train(subject, setup, module)
    for change in _changes(training):
        live += change
        peak = max(peak, live)
    return peak


def card_peak(subject, setup) -> int:
    """The same of CUDA's caching allocator, in bytes as it rounds them; what libraries keep for themselves (cuBLAS's workspace) is made before."""
    module = make(subject, setup).cuda()
    train(subject, setup, module, "cuda")
    del module
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    module = make(subject, setup).cuda()
    torch.cuda.reset_peak_memory_stats()
    train(subject, setup, module, "cuda")
    return torch.cuda.max_memory_allocated() - before


def _watched():
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def _changes(profiler):
    events = profiler.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]"]


class Outcome(NamedTuple):
    """`true` is None where the training itself failed, `predicted` where there is no prediction; then `reason` says why."""

    case: Case
    true: int | None
    predicted: int | None
    seconds: float
    reason: str = ""
    reserved: tuple[int, int] | None = None  # of a card: measured, predicted

    @property
    def error(self):
        return self.predicted / self.true - 1

    @property
    def words(self):
        if self.predicted is None:
            return self.reason
        words = f"{self.error:+8.3%}  {self.seconds:5.1f} s" + "  MISS" * (abs(self.error) > NEAR)
        if self.reserved:
            words += "  reserved {:,}, predicted {:,} ({:+.2%})".format(
                *self.reserved, self.reserved[1] / self.reserved[0] - 1
            )
        return words


def outcome(case: Case, layers=(2, 3)) -> Outcome:
    """One case's row; what goes wrong in it is told there, and the other cases run all the same."""
    on_card = the_device() == "cuda"
    try:
        subject = subject_of(case.config, case.task)
        setup = subject.ready(case.setup)
        true = (card_peak if on_card else allocator_peak)(subject, setup)
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        return Outcome(case, None, None, 0.0, f"FAILED: {type(error).__name__}: {words}")
    start = time.process_time()
    try:
        run = predict_run(
            case.config, setup, task=case.task, layers=layers, device="gpu" if on_card else "cpu"
        )
    except ValueError as error:
        return Outcome(case, true, None, time.process_time() - start, str(error))
    except Exception as error:  # never a refusal: predict_run owes a sentence
        words = " ".join(str(error).split())[:200]
        return Outcome(case, true, None, 0.0, f"FAILED: {type(error).__name__}: {words}")
    seconds = time.process_time() - start
    if not on_card:
        return Outcome(case, true, run.peak_bytes, seconds)
    told = run.device_bytes
    reserved = torch.cuda.max_memory_reserved(), told["allocator_reserved"]
    return Outcome(case, true, told["allocator_peak"], seconds, reserved=reserved)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Predictions against torch's allocator.")
    parser.add_argument("names", nargs="*", help="names of cases; all without")
    parser.add_argument("--full", action="store_true", help="trace all layers")
    parser.add_argument("--large", action="store_true", help="the cases in real sizes")
    parser.add_argument("--short", action="store_true", help="three cases only")
    options = parser.parse_args(arguments)
    names = SHORT if options.short else options.names
    logging.disable(logging.WARNING)
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in LARGE if options.large else CASES:
            if names and case.name not in names:
                continue
            one = outcome(case, None if options.full else (2, 3))
            true, told = (
                "" if bytes_ is None else f"{bytes_:,}" for bytes_ in (one.true, one.predicted)
            )
            print(f"{case.name:24} {true:>11} {told:>11} {one.words}", flush=True)
            outcomes.append(one)
    logging.disable(logging.NOTSET)
    told = [one for one in outcomes if one.predicted is not None]
    near = [one for one in told if abs(one.error) <= NEAR]
    failed = sum(one.reason.startswith("FAILED") for one in outcomes)
    print(
        f"{len(near)} of {len(outcomes)} within {NEAR:.1%}, {len(outcomes) - len(told) - failed} refused with a sentence"
        + (f", {failed} failed" if failed else "")
        + f"; largest error {max((abs(one.error) for one in told), default=0):.3%}"
    )


if __name__ == "__main__":
    sys.exit(main())
