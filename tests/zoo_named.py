"""The architectures that everyone knows, with their free scales counted by hand.

The comments count; all torchvision models have their batch norms preserved: what enters one is pinned, and its
own weight scales what leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Named:
    """A torchvision model: its free scales, how many of its weights are covered, and what pins the rest."""

    name: str
    free: int
    covered: int
    weights: int
    pinned: tuple[str, ...]


NORMED, IMAGE = "it enters batch_norm", "it meets the model's input or a constant"
LAYER_NORMED, GELU = "it enters layer_norm", "gelu is not positively homogeneous"

NAMED = [
    # Stem 64. Each bottleneck has two inner norms: 2 (3·64 + 4·128 + 6·256 + 3·512); each stage one sum: 256 … 2048.
    # Only the first convolution lies between the image and a batch norm.
    Named("resnet50", 64 + 7552 + 3840, 53, 54, (NORMED,)),
    # A norm and a relu before every convolution: the inner ones 58·128; the outer ones see 64 + 32 i channels, from
    # 64, 128, 256 and 512 on: 31520; the transitions 256 + 512 + 1024; the last 1024. The first one's output meets the
    # next norm through the concatenation.
    Named("densenet121", 58 * 128 + 31520 + 1792 + 1024, 120, 121, (NORMED,)),
    # Stem 24, head 1024. A stage of n units of width c from c0: the first c0 + 2 c, the others 3 c / 2.
    Named("shufflenet_v2_x1_0", 24 + 1024 + (24 + 232 + 3 * 174) + (116 + 464 + 7 * 348) + (232 + 928 + 3 * 696),
          56, 57, (NORMED,)),
    # relu6 pins all that it reads and makes; free are the linear bottlenecks, summed over each stage.
    Named("mobilenet_v2", 16 + 24 + 32 + 64 + 96 + 160 + 320, 17, 53, (NORMED, "hardtanh has a bound")),
    # A block has its norm before the first linear layer, and the layer scale after the second: 2 (3·96 + 3·192 + 9·384
    # + 3·768); norms before the downsampling convolutions 96 + 192 + 384; the last norm 768. The depthwise convolutions
    # (18), the linear layers after gelu only through the layer scale; the stem enters a norm.
    Named("convnext_tiny", 2 * 6624 + 672 + 768, 40, 59, (LAYER_NORMED, GELU)),
    # A layer has two norms, queries with keys, and values: 4·768; the last norm 768. Pinned: the patches (the stream
    # enters norms) and the linear layers after gelu (12).
    Named("vit_b_16", 12 * 4 * 768 + 768, 37, 50, (LAYER_NORMED, GELU)),
    # A block as in ViT: 4 (2·96 + 2·192 + 6·384 + 2·768); merging norms 4 (96 + 192 + 384); the last norm 768.
    Named("swin_t", 4 * 4416 + 4 * 672 + 768, 40, 53, (LAYER_NORMED, GELU)),
]  # fmt: skip

# Two layers of width 32 with four heads of 8, feed-forward width 48.
HUGGING_FACE = {
    # Norms 5·32 (two per layer, and the last); per layer two key heads: 2·4 pairs that rotate together, 2·8 values that
    # two query heads share, 48 between up and down. Everything is covered.
    "Llama": 5 * 32 + 2 * (8 + 16 + 48),
    "Mistral": 5 * 32 + 2 * (8 + 16 + 48),
    "Qwen2": 5 * 32 + 2 * (8 + 16 + 48),  # its query and key biases move along
    "Qwen3": 5 * 32
    + 2
    * (4 + 16 + 48),  # queries and keys have a norm each: its weight rotates, 4 pairs per layer for all heads
    "Gemma2": 2 * (8 + 16 + 48),  # norms multiply by 1 + w: no scale of w does that
    "Mixtral": 5 * 32 + 2 * (8 + 16),  # the experts' inner scales are not found
    # Two layers of a norm before attention, 32 query-key and 32 value channels, a norm before the gelu layer. The last
    # norm meets the embedding, whose columns are tied to the head's.
    "GPT-2": 2 * 4 * 32,
    # A quarter of a head's 8 channels rotates: 1 pair and 6 channels.
    "GPT-NeoX": 5 * 32 + 2 * (4 * 7 + 32),
    "OPT": 2 * (4 * 32 + 48),  # relu; the last norm meets the tied head
    "BERT": 2 * 2 * 32
    + 32,  # norms after the sums: they are in the stream, which enters the next one; 32 in the head
    "DistilBERT": 2 * 2 * 32 + 32,
    "T5": 6 * 64
    + 4 * 48
    + 11 * 32,  # attentions, relu layers, norms but the decoder's last: it meets the tied head
    "ViT": 2 * 4 * 32 + 32,
}
