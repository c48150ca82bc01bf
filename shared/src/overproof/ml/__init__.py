"""The numerics: data sets, networks, augmentation, distillation, training, attacks.

torch is imported here and nowhere else. Nothing in here knows of jobs, buses or stores: handlers
pass in paths, seeds and devices. All randomness comes from generators that the caller made.
"""
