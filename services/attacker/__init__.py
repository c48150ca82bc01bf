"""The attacker service: entry point only, all logic is in the library."""
