"""The weights of a diffusion model that fits a test: real classes, random values, few of them."""

from __future__ import annotations

import json
from pathlib import Path

from overproof.ml.seeding import seeded_init

_PLACES = 16  # tokens of a prompt
# The 256 bytes as the tokenizer writes them, each alone and at the end of a word.
_BYTES = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]] + [
    chr(256 + number) for number in range(68)
]


def write_weights(folder: Path) -> Path:
    """A Stable Diffusion pipeline of some ten thousand values in `folder`."""
    from diffusers import (
        AutoencoderKL,
        PNDMScheduler,
        StableDiffusionPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    tokens = [*_BYTES, *(byte + "</w>" for byte in _BYTES), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = folder / "vocab.json"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(vocabulary), str(folder / "merges.txt"), model_max_length=_PLACES)
    unet = seeded_init(
        lambda: UNet2DConditionModel(
            sample_size=4,
            in_channels=4,
            out_channels=4,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=8,
            attention_head_dim=2,
            norm_num_groups=4,
        ),
        0,
        "unet",
    )
    autoencoder = seeded_init(
        lambda: AutoencoderKL(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(8, 8),
            layers_per_block=1,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=4,
            sample_size=8,
        ),
        0,
        "autoencoder",
    )
    text = seeded_init(
        lambda: CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(tokens),
                hidden_size=8,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=_PLACES,
                bos_token_id=len(tokens) - 2,
                eos_token_id=len(tokens) - 1,
                pad_token_id=len(tokens) - 1,
            )
        ),
        0,
        "text",
    )
    pipeline = StableDiffusionPipeline(
        vae=autoencoder,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=PNDMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            skip_prk_steps=True,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    return folder
