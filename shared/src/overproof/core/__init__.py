"""Plain values of the domain: specs, ids, states, threats, registries. No I/O, no torch."""
