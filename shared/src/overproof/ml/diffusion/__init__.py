"""Latent diffusion: a pipeline of diffusers behind the few calls that distillation needs."""
