"""Small Hugging Face models made from configurations: random weights, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
import vision  # noqa: F401  (transformers imports torchvision when a model is first asked for)
from torch import Tensor, nn

VOCABULARY, TOKENS = 60, 8
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZE, "vocab_size": VOCABULARY, "intermediate_size": 48, "num_key_value_heads": 2}


class Logits(nn.Module):
    """A language model as a function of its tokens, without the cache that it would also return."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.model(tokens, **self.options).logits
        return output


def _causal(config: Any) -> nn.Module:
    return Logits(hf.AutoModelForCausalLM.from_config(config), use_cache=False)


def _masked(config: Any) -> nn.Module:
    return Logits(hf.AutoModelForMaskedLM.from_config(config))


class EncoderDecoder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
        return output


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": lambda: _causal(hf.LlamaConfig(**DECODER)),
    "Mistral": lambda: _causal(hf.MistralConfig(**DECODER, sliding_window=4)),
    "Qwen2": lambda: _causal(hf.Qwen2Config(**DECODER)),
    "Qwen3": lambda: _causal(hf.Qwen3Config(**DECODER, head_dim=8)),
    "Gemma2": lambda: _causal(hf.Gemma2Config(**DECODER, head_dim=8)),
    "Mixtral": lambda: _causal(hf.MixtralConfig(**DECODER, num_local_experts=3, experts_implementation="batched_mm")),
    "GPT-2": lambda: _causal(hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16)),
    "GPT-NeoX": lambda: _causal(hf.GPTNeoXConfig(**SIZE, vocab_size=VOCABULARY, intermediate_size=48)),
    "OPT": lambda: _causal(hf.OPTConfig(**SIZE, vocab_size=VOCABULARY, ffn_dim=48, word_embed_proj_dim=32)),
    "BERT": lambda: _masked(hf.BertConfig(**SIZE, vocab_size=VOCABULARY, intermediate_size=48)),
    "DistilBERT": lambda: _masked(
        hf.DistilBertConfig(vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48)),
    "T5": lambda: EncoderDecoder(hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4))),
    "ViT": lambda: Logits(hf.ViTForImageClassification(hf.ViTConfig(
        **SIZE, intermediate_size=48, image_size=16, patch_size=4, num_labels=10))),
}  # fmt: skip


def inputs(name: str) -> Tensor:
    draws = torch.Generator().manual_seed(5)
    if name == "ViT":
        return torch.randn(2, 3, 16, 16, generator=draws, dtype=torch.float64)
    return torch.randint(0, VOCABULARY, (2, TOKENS), generator=draws)
