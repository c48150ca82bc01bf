"""Tables of published papers, as data: nothing here was measured by us."""
